// A product of few rows by an operand that a function makes by pairs of k (made_pairs.h).
//
// A piece of what the function makes is multiplied as it lies by the micro-kernels of product_few.h while the next one is made: in
// one loop where the function has one, as making and multiplying take different units of the CPU. What the function reads is
// read from end to end, as it prefetches it. Every thread has neighbouring columns.
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
  i64 apart;  // bytes from the begin of one part of what is read to that of the next
};

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
  static constexpr int kRows = Kernel::kRows;
  static constexpr i64 kColumns = MadePairs::kColumns;
  static constexpr i64 kPackedRows = 8, kWorthThreads = 1 << 20;
  static constexpr i64 kMaxColumns = 128;

  struct Work {
    Left *packed;  // a: kRows rows, pair by pair of steps, then the next kRows
    Packed *made, *next;  // a piece each
    float *sums;  // of a tile: panels of kColumns, each row by row
    // What is multiplied by the piece that is made, and its sums; null: there is none.
    const Left *a = nullptr;
    float *sums_of_made = nullptr;
  };

  template <class OfTile>
  void multiply(i64 first, i64 end, const OfTile &of_tile) const {
    if (first >= end) return;
    Blocks blocks;
    Work work;
    work.packed = blocks.alloc<Left>(padded_rows() / kRows * lefts(k_));
    work.made = blocks.alloc<Packed>(kPieceSteps / 2 * Kernel::kPacked);
    work.next = blocks.alloc<Packed>(kPieceSteps / 2 * Kernel::kPacked);
    work.sums = blocks.alloc<float>(columns_ * padded_rows());
    pack_rows(work.packed);
    for (i64 tile = first; tile < end; ++tile) {
      check_running();
      clear(tile, work.sums);
      const CoreModes modes;
      const MadeCalls::Call begin = of_tile(tile);
      // One part after the other, as they lie in memory.
      for (i64 part = 0; part < calls_.form->parts; ++part) {
        for (i64 step = 0; step < calls_.steps; ++step) {
          const MadeCalls::Call &of_step = calls_.of_steps[step];
          const i64 from = of_step.from + part * calls_.apart;
          add_made(work, step, work.sums + part * padded_rows() * kColumns, source(begin.from + from),
                   int32_t(begin.argument + of_step.argument));
        }
      }
      add_rows_from(0, work);
      work.a = nullptr;
      finish(tile, work.sums);
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

  // Makes the pieces of a part of a call, and meanwhile adds the products by the pieces before.
  void add_made(Work &work, i64 step, float *sums, const uint8_t *from, int32_t argument) const {
    const Left *a = work.packed + lefts(step * calls_.form->depth);
    for (i64 first = 0; first < calls_.form->depth; first += kPieceSteps, a += lefts(kPieceSteps)) {
      const i64 added = make(work, argument, from, first);
      if (work.a) add_rows_from(added, work);
      Packed *const made = work.next;
      work.next = work.made, work.made = made;
      work.a = a, work.sums_of_made = sums;
    }
  }
  // Makes the next piece. Returns how many rows have the products by the one before.
  i64 make(const Work &work, int32_t argument, const uint8_t *from, i64 first) const {
    if constexpr (Kernel::kAddsPairs) {
      if (work.a && calls_.form->make_and_add) {
        calls_.form->make_and_add(argument, from, first, work.next, work.a, work.made, work.sums_of_made);
        return kRows;
      }
    }
    calls_.form->make(argument, from, first, reinterpret_cast<uint32_t *>(work.next));
    return 0;
  }
  // Adds the products by the piece that is made to the rows from `first` on.
  void add_rows_from(i64 first, const Work &work) const {
    const Left *a = work.a + first / kRows * lefts(k_);
    for (i64 m = first; m < m_; m += kRows, a += lefts(k_)) {
      for (i64 n = 0; n < kColumns; n += Kernel::kColumns) {
        add_up_to<kRows>(int(m_ - m), a, work.made + n, kPiecePairs, work.sums_of_made + m * kColumns + n);
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

  // Calls with(sums, columns of c, m) for every row of every panel of a tile.
  template <class With>
  void each_row(i64 tile, float *sums, const With &with) const {
    for (i64 n = 0; n < columns_; n += kColumns, sums += padded_rows() * kColumns) {
      const Places columns = c_columns_.some(tile * columns_ + n, kColumns);
      for (i64 m = 0; m < m_; ++m) with(sums + m * kColumns, columns, m);
    }
  }
  void clear(i64 tile, float *sums) const {
    memset(sums, 0, size_t(columns_ * padded_rows()) * sizeof(float));
    if (product_.rounded) return;
    each_row(tile, sums, [&](float *row, const Places &columns, i64 m) { gather(product_.c + c_rows_[m], columns, row); });
  }
  void finish(i64 tile, float *sums) const {
    each_row(tile, sums, [&](const float *row, const Places &columns, i64 m) {
      if (product_.rounded) round(row, columns, product_.rounded + c_rows_[m]);
      else scatter(product_.c + c_rows_[m], columns, row);
    });
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
