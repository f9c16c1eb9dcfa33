// Buffers that a function rearranges in place before a matrix product reads them.
//
// A core that takes a matrix transposed transposes its blocks before it multiplies them. If a function only moves elements, the
// product can read each element where it was before. What the function does is found by calling it: it gets buffers in which
// every element is another number, until every 16-bit number has been at some place. It must move them all in the same way,
// write nothing around them, and leave the core's modes alone. A function that does anything else is called for every buffer,
// as the program says.
#pragma once

#include <vector>

#include "vnpu/product.h"

namespace vnpu {

// Where every element of a buffer was before a function rearranged it; empty if the function does anything else.
std::vector<i64> rearranged(void (*function)(bf16 *), i64 count);

// An operand of a product as it is before the function. Constructed once per call in a program.
class Rearranged {
 public:
  // buffer: extents, and the steps (`first`) with which a DMA filled it from the operand. start and the axes of m or n, and of
  // k: where the product reads it after the call, in elements of the buffer (`first`).
  Rearranged(void (*function)(bf16 *), const Axes &buffer, i64 start, const Axes &outer, const Axes &depth);

  // Whether the product can read the operand where the DMA reads it.
  bool can_read_operand() const { return can_read_operand_; }

  Product as_a(Product product) const;
  Product as_b(Product product) const;

 private:
  i64 place(i64 position, const std::vector<i64> &from, const Axes &buffer) const;

  bool can_read_operand_ = false;
  i64 start_ = 0, outer_[Axes::kMaxAxes] = {}, depth_[Axes::kMaxAxes] = {};  // in elements of the operand
};

}  // namespace vnpu
