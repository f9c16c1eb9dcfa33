// Cores of a loaded device.
#include "vnpu/aie/array.h"

#include <stdio.h>

namespace vnpu::aie {

void Core::describe(char *text, int capacity) const {
  snprintf(text, size_t(capacity), "core (%d, %d)", table->place.column, table->place.row);
}

void Core::turn() {
  if (Lock *const lock = asks_.lock) {
    asks_.lock = nullptr;
    if (!lock->take(asks_.value, asks_.at_least)) {
      lock->acquire_by(*this, asks_.value, asks_.at_least);
      if (run.trace) run.trace->had_turn(*this, run.time());
      return;
    }
  }
  const CoreTurn registers(modes);
  const Turn turn(*this);
  try {
    Actor::turn();
  } catch (const Endless &) {
    is_endless = true;
  }
}

void Core::halt() {
  stop();
  asks_.lock = nullptr;
  is_halted = true;
}

void Core::begin_again() {
  if (!is_halted) return;
  is_halted = is_endless = false;
  begin(table->run(*this));
}

void Core::spend(i64 cycles) { run.spent += cycles; }

Lock &Core::lock(int number) const { return *array->locks[number]; }

char *Core::memory(int number) const { return array->memory[number]; }

Await Core::acquire(int number, int value, bool at_least, int at) {
  line = at;
  asks_ = {&lock(number), value, at_least};
  // Time passes where it gets its lock at once, too, so that the others go on where it asks again and again.
  run.ready_at(this, run.time() + Cycles::kLock);
  return Await{false};
}

namespace {

void release_now(Lock &lock, int value, int line) {
  lock.value += value;
  lock.check_credits(Site{"aie.use_lock", line});
  lock.value -= value;
  lock.release(Site{"aie.use_lock", line}, value);
}

// A release by a core, after it has computed.
class Release final : public Runnable {
 public:
  Release(Lock &lock, int value, int line) : lock_(lock), value_(value), line_(line) { is_core = true; }
  void turn() override {
    Lock &lock = lock_;
    const int value = value_, line = line_;
    delete this;
    release_now(lock, value, line);
  }
  void forgotten() override { delete this; }

 private:
  Lock &lock_;
  const int value_, line_;
};

}  // namespace

void Core::release(int number, int value, int at) {
  line = at;
  if (run.spent == 0) return release_now(lock(number), value, at);
  run.at_time(new Release(lock(number), value, at));
}

Await Core::to_put_word(int number, int at) {
  line = at;
  if (array->channels[number]->words.size() < 4 * Capacity::kPort) return Await{true};
  waiting.kind = Waiting::kStreamOut;
  waiting.channel = array->channels[number];
  return Await{false};
}

void Core::put_word(int number, uint32_t word) { array->channels[number]->put_word(word); }

Await Core::to_get_word(int number, int at) {
  line = at;
  if (array->channels[number]->sink.held.size() >= 4) return Await{true};
  waiting.kind = Waiting::kStreamIn;
  waiting.channel = array->channels[number];
  return Await{false};
}

uint32_t Core::get_word(int number) {
  Sink &sink = array->channels[number]->sink;
  uint32_t word;
  memcpy(&word, sink.held.data(), sizeof(word));
  sink.held.drop(sizeof(word));
  sink.changed();
  return word;
}

Await Core::to_put(int at) {
  line = at;
  if (!out) fail(Site{"aie.put_cascade", at}, "no cascade leads on from this core: add aie.cascade_flow");
  if (out->steps.size() < Capacity::kCascade) return Await{true};
  waiting.kind = Waiting::kCascadeOut;
  waiting.cascade = out;
  return Await{false};
}

void Core::put_bytes(const void *value) {
  Cascade::Step step;
  memcpy(step.bytes, value, sizeof(step.bytes));
  out->steps.push(step);
  if (out->to->waiting.kind == Waiting::kCascadeIn) out->to->wake();
}

Await Core::to_get(int at) {
  line = at;
  if (!in) fail(Site{"aie.get_cascade", at}, "no cascade leads to this core: add aie.cascade_flow");
  if (!in->steps.empty()) return Await{true};
  waiting.kind = Waiting::kCascadeIn;
  waiting.cascade = in;
  return Await{false};
}

void Core::get_bytes(void *value) {
  const Cascade::Step step = in->steps.pop();
  memcpy(value, step.bytes, sizeof(step.bytes));
  if (in->from->waiting.kind == Waiting::kCascadeOut) in->from->wake();
}

}  // namespace vnpu::aie
