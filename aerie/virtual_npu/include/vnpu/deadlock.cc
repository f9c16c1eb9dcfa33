// Describes a deadlock: which operation waits for which.
//
// The nodes of the graph are operations and bodies that wait. A queued get waits for every put that may still come to its
// member of the channel: an issued operation, or a tile or body with such a put in its text. An operation that is held back
// waits for what holds it back, a herd for its tiles. A cycle in this graph is the deadlock; without a cycle, something waits
// for an operation that never comes.
#include <stdarg.h>
#include <stdio.h>

#include "vnpu/channel.h"
#include "vnpu/entry.h"

namespace vnpu {

namespace {

using Body = Process::promise_type;

struct Node {
  const ExecutionPlace *where;
  Site site;
  Body *body;        // the body that resumes after this operation
  Task *task;
  Channel *channel;  // of a put or get
  i64 index;
  bool is_put;
  Transfer *transfer;  // queued at its channel; else null
  int color = 0;     // of the search: not seen, on the path, done
  int reason = -1;   // of a task: the first of the list of what it waits for
  int resume = -1;   // of a body: what it resumes after
};

// What a task waits for: the operation itself, and the next of the list.
struct Reason {
  int node, next;
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
  explicit Deadlock(TaskLoop &task_loop) : task_loop_(task_loop) { collect(); }

  [[noreturn]] void report();
  void list_positions(Text &text);

 private:
  void collect();
  void collect_channel(Channel &channel);
  template <class Visit>
  bool each_cause(int node, Visit visit);
  template <class Visit>
  bool each_partner(const Node &node, Visit visit);
  template <class Visit>
  bool each_reason(Task *task, Visit visit);
  void add(const Node &node);
  void collect_reasons();
  int node_of(const Body *body) const { return body ? body->node : -1; }
  int node_of(const Task *task) const { return task ? task->node_ : -1; }
  bool may_do(const Ports *ports, const ExecutionPlace *where, const Channel &channel, bool put, i64 index) const;
  bool search(int node);
  void describe_place(Text &text, const ExecutionPlace &where) const;
  void describe(Text &text, const Node &node) const;
  void describe_channel(Text &text, const Channel &channel, const Channel::Shape &side, i64 index, i64 source) const;
  int in_flight(const Channel &channel, i64 source) const;
  void list_ready(Text &text);
  void list_in_flight(Text &text);
  bool is_shown(const Node &node) const { return node.site.line > 0; }
  void list_cycle(Text &text);
  void list_dead_ends(Text &text);
  void refuse_unfilled();

  static constexpr int kMaxLines = 16;
  TaskLoop &task_loop_;
  List<Node> nodes_;
  List<Reason> reasons_;
  List<int> path_;  // the nodes of the cycle, once it is found
};

void Deadlock::add(const Node &node) {
  if (node.body) node.body->node = nodes_.size();
  if (node.task) node.task->node_ = nodes_.size();
  nodes_.push(node);
}

void Deadlock::collect_channel(Channel &channel) {
  for (i64 i = 0; i < channel.from_.count; ++i) {
    for (Transfer *t = channel.inlets_[i].puts.first; t; t = t->next) {
      Body *const body = t->process ? &t->process.promise() : nullptr;
      add(Node{&t->where, t->site, body, t->task, &channel, i, true, t});
    }
  }
  for (i64 i = 0; i < channel.to_.count; ++i) {
    for (Transfer *t = channel.outlets_[i].gets.first; t; t = t->next) {
      Body *const body = t->process ? &t->process.promise() : nullptr;
      add(Node{&t->where, t->site, body, t->task, &channel, i, false, t});
    }
  }
}

void Deadlock::collect() {
  for (int i = 0; i < task_loop_.channels_.size(); ++i) collect_channel(*task_loop_.channels_[i]);
  for (Task *task = task_loop_.tasks_; task; task = task->next_) {
    if (task->done || node_of(task) >= 0) continue;
    Node node{task->where, task->site, nullptr, task, nullptr, 0, false, nullptr};
    if (auto *transfer = dynamic_cast<TransferTask *>(task)) {
      node.channel = &transfer->channel;
      node.index = transfer->index;
      node.is_put = transfer->is_put;
    }
    add(node);
  }
  for (Body *body = task_loop_.live_; body; body = body->next) {
    if (node_of(body) < 0) add(Node{&body->where, Site{"", 0}, body, nullptr, nullptr, 0, false, nullptr});
  }
  collect_reasons();
}

// From what is waited for to what waits.
void Deadlock::collect_reasons() {
  for (int i = nodes_.size() - 1; i >= 0; --i) {
    Task *const task = nodes_[i].task;
    if (!task) continue;
    for (int n = 0; n < task->successors_.size(); ++n) {
      const int after = node_of(task->successors_[n].task);
      if (after < 0) continue;
      reasons_.push(Reason{i, nodes_[after].reason});
      nodes_[after].reason = reasons_.size() - 1;
    }
    auto *const resume = dynamic_cast<Resume *>(task);
    if (!resume) continue;
    Body &body = resume->handle.promise();
    body.is_at_end |= resume->is_end;
    if (body.node >= 0) nodes_[body.node].resume = i;
  }
}

// Whether a body may have a put (or get) with these indices. The coordinates of the body narrow the indices if they are known.
bool Deadlock::may_do(const Ports *ports, const ExecutionPlace *where, const Channel &channel, bool put, i64 index) const {
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
bool Deadlock::each_partner(const Node &node, Visit visit) {
  const Channel &channel = *node.channel;
  const i64 first = node.is_put ? 0 : channel.outlets_[node.index].source;
  const i64 last = node.is_put ? channel.to_.count - 1 : first;
  for (i64 other = first; other <= last; ++other) {
    if (node.is_put && (channel.outlets_[other].source != node.index || channel.outlets_[other].full == 0)) continue;
    for (int i = 0; i < nodes_.size(); ++i) {
      const Node &k = nodes_[i];
      if (k.channel == &channel && k.is_put != node.is_put && k.index == other && visit(i)) return true;
      auto *const spawn = k.task ? dynamic_cast<Spawn *>(k.task) : nullptr;
      const bool begins = spawn && spawn->pending > 0;
      if (begins && may_do(spawn->ports, nullptr, channel, !node.is_put, other) && visit(i)) return true;
    }
    for (Body *body = task_loop_.live_; body; body = body->next) {
      if (body->is_at_end) continue;
      if (may_do(body->where.ports, &body->where, channel, !node.is_put, other) && visit(node_of(body))) return true;
    }
  }
  return false;
}

// What holds a task back, or what it runs.
template <class Visit>
bool Deadlock::each_reason(Task *task, Visit visit) {
  for (int i = nodes_[node_of(task)].reason; i >= 0; i = reasons_[i].next) {
    if (visit(reasons_[i].node)) return true;
  }
  for (Body *body = task_loop_.live_; body; body = body->next) {
    if (body->owner == task && visit(node_of(body))) return true;
  }
  return false;
}

template <class Visit>
bool Deadlock::each_cause(int number, Visit visit) {
  const Node node = nodes_[number];
  if (node.transfer) return each_partner(node, visit);
  if (node.task) return each_reason(node.task, visit);
  // A body resumes when the task that it waits for is done.
  return node.resume >= 0 && visit(node.resume);
}

// Depth-first search; leaves a cycle in path_. It is no recursion: a chain of operations may be long.
bool Deadlock::search(int first) {
  struct Step {
    int node, causes;  // the number of causes in the list when the node was reached
  };
  List<Step> steps;
  List<int> causes;
  const auto enter = [&](int node) {
    nodes_[node].color = 1;
    steps.push(Step{node, causes.size()});
    const int before = causes.size();
    each_cause(node, [&](int cause) {
      causes.push(cause);
      return false;
    });
    // The first cause is taken first, from the end.
    for (int i = before, j = causes.size() - 1; i < j; ++i, --j) {
      const int swapped = causes[i];
      causes[i] = causes[j];
      causes[j] = swapped;
    }
  };
  enter(first);
  while (steps.size() > 0) {
    const Step step = steps[steps.size() - 1];
    if (causes.size() == step.causes) {
      nodes_[step.node].color = 2;
      steps.shrink(steps.size() - 1);
      continue;
    }
    const int cause = causes[causes.size() - 1];
    causes.shrink(causes.size() - 1);
    if (cause < 0 || nodes_[cause].color == 2) continue;
    if (nodes_[cause].color == 0) {
      enter(cause);
      continue;
    }
    int start = 0;
    while (steps[start].node != cause) ++start;
    for (int i = start; i < steps.size(); ++i) path_.push(steps[i].node);
    return true;
  }
  return false;
}

void Deadlock::describe_place(Text &text, const ExecutionPlace &where) const {
  text.add("\n  %s", where.name);
  if (where.dims == 1) text.add(" (%lld)", (long long)where.x);
  if (where.dims > 1) text.add(" (%lld, %lld)", (long long)where.x, (long long)where.y);
}

void Deadlock::describe(Text &text, const Node &node) const {
  describe_place(text, *node.where);
  text.add(", line %d: ", node.site.line);
  if (!node.channel) {
    text.add("%s", node.site.op);
    return;
  }
  const Channel &channel = *node.channel;
  text.add(node.is_put ? "put " : "get ");
  const i64 source = node.is_put ? node.index : channel.outlets_[node.index].source;
  describe_channel(text, channel, node.is_put ? channel.from_ : channel.to_, node.index, source);
}

// Member `index` of one side of a channel, whose blocks member `source` of the putting side sends.
void Deadlock::describe_channel(Text &text, const Channel &channel, const Channel::Shape &side, i64 index, i64 source) const {
  char member[64];
  Channel::describe_index(member, int(sizeof(member)), side, index);
  text.add("%s[%s] (%lld put so far, %d in flight)", channel.name_, member, (long long)channel.inlets_[source].blocks,
           in_flight(channel, source));
}

int Deadlock::in_flight(const Channel &channel, i64 source) const {
  int full = 0;
  for (i64 o = 0; o < channel.to_.count; ++o) {
    if (channel.outlets_[o].source == source && channel.outlets_[o].full > full) full = channel.outlets_[o].full;
  }
  return full;
}

void Deadlock::list_cycle(Text &text) {
  int shown = 0;
  for (int i = 0; i < path_.size(); ++i) shown += is_shown(nodes_[path_[i]]);
  text.add("deadlock: nothing can make progress. ");
  if (shown == 1) text.add("This one waits for what only it could do later:");
  else text.add("Each of these %d waits for the next one, the last for the first:", shown);
  for (int i = 0; i < path_.size(); ++i) {
    const Node &node = nodes_[path_[i]];
    if (!is_shown(node)) continue;
    describe(text, node);
    if (node.transfer) text.add(node.is_put ? ", until a get makes room" : ", until a put comes");
    else text.add(", held back by what it depends on");
  }
}

void Deadlock::list_dead_ends(Text &text) {
  text.add("deadlock: nothing can make progress. No operation is left that these could wait for:");
  int listed = 0, more = 0;
  for (int i = 0; i < nodes_.size(); ++i) {
    if (!is_shown(nodes_[i]) || !nodes_[i].transfer || each_cause(i, [](int) { return true; })) continue;
    if (listed++ >= kMaxLines) {
      ++more;
      continue;
    }
    describe(text, nodes_[i]);
    text.add(nodes_[i].is_put ? ": no get makes room" : ": no put comes");
  }
  if (more) text.add("\n  and %d more", more);
}

// A get that has a part of its elements and waits for the rest.
void Deadlock::refuse_unfilled() {
  for (int i = 0; i < nodes_.size(); ++i) {
    Transfer *const get = nodes_[i].transfer;
    if (!get || get->partial.count == 0) continue;
    here = &get->where;
    fail_as(Failure::kMismatch, get->site, "takes %lld elements from %s, but only %lld were put there and no more come",
            (long long)get->side.count, nodes_[i].channel->name_, (long long)get->partial.count);
  }
}

void Deadlock::report() {
  Failure failure{Failure::kDeadlock, {}};
  Text text{failure.text, int(sizeof(failure.text))};
  bool found = false;
  for (int i = 0; i < nodes_.size() && !found; ++i) found = nodes_[i].color == 0 && search(i);
  if (!found) refuse_unfilled();
  if (found) list_cycle(text);
  else list_dead_ends(text);
  throw failure;
}

// Each operation that waits, each body that runs or could run, and the channels that hold blocks.
void Deadlock::list_positions(Text &text) {
  int listed = 0, more = 0;
  for (int i = 0; i < nodes_.size(); ++i) {
    const Node &node = nodes_[i];
    if (!is_shown(node) || dynamic_cast<Resume *>(node.task)) continue;
    if (listed++ >= kMaxLines) {
      ++more;
      continue;
    }
    describe(text, node);
    if (node.transfer) text.add(node.is_put ? ", waits until a get makes room" : ", waits until a put comes");
    else if (auto *const spawn = dynamic_cast<Spawn *>(node.task); spawn && spawn->pending == 0)
      text.add(", runs: %lld %s not ended", (long long)spawn->left, spawn->left == 1 ? "body has" : "bodies have");
    else text.add(node.task && node.task->pending > 0 ? ", held back by what it depends on" : ", ready");
  }
  if (more) text.add("\n  and %d more operations that have not ended", more);
  list_ready(text);
  list_in_flight(text);
}

void Deadlock::list_ready(Text &text) {
  int listed = 0, more = 0;
  for (int i = 0; i < nodes_.size(); ++i) {
    const Node &node = nodes_[i];
    if (!node.body || is_shown(node) || node.resume >= 0) continue;
    if (listed++ >= kMaxLines) {
      ++more;
      continue;
    }
    describe_place(text, *node.where);
    text.add(node.body->has_begun ? ": runs, or could run" : ": has not begun");
  }
  if (more) text.add("\n  and %d more bodies that run, or could run", more);
}

void Deadlock::list_in_flight(Text &text) {
  int listed = 0, more = 0;
  for (int i = 0; i < task_loop_.channels_.size(); ++i) {
    const Channel &channel = *task_loop_.channels_[i];
    for (i64 source = 0; source < channel.from_.count; ++source) {
      if (in_flight(channel, source) == 0) continue;
      if (listed++ >= kMaxLines) {
        ++more;
        continue;
      }
      text.add("\n  ");
      describe_channel(text, channel, channel.from_, source, source);
    }
  }
  if (more) text.add("\n  and %d more channels with blocks in flight", more);
}

void fail_deadlock(TaskLoop &task_loop) { Deadlock(task_loop).report(); }

void add_positions(TaskLoop &task_loop, Failure &failure) {
  const int used = int(strlen(failure.text));
  Text text{failure.text + used, int(sizeof(failure.text)) - used};
  text.add("\nwhere it stands:");
  Deadlock(task_loop).list_positions(text);
}

}  // namespace vnpu
