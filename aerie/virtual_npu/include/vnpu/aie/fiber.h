// Programs that wait: cores, DMA channels and the host are actors, each with a coroutine that one thread runs in turns.
#pragma once

#include <coroutine>

#include "vnpu/entry.h"
#include "vnpu/storage.h"

namespace vnpu::aie {

class Run;

// Something that can be given a turn.
class Runnable {
 public:
  static void *operator new(size_t bytes) { return pool_allocate(i64(bytes)); }
  static void operator delete(void *runnable) { pool_free(runnable); }
  virtual ~Runnable() = default;
  virtual void turn() = 0;
  virtual void forgotten() {}  // a turn that it waited for will not come
  bool is_queued = false, is_core = false;
  i64 due = 0;  // when it has its turn, while it is queued
};

class Actor;

// The coroutine of an actor.
class Fiber {
 public:
  struct promise_type {
    template <class... Arguments>
    explicit promise_type(Actor &actor, Arguments &&...) : actor(actor) {}
    Fiber get_return_object() { return Fiber(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void();
    [[noreturn]] void unhandled_exception() { throw; }
    static void *operator new(size_t bytes) { return pool_allocate(i64(bytes)); }
    static void operator delete(void *frame) { pool_free(frame); }
    Actor &actor;
  };
  explicit Fiber(std::coroutine_handle<> handle) : handle(handle) {}
  std::coroutine_handle<> handle;
};

class Lock;
class Channel;
class Cascade;

// What an actor waits for.
struct Waiting {
  enum Kind { kNothing, kLock, kTask, kSend, kReceive, kToken, kQueue, kQuiet, kCascadeIn, kCascadeOut, kStreamIn, kStreamOut };
  Kind kind = kNothing;
  const Lock *lock = nullptr;
  int value = 0;
  bool at_least = true;
  Channel *channel = nullptr;
  const Cascade *cascade = nullptr;
};

class Actor : public Runnable {
 public:
  explicit Actor(Run &run) : run(run) {}
  Actor(const Actor &) = delete;
  ~Actor() override {
    if (fiber_) fiber_.destroy();
  }
  void begin(Fiber fiber);
  // Ends its coroutine where it stands; it can begin again.
  void stop();
  void turn() override;
  // Lets the actor go on, as soon as it has a turn.
  void wake();
  virtual void describe(char *text, int capacity) const = 0;

  Run &run;
  Waiting waiting;
  int line = 0;  // of the operation that it executes
  bool is_done = false;
  int lane = -1, event = -1;  // of the trace

 private:
  std::coroutine_handle<> fiber_;
};

inline void Fiber::promise_type::return_void() { actor.is_done = true; }

// An awaitable that is ready where its constructor found it so; else whoever made it wakes the actor.
struct Await {
  bool is_ready;
  bool await_ready() const { return is_ready; }
  void await_suspend(std::coroutine_handle<>) const {}
  void await_resume() const {}
};

}  // namespace vnpu::aie
