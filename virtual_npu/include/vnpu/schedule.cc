// The scheduler: islands, tasks, channels, sequencers. Linked into programs that use channels.
#include "vnpu/schedule.h"

#include <stdio.h>
#include <string.h>

#include "vnpu/entry.h"

namespace vnpu {

// ---- tasks ----

Task::~Task() {
  for (int i = 0; i < successors_.size(); ++i) successors_[i].task->release();
}

void Task::await(Task *other, bool learns) {
  if (other->done) {
    if (learns) strand.learn(other->strand);
    return;
  }
  ++pending;
  retain();
  other->successors_.push(Successor{this, learns});
}

void Task::finish() {
  done = true;
  for (int i = 0; i < successors_.size(); ++i) {
    const Successor next = successors_[i];
    if (next.learns) next.task->strand.learn(strand);
    if (--next.task->pending == 0) island.ready(next.task);
    next.task->release();
  }
  successors_.shrink(0);
}

namespace {

struct Join final : Task {
  explicit Join(Island &island) : Task(island) {}
  void start() override { finish(); }
};

struct Resume final : Task {
  Resume(Island &island, Process::Handle handle) : Task(island), handle(handle) {}
  void start() override {
    finish();
    island.ready(handle);
  }
  Process::Handle handle;
};

struct TransferTask final : Task {
  TransferTask(Island &island, Site site, Where where, Channel &channel, i64 index, const Access &side, bool is_put)
      : Task(island), transfer{site, where, side, island, strand}, channel(channel), index(index), is_put(is_put) {
    transfer.task = this;
  }
  void start() override {
    if (is_put ? channel.put(transfer, index) : channel.get(transfer, index)) finish();
  }
  Transfer transfer;
  Channel &channel;
  i64 index;
  bool is_put;
};

}  // namespace

Token join(const Token *const *tokens, int count) {
  Join *joined = nullptr;
  for (int i = 0; i < count; ++i) {
    // What is done holds nothing back; but with checks it is known.
    Task *task = kChecks ? tokens[i]->task() : tokens[i]->unfinished();
    if (!task) continue;
    if (!joined) joined = new Join(task->island);
    joined->await(task);
  }
  if (!joined) return Token();
  joined->done = joined->pending == 0;
  Token token(joined);
  joined->release();
  return token;
}

// ---- processes and the island ----

void Spawn::adopt(Process process, i64 flat) {
  Process::promise_type &promise = process.handle.promise();
  promise.strand.begin(strand, site_, flat, strand.lineage);
  promise.strand.start();
  promise.strand.enter(&promise.where);
  island.adopt(process, this);
}

void Island::adopt(Process process, Spawn *owner) {
  Process::promise_type &promise = process.handle.promise();
  promise.owner = owner;
  if (owner) owner->retain();
  promise.next = live_;
  if (live_) live_->previous = &promise;
  live_ = &promise;
  ready(process.handle);
}

bool Island::next(Work &work) {
  if (head_ == queue_.size()) {
    head_ = 0;
    queue_.shrink(0);
    return false;
  }
  if (random_) {
    // Any of what is ready may come next.
    Work &chosen = queue_[head_ + int(random_.below(uint64_t(queue_.size() - head_)))];
    const Work other = queue_[head_];
    queue_[head_] = chosen;
    chosen = other;
  }
  work = queue_[head_++];
  if (head_ > 1024 && head_ * 2 > queue_.size()) {
    const int left = queue_.size() - head_;
    for (int i = 0; i < left; ++i) queue_[i] = queue_[head_ + i];
    queue_.shrink(left);
    head_ = 0;
  }
  return true;
}

void Island::step(Process::Handle process, Executing &executing) {
  Process::promise_type &promise = process.promise();
  here = &promise.where;
  executing.process(promise.current);
  {
    const CoreTurn turn(promise.modes);
    process.resume();
  }
  if (!process.done()) return;
  if (promise.previous) promise.previous->next = promise.next;
  else live_ = promise.next;
  if (promise.next) promise.next->previous = promise.previous;
  Spawn *owner = promise.owner;
  if (owner) owner->strand.learn(promise.strand);
  process.destroy();
  if (!owner) return;
  if (--owner->left == 0) owner->finish();
  owner->release();
}

void Island::run(Process root) {
  struct Restore {
    const Where *outer = here;
    ~Restore() { here = outer; }
  } const restore;
  Executing executing;
  Process::promise_type &promise = root.handle.promise();
  promise.strand.begin_island(chains, &promise.where);
  if (run_seed) random_.start(run_seed * 0x9e3779b97f4a7c15u + uint64_t(promise.where.x * 65537 + promise.where.y) + 1);
  adopt(root, nullptr);
  Work work;
  while (next(work)) {
    if (work.process) {
      step(work.process, executing);
    } else {
      Token keep(work.task);
      work.task->release();
      executing.task();
      work.task->begin();
    }
  }
  if (live_) fail_deadlock();
  for (int i = 0; i < channels_.size(); ++i) channels_[i]->refuse_leftovers();
}

Island::~Island() {
  // After a failure, frames and queued work remain.
  while (live_) {
    Process::promise_type *promise = live_;
    live_ = promise->next;
    Spawn *owner = promise->owner;
    Process::Handle::from_promise(*promise).destroy();
    if (owner) owner->release();
  }
  for (int i = head_; i < queue_.size(); ++i) {
    if (queue_[i].task) queue_[i].task->release();
  }
}

void Island::fail_deadlock() {
  Failure failure{Failure::kDeadlock, {}};
  constexpr int capacity = int(sizeof(failure.text));
  int used = snprintf(failure.text, size_t(capacity), "deadlock: nothing can make progress. Waiting:");
  int left = 24;
  for (int i = 0; i < channels_.size(); ++i) used += channels_[i]->describe(failure.text + used, capacity - used, left);
  if (left < 0) snprintf(failure.text + used, size_t(capacity - used), "\n  and %d more", -left);
  throw failure;
}

// ---- channels ----

void Transfer::complete() {
  through = true;
  if (process) island.ready(process);
  else task->finish();
}

Channel::Channel(Island &island, const char *name, std::initializer_list<i64> from, std::initializer_list<i64> to)
    : name_(name) {
  for (i64 extent : from) {
    from_.extents[from_.rank++] = extent;
    from_.count *= extent;
  }
  for (i64 extent : to) {
    to_.extents[to_.rank++] = extent;
    to_.count *= extent;
  }
  inlets_ = new Inlet[size_t(from_.count)];
  outlets_ = new Outlet[size_t(to_.count)];
  for (i64 i = 0; i < to_.count; ++i) outlets_[i].source = source_of(i);
  island.add(this);
}

Channel::~Channel() {
  for (i64 i = 0; i < to_.count; ++i) {
    for (int b = 0; b < outlets_[i].full; ++b) pool_give(outlets_[i].blocks[b].data);
  }
  delete[] outlets_;
  delete[] inlets_;
}

// The put index that feeds a get index: dimensions of extent 1 on the putting side are broadcast.
i64 Channel::source_of(i64 outlet) const {
  i64 source = 0, inner = 1;
  for (int d = to_.rank - 1; d >= 0; --d) {
    const i64 coordinate = outlet % to_.extents[d];
    outlet /= to_.extents[d];
    if (from_.extents[d] > 1) source += coordinate * inner;
    inner *= from_.extents[d];
  }
  return source;
}

i64 Channel::index(Site site, std::initializer_list<i64> indices, const Shape &shape) const {
  if (indices.size() == 0) {
    if (shape.count != 1) {
      fail(site, "the channel has %lld members, and no index says which: write one index per dimension",
           (long long)shape.count);
    }
    return 0;
  }
  if (int(indices.size()) != shape.rank) {
    fail(site, "%d indices for a channel of %d dimensions", int(indices.size()), shape.rank);
  }
  i64 flat = 0;
  int d = 0;
  // The compiler specialises broadcasts per row or column of tiles, and its gets still name both coordinates.
  const bool is_broadcast_get = &shape == &to_ && from_.count != to_.count;
  for (i64 i : indices) {
    if (is_broadcast_get && shape.extents[d] == 1) i = 0;
    if (i < 0 || i >= shape.extents[d]) {
      fail(site, "index %lld of dimension %d is outside the channel's extent %lld", (long long)i, d,
           (long long)shape.extents[d]);
    }
    flat = flat * shape.extents[d++] + i;
  }
  return flat;
}

void Channel::Queue::push(Transfer &transfer) {
  transfer.next = nullptr;
  if (last) last->next = &transfer;
  else first = &transfer;
  last = &transfer;
}

Transfer *Channel::Queue::pop() {
  Transfer *transfer = first;
  first = transfer->next;
  if (!first) last = nullptr;
  return transfer;
}

void Channel::hand_over(Transfer &get, const Access &block, Site from, const Where &sender, const Mark &mark) {
  if (get.side.count != block.count || get.side.element != block.element) {
    char who[400];
    vnpu::describe(&sender, who, int(sizeof(who)));
    here = &get.where;
    fail_as(Failure::kMismatch, get.site, "takes %lld elements of %d bytes, but the put at line %d%s sends %lld of %d bytes",
            (long long)get.side.count, get.side.element, from.line, who, (long long)block.count, block.element);
  }
  get.strand.learn(mark);
  observe(get.site, get.side, true, get.strand);
  vnpu::copy(get.site, get.side, block);
}

bool Channel::deliver(Transfer &put, i64 index) {
  // Without broadcast, put index and get index are the same number.
  const bool is_broadcast = from_.count != to_.count;
  const i64 begin = is_broadcast ? 0 : index, end = is_broadcast ? to_.count : index + 1;
  for (i64 o = begin; o < end; ++o) {
    if (outlets_[o].source == index && outlets_[o].full == kCapacity) return false;
  }
  observe(put.site, put.side, false, put.strand);
  const Mark mark = put.strand.publish();
  for (i64 o = begin; o < end; ++o) {
    Outlet &outlet = outlets_[o];
    if (outlet.source != index) continue;
    if (outlet.gets.first) {
      Transfer *get = outlet.gets.pop();
      hand_over(*get, put.side, put.site, put.where, mark);
      get->complete();
    } else {
      void *data = pool_take(put.side.count * put.side.element);
      vnpu::copy(put.site, dense(data, put.side.count, put.side.element), put.side);
      outlet.blocks[outlet.full++] = Block{data, put.side.count, put.side.element, put.site, put.where, mark};
      // Who is around the sender may be gone when the block is taken.
      outlet.blocks[outlet.full - 1].where.around = nullptr;
    }
  }
  return true;
}

bool Channel::put(Transfer &transfer, i64 index) {
  Inlet &inlet = inlets_[index];
  if (!inlet.puts.first && deliver(transfer, index)) return transfer.through = true;
  inlet.puts.push(transfer);
  return false;
}

bool Channel::get(Transfer &transfer, i64 index) {
  Outlet &outlet = outlets_[index];
  if (outlet.gets.first || outlet.full == 0) {
    outlet.gets.push(transfer);
    return false;
  }
  const Block block = outlet.blocks[0];
  hand_over(transfer, dense(block.data, block.count, block.element), block.site, block.where, block.mark);
  pool_give(block.data);
  --outlet.full;
  for (int i = 0; i < outlet.full; ++i) outlet.blocks[i] = outlet.blocks[i + 1];
  // There is room again: a put may be waiting for it.
  Queue &puts = inlets_[outlet.source].puts;
  while (puts.first && deliver(*puts.first, outlet.source)) puts.pop()->complete();
  return transfer.through = true;
}

int Channel::describe_index(char *text, int capacity, const Shape &shape, i64 index) {
  int used = 0;
  i64 inner = shape.count;
  text[0] = 0;
  for (int d = 0; d < shape.rank && used < capacity; ++d) {
    inner /= shape.extents[d];
    used += snprintf(text + used, size_t(capacity - used), "%s%lld", d ? ", " : "", (long long)(index / inner));
    index %= inner;
  }
  return used;
}

int Channel::describe_queue(char *text, int capacity, int &left, const Queue &queue, const Shape &shape, i64 index,
                            const char *verb) {
  int used = 0;
  for (const Transfer *t = queue.first; t; t = t->next) {
    if (left-- <= 0 || capacity - used < 400) continue;
    used += snprintf(text + used, size_t(capacity - used), "\n  %s", t->where.name);
    if (t->where.dims > 0) used += snprintf(text + used, size_t(capacity - used), " (%lld", (long long)t->where.x);
    if (t->where.dims > 1) used += snprintf(text + used, size_t(capacity - used), ", %lld", (long long)t->where.y);
    used += snprintf(text + used, size_t(capacity - used), "%s, line %d: %s %s[", t->where.dims > 0 ? ")" : "",
                     t->site.line, verb, name_);
    used += describe_index(text + used, capacity - used, shape, index);
    used += snprintf(text + used, size_t(capacity - used), "]");
  }
  return used;
}

void Channel::refuse_leftovers() const {
  for (i64 i = 0; i < to_.count; ++i) {
    const Outlet &outlet = outlets_[i];
    if (outlet.full == 0) continue;
    char index[64];
    describe_index(index, int(sizeof(index)), to_, i);
    const Block &block = outlet.blocks[0];
    here = &block.where;
    fail(block.site, "sent %lld elements that no get ever takes from %s[%s] (%d left there at the end): add the get, or "
         "drop the put", (long long)block.count, name_, index, outlet.full);
  }
}

int Channel::describe(char *text, int capacity, int &left) {
  int used = 0;
  for (i64 i = 0; i < from_.count; ++i) {
    used += describe_queue(text + used, capacity - used, left, inlets_[i].puts, from_, i,
                           "no get makes room (2 blocks in flight) for put");
  }
  for (i64 i = 0; i < to_.count; ++i) {
    used += describe_queue(text + used, capacity - used, left, outlets_[i].gets, to_, i, "no put comes for get");
  }
  return used;
}

// ---- sequencers ----

namespace {

bool conflict(const Use &a, const Use &b) { return (a.writes || b.writes) && a.low < b.high && b.low < a.high; }

}  // namespace

Sequencer::~Sequencer() {
  for (int i = 0; i < claims_.size(); ++i) claims_[i].task->release();
  for (int i = 0; i < tasks_.size(); ++i) tasks_[i]->release();
  for (int i = 0; i < ends_.size(); ++i) ends_[i].task->release();
  for (int i = 0; i < members_.size(); ++i) members_[i]->release();
  for (int i = 0; i < groups_.size(); ++i) delete groups_[i].after;
}

// Forgets finished tasks. Called when the lists have doubled since the last time. With checks, later operations
// still learn from the latest of them.
void Sequencer::sweep() {
  constexpr int kRemembered = kChecks ? 256 : 0;
  int kept = 0;
  for (int i = 0; i < claims_.size(); ++i) {
    if (claims_[i].task->done && i < claims_.size() - kRemembered) claims_[i].task->release();
    else claims_[kept++] = claims_[i];
  }
  claims_.shrink(kept);
  kept = 0;
  for (int i = 0; i < tasks_.size(); ++i) {
    if (tasks_[i]->done) {
      ended_.learn(tasks_[i]->strand);
      tasks_[i]->release();
    } else {
      tasks_[kept++] = tasks_[i];
    }
  }
  tasks_.shrink(kept);
  swept_ = kept;
}

bool Sequencer::held_back(const Token &after, std::initializer_list<Use> uses) {
  if (after.unfinished() || (groups_.size() && groups_[groups_.size() - 1].after->unfinished())) return true;
  for (int i = 0; i < claims_.size(); ++i) {
    if (claims_[i].task->done) continue;
    for (const Use &use : uses) {
      if (conflict(use, claims_[i].use)) return true;
    }
  }
  return false;
}

// Behind a conflicting operation. Two that have tokens are merely kept apart, so that a run in order gives the same
// result every time; a run that draws its schedule lets them go.
void Sequencer::await_conflicts(Task &task, std::initializer_list<Use> uses) {
  for (int i = 0; i < claims_.size(); ++i) {
    if (claims_[i].task->done && !kChecks) continue;
    const bool learns = holds_back(claims_[i].task->strand.lineage, task.strand.lineage);
    if (!learns && island_.draws()) continue;
    for (const Use &use : uses) {
      if (conflict(use, claims_[i].use)) {
        task.await(claims_[i].task, learns);
        break;
      }
    }
  }
}

void Sequencer::await_tokens(Task &task, const Token &after) {
  if (after.task()) task.await(after.task());
  for (int i = 0; i < groups_.size(); ++i) {
    if (groups_[i].after->task()) task.await(groups_[i].after->task());
  }
}

Token Sequencer::issue(Task *task, Site site, After after, std::initializer_list<Use> uses) {
  Token token(task);
  task->release();
  if (tasks_.size() > 2 * swept_ + 16) sweep();
  task->strand.begin_task(strand_, site, new_lineage(around(), body_, ++issued_, after.is_async));
  await_tokens(*task, after.token);
  await_conflicts(*task, uses);
  if (task->pending == 0) {
    if (island_.draws()) island_.ready(task);
    else task->begin();
  }
  if (task->done && !kChecks) return Token();
  for (const Use &use : uses) {
    task->retain();
    claims_.push(Claim{task, use});
  }
  task->retain();
  tasks_.push(task);
  if (groups_.size()) {
    task->retain();
    members_.push(task);
  }
  return token;
}

Token Sequencer::transfer(Site site, After after, Channel &channel, i64 index, const Access &side, bool is_put) {
  TransferTask *task = new TransferTask(island_, site, where_, channel, index, side, is_put);
  task->retain();
  End *end = nullptr;
  for (int i = 0; i < ends_.size(); ++i) {
    if (ends_[i].channel == &channel && ends_[i].index == index && ends_[i].is_put == is_put) end = &ends_[i];
  }
  if (end) {
    task->await(end->task);
    end->task->release();
    end->task = task;
  } else {
    ends_.push(End{&channel, index, is_put, task});
  }
  return issue(task, site, after, {use(side, !is_put)});
}

void Sequencer::open_group(const Token &after) {
  groups_.push(Group{new Token(after), members_.size(), new_lineage(around(), body_, ++issued_, true)});
}

Token Sequencer::close_group() {
  const Group group = groups_[groups_.size() - 1];
  groups_.shrink(groups_.size() - 1);
  Join *joined = new Join(island_);
  if (group.after->task()) joined->await(group.after->task());
  for (int i = group.first_member; i < members_.size(); ++i) {
    joined->await(members_[i]);
    // Members of an inner group belong to the outer one too.
    if (groups_.size() == 0) members_[i]->release();
  }
  if (groups_.size() == 0) members_.shrink(group.first_member);
  delete group.after;
  joined->done = joined->pending == 0;
  Token token(joined->done && !kChecks ? nullptr : joined);
  joined->release();
  return token;
}

void Sequencer::Awaiter::await_suspend(Process::Handle handle) {
  Resume *resume = new Resume(until.task()->island, handle);
  resume->await(until.task());
  resume->release();
}

// A join of what it waits for; what that is keeps it alive.
Sequencer::Awaiter Sequencer::settle(std::initializer_list<Use> uses) {
  Join *joined = new Join(island_);
  joined->strand.begin_task(strand_, Site{"", 0}, new_lineage(around(), body_, ++issued_, false));
  await_conflicts(*joined, uses);
  for (int i = 0; i < groups_.size(); ++i) {
    if (groups_[i].after->task()) joined->await(groups_[i].after->task());
  }
  return awaiter(joined);
}

Sequencer::Awaiter Sequencer::drain() {
  Join *joined = new Join(island_);
  joined->strand.learn(ended_);
  for (int i = 0; i < tasks_.size(); ++i) joined->await(tasks_[i]);
  return awaiter(joined);
}

Sequencer::Awaiter Sequencer::awaiter(Task *joined) {
  joined->done = joined->pending == 0;
  Awaiter awaiter{strand_, Token(joined)};
  joined->release();
  return awaiter;
}

}  // namespace vnpu
