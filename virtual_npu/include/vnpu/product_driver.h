// How a matrix product is cut for a micro-kernel (product_kernels.h).
//
// Panels of kColumns columns of b are packed, kDepth steps of k at a time, and stay in L1 or L2 of the CPU while all
// rows pass by. Rows of a are read where they lie if k runs through them, else packed first. Panels are independent
// of each other and go to all threads.
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

template <class Kernel>
class Driver {
 public:
  explicit Driver(const Product &product)
      : product_(product), m_(offsets(blocks_, product.m)), n_(offsets(blocks_, product.n)), k_(offsets(blocks_, product.k)) {
    place_rows();
  }

  void run() {
    const i64 panels = (n_.count + Kernel::kColumns - 1) / Kernel::kColumns;
    if (m_.count * n_.count * k_.count < kWorthThreads) {
      for (i64 i = 0; i < panels; ++i) panel(i * Kernel::kColumns);
    } else {
      parallel(panels, [this](i64 i) { panel(i * Kernel::kColumns); });
    }
  }

 private:
  static constexpr i64 kDepth = 256;              // steps of k of a packed panel
  static constexpr i64 kWorthThreads = 1 << 22;   // multiplications that take longer than to wake a thread

  // Rows of a as runs of k: as they lie, or packed.
  void place_rows() {
    const bf16 **const rows = blocks_.alloc<const bf16 *>(m_.count);
    const bool is_run = Columns{k_.first, int(k_.count)}.are_runs_of(int(k_.count)) && k_.count % Kernel::kGroup == 0;
    const i64 length = (k_.count + Kernel::kGroup - 1) / Kernel::kGroup * Kernel::kGroup;
    bf16 *const packed = is_run ? nullptr : blocks_.alloc<bf16>(m_.count * length);
    for (i64 m = 0; m < m_.count; ++m) {
      const bf16 *const from = product_.a + m_.first[m];
      bf16 *const to = packed + m * length;
      rows[m] = is_run ? from : to;
      if (!is_run) pack_row(from, length, to);
    }
    rows_ = rows;
  }

  void pack_row(const bf16 *from, i64 length, bf16 *to) const {
    for (i64 k = 0; k < k_.count;) {
      i64 run = 1;
      while (run < 8 && k + run < k_.count && k_.first[k + run] == k_.first[k] + run) ++run;
      if (run == 8) memcpy(to + k, from + k_.first[k], 8 * sizeof(bf16));
      else for (i64 i = 0; i < run; ++i) to[k + i] = from[k_.first[k + i]];
      k += run;
    }
    for (i64 k = k_.count; k < length; ++k) to[k] = bf16{0};
  }

  // Some columns of c.
  void panel(i64 first) const {
    const i64 left = n_.count - first;
    const int count = int(left < Kernel::kColumns ? left : Kernel::kColumns);
    const Columns of_b{n_.first + first, count}, of_c{n_.second + first, count};
    Blocks blocks;
    auto *const packed = blocks.alloc<typename Kernel::Packed>(Kernel::kColumns * kDepth);
    for (i64 k = 0; k < k_.count; k += kDepth) {
      const i64 depth = k_.count - k < kDepth ? k_.count - k : kDepth;
      Kernel::pack(product_.b, k_.second + k, depth, of_b, packed);
      rows<Kernel::kRows>(0, k, packed, depth, of_c);
    }
  }

  // Rows of c from `m` on, so many at a time as long as there are as many; then half as many.
  template <int Rows>
  void rows(i64 m, i64 k, const typename Kernel::Packed *packed, i64 depth, const Columns &columns) const {
    for (; m + Rows <= m_.count; m += Rows) {
      const bf16 *a[Rows];
      float *c[Rows];
      for (int r = 0; r < Rows; ++r) {
        a[r] = rows_[m + r] + k;
        c[r] = product_.c + m_.second[m + r];
      }
      Kernel::template add<Rows>(a, packed, depth, c, columns);
    }
    if constexpr (Rows > 1) rows<Rows / 2>(m, k, packed, depth, columns);
  }

  const Product &product_;
  Blocks blocks_;
  Offsets m_, n_, k_;
  const bf16 *const *rows_ = nullptr;
};

}  // namespace vnpu::product
