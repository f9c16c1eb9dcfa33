// Cuts a matrix product of few rows. Its cost is reading b from memory, because few rows share each read.
//
// So b is never stored. Its panels of kColumns columns follow each other in the order of memory, and within a panel the steps
// of k, kChunk at a time. A chunk is transposed into a buffer in L1 while the chunk before it is multiplied, piece by piece, so
// that neither waits for the other (product_few.h has the pieces). Eight columns of a chunk are read at a time, four cache
// lines each: the CPU prefetches eight streams by itself, but not the 32 of a whole panel. Meanwhile the next panel is
// prefetched in the order of memory. If memory is busy, the CPU drops prefetches, so each line is prefetched once more, a chunk
// ahead. Both go to L2 where L1 is small: columns are often 4 KB apart, and their lines then share a set of L1.
//
// The rows of a are packed once for kMaxSteps steps of k, step by step, and stay in L2. Panels are independent. Every thread
// has neighbouring panels, a contiguous part of memory.
#pragma once

#include <time.h>

#include "vnpu/prefetch.h"
#include "vnpu/product_few.h"
#include "vnpu/product_operands.h"

namespace vnpu::product {

// The pieces of b, transposed one after the other: a chunk at a time, while the chunk before it is multiplied.
template <class Kernel>
class Pieces {
 public:
  using Packed = typename Kernel::Packed;
  static constexpr i64 kChunk = 128;  // steps of k

  // Reads `steps` steps of all these columns from step `from` of b on, through two buffers of a chunk each. `next`: the same of
  // the columns that follow, to be prefetched; null means none.
  Pieces(const bf16 *from, i64 steps, const i64 *columns, i64 count, const bf16 *next, Packed *const *buffers)
      : first_(from),
        columns_(columns),
        end_(columns + count),
        steps_(steps),
        to_(buffers[0]),
        other_(buffers[1]),
        prefetch_row_(from),
        prefetch_columns_(columns + Kernel::kColumns),
        begun_(columns),
        next_(next) {
    begin();
    end_chunk();
  }
  // Sets whether lines are prefetched a second time from now on.
  void prefetch_twice(bool twice) { again_ = twice; }
  // The chunk that is to be multiplied.
  const Packed *turned() const { return other_; }
  // Whether all of the chunk after it is transposed.
  bool is_done() const { return group_ >= groups_; }

  // Transposes one of the remaining pieces of that chunk.
  VNPU_INLINE void turn() {
    if (prefetch_columns_ < end_) prefetch();
    Kernel::turn(at_, columns_ + group_ * kPieceColumns, to_ + line_ * kPiecePairs * Kernel::kPacked + group_ * kPieceColumns);
    if (again_) prefetch_again();
    at_ += kPieceSteps;
    if (++line_ == lines_) line_ = 0, at_ = chunk_, ++group_;
    if (Kernel::kFetches && !is_done()) fetch();
  }
  // Transposes the remaining pieces of the chunk, makes it the one to be multiplied, and starts another one if there is one.
  VNPU_INLINE void end_chunk() {
    while (!is_done()) turn();
    Packed *const turned = to_;
    to_ = other_, other_ = turned;
    chunk_ += kChunk;
    left_ -= kChunk;
    if (left_ <= 0) columns_ += Kernel::kColumns, begin();
    else begin_chunk();
  }

 private:
  // A panel.
  VNPU_INLINE void begin() {
    chunk_ = first_;
    left_ = steps_;
    const i64 columns = end_ - columns_;
    groups_ = int(columns < Kernel::kColumns ? columns : i64(Kernel::kColumns)) / kPieceColumns;
    begin_chunk();
  }
  VNPU_INLINE void begin_chunk() {
    lines_ = int((left_ < kChunk ? left_ : kChunk) / kPieceSteps);
    group_ = line_ = 0;
    at_ = chunk_;
  }
  // Prefetches this piece of the next chunk again: the CPU drops some of the earlier prefetches while memory is busy.
  VNPU_INLINE void prefetch_again() const {
    const bool is_last = left_ <= kChunk;
    const i64 *const columns = columns_ + group_ * kPieceColumns + (is_last ? Kernel::kColumns : 0);
    if (is_last && columns >= end_) return;
    const bf16 *const from = is_last ? first_ + line_ * kPieceSteps : at_ + kChunk;
#pragma GCC unroll 8
    for (int i = 0; i < kPieceColumns; ++i) prefetch_line(from + columns[i]);
  }
  // Fetches the next piece from L2 while this one is transposed.
  VNPU_INLINE void fetch() const {
    const i64 *const columns = columns_ + group_ * kPieceColumns;
#pragma GCC unroll 8
    for (int i = 0; i < kPieceColumns; ++i) __builtin_prefetch(at_ + columns[i]);
  }
  VNPU_INLINE void prefetch_line(const bf16 *line) const {
    if (kHasSmallL1) __builtin_prefetch(line, 0, 2);
    else __builtin_prefetch(line);
  }
  // Prefetches as many lines as a piece has, side by side, of the next panel.
  VNPU_INLINE void prefetch() {
    const bf16 *const row = prefetch_row_ + *prefetch_columns_ + prefetch_step_;
#pragma GCC unroll 8
    for (int i = 0; i < kPieceColumns; ++i) prefetch_line(row + i * kPieceSteps);
    prefetch_step_ += kPieceColumns * kPieceSteps;
    if (prefetch_step_ < steps_) return;
    prefetch_step_ = 0;
    ++prefetch_columns_;
    if (prefetch_columns_ == end_ && next_) prefetch_row_ = next_, prefetch_columns_ = begun_, next_ = nullptr;
  }

  const bf16 *const first_, *chunk_ = nullptr, *at_ = nullptr;
  const i64 *columns_, *const end_;
  const i64 steps_;
  i64 left_ = 0;
  Packed *to_, *other_;
  int lines_ = 0, line_ = 0, groups_ = 0, group_ = 0;
  const bf16 *prefetch_row_;
  const i64 *prefetch_columns_, *const begun_;
  const bf16 *next_;
  bool again_ = false;
  i64 prefetch_step_ = 0;
};

template <class Kernel>
class FewRows : Operands {
 public:
  explicit FewRows(const Product &product) : Operands(product) {}

  // Called before the layout of the operands is known.
  static bool may_serve(const Product &product) { return rows_of(product) <= kMaxOutputRows; }
  // Whether a and b consist of whole pieces, in which rows of a and columns of b are runs of k.
  bool serves() const {
    return n_ % kPieceColumns == 0 && k_ % kPieceSteps == 0 && a_steps_.has_whole_lines() && b_steps_.is_run();
  }

  void run() {
    multiply_rows(Kernel::kMinRows,
                  [&] { share_panels(kColumns, kWorthThreads, [&](i64 first, i64 end) { multiply(first, end); }); });
  }

 private:
  using Left = typename Kernel::Left;
  using Packed = typename Kernel::Packed;
  static constexpr int kRows = Kernel::kRows, kColumns = Kernel::kColumns;
  static constexpr i64 kMaxOutputRows = 32;  // rows of c
  static constexpr i64 kChunk = Pieces<Kernel>::kChunk;
  static constexpr i64 kMaxSteps = 4096;  // a panel of them is 256 KB; for more steps, or more than 16 rows, half
  static constexpr i64 kPackedRows = 8;  // rows of a that are packed at a time
  static constexpr i64 kSlow = 40;  // nanoseconds for a KB of b above which memory counts as busy
  static constexpr i64 kWorthThreads = 1 << 20;  // multiplications that take longer than waking a thread

  // Panels of c and steps of k, and the memory of one thread.
  struct Work {
    i64 first, end;  // panels
    i64 k, steps;  // the present steps
    const Left *packed;  // a: kRows rows, pair by pair of steps, then the next kRows
    Packed *turned[2];  // a chunk of b each
    float *sums;  // m x kColumns
  };

  void multiply(i64 first, i64 end) const {
    if (first >= end) return;
    Blocks blocks;
    const i64 rows = (m_ + kPackedRows - 1) / kPackedRows * kPackedRows;
    const i64 max_steps = rows > 16 || k_ > kMaxSteps ? kMaxSteps / 2 : kMaxSteps, parts = (k_ + max_steps - 1) / max_steps;
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

  static i64 nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return i64(now.tv_sec) * 1000000000 + now.tv_nsec;
  }

  // Packs kRows rows over some steps.
  static i64 lefts(i64 steps) { return steps / 2 * Kernel::kLefts; }

  // After the last row, rows are repeated up to kPackedRows.
  void pack_rows(const Work &work, Left *packed) const {
    for (i64 m = 0; m < m_; m += kPackedRows, packed += kPackedRows / kRows * lefts(work.steps)) {
      i64 rows[kPackedRows];
      for (i64 r = 0; r < kPackedRows; ++r) rows[r] = a_rows_[m + r < m_ ? m + r : m_ - 1];
      for (i64 i = 0; i < work.steps; i += kPieceSteps) {
        Kernel::pack_rows(product_.a + a_steps_[work.k + i], rows, packed + lefts(i), lefts(work.steps));
      }
    }
  }

  // next: the first step of k after the present ones.
  void add_panels(const Work &work, i64 next) const {
    const i64 chunks = (work.steps + kChunk - 1) / kChunk, before = work.first * kColumns;
    const i64 count = (work.end * kColumns < n_ ? work.end * kColumns : n_) - before;
    const bf16 *const b = product_.b;
    Pieces<Kernel> pieces(b + b_steps_[work.k], work.steps, b_columns_.some(before, count).at, count,
                          next < k_ ? b + b_steps_[next] : nullptr, work.turned);
    i64 begun = nanoseconds();
    for (i64 panel = work.first; panel < work.end; ++panel) {
      check_running();
      const Places columns = c_columns_.some(panel * kColumns, kColumns);
      for (i64 m = 0; m < m_; ++m) copy(product_.c + c_rows_[m], columns, work.sums + m * kColumns);
      if (m_ <= kRows) {
        add_up_to<kRows>(int(m_), work.packed, work.steps, work.sums, pieces);
      } else {
        for (i64 chunk = 0; chunk < chunks; ++chunk) {
          add_chunk(work, chunk * kChunk, pieces);
          pieces.end_chunk();
        }
      }
      for (i64 m = 0; m < m_; ++m) copy_back(product_.c + c_rows_[m], columns, work.sums + m * kColumns);
      if (m_ > Kernel::kMaxRowsPrefetchedTwice) continue;
      const i64 ended = nanoseconds();
      pieces.prefetch_twice((ended - begun) * 512 > kSlow * kColumns * work.steps);
      begun = ended;
    }
  }

  // Adds the products of the transposed steps from `first` on to all rows, and transposes pieces evenly in between.
  void add_chunk(const Work &work, i64 first, Pieces<Kernel> &pieces) const {
    const i64 left = work.steps - first, steps = left < kChunk ? left : kChunk;
    const Left *from = work.packed + lefts(first);
    for (i64 m = 0; m < m_; m += kRows, from += lefts(work.steps)) {
      float *const sums = work.sums + m * kColumns;
      if (m_ > 16) add<4, kRows, false>(from, steps, sums, pieces);
      else if (m_ > 8) add<2, kRows, false>(from, steps, sums, pieces);
      else add<1, kRows, false>(from, steps, sums, pieces);
    }
  }

  // The number of rows, or the next power of two, but kMinRows at least.
  template <int Rows>
  static void add_up_to(int rows, const Left *a, i64 steps, float *c, Pieces<Kernel> &pieces) {
    if constexpr (Rows > Kernel::kMinRows) {
      if (rows <= Rows / 2) return add_up_to<Rows / 2>(rows, a, steps, c, pieces);
    }
    add<1, Rows, true>(a, steps, c, pieces);
  }

  // Adds a chunk, or the steps that remain. A piece is transposed after every Times x kPairsAPiece pairs of steps, but at least
  // after every 16. A separate function, so that sums stay in registers.
  template <int Times, int Rows, bool kMany>
  [[gnu::noinline]] static void add(const Left *a, i64 steps, float *c, Pieces<Kernel> &pieces) {
    constexpr int kTargetPairs = Times * Kernel::template kPairsAPiece<Rows>,
                  kPairs = kTargetPairs < kPiecePairs ? kTargetPairs : kPiecePairs;
    using Floats = typename Kernel::Floats;
    Floats sums[Rows][Kernel::kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < Kernel::kVectors; ++v) memcpy(&sums[r][v], c + r * kColumns + v * Kernel::kLanes, sizeof(Floats));
    }
    for (;;) {
      const Packed *b = pieces.turned();
      const int pairs = int(steps < kChunk ? steps : kChunk) / 2;
      for (int i = 0; i < pairs; i += kPairs) {
        if (!pieces.is_done()) pieces.turn();
        for (int pair = 0; pair < kPairs; ++pair, a += Kernel::kLefts, b += Kernel::kPacked) {
          Kernel::template add<Rows>(a, b, sums);
        }
      }
      if constexpr (!kMany) break;
      pieces.end_chunk();
      steps -= kChunk;
      if (steps <= 0) break;
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
