// Runs the tasks and processes of one launch point to their end, in one thread, one after the other.
#pragma once

#include <coroutine>

#include "vnpu/happens_before.h"
#include "vnpu/storage.h"

namespace vnpu {

class TaskLoop;
class Channel;

// ---- tasks and tokens ----

void *allocate_task(size_t bytes);

class Task {
 public:
  explicit Task(TaskLoop &task_loop);
  virtual ~Task();
#if VNPU_CHECKS
  // There may be very many: the pool would round up their size.
  static void *operator new(size_t bytes) { return allocate_task(bytes); }
  static void operator delete(void *task) { __builtin_free(task); }
#else
  static void *operator new(size_t bytes) { return pool_allocate(i64(bytes)); }
  static void operator delete(void *task) { pool_free(task); }
#endif
  // Called once, when everything that the task waits for is done. Leads to finish(), at once or later.
  virtual void start() = 0;
  void begin() {
    strand.start();
#if VNPU_CHECKS
    if (__builtin_expect(stops, 0)) stop_before(site);
#endif
    start();
  }
  void finish();
  // Waits for another task if it is not done. learns: this task's strand then knows what the other one did; false if the two
  // are only kept apart.
  void await(Task *other, bool learns = true);
  void retain() { ++references_; }
  void release() {
    if (--references_ == 0) delete this;
  }

  TaskLoop &task_loop;
  Strand strand;
  Site site{"", 0};              // of the operation, and the body that issued it
  const ExecutionPlace *where = nullptr;
  bool is_release = false;  // of a buffer; always waits for the tasks that use it
  bool done = false;
  int pending = 0;  // unfinished tasks it waits for
#if VNPU_CHECKS
  bool stops = false;         // whether the run may stop before it
  int *unfinished = nullptr;  // the count of the sequencer that issued it
#endif

 private:
  struct Successor {
    Task *task;
    bool learns;
  };
  friend class TaskLoop;
  friend class Deadlock;
  int references_ = 1;
  int node_ = -1;  // in the graph of a deadlock
  SmallList<Successor> successors_;
  Task *previous_ = nullptr, *next_ = nullptr;  // the loop's list of tasks
};

// Either done, or the task that must finish first.
class Token {
 public:
  constexpr Token() = default;
  explicit Token(Task *task) : task_(task) {
    if (task_) task_->retain();
  }
  Token(const Token &other) : Token(other.task_) {}
  Token &operator=(const Token &other) {
    if (other.task_) other.task_->retain();
    if (task_) task_->release();
    task_ = other.task_;
    return *this;
  }
  ~Token() {
    if (task_) task_->release();
  }
  Task *task() const { return task_; }
  Task *unfinished() const { return task_ && !task_->done ? task_ : nullptr; }

 private:
  Task *task_ = nullptr;
};

// A task that waits for others and does nothing itself.
struct Join final : Task {
  explicit Join(TaskLoop &task_loop) : Task(task_loop) {}
  void start() override { finish(); }
};
Token join(const Token *const *tokens, int count);

// The token that an operation waits for, and whether the operation has a token itself: then only tokens order it.
struct Dependencies {
  const Token &token;
  bool is_async;
};
inline Dependencies blocking(const Token &token) { return Dependencies{token, false}; }
inline Dependencies async(const Token &token) { return Dependencies{token, true}; }

// A token that is done when all of `tokens` are. There is one that is always done: each transfer of a body may wait for it.
inline constinit const Token kDone;
inline const Token &all() { return kDone; }
template <class... T>
inline Token all(const T &...tokens) {
  const Token *const list[] = {&tokens...};
  return join(list, int(sizeof...(tokens)));
}

// ---- processes ----

class Process {
 public:
  struct promise_type {
    template <class... Arguments>
    explicit promise_type(TaskLoop &task_loop, const ExecutionPlace &where, Arguments &&...)
        : task_loop(task_loop), where(where) {}
    Process get_return_object() { return Process(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    [[noreturn]] void unhandled_exception() { throw; }
    // Locals of a body are in its frame. Vectors among them need more alignment than plain `new` gives.
    static void *operator new(size_t bytes) { return pool_allocate(i64(bytes)); }
    static void operator delete(void *frame) { pool_free(frame); }

    TaskLoop &task_loop;
    const ExecutionPlace where;
    Strand strand;
    Strand *current = &strand;  // or the strand of one of its asynchronous operations
    int recorded = -1;          // its number in the trace
    uint32_t modes = 0;         // the mode registers of a tile, while others run
    class Spawn *owner = nullptr;
    promise_type *previous = nullptr, *next = nullptr;  // the loop's list of live processes
    int node = -1;               // in the graph of a deadlock
    bool has_begun = false;      // for the report of a run that is stopped
    bool is_at_end = false;      // there too: it has issued all of its operations
  };
  using Handle = std::coroutine_handle<promise_type>;
  explicit Process(Handle handle) : handle(handle) {}
  Handle handle;
};

// Runs `count` processes. Done when all of them have ended.
class Spawn : public Task {
 public:
  Spawn(TaskLoop &task_loop, Site site, const Ports *ports, i64 count)
      : Task(task_loop), left(count), ports(ports), site_(site) {}
  i64 left;
  const Ports *const ports;  // the puts and gets in the processes, until they start

 protected:
  void adopt(Process process, i64 flat);

 private:
  Site site_;
};

template <class Make>
class SpawnOf final : public Spawn {
 public:
  SpawnOf(TaskLoop &task_loop, Site site, const Ports *ports, i64 count, Make make)
      : Spawn(task_loop, site, ports, count), make_(make) {}
  void start() override {
    if (left == 0) return finish();
    const i64 count = left;
    for (i64 i = 0; i < count; ++i) adopt(make_(i), i);
  }

 private:
  Make make_;
};

// ---- the loop ----

// Chooses at random between legal next operations, by the seed of the run. Not used if the seed is 0.
class Random {
 public:
  void start(uint64_t seed) { state_ = seed; }
  explicit operator bool() const { return state_ != 0; }
  uint64_t below(uint64_t count) {
    // xorshift64*, Vigna 2016.
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return (state_ * 2685821657736338717u >> 33) % count;
  }

 private:
  uint64_t state_ = 0;
};

class TaskLoop {
 public:
  // follows: whether another point of the launch ran before, with the same puts and gets.
  explicit TaskLoop(Launch *launch = nullptr, bool follows = false) : launch_(launch), follows_(follows) {}
  ~TaskLoop();
  // Runs a process, and everything it starts, to the end. Throws a Failure; a deadlock is one.
  void run(Process root);

  struct Work {
    Process::Handle process;
    Task *task;
  };
  void ready(Process::Handle process) { queue_.push(Work{process, nullptr}); }
  void ready(Task *task) {
    task->retain();
    queue_.push(Work{nullptr, task});
  }
  // Resumes a body when nothing else can run.
  void ready_last(Process::Handle process) { last_.push(process); }
  void adopt(Process process, Spawn *owner);
  void add(Channel *channel) { channels_.push(channel); }
  void remove(Channel *channel);
  void add(Task *task);
  void remove(Task *task);

  // Called before each operation. Checks every kTurns operations whether the run may continue.
  void take_turn() {
    if (++turns_ % kTurns == 0) check_running();
  }

  // The blocks that the points of the launch share; null if there are none.
  RetainedBlocks *retained();

  // Whether operations that are ready run in a random order.
  bool draws() const { return bool(random_); }

  // How many blocks a put may be ahead of its get: the two buffers of a ping-pong pair. If one point of a launch ends with two,
  // so do the points after it: they do the same operations in the same order. With more blocks a tile runs longer before the
  // next one, while its buffers are still in the cache.
  static constexpr int kMaxPendingPuts = 16;
  int max_pending_puts() const { return follows_ && !kChecks && run_seed == 0 ? kMaxPendingPuts : 2; }

  StrandChains chains;

 private:
  // Operations between two checks. They take much longer than a check, and less than a tenth of a second.
  static constexpr uint32_t kTurns = 16;
  friend class Deadlock;
  bool next(Work &work);
  void run_all(Executing &executing);
  void step(Process::Handle process, Executing &executing);

  List<Work> queue_;
  int head_ = 0;
  List<Process::Handle> last_;
  Process::promise_type *live_ = nullptr;
  Task *tasks_ = nullptr;
  List<Channel *> channels_;
  Launch *const launch_;
  const bool follows_;
  RetainedBlocks *retained_ = nullptr;
  Random random_;
  uint32_t turns_ = 0;
};

// Resumes a body.
struct Resume final : Task {
  Resume(TaskLoop &task_loop, Process::Handle handle, bool is_end) : Task(task_loop), handle(handle), is_end(is_end) {}
  void start() override {
    finish();
    task_loop.ready(handle);
  }
  Process::Handle handle;
  bool is_end;  // whether the body has issued all of its operations
};

// Fails the run when no operation can make progress. The message says which operation waits for which, as a cycle if there is
// one.
[[noreturn]] void fail_deadlock(TaskLoop &task_loop);

// Adds to the text of a run that is stopped what each operation and body of the loop waits for.
void add_positions(TaskLoop &task_loop, Failure &failure);

}  // namespace vnpu
