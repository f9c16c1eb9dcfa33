// Where the elements of a product's operands lie (product.h), for those who multiply them.
#pragma once

#include "vnpu/product.h"
#include "vnpu/product_kernels.h"

namespace vnpu::product {

// Where every value of an index lies in one operand, in elements.
class Offsets {
 public:
  Offsets(Blocks &blocks, const Axes &axes, i64 Axis::*step) {
    for (int i = 0; i < axes.count; ++i) count *= axes.list[i].extent;
    at_ = blocks.alloc<i64>(count);
    at_[0] = 0;
    i64 inner = 1;
    for (int i = axes.count - 1; i >= 0; --i) {
      const Axis &axis = axes.list[i];
      for (i64 outer = 1; outer < axis.extent; ++outer) {
        for (i64 j = 0; j < inner; ++j) at_[outer * inner + j] = at_[j] + outer * (axis.*step);
      }
      inner *= axis.extent;
    }
    while (run_ > 1 && !are_runs_of(run_)) run_ = run_ > 8 ? run_ / 2 : 1;
  }
  i64 operator[](i64 i) const { return at_[i]; }
  bool is_run() const { return are_runs_of(count); }
  bool lie_in_lines() const { return run_ == 32; }
  // At most so many from the value `first` on, a multiple of them.
  Places some(i64 first, i64 most) const { return {at_ + first, int(most < count - first ? most : count - first), run_}; }

  i64 count = 1;

 private:
  bool are_runs_of(i64 length) const {
    for (i64 run = 0; run < count; run += length) {
      const i64 end = run + length < count ? run + length : count;
      for (i64 i = run + 1; i < end; ++i) {
        if (at_[i] != at_[i - 1] + 1) return false;
      }
    }
    return true;
  }
  i64 *at_;
  int run_ = 32;
};

// A product, and where its indices lead to.
class Operands {
 protected:
  explicit Operands(const Product &product)
      : product_(product),
        a_rows_(blocks_, product.m, &Axis::first), a_steps_(blocks_, product.k, &Axis::first),
        b_steps_(blocks_, product.k, &Axis::second), b_columns_(blocks_, product.n, &Axis::first),
        c_rows_(blocks_, product.m, &Axis::second), c_columns_(blocks_, product.n, &Axis::second),
        m_(a_rows_.count), n_(b_columns_.count), k_(a_steps_.count) {}

  const Product &product_;
  Blocks blocks_;
  const Offsets a_rows_, a_steps_, b_steps_, b_columns_, c_rows_, c_columns_;
  const i64 m_, n_, k_;
};

}  // namespace vnpu::product
