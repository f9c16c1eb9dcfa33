// Who has a turn when: the events of a run, in the order of its clock.
#include "vnpu/aie/array.h"

namespace vnpu::aie {

void Actor::begin(Fiber fiber) {
  fiber_ = fiber.handle;
  run.ready(this);
}

void Actor::wake() { run.ready(this); }

void Actor::turn() {
  const i64 begun = run.time();
  waiting = Waiting();
  fiber_.resume();
  if (__builtin_expect(run.trace != nullptr, 0)) run.trace->had_turn(*this, begun);
}

void Actor::stop() {
  if (fiber_) fiber_.destroy();
  fiber_ = nullptr;
  if (waiting.kind == Waiting::kLock) const_cast<Lock *>(waiting.lock)->forget(*this);
  waiting = Waiting();
  is_queued = is_done = false;
  if (run.trace) run.trace->had_turn(*this, run.time());
}

namespace {

uint64_t draw(uint64_t &random) {
  random ^= random << 13;
  random ^= random >> 7;
  random ^= random << 17;
  return random;
}

}  // namespace

void Run::ready_at(Runnable *runnable, i64 at) {
  // Another seed is an array in which all takes other times.
  if (random_) at += (at - time()) * i64(draw(random_) % 4) + i64(draw(random_) % 64);
  if (runnable->is_queued && runnable->due <= at) return;
  runnable->is_queued = true;
  runnable->due = at;
  push(Event{at, order_++, runnable});
}

void Run::at_time(Runnable *runnable) {
  runnable->is_queued = true;
  runnable->due = time();
  push(Event{runnable->due, order_++, runnable});
}

void Run::push(Event event) {
  events_.push(event);
  for (int i = events_.size() - 1; i > 0 && events_[i] < events_[(i - 1) / 2]; i = (i - 1) / 2) {
    events_[i] = events_[(i - 1) / 2];
    events_[(i - 1) / 2] = event;
  }
}

Run::Event Run::pop() {
  const Event first = events_[0], last = events_[events_.size() - 1];
  events_.shrink(events_.size() - 1);
  const int count = events_.size();
  for (int i = 0; count > 0;) {
    int least = 2 * i + 1;
    if (least + 1 < count && events_[least + 1] < events_[least]) ++least;
    events_[i] = least < count && events_[least] < last ? events_[least] : last;
    if (least >= count || !(events_[least] < last)) break;
    i = least;
  }
  return first;
}

void Run::forget_turns() {
  for (int i = 0; i < events_.size(); ++i) events_[i].runnable->is_queued = false;
  for (int i = 0; i < events_.size(); ++i) events_[i].runnable->forgotten();
  events_.shrink(0);
}

void Run::execute(Fiber sequence) {
  random_ = run_seed;
  host.begin(sequence);
  take_turns();
  if (!host.is_done) fail_hang(*this);
  if (host.array) note_remains(*host.array);
}

void Run::take_turns() {
  for (uint32_t turns = 0, busy = 0;; ++turns) {
    if (turns % 64 == 0) {
      check_running();
      progress.check(*this);
    }
    // Cores that go round and round without waiting do not keep the host from going on, nor the run from ending.
    const bool is_patient = busy < kPatience;
    if (events_.size() > 0 && is_patient) {
      const Event event = pop();
      Runnable *const runnable = event.runnable;
      if (!runnable->is_queued || runnable->due != event.time) continue;  // it has had this turn, or an earlier one
      if (at_rest || host.is_done) ++busy;
      now_ = event.time > now_ ? event.time : now_;
      runnable->is_queued = false;
      if (!runnable->is_core) progress.moved();
      runnable->turn();
      spent = 0;
    } else if (at_rest) {
      Actor *const waiting = at_rest;
      at_rest = nullptr;
      busy = 0;
      waiting->wake();
    } else if (events_.size() == 0 || host.is_done) {
      break;
    } else {
      busy = 0;
    }
  }
}

}  // namespace vnpu::aie
