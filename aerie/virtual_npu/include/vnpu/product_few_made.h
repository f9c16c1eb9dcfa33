// A product of few rows by an operand that a function makes row by row (made_rows.h).
//
// What the function makes in one call is multiplied at once, while it is in L1, by the micro-kernels of product_few.h; those of
// pairs read it as it lies. Meanwhile what the function reads for the next columns is prefetched into L2. Every thread has
// neighbouring columns.
#pragma once

#include "vnpu/entry.h"
#include "vnpu/made_rows.h"
#include "vnpu/product_few.h"
#include "vnpu/product_operands.h"

namespace vnpu::product {

// Calls of the function: `steps` for every `columns` columns of the product, which are a tile.
struct MadeCalls {
  struct Call {
    const uint8_t *from;
    int32_t argument;
  };
  const MadeRows *rows;
  i64 columns, steps;
  i64 parts, bytes, apart;  // what a call reads: parts of so many bytes, and bytes from the begin of one to that of the next
  i64 calls_a_source;  // calls one after the other that read the same
};

template <class Kernel, int Apart>
class FewMade : Operands {
 public:
  FewMade(const Product &product, const MadeCalls &calls) : Operands(product), calls_(calls) {}

  // Whether the micro-kernel has all it needs.
  bool serves() const {
    const i64 depth = calls_.rows->depth, least = kAtOnce ? kAtOnce : kPieceColumns;
    return depth % kPieceSteps == 0 && depth <= kApart && calls_.columns % least == 0 && calls_.columns <= kMaxColumns &&
           a_steps_.has_whole_lines();
  }

  // at(tile, step): the call.
  template <class At>
  void run(const At &at) {
    multiply_rows(Kernel::kMinRows,
                  [&] { share_panels(calls_.columns, kWorthThreads, [&](i64 first, i64 end) { multiply(first, end, at); }); });
  }

 private:
  using Left = typename Kernel::Left;
  using Packed = typename Kernel::Packed;
  using Floats = typename Kernel::Floats;
  static constexpr int kRows = Kernel::kRows, kColumns = Kernel::kColumns;
  static constexpr int kAtOnce = Kernel::kColumnsAtOnce;
  static constexpr i64 kPackedRows = 8, kWorthThreads = 1 << 20;
  static constexpr int kMaxColumns = 128;
  static constexpr int kApart = Apart;  // elements from one column of what is made to the next: an odd number of cache lines

  struct Work {
    Left *packed;  // a: kRows rows, pair by pair of steps, then the next kRows
    bf16 *made;
    Packed *turned;  // a panel of what is made
    float *sums;  // at place()
  };

  template <class At>
  void multiply(i64 first, i64 end, const At &at) const {
    if (first >= end) return;
    Blocks blocks;
    const i64 depth = calls_.rows->depth;
    Work work;
    work.packed = blocks.alloc<Left>(padded_rows() / kRows * lefts(k_));
    work.made = blocks.alloc<bf16>(calls_.columns * kApart);
    work.turned = blocks.alloc<Packed>(depth / 2 * Kernel::kPacked);
    work.sums = blocks.alloc<float>(panels() * kColumns * padded_rows());
    memset(static_cast<void *>(work.turned), 0, size_t(depth / 2 * Kernel::kPacked) * sizeof(Packed));
    pack_rows(work.packed);
    for (i64 tile = first; tile < end; ++tile) {
      check_running();
      begin(tile, work.sums);
      const CoreModes modes;
      for (i64 step = 0; step < calls_.steps; ++step) {
        const MadeCalls::Call call = at(tile, step);
        if (tile + 1 < end) prefetch(at(tile + 1, step).from, step % calls_.calls_a_source);
        calls_.rows->make(call.argument, call.from, calls_.apart, work.made, kApart);
        add_made(work, work.packed + lefts(step * depth));
      }
      finish(tile, work.sums);
    }
  }

  i64 padded_rows() const { return (m_ + kPackedRows - 1) / kPackedRows * kPackedRows; }
  i64 panels() const { return (calls_.columns + kColumns - 1) / kColumns; }

  // Lefts of kRows rows over some steps.
  static i64 lefts(i64 steps) { return steps / 2 * Kernel::kLefts; }

  // After the last row, rows are repeated up to kPackedRows.
  void pack_rows(Left *packed) const {
    for (i64 m = 0; m < m_; m += kPackedRows, packed += kPackedRows / kRows * lefts(k_)) {
      i64 rows[kPackedRows];
      for (i64 r = 0; r < kPackedRows; ++r) rows[r] = a_rows_[m + r < m_ ? m + r : m_ - 1];
      for (i64 k = 0; k < k_; k += kPieceSteps) Kernel::pack_rows(product_.a + a_steps_[k], rows, packed + lefts(k), lefts(k_));
    }
  }

  // The share of one call in what it and others read.
  void prefetch(const uint8_t *from, i64 share) const {
    const i64 begin = share * calls_.bytes / calls_.calls_a_source, end = (share + 1) * calls_.bytes / calls_.calls_a_source;
    for (i64 part = 0; part < calls_.parts; ++part, from += calls_.apart) {
      for (i64 at = begin; at < end; at += 64) __builtin_prefetch(from + at, 0, 2);
    }
  }

  // Adds the products by what was made to the sums of all rows.
  void add_made(const Work &work, const Left *a) const {
    const int pairs = int(calls_.rows->depth / 2);
    float *sums = work.sums;
    if constexpr (kAtOnce > 0) {
      for (i64 m = 0; m < m_; m += kRows, a += lefts(k_)) {
        for (i64 n = 0; n < calls_.columns; n += kAtOnce, sums += kAtOnce * kRows) {
          Kernel::template add_runs<kApart>(a, work.made + n * kApart, pairs, sums);
        }
      }
    } else {
      for (i64 panel = 0; panel < panels(); ++panel) {
        turn(work.made, panel, work.turned);
        const Left *from = a;
        for (i64 m = 0; m < m_; m += kRows, from += lefts(k_), sums += kRows * kColumns) {
          add_up_to<kRows>(int(m_ - m), from, work.turned, pairs, sums);
        }
      }
    }
  }

  void turn(const bf16 *made, i64 panel, Packed *to) const {
    i64 columns[kPieceColumns];
    for (i64 i = 0; i < kPieceColumns; ++i) columns[i] = i * kApart;
    for (i64 n = panel * kColumns; n < (panel + 1) * kColumns && n < calls_.columns; n += kPieceColumns, to += kPieceColumns) {
      for (i64 k = 0; k < calls_.rows->depth; k += kPieceSteps) {
        Kernel::turn(made + n * kApart + k, columns, to + k / 2 * Kernel::kPacked);
      }
    }
  }

  // The number of rows, or the next power of two, but kMinRows at least.
  template <int Rows>
  static void add_up_to(int rows, const Left *a, const Packed *b, int pairs, float *c) {
    if constexpr (Rows > Kernel::kMinRows) {
      if (rows <= Rows / 2) return add_up_to<Rows / 2>(rows, a, b, pairs, c);
    }
    add<Rows>(a, b, pairs, c);
  }
  // A separate function, so that sums stay in registers.
  template <int Rows>
  [[gnu::noinline]] static void add(const Left *a, const Packed *b, int pairs, float *c) {
    Floats sums[Rows][Kernel::kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < Kernel::kVectors; ++v) memcpy(&sums[r][v], c + r * kColumns + v * Kernel::kLanes, sizeof(Floats));
    }
    for (int pair = 0; pair < pairs; ++pair, a += Kernel::kLefts, b += Kernel::kPacked) Kernel::template add<Rows>(a, b, sums);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < Kernel::kVectors; ++v) memcpy(c + r * kColumns + v * Kernel::kLanes, &sums[r][v], sizeof(Floats));
    }
  }

  // The sum of a row in a column of the tile.
  i64 place(i64 m, i64 n) const {
    if constexpr (kAtOnce > 0) return (m / kRows * calls_.columns + n) * kRows + m % kRows;
    const i64 rows = (m_ + kRows - 1) / kRows * kRows;
    return (n / kColumns * rows + m) * kColumns + n % kColumns;
  }
  void begin(i64 tile, float *sums) const {
    memset(sums, 0, size_t(panels() * kColumns * padded_rows()) * sizeof(float));
    if (product_.rounded) return;
    const i64 *const columns = c_columns_.some(tile * calls_.columns, calls_.columns).at;
    for (i64 m = 0; m < m_; ++m) {
      for (i64 n = 0; n < calls_.columns; ++n) sums[place(m, n)] = product_.c[c_rows_[m] + columns[n]];
    }
  }
  void finish(i64 tile, const float *sums) const {
    const Places columns = c_columns_.some(tile * calls_.columns, calls_.columns);
    alignas(64) float row[kMaxColumns];
    for (i64 m = 0; m < m_; ++m) {
      for (i64 n = 0; n < calls_.columns; ++n) row[n] = sums[place(m, n)];
      if (product_.rounded) round(row, columns, product_.rounded + c_rows_[m]);
      else scatter(product_.c + c_rows_[m], columns, row);
    }
  }
  static void round(const float *sums, const Places &columns, bf16 *to) {
    if (!columns.are_runs_of(8)) {
      for (int n = 0; n < columns.count; ++n) to[columns.at[n]] = round_bf16(sums[n]);
      return;
    }
    for (int n = 0; n < columns.count; n += 8) {
      Vec<float, 8> eight;
      memcpy(&eight, sums + n, sizeof(eight));
      const Vec<bf16, 8> rounded = narrow<bf16>(eight);
      memcpy(to + columns.at[n], &rounded, sizeof(rounded));
    }
  }
  const MadeCalls calls_;
};

}  // namespace vnpu::product
