// The layout of a product's operands (product.h), and the rows that need not be multiplied.
//
// If a row of a is all zeros, of either sign, and of c all +0, the result is +0 too: with finite numbers every product is a
// zero, and +0 plus a zero is +0 in any order. If b has an infinity or NaN in a column, every row of the product has a NaN
// there, because zero times either is NaN and no addition removes it. So rows of zeros are left out, one row at least is
// multiplied, and if its result is not finite, the other rows are multiplied too: the bits are those of all rows. Padding of
// blocks of rows is such rows: seven of eight when a token is decoded. Rounded sums start with +0; infinities and NaNs stay.
#pragma once

#include "vnpu/product.h"
#include "vnpu/product_kernels.h"

namespace vnpu::product {

// The place of every value of an index in one operand, in elements.
class Offsets {
 public:
  Offsets(Blocks &blocks, const Axes &axes, i64 Axis::*step) {
    for (int i = 0; i < axes.count; ++i) count *= axes.list[i].extent;
    at_ = blocks.alloc<i64>(count);
    at_[0] = 0;
    i64 inner = 1;
    for (int i = axes.count - 1; i >= 0; --i) {
      const i64 extent = axes.list[i].extent, far = axes.list[i].*step;
      if (far == inner && together_ == inner) together_ *= extent;
      if (inner == 1) {
        for (i64 outer = 1; outer < extent; ++outer) at_[outer] = outer * far;
      } else {
        for (i64 j = inner; j < extent * inner; ++j) at_[j] = at_[j - inner] + far;
      }
      inner *= extent;
    }
    while (run_ > 1 && !are_runs_of(run_)) run_ = run_ > 8 ? run_ / 2 : 1;
  }
  i64 operator[](i64 i) const { return at_[i]; }
  bool is_run() const { return are_runs_of(count); }
  bool has_whole_lines() const { return run_ == 32; }
  bool has_groups_of_eight() const { return run_ >= 8 && count % 8 == 0; }
  // Whether all neighbours are as far apart as the first two.
  bool are_even() const {
    for (i64 i = 2; i < count; ++i) {
      if (at_[i] - at_[i - 1] != at_[1] - at_[0]) return false;
    }
    return true;
  }
  // Whether `bits` are zero in all elements of an operand at these places; it reads eight contiguous ones at a time.
  template <class Lane, class Bits>
  bool are_all_zero(const void *operand, const Bits &bits) const {
    typedef Lane Eight __attribute__((vector_size(8 * sizeof(Lane))));
    const Lane *const from = static_cast<const Lane *>(operand);
    if (run_ < 8 || count % 8) {
      for (i64 i = 0; i < count; ++i) {
        Lane lane;
        memcpy(&lane, from + at_[i], sizeof(lane));
        if (bits(lane)) return false;
      }
      return true;
    }
    for (i64 i = 0; i < count; i += 8) {
      Eight eight;
      memcpy(&eight, from + at_[i], sizeof(eight));
      eight = bits(eight);
      uint64_t words[sizeof(eight) / 8], any = 0;
      memcpy(words, &eight, sizeof(eight));
      for (const uint64_t word : words) any |= word;
      if (any) return false;
    }
    return true;
  }
  // Moves the value order[i] to place i.
  void reorder(Blocks &blocks, const i64 *order) {
    i64 *const at = blocks.alloc<i64>(count);
    for (i64 i = 0; i < count; ++i) at[i] = at_[order[i]];
    at_ = at, together_ = run_ = 1;
  }
  void drop(i64 first) { at_ += first, count -= first; }
  // At most `most` values from `first` on, a multiple of the run.
  Places some(i64 first, i64 max_count) const {
    return {at_ + first, int(max_count < count - first ? max_count : count - first), run_};
  }

  i64 count = 1;

 private:
  bool are_runs_of(i64 length) const { return together_ == count || together_ % length == 0; }

  i64 *at_;
  i64 together_ = 1;  // from every multiple of it on, this many are contiguous
  int run_ = 32;
};

// Rows of c.
inline i64 rows_of(const Product &product) {
  i64 rows = 1;
  for (int i = 0; i < product.m.count; ++i) rows *= product.m.list[i].extent;
  return rows;
}

// A product, and the places of its indices.
class Operands {
 protected:
  explicit Operands(const Product &product)
      : product_(product),
        a_rows_(blocks_, product.m, &Axis::first),
        a_steps_(blocks_, product.k, &Axis::first),
        b_steps_(blocks_, product.k, &Axis::second),
        b_columns_(blocks_, product.n, &Axis::first),
        c_rows_(blocks_, product.m, &Axis::second),
        c_columns_(blocks_, product.n, &Axis::second),
        m_(a_rows_.count),
        n_(b_columns_.count),
        k_(a_steps_.count) {}

  // Calls multiply() once or twice, each time for the rows of a and c that need it. least: the number of rows that takes as
  // long as one.
  template <class Multiply>
  void multiply_rows(i64 least, const Multiply &multiply) {
    const i64 all = m_;
    if (all <= least) return multiply();
    m_ = put_zeros_last();
    multiply();
    if (m_ == all) return;
    if (are_numbers()) return clear_rows(m_, all);
    a_rows_.drop(m_), c_rows_.drop(m_);
    m_ = all - m_;
    multiply();
  }

  // Calls multiply(first, end) for panels of some columns, neighbouring ones in each thread; all in one thread if there are
  // fewer multiplications than waking another thread costs.
  template <class Multiply>
  void share_panels(i64 columns, i64 worth_threads, const Multiply &multiply) const {
    const i64 panels = (n_ + columns - 1) / columns;
    const i64 parts = m_ * n_ * k_ < worth_threads ? 1 : parallel_threads();
    const i64 each = (panels + parts - 1) / parts;
    const auto part = [&](i64 i) { multiply(i * each, panels < (i + 1) * each ? panels : (i + 1) * each); };
    if (parts == 1) part(0);
    else parallel(parts, part);
  }

  const Product &product_;
  Blocks blocks_;
  Offsets a_rows_;
  const Offsets a_steps_, b_steps_, b_columns_;
  Offsets c_rows_;
  const Offsets c_columns_;
  i64 m_;
  const i64 n_, k_;

 private:
  // Returns how many rows must be multiplied; the others are moved behind them.
  i64 put_zeros_last() {
    i64 *const order = blocks_.alloc<i64>(m_);
    i64 others = 0, last = m_;
    for (i64 m = 0; m < m_; ++m) order[is_zero(m) ? --last : others++] = m;
    if (others < m_) a_rows_.reorder(blocks_, order), c_rows_.reorder(blocks_, order);
    return others > 0 ? others : 1;
  }
  bool is_zero(i64 m) const {
    return a_steps_.are_all_zero<uint16_t>(product_.a + a_rows_[m], [](auto bits) { return bits & 0x7fff; }) &&
           (product_.rounded || c_columns_.are_all_zero<uint32_t>(product_.c + c_rows_[m], [](auto bits) { return bits; }));
  }
  bool are_numbers() const {
    // Whose exponent is all ones.
    const auto carry = [](auto bits) { return ((bits & 0x7f800000u) + 0x800000u) & 0x80000000u; };
    const auto short_carry = [](auto bits) { return ((bits & 0x7f80) + 0x80) & 0x8000; };
    for (i64 m = 0; m < m_; ++m) {
      if (product_.rounded) {
        if (!c_columns_.are_all_zero<uint16_t>(product_.rounded + c_rows_[m], short_carry)) return false;
      } else if (!c_columns_.are_all_zero<uint32_t>(product_.c + c_rows_[m], carry)) {
        return false;
      }
    }
    return true;
  }
  // Rounded sums of rows that are left out: +0, their initial value.
  void clear_rows(i64 first, i64 end) {
    if (!product_.rounded) return;
    for (i64 m = first; m < end; ++m) {
      for (i64 n = 0; n < n_; ++n) product_.rounded[c_rows_[m] + c_columns_[n]] = bf16{0};
    }
  }
};

}  // namespace vnpu::product
