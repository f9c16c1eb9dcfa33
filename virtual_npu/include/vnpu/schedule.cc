// The scheduler: islands, tasks, sequencers. Linked, with channel.cc and deadlock.cc, into programs that take turns.
#include "vnpu/schedule.h"

#include <stdio.h>
#include <string.h>

#include "vnpu/entry.h"

namespace vnpu {

// ---- tasks ----

Task::Task(Island &island) : island(island) { island.add(this); }

Task::~Task() {
  island.remove(this);
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
  successors_.clear();
}

namespace {

struct Join final : Task {
  explicit Join(Island &island) : Task(island) {}
  void start() override { finish(); }
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

Launch::~Launch() {
  while (Kept *const kept = free_) {
    free_ = kept->next_;
    delete kept;
  }
}

Kept *Launch::take() {
  pthread_mutex_lock(&taking_);
  Kept *const kept = free_;
  if (kept) free_ = kept->next_;
  pthread_mutex_unlock(&taking_);
  return kept ? kept : new Kept;
}

void Launch::give(Kept *kept) {
  pthread_mutex_lock(&taking_);
  kept->next_ = free_;
  free_ = kept;
  pthread_mutex_unlock(&taking_);
}

Kept *Island::kept() {
  if (!kept_ && launch_) {
    kept_ = launch_->take();
    kept_->begin_point();
  }
  return kept_;
}

void Island::add(Task *task) {
  task->next_ = tasks_;
  if (tasks_) tasks_->previous_ = task;
  tasks_ = task;
}

void Island::remove(Channel *channel) {
  int kept = 0;
  for (int i = 0; i < channels_.size(); ++i) {
    if (channels_[i] != channel) channels_[kept++] = channels_[i];
  }
  channels_.shrink(kept);
}

void Island::remove(Task *task) {
  if (task->previous_) task->previous_->next_ = task->next_;
  else tasks_ = task->next_;
  if (task->next_) task->next_->previous_ = task->previous_;
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
#if VNPU_CHECKS
  if (promise.recorded < 0) promise.recorded = begin_body(promise.where);
#endif
  executing.process(promise.current);
  {
    const CoreTurn turn(promise.modes);
    process.resume();
  }
  if (!process.done()) return;
#if VNPU_CHECKS
  end_body(promise.recorded);
#endif
  if (promise.previous) promise.previous->next = promise.next;
  else live_ = promise.next;
  if (promise.next) promise.next->previous = promise.previous;
  Spawn *owner = promise.owner;
  if (owner) owner->strand.learn_all(promise.strand);
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
    take_turn();
    if (work.process) {
      step(work.process, executing);
    } else {
      Token keep(work.task);
      work.task->release();
      executing.task();
      if (work.task->where) here = work.task->where;
      work.task->begin();
    }
  }
  if (live_) fail_deadlock(*this);
  for (int i = 0; i < channels_.size(); ++i) channels_[i]->refuse_leftovers();
}

Island::~Island() {
  if (kept_) launch_->give(kept_);
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

#if VNPU_CHECKS

// Behind a conflicting operation. Two that have tokens are merely kept apart, so that a run in order gives the same
// result every time; a run that draws its schedule lets them go, unless the device has locks for them.
void Sequencer::await_conflicts(Task &task, std::initializer_list<Use> uses) {
  for (int i = 0; i < claims_.size(); ++i) {
    const Claim &claim = claims_[i];
    const Lineage *const earlier = claim.task->strand.lineage, *const later = task.strand.lineage;
    const bool learns = holds_back(earlier, later), is_free = !learns && island_.draws() && !task.is_release;
    for (const Use &use : uses) {
      if (!conflict(use, claim.use)) continue;
      if (is_free && !(use.buffer && use.buffer->label.has_locks &&
                       locked_apart(earlier, claim.use.writes, later, use.writes))) continue;
      task.await(claim.task, learns);
      break;
    }
  }
}

#else

// Behind the conflicting operations, from the latest on. One that writes all that is used here waits for those before it.
void Sequencer::await_conflicts(Task &task, std::initializer_list<Use> uses) {
  for (const Use &use : uses) {
    if (!use.writes && !conflict(use, written_)) continue;
    for (int i = claims_.size() - 1; i >= 0; --i) {
      const Claim &claim = claims_[i];
      if (!conflict(use, claim.use)) continue;
      if (!claim.task->done) task.await(claim.task);
      if (claim.use.writes && claim.use.low <= use.low && use.high <= claim.use.high) break;
    }
  }
}

#endif

void Sequencer::await_tokens(Task &task, const Token &after) {
  if (after.task()) task.await(after.task());
  for (int i = 0; i < groups_.size(); ++i) {
    if (groups_[i].after->task()) task.await(groups_[i].after->task());
  }
}

Token Sequencer::issue(Task *task, Site site, After after, std::initializer_list<Use> uses, Engine engine) {
  Token token(task);
  task->release();
  task->site = site;
  task->where = &where_;
  island_.take_turn();
  if (tasks_.size() > 2 * swept_ + 16) sweep();
  task->strand.begin_task(strand_, site, new_lineage(around(), body_, ++issued_, after.is_async, engine));
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
    if (!use.writes) continue;
    if (!written_.writes || use.low < written_.low) written_.low = use.low;
    if (!written_.writes || use.high > written_.high) written_.high = use.high;
    written_.writes = true;
  }
  task->retain();
  tasks_.push(task);
  if (groups_.size()) {
    task->retain();
    members_.push(task);
  }
  return token;
}

Token Sequencer::transfer(Site site, After after, Channel &channel, i64 index, const Access &side, bool is_put,
                          Relay *relay) {
  TransferTask *task = new TransferTask(island_, site, where_, channel, index, side, is_put);
  task->transfer.relay = relay;
  task->retain();
  End *end = nullptr;
  // From the latest on: a loop uses the same ones over and over.
  for (int i = ends_.size() - 1; i >= 0 && !end; --i) {
    if (ends_[i].channel == &channel && ends_[i].index == index && ends_[i].is_put == is_put) end = &ends_[i];
  }
  if (end) {
    task->await(end->task);
    end->task->release();
    end->task = task;
  } else {
    ends_.push(End{&channel, index, is_put, task});
  }
  return issue(task, site, after, {use(side, !is_put)}, Engine::kTransfer);
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
  Resume *resume = new Resume(until.task()->island, handle, is_end);
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
  return awaiter(joined, false);
}

Sequencer::Awaiter Sequencer::drain() {
  Join *joined = new Join(island_);
  joined->strand.learn(ended_);
  for (int i = 0; i < tasks_.size(); ++i) joined->await(tasks_[i]);
  return awaiter(joined, true);
}

Sequencer::Awaiter Sequencer::awaiter(Task *joined, bool is_end) {
  joined->done = joined->pending == 0;
  Awaiter awaiter{strand_, Token(joined), is_end};
  joined->release();
  return awaiter;
}

}  // namespace vnpu
