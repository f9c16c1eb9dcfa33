// Who waits for whom when nothing can make progress.
//
// The knots of the graph are operations and bodies that wait. A queued get waits for whoever may still put into
// its place of the channel: an operation that was issued, or a tile or body whose text has such a put. An
// operation that is held back waits for what holds it back, a herd for its tiles. A cycle in this graph is the
// deadlock; where there is none, something waits for what nobody will do.
#include <stdarg.h>
#include <stdio.h>

#include "vnpu/entry.h"
#include "vnpu/schedule.h"

namespace vnpu {

namespace {

using Body = Process::promise_type;

struct Knot {
  const Where *where;
  Site site;
  Body *body;        // that cannot go on before this is over
  Task *task;
  Channel *channel;  // of a put or get
  i64 index;
  bool is_put;
  Transfer *transfer;  // queued at its channel; else null
  int color = 0;     // of the search: not seen, on the path, done
};

struct Text {
  char *at;
  int left;
  void add(const char *format, ...) __attribute__((format(printf, 2, 3))) {
    if (left < 300) return;
    va_list arguments;
    va_start(arguments, format);
    const int used = vsnprintf(at, size_t(left), format, arguments);
    va_end(arguments);
    at += used;
    left -= used;
  }
};

}  // namespace

class Deadlock {
 public:
  explicit Deadlock(Island &island) : island_(island) { collect(); }

  [[noreturn]] void report();

 private:
  void collect();
  void collect_channel(Channel &channel);
  template <class Visit>
  bool each_cause(int knot, Visit visit);
  template <class Visit>
  bool each_partner(const Knot &knot, Visit visit);
  template <class Visit>
  bool each_reason(Task *task, Visit visit);
  int knot_of(const Body *body);
  int knot_of(const Task *task);
  bool is_at_end(const Body &body);
  bool may_do(const Ports *ports, const Where *where, const Channel &channel, bool put, i64 index) const;
  bool search(int knot);
  void describe(Text &text, const Knot &knot) const;
  bool is_shown(const Knot &knot) const { return knot.site.line > 0; }
  void list_cycle(Text &text);
  void list_dead_ends(Text &text);
  void refuse_unfilled();

  static constexpr int kMostLines = 16;
  Island &island_;
  List<Knot> knots_;
  List<int> path_;  // the knots of the cycle, once it is found
};

void Deadlock::collect_channel(Channel &channel) {
  for (i64 i = 0; i < channel.from_.count; ++i) {
    for (Transfer *t = channel.inlets_[i].puts.first; t; t = t->next) {
      Body *const body = t->process ? &t->process.promise() : nullptr;
      knots_.push(Knot{&t->where, t->site, body, t->task, &channel, i, true, t});
    }
  }
  for (i64 i = 0; i < channel.to_.count; ++i) {
    for (Transfer *t = channel.outlets_[i].gets.first; t; t = t->next) {
      Body *const body = t->process ? &t->process.promise() : nullptr;
      knots_.push(Knot{&t->where, t->site, body, t->task, &channel, i, false, t});
    }
  }
}

void Deadlock::collect() {
  for (int i = 0; i < island_.channels_.size(); ++i) collect_channel(*island_.channels_[i]);
  for (Task *task = island_.tasks_; task; task = task->next_) {
    if (task->done || knot_of(task) >= 0) continue;
    Knot knot{task->where, task->site, nullptr, task, nullptr, 0, false, nullptr};
    if (auto *transfer = dynamic_cast<TransferTask *>(task)) {
      knot.channel = &transfer->channel;
      knot.index = transfer->index;
      knot.is_put = transfer->is_put;
    }
    knots_.push(knot);
  }
  for (Body *body = island_.live_; body; body = body->next) {
    if (knot_of(body) < 0) knots_.push(Knot{&body->where, Site{"", 0}, body, nullptr, nullptr, 0, false, nullptr});
  }
}

int Deadlock::knot_of(const Body *body) {
  for (int i = 0; i < knots_.size(); ++i) {
    if (body && knots_[i].body == body) return i;
  }
  return -1;
}

int Deadlock::knot_of(const Task *task) {
  for (int i = 0; i < knots_.size(); ++i) {
    if (task && knots_[i].task == task) return i;
  }
  return -1;
}

// Whether a body has issued all it has and waits for the rest.
bool Deadlock::is_at_end(const Body &body) {
  for (int i = 0; i < knots_.size(); ++i) {
    auto *const resume = knots_[i].task ? dynamic_cast<Resume *>(knots_[i].task) : nullptr;
    if (resume && resume->is_end && &resume->handle.promise() == &body) return true;
  }
  return false;
}

// Whether among these is a put (or get) whose indices may be these. Who executes it, where that is known, tells more.
bool Deadlock::may_do(const Ports *ports, const Where *where, const Channel &channel, bool put, i64 index) const {
  const Channel::Shape &shape = put ? channel.from_ : channel.to_;
  for (int p = 0; ports && p < ports->count; ++p) {
    const Port &port = ports->list[p];
    if (port.is_put != put || __builtin_strcmp(port.channel, channel.name_) != 0) continue;
    bool fits = true;
    i64 rest = index;
    for (int d = shape.rank - 1; d >= 0; --d) {
      const i64 coordinate = rest % shape.extents[d];
      rest /= shape.extents[d];
      if (d >= Port::kMaxRank || shape.extents[d] == 1) continue;
      const Port::Index &known = port.indices[d];
      if (!known.at || (!where && !known.is_fixed)) continue;
      fits = fits && known.at(where ? where->x : 0, where ? where->y : 0) == coordinate;
    }
    if (fits) return true;
  }
  return false;
}

// The other side of a queued transfer.
template <class Visit>
bool Deadlock::each_partner(const Knot &knot, Visit visit) {
  const Channel &channel = *knot.channel;
  const i64 first = knot.is_put ? 0 : channel.outlets_[knot.index].source;
  const i64 last = knot.is_put ? channel.to_.count - 1 : first;
  for (i64 other = first; other <= last; ++other) {
    if (knot.is_put && (channel.outlets_[other].source != knot.index || channel.outlets_[other].full == 0)) continue;
    for (int i = 0; i < knots_.size(); ++i) {
      const Knot &k = knots_[i];
      if (k.channel == &channel && k.is_put != knot.is_put && k.index == other && visit(i)) return true;
      auto *const spawn = k.task ? dynamic_cast<Spawn *>(k.task) : nullptr;
      const bool begins = spawn && spawn->pending > 0;
      if (begins && may_do(spawn->ports, nullptr, channel, !knot.is_put, other) && visit(i)) return true;
    }
    for (Body *body = island_.live_; body; body = body->next) {
      if (is_at_end(*body)) continue;
      if (may_do(body->where.ports, &body->where, channel, !knot.is_put, other) && visit(knot_of(body))) return true;
    }
  }
  return false;
}

// What holds a task back, or what it runs.
template <class Visit>
bool Deadlock::each_reason(Task *task, Visit visit) {
  for (int i = 0; i < knots_.size(); ++i) {
    Task *const before = knots_[i].task;
    for (int n = 0; before && n < before->successors_.size(); ++n) {
      if (before->successors_[n].task == task && visit(i)) return true;
    }
  }
  for (Body *body = island_.live_; body; body = body->next) {
    if (body->owner == task && visit(knot_of(body))) return true;
  }
  return false;
}

template <class Visit>
bool Deadlock::each_cause(int number, Visit visit) {
  const Knot knot = knots_[number];
  if (knot.transfer) return each_partner(knot, visit);
  if (knot.task) return each_reason(knot.task, visit);
  // A body: it goes on when the task does that resumes it.
  for (int i = 0; i < knots_.size(); ++i) {
    auto *const resume = knots_[i].task ? dynamic_cast<Resume *>(knots_[i].task) : nullptr;
    if (resume && resume->handle == Process::Handle::from_promise(*knot.body) && visit(i)) return true;
  }
  return false;
}

// Depth first; on finding a cycle leaves it in path_.
bool Deadlock::search(int knot) {
  knots_[knot].color = 1;
  path_.push(knot);
  const bool found = each_cause(knot, [&](int cause) {
    if (cause < 0 || knots_[cause].color == 2) return false;
    if (knots_[cause].color == 0) return search(cause);
    int start = 0;
    while (path_[start] != cause) ++start;
    for (int i = start; i < path_.size(); ++i) path_[i - start] = path_[i];
    path_.shrink(path_.size() - start);
    return true;
  });
  if (found) return true;
  knots_[knot].color = 2;
  path_.shrink(path_.size() - 1);
  return false;
}

void Deadlock::describe(Text &text, const Knot &knot) const {
  const Where &where = *knot.where;
  text.add("\n  %s", where.name);
  if (where.dims == 1) text.add(" (%lld)", (long long)where.x);
  if (where.dims > 1) text.add(" (%lld, %lld)", (long long)where.x, (long long)where.y);
  text.add(", line %d: ", knot.site.line);
  if (!knot.channel) {
    text.add("%s", knot.site.op);
    return;
  }
  char index[64];
  const Channel &channel = *knot.channel;
  Channel::describe_index(index, int(sizeof(index)), knot.is_put ? channel.from_ : channel.to_, knot.index);
  const i64 source = knot.is_put ? knot.index : channel.outlets_[knot.index].source;
  text.add("%s %s[%s] (%lld put so far, ", knot.is_put ? "put" : "get", channel.name_, index,
           (long long)channel.inlets_[source].blocks);
  int full = 0;
  for (i64 o = 0; o < channel.to_.count; ++o) {
    if (channel.outlets_[o].source == source && channel.outlets_[o].full > full) full = channel.outlets_[o].full;
  }
  text.add("%d in flight)", full);
}

void Deadlock::list_cycle(Text &text) {
  int shown = 0;
  for (int i = 0; i < path_.size(); ++i) shown += is_shown(knots_[path_[i]]);
  text.add("deadlock: nothing can make progress. ");
  if (shown == 1) text.add("This one waits for what only it could do later:");
  else text.add("Each of these %d waits for the next one, the last for the first:", shown);
  for (int i = 0; i < path_.size(); ++i) {
    const Knot &knot = knots_[path_[i]];
    if (!is_shown(knot)) continue;
    describe(text, knot);
    if (knot.transfer) text.add(knot.is_put ? ", until a get makes room" : ", until a put comes");
    else text.add(", held back by what it depends on");
  }
}

void Deadlock::list_dead_ends(Text &text) {
  text.add("deadlock: nothing can make progress. Nobody is left who could do what these wait for:");
  int listed = 0, more = 0;
  for (int i = 0; i < knots_.size(); ++i) {
    if (!is_shown(knots_[i]) || !knots_[i].transfer || each_cause(i, [](int) { return true; })) continue;
    if (listed++ >= kMostLines) {
      ++more;
      continue;
    }
    describe(text, knots_[i]);
    text.add(knots_[i].is_put ? ": no get makes room" : ": no put comes");
  }
  if (more) text.add("\n  and %d more", more);
}

// A get that has a part of what it takes and waits for the rest.
void Deadlock::refuse_unfilled() {
  for (int i = 0; i < knots_.size(); ++i) {
    Transfer *const get = knots_[i].transfer;
    if (!get || get->collected.count == 0) continue;
    here = &get->where;
    fail_as(Failure::kMismatch, get->site, "takes %lld elements from %s, but only %lld were put there and no more come",
            (long long)get->side.count, knots_[i].channel->name_, (long long)get->collected.count);
  }
}

void Deadlock::report() {
  Failure failure{Failure::kDeadlock, {}};
  Text text{failure.text, int(sizeof(failure.text))};
  bool found = false;
  for (int i = 0; i < knots_.size() && !found; ++i) found = knots_[i].color == 0 && search(i);
  if (!found) refuse_unfilled();
  if (found) list_cycle(text);
  else list_dead_ends(text);
  throw failure;
}

void fail_deadlock(Island &island) { Deadlock(island).report(); }

}  // namespace vnpu
