// What happened before what: the partial order of a program's operations, for finding data races.
//
// Everything that runs in program order is a Strand: a tile, the body of a launch or segment, one asynchronous
// operation. Its clock tells, per chain of strands, how far that chain is known to have come: through tokens,
// through blocks taken from a channel, through the begin and the end of a herd, through program order. Two
// accesses are ordered when the later one's clock knows the earlier one. In builds without checks a Strand is
// empty and costs nothing.
#pragma once

#include "vnpu/memory.h"
#include "vnpu/watch.h"

namespace vnpu {

#if VNPU_CHECKS
inline constexpr bool kChecks = true;
#else
inline constexpr bool kChecks = false;
#endif

class Island;
struct Strand;

// An operation as the body that issued it knows it: which body, the how-manieth, and whether it has a token.
struct Lineage {
  const Lineage *around;
  uint32_t body, issue;
  bool is_async;
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
class Mark {
 public:
  Mark() = default;
  explicit Mark(const Clock &clock) : shared_(new Shared{clock, 1}) {}
  Mark(const Mark &other) : shared_(other.shared_) {
    if (shared_) ++shared_->holders;
  }
  Mark &operator=(Mark other) {
    Shared *const mine = shared_;
    shared_ = other.shared_;
    other.shared_ = mine;
    return *this;
  }
  ~Mark() {
    if (shared_ && --shared_->holders == 0) delete shared_;
  }
  const Clock *clock() const { return shared_ ? &shared_->clock : nullptr; }

 private:
  struct Shared {
    Clock clock;
    int holders;
  };
  Shared *shared_ = nullptr;
};

struct Strand {
  uint32_t phase = 0;    // counts what ran one after the other in a function: launches
  uint32_t island = 0;   // counts launch points
  uint32_t process = 0;  // the tile or body it belongs to
  uint32_t chain = 0, time = 0;
  const Lineage *lineage = nullptr;
  const Where *where = nullptr;
  bool is_fork = false;   // an asynchronous operation of a tile
  bool covers = false;    // has told what it touches, so that single accesses need not
  Clock clock;

  // Begins after `before`, as number `flat` of what `site` starts there.
  void begin(Island &island, const Strand &before, Site site, i64 flat, const Lineage *lineage);
  void begin_root(Island &island, const Where *where);
  void learn(const Strand &other) { clock.join(other.clock); }
  void learn(const Mark &mark) {
    if (mark.clock()) clock.join(*mark.clock());
  }
  // What it did so far, for another to learn; what it does next comes later.
  Mark publish();
};

// The strand that this thread executes.
extern thread_local Strand **strand_slot;
inline Strand *current_strand() { return strand_slot ? *strand_slot : nullptr; }

// Executes as another strand while it lives.
class As {
 public:
  explicit As(Strand &strand) : outer_(*strand_slot) { *strand_slot = &strand; }
  As(const As &) = delete;
  ~As() { *strand_slot = outer_; }

 private:
  Strand *outer_;
};

// The asynchronous operation of a tile. It runs where it stands, but is ordered only by what it depends on.
class Fork {
 public:
  template <class... Marks>
  explicit Fork(Site site, const Marks &...after) {
    begin(site);
    (strand_.learn(after), ...);
  }
  Fork(const Fork &) = delete;
  // What it touches, told once for all of its accesses.
  void covers(Site site, std::initializer_list<Use> uses);
  Mark end();

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
inline Mark all_marks(const Marks &...marks) {
  Clock clock;
  ((marks.clock() ? clock.join(*marks.clock()) : void()), ...);
  return Mark(clock);
}

const Lineage *new_lineage(const Lineage *around, uint32_t body, uint32_t issue, bool is_async);
uint32_t new_body();

// Whether a body puts the later of two of its operations behind the earlier one by itself, as it does for
// conflicting accesses unless both are asynchronous: then only tokens count.
bool holds_back(const Lineage *earlier, const Lineage *later);

// Records an access. Fails when an earlier one, of which one of the two is a write, is not ordered before it.
void observe(Site site, const Access &side, bool writes, Strand &strand);
void observe(Site site, const Use &use, Strand &strand);

// A run begins: forgets all of the last one. A function goes on after everything before has ended.
void begin_order();
void next_phase();

#else

struct Mark {};

struct Strand {
  static constexpr const Lineage *lineage = nullptr;
  void begin(Island &, const Strand &, Site, i64, const Lineage *) {}
  void begin_root(Island &, const Where *) {}
  void learn(const Strand &) {}
  void learn(const Mark &) {}
  Mark publish() { return {}; }
};

struct As {
  explicit As(Strand &) {}
  ~As() {}
};

inline const Lineage *new_lineage(const Lineage *, uint32_t, uint32_t, bool) { return nullptr; }
inline uint32_t new_body() { return 0; }
inline bool holds_back(const Lineage *, const Lineage *) { return true; }
inline void observe(Site, const Access &, bool, Strand &) {}
inline void next_phase() {}

#endif

}  // namespace vnpu
