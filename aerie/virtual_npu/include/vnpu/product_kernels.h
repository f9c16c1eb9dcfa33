// Micro-kernels of the matrix product: what product_driver.h needs of a machine.
//
// A micro-kernel adds to kColumns columns of up to kRows rows of c. The rows of a are runs of k, of Left, a multiple of kGroup
// steps; b comes as the kernel itself packs it, kSteps of k in a Packed. There is one for each order of sums (dots.h):
//
//   Plain       one by one   product_plain.h: AVX-512 8 x 32 sums in registers, AVX2 4 x 24, NEON 4 x 16, others 4 x 8
//   Pairs       pairs        product_pairs.h: AVX512-BF16, 8 x 32
//   OddPairs    odd pairs    product_arm.h: BFMMLA, 8 x 12
//   Tiles       in tiles     product_tiles.h: AMX-BF16, 32 x 32 in four tiles; product_column_tiles.h, where b is a weight
//
// Each gives the bits that vector.contract gives by itself in that order (contract.h). Few rows have micro-kernels of their
// own on some of these sets (product_few.h), with the same bits.
#pragma once

#include "vnpu/arith.h"
#include "vnpu/dots.h"

namespace vnpu::product {

// Neighbouring values of an index: where each lies in an operand, in elements from the first.
struct Places {
  const i64 *at;
  int count;
  int run;  // from every multiple of it on, so many of the index lie side by side: 32, 16, 8 or 1

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

// What a micro-kernel is unless it says otherwise.
struct DefaultKernel {
  static constexpr int kMinRows = 1;      // rows of c are taken kRows at a time, and halves of that down to so many
  static constexpr i64 kPanelBytes = 24 << 10;  // of a packed panel of b, which is to stay in L1
  static constexpr i64 kRowsBytes = 384 << 10;  // of the rows of a that are packed at once, which are to stay in L2
  static constexpr bool kReadsEvenly = false;  // whether rows of a must be as far apart as in a packed piece
  static constexpr uint16_t kFiller = 0;    // the bits that rows of a are filled up with to kGroup steps
  static void prepare() {}                  // before a product; may fail
  struct Turn {};                           // lives as long as a thread multiplies
};

}  // namespace vnpu::product
