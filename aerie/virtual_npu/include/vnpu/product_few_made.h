// A product of few rows by an operand that a function makes by pairs of k (made_pairs.h).
//
// What the function makes in one call is multiplied at once, while it is in L1, by the micro-kernels of product_few.h, as it
// lies. Meanwhile what the function reads for the next columns is prefetched into L2. Every thread has neighbouring columns.
#pragma once

#include "vnpu/entry.h"
#include "vnpu/made_pairs.h"
#include "vnpu/product_few.h"
#include "vnpu/product_operands.h"

namespace vnpu::product {

// Calls of the function for every tile, which is kColumns columns of the product for each part of the form.
struct MadeCalls {
  // Where a call reads, in bytes from the begin of the product's b, and its argument: of a step beyond those of its tile.
  struct Call {
    i64 from, argument;
  };
  const MadePairs *form;
  const Call *of_steps;
  i64 steps;
  i64 bytes, apart;  // of a part, and from the begin of one to that of the next
  i64 calls_a_source;  // calls one after the other that read the same
};

// Whether a micro-kernel multiplies by what a function makes by pairs.
template <class Kernel>
inline constexpr bool multiplies_pairs = Kernel::kColumns == MadePairs::kColumns && Kernel::kPacked == MadePairs::kColumns;
template <>
inline constexpr bool multiplies_pairs<Unserved> = false;

template <class Kernel>
class FewMade : Operands {
 public:
  FewMade(const Product &product, const MadeCalls &calls)
      : Operands(product), calls_(calls), columns_(calls.form->parts * kColumns) {}

  // Whether the micro-kernel has all it needs.
  bool serves() const { return columns_ <= kMaxColumns && a_steps_.has_whole_lines(); }

  // of_tile(tile): its begin.
  template <class OfTile>
  void run(const OfTile &of_tile) {
    multiply_rows(Kernel::kMinRows,
                  [&] { share_panels(columns_, kWorthThreads, [&](i64 first, i64 end) { multiply(first, end, of_tile); }); });
  }

 private:
  using Left = typename Kernel::Left;
  using Packed = typename Kernel::Packed;
  using Floats = typename Kernel::Floats;
  static constexpr int kRows = Kernel::kRows, kColumns = Kernel::kColumns;
  static constexpr i64 kPackedRows = 8, kWorthThreads = 1 << 20;
  static constexpr int kMaxColumns = 128;

  struct Work {
    Left *packed;  // a: kRows rows, pair by pair of steps, then the next kRows
    Packed *made;  // a piece
    float *sums;  // at place()
  };

  template <class OfTile>
  void multiply(i64 first, i64 end, const OfTile &of_tile) const {
    if (first >= end) return;
    Blocks blocks;
    Work work;
    work.packed = blocks.alloc<Left>(padded_rows() / kRows * lefts(k_));
    work.made = blocks.alloc<Packed>(kPieceSteps / 2 * Kernel::kPacked);
    work.sums = blocks.alloc<float>(columns_ * padded_rows());
    pack_rows(work.packed);
    MadeCalls::Call begin = of_tile(first);
    for (i64 tile = first; tile < end; ++tile) {
      check_running();
      clear(tile, work.sums);
      const CoreModes modes;
      const MadeCalls::Call next = tile + 1 < end ? of_tile(tile + 1) : begin;
      for (i64 step = 0; step < calls_.steps; ++step) {
        const MadeCalls::Call &of_step = calls_.of_steps[step];
        if (tile + 1 < end) prefetch(source(next.from + of_step.from), step % calls_.calls_a_source);
        add_made(work, step, source(begin.from + of_step.from), int32_t(begin.argument + of_step.argument));
      }
      finish(tile, work.sums);
      begin = next;
    }
  }

  const uint8_t *source(i64 at) const { return reinterpret_cast<const uint8_t *>(product_.b) + at; }
  i64 padded_rows() const { return (m_ + kPackedRows - 1) / kPackedRows * kPackedRows; }

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
    for (i64 part = 0; part < calls_.form->parts; ++part, from += calls_.apart) {
      for (i64 at = begin; at < end; at += 64) __builtin_prefetch(from + at, 0, 2);
    }
  }

  // Adds the products by what one call makes to the sums of all rows. The CPU makes a piece while it multiplies by the one before.
  void add_made(const Work &work, i64 step, const uint8_t *from, int32_t argument) const {
    float *sums = work.sums;
    for (i64 part = 0; part < calls_.form->parts; ++part, from += calls_.apart, sums += padded_rows() * kColumns) {
      for (i64 first = 0; first < calls_.form->depth; first += kPieceSteps) {
        calls_.form->make(argument, from, first, work.made);
        const Left *a = work.packed + lefts(step * calls_.form->depth + first);
        for (i64 m = 0; m < m_; m += kRows, a += lefts(k_)) {
          add_up_to<kRows>(int(m_ - m), a, work.made, kPiecePairs, sums + m * kColumns);
        }
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
  i64 place(i64 m, i64 n) const { return (n / kColumns * padded_rows() + m) * kColumns + n % kColumns; }
  void clear(i64 tile, float *sums) const {
    memset(sums, 0, size_t(columns_ * padded_rows()) * sizeof(float));
    if (product_.rounded) return;
    const i64 *const columns = c_columns_.some(tile * columns_, columns_).at;
    for (i64 m = 0; m < m_; ++m) {
      for (i64 n = 0; n < columns_; ++n) sums[place(m, n)] = product_.c[c_rows_[m] + columns[n]];
    }
  }
  void finish(i64 tile, const float *sums) const {
    const Places columns = c_columns_.some(tile * columns_, columns_);
    alignas(64) float row[kMaxColumns];
    for (i64 m = 0; m < m_; ++m) {
      for (i64 n = 0; n < columns_; ++n) row[n] = sums[place(m, n)];
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
  const i64 columns_;  // of a tile
};

}  // namespace vnpu::product
