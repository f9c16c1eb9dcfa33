// The happens-before order of a program's operations, for finding data races.
//
// Everything that runs in program order is a Strand: a tile, the body of a launch or segment, one asynchronous operation. Its
// clock has, for each chain of strands, how much of that chain is known to have happened before: through tokens, blocks taken
// from a channel, the start and the end of a herd, and program order. Two accesses are ordered if the later one's clock knows
// the earlier one. In builds without checks a Strand is empty and costs nothing.
#pragma once

#include <initializer_list>

#include "vnpu/memory.h"
#include "vnpu/order_hooks.h"
#include "vnpu/record.h"

namespace vnpu {

// The bytes that an operation touches.
struct Use {
  const char *low, *high;
  bool writes;
#if VNPU_CHECKS
  Buffer *buffer = nullptr;
#endif
};

// Whether nothing that one of the uses writes is in another one.
inline bool are_apart(std::initializer_list<Use> uses) {
  for (const Use &one : uses) {
    for (const Use &other : uses) {
      if (one.writes && &one != &other && one.low < other.high && other.low < one.high) return false;
    }
  }
  return true;
}

// Which engine executes an operation of a launch or segment on the device, for its locks. mlir-air's air-to-aie puts locks
// around every transfer from and to a buffer in L1 or L2, in program order. The cores of a herd run in program order too, and
// lock what they share with another herd (AIRToAIESchedulingUtils.cpp, getLockForDMA; AIRToAIEPass.cpp,
// allocateSharedL1BufferLocks). The operations of a function itself are the host's, which waits for launches by their tokens
// only.
enum class Engine : uint8_t { kNone, kTransfer, kCores, kHost };

// An operation in the body that issued it: the body, its number there, whether it has a token, and what executes it.
struct IssueOrder {
  const IssueOrder *around;
  uint32_t body, issue;
  bool is_async;
  Engine engine;
  int depth;
};

#if VNPU_CHECKS

// For each chain, the time that is known to have been reached. Copies share their memory until one of them changes.
class Clock {
 public:
  Clock() = default;
  Clock(const Clock &other) { share(other); }
  Clock &operator=(const Clock &other) {
    share(other);
    return *this;
  }
  ~Clock() { clear(); }
  uint32_t at(uint32_t chain) const { return times_ && chain < times_->size ? times_->at[chain] : 0; }
  void set(uint32_t chain, uint32_t time);
  void join(const Clock &other);
  void clear() {
    if (times_ && --times_->holders == 0) __builtin_free(times_);
    times_ = nullptr;
  }

 private:
  struct Times {
    int holders;
    uint32_t size;
    uint32_t at[1];
  };
  void share(const Clock &other) {
    if (other.times_) ++other.times_->holders;
    clear();
    times_ = other.times_;
  }
  void own(uint32_t size);
  Times *times_ = nullptr;
};

// A copy of a clock at one moment.
class ClockSnapshot {
 public:
  ClockSnapshot() = default;
  explicit ClockSnapshot(const Clock &clock) : clock_(clock) {}
  const Clock &clock() const { return clock_; }

 private:
  Clock clock_;
};

// The chains of a task loop. The strands of a chain run one after the other, as far as possible.
class StrandChains {
 public:
  StrandChains() = default;
  StrandChains(const StrandChains &) = delete;
  ~StrandChains();
  // Gives the chain for number `flat` of what `site` starts after chain `before`: one whose last strand `clock` knows.
  uint32_t choose(uint32_t before, Site site, i64 flat, const Clock &clock);
  uint32_t advance(uint32_t chain) { return ++times_[chain]; }

 private:
  // If more strands than this run at once, they share chains. Races among those go unseen, and a note says so.
  static constexpr int kSiblings = 8;
  struct Family {
    uint32_t before;
    Site site;
    i64 flat;
    int size;
    i64 merged;  // strands that had to share a chain with running ones
    uint32_t chains[kSiblings];
    Family *next;
  };
  static constexpr int kBuckets = 512;
  uint32_t add();
  Family *buckets_[kBuckets] = {};
  uint32_t *times_ = nullptr;
  uint32_t size_ = 0, capacity_ = 0;
};

struct Strand {
  uint32_t phase = 0;    // counts the launches that a function ran one after the other
  uint32_t task_loop = 0;   // counts launch points
  uint32_t process = 0;  // the tile or body it belongs to
  uint32_t chain = 0, time = 0;
  StrandChains *chains = nullptr;
  const IssueOrder *lineage = nullptr;
  const ExecutionPlace *where = nullptr;
  bool is_fork = false;   // an asynchronous operation
  bool is_task = false;   // that a sequencer issued
  const Strand *outer = nullptr;  // what runs the launch that it is in, in another task loop
  bool covers = false;    // its own buffers' accesses were all recorded at its start, so that single accesses need no record
  Clock clock;
  Clock forked;  // what its asynchronous operations did, whether it waited for them or not
  struct Origin {
    uint32_t chain;
    Site site;
    i64 flat;
  } origin{};

  // Starts as number `flat` of what `site` starts in `before`.
  void begin(const Strand &before, Site site, i64 flat, const IssueOrder *lineage);
  // Starts to run. It knows what it waited for by now.
  void start();
  // The same for an operation that runs concurrently with its body.
  void begin_task(const Strand &body, Site site, const IssueOrder *own) {
    begin(body, site, 0, own);
    is_fork = is_task = true;
  }
  // Starts the body of a launch point or of a function, with a task loop of its own.
  // outer: what runs the launch.
  void start_task_loop(StrandChains &chains, const ExecutionPlace *where, const Strand *outer);
  // Becomes the strand of a tile or body.
  void enter(const ExecutionPlace *where);
  void learn(const Strand &other) { clock.join(other.clock); }
  // Learns everything that a finished strand did.
  void learn_all(const Strand &other) {
    clock.join(other.clock);
    clock.join(other.forked);
  }
  void learn(const ClockSnapshot &mark) { clock.join(mark.clock()); }
  // A snapshot of what the strand did so far, for others to learn. Its later operations are not part of it.
  ClockSnapshot publish();
};

// The strand that this thread executes.
extern thread_local Strand **strand_slot;
inline Strand *current_strand() { return strand_slot ? *strand_slot : nullptr; }

// Sets what a thread executes.
class Executing {
 public:
  Executing() : outer_(strand_slot) { strand_slot = &idle_; }
  Executing(const Executing &) = delete;
  ~Executing() { strand_slot = outer_; }
  void process(Strand *&current) { strand_slot = &current; }
  void task() { strand_slot = &idle_; }

 private:
  Strand *idle_ = nullptr;
  Strand **outer_;
};

// Executes as another strand during its lifetime.
class StrandScope {
 public:
  explicit StrandScope(Strand &strand) : outer_(*strand_slot) { *strand_slot = &strand; }
  StrandScope(const StrandScope &) = delete;
  ~StrandScope() { *strand_slot = outer_; }

 private:
  Strand *outer_;
};

// The strand of a tile's asynchronous operation. It executes at its place in the text, but only its dependencies order it.
class AsyncStrand {
 public:
  template <class... Marks>
  explicit AsyncStrand(Site site, const Marks &...after) {
    begin(site);
    (strand_.learn(after), ...);
    strand_.start();
  }
  AsyncStrand(const AsyncStrand &) = delete;
  // Records all of its accesses to the buffers of its tile at once. Of a buffer that tiles share, it may touch its own tile's
  // part only, so there each access is recorded by itself.
  void covers(Site site, std::initializer_list<Use> uses);
  ClockSnapshot end();

 private:
  void begin(Site site);
  Strand strand_;
  Strand *outer_ = nullptr;
};

// A tile waits for asynchronous operations.
template <class... Marks>
inline void await(const Marks &...marks) {
  (current_strand()->learn(marks), ...);
}
template <class... Marks>
inline ClockSnapshot all_marks(const Marks &...marks) {
  Clock clock;
  (clock.join(marks.clock()), ...);
  return ClockSnapshot(clock);
}

const IssueOrder *new_lineage(const IssueOrder *around, uint32_t body, uint32_t issue, bool is_async,
                              Engine engine = Engine::kNone);
uint32_t new_body();

// Whether a body runs the later of two of its conflicting operations after the earlier one by itself. It does so unless both
// are asynchronous: then only tokens count.
bool holds_back(const IssueOrder *earlier, const IssueOrder *later);

// Whether locks run them in program order where they touch one buffer that has locks: locks separate a read from a write, and
// all operations of cores, but not two transfers that write the same bytes.
bool ordered_by_locks(const IssueOrder *earlier, bool earlier_writes, const IssueOrder *later, bool later_writes);

// Records an access, and what makes it. Fails if it is not ordered after an earlier access and one of the two is a write.
void observe(Site site, const Access &side, bool writes, Strand &strand, Engine by = Engine::kCores);
void observe(Site site, const Use &use, Strand &strand);

// begin_order: a run starts; earlier records are dropped, and up to `max_events` accesses are recorded. `traced`: an element of
// an argument, or null. end: the run has ended; accesses without a record become a note. take_writer: what wrote the traced
// element last, malloc'ed, or null. A function continues after everything before has ended.
void begin_order(bool races_are_notes, i64 max_events, const char *traced);
void end_order();
char *take_writer();
void next_phase();

// A get executes; the block is from this put.
class FromPut {
 public:
  FromPut(Site site, const ExecutionPlace &where) : site(site), where(where), outer_(current) { current = this; }
  FromPut(const FromPut &) = delete;
  ~FromPut() { current = outer_; }
  const Site site;
  const ExecutionPlace &where;
  static constinit thread_local const FromPut *current;

 private:
  const FromPut *const outer_;
};

#else

struct ClockSnapshot {};

class StrandChains {};

struct Strand {
  static constexpr const IssueOrder *lineage = nullptr;
  void begin(const Strand &, Site, i64, const IssueOrder *) {}
  void start() {}
  void begin_task(const Strand &, Site, const IssueOrder *) {}
  void start_task_loop(StrandChains &, const ExecutionPlace *, const Strand *) {}
  void enter(const ExecutionPlace *) {}
  void learn(const Strand &) {}
  void learn_all(const Strand &) {}
  void learn(const ClockSnapshot &) {}
  ClockSnapshot publish() { return {}; }
};

inline Strand *current_strand() {
  static Strand none;
  return &none;
}
struct Executing {
  Executing() {}
  ~Executing() {}
  void process(Strand *&) {}
  void task() {}
};
struct StrandScope {
  explicit StrandScope(Strand &) {}
  ~StrandScope() {}
};

inline const IssueOrder *new_lineage(const IssueOrder *, uint32_t, uint32_t, bool, Engine = Engine::kNone) { return nullptr; }
inline uint32_t new_body() { return 0; }
inline bool holds_back(const IssueOrder *, const IssueOrder *) { return true; }
inline void observe(Site, const Access &, bool, Strand &, Engine = Engine::kCores) {}
inline void observe(Site, const Use &, Strand &) {}
inline void next_phase() {}
inline void begin_order(bool, i64, const char *) {}
inline void end_order() {}
inline char *take_writer() { return nullptr; }
struct FromPut {
  FromPut(Site, const ExecutionPlace &) {}
  ~FromPut() {}
};

#endif

// ---- what an operation touches ----

template <class T>
inline Use use(T *data, i64 extent, bool writes) {
  return Use{reinterpret_cast<const char *>(data), reinterpret_cast<const char *>(data + extent), writes};
}
#if VNPU_CHECKS
template <class T>
inline Use use(Ptr<T> data, i64 extent, bool writes) {
  Use found = use(data.p, extent, writes);
  found.buffer = data.buffer;
  return found;
}
#endif
inline Use use(const Access &side, bool writes) {
  Use found{side.low, side.high, writes};
#if VNPU_CHECKS
  found.buffer = side.buffer;
#endif
  return found;
}
template <class Pointer>
inline Use reads(Pointer data, i64 extent) {
  return use(data, extent, false);
}
template <class Pointer>
inline Use writes(Pointer data, i64 extent) {
  return use(data, extent, true);
}

// A transfer that its own strand executes.
inline void dma(Site site, const Access &dst, const Access &src) {
#if VNPU_CHECKS
  observe(site, src, false, *current_strand(), Engine::kTransfer);
  observe(site, dst, true, *current_strand(), Engine::kTransfer);
  if (record::on()) record::copied(site, dst, src);
#endif
  copy(site, dst, src);
}

}  // namespace vnpu
