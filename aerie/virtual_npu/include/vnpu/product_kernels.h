// Micro-kernels of the matrix product: what product_driver.h needs of a machine.
//
// A micro-kernel adds to kColumns columns of up to kRows rows of c. The rows of a are runs of k, of type Left, a multiple of
// kGroup steps; b is packed by the kernel itself, kSteps of k in a Packed. There is one for each order of sums (dots.h):
//
//   Plain       one by one   product_plain.h: AVX-512 8 x 32 sums in registers, AVX2 4 x 24, NEON 4 x 16, others 4 x 8
//   Pairs       pairs        product_pairs.h: AVX512-BF16, 8 x 32
//   OddPairs    odd pairs    product_arm.h: BFMMLA, 8 x 12
//   Tiles       in tiles     product_tiles.h: AMX-BF16, 32 x 32 in four tiles; product_column_tiles.h, where b is a weight
//
// Each gives the bits that vector.contract alone gives in that order (contract.h). Products of few rows have their own
// micro-kernels on some of these sets (product_few.h), with the same bits.
#pragma once

#include "vnpu/arith.h"
#include "vnpu/dots.h"

namespace vnpu::product {

// Neighbouring values of an index: the place of each in an operand, in elements from the first.
struct Places {
  const i64 *at;
  int count;
  int run;  // from every multiple of it on, this many are contiguous: 32, 16, 8 or 1

  bool are_runs_of(int length) const { return count % length == 0 && run % length == 0; }
};

template <class T>
VNPU_INLINE void gather(const T *row, const Places &columns, T *to) {
  for (int i = 0; i < columns.count; ++i) to[i] = row[columns.at[i]];
}
template <class T>
VNPU_INLINE void scatter(T *row, const Places &columns, const T *from) {
  for (int i = 0; i < columns.count; ++i) row[columns.at[i]] = from[i];
}

// The defaults of a micro-kernel.
struct DefaultKernel {
  static constexpr int kMinRows = 1;      // rows of c are taken kRows at a time, then in halves of that, down to this many
  static constexpr i64 kPanelBytes = 24 << 10;  // bytes of a packed panel of b, which must stay in L1
  static constexpr i64 kRowsBytes = 384 << 10;  // bytes of the packed rows of a, which must stay in L2
  static constexpr bool kReadsEvenly = false;  // whether rows of a must be as far apart as in a packed piece
  static constexpr uint16_t kFiller = 0;    // the bits that pad rows of a to kGroup steps
  static void prepare() {}                  // called before a product; may fail
  struct Turn {};                           // alive while a thread multiplies
};

}  // namespace vnpu::product
