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

 private:
  void collect();
  void collect_channel(Channel &channel);
  template <class Visit>
  bool each_cause(int node, Visit visit);
  template <class Visit>
  bool each_partner(const Node &node, Visit visit);
  template <class Visit>
  bool each_reason(Task *task, Visit visit);
  int node_of(const Body *body);
  int node_of(const Task *task);
  bool is_at_end(const Body &body);
  bool may_do(const Ports *ports, const ExecutionPlace *where, const Channel &channel, bool put, i64 index) const;
  bool search(int node);
  void describe(Text &text, const Node &node) const;
  bool is_shown(const Node &node) const { return node.site.line > 0; }
  void list_cycle(Text &text);
  void list_dead_ends(Text &text);
  void refuse_unfilled();

  static constexpr int kMaxLines = 16;
  TaskLoop &task_loop_;
  List<Node> nodes_;
  List<int> path_;  // the nodes of the cycle, once it is found
};

void Deadlock::collect_channel(Channel &channel) {
  for (i64 i = 0; i < channel.from_.count; ++i) {
    for (Transfer *t = channel.inlets_[i].puts.first; t; t = t->next) {
      Body *const body = t->process ? &t->process.promise() : nullptr;
      nodes_.push(Node{&t->where, t->site, body, t->task, &channel, i, true, t});
    }
  }
  for (i64 i = 0; i < channel.to_.count; ++i) {
    for (Transfer *t = channel.outlets_[i].gets.first; t; t = t->next) {
      Body *const body = t->process ? &t->process.promise() : nullptr;
      nodes_.push(Node{&t->where, t->site, body, t->task, &channel, i, false, t});
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
    nodes_.push(node);
  }
  for (Body *body = task_loop_.live_; body; body = body->next) {
    if (node_of(body) < 0) nodes_.push(Node{&body->where, Site{"", 0}, body, nullptr, nullptr, 0, false, nullptr});
  }
}

int Deadlock::node_of(const Body *body) {
  for (int i = 0; i < nodes_.size(); ++i) {
    if (body && nodes_[i].body == body) return i;
  }
  return -1;
}

int Deadlock::node_of(const Task *task) {
  for (int i = 0; i < nodes_.size(); ++i) {
    if (task && nodes_[i].task == task) return i;
  }
  return -1;
}

// Whether a body has issued all of its operations and waits for them.
bool Deadlock::is_at_end(const Body &body) {
  for (int i = 0; i < nodes_.size(); ++i) {
    auto *const resume = nodes_[i].task ? dynamic_cast<Resume *>(nodes_[i].task) : nullptr;
    if (resume && resume->is_end && &resume->handle.promise() == &body) return true;
  }
  return false;
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
      if (is_at_end(*body)) continue;
      if (may_do(body->where.ports, &body->where, channel, !node.is_put, other) && visit(node_of(body))) return true;
    }
  }
  return false;
}

// What holds a task back, or what it runs.
template <class Visit>
bool Deadlock::each_reason(Task *task, Visit visit) {
  for (int i = 0; i < nodes_.size(); ++i) {
    Task *const before = nodes_[i].task;
    for (int n = 0; before && n < before->successors_.size(); ++n) {
      if (before->successors_[n].task == task && visit(i)) return true;
    }
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
  for (int i = 0; i < nodes_.size(); ++i) {
    auto *const resume = nodes_[i].task ? dynamic_cast<Resume *>(nodes_[i].task) : nullptr;
    if (resume && resume->handle == Process::Handle::from_promise(*node.body) && visit(i)) return true;
  }
  return false;
}

// Depth-first search; leaves a cycle in path_.
bool Deadlock::search(int node) {
  nodes_[node].color = 1;
  path_.push(node);
  const bool found = each_cause(node, [&](int cause) {
    if (cause < 0 || nodes_[cause].color == 2) return false;
    if (nodes_[cause].color == 0) return search(cause);
    int start = 0;
    while (path_[start] != cause) ++start;
    for (int i = start; i < path_.size(); ++i) path_[i - start] = path_[i];
    path_.shrink(path_.size() - start);
    return true;
  });
  if (found) return true;
  nodes_[node].color = 2;
  path_.shrink(path_.size() - 1);
  return false;
}

void Deadlock::describe(Text &text, const Node &node) const {
  const ExecutionPlace &where = *node.where;
  text.add("\n  %s", where.name);
  if (where.dims == 1) text.add(" (%lld)", (long long)where.x);
  if (where.dims > 1) text.add(" (%lld, %lld)", (long long)where.x, (long long)where.y);
  text.add(", line %d: ", node.site.line);
  if (!node.channel) {
    text.add("%s", node.site.op);
    return;
  }
  char index[64];
  const Channel &channel = *node.channel;
  Channel::describe_index(index, int(sizeof(index)), node.is_put ? channel.from_ : channel.to_, node.index);
  const i64 source = node.is_put ? node.index : channel.outlets_[node.index].source;
  text.add("%s %s[%s] (%lld put so far, ", node.is_put ? "put" : "get", channel.name_, index,
           (long long)channel.inlets_[source].blocks);
  int full = 0;
  for (i64 o = 0; o < channel.to_.count; ++o) {
    if (channel.outlets_[o].source == source && channel.outlets_[o].full > full) full = channel.outlets_[o].full;
  }
  text.add("%d in flight)", full);
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

void fail_deadlock(TaskLoop &task_loop) { Deadlock(task_loop).report(); }

}  // namespace vnpu
