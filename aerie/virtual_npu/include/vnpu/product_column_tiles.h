// How a matrix product is cut for the tiles of AMX-BF16 where columns of b are runs of k, as a weight has them.
//
// They are the rows of the left tiles then, read as they lie, and a is the right factor: so what is packed is a, once for all
// columns. The first block of rows reads a panel of kColumns columns of b from memory, where the CPU by itself looks ahead in
// as many streams, and faster so than when it is asked for more. While the other blocks read it from L2, lines of the next
// panel are asked for, no faster than memory gives them, as tiles would wait behind them.
//
// Sums are 32 x 32 in four tiles, over as many steps of k as two panels and the packed rows of a leave room for in L2: tiles
// come from there nearly as fast as from L1, and the fewer times sums are loaded and stored, the better. In c they lie the
// other way round, so they are turned in registers; where c is all +0, as it mostly is, tiles begin with zeros. A tile that is
// loaded waits until what vectors stored there is in L1. So three blocks of sums are under way: one is filled for the next
// turn, one is multiplied, and one goes back to c. Over more steps than are taken at once, all sums stay in blocks until the
// last ones. Sums that are rounded begin with zeros, and go to c past the caches.
//
// Threads take one task after the other, some panels by a block of rows: of two threads one may be a fifth slower. All panels
// are multiplied by a block of rows before the next one is packed.
#pragma once

#include "vnpu/product_tiles.h"
#include "vnpu/product_turned_sums.h"

namespace vnpu::product {

// The micro-kernel. Of many columns of b and rows of a it adds to a block of sums.
class ColumnKernel : public Tiles<32> {
 public:
  static constexpr int kDepth = 32, kTile = 16, kColumns = kSumsSide, kRows = kSumsSide;
  using Pair = Packed;

  // What will be multiplied next of b, line by line as it lies in memory.
  class Lines {
   public:
    Lines() = default;
    Lines(const bf16 *column, i64 far, i64 steps, i64 columns)
        : column_(column), at_(column), end_(column + steps), far_(far), steps_(steps), columns_(columns) {}
    VNPU_INLINE void fetch(i64 count) {
      for (; count > 0 && columns_ > 0; --count, at_ += kDepth) {
        __builtin_prefetch(at_, 0, 2);
        if (at_ + kDepth < end_) continue;
        --columns_;
        at_ = (column_ += far_) - kDepth;
        end_ = column_ + steps_;
      }
    }

   private:
    const bf16 *column_ = nullptr, *at_ = nullptr, *end_ = nullptr;
    i64 far_ = 0, steps_ = 0, columns_ = 0;
  };

  // For one block of sums: columns of b as they lie, so many bytes apart, and packed rows of a.
  struct Factors {
    const bf16 *columns;
    i64 far;
    const Pair *rows;
    i64 steps;
    bool starts_with_zeros;
    i64 lines;  // to be fetched in every step
  };

  // To so many times 16 rows and columns of sums.
  template <int Lefts, int Rights>
  [[gnu::noinline]] static void add(const Factors &factors, float *sums, Lines &ahead) {
    constexpr int kSumBytes = kRows * int(sizeof(float)), kPairBytes = kRows * int(sizeof(Pair));
    using Four = amx::Sums<Lefts, Rights, kSumBytes, int(sizeof(float)) * kTile, kTile * kSumBytes>;
    const i64 far = factors.far, lines = factors.lines, steps = factors.steps;
    const char *columns = reinterpret_cast<const char *>(factors.columns), *const others = columns + kTile * far;
    const Pair *rows = factors.rows;
    char *const tiles = reinterpret_cast<char *>(sums);
    Four::begin(factors.starts_with_zeros, tiles);
    for (i64 i = 0; i < steps * i64(sizeof(bf16)); i += kDepth * i64(sizeof(bf16)), rows += kDepth / kSteps * kRows) {
      ahead.fetch(lines);
      Four::add({columns + i, others + i, far}, {rows, rows + kTile, kPairBytes});
    }
    Four::end(tiles);
  }
};

class ColumnTiles : Operands {
 public:
  explicit ColumnTiles(const Product &product) : Operands(product), rows_fill_lines_(rows_fill_lines()) {}

  static bool may_serve(const Product &product) {
    return dots::order_of(product.block_steps, product.block_columns) == dots::Order::kTiles &&
           dots::depth_of(product.block_steps) == ColumnKernel::kDepth;
  }
  bool serves() const { return n_ % kTile == 0 && a_steps_.has_whole_lines() && b_steps_.is_run() && b_columns_.are_even(); }

  void run() {
    Kernel::prepare();
    multiply_rows(kTile, [&] {
      const int threads = m_ * n_ * k_ < kWorthThreads ? 1 : parallel_threads();
      const Cut cut(*this, threads);
      i64 next = 0;
      const auto work = [&](i64) { take_tasks(cut, next); };
      if (threads == 1) work(0);
      else parallel(threads, work);
    });
  }

 private:
  using Kernel = ColumnKernel;
  using Pair = Kernel::Pair;
  using Lines = Kernel::Lines;
  using Factors = Kernel::Factors;
  static constexpr int kDepth = Kernel::kDepth, kTile = Kernel::kTile, kColumns = Kernel::kColumns, kRows = Kernel::kRows;
  static constexpr i64 kMaxRows = 256;          // that are packed at once
  static constexpr i64 kPackedBytes = 1 << 20;   // of them
  static constexpr i64 kMaxSteps = 4096;        // of which a panel has 256 KB
  static constexpr i64 kMaxPanels = 32;         // of which all sums are kept, 1 MB with kMostRows
  static constexpr i64 kMinPanels = 8;         // of a task, which shares them out well
  static constexpr i64 kTasksPerThread = 4;      // of a block of rows, so that a slower thread takes fewer
  static constexpr i64 kWorthThreads = 1 << 20;  // multiplications that take longer than to wake a thread
  static constexpr i64 kMaxLines = 8;           // of b that are asked for in a step of k
  static constexpr int kInFlight = 3;            // blocks of sums
  static constexpr int kLineBytes = 64;

  // How a product is cut into tasks: some panels of b by a block of rows, all panels by one block first.
  struct Cut {
    i64 rows, packed;     // of a that are packed at once; with those that fill them up
    i64 steps;            // of k that are taken at once
    i64 panels;           // of a task
    i64 groups, tasks;
    bool keeps_sums;      // of a whole task, from some steps to the next

    Cut(const ColumnTiles &all, i64 threads) {
      rows = least(all.m_, kMaxRows), packed = (rows + kRows - 1) / kRows * kRows;
      const i64 fitting = kPackedBytes / i64(sizeof(bf16)) / packed / kDepth * kDepth;
      steps = least(all.k_, least(fitting, kMaxSteps)), keeps_sums = steps < all.k_;
      const i64 count = (all.n_ + kColumns - 1) / kColumns, each = keeps_sums || threads == 1 ? 1 : kTasksPerThread;
      panels = (count + threads * each - 1) / (threads * each);
      if (panels < kMinPanels) panels = kMinPanels;
      if (keeps_sums) panels = least(panels, kMaxPanels);
      groups = (count + panels - 1) / panels, tasks = (all.m_ + rows - 1) / rows * groups;
    }
  };
  static i64 least(i64 one, i64 other) { return one < other ? one : other; }

  // What a thread multiplies at once, and what it does so in.
  struct Work {
    Pair *packed;
    TurnedSums *sums;           // kUnderWay, or those of all blocks
    i64 first = 0, end = 0;     // panels of c
    i64 m = -1, rows = 0;       // rows of c
    i64 k = -1, steps = 0;
    i64 then = 0;               // the first panel of the next task
    bool keeps_sums;

    i64 blocks_down() const { return (rows + kRows - 1) / kRows; }
    i64 blocks() const { return (end - first) * blocks_down(); }
    TurnedSums &sums_of(i64 block) const { return sums[keeps_sums ? block : block % kInFlight]; }
  };

  void take_tasks(const Cut &cut, i64 &next) const {
    const auto take = [&next] { return __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED); };
    i64 task = take();
    if (task >= cut.tasks) return;
    const Kernel::Turn turn{};
    Blocks blocks;
    Work work{};
    work.keeps_sums = cut.keeps_sums;
    work.packed = blocks.alloc<Pair>(cut.packed * cut.steps / Kernel::kSteps);
    work.sums = blocks.alloc<TurnedSums>(cut.keeps_sums ? cut.panels * (cut.packed / kRows) : kInFlight);
    for (i64 after; task < cut.tasks; task = after) {
      after = take();
      multiply(cut, task, after < cut.tasks ? after % cut.groups * cut.panels : -1, work);
    }
    end_stores();
  }

  void multiply(const Cut &cut, i64 task, i64 then, Work &work) const {
    const i64 m = task / cut.groups * cut.rows, panels = (n_ + kColumns - 1) / kColumns;
    work.first = task % cut.groups * cut.panels, work.end = least(work.first + cut.panels, panels), work.then = then;
    for (i64 k = 0; k < k_; k += cut.steps) {
      if (work.m != m || work.k != k) {
        work.m = m, work.rows = least(m_ - m, cut.rows), work.k = k, work.steps = least(k_ - k, cut.steps);
        pack_rows(work);
      }
      add_blocks(work);
    }
  }

  // As columns of a right factor; the last one is repeated.
  void pack_rows(const Work &work) const {
    Pair *to = work.packed;
    for (i64 m = 0; m < work.rows; m += kRows, to += kRows * work.steps / Kernel::kSteps) {
      i64 rows[kRows];
      place_rows(work, m, a_rows_, rows);
      Kernel::pack(product_.a, a_steps_.some(work.k, work.steps), {rows, kRows, 1}, to);
    }
  }
  static void place_rows(const Work &work, i64 first, const Offsets &rows, i64 *to) {
    for (i64 m = first; m < first + kRows; ++m) *to++ = rows[work.m + (m < work.rows ? m : work.rows - 1)];
  }

  void add_blocks(const Work &work) const {
    const i64 count = work.blocks();
    const bool are_first = work.k == 0, are_last = work.k + work.steps == k_;
    bool has_sums[kInFlight] = {true, true, true};
    Lines ahead;
    for (i64 i = 0; i < count + 2; ++i) {
      if (are_first && i < count) {
        has_sums[i % kInFlight] = !product_.rounded && work.sums_of(i).fill(sums_at(work, i));
      }
      if (i > 0 && i <= count) add_block(work, i - 1, has_sums[(i - 1) % kInFlight], ahead);
      if (are_last && i > 1) work.sums_of(i - 2).drain(sums_at(work, i - 2));
    }
  }

  Sums sums_at(const Work &work, i64 block) const {
    const i64 n = first_column(work, block), m = first_row(work, block);
    const Places columns = c_columns_.some(n, kColumns);
    Sums sums{product_.c,
              product_.rounded,
              columns.at,
              {},
              columns.count,
              int(least(work.rows - m, kRows)),
              c_columns_.has_groups_of_eight(),
              columns.are_runs_of(kColumns) && rows_fill_lines_};
    place_rows(work, m, c_rows_, sums.rows);
    return sums;
  }
  // Whether rows of rounded sums begin with lines of the cache.
  bool rows_fill_lines() const {
    if (!product_.rounded || reinterpret_cast<uintptr_t>(product_.rounded) % kLineBytes) return false;
    for (i64 m = 0; m < m_; ++m) {
      if (c_rows_[m] % (kLineBytes / i64(sizeof(bf16)))) return false;
    }
    return true;
  }
  static i64 first_column(const Work &work, i64 block) { return (work.first + block / work.blocks_down()) * kColumns; }
  static i64 first_row(const Work &work, i64 block) { return block % work.blocks_down() * kRows; }

  void add_block(const Work &work, i64 block, bool has_sums, Lines &ahead) const {
    const i64 n = first_column(work, block), m = first_row(work, block);
    if (m == 0) {
      check_running();
      ahead = lines_after(work, n / kColumns + 1);
    }
    const Pair *const rows = work.packed + m * work.steps / Kernel::kSteps;
    const Factors factors{product_.b + b_columns_[n] + b_steps_[work.k],
                          far() * i64(sizeof(bf16)),
                          rows,
                          work.steps,
                          !has_sums,
                          m == 0 ? 0 : lines_a_step(work)};
    float *const sums = work.sums_of(block).rows[0];
    const bool is_wide = n_ - n > kTile, is_high = work.rows - m > kTile;
    if (is_wide && is_high) Kernel::add<2, 2>(factors, sums, ahead);
    else if (is_wide) Kernel::add<2, 1>(factors, sums, ahead);
    else if (is_high) Kernel::add<1, 2>(factors, sums, ahead);
    else Kernel::add<1, 1>(factors, sums, ahead);
  }

  // All of a panel over all blocks but the first, or as many as memory gives.
  static i64 lines_a_step(const Work &work) {
    const i64 others = work.blocks_down() - 1;
    return least((kColumns + others - 1) / others, kMaxLines);
  }

  // Of this panel; after all of a task, of its first one over the next steps; after these, of the next task.
  Lines lines_after(const Work &work, i64 panel) const {
    if (panel < work.end) return lines_of(panel, work.k, work.steps);
    const i64 k = work.k + work.steps;
    if (k < k_) return lines_of(work.first, k, least(k_ - k, work.steps));
    return work.then < 0 ? Lines() : lines_of(work.then, 0, least(k_, work.steps));
  }
  Lines lines_of(i64 panel, i64 k, i64 steps) const {
    const i64 n = panel * kColumns;
    return Lines(product_.b + b_columns_[n] + b_steps_[k], far(), steps, least(n_ - n, kColumns));
  }
  i64 far() const { return b_columns_[1] - b_columns_[0]; }

  const bool rows_fill_lines_;
};

}  // namespace vnpu::product
