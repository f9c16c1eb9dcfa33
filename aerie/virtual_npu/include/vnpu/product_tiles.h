// The micro-kernel for AMX-BF16: 32 x 32 sums in four tiles, 16 more columns and rows of a and b in the other four.
//
// An instruction takes kDepth steps of k, 32 or 8 (dots.h says when): tiles of a have 16 rows of 64 or 16 bytes, tiles of b 16
// or four rows of 64, each row two steps of k of 16 columns. The text decides the layout of c, mostly blocks of 8 x 8, so sums
// pass through a buffer on their way to the tiles and back: 8 KiB moved for 32 x 32 x 512 multiplications.
//
// If columns of b are runs of k, product_column_tiles.h is used instead.
#pragma once

#include "vnpu/product_interleaved.h"
#include "vnpu/product_operands.h"
#include "vnpu/tiles.h"

namespace vnpu::product {

template <int kDepth>
struct Tiles : DefaultKernel, Interleaved {
  static constexpr int kRows = 32, kMinRows = 16, kGroup = kDepth;
  static constexpr i64 kPanelBytes = 32 << 10, kRowsBytes = 1 << 20;  // these CPUs have 48 KiB of L1 and 2 MiB of L2
  static constexpr bool kReadsEvenly = true;
  using Left = bf16;

  static void prepare() { amx::prepare(); }

  struct Turn : amx::Turn {
    Turn() : amx::Turn({16, 64}, {16, kGroup * int(sizeof(Left))}, {kGroup / kSteps, 64}) {}
  };

  template <int Rows>
  static void add(const Left *const *a, const Packed *b, i64 k, float *const *c, const Places &columns) {
    add_some<Rows>(a, b, k, c, columns, Rows);
  }

  // The same if c has fewer rows; the missing rows of a are read, but reach no sum.
  template <int Rows>
  [[gnu::noinline]] static void add_some(const Left *const *a, const Packed *b, i64 k, float *const *c, const Places &columns,
                                         int rows) {
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

  // Adds to all columns of some sums, rows side by side. a: rows `a_bytes` apart.
  template <int Rows>
  static VNPU_INLINE void add_to(const Left *a, i64 a_bytes, const Packed *b, i64 k, float *sums) {
    constexpr int kRowBytes = kColumns * int(sizeof(float)), kPairBytes = kColumns * int(sizeof(Packed));
    using Four = amx::Sums<(Rows + 15) / 16, 2, kRowBytes, 16 * int(sizeof(float)), 16 * kRowBytes>;
    const char *const first = reinterpret_cast<const char *>(a), *const second = first + 16 * a_bytes;
    char *const tiles = reinterpret_cast<char *>(sums);
    Four::begin(false, tiles);
    for (i64 i = 0; i < k * i64(sizeof(Left)); i += kGroup * i64(sizeof(Left)), b += kGroup / kSteps * kColumns) {
      Four::add({first + i, second + i, a_bytes}, {b, b + 16, kPairBytes});
    }
    Four::end(tiles);
  }
};

}  // namespace vnpu::product
