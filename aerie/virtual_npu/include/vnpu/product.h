// Matrix products of bf16 summed in f32: c[m, n] += sum over k of a[m, k] * b[k, n], over many blocks in one call.
//
// The products that aerie/virtual_npu/codegen/passes/products.py recognises become calls of multiply_add. Each of m, n and k is
// a nest of axes (loops, and dimensions of blocks), outermost first, with one step per axis in each of the two operands that
// have the index. So any arrangement in blocks is one product. An element of c is summed in the order of its k axes: it has the
// same bits whatever else is in the product, on any number of threads.
#pragma once

#include "vnpu/base.h"

namespace vnpu {

// One axis of an index: its extent, and its step in either operand, in elements.
struct Axis {
  i64 extent, first, second;
};

// The axes of an index, outermost first.
struct Axes {
  static constexpr int kMaxAxes = 6;
  int count;
  Axis list[kMaxAxes];
};

struct Product {
  const bf16 *a, *b;
  float *c;
  Axes m;  // of a and c
  Axes n;  // of b and c
  Axes k;  // of a and b
  // Rows and columns of the blocks of b that the text sums together. The order of sums depends on them (dots.h).
  int block_steps, block_columns;
  bf16 *rounded = nullptr;  // replaces c in multiply_rounded: the sums start with +0 and are rounded to this
};

// The elements of c that a product touches are distinct, and none of them is in a or b.
void multiply_add(const Product &product);

// How many of the outermost axes of m and of n are the points of a launch.
struct Points {
  int m, n;
};

// c[m, n] = the sum over k of a[m, k] * b[k, n], rounded to nearest even, with the bits of one multiply_add per point. The
// product's own c is null, and the second steps of m and n are those in c. The elements of c are distinct, and none of them is
// in a or b.
void multiply_rounded(Product product, bf16 *c, Points points);

// Whether two buffers of these sizes have no element in common.
inline bool are_disjoint(const bf16 *one, i64 count, const bf16 *other, i64 other_count) {
  return one + count <= other || other + other_count <= one;
}

inline bool are_disjoint(const bf16 *one, i64 count, const int8_t *other, i64 other_count) {
  const int8_t *const first = reinterpret_cast<const int8_t *>(one), *const end = reinterpret_cast<const int8_t *>(one + count);
  return end <= other || other + other_count <= first;
}

}  // namespace vnpu
