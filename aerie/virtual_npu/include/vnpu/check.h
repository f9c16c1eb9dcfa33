// Buffers with a record of their use, in programs built with checks (VNPU_CHECKS).
//
//   Buffer   one allocation, global or argument of an entry: its name, which elements are written, what freed it
//   Ptr      a pointer into a buffer, in place of the plain pointer of fast builds
//   Arena    the buffers of one body; knows which of them were not freed
#pragma once

#include <initializer_list>

#include "vnpu/order_hooks.h"
#include "vnpu/stop.h"

namespace vnpu {

// The program's name of a buffer and its type, `%acc` and `memref<8x8xf32, 2>`, and where it is allocated.
struct BufferLabel {
  const char *name, *type;
  Site site;
  const char *how = "allocated";  // or `argument 2 of @gemm, declared`
  bool ends_with_body = false;    // needs no memref.dealloc
  bool has_locks = false;         // is in L1 or L2, where the device has locks
  bool is_l2 = false;
  int skew = -1;                  // in a core's L1: bytes behind a multiple of 64; -1 elsewhere, or not known
};

// `%acc (memref<8x8xf32, 2>, allocated at line 20)`.
struct BufferText {
  explicit BufferText(const BufferLabel &label);
  char text[400];
};

// The memref operand of an operation, for messages.
struct OperandPlace {
  Site site;
  const char *name, *type;
  const char *made = "";  // ` (allocated at line 20)`, where the text of the program tells
};

struct Buffer {
  static constexpr int kMaxRank = 8;

  // `written` has one byte per element, or is null for a buffer that had its contents before the run. `guard` bytes before and
  // behind the buffer must stay all ones.
  Buffer(const BufferLabel &label, void *base, int element, std::initializer_list<i64> sizes, i64 count, uint8_t *written,
         i64 guard = 0);
  Buffer(const Buffer &) = delete;
  ~Buffer() {
    if (cells) release_cells(*this);
    if (is_listed) unlist_buffer(*this);
  }

  bool holds(const void *low, const void *high) const {
    return low >= base && static_cast<const char *>(high) <= base + count * element;
  }
  // Whether every element is written.
  bool full() {
    const i64 hole = __atomic_load_n(&hole_, __ATOMIC_RELAXED);
    return hole == count || (written_[hole] && !find_hole());
  }
  // Whether every element in these bytes is written.
  bool written(const void *low, const void *high) {
    const i64 first = index(low), end = index(static_cast<const char *>(high) + element - 1);
    return end - first == 1 ? written_[first] : first_hole(low, high) < 0;
  }
  // Whether any element in these bytes is written.
  bool written_in_part(const void *low, const void *high) const;
  // The first element in these bytes that is not written; -1 if all are.
  i64 first_hole(const void *low, const void *high);
  // Marks all elements in these bytes as written.
  void mark(const void *low, const void *high) {
    const i64 first = index(low), end = index(static_cast<const char *>(high) + element - 1);
    if (end - first == 1) written_[first] = 1;
    else mark_run(first, end);
  }
  // Marks elements that are no longer all ones as written.
  void mark_changed(const char *low, const char *high);
  void mark_all() { __atomic_store_n(&hole_, count, __ATOMIC_RELAXED); }
  // One flag for each element from `from` on: whether it is written. Call `changes` before a copy that may change the flags.
  uint8_t *flags_from(const void *at, bool changes);
  bool has_flags() const { return written_; }
  // One byte for each element, null if all are written.
  const uint8_t *written_flags() const { return written_ && hole_ < count ? written_ : nullptr; }
  // Marks all elements as not written.
  void forget(Site by, const void *low, const void *high);
  i64 count_written() const;
  // Which guard bytes were overwritten.
  i64 count_strays() const;

  // Refuses access to a freed buffer, and bytes outside of the buffer.
  void check(Site site, const char *verb, const void *low, const void *high) const {
    if (__builtin_expect(freed.op || !holds(low, high), 0)) refuse(site, verb, low, high);
  }
  // Refuses to read elements that were never written.
  void check_written(Site site, const void *low, const void *high) {
    if (__builtin_expect(!full(), 0) && !written(low, high)) refuse_unwritten(site, low, high);
  }

  const BufferLabel &label;      // lives as long as the program
  const ExecutionPlace maker;       // the place that allocated it
  char *const base;
  const i64 count;         // elements
  const int element;       // bytes of one
  const i64 guard;         // bytes
  const int rank;
  i64 sizes[kMaxRank];
  Site freed{nullptr, 0};  // the operation that freed it
  Site ended{nullptr, 0};  // the operation in a loop that ended the life of its contents
  const uint32_t owner;    // the process that allocated it
  Cells *cells = nullptr;  // the records of the order checks
  Buffer *listed_before = nullptr, *listed_after = nullptr;  // for a run that stops (stop.h)
  bool is_listed = false;

 private:
  i64 index(const void *at) const { return (static_cast<const char *>(at) - base) >> shift_; }
  bool find_hole();
  void mark_run(i64 first, i64 end);
  [[noreturn]] void refuse(Site site, const char *verb, const void *low, const void *high) const;
  [[noreturn]] void refuse_unwritten(Site site, const void *low, const void *high);

  const int shift_;  // of bytes to elements
  uint8_t *const written_;
  i64 hole_;  // every element before this one is written
};

template <class T>
struct Ptr {
  T *p;
  Buffer *buffer;
  bool asks = true;  // at every access whether the order checks watch the buffer; else somebody asked for many
  VNPU_INLINE Ptr operator+(i64 n) const { return Ptr{p + n, buffer, asks}; }
};

template <class T>
VNPU_INLINE Ptr<T> all_of(Buffer &buffer) {
  return Ptr<T>{reinterpret_cast<T *>(buffer.base), &buffer};
}

// The same place as elements of another type.
template <class To, class From>
VNPU_INLINE Ptr<To> recast(Ptr<From> x) {
  return Ptr<To>{reinterpret_cast<To *>(x.p), x.buffer, x.asks};
}

// ---- accesses ----

// Refuse illegal reads and writes; report the others to the order checks.
VNPU_INLINE void observe_read(Site site, Buffer &buffer, const void *low, i64 bytes, bool asks = true) {
  const char *const high = static_cast<const char *>(low) + bytes;
  buffer.check(site, "reads", low, high);
  buffer.check_written(site, low, high);
  if (asks && watched(buffer)) touch(site, buffer, low, bytes, false);
}
VNPU_INLINE void observe_write(Site site, Buffer &buffer, const void *low, i64 bytes, bool asks = true) {
  const char *const high = static_cast<const char *>(low) + bytes;
  buffer.check(site, "writes", low, high);
  if (asks && watched(buffer)) touch(site, buffer, low, bytes, true);
  if (!buffer.full()) buffer.mark(low, high);
}

template <class T>
VNPU_INLINE T load(const OperandPlace &at, Ptr<T> x) {
  observe_read(at.site, *x.buffer, x.p, i64(sizeof(T)), x.asks);
  return *x.p;
}
template <class T>
VNPU_INLINE void store(const OperandPlace &at, Ptr<T> x, T value) {
  observe_write(at.site, *x.buffer, x.p, i64(sizeof(T)), x.asks);
  *x.p = value;
}
// Code with no possible finding runs on plain pointers.
template <class T>
VNPU_INLINE T load(const OperandPlace &, const T *x) {
  return *x;
}
template <class T>
VNPU_INLINE void store(const OperandPlace &, T *x, T value) {
  *x = value;
}

// Refuses a vector that is not aligned to its width: a core would ignore the low bits of its address.
[[noreturn]] void fail_misaligned(const OperandPlace &at, bool writes, const void *first, i64 bytes);

// The required alignment of a vector of so many bytes: its size, up to 64; 1 if the core has no such vector.
constexpr i64 alignment_of(i64 bytes) { return bytes == 16 || bytes == 32 ? bytes : bytes > 0 && bytes % 64 == 0 ? 64 : 1; }
VNPU_INLINE i64 misaligned_by(const void *first, i64 bytes) {
  return i64(reinterpret_cast<uintptr_t>(first)) & (alignment_of(bytes) - 1);
}

[[noreturn]] void fail_extent(const OperandPlace &at, int dimension, i64 size, i64 loops);
[[noreturn]] void fail_index(const OperandPlace &at, int dimension, i64 index, i64 lanes, i64 size);

// Refuses an index outside of [0, size).
VNPU_INLINE void within(const OperandPlace &at, i64 dimension, i64 index, i64 size) {
  if (__builtin_expect(uint64_t(index) >= uint64_t(size), 0)) fail_index(at, int(dimension), index, 1, size);
}
// The same for `lanes` elements from the index on.
VNPU_INLINE void within(const OperandPlace &at, i64 dimension, i64 index, i64 lanes, i64 size) {
  if (__builtin_expect(index < 0 || index + lanes > size, 0)) fail_index(at, int(dimension), index, lanes, size);
}
// Runs loops on plain pointers if their indices are known to be inside before they start.
template <class T, class... I>
VNPU_INLINE void within(Ptr<T>, const OperandPlace &at, I... numbers) {
  within(at, i64(numbers)...);
}
template <class T, class... I>
VNPU_INLINE void within(T *, const OperandPlace &, I...) {}
// Refuses a dimension whose extent differs from that of the loops over it.
VNPU_INLINE void same_extent(const OperandPlace &at, int dimension, i64 size, i64 loops) {
  if (__builtin_expect(size != loops, 0)) fail_extent(at, dimension, size, loops);
}
// Refuses a negative index where elements beyond the end are legal.
VNPU_INLINE void not_before(const OperandPlace &at, int dimension, i64 index, i64 size) {
  if (__builtin_expect(index < 0, 0)) fail_index(at, int(dimension), index, 1, size);
}

// ---- the buffers of a body ----

class Arena {
 public:
  Arena() = default;
  Arena(const Arena &) = delete;
  ~Arena();

  // `count` elements: a memref with these extents, or several of them, one after the other.
  template <class T>
  Ptr<T> alloc(const BufferLabel &label, std::initializer_list<i64> sizes, i64 count) {
    Buffer *const buffer = make(label, int(sizeof(T)), sizes, count);
    return Ptr<T>{reinterpret_cast<T *>(buffer->base), buffer};
  }
  template <class T>
  void dealloc(Site site, Ptr<T> x) {
    take_back(site, *x.buffer);
  }
  // At the end of the body: a buffer that was not freed becomes a note, or a leak if the operation allocates again and again.
  void close() const;

 private:
  struct Block;
  struct Chain {
    Block *first = nullptr, *last = nullptr;
    void add(Block *block);
    void remove(Block *block);
  };
  Buffer *make(const BufferLabel &label, int element, std::initializer_list<i64> sizes, i64 count);
  void take_back(Site site, Buffer &buffer);
  void drop(Chain &chain, Block *block);

  Chain live_;
  Chain freed_;  // kept for a while, so that a later use is found
  i64 freed_count_ = 0, freed_bytes_ = 0;
};

// A deallocation that stays in a loop although the compiler moved the allocation out of it.
template <class T>
inline void forget_contents(Site site, Ptr<T> x, i64 extent) {
  x.buffer->check(site, "frees", x.p, x.p);
  x.buffer->forget(site, x.p, x.p + extent);
}

// Fills a new buffer with zeros. Unless counts_as_written, they count as unwritten, and a NaN shows reads of them.
template <class T>
inline void clear(Ptr<T> x, i64, bool counts_as_written) {
  if (!counts_as_written) return;
  memset(static_cast<void *>(x.buffer->base), 0, size_t(x.buffer->count * x.buffer->element));
  x.buffer->mark_all();
}

// ---- findings that do not end a run ----

// Adds a line to the notes of the run. Each operation has one line with a count.
void note(Site site, const char *format, ...) __attribute__((format(printf, 2, 3)));
// begin: a run starts. end: it has ended; returns its notes, malloc'ed, or null.
void begin_notes();
char *take_notes();

}  // namespace vnpu
