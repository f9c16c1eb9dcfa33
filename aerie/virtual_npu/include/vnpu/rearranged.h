// Buffers that a function rearranges in place before a matrix product reads them.
//
// A core that takes a matrix the other way round turns its blocks before it multiplies them. If all that a function
// does is to move elements about, the product may as well read each where it was before. What a function does is asked
// of the function itself: it is given buffers in which every element is another number, until every number that 16 bits
// hold has been in some place, and must move them all in one and the same way, write nothing beside them, and leave the
// core's modes alone. A function that does anything else to any of these is called for every buffer, as the program says.
#pragma once

#include <vector>

#include "vnpu/product.h"

namespace vnpu {

// Where every element of a buffer was before a function rearranged it; empty if it does not just do that.
std::vector<i64> rearranged(void (*function)(bf16 *), i64 count);

// An operand of a product as it lies before the function. Made once per call in a program.
class Rearranged {
 public:
  // buffer: extents, and the steps (`first`) with which a DMA filled it from the operand; start and the axes of m or n,
  // and of k: where it is read after the call, in elements of the buffer (`first`).
  Rearranged(void (*function)(bf16 *), const Axes &buffer, i64 start, const Axes &outer, const Axes &depth);

  // Whether the operand can be read where the DMA reads it.
  bool can_read_operand() const { return can_read_operand_; }

  Product as_a(Product product) const;
  Product as_b(Product product) const;

 private:
  i64 place(i64 position, const std::vector<i64> &from, const Axes &buffer) const;

  bool can_read_operand_ = false;
  i64 start_ = 0, outer_[Axes::kMaxAxes] = {}, depth_[Axes::kMaxAxes] = {};  // in elements of the operand
};

}  // namespace vnpu
