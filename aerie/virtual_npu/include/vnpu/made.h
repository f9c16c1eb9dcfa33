// Buffers that a function makes for a matrix product out of others.
//
// A core may keep a matrix in another form than it multiplies, as quantised weights, and make a tile of it before every
// product. Then the function is called once per tile for some columns of the product and all steps of k, and what it makes is
// multiplied as a matrix that lies there, while it is in the CPU's cache. Which function it is does not matter, but that its
// result depends on its arguments alone: it is called with two buffers of different content, must write all of it both times,
// and nothing around it. A function that does anything else is called as the program says. For products of few rows it may have
// another form (made_pairs.h).
#pragma once

#include "vnpu/made_pairs.h"
#include "vnpu/product.h"

namespace vnpu {

// An operand B of a product that a function makes. Constructed once per product in a program.
class Made {
 public:
  // argument, bytes that it reads, elements that it makes.
  using Function = void (*)(int32_t, int8_t *, bf16 *);

  // source: extents of the buffer that the function reads, and the steps (`first`) with which a DMA filled it, in bytes. count:
  // elements that it makes. start, argument: where the product begins to read them, and the function's argument there. outer,
  // depth: for each axis of n and of k, its step in what is made (`first`) and in the argument (`second`).
  Made(Function function, const Axes &source, i64 count, i64 start, i64 argument, const Axes &outer, const Axes &depth);

  // Whether the function's result depends on its arguments alone.
  bool can_read_operand() const { return can_read_operand_; }

  // As for a B that lies in memory. b and the steps of n and k in it are bytes of what is read.
  void multiply_add(const Product &product) const { multiply(product, nullptr, {}); }
  void multiply_rounded(const Product &product, bf16 *c, Points points) const { multiply(product, c, points); }

 private:
  class Work;

  void multiply(const Product &product, bf16 *c, Points points) const;
  bool depends_on_arguments_alone() const;
  const MadePairs *checked_pairs() const;

  const Function function_;
  const Axes source_, outer_, depth_;
  const i64 count_, start_, argument_;
  const bool can_read_operand_;
  const MadePairs *const pairs_;  // null if it has no such form
};

}  // namespace vnpu
