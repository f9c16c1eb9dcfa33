// Scalars, errors and small helpers that every generated program uses.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(VNPU_ROUND_FLOOR)
#include "aie_api/host/modes.hpp"
#endif

#define VNPU_INLINE __attribute__((always_inline)) inline

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

// Round to nearest, ties to even, or as the mode register of the core says where a build follows that; a NaN stays a
// (quiet) NaN.
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

// Where an op stands in the program: its name as printed in messages, and its line in the MLIR text.
struct Site {
  const char *op;
  int line;
};

// A token where operations run in program order: always done.
struct DoneToken {};

// A put or get in the text of a body; what its indices are, as far as the coordinates of who executes tell.
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

// Who executes: `herd @h`, where in its grid (dims counts the coordinates that mean something), in whose body, and
// which puts and gets it may come to.
struct ExecutionPlace {
  const char *name;
  int dims;
  i64 x, y;
  const ExecutionPlace *around = nullptr;
  const Ports *ports = nullptr;
  int line = 0;  // of the operation whose body it is
};

// What this thread is executing, for messages; null outside of launches, segments and herds.
extern constinit thread_local const ExecutionPlace *here;

// Of recorded runs (record.h): a body that runs from here to its end begins, and ends.
int begin_body(const ExecutionPlace &where);
void end_body(int number);

// Sets `here` as long as it lives.
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

// Writes ` in herd @h (1, 0)` for the innermost one, and the launch point around; gives the characters written.
int describe(const ExecutionPlace *where, char *text, int capacity);

// Thrown where the run cannot go on; ends as the text and the status of the entry.
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
    kStopped
  };
  Kind kind;
  char text[8000];
};

// Ends the run with a message; the caller of the entry gets it as text.
[[noreturn]] void fail(Site site, const char *format, ...) __attribute__((format(printf, 2, 3)));
[[noreturn]] void fail_as(Failure::Kind kind, Site site, const char *format, ...) __attribute__((format(printf, 3, 4)));

// A call of a function that calls itself. The stack of a thread ends somewhere, that of a core much earlier.
class RecursionGuard {
 public:
  explicit RecursionGuard(Site site) {
    if (++depth_ <= kMaxDepth) return;
    --depth_;
    fail(site, "calls itself more than %d deep: the stack of a core has 1024 bytes unless --stack-size says more; write a loop",
         kMaxDepth);
  }
  RecursionGuard(const RecursionGuard &) = delete;
  ~RecursionGuard() { --depth_; }

 private:
  static constexpr int kMaxDepth = 1000;
  static inline constinit thread_local int depth_ = 0;
};

// Goes on, unless a signal has ended the run: then it throws. The thread that the run was called from asks for signals
// every now and then. Wherever work begins that may take longer than this call does, some 50 ns.
void check_running();

// Of this run: 0 to execute in the order of the program; else other legal orders are drawn with it.
extern uint64_t run_seed;

// How many threads a parallel loop would run on if it began here.
int parallel_threads();

// Calls body(i) for i in [0, count). Several threads share the work, unless the caller is itself such work.
void parallel_for(i64 count, void (*body)(void *, i64), void *context);

template <class Body>
inline void parallel(i64 count, Body body) {
  parallel_for(count, [](void *context, i64 i) { (*static_cast<Body *>(context))(i); }, &body);
}

// Memory of one body. Blocks are 64-byte aligned, come from a pool of the thread, and go back to it
// when the body ends, or earlier when the program deallocates them. Nothing else points into a block that is
// taken, and compilers may know it: what a loop adds to a buffer then stays in registers until its end.
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

// Makes a buffer of a core zeros, which it holds at first; is_meant: as what counts as written, not as what nobody wrote.
template <class T>
inline void clear(T *data, i64 count, bool) {
  memset(static_cast<void *>(data), 0, size_t(count) * sizeof(T));
}

// A pointer to what all share who hold it, in one thread; the last of them deletes it. T has a count, `holders`, at first 1.
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
