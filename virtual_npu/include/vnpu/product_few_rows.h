// How a matrix product of few rows is cut: what it costs is to bring b from memory, which has no rows to share that with.
//
// So b is never kept. Its panels of kColumns columns follow each other as they lie in memory, and in a panel the steps of k,
// kChunk at a time: a chunk is turned into a buffer of L1 while the chunk before it is multiplied, piece by piece, so that
// neither waits for the other (product_few.h has the pieces). Of a chunk, eight columns are read at a time, four lines of the
// cache each: the CPU follows so many streams by itself, and not the 32 of a panel line by line. Meanwhile the next panel
// is asked for, in the order in which it lies in memory.
//
// The rows of a are packed once for kMostSteps steps of k, step by step, and stay in L2. Panels are independent of each other;
// every thread has neighbouring ones, a stretch of memory of its own.
#pragma once

#include "vnpu/product_few.h"
#include "vnpu/product_operands.h"

namespace vnpu::product {

// The pieces of b of one chunk, turned one after the other, and the next panel, of which lines are asked for meanwhile.
template <class Kernel>
class Pieces {
 public:
  using Packed = typename Kernel::Packed;

  // Begin with a chunk: `from` is its first step in b, `lines` what it has of each column.
  void begin(const bf16 *from, const Places &columns, int lines, Packed *to) {
    from_ = from, columns_ = columns.at, lines_ = lines, to_ = to;
    groups_ = (columns.count + kPieceColumns - 1) / kPieceColumns;
    group_ = line_ = 0;
  }
  // Ask for so many steps of these columns from now on; `from` is the first step in b.
  void ask_for(const bf16 *from, const Places &columns, i64 steps) {
    next_ = from, next_columns_ = columns, next_steps_ = steps;
    next_column_ = 0, next_step_ = 0;
  }
  bool is_done() const { return group_ >= groups_; }

  VNPU_INLINE void turn() {
    if (next_column_ < next_columns_.count) ask();
    Packed *const to = to_ + line_ * kPiecePairs * Kernel::kPacked + group_ * kPieceColumns;
    Kernel::turn(from_ + line_ * kPieceSteps, columns_ + group_ * kPieceColumns, to);
    if (++line_ == lines_) line_ = 0, ++group_;
  }
  void turn_all() {
    while (!is_done()) turn();
  }

 private:
  // As many lines as a piece has, side by side.
  VNPU_INLINE void ask() {
    const bf16 *const row = next_ + next_columns_.at[next_column_] + next_step_;
#pragma GCC unroll 8
    for (int i = 0; i < kPieceColumns; ++i) __builtin_prefetch(row + i * kPieceSteps);
    next_step_ += kPieceColumns * kPieceSteps;
    if (next_step_ < next_steps_) return;
    next_step_ = 0;
    ++next_column_;
  }

  const bf16 *from_ = nullptr, *next_ = nullptr;
  const i64 *columns_ = nullptr;
  Packed *to_ = nullptr;
  int lines_ = 0, line_ = 0, groups_ = 0, group_ = 0, next_column_ = 0;
  Places next_columns_{};
  i64 next_steps_ = 0, next_step_ = 0;
};

template <class Kernel>
class FewRows : Operands {
 public:
  explicit FewRows(const Product &product) : Operands(product) {}

  // Before anything is known of where operands lie.
  static bool may_serve(const Product &product) {
    i64 rows = 1;
    for (int i = 0; i < product.m.count; ++i) rows *= product.m.list[i].extent;
    return rows <= kMostOfThem;
  }
  // Whether a and b come in whole pieces, in which rows of a and columns of b are runs of k.
  bool serves() const {
    return n_ % kPieceColumns == 0 && k_ % kPieceSteps == 0 && a_steps_.lie_in_lines() && b_steps_.lie_in_lines();
  }

  void run() {
    multiply_rows(Kernel::kLeastRows, [&] { share(); });
  }

 private:
  void share() const {
    const i64 panels = (n_ + kColumns - 1) / kColumns;
    const i64 parts = m_ * n_ * k_ < kWorthThreads ? 1 : parallel_threads();
    const i64 each = (panels + parts - 1) / parts;
    const auto part = [&](i64 i) { multiply(i * each, panels < (i + 1) * each ? panels : (i + 1) * each); };
    if (parts == 1) part(0);
    else parallel(parts, part);
  }

  using Left = typename Kernel::Left;
  using Packed = typename Kernel::Packed;
  static constexpr int kRows = Kernel::kRows, kColumns = Kernel::kColumns;
  static constexpr i64 kMostOfThem = 32;          // rows of c
  static constexpr i64 kChunk = 128;              // steps of k
  static constexpr i64 kMostSteps = 4096;         // of which a panel is 256 KB; for more than 16 rows half as many
  static constexpr i64 kPackedRows = 8;           // rows of a that are packed at a time
  static constexpr i64 kWorthThreads = 1 << 20;   // multiplications that take longer than to wake a thread

  // Panels of c and steps of k, and what a thread has of its own.
  struct Work {
    i64 first, end;        // panels
    i64 k, steps;          // the steps under way
    const Left *packed;    // a: kRows rows, pair by pair of steps, then the next kRows
    Packed *turned[2];     // a chunk of b each
    float *sums;           // m x kColumns
  };

  void multiply(i64 first, i64 end) const {
    if (first >= end) return;
    Blocks blocks;
    const i64 rows = (m_ + kPackedRows - 1) / kPackedRows * kPackedRows;
    const i64 most = rows > 16 ? kMostSteps / 2 : kMostSteps, parts = (k_ + most - 1) / most;
    const i64 each = ((k_ + parts - 1) / parts + kChunk - 1) / kChunk * kChunk;
    Left *const packed = blocks.alloc<Left>(rows / kRows * lefts(k_ < each ? k_ : each));
    Work work{first, end, 0, 0, packed, {}, blocks.alloc<float>(rows * kColumns)};
    for (Packed *&turned : work.turned) turned = blocks.alloc<Packed>(kChunk / 2 * Kernel::kPacked);
    for (; work.k < k_; work.k += each) {
      work.steps = k_ - work.k < each ? k_ - work.k : each;
      pack_rows(work, packed);
      add_panels(work, work.k + each);
    }
  }

  // Left of kRows rows over so many steps.
  static i64 lefts(i64 steps) { return steps / 2 * Kernel::kLefts; }

  Places columns_of(i64 panel) const { return b_columns_.some(panel * kColumns, kColumns); }
  // Of the last of them on, rows are repeated up to kPackedRows.
  void pack_rows(const Work &work, Left *packed) const {
    for (i64 m = 0; m < m_; m += kPackedRows, packed += kPackedRows / kRows * lefts(work.steps)) {
      i64 rows[kPackedRows];
      for (i64 r = 0; r < kPackedRows; ++r) rows[r] = a_rows_[m + r < m_ ? m + r : m_ - 1];
      for (i64 i = 0; i < work.steps; i += kPieceSteps) {
        Kernel::pack_rows(product_.a + a_steps_[work.k + i], rows, packed + lefts(i), lefts(work.steps));
      }
    }
  }

  // next: the step of k after those under way.
  void add_panels(const Work &work, i64 next) const {
    const i64 chunks = (work.steps + kChunk - 1) / kChunk;
    Pieces<Kernel> pieces;
    int which = 0;
    begin(work, pieces, work.first, 0, which);
    pieces.turn_all();
    for (i64 panel = work.first; panel < work.end; ++panel) {
      go_on();
      const bool is_last = panel + 1 == work.end;
      if (!is_last) pieces.ask_for(product_.b + b_steps_[work.k], columns_of(panel + 1), work.steps);
      else if (next < k_) pieces.ask_for(product_.b + b_steps_[next], columns_of(work.first), work.steps);
      const Places columns = c_columns_.some(panel * kColumns, kColumns);
      for (i64 m = 0; m < m_; ++m) copy(product_.c + c_rows_[m], columns, work.sums + m * kColumns);
      for (i64 chunk = 0; chunk < chunks; ++chunk, which ^= 1) {
        if (chunk + 1 < chunks) begin(work, pieces, panel, chunk + 1, which ^ 1);
        else if (!is_last) begin(work, pieces, panel + 1, 0, which ^ 1);
        add_chunk(work, chunk * kChunk, work.turned[which], pieces);
        pieces.turn_all();
      }
      for (i64 m = 0; m < m_; ++m) copy_back(product_.c + c_rows_[m], columns, work.sums + m * kColumns);
    }
  }

  void begin(const Work &work, Pieces<Kernel> &pieces, i64 panel, i64 chunk, int which) const {
    const i64 first = chunk * kChunk, left = work.steps - first;
    const int lines = int((left < kChunk ? left : kChunk) / kPieceSteps);
    pieces.begin(product_.b + b_steps_[work.k + first], columns_of(panel), lines, work.turned[which]);
  }

  // The steps from `first` on, which are turned, to all rows. Pieces are spread over all that is to be added.
  void add_chunk(const Work &work, i64 first, const Packed *turned, Pieces<Kernel> &pieces) const {
    const i64 left = work.steps - first, steps = left < kChunk ? left : kChunk;
    const Left *from = work.packed + lefts(first);
    for (i64 m = 0; m < m_; m += kRows, from += lefts(work.steps)) {
      float *const sums = work.sums + m * kColumns;
      if (m_ > 16) add<4, kRows>(from, turned, int(steps / 2), sums, pieces);
      else if (m_ > 8) add<2, kRows>(from, turned, int(steps / 2), sums, pieces);
      else add_at_most<kRows>(int(m_ - m), from, turned, int(steps / 2), sums, pieces);
    }
  }

  // As many rows as there are, or the next power of two, but kLeastRows at least.
  template <int Rows>
  static void add_at_most(int rows, const Left *a, const Packed *b, int pairs, float *c, Pieces<Kernel> &pieces) {
    if constexpr (Rows > Kernel::kLeastRows) {
      if (rows <= Rows / 2) return add_at_most<Rows / 2>(rows, a, b, pairs, c, pieces);
    }
    add<1, Rows>(a, b, pairs, c, pieces);
  }

  // A piece is turned whenever so many times kPairsAPiece pairs of steps were added, but every 16 at least. A function by
  // itself, so that sums stay in registers whatever stands around it.
  template <int Times, int Rows>
  [[gnu::noinline]] static void add(const Left *a, const Packed *b, int pairs, float *c, Pieces<Kernel> &pieces) {
    constexpr int kWanted = Times * Kernel::kPairsAPiece, kPairs = kWanted < kPiecePairs ? kWanted : kPiecePairs;
    using Floats = typename Kernel::Floats;
    Floats sums[Rows][Kernel::kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < Kernel::kVectors; ++v) memcpy(&sums[r][v], c + r * kColumns + v * Kernel::kLanes, sizeof(Floats));
    }
    for (int i = 0; i < pairs; i += kPairs) {
      if (!pieces.is_done()) pieces.turn();
      for (int pair = 0; pair < kPairs; ++pair, a += Kernel::kLefts, b += Kernel::kPacked) {
        Kernel::template add<Rows>(a, b, sums);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < Kernel::kVectors; ++v) memcpy(c + r * kColumns + v * Kernel::kLanes, &sums[r][v], sizeof(Floats));
    }
  }

  static void copy(const float *c, const Places &columns, float *to) {
    if (!columns.are_runs_of(8)) return gather(c, columns, to);
    for (int n = 0; n < columns.count; n += 8) memcpy(to + n, c + columns.at[n], 32);
  }
  static void copy_back(float *c, const Places &columns, const float *from) {
    if (!columns.are_runs_of(8)) return scatter(c, columns, from);
    for (int n = 0; n < columns.count; n += 8) memcpy(c + columns.at[n], from + n, 32);
  }

};

}  // namespace vnpu::product
