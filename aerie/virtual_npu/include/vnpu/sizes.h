// Checks of sizes, offsets, steps and positions that are known only at run time, in builds without checks too. Each check is at
// the start of a view, a buffer or a loop, so that the code inside can rely on it.
#pragma once

#include <initializer_list>

#include "vnpu/base.h"

namespace vnpu {

// The maximum size of one buffer: more than any machine has.
constexpr i64 kMaxBytes = i64(1) << 46;

[[noreturn]] void fail_size(Site site, int dimension, i64 size);
[[noreturn]] void fail_step(Site site, i64 step);
[[noreturn]] void fail_position(Site site, int dimension, i64 position, i64 size);
[[noreturn]] void fail_extent(Site site, int dimension, i64 size, i64 loops);
[[noreturn]] void fail_divisor(Site site, i64 divisor);
[[noreturn]] void fail_pattern(Site site, int rank, const i64 *sizes, const i64 *strides);

// The maximum memory, in bytes, of all buffers of a program: a quarter of this machine's. And the memory that the system can
// give now.
i64 memory_share();
i64 memory_remaining();
[[noreturn]] void fail_memory(Site site, i64 bytes, i64 held = 0);

// Refuses a negative number of elements.
VNPU_INLINE void check_size(Site site, int dimension, i64 size) {
  if (__builtin_expect(size < 0, 0)) fail_size(site, dimension, size);
}
// Refuses a loop that would not advance.
VNPU_INLINE void check_step(Site site, i64 step) {
  if (__builtin_expect(step <= 0, 0)) fail_step(site, step);
}
// A position in a dimension of a vector.
VNPU_INLINE i64 checked_position(Site site, int dimension, i64 position, i64 size) {
  if (__builtin_expect(uint64_t(position) >= uint64_t(size), 0)) fail_position(site, dimension, position, size);
  return position;
}
// Refuses a dimension whose extent differs from that of the loops over it.
VNPU_INLINE void check_extent(Site site, int dimension, i64 size, i64 loops) {
  if (__builtin_expect(size != loops, 0)) fail_extent(site, dimension, size, loops);
}
// An extent to divide by.
VNPU_INLINE i64 checked_divisor(Site site, i64 divisor) {
  if (__builtin_expect(divisor <= 0, 0)) fail_divisor(site, divisor);
  return divisor;
}

// Refuses a negative extent, and more bytes than a buffer may have. `bytes` are those of an element in all copies of the
// buffer.
void check_buffer(Site site, std::initializer_list<i64> sizes, i64 bytes);
// Refuses a slice of a dimension (`size` elements, `step` apart, from `offset`) that leaves its `extent`.
void check_part(Site site, int dimension, i64 offset, i64 size, i64 step, i64 extent);
// Refuses a view of a buffer, from its element `offset` on, that leaves its `extent` elements.
void check_view(Site site, i64 offset, std::initializer_list<i64> sizes, std::initializer_list<i64> strides, i64 extent);
// Refuses a view of bytes, from `first` on, that leaves the `extent` bytes or cuts an element.
void check_bytes(Site site, i64 first, std::initializer_list<i64> sizes, i64 element, i64 extent);
// Refuses a number, `what` of a dimension, that differs from the result's type.
void check_promised(Site site, const char *what, int dimension, i64 number, i64 promised);
// Refuses sizes whose product is not `count` elements.
void check_shape(Site site, std::initializer_list<i64> sizes, i64 count);
// Refuses a grid of points with a negative size, or of more points than can be counted.
void check_points(Site site, std::initializer_list<i64> sizes);
// The sum of products of offsets and strides, or the largest number if 64 bits are too few.
i64 offset_in(std::initializer_list<i64> offsets, std::initializer_list<i64> strides);

}  // namespace vnpu
