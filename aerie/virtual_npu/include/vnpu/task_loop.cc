// Tasks that wait for each other, processes, and which of them runs next.
#include <stdlib.h>

#include "vnpu/channel.h"
#include "vnpu/entry.h"

namespace vnpu {

// ---- tasks ----

void *allocate_task(size_t bytes) {
  void *const task = malloc(bytes);
  if (!task) fail_memory(Site{"the operations that wait", 0}, i64(bytes));
  return task;
}

Task::Task(TaskLoop &task_loop) : task_loop(task_loop) { task_loop.add(this); }

Task::~Task() {
  task_loop.remove(this);
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
#if VNPU_CHECKS
  if (unfinished) --*unfinished;
#endif
  for (int i = 0; i < successors_.size(); ++i) {
    const Successor next = successors_[i];
    if (next.learns) next.task->strand.learn(strand);
    if (--next.task->pending == 0) task_loop.ready(next.task);
    next.task->release();
  }
  successors_.clear();
}

Token join(const Token *const *tokens, int count) {
  Join *joined = nullptr;
  for (int i = 0; i < count; ++i) {
    // A finished task holds nothing back. With checks, its strand is still learned.
    Task *task = kChecks ? tokens[i]->task() : tokens[i]->unfinished();
    if (!task) continue;
    if (!joined) joined = new Join(task->task_loop);
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
  task_loop.adopt(process, this);
}

void TaskLoop::adopt(Process process, Spawn *owner) {
  Process::promise_type &promise = process.handle.promise();
  promise.owner = owner;
  if (owner) owner->retain();
  promise.next = live_;
  if (live_) live_->previous = &promise;
  live_ = &promise;
  ready(process.handle);
}

RetainedBlocks *TaskLoop::retained() {
  if (!retained_ && launch_) {
    retained_ = launch_->acquire();
    retained_->begin_point();
  }
  return retained_;
}

void TaskLoop::add(Task *task) {
  task->next_ = tasks_;
  if (tasks_) tasks_->previous_ = task;
  tasks_ = task;
}

void TaskLoop::remove(Channel *channel) {
  int retained = 0;
  for (int i = 0; i < channels_.size(); ++i) {
    if (channels_[i] != channel) channels_[retained++] = channels_[i];
  }
  channels_.shrink(retained);
}

void TaskLoop::remove(Task *task) {
  if (task->previous_) task->previous_->next_ = task->next_;
  else tasks_ = task->next_;
  if (task->next_) task->next_->previous_ = task->previous_;
}

bool TaskLoop::next(Work &work) {
  if (head_ == queue_.size()) {
    head_ = 0;
    queue_.shrink(0);
    if (last_.size() == 0) return false;
    for (int i = 0; i < last_.size(); ++i) ready(last_[i]);
    last_.shrink(0);
  }
  if (random_) {
    // Any operation that is ready may run next.
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

void TaskLoop::step(Process::Handle process, Executing &executing) {
  Process::promise_type &promise = process.promise();
  here = &promise.where;
  promise.has_begun = true;
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

void TaskLoop::run(Process root) {
  struct Restore {
    const ExecutionPlace *outer = here;
    Standing standing = vnpu::standing;
    ~Restore() {
      here = outer;
      vnpu::standing = standing;
    }
  } const restore;
  standing = {this, add_positions};
  Executing executing;
  Process::promise_type &promise = root.handle.promise();
  promise.strand.start_task_loop(chains, &promise.where, launch_ ? launch_->outer : nullptr);
  if (run_seed) random_.start(run_seed * 0x9e3779b97f4a7c15u + uint64_t(promise.where.x * 65537 + promise.where.y) + 1);
  adopt(root, nullptr);
  run_all(executing);
  if (live_) fail_deadlock(*this);
  for (int i = 0; i < channels_.size(); ++i) channels_[i]->refuse_leftovers();
}

void TaskLoop::run_all(Executing &executing) {
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
}

TaskLoop::~TaskLoop() {
  if (retained_) launch_->release(retained_);
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

}  // namespace vnpu
