// Matrix products of bf16 summed in f32: c[m, n] += sum over k of a[m, k] * b[k, n], at once over many blocks.
//
// What aerie/virtual_npu/codegen/passes/products.py recognises becomes one call of multiply_add. Each of m, n and k is a nest of
// axes (loops, and dimensions of blocks), the outermost first, with a step per axis in the two operands that have the
// index. So any arrangement in blocks is one product, and an element of c is summed in the order of its k axes: the
// same bits whatever else is in the product, on however many threads.
#pragma once

#include "vnpu/base.h"

namespace vnpu {

// One axis of an index: its extent, and what a step along it moves in either operand, in elements.
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
  // Of the blocks of b that the text multiplies in one go: rows and columns. The order of sums hangs on them (dots.h).
  int block_steps, block_columns;
  bf16 *rounded = nullptr;  // in place of c, by multiply_rounded alone: what sums, which begin with +0, are rounded to
};

// The elements of c that a product touches are distinct, and none of them lies in a or b.
void multiply_add(const Product &product);

// How many of the outermost axes of m and of n are the points of a launch.
struct Points {
  int m, n;
};

// c[m, n] = the sum over k of a[m, k] * b[k, n], rounded to nearest even, with the bits of one multiply_add for each point.
// The product's own c is null, and its second steps of m and n are those in c. The elements of c are distinct, and none of them
// lies in a or b.
void multiply_rounded(Product product, bf16 *c, Points points);

// Whether buffers of so many elements share none.
inline bool are_disjoint(const bf16 *one, i64 count, const bf16 *other, i64 other_count) {
  return one + count <= other || other + other_count <= one;
}

}  // namespace vnpu
