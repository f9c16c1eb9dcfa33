// How a matrix product is cut for a micro-kernel (product_kernels.h).
//
// kDepth steps of k at a time: the rows of a are packed, one after the other, to stay in L2 of the CPU; then panels of
// kColumns columns of b are packed, each to stay in L1 while all rows pass by, and meanwhile the next one is fetched.
// Panels are independent of each other and go to all threads.
#pragma once

#include "vnpu/product.h"
#include "vnpu/product_kernels.h"

namespace vnpu::product {

// Where every value of an index lies in either operand, in elements.
struct Offsets {
  const i64 *first, *second;
  i64 count;
};

inline const i64 *offsets(Blocks &blocks, const Axes &axes, i64 Axis::*step) {
  i64 total = 1;
  for (int i = 0; i < axes.count; ++i) total *= axes.list[i].extent;
  i64 *const at = blocks.alloc<i64>(total);
  at[0] = 0;
  i64 inner = 1;
  for (int i = axes.count - 1; i >= 0; --i) {
    const Axis &axis = axes.list[i];
    for (i64 outer = 1; outer < axis.extent; ++outer) {
      for (i64 j = 0; j < inner; ++j) at[outer * inner + j] = at[j] + outer * (axis.*step);
    }
    inner *= axis.extent;
  }
  return at;
}

inline Offsets offsets(Blocks &blocks, const Axes &axes) {
  i64 total = 1;
  for (int i = 0; i < axes.count; ++i) total *= axes.list[i].extent;
  return {offsets(blocks, axes, &Axis::first), offsets(blocks, axes, &Axis::second), total};
}

// What will be packed next, fetched piece by piece while something else is multiplied.
class Ahead {
 public:
  Ahead() = default;
  // Columns of an operand over k steps, in so many turns. A line of the cache holds kLine of whichever is a run.
  Ahead(const bf16 *operand, const i64 *steps, i64 k, const Columns &columns, i64 turns)
      : operand_(operand), steps_(steps), columns_(columns) {
    down_ = k > 1 && steps[1] == steps[0] + 1 ? kLine : 1;
    across_ = down_ > 1 ? 1 : kLine;
    rows_ = (k + down_ - 1) / down_;
    lines_ = rows_ * ((columns.count + across_ - 1) / across_);
    each_ = (lines_ + turns - 1) / turns;
  }
  void fetch() {
    for (i64 count = each_; count > 0 && next_ < lines_; --count, ++next_) {
      __builtin_prefetch(operand_ + steps_[next_ % rows_ * down_] + columns_.at[next_ / rows_ * across_], 0, 2);
    }
  }

 private:
  static constexpr int kLine = 32;  // bf16 in 64 bytes
  const bf16 *operand_ = nullptr;
  const i64 *steps_ = nullptr;
  Columns columns_{nullptr, 0};
  i64 down_ = 1, across_ = 1, rows_ = 0, lines_ = 0, next_ = 0, each_ = 0;
};

template <class Kernel>
class Driver {
 public:
  explicit Driver(const Product &product)
      : product_(product), m_(offsets(blocks_, product.m)), n_(offsets(blocks_, product.n)), k_(offsets(blocks_, product.k)) {
    is_run_ = Columns{k_.first, int(k_.count)}.are_runs_of(int(k_.count)) && k_.count % Kernel::kGroup == 0;
  }

  void run() {
    const i64 panels = (n_.count + Kernel::kColumns - 1) / Kernel::kColumns;
    const i64 parts = m_.count * n_.count * k_.count < kWorthThreads ? 1 : parallel_threads();
    const i64 each = (panels + parts - 1) / parts;
    const auto part = [&](i64 i) { columns(i * each, panels < (i + 1) * each ? panels : (i + 1) * each); };
    if (parts == 1) part(0);
    else parallel(parts, part);
  }

 private:
  static constexpr i64 kDepth = 384;              // steps of k of a packed panel
  static constexpr i64 kMostRows = 512;           // of a that are packed at once
  static constexpr i64 kWorthPacking = 4;         // panels that read the same rows
  static constexpr i64 kWorthThreads = 1 << 22;   // multiplications that take longer than to wake a thread

  // Some panels of c.
  void columns(i64 first, i64 end) const {
    if (first >= end) return;
    Blocks blocks;
    const i64 most = m_.count < kMostRows ? m_.count : kMostRows;
    const bool packs = !is_run_ || end - first >= kWorthPacking;
    bf16 *const packed = packs ? blocks.alloc<bf16>(most * kDepth) : nullptr;
    const bf16 **const rows = blocks.alloc<const bf16 *>(most);
    auto *const panel = blocks.alloc<typename Kernel::Packed>(Kernel::kColumns * kDepth);
    for (i64 m = 0; m < m_.count; m += kMostRows) {
      const i64 count = m_.count - m < kMostRows ? m_.count - m : kMostRows;
      const i64 turns = (count + Kernel::kRows - 1) / Kernel::kRows;
      for (i64 k = 0; k < k_.count; k += kDepth) {
        place_rows(m, count, k, packed, rows);
        Ahead of_a = packed ? rows_at(m, count, k + kDepth, turns * (end - first)) : Ahead();
        for (i64 i = first; i < end; ++i) {
          Kernel::pack(product_.b, k_.second + k, depth(k), of_b(i), panel);
          Ahead of_b = i + 1 < end ? panel_at(i + 1, k, turns) : panel_at(first, k + kDepth, turns);
          add_rows<Kernel::kRows>(m, m + count, rows, panel, depth(k), of_c(i), of_a, of_b);
        }
      }
    }
  }

  i64 depth(i64 k) const { return k_.count - k < kDepth ? k_.count - k : kDepth; }

  Columns of_b(i64 panel) const { return {n_.first + panel * Kernel::kColumns, width(panel)}; }
  Columns of_c(i64 panel) const { return {n_.second + panel * Kernel::kColumns, width(panel)}; }
  int width(i64 panel) const {
    const i64 left = n_.count - panel * Kernel::kColumns;
    return int(left < Kernel::kColumns ? left : Kernel::kColumns);
  }

  Ahead panel_at(i64 panel, i64 k, i64 turns) const {
    return k < k_.count ? Ahead(product_.b, k_.second + k, depth(k), of_b(panel), turns) : Ahead();
  }
  Ahead rows_at(i64 m, i64 count, i64 k, i64 turns) const {
    return k < k_.count ? Ahead(product_.a, k_.first + k, depth(k), {m_.first + m, int(count)}, turns) : Ahead();
  }

  // Rows of a from step k on as runs of k: as they lie, or packed.
  void place_rows(i64 first, i64 count, i64 k, bf16 *packed, const bf16 **rows) const {
    const i64 length = (depth(k) + Kernel::kGroup - 1) / Kernel::kGroup * Kernel::kGroup;
    for (i64 m = 0; m < count; ++m) {
      const bf16 *const from = product_.a + m_.first[first + m];
      rows[m] = packed ? packed + m * length : from + k_.first[k];
      if (packed) pack_row(from, k_.first + k, depth(k), length, packed + m * length);
    }
  }

  void pack_row(const bf16 *from, const i64 *steps, i64 count, i64 length, bf16 *to) const {
    if (is_run_) {
      memcpy(to, from + steps[0], size_t(count) * sizeof(bf16));
      return;
    }
    for (i64 k = 0; k < count;) {
      i64 run = 1;
      while (run < 8 && k + run < count && steps[k + run] == steps[k] + run) ++run;
      if (run == 8) memcpy(to + k, from + steps[k], 8 * sizeof(bf16));
      else for (i64 i = 0; i < run; ++i) to[k + i] = from[steps[k + i]];
      k += run;
    }
    for (i64 k = count; k < length; ++k) to[k] = bf16{0};
  }

  // Rows of c from `m` on, so many at a time as long as there are as many; then half as many.
  template <int Rows>
  void add_rows(i64 m, i64 end, const bf16 *const *rows, const typename Kernel::Packed *panel, i64 k, const Columns &columns,
                Ahead &of_a, Ahead &of_b) const {
    for (; m + Rows <= end; m += Rows, rows += Rows) {
      float *c[Rows];
      for (int r = 0; r < Rows; ++r) c[r] = product_.c + m_.second[m + r];
      of_a.fetch();
      of_b.fetch();
      Kernel::template add<Rows>(rows, panel, k, c, columns);
    }
    if constexpr (Rows > 1) add_rows<Rows / 2>(m, end, rows, panel, k, columns, of_a, of_b);
  }

  const Product &product_;
  Blocks blocks_;
  Offsets m_, n_, k_;
  bool is_run_;
};

}  // namespace vnpu::product
