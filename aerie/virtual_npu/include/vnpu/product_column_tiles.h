// Cuts a matrix product for the tiles of AMX-BF16 if columns of b are runs of k, as in a weight.
//
// The columns of b are then the rows of the left tiles, read without packing, and a is the right factor: so only a is packed,
// once for all columns. The first block of rows reads a panel of kColumns columns of b from memory. The CPU prefetches that
// many streams by itself, faster than with prefetch instructions. While the other blocks read the panel from L2, lines of the
// next panel are prefetched, no faster than memory delivers them, because tiles would wait behind them.
//
// Sums are 32 x 32 in four tiles, over as many steps of k as fit L2 with two panels and the packed rows of a: tiles load from
// L2 nearly as fast as from L1, and sums should be loaded and stored rarely. In c the sums are transposed, so they are
// transposed in registers; if c is all +0, as it mostly is, tiles start with zeros. Loading a tile waits until earlier vector
// stores to its memory are in L1, so three blocks of sums are in flight: one is filled for the next turn, one is multiplied,
// and one goes back to c. If k has more steps, all sums stay in blocks until the last steps. Rounded sums start with zeros, and
// go to c past the caches.
//
// Threads take one task after the other, some panels by a block of rows: of two threads one may be a fifth slower. All panels
// are multiplied by one block of rows before the next block is packed.
#pragma once

#include "vnpu/product_tiles.h"
#include "vnpu/product_turned_sums.h"

namespace vnpu::product {

// The micro-kernel: adds products of many columns of b and rows of a to a block of sums.
class ColumnKernel : public Tiles<32> {
 public:
  static constexpr int kDepth = 32, kTile = 16, kColumns = kSumsSide, kRows = kSumsSide;
  using Pair = Packed;

  // The part of b that is multiplied next, line by line in the order of memory.
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

  // The operands of one block of sums: columns of b in memory, `far` bytes apart, and packed rows of a.
  struct Factors {
    const bf16 *columns;
    i64 far;
    const Pair *rows;
    i64 steps;
    bool starts_with_zeros;
    i64 lines;  // lines of the next panel to prefetch in every step
  };

  // Adds to Lefts x 16 rows and Rights x 16 columns of sums.
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
  static constexpr i64 kMaxRows = 256;  // rows of a that are packed at a time
  static constexpr i64 kPackedBytes = 1 << 20;  // bytes of them
  static constexpr i64 kMaxSteps = 4096;  // steps of k at a time; a panel of them has 256 KB
  static constexpr i64 kMaxPanels = 32;  // panels whose sums are all kept, 1 MB with kMaxRows
  // Panels of a task, small enough to share the work evenly, and rows. Of smaller products tasks have fewer, but no thread idles.
  static constexpr i64 kMinPanels = 8, kMinRows = 64;
  static constexpr i64 kTasksPerThread = 4;  // tasks of a block of rows, so that a slower thread takes fewer
  static constexpr i64 kWorthThreads = 1 << 20;  // multiplications that take longer than waking a thread
  static constexpr i64 kMaxLines = 8;  // lines of b that are prefetched in a step of k
  static constexpr int kInFlight = 3;  // blocks of sums
  static constexpr int kLineBytes = 64;

  // The tasks of a product: some panels of b by a block of rows, all panels by one block first.
  struct Cut {
    i64 rows, packed;  // rows of a that are packed at a time; with the rows that pad them
    i64 steps;  // steps of k that are taken at a time
    i64 panels;  // of a task
    i64 groups, tasks;
    bool keeps_sums;  // whether the sums of a whole task stay in blocks from some steps to the next

    Cut(const ColumnTiles &all, i64 threads) {
      rows = least(all.m_, kMaxRows), packed = (rows + kRows - 1) / kRows * kRows;
      const i64 fitting = kPackedBytes / i64(sizeof(bf16)) / packed / kDepth * kDepth;
      steps = least(all.k_, least(fitting, kMaxSteps)), keeps_sums = steps < all.k_;
      const i64 count = (all.n_ + kColumns - 1) / kColumns, each = keeps_sums || threads == 1 ? 1 : kTasksPerThread;
      panels = (count + threads * each - 1) / (threads * each);
      if (panels < kMinPanels) panels = kMinPanels;
      if (keeps_sums) panels = least(panels, kMaxPanels);
      set_tasks(all, count);
      while (tasks < threads && rows > kMinRows) {
        rows /= 2, packed = (rows + kRows - 1) / kRows * kRows;
        set_tasks(all, count);
      }
      while (tasks < threads && panels > 1) {
        panels /= 2;
        set_tasks(all, count);
      }
    }
    void set_tasks(const ColumnTiles &all, i64 count) {
      groups = (count + panels - 1) / panels, tasks = (all.m_ + rows - 1) / rows * groups;
    }
  };
  static i64 least(i64 one, i64 other) { return one < other ? one : other; }

  // The part that a thread multiplies now, and its memory.
  struct Work {
    Pair *packed;
    TurnedSums *sums;  // kInFlight blocks, or those of all panels
    i64 first = 0, end = 0;  // panels of c
    i64 m = -1, rows = 0;  // rows of c
    i64 k = -1, steps = 0;
    i64 then = 0;  // the first panel of the next task
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

  // Packs them as columns of a right factor; the last one is repeated.
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
  // Whether rows of rounded sums start with cache lines.
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

  // Prefetches the next panel during all blocks except the first, no faster than memory delivers.
  static i64 lines_a_step(const Work &work) {
    const i64 others = work.blocks_down() - 1;
    return least((kColumns + others - 1) / others, kMaxLines);
  }

  // What follows this panel: the next one; after all of a task, its first one over the next steps; after these, the next task.
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
