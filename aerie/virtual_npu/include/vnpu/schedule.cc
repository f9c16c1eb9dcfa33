// Sequencers: the order in which the operations of a body start.
#include "vnpu/schedule.h"

namespace vnpu {

namespace {

bool overlap(const Use &a, const Use &b) { return a.low < b.high && b.low < a.high; }
bool conflict(const Use &a, const Use &b) { return (a.writes || b.writes) && overlap(a, b); }

void widen(Use &around, const Use &use) {
  if (use.low < around.low) around.low = use.low;
  if (use.high > around.high) around.high = use.high;
}

}  // namespace

Sequencer::~Sequencer() {
#if VNPU_CHECKS
  for (int i = 0; i < claims_.size(); ++i) {
    for (int n = 0; n < claims_[i]->claims.size(); ++n) claims_[i]->claims[n].task->release();
    delete claims_[i];
  }
#else
  for (int i = 0; i < claims_.size(); ++i) claims_[i].task->release();
#endif
  for (int i = 0; i < tasks_.size(); ++i) tasks_[i]->release();
  for (int i = 0; i < ends_.size(); ++i) ends_[i].task->release();
  for (int i = 0; i < members_.size(); ++i) members_[i]->release();
  for (int i = 0; i < groups_.size(); ++i) delete groups_[i].after;
}

// Drops finished tasks. Called when the lists have doubled since the last time.
void Sequencer::sweep() {
  sweep_claims();
  int retained = 0;
  for (int i = 0; i < tasks_.size(); ++i) {
    if (tasks_[i]->done) {
      ended_.learn(tasks_[i]->strand);
      tasks_[i]->release();
    } else {
      tasks_[retained++] = tasks_[i];
    }
  }
  tasks_.shrink(retained);
  swept_ = retained;
}

#if VNPU_CHECKS

void BufferClaims::push(const Claim &claim) {
  int number = claims.size();
  claims.push(claim);
  for (int level = 0; level < kLevels; ++level) {
    number /= kFan;
    List<Use> &around = around_[level];
    if (number == around.size()) {
      around.push(claim.use);
    } else {
      widen(around[number], claim.use);
      around[number].writes |= claim.use.writes;
    }
  }
}

template <class Visit>
bool BufferClaims::visit_below(int level, int number, const Use &use, Visit visit) {
  if (!conflict(use, around_[level][number])) return false;
  const int size = level > 0 ? around_[level - 1].size() : claims.size(), first = number * kFan;
  for (int i = (first + kFan < size ? first + kFan : size) - 1; i >= first; --i) {
    if (level > 0 ? visit_below(level - 1, i, use, visit) : conflict(use, claims[i].use) && visit(claims[i])) return true;
  }
  return false;
}

void Sequencer::claim(const Claim &claim) {
  for (int i = 0; i < claims_.size(); ++i) {
    if (claims_[i]->buffer == claim.use.buffer) return claims_[i]->push(claim);
  }
  claims_.push(new BufferClaims(claim.use.buffer));
  claims_[claims_.size() - 1]->push(claim);
}

// Later operations still learn from the latest of the finished tasks.
void Sequencer::sweep_claims() {
  constexpr uint32_t kRemembered = 256;
  int retained = 0;
  for (int i = 0; i < claims_.size(); ++i) {
    BufferClaims &all = *claims_[i];
    const int count = all.claims.size();
    all.claims.shrink(0);
    for (List<Use> &around : all.around_) around.shrink(0);
    for (int n = 0; n < count; ++n) {
      const Claim earlier = all.claims[n];
      if (earlier.task->done && earlier.issue + kRemembered < issued_) earlier.task->release();
      else all.push(earlier);
    }
    if (all.claims.size() > 0) claims_[retained++] = &all;
    else delete &all;
  }
  claims_.shrink(retained);
}

// Whether what comes before a claim, and touches the bytes of this use, is also before the claim: by what the claim's own task
// waited for.
bool Sequencer::separates(const Claim &claim, const Use &use) const {
  const IssueOrder *const order = claim.task->strand.lineage;
  return claim.use.writes && claim.use.low <= use.low && use.high <= claim.use.high && order &&
         order->around == strand_.lineage && !order->is_async && order->engine != Engine::kHost;
}

// Waits for conflicting operations. Two operations with tokens are only kept apart, so that a run in program order gives the
// same result every time. A run with a random schedule does not even do that, unless the device has locks for them.
void Sequencer::await_conflicts(Task &task, std::initializer_list<Use> uses) {
  const IssueOrder *const later = task.strand.lineage;
  for (const Use &use : uses) {
    const auto wait_for = [&](const Claim &claim) {
      const IssueOrder *const earlier = claim.task->strand.lineage;
      const bool learns = holds_back(earlier, later), is_free = !learns && task_loop_.draws() && !task.is_release;
      if (!is_free ||
          (use.buffer && use.buffer->label.has_locks && ordered_by_locks(earlier, claim.use.writes, later, use.writes))) {
        task.await(claim.task, learns);
      }
      return learns && separates(claim, use);
    };
    for (int i = 0; i < claims_.size(); ++i) {
      BufferClaims &claims = *claims_[i];
      if (!use.buffer || !claims.buffer || use.buffer == claims.buffer) claims.each_conflict(use, wait_for);
    }
  }
}

#else

void Sequencer::claim(const Claim &claim) {
  if (claims_.size() % kStretch == 0) stretches_.push(claim.use);
  else widen(stretches_[stretches_.size() - 1], claim.use);
  claims_.push(claim);
}

void Sequencer::sweep_claims() {
  const int count = claims_.size();
  claims_.shrink(0);
  stretches_.shrink(0);
  for (int i = 0; i < count; ++i) {
    const Claim earlier = claims_[i];
    if (earlier.task->done) earlier.task->release();
    else claim(earlier);
  }
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

// Waits for the conflicting operations, from the latest on. An operation that writes all the bytes used here waits for those
// before it.
void Sequencer::await_conflicts(Task &task, std::initializer_list<Use> uses) {
  for (const Use &use : uses) {
    if (!use.writes && !conflict(use, written_)) continue;
    for (int i = claims_.size() - 1; i >= 0; --i) {
      while (i >= 0 && i % kStretch == kStretch - 1 && !overlap(use, stretches_[i / kStretch])) i -= kStretch;
      if (i < 0) break;
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

Token Sequencer::issue(Task *task, Site site, Dependencies after, std::initializer_list<Use> uses, Engine engine) {
  Token token(task);
  task->release();
  task->site = site;
  task->where = &where_;
  task_loop_.take_turn();
#if VNPU_CHECKS
  if (tasks_.size() > 2 * unfinished_ + kFarAhead) sweep();
  ++unfinished_;
  task->unfinished = &unfinished_;
  task->stops = stops_next_;
  stops_next_ = false;
#else
  if (tasks_.size() > 2 * swept_ + 16) sweep();
#endif
  task->strand.begin_task(strand_, site, new_lineage(around(), body_, ++issued_, after.is_async, engine));
  await_tokens(*task, after.token);
  await_conflicts(*task, uses);
  if (task->pending == 0) {
    if (task_loop_.draws()) task_loop_.ready(task);
    else task->begin();
  }
  if (task->done && !kChecks) return Token();
  for (const Use &use : uses) {
    task->retain();
    claim(Claim{task, use, issued_});
    if (!use.writes) continue;
    if (written_.writes) widen(written_, use);
    else written_ = use;
  }
  task->retain();
  tasks_.push(task);
  if (groups_.size()) {
    task->retain();
    members_.push(task);
  }
  return token;
}

Token Sequencer::transfer(Site site, Dependencies after, Channel &channel, i64 index, const Access &side, bool is_put,
                          RelayBuffer *relay) {
  TransferTask *task = new TransferTask(task_loop_, site, where_, channel, index, side, is_put);
  task->transfer.relay = relay;
  task->retain();
  End *end = nullptr;
  // From the latest on, because a loop uses the same ones again and again.
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
  Join *joined = new Join(task_loop_);
  if (group.after->task()) joined->await(group.after->task());
  for (int i = group.first_member; i < members_.size(); ++i) {
    joined->await(members_[i]);
    // Members of an inner group belong to the outer group too.
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
  Resume *resume = new Resume(until.task()->task_loop, handle, is_end);
  resume->await(until.task());
  resume->release();
}

// A join of what it waits for; that keeps it alive.
Sequencer::Awaiter Sequencer::settle(std::initializer_list<Use> uses) {
  Join *joined = new Join(task_loop_);
  joined->strand.begin_task(strand_, Site{"", 0}, new_lineage(around(), body_, ++issued_, false, own_engine()));
  await_conflicts(*joined, uses);
  for (int i = 0; i < groups_.size(); ++i) {
    if (groups_[i].after->task()) joined->await(groups_[i].after->task());
  }
  return awaiter(joined, false);
}

Sequencer::Awaiter Sequencer::drain() {
  Join *joined = new Join(task_loop_);
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
