// The micro-kernel for AMX-BF16: 32 x 32 sums in four tiles, 16 more columns and rows of a and b in the other four.
//
// An instruction is given kDepth steps of k, 32 or 8 (dots.h says when): tiles of a have 16 rows of 64 or 16 bytes, tiles of b 16
// or four rows of 64, each row two steps of k of 16 columns. Sums lie in c as the text wants them, mostly in blocks of 8 x 8,
// so they pass through a buffer on their way to the tiles and back: 8 KiB moved for 32 x 32 x 512 multiplications.
//
// Of few rows (FewTiles) the columns of b, runs of k as a weight has them, are the rows of the left tiles, and a is the right
// factor: so b is read as it lies, once, a line of 16 columns at a time, and what is packed is a.
#pragma once

#include "vnpu/product_interleaved.h"
#include "vnpu/product_operands.h"
#include "vnpu/tiles.h"

namespace vnpu::product {

using tiles::settle;

template <int kDepth>
struct Tiles : Usual, Interleaved {
  static constexpr int kRows = 32, kLeastRows = 16, kGroup = kDepth;
  static constexpr i64 kPanelBytes = 32 << 10, kRowsBytes = 1 << 20;  // these CPUs have 48 KiB of L1 and 2 MiB of L2
  static constexpr bool kReadsEvenly = true;
  using Left = bf16;

  static void prepare() { tiles::prepare(); }

  struct Turn : tiles::Turn {
    Turn() : tiles::Turn({16, 64}, {16, kGroup * int(sizeof(Left))}, {kGroup / kSteps, 64}) {}
  };

  template <int Rows>
  static void add(const Left *const *a, const Packed *b, i64 k, float *const *c, const Places &columns) {
    add_some<Rows>(a, b, k, c, columns, Rows);
  }

  // The same where c has fewer rows; the rows of a that are missing are read, but reach no sum.
  template <int Rows>
  [[gnu::noinline]] static void add_some(const Left *const *a, const Packed *b, i64 k, float *const *c,
                                         const Places &columns, int rows) {
    alignas(64) float sums[Rows][kColumns];
    for (int r = 0; r < rows; ++r) copy(c[r], columns, sums[r]);
    add_to<Rows>(a[0], (rows > 1 ? a[1] - a[0] : 0) * i64(sizeof(Left)), b, k, sums[0]);
    for (int r = 0; r < rows; ++r) copy_back(c[r], columns, sums[r]);
  }

 private:
  static VNPU_INLINE void copy(const float *c, const Places &columns, float *to) {
    if (!columns.are_runs_of(8)) return gather(c, columns, to);
    for (int n = 0; n < columns.count; n += 8) memcpy(to + n, c + columns.at[n], 32);
  }
  static VNPU_INLINE void copy_back(float *c, const Places &columns, const float *from) {
    if (!columns.are_runs_of(8)) return scatter(c, columns, from);
    for (int n = 0; n < columns.count; n += 8) memcpy(c + columns.at[n], from + n, 32);
  }

  // To all columns of sums, rows side by side. a: rows so many bytes apart.
  template <int Rows>
  static VNPU_INLINE void add_to(const Left *a, i64 a_bytes, const Packed *b, i64 k, float *sums) {
    constexpr int kRowBytes = kColumns * int(sizeof(float)), kPairBytes = kColumns * int(sizeof(Packed));
    settle(sums);
    _tile_loadd(0, sums, kRowBytes);
    _tile_loadd(1, sums + 16, kRowBytes);
    if constexpr (Rows > 16) {
      _tile_loadd(2, sums + 16 * kColumns, kRowBytes);
      _tile_loadd(3, sums + 16 * kColumns + 16, kRowBytes);
    }
    const char *const second = reinterpret_cast<const char *>(a) + 16 * a_bytes;
    for (i64 i = 0; i < k; i += kGroup, b += kGroup / kSteps * kColumns) {
      _tile_loadd(6, b, kPairBytes);
      _tile_loadd(4, a + i, a_bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b + 16, kPairBytes);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (Rows > 16) {
        _tile_loadd(5, second + i * i64(sizeof(Left)), a_bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, sums, kRowBytes);
    _tile_stored(1, sums + 16, kRowBytes);
    if constexpr (Rows > 16) {
      _tile_stored(2, sums + 16 * kColumns, kRowBytes);
      _tile_stored(3, sums + 16 * kColumns + 16, kRowBytes);
    }
  }
};

// At most 64 rows of a, by columns of b that are runs of k.
class FewTiles : Operands {
 public:
  explicit FewTiles(const Product &product) : Operands(product) {}

  static bool may_serve(const Product &product) {
    return rows_of(product) <= kMostRows && dots::depth_of(product.block_steps) == kDepth;
  }
  bool serves() const {
    return n_ % kColumns == 0 && a_steps_.lie_in_lines() && b_steps_.is_run() && b_columns_.are_even();
  }

  void run() {
    Kernel::prepare();
    share_panels(kColumns, kWorthThreads, [&](i64 first, i64 end) { multiply(first, end); });
  }

 private:
  static constexpr int kDepth = 32, kColumns = 16, kMostRows = 64, kLine = 32;
  static constexpr i64 kWorthThreads = 1 << 20;  // multiplications that take longer than to wake a thread
  using Kernel = Tiles<kDepth>;
  using Pair = Kernel::Packed;
  static constexpr int kSide = Kernel::kColumns;  // rows of a that are packed side by side

  void multiply(i64 first, i64 end) const {
    if (first >= end) return;
    const Kernel::Turn turn{};
    Blocks blocks;
    Pair *const packed = blocks.alloc<Pair>((m_ + kSide - 1) / kSide * kSide * k_ / 2);
    pack_rows(packed);
    for (i64 panel = first; panel < end; ++panel) {
      go_on();
      const bf16 *const columns = product_.b + b_columns_[panel * kColumns];
      const bf16 *const next = panel + 1 < end ? product_.b + b_columns_[(panel + 1) * kColumns] : columns;
      alignas(64) float sums[kColumns][kMostRows];
      each_sum(panel, [&](float &c, int n, i64 m) { sums[n][m] = c; });
      if (m_ > 48) add<4>(columns, next, packed, sums[0]);
      else if (m_ > 32) add<3>(columns, next, packed, sums[0]);
      else if (m_ > 16) add<2>(columns, next, packed, sums[0]);
      else add<1>(columns, next, packed, sums[0]);
      each_sum(panel, [&](float &c, int n, i64 m) { c = sums[n][m]; });
    }
  }

  // As columns of a right factor; the last one is repeated.
  void pack_rows(Pair *packed) const {
    for (i64 first = 0; first < m_; first += kSide, packed += kSide * k_ / 2) {
      i64 at[kSide];
      for (i64 m = 0; m < kSide; ++m) at[m] = a_rows_[first + m < m_ ? first + m : m_ - 1];
      Kernel::pack(product_.a, a_steps_.some(0, k_), {at, kSide, 1}, packed);
    }
  }

  template <class Each>
  VNPU_INLINE void each_sum(i64 panel, const Each &each) const {
    for (int n = 0; n < kColumns; ++n) {
      float *const column = product_.c + c_columns_[panel * kColumns + n];
      for (i64 m = 0; m < m_; ++m) each(column[c_rows_[m]], n, m);
    }
  }

  // To so many times 16 columns of sums, 16 rows of them. next: what comes from memory meanwhile, in the order in which it lies
  // there.
  template <int Sides>
  [[gnu::noinline]] void add(const bf16 *columns, const bf16 *next, const Pair *rows, float *sums) const {
    constexpr int kSumBytes = kMostRows * int(sizeof(float)), kPairBytes = kSide * int(sizeof(Pair));
    const i64 far = b_columns_[1] - b_columns_[0], far_bytes = far * i64(sizeof(bf16)), lines = k_ / kLine;
    const Pair *others = rows + kSide * k_ / 2;
    settle(sums);
    _tile_loadd(0, sums, kSumBytes);
    if constexpr (Sides > 1) _tile_loadd(1, sums + 16, kSumBytes);
    if constexpr (Sides > 2) _tile_loadd(2, sums + 32, kSumBytes);
    if constexpr (Sides > 3) _tile_loadd(3, sums + 48, kSumBytes);
    i64 line = 0;
    for (i64 i = 0; i < lines; ++i, columns += kDepth, rows += kDepth / 2 * kSide, others += kDepth / 2 * kSide) {
      for (int n = 0; n < kColumns; ++n) {
        __builtin_prefetch(next + line * kLine);
        if (++line == lines) line = 0, next += far;
      }
      _tile_loadd(4, columns, far_bytes);
      _tile_loadd(6, rows, kPairBytes);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (Sides > 1) {
        _tile_loadd(7, rows + 16, kPairBytes);
        _tile_dpbf16ps(1, 4, 7);
      }
      if constexpr (Sides > 2) {
        _tile_loadd(5, others, kPairBytes);
        _tile_dpbf16ps(2, 4, 5);
      }
      if constexpr (Sides > 3) {
        _tile_loadd(6, others + 16, kPairBytes);
        _tile_dpbf16ps(3, 4, 6);
      }
    }
    _tile_stored(0, sums, kSumBytes);
    if constexpr (Sides > 1) _tile_stored(1, sums + 16, kSumBytes);
    if constexpr (Sides > 2) _tile_stored(2, sums + 32, kSumBytes);
    if constexpr (Sides > 3) _tile_stored(3, sums + 48, kSumBytes);
  }
};

}  // namespace vnpu::product
