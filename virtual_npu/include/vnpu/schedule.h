// Programs with channels: tiles as coroutines, engines as tasks, channels between them.
//
// One thread runs an Island to its end. What is in it takes turns:
//   Process    a coroutine: the body of a tile, a segment or a launch
//   Task       an engine operation that a sequencer issued: a copy, a put or get, a herd, a segment
//   Sequencer  walks a launch or segment body in program order and issues its operations as tasks, each held
//              back only by earlier, unfinished tasks that touch the same bytes (one of them writing), by
//              tokens, and by the previous operation on the same end of the same channel. In a schedule that is
//              drawn at random, two operations that both have tokens are held back by tokens alone
//   Channel    a bundle of bounded queues; a put copies its block in, a get copies it out
//              or has it on loan; several gets of one put share the block
#pragma once

#include <pthread.h>

#include <coroutine>
#include <initializer_list>

#include "vnpu/order.h"

namespace vnpu {

class Island;
class Channel;

// A growing array of plain values.
template <class T>
class List {
 public:
  List() = default;
  List(const List &) = delete;
  List &operator=(const List &) = delete;
  ~List() {
    if (items_) pool_give(items_);
  }
  int size() const { return size_; }
  T &operator[](int i) { return items_[i]; }
  void push(const T &item) {
    if (size_ == capacity_) grow();
    items_[size_++] = item;
  }
  void shrink(int size) { size_ = size; }

 private:
  void grow() {
    capacity_ = capacity_ ? 2 * capacity_ : 8;
    T *const larger = static_cast<T *>(pool_take(capacity_ * i64(sizeof(T))));
    if (items_) {
      __builtin_memcpy(larger, items_, size_t(size_) * sizeof(T));
      pool_give(items_);
    }
    items_ = larger;
  }

  T *items_ = nullptr;
  int size_ = 0, capacity_ = 0;
};

// The same, of which there is mostly one.
template <class T>
class FewOf {
 public:
  int size() const { return size_; }
  T &operator[](int i) { return i == 0 ? first_ : others_[i - 1]; }
  void push(const T &item) {
    if (size_++ == 0) first_ = item;
    else others_.push(item);
  }
  void clear() {
    size_ = 0;
    others_.shrink(0);
  }

 private:
  T first_{};
  List<T> others_;
  int size_ = 0;
};

// ---- tasks and tokens ----

class Task {
 public:
  explicit Task(Island &island);
  virtual ~Task();
  static void *operator new(size_t bytes) { return pool_take(i64(bytes)); }
  static void operator delete(void *task) { pool_give(task); }
  // Called once, when everything the task waits for is done; leads, now or later, to finish().
  virtual void start() = 0;
  void begin() {
    strand.start();
    start();
  }
  void finish();
  // Be held back by another task, if it is not done; and know what it did, unless the two are merely kept apart.
  void await(Task *other, bool learns = true);
  void retain() { ++references_; }
  void release() {
    if (--references_ == 0) delete this;
  }

  Island &island;
  Strand strand;
  Site site{"", 0};              // of the operation, and the body that issued it
  const Where *where = nullptr;
  bool is_release = false;  // of a buffer, which always waits for its users
  bool done = false;
  int pending = 0;  // unfinished tasks it waits for

 private:
  struct Successor {
    Task *task;
    bool learns;
  };
  friend class Island;
  friend class Deadlock;
  int references_ = 1;
  FewOf<Successor> successors_;
  Task *previous_ = nullptr, *next_ = nullptr;  // the island's list of tasks
};

// Done, or the task that will be.
class Token {
 public:
  Token() = default;
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

Token join(const Token *const *tokens, int count);

// What an operation waits for, and whether it has a token itself: then tokens alone order it.
struct After {
  const Token &token;
  bool is_async;
};
inline After blocking(const Token &token) { return After{token, false}; }
inline After async(const Token &token) { return After{token, true}; }

// A token that is done when all of these are.
inline Token all() { return Token(); }
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
    explicit promise_type(Island &island, const Where &where, Arguments &&...) : island(island), where(where) {}
    Process get_return_object() { return Process(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    [[noreturn]] void unhandled_exception() { throw; }
    // Locals of a body are in its frame, vectors among them, which want more than the alignment of plain `new`.
    static void *operator new(size_t bytes) { return pool_take(i64(bytes)); }
    static void operator delete(void *frame) { pool_give(frame); }

    Island &island;
    const Where where;
    Strand strand;
    Strand *current = &strand;  // or an asynchronous operation of it
    int recorded = -1;          // its number in the trace
    uint32_t modes = 0;         // the mode registers of a tile, while others run
    class Spawn *owner = nullptr;
    promise_type *previous = nullptr, *next = nullptr;  // the island's list of live processes
  };
  using Handle = std::coroutine_handle<promise_type>;
  explicit Process(Handle handle) : handle(handle) {}
  Handle handle;
};

// Runs `count` processes; done when all of them have ended.
class Spawn : public Task {
 public:
  Spawn(Island &island, Site site, const Ports *ports, i64 count)
      : Task(island), left(count), ports(ports), site_(site) {}
  i64 left;
  const Ports *const ports;  // of everything in it, for as long as it has not begun

 protected:
  void adopt(Process process, i64 flat);

 private:
  Site site_;
};

template <class Make>
class SpawnOf final : public Spawn {
 public:
  SpawnOf(Island &island, Site site, const Ports *ports, i64 count, Make make)
      : Spawn(island, site, ports, count), make_(make) {}
  void start() override {
    if (left == 0) return finish();
    const i64 count = left;
    for (i64 i = 0; i < count; ++i) adopt(make_(i), i);
  }

 private:
  Make make_;
};

// ---- the island ----

// Which of several legal things comes next, drawn with the seed of the run; never asked where that is 0.
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

class Kept;

// All points of a launch: what they have in common.
class Launch {
 public:
  Launch() = default;
  Launch(const Launch &) = delete;
  ~Launch();
  // Blocks that nobody else has now, for one point; and back for the next one.
  Kept *take();
  void give(Kept *kept);

 private:
  pthread_mutex_t taking_ = PTHREAD_MUTEX_INITIALIZER;
  Kept *free_ = nullptr;
};

class Island {
 public:
  explicit Island(Launch *launch = nullptr) : launch_(launch) {}
  ~Island();
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
  void adopt(Process process, Spawn *owner);
  void add(Channel *channel) { channels_.push(channel); }
  void remove(Channel *channel);
  void add(Task *task);
  void remove(Task *task);

  // Before anything that is done: now and then this looks whether the run goes on.
  void take_turn() {
    if (++turns_ % kTurns == 0) go_on();
  }

  // The blocks that the points of the launch keep; null where it keeps none.
  Kept *kept();

  // Whether the order of what is ready is drawn at random.
  bool draws() const { return bool(random_); }

  Chains chains;

 private:
  // Between two looks: so many take far longer than a look, and hardly a tenth of a second.
  static constexpr uint32_t kTurns = 16;
  friend class Deadlock;
  bool next(Work &work);
  void step(Process::Handle process, Executing &executing);

  List<Work> queue_;
  int head_ = 0;
  Process::promise_type *live_ = nullptr;
  Task *tasks_ = nullptr;
  List<Channel *> channels_;
  Launch *const launch_;
  Kept *kept_ = nullptr;
  Random random_;
  uint32_t turns_ = 0;
};

// ---- channels ----

// A dense block of elements on its way. All who get it share it; when the last of them is gone, so is the block.
class Cargo {
 public:
  Cargo() = default;
  Cargo(Site site, const Access &from);
  Cargo(const Cargo &other) : shared_(other.shared_) {
    if (shared_) ++shared_->users;
  }
  Cargo &operator=(Cargo other) {
    Shared *const mine = shared_;
    shared_ = other.shared_;
    other.shared_ = mine;
    return *this;
  }
  ~Cargo() {
    if (shared_ && --shared_->users == 0) pool_give(shared_);
  }
  explicit operator bool() const { return shared_; }
  char *data() const { return reinterpret_cast<char *>(shared_) + kHeader; }

 private:
  static constexpr i64 kHeader = 64;
  struct Shared {
    int users;
  };
  Shared *shared_ = nullptr;
};

// Blocks in their order, of memory that stays until the launch ends: the points of a launch that read the same get the same
// block, which is kept when it is asked for a second time. What a point did not ask for is gone when the next one begins: so
// blocks are few enough for the caches, and new ones come where old ones were.
class Kept {
 public:
  static void *operator new(size_t bytes) { return pool_take(i64(bytes)); }
  static void operator delete(void *kept) { pool_give(kept); }
  void begin_point();
  Cargo block(Site site, const Access &from);

 private:
  friend class Launch;
  static constexpr int kDims = 4, kEntries = 1024;
  static constexpr i64 kBytes = 1 << 22;  // what a core's share of the caches may be
  struct alignas(64) Entry {
    const char *first = nullptr;  // and all else that makes the access
    i64 count;
    int element, rank;
    i64 sizes[kDims], strides[kDims];
    Cargo cargo;
    bool is_used;  // by the present point, or just now by the one before
    bool is(const Access &access) const;
    void know(const Access &access);
    i64 bytes() const { return count * element; }
  };
  void drop(Entry &entry);

  Entry entries_[kEntries] = {};
  List<Entry *> known_;
  i64 bytes_ = 0;
  Kept *next_ = nullptr;
};

// What a tile's buffer has for its contents: a block that a channel lends it, or its own memory, into which the channel
// copies all else.
template <class T>
class Loan {
 public:
  explicit Loan(T *own) : own_(own) {}
  // Before a get: the own memory, for the channel to copy into.
  T *give_back() {
    cargo = Cargo();
    return own_;
  }
  // After it: where the elements are.
  T *block() const { return cargo ? reinterpret_cast<T *>(cargo.data()) : own_; }

  Cargo cargo;

 private:
  T *const own_;
};

// The same of a buffer that only passes blocks on: where a block is that stays, or its own memory. Gets and puts of it come
// one after the other.
class Relay {
 public:
  template <class T>
  explicit Relay(T *own) : own_(reinterpret_cast<char *>(own)) {}
  void point_to(const Access &block) {
    block_ = block;
    is_elsewhere_ = true;
  }
  // Its own memory has it now.
  void hold() { is_elsewhere_ = false; }
  // What a put reads that would read the own memory; where it must, the block comes there first.
  void direct(Site site, Access &side);

 private:
  char *const own_;
  Access block_;
  bool is_elsewhere_ = false;
};

// What a get has so far, where several puts fill it.
struct Collected {
  Collected() = default;
  Collected(const Collected &) = delete;
  ~Collected() {
    if (data) pool_give(data);
  }
  char *data = nullptr;
  i64 count = 0;
};

// One side of a transfer that has arrived at its channel, and whom to wake when it is through.
struct Transfer {
  Site site;
  const Where &where;
  Access side;
  Island &island;
  Strand &strand;
  Process::Handle process = nullptr;
  Task *task = nullptr;
  Cargo *loan = nullptr;   // of a get that does with a block of others
  Relay *relay = nullptr;  // of a get or put whose buffer passes blocks on
  Transfer *next = nullptr;
  Collected collected{};
  int recorded = -1;  // its number in the trace

  bool pass() {
#if VNPU_CHECKS
    record::through(recorded);
#endif
    return true;
  }
  void complete();
};

// A channel is a stream of elements. Mostly a get takes the block of one put; the compiler also folds a loop of puts or
// gets into one, so a get may take a part of a block, or the blocks of several puts.
class Channel {
 public:
  // How many blocks a put may be ahead of its get, per index: the two buffers of a ping-pong pair.
  static constexpr int kCapacity = 2;

  // `to` has the extents on the receiving side: those of `from`, or larger where one put feeds several gets.
  Channel(Island &island, const char *name, std::initializer_list<i64> from, std::initializer_list<i64> to);
  Channel(const Channel &) = delete;
  ~Channel();

  i64 put_index(Site site, std::initializer_list<i64> indices) const { return index(site, indices, from_); }
  i64 get_index(Site site, std::initializer_list<i64> indices) const { return index(site, indices, to_); }

  // True when the block went through; else the transfer is queued and completes later.
  bool put(Transfer &transfer, i64 index);
  bool get(Transfer &transfer, i64 index);

  // Fails when blocks were sent that nobody took.
  void refuse_leftovers() const;

 private:
  struct Shape {
    int rank = 0;
    i64 extents[kMaxRank];
    i64 count = 1;
  };
  struct Block {
    Cargo cargo;  // none where it stays where it was
    Access side;  // where that is; of a cargo its count and element alone
    Site site;
    Where where;
    Mark mark;   // what the sender did before
    i64 taken;   // elements that gets have taken so far
    Site taker;  // the last of them
    void fill(const Transfer &put, const Cargo &made, const Mark &sent);
  };
  struct Queue {
    Transfer *first = nullptr, *last = nullptr;
    void push(Transfer &transfer);
    Transfer *pop();
  };
  struct Inlet {
    Queue puts;
    i64 blocks = 0;        // sent so far
    FewOf<i64> receivers;  // the outlets that get them, in order
  };
  struct Outlet {
    Queue gets;
    Block blocks[kCapacity];
    int next = 0, full = 0;  // the first one that waits, and how many do
    i64 source = 0;

    Block &waiting(int i) { return blocks[(next + i) % kCapacity]; }
    // The first one is used up.
    void drop() {
      blocks[next].cargo = Cargo();
      next = (next + 1) % kCapacity;
      --full;
    }
  };

  i64 index(Site site, std::initializer_list<i64> indices, const Shape &shape) const;
  bool deliver(Transfer &put, i64 index);
  bool serve(Outlet &outlet, Transfer &get);
  void load(Cargo &cargo, Site site, const Access &from);
  void hand_over(Transfer &get, const Access &block, const Mark &mark);
  void hand_over(Transfer &get, const Cargo &cargo, const Mark &mark);
  static bool collect(Transfer &get, const Access &part);
  i64 source_of(i64 outlet) const;
  void record_arrival(Transfer &transfer, bool is_put, i64 index) const;
  void record_delivery(i64 outlet, const Access &side) const;
  static int describe_index(char *text, int capacity, const Shape &shape, i64 index);

  friend class Deadlock;
  Island &island_;
  const char *const name_;
  Shape from_, to_;
  Inlet *inlets_;
  Outlet *outlets_;
};

// A put or get that a sequencer issued.
struct TransferTask final : Task {
  TransferTask(Island &island, Site site, const Where &where, Channel &channel, i64 index, const Access &side, bool is_put)
      : Task(island), transfer{site, where, side, island, strand}, channel(channel), index(index), is_put(is_put) {
    transfer.task = this;
  }
  void start() override {
    if (is_put && transfer.relay) transfer.relay->direct(site, transfer.side);
    if (is_put ? channel.put(transfer, index) : channel.get(transfer, index)) finish();
  }
  Transfer transfer;
  Channel &channel;
  i64 index;
  bool is_put;
};

// A body goes on.
struct Resume final : Task {
  Resume(Island &island, Process::Handle handle, bool is_end) : Task(island), handle(handle), is_end(is_end) {}
  void start() override {
    finish();
    island.ready(handle);
  }
  Process::Handle handle;
  bool is_end;  // of the body: it issues nothing more
};

// Ends a run in which nothing can make progress: who waits for whom, as a cycle where there is one.
[[noreturn]] void fail_deadlock(Island &island);

// What `co_await put(...)` and `co_await get(...)` wait with, in tiles.
struct TransferAwaiter : Transfer {
  Channel &channel;
  i64 index;
  bool is_put;
  bool await_ready() { return is_put ? channel.put(*this, index) : channel.get(*this, index); }
  void await_suspend(Process::Handle handle) { process = handle; }
  void await_resume() const {}
};

inline TransferAwaiter put(Island &island, const Where &where, Site site, Channel &channel, i64 index, const Access &side) {
  return TransferAwaiter{{site, where, side, island, *current_strand()}, channel, index, true};
}
inline TransferAwaiter get(Island &island, const Where &where, Site site, Channel &channel, i64 index, const Access &side,
                           Cargo *loan = nullptr) {
  return TransferAwaiter{{.site = site, .where = where, .side = side, .island = island, .strand = *current_strand(), .loan = loan},
                         channel, index, false};
}

// ---- sequencers ----

using Written = std::initializer_list<Use>;

template <class Body>
class RunTask final : public Task {
 public:
  RunTask(Island &island, Body body) : Task(island), body_(body) {}
  void start() override {
    {
      const As as(strand);
      body_();
    }
    finish();
  }

 private:
  Body body_;
};

class Sequencer {
 public:
  Sequencer(Island &island, Where where) : island_(island), where_(where), strand_(*current_strand()) {}
  Sequencer(const Sequencer &) = delete;
  ~Sequencer();

  Arena arena;  // the buffers of the body

  // A piece of work that does not suspend.
  template <class Body>
  Token run(Site site, After after, std::initializer_list<Use> uses, Body body) {
    return work(site, after, uses, body, Engine::kNone);
  }

  Token copy(Site site, After after, const Access &dst, const Access &src) {
    return work(site, after, {use(dst, true), use(src, false)}, [=] { dma(site, dst, src); }, Engine::kTransfer);
  }

  // A segment or herd, of `count` points.
  template <class Make>
  Token spawn(Site site, After after, std::initializer_list<Use> uses, const Ports *ports, i64 count, Make make) {
    return issue(new SpawnOf<Make>(island_, site, ports, count, make), site, after, uses, Engine::kCores);
  }

  Token put(Site site, After after, Channel &channel, i64 index, const Access &side) {
    return transfer(site, after, channel, index, side, true);
  }
  Token get(Site site, After after, Channel &channel, i64 index, const Access &side) {
    return transfer(site, after, channel, index, side, false);
  }
  // Of a buffer that passes blocks on.
  Token put(Site site, After after, Channel &channel, i64 index, const Access &side, Relay *relay) {
    return transfer(site, after, channel, index, side, true, relay);
  }
  Token get(Site site, After after, Channel &channel, i64 index, const Access &side, Relay *relay) {
    return transfer(site, after, channel, index, side, false, relay);
  }
  // A put of a launch that writes no memory from outside but this.
  Token put(Site site, After after, Channel &channel, i64 index, Access side, Written written) {
    side.stays = true;
    for (const Use &use : written) side.stays = side.stays && (side.high <= use.low || use.high <= side.low);
    return transfer(site, after, channel, index, side, true);
  }

  // Gives a buffer back when everything issued before that uses it is done, with or without a token: on the device,
  // buffers stay where they are, and the compiler does not let the last use hold the deallocation back.
  template <class Pointer>
  void dealloc(Site site, Pointer data, i64 extent) {
    const auto give_back = [this, site, data] { arena.dealloc(site, data); };
    auto *const task = new RunTask<decltype(give_back)>(island_, give_back);
    task->is_release = true;
    issue(task, site, blocking(Token()), {writes(data, extent)}, Engine::kNone);
  }

  // Everything issued between the two waits for `after`; the token is done when all of it is.
  void open_group(const Token &after);
  Token close_group();

  // Suspends the body itself until a token, or everything in conflict with `uses`, or everything, is done.
  struct Awaiter {
    Strand &strand;
    Token until;
    bool is_end;
    bool await_ready() const { return !until.unfinished(); }
    void await_suspend(Process::Handle handle);
    void await_resume() const {
      if (until.task()) strand.learn(until.task()->strand);
    }
  };
  Awaiter wait(const Token &token) { return Awaiter{strand_, token, false}; }
  Awaiter settle(std::initializer_list<Use> uses);
  Awaiter drain();

 private:
  struct Claim {
    Task *task;
    Use use;
  };
  struct End {  // the last operation on one end of a channel
    const Channel *channel;
    i64 index;
    bool is_put;
    Task *task;
  };
  struct Group {
    Token *after;
    int first_member;
    const Lineage *lineage;
  };

  template <class Body>
  Token work(Site site, After after, std::initializer_list<Use> uses, Body body, Engine engine) {
    if (!kChecks && !held_back(after.token, uses)) {
      island_.take_turn();
      body();
      return Token();
    }
    return issue(new RunTask<Body>(island_, body), site, after, uses, engine);
  }
  const Lineage *around() { return groups_.size() ? groups_[groups_.size() - 1].lineage : strand_.lineage; }
  bool held_back(const Token &after, std::initializer_list<Use> uses);
  Token issue(Task *task, Site site, After after, std::initializer_list<Use> uses, Engine engine);
  void await_tokens(Task &task, const Token &after);
  Token transfer(Site site, After after, Channel &channel, i64 index, const Access &side, bool is_put,
                 Relay *relay = nullptr);
  void await_conflicts(Task &task, std::initializer_list<Use> uses);
  Awaiter awaiter(Task *joined, bool is_end);
  void sweep();

  Island &island_;
  Where where_;
  Strand &strand_;        // of the body itself
  Strand ended_;          // what the forgotten tasks did
  List<Claim> claims_;    // what unfinished tasks touch
  Use written_{};         // around all that any task so far writes
  List<Task *> tasks_;    // unfinished tasks
  List<End> ends_;
  List<Group> groups_;
  List<Task *> members_;  // of the open groups
  int swept_ = 0;
  uint32_t body_ = new_body(), issued_ = 0;
};

}  // namespace vnpu
