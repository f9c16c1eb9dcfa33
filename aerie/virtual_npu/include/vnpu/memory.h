// Access patterns, strided copies between buffers, and vector loads and stores.
#pragma once

#include "vnpu/sizes.h"
#include "vnpu/vec.h"
#if VNPU_CHECKS
#include "vnpu/check.h"
#endif

namespace vnpu {

inline constexpr int kMaxRank = 8;

// One side of a transfer: where its first element is, and how to walk from there, outermost dimension first.
struct Access {
  Access() = default;
  Access(const Access &other) { *this = other; }
  // Copies only the sizes and strides in use: patterns are copied more often than walked.
  Access &operator=(const Access &other) {
    first = other.first;
    low = other.low;
    high = other.high;
    count = other.count;
    element = other.element;
    rank = other.rank;
    padding = other.padding;
    stays = other.stays;
    for (int d = 0; d < rank; ++d) {
      sizes[d] = other.sizes[d];
      strides[d] = other.strides[d];
    }
#if VNPU_CHECKS
    buffer = other.buffer;
    flags = other.flags;
#endif
    return *this;
  }

  char *first;     // the element at index (0, ..., 0)
  char *low;       // the touched bytes are in [low, high)
  char *high;
  i64 count;       // elements
  int element;     // bytes per element
  int rank = 0;
  const i64 *padding = nullptr;  // zeros to add: per dimension those before, then per dimension those after
  bool stays = false;            // nothing writes these elements before the launch ends
  i64 sizes[kMaxRank];
  i64 strides[kMaxRank];  // in elements
#if VNPU_CHECKS
  Buffer *buffer = nullptr;  // null for blocks in flight
  uint8_t *flags = nullptr;  // of a block in flight: one flag per element, in its order: whether it is written
#endif
};

// Refuses a pattern that leaves its buffer.
[[noreturn]] void fail_outside(Site site, i64 low, i64 high, i64 extent);

// Computes what a pattern touches, and its first and last element.
template <class T, int R>
inline Access pattern(Site site, T *data, i64 offset, const i64 (&sizes)[R], const i64 (&strides)[R], i64 &low, i64 &high) {
  static_assert(R <= kMaxRank, "an access pattern has at most 8 dimensions");
  Access a;
  i64 count = 1;
  bool overflows = false;
  low = high = offset;
  for (int i = 0; i < R; ++i) {
    a.sizes[i] = sizes[i];
    a.strides[i] = strides[i];
    check_size(site, i, sizes[i]);
    i64 reach;
    overflows |= __builtin_mul_overflow(count, sizes[i], &count);
    overflows |= __builtin_mul_overflow(sizes[i] - 1, strides[i], &reach);
    if (reach > 0) overflows |= __builtin_add_overflow(high, reach, &high);
    else overflows |= __builtin_add_overflow(low, reach, &low);
  }
  if (__builtin_expect(overflows, 0)) fail_pattern(site, R, sizes, strides);
  a.rank = R;
  a.element = int(sizeof(T));
  a.count = count;
  a.first = const_cast<char *>(reinterpret_cast<const char *>(data + offset));
  a.low = count > 0 ? const_cast<char *>(reinterpret_cast<const char *>(data + low)) : a.first;
  a.high = count > 0 ? const_cast<char *>(reinterpret_cast<const char *>(data + high + 1)) : a.first;
  return a;
}

// `data` points at the memref's first element, `extent` counts the elements from there to its last one.
template <class T, int R>
inline Access access(Site site, T *data, i64 extent, i64 offset, const i64 (&sizes)[R], const i64 (&strides)[R]) {
  i64 low, high;
  const Access a = pattern(site, data, offset, sizes, strides, low, high);
  if (a.count > 0 && (low < 0 || high >= extent)) fail_outside(site, low, high, extent);
  return a;
}

#if VNPU_CHECKS
// Where in a buffer a transfer can start: the shim gets offsets in 32 bits. Buffers of L1 and L2 are smaller.
inline constexpr i64 kHostOffsets = i64(1) << 32;
[[noreturn]] void fail_offset(Site site, const Buffer &buffer, const char *first);
[[noreturn]] void fail_outside(Site site, const Buffer &buffer, i64 low, i64 high, i64 extent);
template <class T, int R>
inline Access access(Site site, Ptr<T> data, i64 extent, i64 offset, const i64 (&sizes)[R], const i64 (&strides)[R]) {
  i64 low, high;
  Access a = pattern(site, data.p, offset, sizes, strides, low, high);
  if (a.count > 0 && (low < 0 || high >= extent)) fail_outside(site, *data.buffer, low, high, extent);
  if (__builtin_expect(a.first - data.buffer->base >= kHostOffsets, 0)) fail_offset(site, *data.buffer, a.first);
  a.buffer = data.buffer;
  return a;
}

// Refuses a source that is freed or not written where it is read, and a destination that is freed.
void check_source(Site site, const Access &src);
void check_readable(Site site, const Access &src);  // the same for a source that may be unwritten
void check_destination(Site site, const Access &dst);
// Marks all of it as written.
void mark(const Access &dst);
// Called before a copy. Unwritten elements may be copied and stay unwritten, except to memory that the host sees. Returns
// whether there are any.
bool copies_unwritten(Site site, const Access &dst, const Access &src);
// The flags of a side's elements (whether each is written) as a side of bytes. A copy changes the destination's flags.
Access flags_of(const Access &side, bool changes);
#endif

// A source with zeros around its elements; `count` includes the zeros.
template <int R>
inline Access padded(Access a, const i64 (&padding)[R]) {
  a.padding = padding;
  a.count = 1;
  for (int i = 0; i < a.rank; ++i) a.count *= padding[i] + a.sizes[i] + padding[a.rank + i];
  return a;
}

// A dense run of elements.
inline Access dense(void *data, i64 count, int element) {
  Access a;
  a.first = a.low = static_cast<char *>(data);
  a.high = a.first + count * element;
  a.count = count;
  a.element = element;
  a.rank = 1;
  a.sizes[0] = count;
  a.strides[0] = 1;
  return a;
}

// Copies element i of src, in its order, to element i of dst.
void copy(Site site, const Access &dst, const Access &src);

// Changes `side`, which reads a dense buffer that starts at `buffer`, to read the same elements of `block`, whose element i is
// the buffer's element i. Returns false if no pattern does that.
bool read_from(const Access &block, const char *buffer, Access &side);

// ---- vectors and memory; an n-d vector has one stride (in elements) per dimension ----

template <int... S>
inline constexpr int volume = (S * ... * 1);

template <int... S>
VNPU_INLINE bool is_contiguous(const i64 *strides) {
  constexpr int rank = sizeof...(S);
  constexpr int sizes[rank] = {S...};
  i64 expected = 1;
  for (int d = rank - 1; d >= 0; --d) {
    if (sizes[d] != 1 && strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

// Calls row(flat index of the row's first lane, its offset in memory) for every innermost row.
template <int... S, class Row>
VNPU_INLINE void each_row(const i64 *strides, Row row) {
  constexpr int rank = sizeof...(S);
  constexpr int sizes[rank] = {S...};
  constexpr int rows = volume<S...> / sizes[rank - 1];
  for (int r = 0; r < rows; ++r) {
    i64 offset = 0;
    int rest = r;
    for (int d = rank - 2; d >= 0; --d) {
      offset += (rest % sizes[d]) * strides[d];
      rest /= sizes[d];
    }
    row(r * sizes[rank - 1], offset);
  }
}

template <int... S>
inline constexpr int last_of = 0;
template <int A>
inline constexpr int last_of<A> = A;
template <int A, int B, int... S>
inline constexpr int last_of<A, B, S...> = last_of<B, S...>;

template <class T, int... S>
VNPU_INLINE Vec<T, volume<S...>> read(const T *p, const i64 (&strides)[sizeof...(S)]) {
  constexpr int N = volume<S...>, L = last_of<S...>;
  if (is_contiguous<S...>(strides)) return load<T, N>(p);
  const i64 step = strides[sizeof...(S) - 1];
  Lanes<T, N> r;
  each_row<S...>(strides, [&](int lane, i64 offset) {
    if (step == 1) {
      store(r.at + lane, load<T, L>(p + offset));
    } else {
      for (int i = 0; i < L; ++i) r.at[lane + i] = p[offset + i * step];
    }
  });
  return r.vec();
}

template <class T, int... S>
VNPU_INLINE void write(T *p, const i64 (&strides)[sizeof...(S)], const Vec<T, volume<S...>> &x) {
  constexpr int N = volume<S...>, L = last_of<S...>;
  if (is_contiguous<S...>(strides)) return store(p, x);
  const i64 step = strides[sizeof...(S) - 1];
  Lanes<T, N> r(x);
  each_row<S...>(strides, [&](int lane, i64 offset) {
    if (step == 1) {
      store(p + offset, load<T, L>(r.at + lane));
    } else {
      for (int i = 0; i < L; ++i) p[offset + i * step] = r.at[lane + i];
    }
  });
}

// Whether lane `flat` is inside, where dimension d has limits[d] elements left.
template <int... S>
VNPU_INLINE bool inside(int flat, const i64 *limits) {
  constexpr int rank = sizeof...(S);
  constexpr int sizes[rank] = {S...};
  for (int d = rank - 1; d >= 0; --d) {
    if (flat % sizes[d] >= limits[d]) return false;
    flat /= sizes[d];
  }
  return true;
}

template <int... S>
VNPU_INLINE i64 offset_of(int flat, const i64 *strides) {
  constexpr int rank = sizeof...(S);
  constexpr int sizes[rank] = {S...};
  i64 offset = 0;
  for (int d = rank - 1; d >= 0; --d) {
    offset += (flat % sizes[d]) * strides[d];
    flat /= sizes[d];
  }
  return offset;
}

template <int... S>
VNPU_INLINE bool fits(const i64 *limits) {
  constexpr int rank = sizeof...(S);
  constexpr int sizes[rank] = {S...};
  for (int d = 0; d < rank; ++d) {
    if (limits[d] < sizes[d]) return false;
  }
  return true;
}

// Lanes beyond the limits, or masked off, are `padding` when read and left alone when written.
template <class T, int... S>
VNPU_INLINE Vec<T, volume<S...>> read_within(const T *p, const i64 (&strides)[sizeof...(S)], const i64 (&limits)[sizeof...(S)],
                                             T padding, const Vec<bool, volume<S...>> *mask = nullptr) {
  if (!mask && fits<S...>(limits)) return read<T, S...>(p, strides);
  constexpr int N = volume<S...>;
  Lanes<T, N> r;
  Lanes<bool, N> on(mask ? *mask : splat<bool, N>(true));
  for (int i = 0; i < N; ++i) {
    r.at[i] = on.at[i] && inside<S...>(i, limits) ? p[offset_of<S...>(i, strides)] : padding;
  }
  return r.vec();
}

template <class T, int... S>
VNPU_INLINE void write_within(T *p, const i64 (&strides)[sizeof...(S)], const i64 (&limits)[sizeof...(S)],
                              const Vec<T, volume<S...>> &x, const Vec<bool, volume<S...>> *mask = nullptr) {
  if (!mask && fits<S...>(limits)) return write<T, S...>(p, strides, x);
  constexpr int N = volume<S...>;
  Lanes<T, N> r(x);
  Lanes<bool, N> on(mask ? *mask : splat<bool, N>(true));
  for (int i = 0; i < N; ++i) {
    if (on.at[i] && inside<S...>(i, limits)) p[offset_of<S...>(i, strides)] = r.at[i];
  }
}

}  // namespace vnpu

#if VNPU_CHECKS
#include "vnpu/check_access.h"
#endif
