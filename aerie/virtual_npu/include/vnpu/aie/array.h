// One loaded device: its locks, buffers, DMA channels, streams and cores, while they run.
//
// Words are four bytes. A stream holds few of them: what its receiver has not taken waits in a queue before the receiver, and
// what that has no room for waits at the sender. A packet holds the arbiters on its way from its header to its last word.
#pragma once

#include "vnpu/aie/fiber.h"
#include "vnpu/aie/silicon.h"
#include "vnpu/aie/tables.h"
#include "vnpu/aie/trace.h"
#include "vnpu/aie/watch.h"

namespace vnpu::aie {

class Array;
class Host;
class Source;
class Sink;

template <class T>
class Queue {
 public:
  bool empty() const { return head_ == items_.size(); }
  int size() const { return items_.size() - head_; }
  T &front() { return items_[head_]; }
  T &operator[](int i) { return items_[head_ + i]; }
  void push(const T &item) { items_.push(item); }
  T pop() {
    const T item = items_[head_++];
    if (head_ == items_.size()) {
      items_.shrink(0);
      head_ = 0;
    }
    return item;
  }
  void clear() {
    items_.shrink(0);
    head_ = 0;
  }

 private:
  mutable List<T> items_;
  int head_ = 0;
};

// Bytes in order: put at the end, taken from the begin.
class Bytes {
 public:
  i64 size() const { return end_ - begin_; }
  const char *data() const { return data_ + begin_; }
  void push(const char *from, i64 count);
  void drop(i64 count) {
    begin_ += count;
    if (begin_ == end_) begin_ = end_ = 0;
  }
  ~Bytes() {
    if (data_) pool_free(data_);
  }

 private:
  char *data_ = nullptr;
  i64 begin_ = 0, end_ = 0, capacity_ = 0;
};

// ---- locks ----

class Lock {
 public:
  void acquire_by(Actor &actor, int value, bool at_least);
  // Whether it can be taken at once; then it is.
  bool take(int value, bool at_least);
  void release(Site site, int value);
  void set(int value);

  // Notes a release by a core of credits that nobody had taken.
  void check_credits(Site site) const;

  Run *run = nullptr;
  const LockTable *table = nullptr;
  int value = 0, lane = -1;
  Lock *partner = nullptr;  // descriptors move credits between it and this one, and there are `credits` of them
  int credits = 0;
  int held = 0;  // by descriptors that run
  // An actor waits no more.
  void forget(const Actor &actor);

 private:
  void grant();
  List<Actor *> waiters_;
};

// ---- descriptors ----

// A descriptor, ready to run.
struct Bd {
  const BdTable *table;
  char *base;  // of its buffer
  i64 extent;  // bytes of its buffer
  int next = -1;  // in the same chain
  i64 uses = 0;  // for its iteration
};

// Where in memory the next byte of a transfer is.
class Cursor {
 public:
  void start(const Bd &bd);
  // The next bytes, as many as lie one after the other, at most `most`; null where they are zeros of the padding.
  i64 peek(i64 most, char **data);
  void advance(i64 bytes);
  i64 left = 0;  // bytes of the transfer
  bool has_begun() const { return left < all_; }

 private:
  void settle();
  char *base_ = nullptr;
  i64 all_ = 0;
  int depth_ = 0, element_ = 1;
  i64 run_ = 0, taken_ = 0;  // bytes that lie one after the other, and how many of these are taken
  bool is_padded_ = false;
  Dimension dims_[kMostDimensions] = {};
  i64 index_[kMostDimensions] = {};
};

// A task: a chain of descriptors, run `repeat` + 1 times.
class Task {
 public:
  static void *operator new(size_t bytes) { return pool_allocate(i64(bytes)); }
  static void operator delete(void *task) { pool_free(task); }
  Channel *channel = nullptr;
  List<Bd> *bds = nullptr;  // the array's, or its own
  List<Bd> own;
  List<BdTable *> tables;
  int first = 0;
  i64 repeat = 0;
  bool sends_token = false, is_done = false;
  ~Task() {
    for (int i = 0; i < tables.size(); ++i) pool_free(tables[i]);
  }
  // Adds a descriptor of the host's to the chain.
  void add(const BdTable &table, const void *base, i64 extent);
  // The last of its descriptors leads to this one again.
  void loop_to(int bd) { own[own.size() - 1].next = bd; }
};

// ---- streams ----

class Arbiter {
 public:
  const ArbiterTable *table = nullptr;
  Source *holder = nullptr;
  List<Source *> waiters;
  void wait(Source *source);
  // A sender holds it, or waits for it, no more; its last word has passed at a time.
  void leave(Source *source, i64 at);
  // Which of the waiters has it next.
  int next_waiter() const;
  int lane = -1;
  i64 free_at = 0;  // when the last word of the packet before has passed
};

// The receiving end of streams: an S2MM channel.
class Sink {
 public:
  i64 room() const;
  // late: cycles until the first of these words is here.
  void accept(const char *data, i64 bytes, i64 late);
  void reset();
  // Lets the senders go on.
  void changed();

  Channel *channel = nullptr;
  Bytes held;
  List<Source *> sources;
};

struct Route {
  const RouteTable *table;
  Arbiter **arbiters;
  Sink **sinks;
};

// The sending end of streams: an MM2S channel.
class Source final : public Runnable {
 public:
  void turn() override { pump(); }
  // Begins to send a descriptor; the channel is woken when it has been read.
  void send(const Packet &packet, i64 bytes);
  void pump();
  // Forgets what it sends, and leaves the arbiters that it holds.
  void reset();
  const Arbiter *blocking_arbiter() const;
  // By which port of the switch its packet comes to an arbiter of its way.
  int port_at(const Arbiter &arbiter) const;
  const Sink *blocking_sink() const;

  Channel *channel = nullptr;
  List<Route> routes;
  i64 read_ahead = 0;  // bytes
  const Route *crossing = nullptr;
  Bytes held;
  int lane = -1;
  // Tells the trace which arbiters its packet has.
  void note_arbiters();

 private:
  struct Segment {
    const Route *route;
    uint32_t header;
    i64 bytes;
    bool is_whole;  // the rest of the descriptor is here
  };
  const Route *route_of(const Packet &packet) const;
  bool enter(const Route &route, uint32_t header);
  void leave(const Route &route);
  bool enter_arbiters(const Route &route);
  void end_packet();
  void deliver(const Route &route, const char *data, i64 bytes, i64 late);
  i64 room(const Route &route) const;
  void move(const Route &route, i64 bytes);
  void read_on();

  Queue<Segment> segments_;
  const Route *reading_ = nullptr;
  uint32_t header_ = 0;
  bool has_header_ = false;
  i64 busy_until_ = 0;  // words are on their way until then
  enum { kNone, kHeld, kRead } ending_ = kNone;  // what ends then: the first of the segments, or the descriptor that is read
  List<i64> entered_;  // of each arbiter: when the header came to it; -1: it has not
};

// Writes how messages call a tile.
void name_place(char *text, int capacity, Place place);

// ---- channels ----

// What a tile answers to a control packet.
struct Answer {
  int id, words;
  uint32_t word[4];
};

// Takes control packets word by word.
class Control {
 public:
  void take(Channel &channel, uint32_t word);

 private:
  int address_ = 0, left_ = 0;  // words that the packet still writes
};

class Channel final : public Actor {
 public:
  using Actor::Actor;
  void describe(char *text, int capacity) const override;
  void start();
  // As a board's reset of a channel: what it does and has in its queue is forgotten, locks stay.
  void reset();
  bool is_port() const { return table->core != ChannelTable::kDma; }
  void put_word(uint32_t word);
  void answer(const Answer &answer);
  bool takes_control() const { return table->core == ChannelTable::kControl; }
  // Its token has come to the host.
  void add_token();
  // By which its tile's tokens go; null where the switches have none.
  const Route *token_route() const;
  bool is_shim() const { return table->place.row == 0; }

  Array *array = nullptr;
  const ChannelTable *table = nullptr;
  Source source;  // of an MM2S channel
  Sink sink;  // of an S2MM channel
  Queue<Task *> queue;
  Task *running = nullptr;
  const Bd *bd = nullptr;
  Cursor cursor;
  bool is_transferring = false;
  i64 tokens = 0, transferred = 0;
  i64 transfers = 0, bytes = 0;  // descriptors that are done, and what they moved
  List<Actor *> for_room, for_token;  // the host, when it waits
  Core *core = nullptr;  // whose own port it is
  Bytes words;  // that wait to be sent by a port
  Queue<Answer> answers;
  Control control;
  Channel *token_port = nullptr;  // of its tile, where the switches have a way for tokens
};

// ---- cores ----

class Cascade {
 public:
  static constexpr int kBytes = 64;
  struct Step {
    char bytes[kBytes];
  };
  const CascadeTable *table = nullptr;
  Queue<Step> steps;
  Core *from = nullptr, *to = nullptr;
};

class Core final : public Actor {
 public:
  using Actor::Actor;
  void turn() override;
  void describe(char *text, int capacity) const override;
  Lock &lock(int number) const;
  template <class T>
  T *buffer(int number) const {
    return reinterpret_cast<T *>(memory(number));
  }
  char *memory(int number) const;
  // Waits for a lock, as the operation in this line says.
  Await acquire(int lock, int value, bool at_least, int line);
  void release(int lock, int value, int line);
  Await to_put(int line);
  template <class T>
  void put(const T &value) {
    static_assert(sizeof(T) == Cascade::kBytes, "a step of the cascade has 512 bits");
    put_bytes(&value);
  }
  Await to_get(int line);
  template <class T>
  T get() {
    T value;
    get_bytes(&value);
    return value;
  }

  // The core's own ports of the switch: a word each.
  Await to_put_word(int channel, int line);
  void put_word(int channel, uint32_t word);
  Await to_get_word(int channel, int line);
  uint32_t get_word(int channel);
  // It computes for so many cycles.
  void spend(i64 cycles);
  // Holds it in reset; begin_again lets it begin.
  void halt();
  void begin_again();

  Array *array = nullptr;
  const CoreTable *table = nullptr;
  Cascade *in = nullptr, *out = nullptr;
  uint32_t modes = kFloor;
  bool is_endless = false;  // it was ended by the time limit
  bool is_halted = false;

 private:
  struct {
    Lock *lock = nullptr;
    int value = 0;
    bool at_least = true;
  } asks_;
  void put_bytes(const void *value);
  void get_bytes(void *value);
};

// ---- the whole ----

class Array {
 public:
  static void *operator new(size_t bytes) { return pool_allocate(i64(bytes)); }
  static void operator delete(void *array) { pool_free(array); }
  Array(Run &run, const DeviceTable &table);
  ~Array();
  // The port by which a tile sends tokens and answers; null where it has none.
  Channel *control_port(Place place);

  Run &run;
  const DeviceTable &table;
  List<char *> memory;
  List<Bd> bds;
  List<Lock *> locks;
  List<Channel *> channels;
  List<Arbiter *> arbiters;
  List<Core *> cores;
  List<Cascade *> cascades;

 private:
  void connect();
  void pair_locks();
  List<void *> blocks_;
  List<Task *> tasks_;
};

// The host, which executes the runtime sequence.
class Host final : public Actor {
 public:
  using Actor::Actor;
  ~Host() override;
  void describe(char *text, int capacity) const override;
  // Waits until nothing else can go on.
  Await rest(int line);
  // The host takes microseconds for what the array does in nanoseconds.
  Await pause(int line);
  // Loads a device; where it is the one that runs, nothing is done but `again`.
  void load(const DeviceTable &table, bool again = false);
  Task *task(int channel, i64 repeat, bool sends_token);
  Await room(Task *task, int line);
  void start(Task *task, int line);
  Await token(int channel, int line) { return token(*array->channels[channel], line); }
  Await token(Channel &channel, int line);
  void take_token(int channel) { take_token(*array->channels[channel]); }
  void take_token(Channel &channel) { --channel.tokens; }
  // Tasks as values of the sequence.
  i64 number_of(const Task *task);
  Task *task_of(i64 number);
  // Writes the bits of a word that a mask has.
  void write(int buffer, i64 index, int32_t value, uint32_t mask = ~0u);
  void set_lock(int lock, int value);
  // Copies words of the scratchpad; what cores and descriptors get of it is what it held then.
  void copy_scratchpad(int words);
  uint64_t scratchpad_word(int index, int line) const;
  // Adds to two words of a buffer as the firmware does to an address: 48 bits, of which the lowest two are cleared.
  void add(int buffer, i64 index, uint64_t delta);
  // A chain of the device's own descriptors, as a task.
  Task *chain(int channel, int bd, i64 repeat, bool sends_token);
  void reset(int channel);
  void halt_core(int core) { array->cores[core]->halt(); }
  void begin_core(int core) { array->cores[core]->begin_again(); }

  Array *array = nullptr;
  const uint32_t *scratchpad = nullptr;

 private:
  List<Task *> tasks_;
  uint32_t copied_[32] = {};
  int copied_words_ = 0;
};

class Run {
 public:
  Run() : host(*this), trace(tracing) {}
  Run(const Run &) = delete;
  ~Run() { forget_turns(); }
  // Runs a sequence to its end. A deadlock is a Failure.
  void execute(Fiber sequence);
  void ready(Runnable *runnable) { ready_at(runnable, time()); }
  // Gives it a turn at a time; an earlier one that it waits for stays.
  void ready_at(Runnable *runnable, i64 time);
  // Gives a turn in just this cycle to what is made for it.
  void at_time(Runnable *runnable);
  // The cycle in which whoever has a turn is.
  i64 time() const { return now_ + spent; }
  // No turn that was asked for comes.
  void forget_turns();

  i64 spent = 0;  // by the core that has a turn
  Host host;
  Actor *at_rest = nullptr;  // waits until nothing else has a turn
  Progress progress;
  Trace *const trace;  // null: nothing is recorded

 private:
  static constexpr uint32_t kPatience = 1 << 20;  // turns that the host waits for rest
  void take_turns();
  struct Event {
    i64 time;
    uint64_t order;
    Runnable *runnable;
    bool operator<(const Event &other) const { return time != other.time ? time < other.time : order < other.order; }
  };
  void push(Event event);
  Event pop();
  List<Event> events_;  // a heap
  uint64_t order_ = 0, random_ = 0;
  i64 now_ = 0;
};

// Fails the run where nothing can go on: who waits for whom.
[[noreturn]] void fail_hang(Run &run);
// Fails the run where cores alone go on, for so many seconds: where each one is.
[[noreturn]] void fail_endless(Run &run, i64 seconds);

}  // namespace vnpu::aie
