// Cuts a matrix product for a micro-kernel (product_kernels.h).
//
// It takes kDepth steps of k at a time. The rows of a are packed one after the other, to stay in the CPU's L2. Then panels of
// kColumns columns of b are packed, each to stay in L1 while it meets all rows. The next data are prefetched meanwhile, except
// what the CPU prefetches by itself. Panels are independent and are shared out to all threads. Products of few rows are cut
// differently (product_few_rows.h).
#pragma once

#include "vnpu/product_few_rows.h"
#include "vnpu/product_operands.h"
#include "vnpu/product_plain.h"
#if defined(VNPU_BF16_DOTS)
#include "vnpu/product_pairs.h"
#endif
#if defined(VNPU_BF16_TILES)
#include "vnpu/product_column_tiles.h"
#endif
#if defined(VNPU_BF16_ARM)
#include "vnpu/product_arm.h"
#endif

namespace vnpu::product {

// The data that are packed next, prefetched piece by piece during other multiplications.
class PackPrefetcher {
 public:
  PackPrefetcher() = default;
  // Columns of an operand over steps of k, in several turns. A cache line holds kLine numbers along whichever index is a run.
  PackPrefetcher(const bf16 *operand, const Places &steps, const Places &columns, i64 turns)
      : operand_(operand), steps_(steps), columns_(columns) {
    down_ = steps.run == kLine ? kLine : 1;
    across_ = down_ > 1 ? 1 : kLine;
    const i64 rows = (steps.count + down_ - 1) / down_;
    each_ = (rows * ((columns.count + across_ - 1) / across_) + turns - 1) / turns;
  }
  void fetch() {
    for (i64 count = each_; count > 0 && column_ < columns_.count; --count) {
      __builtin_prefetch(operand_ + steps_.at[row_] + columns_.at[column_], 0, 2);
      row_ += down_;
      if (row_ < steps_.count) continue;
      row_ = 0;
      column_ += across_;
    }
  }

 private:
  static constexpr int kLine = 32;  // bf16 in 64 bytes
  const bf16 *operand_ = nullptr;
  Places steps_{}, columns_{};
  int down_ = 1, across_ = 1, row_ = 0, column_ = 0;
  i64 each_ = 0;
};

template <class Kernel>
class Driver : Operands {
 public:
  explicit Driver(const Product &product) : Operands(product), is_run_(a_steps_.is_run() && k_ % Kernel::kGroup == 0) {}

  void run() {
    Kernel::prepare();
    multiply_rows(Kernel::kMinRows,
                  [&] { share_panels(Kernel::kColumns, kWorthThreads, [&](i64 first, i64 end) { columns(first, end); }); });
  }

 private:
  using Left = typename Kernel::Left;
  using Packed = typename Kernel::Packed;
  static constexpr bool kReadsUnpacked = same_type<Left, bf16>;
  // Steps of k of a packed panel, and rows of a that are packed at a time.
  static constexpr i64 kDepth = Kernel::kPanelBytes * Kernel::kSteps / (Kernel::kColumns * i64(sizeof(Packed)));
  static constexpr i64 kMaxRows = Kernel::kRowsBytes / (kDepth * i64(sizeof(Left)));
  static constexpr i64 kWorthPacking = 4;         // minimum panels that read the same rows
  static constexpr i64 kWorthThreads = 1 << 22;   // multiplications that take longer than waking a thread

  // Some panels of c.
  void columns(i64 first, i64 end) const {
    if (first >= end) return;
    [[maybe_unused]] const typename Kernel::Turn turn{};
    Blocks blocks;
    const i64 max_rows = m_ < kMaxRows ? m_ : kMaxRows;
    const bool packs = !is_run_ || !kReadsUnpacked || Kernel::kReadsEvenly || end - first >= kWorthPacking;
    Left *const packed = packs ? blocks.alloc<Left>((max_rows + Kernel::kMinRows - 1) * kDepth) : nullptr;
    const Left **const rows = blocks.alloc<const Left *>(max_rows);
    auto *const panel = blocks.alloc<Packed>(Kernel::kColumns * kDepth);
    for (i64 m = 0; m < m_; m += kMaxRows) {
      const i64 count = m_ - m < kMaxRows ? m_ - m : kMaxRows;
      const i64 turns = (count + Kernel::kRows - 1) / Kernel::kRows;
      for (i64 k = 0; k < k_; k += kDepth) {
        place_rows(m, count, k, packed, rows);
        PackPrefetcher of_a = packed ? rows_at(m, k + kDepth, turns * (end - first)) : PackPrefetcher();
        for (i64 i = first; i < end; ++i) {
          check_running();
          Kernel::pack(product_.b, b_steps_.some(k, kDepth), panel_of(b_columns_, i), panel);
          PackPrefetcher of_b = i + 1 < end ? panel_at(i + 1, k, turns) : panel_at(first, k + kDepth, turns);
          add_rows<Kernel::kRows>(m, m + count, rows, panel, depth(k), panel_of(c_columns_, i), of_a, of_b);
        }
      }
    }
  }

  i64 depth(i64 k) const { return k_ - k < kDepth ? k_ - k : kDepth; }

  static Places panel_of(const Offsets &columns, i64 panel) { return columns.some(panel * Kernel::kColumns, Kernel::kColumns); }

  // If columns are runs of k, the CPU prefetches them by itself: pack reads 16 of them at a time from end to end.
  PackPrefetcher panel_at(i64 panel, i64 k, i64 turns) const {
    if (k >= k_ || b_steps_.has_whole_lines()) return PackPrefetcher();
    return PackPrefetcher(product_.b, b_steps_.some(k, kDepth), panel_of(b_columns_, panel), turns);
  }
  PackPrefetcher rows_at(i64 m, i64 k, i64 turns) const {
    return k < k_ ? PackPrefetcher(product_.a, a_steps_.some(k, kDepth), a_rows_.some(m, kMaxRows), turns) : PackPrefetcher();
  }

  // Rows of a from step k on as runs of k: in place, or packed.
  void place_rows(i64 first, i64 count, i64 k, Left *packed, const Left **rows) const {
    const i64 length = (depth(k) + Kernel::kGroup - 1) / Kernel::kGroup * Kernel::kGroup;
    for (i64 m = 0; m < count; ++m) {
      const bf16 *const from = product_.a + a_rows_[first + m];
      if constexpr (kReadsUnpacked) rows[m] = from + a_steps_[k];
      if (!packed) continue;
      rows[m] = packed + m * length;
      pack_row(from, a_steps_.some(k, kDepth), length, packed + m * length);
    }
  }

  void pack_row(const bf16 *from, const Places &places, i64 length, Left *to) const {
    const i64 *const steps = places.at;
    const i64 count = places.count;
    for (i64 k = 0; k < count;) {
      i64 run = is_run_ ? count : 1;
      while (run < 8 && k + run < count && steps[k + run] == steps[k] + run) ++run;
      const bf16 *const here = from + steps[k];
      if constexpr (kReadsUnpacked) memcpy(to + k, here, size_t(run) * sizeof(Left));
      else
        for (i64 i = 0; i < run; ++i) to[k + i] = widen(here[i]);
      k += run;
    }
    for (i64 k = count; k < length; ++k) to[k] = widen_to(bf16{Kernel::kFiller});
  }

  static Left widen_to(bf16 value) {
    if constexpr (kReadsUnpacked) return value;
    else return widen(value);
  }

  // Multiplies rows of c from `m` on, kRows at a time as long as there are as many; then half as many.
  template <int Rows>
  void add_rows(i64 m, i64 end, const Left *const *rows, const Packed *panel, i64 k, const Places &columns,
                PackPrefetcher &of_a, PackPrefetcher &of_b) const {
    for (; m + Rows <= end; m += Rows, rows += Rows) {
      float *c[Rows];
      for (int r = 0; r < Rows; ++r) c[r] = product_.c + c_rows_[m + r];
      of_a.fetch();
      of_b.fetch();
      Kernel::template add<Rows>(rows, panel, k, c, columns);
    }
    if constexpr (Rows > Kernel::kMinRows) {
      add_rows<Rows / 2>(m, end, rows, panel, k, columns, of_a, of_b);
    } else if constexpr (Kernel::kMinRows > 1) {
      if (m == end) return;
      float *c[Rows];
      for (int r = 0; r < end - m; ++r) c[r] = product_.c + c_rows_[m + r];
      Kernel::template add_some<Rows>(rows, panel, k, c, columns, int(end - m));
    }
  }

  const bool is_run_;
};

// Uses the micro-kernel of many rows, or Few if it can read the operands in place.
template <class Kernel, class Few = FewRows<Unserved>>
void multiply(const Product &product) {
  if constexpr (!same_type<Few, FewRows<Unserved>>) {
    if (Few::may_serve(product)) {
      Few few(product);
      if (few.serves()) return few.run();
    }
  }
  Driver<Kernel>(product).run();
}

}  // namespace vnpu::product
