// Scalars, errors and small helpers that every generated program uses.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(VNPU_ROUND_FLOOR)
#include "aie_api/host/modes.hpp"
#endif

#define VNPU_INLINE __attribute__((always_inline)) inline
// A body that only issues operations: it runs once for each point of a launch, and takes half as long to compile for size.
#define VNPU_ISSUES_ONLY __attribute__((cold))

namespace vnpu {

using i64 = int64_t;

#if VNPU_CHECKS
inline constexpr bool kChecks = true;
#else
inline constexpr bool kChecks = false;
#endif

// Storage formats. Arithmetic never happens in them: values are widened to float and rounded once.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

template <class To, class From>
VNPU_INLINE To bit_cast(const From &from) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

VNPU_INLINE float widen(float x) { return x; }
VNPU_INLINE float widen(bf16 x) { return bit_cast<float>(uint32_t(x.bits) << 16); }

// Rounds to nearest, ties to even; or by the core's mode register, in builds that follow it. A NaN stays a (quiet) NaN.
VNPU_INLINE bf16 round_bf16(float x) {
#if defined(VNPU_ROUND_FLOOR)
  return bf16{aie::host::round_bf16(x, aie::host::modes.rounding)};
#endif
  const uint32_t u = bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return bf16{uint16_t((u >> 16) | 0x40u)};
  return bf16{uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

VNPU_INLINE float widen(f16 h) {
  const uint32_t sign = uint32_t(h.bits & 0x8000u) << 16, magnitude = h.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  // 2^112 moves the exponent from half's bias to float's; it also normalises subnormals exactly.
  const float scaled = bit_cast<float>(magnitude << 13) * 0x1p112f;
  return bit_cast<float>(sign | bit_cast<uint32_t>(scaled));
}

// Round to nearest, ties to even, with overflow to infinity and gradual underflow.
inline f16 round_f16(float x) {
  const uint32_t u = bit_cast<uint32_t>(x);
  const uint16_t sign = uint16_t((u >> 16) & 0x8000u);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return f16{uint16_t(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
  if (magnitude >= 0x477ff000u) return f16{uint16_t(sign | 0x7c00u)};
  if (magnitude < 0x38800000u) {
    // Below the smallest normal half: adding 0.5 leaves the subnormal bits, correctly rounded, at the bottom.
    const float shifted = bit_cast<float>(magnitude) + 0.5f;
    return f16{uint16_t(sign | (bit_cast<uint32_t>(shifted) - 0x3f000000u))};
  }
  const uint32_t rebased = magnitude - 0x38000000u;
  return f16{uint16_t(sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13))};
}

template <class T>
struct RoundTo {
  static VNPU_INLINE T from(float x) { return T(x); }
};
template <>
struct RoundTo<bf16> {
  static VNPU_INLINE bf16 from(float x) { return round_bf16(x); }
};
template <>
struct RoundTo<f16> {
  static VNPU_INLINE f16 from(float x) { return round_f16(x); }
};

// Whether a type is computed in float and stored narrower.
template <class T>
inline constexpr bool is_narrow_float = false;
template <>
inline constexpr bool is_narrow_float<bf16> = true;
template <>
inline constexpr bool is_narrow_float<f16> = true;

// Divisions of affine expressions; the divisor is positive.
VNPU_INLINE i64 floor_div(i64 a, i64 b) { return a / b - (a % b < 0); }
VNPU_INLINE i64 ceil_div(i64 a, i64 b) { return a / b + (a % b > 0); }
VNPU_INLINE i64 floor_mod(i64 a, i64 b) { return a % b + (a % b < 0 ? b : 0); }

inline i64 gcd(i64 a, i64 b) {
  while (b) {
    const i64 r = a % b;
    a = b;
    b = r;
  }
  return a;
}

// The place of an operation in the program: its name as printed in messages, and its line in the MLIR text.
struct Site {
  const char *op;
  int line;
};

// A token in a body that runs in program order: always done.
struct DoneToken {};

// A put or get in the text of a body, and its indices as functions of the executing tile's coordinates.
struct Port {
  static constexpr int kMaxRank = 4;
  struct Index {
    bool is_fixed;             // the same everywhere
    i64 (*at)(i64 x, i64 y);   // null: not known
  };
  const char *channel;
  int line;
  bool is_put;
  Index indices[kMaxRank];
};
struct Ports {
  const Port *list;
  int count;
};

// What executes: `herd @h`, the coordinates in its grid (dims: how many of them are used), the body around it, and the puts and
// gets that it may still reach.
struct ExecutionPlace {
  const char *name;
  int dims;
  i64 x, y;
  const ExecutionPlace *around = nullptr;
  const Ports *ports = nullptr;
  int line = 0;  // of the operation whose body it is
};

// The place that this thread executes, for messages; null outside of launches, segments and herds.
extern constinit thread_local const ExecutionPlace *here;

// Marks the start and the end of a body in a recorded run (record.h).
int begin_body(const ExecutionPlace &where);
void end_body(int number);

// Sets `here` during its lifetime.
class CurrentTile {
 public:
  explicit CurrentTile(const ExecutionPlace &where) : where_(where), outer_(here) {
    where_.around = outer_;
    here = &where_;
#if VNPU_CHECKS
    body_ = begin_body(where_);
#endif
  }
  CurrentTile(const CurrentTile &) = delete;
  ~CurrentTile() {
#if VNPU_CHECKS
    end_body(body_);
#endif
    here = outer_;
  }

 private:
  ExecutionPlace where_;
  const ExecutionPlace *outer_;
#if VNPU_CHECKS
  int body_;
#endif
};

// Writes ` in herd @h (1, 0)` for the innermost place, and the launch point around it. Returns the number of characters.
int describe(const ExecutionPlace *where, char *text, int capacity);

// Thrown when the run cannot continue. Its text and status become the entry's result.
struct Failure {
  enum Kind {
    kError = 1,
    kDeadlock,
    kRace,
    kUninitialised,
    kOutside,
    kFreed,
    kMismatch,
    kLeak,
    kMisaligned,
    kLock,
    kOffset,
    kStopped,
    kStopPoint  // the run reached a place where it shall stop
  };
  Kind kind;
  char text[8000];
  bool is_stop = false;  // the run is stopped from outside, or by a time limit: the text shall say where everything stands
};

class TaskLoop;

// The innermost task loop that this thread runs, and what adds to the text of a run that is stopped where it stands.
struct Standing {
  TaskLoop *loop = nullptr;
  void (*add)(TaskLoop &, Failure &) = nullptr;
};
extern constinit thread_local Standing standing;

// Ends the run with a message; the caller of the entry gets it as text.
[[noreturn]] void fail(Site site, const char *format, ...) __attribute__((format(printf, 2, 3)));
// The same where the text shall say where everything stands.
[[noreturn]] void fail_stopped(Failure::Kind kind, Site site, const char *format, ...) __attribute__((format(printf, 3, 4)));
[[noreturn]] void fail_as(Failure::Kind kind, Site site, const char *format, ...) __attribute__((format(printf, 3, 4)));

// One call of a recursive function. The host's stack is limited, and a core's is much smaller.
class RecursionGuard {
 public:
  explicit RecursionGuard(Site site) {
    if (++depth_ <= kMaxDepth) return;
    --depth_;
    fail(site, "calls itself more than %d deep: the stack of a core has 1024 bytes unless --stack-size is larger; write a loop",
         kMaxDepth);
  }
  RecursionGuard(const RecursionGuard &) = delete;
  ~RecursionGuard() { --depth_; }

 private:
  static constexpr int kMaxDepth = 1000;
  static inline constinit thread_local int depth_ = 0;
};

// Throws if a signal has stopped the run. The calling thread also checks for signals from time to time. Called before any work
// that may take longer than this call does, about 50 ns.
void check_running();

// The seed of this run: 0 executes in program order; other seeds choose other legal orders at random.
extern uint64_t run_seed;

// How many threads a parallel loop would run on if it began here.
int parallel_threads();

// Calls body(i) for i in [0, count). Several threads share the work, unless the caller already runs in such a loop.
void parallel_for(i64 count, void (*body)(void *, i64), void *context);

template <class Body>
inline void parallel(i64 count, Body body) {
  parallel_for(count, [](void *context, i64 i) { (*static_cast<Body *>(context))(i); }, &body);
}

// Some neighbouring trips of a tile's loop.
struct Trips {
  i64 first, end;
};

// Tiles of which each has a loop of `trips` independent trips. `grain` trips take longer than handing them to a thread.
struct DividedTiles {
  i64 count, trips, grain;
};

// Calls body(tile, trips) until each trip of each tile was in one call. Threads take many trips at first and few at the end, so
// that a slower thread takes fewer. On one thread, and where trips are not `apart`, each tile is one call.
void parallel_trips(const DividedTiles &tiles, bool apart, void (*body)(void *, i64, Trips), void *context);

template <class Body>
inline void parallel_trips(const DividedTiles &tiles, bool apart, Body body) {
  const auto call = [](void *context, i64 tile, Trips trips) { (*static_cast<Body *>(context))(tile, trips); };
  parallel_trips(tiles, apart, call, &body);
}

// Memory of one body. Blocks are 64-byte aligned, come from a pool of the thread, and return to it when the body ends, or
// earlier when the program deallocates them. No other pointer leads into an allocated block, and compilers may rely on it: a
// sum in a buffer then stays in registers during a loop.
__attribute__((malloc)) void *pool_allocate(i64 bytes, Site site = Site{"memref.alloc", 0});
void pool_free(void *block);

class Blocks {
 public:
  Blocks() = default;
  Blocks(const Blocks &) = delete;
  Blocks &operator=(const Blocks &) = delete;
  ~Blocks() {
    while (last_) {
      Header *header = last_;
      last_ = header->previous;
      pool_free(header);
    }
  }
  template <class T>
  T *alloc(i64 count, Site site = Site{"memref.alloc", 0}) {
    Header *header = static_cast<Header *>(pool_allocate(kHeader + count * i64(sizeof(T)), site));
    header->previous = last_;
    header->next = nullptr;
    if (last_) last_->next = header;
    last_ = header;
    return reinterpret_cast<T *>(reinterpret_cast<char *>(header) + kHeader);
  }
  void dealloc(Site, void *data) {
    Header *header = reinterpret_cast<Header *>(static_cast<char *>(data) - kHeader);
    if (header->next) header->next->previous = header->previous;
    else last_ = header->previous;
    if (header->previous) header->previous->next = header->next;
    pool_free(header);
  }

 private:
  struct Header {
    Header *previous, *next;
  };
  static constexpr i64 kHeader = 64;
  Header *last_ = nullptr;
};

// Fills a core's buffer with zeros, as it starts on the device. counts_as_written: whether the zeros count as written.
template <class T>
inline void clear(T *data, i64 count, bool) {
  memset(static_cast<void *>(data), 0, size_t(count) * sizeof(T));
}

// A pointer with a reference count, for one thread; the last copy deletes the object. T has the count, `holders`, initially 1.
template <class T>
class SharedPtr {
 public:
  SharedPtr() = default;
  explicit SharedPtr(T *item) : item_(item) {}
  SharedPtr(const SharedPtr &other) : item_(other.item_) {
    if (item_) ++item_->holders;
  }
  SharedPtr &operator=(SharedPtr other) {
    T *const own = item_;
    item_ = other.item_;
    other.item_ = own;
    return *this;
  }
  ~SharedPtr() {
    if (item_ && --item_->holders == 0) delete item_;
  }
  explicit operator bool() const { return item_; }
  T &operator*() const { return *item_; }
  T *get() const { return item_; }

 private:
  T *item_ = nullptr;
};

#if !VNPU_CHECKS
using Arena = Blocks;  // with checks, vnpu/check.h has another one
#endif

}  // namespace vnpu
