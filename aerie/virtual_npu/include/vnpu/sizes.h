// Checks of sizes, offsets, steps and positions that are known only at run time, in builds without checks too: each
// stands where a view, a buffer or a loop begins, so that what is inside can rely on it.
#pragma once

#include <initializer_list>

#include "vnpu/base.h"

namespace vnpu {

// What a program may ask for in one buffer: more than any machine has.
constexpr i64 kMaxBytes = i64(1) << 46;

[[noreturn]] void fail_size(Site site, int dimension, i64 size);
[[noreturn]] void fail_step(Site site, i64 step);
[[noreturn]] void fail_position(Site site, int dimension, i64 position, i64 size);
[[noreturn]] void fail_extent(Site site, int dimension, i64 size, i64 loops);
[[noreturn]] void fail_divisor(Site site, i64 divisor);
[[noreturn]] void fail_pattern(Site site, int rank, const i64 *sizes, const i64 *strides);

// What buffers of a program may take of this machine's memory altogether, in bytes: a quarter of all. And what the system
// can give of it just now.
i64 memory_share();
i64 memory_remaining();
[[noreturn]] void fail_memory(Site site, i64 bytes, i64 held = 0);

// Refuses a negative number of elements.
VNPU_INLINE void check_size(Site site, int dimension, i64 size) {
  if (__builtin_expect(size < 0, 0)) fail_size(site, dimension, size);
}
// Refuses a loop that would not go on.
VNPU_INLINE void check_step(Site site, i64 step) {
  if (__builtin_expect(step <= 0, 0)) fail_step(site, step);
}
// A position in a dimension of a vector.
VNPU_INLINE i64 checked_position(Site site, int dimension, i64 position, i64 size) {
  if (__builtin_expect(uint64_t(position) >= uint64_t(size), 0)) fail_position(site, dimension, position, size);
  return position;
}
// Refuses a dimension of another extent than the loops over it have.
VNPU_INLINE void check_extent(Site site, int dimension, i64 size, i64 loops) {
  if (__builtin_expect(size != loops, 0)) fail_extent(site, dimension, size, loops);
}
// An extent to divide by.
VNPU_INLINE i64 checked_divisor(Site site, i64 divisor) {
  if (__builtin_expect(divisor <= 0, 0)) fail_divisor(site, divisor);
  return divisor;
}

// Refuses a negative extent, and more bytes altogether than a buffer may have. `bytes` are those of an element in all
// copies of the buffer.
void check_buffer(Site site, std::initializer_list<i64> sizes, i64 bytes);
// Refuses a part of a dimension that begins at `offset`, has `size` elements `step` apart, and leaves its `extent`.
void check_part(Site site, int dimension, i64 offset, i64 size, i64 step, i64 extent);
// Refuses a view of a buffer, from its element `offset` on, that leaves its `extent` elements.
void check_view(Site site, i64 offset, std::initializer_list<i64> sizes, std::initializer_list<i64> strides, i64 extent);
// Refuses a view of bytes, from `first` on, that leaves the `extent` bytes or cuts elements of so many bytes.
void check_bytes(Site site, i64 first, std::initializer_list<i64> sizes, i64 element, i64 extent);
// Refuses a number, `what` of a dimension, that is not the one that the type of the result says.
void check_promised(Site site, const char *what, int dimension, i64 number, i64 promised);
// Refuses sizes that do not make up the `count` elements that they stand for.
void check_shape(Site site, std::initializer_list<i64> sizes, i64 count);
// Refuses a grid of points with a negative size, or of more points than can be counted.
void check_points(Site site, std::initializer_list<i64> sizes);
// The sum of products of offsets and strides; one that 64 bits do not hold is the largest number.
i64 offset_in(std::initializer_list<i64> offsets, std::initializer_list<i64> strides);

}  // namespace vnpu
