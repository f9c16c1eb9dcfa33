// What happened before what: the partial order of a program's operations, for finding data races.
//
// Everything that runs in program order is a Strand: a tile, the body of a launch or segment, one asynchronous
// operation. Its clock tells, per chain of strands, how far that chain is known to have come: through tokens,
// through blocks taken from a channel, through the begin and the end of a herd, through program order. Two
// accesses are ordered when the later one's clock knows the earlier one. In builds without checks a Strand is
// empty and costs nothing.
#pragma once

#include "vnpu/memory.h"
#include "vnpu/order_hooks.h"
#include "vnpu/record.h"

namespace vnpu {

// Bytes that an operation touches.
struct Use {
  const char *low, *high;
  bool writes;
#if VNPU_CHECKS
  Buffer *buffer = nullptr;
#endif
};

// What executes an operation of a launch or segment on the device, as far as its locks go: mlir-air's air-to-aie puts
// locks around every transfer from and to a buffer in L1 or L2, in program order; the cores of a herd are in program
// order too, and lock what they share with another herd (AIRToAIESchedulingUtils.cpp, getLockForDMA; AIRToAIEPass.cpp,
// allocateSharedL1BufferLocks).
// A function's own operations are the host's, which waits for launches by their tokens only.
enum class Engine : uint8_t { kNone, kTransfer, kCores, kHost };

// An operation as the body that issued it knows it: the body, how many that one issued before, whether it has a
// token, and what executes it.
struct IssueOrder {
  const IssueOrder *around;
  uint32_t body, issue;
  bool is_async;
  Engine engine;
  int depth;
};

#if VNPU_CHECKS

// The time that each chain is known to have reached.
class Clock {
 public:
  Clock() = default;
  Clock(const Clock &other) { join(other); }
  Clock &operator=(const Clock &) = delete;
  ~Clock() { __builtin_free(times_); }
  uint32_t at(uint32_t chain) const { return chain < size_ ? times_[chain] : 0; }
  void set(uint32_t chain, uint32_t time);
  void join(const Clock &other);
  void clear() { size_ = 0; }

 private:
  void grow(uint32_t size);
  uint32_t *times_ = nullptr;
  uint32_t size_ = 0, capacity_ = 0;
};

// A clock as it was at one moment, shared by all who hold it.
class ClockSnapshot {
 public:
  ClockSnapshot() = default;
  explicit ClockSnapshot(const Clock &clock) : shared_(new Shared{clock}) {}
  const Clock *clock() const { return shared_ ? &(*shared_).clock : nullptr; }

 private:
  struct Shared {
    Clock clock;
    int holders = 1;
  };
  SharedPtr<Shared> shared_;
};

// The chains of an island: strands of which each one begins after the one before has ended, as far as possible.
class StrandChains {
 public:
  StrandChains() = default;
  StrandChains(const StrandChains &) = delete;
  ~StrandChains();
  // A chain for number `flat` of what `site` starts after chain `before`: one whose last strand `clock` knows.
  uint32_t choose(uint32_t before, Site site, i64 flat, const Clock &clock);
  uint32_t advance(uint32_t chain) { return ++times_[chain]; }

 private:
  // Where more strands than this are under way at once, one chain takes several: races among them go unseen, and a
  // note says so.
  static constexpr int kSiblings = 8;
  struct Family {
    uint32_t before;
    Site site;
    i64 flat;
    int size;
    i64 merged;  // strands that had to share a chain with others under way
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
  uint32_t phase = 0;    // counts what ran one after the other in a function: launches
  uint32_t task_loop = 0;   // counts launch points
  uint32_t process = 0;  // the tile or body it belongs to
  uint32_t chain = 0, time = 0;
  StrandChains *chains = nullptr;
  const IssueOrder *lineage = nullptr;
  const ExecutionPlace *where = nullptr;
  bool is_fork = false;   // an asynchronous operation
  bool is_task = false;   // that a sequencer issued
  bool covers = false;    // has told what it touches of its tile's own buffers, so that single accesses need not
  Clock clock;
  Clock forked;  // what its asynchronous operations did, whether or not it waited for them
  struct Origin {
    uint32_t chain;
    Site site;
    i64 flat;
  } origin{};

  // Is made by `before`, as number `flat` of what `site` makes there.
  void begin(const Strand &before, Site site, i64 flat, const IssueOrder *lineage);
  // Starts: by now it has learned what it waited for.
  void start();
  // The same for an operation that runs beside the body that issues it.
  void begin_task(const Strand &body, Site site, const IssueOrder *own) {
    begin(body, site, 0, own);
    is_fork = is_task = true;
  }
  // Begins the body of a launch point, or of a function: an island of its own.
  void start_task_loop(StrandChains &chains, const ExecutionPlace *where);
  // Becomes the strand of a tile or body.
  void enter(const ExecutionPlace *where);
  void learn(const Strand &other) { clock.join(other.clock); }
  // Of one that has ended: all that it did.
  void learn_all(const Strand &other) {
    clock.join(other.clock);
    clock.join(other.forked);
  }
  void learn(const ClockSnapshot &mark) {
    if (mark.clock()) clock.join(*mark.clock());
  }
  // What it did so far, for another to learn; what it does next comes later.
  ClockSnapshot publish();
};

// The strand that this thread executes.
extern thread_local Strand **strand_slot;
inline Strand *current_strand() { return strand_slot ? *strand_slot : nullptr; }

// What a thread executes from now on.
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

// Executes as another strand while it lives.
class StrandScope {
 public:
  explicit StrandScope(Strand &strand) : outer_(*strand_slot) { *strand_slot = &strand; }
  StrandScope(const StrandScope &) = delete;
  ~StrandScope() { *strand_slot = outer_; }

 private:
  Strand *outer_;
};

// The asynchronous operation of a tile. It runs where it stands, but is ordered only by what it depends on.
class AsyncStrand {
 public:
  template <class... Marks>
  explicit AsyncStrand(Site site, const Marks &...after) {
    begin(site);
    (strand_.learn(after), ...);
    strand_.start();
  }
  AsyncStrand(const AsyncStrand &) = delete;
  // What it touches, told once for all of its accesses to the buffers of its tile. Of a buffer that tiles share, it
  // may touch the part of its own tile only, so there every access counts by itself.
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
  ((marks.clock() ? clock.join(*marks.clock()) : void()), ...);
  return ClockSnapshot(clock);
}

const IssueOrder *new_lineage(const IssueOrder *around, uint32_t body, uint32_t issue, bool is_async,
                              Engine engine = Engine::kNone);
uint32_t new_body();

// Whether a body puts the later of two of its operations behind the earlier one by itself, as it does for
// conflicting accesses unless both are asynchronous: then only tokens count.
bool holds_back(const IssueOrder *earlier, const IssueOrder *later);

// Whether locks put them in program order where they touch one buffer that has locks: a read and a write are kept
// apart, and so is all that cores do; two transfers that write the same bytes are not.
bool ordered_by_locks(const IssueOrder *earlier, bool earlier_writes, const IssueOrder *later, bool later_writes);

// Records an access. Fails when an earlier one, of which one of the two is a write, is not ordered before it.
void observe(Site site, const Access &side, bool writes, Strand &strand);
void observe(Site site, const Use &use, Strand &strand);

// A run begins: forgets all of the last one; `max_events` accesses are remembered from now on. It has ended: what was
// not checked becomes a note. A function goes on after everything before has ended.
void begin_order(bool races_are_notes, i64 max_events);
void end_order();
void next_phase();

#else

struct ClockSnapshot {};

class StrandChains {};

struct Strand {
  static constexpr const IssueOrder *lineage = nullptr;
  void begin(const Strand &, Site, i64, const IssueOrder *) {}
  void start() {}
  void begin_task(const Strand &, Site, const IssueOrder *) {}
  void start_task_loop(StrandChains &, const ExecutionPlace *) {}
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
inline void observe(Site, const Access &, bool, Strand &) {}
inline void observe(Site, const Use &, Strand &) {}
inline void next_phase() {}
inline void begin_order(bool, i64) {}
inline void end_order() {}

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

// A transfer that the one who executes it makes itself.
inline void dma(Site site, const Access &dst, const Access &src) {
#if VNPU_CHECKS
  observe(site, src, false, *current_strand());
  observe(site, dst, true, *current_strand());
  if (record::on()) record::copied(site, dst, src);
#endif
  copy(site, dst, src);
}

}  // namespace vnpu
