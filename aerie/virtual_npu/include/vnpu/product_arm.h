// The micro-kernel for ARM's BFMMLA: 8 x 8 sums as 4 x 4 squares of 2 x 2, one register each.
//
// An instruction takes four steps of k: two rows of a side by side in a register, and two columns of b, packed in the same way.
// It adds the first two steps to its sums, then the other two.
#pragma once

#if !defined(VNPU_EMULATED_ARM_BF16)
#include "vnpu/neon.h"
#endif

#include "vnpu/product_kernels.h"

namespace vnpu::product {

struct OddPairs : DefaultKernel {
  static constexpr int kRows = 8, kColumns = 8, kGroup = 8, kSteps = 1;
  static constexpr uint16_t kFiller = 0x8000;  // -0, which with b's +0 changes no sum, not even -0
  using Left = bf16;
  using Packed = uint16_t;

  // Packs four steps of a column side by side, then those of the next column; missing ones are zeros.
  static void pack(const bf16 *b, const Places &k, const Places &columns, Packed *to) {
    const i64 steps = (k.count + kGroup - 1) / kGroup * kGroup;
    for (i64 i = 0; i < steps; i += 4, to += 4 * kColumns) {
      for (int n = 0; n < kColumns; n += 4) pack_square(b, k, i, columns, n, to + 4 * n);
    }
  }

  template <int Rows>
  static void add(const Left *const *a, const Packed *b, i64 k, float *const *c, const Places &columns) {
    if (columns.count == kColumns && columns.run >= 8) return add_to<Rows, true>(a, b, k, c, columns);
    add_to<Rows, false>(a, b, k, c, columns);
  }

 private:
  static constexpr int kSquares = kColumns / 2;

  // Four steps from i on, of four columns from n on.
  static VNPU_INLINE void pack_square(const bf16 *b, const Places &k, i64 i, const Places &columns, int n, Packed *to) {
    if (columns.count >= n + 4 && columns.run >= 8 && i + 4 <= k.count) {
      uint16x4x4_t rows;
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) rows.val[j] = vld1_u16(&b[k.at[i + j] + columns.at[n]].bits);
      return vst4_u16(to, rows);
    }
    const bool are_runs = k.run >= 8 && i + 4 <= k.count;
    for (int m = n; m < n + 4; ++m, to += 4) {
      if (are_runs && m < columns.count) memcpy(to, b + k.at[i] + columns.at[m], 8);
      else
        for (int j = 0; j < 4; ++j) to[j] = i + j < k.count && m < columns.count ? b[k.at[i + j] + columns.at[m]].bits : 0;
    }
  }

  // The first halves of two registers side by side, or the second halves (64 bits each).
  static VNPU_INLINE void zip(float32x4_t &first, float32x4_t &second) {
    const uint64x2_t a = vreinterpretq_u64_f32(first), b = vreinterpretq_u64_f32(second);
    first = vreinterpretq_f32_u64(vzip1q_u64(a, b));
    second = vreinterpretq_f32_u64(vzip2q_u64(a, b));
  }

  // A separate function, so that no other code competes with its inner loop for registers. A row without a second one is its
  // own second.
  template <int Rows, bool Runs>
  [[gnu::noinline]] static void add_to(const Left *const *a, const Packed *b, i64 k, float *const *c, const Places &columns) {
    float32x4_t sum[(Rows + 1) / 2][kSquares];
    alignas(16) float buffer[2][kColumns] = {};
#pragma GCC unroll 4
    for (int r = 0; r < Rows; r += 2) {
      float *const rows[] = {c[r], c[second<Rows>(r)]};
      for (int i = 0; i < 2 && !Runs; ++i) gather(rows[i], columns, buffer[i]);
#pragma GCC unroll 2
      for (int n = 0; n < kColumns; n += 4) {
        float32x4_t *const squares = &sum[r / 2][n / 2];
        for (int i = 0; i < 2; ++i) squares[i] = vld1q_f32(Runs ? rows[i] + columns.at[n] : buffer[i] + n);
        zip(squares[0], squares[1]);
      }
    }
    for (i64 i = 0; i < k; i += kGroup, b += kGroup * kColumns) multiply_add<Rows>(a, i, b, sum);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; r += 2) {
      float *const rows[] = {c[r], c[second<Rows>(r)]};
#pragma GCC unroll 2
      for (int n = 0; n < kColumns; n += 4) {
        float32x4_t *const squares = &sum[r / 2][n / 2];
        zip(squares[0], squares[1]);
        for (int i = 0; i < 2; ++i) vst1q_f32(Runs ? rows[i] + columns.at[n] : buffer[i] + n, squares[i]);
      }
      for (int i = 0; i < 2 && !Runs; ++i) scatter(rows[i], columns, buffer[i]);
    }
  }

  template <int Rows>
  static constexpr int second(int row) {
    return row + 1 < Rows ? row + 1 : row;
  }

  // Eight steps of k from step i of a.
  template <int Rows>
  static VNPU_INLINE void multiply_add(const Left *const *a, i64 i, const Packed *b,
                                       float32x4_t (&sum)[(Rows + 1) / 2][kSquares]) {
    uint64x2_t left[2][(Rows + 1) / 2];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; r += 2) {
      const uint64x2_t row = vreinterpretq_u64_u16(vld1q_u16(&a[r][i].bits));
      const uint64x2_t next = vreinterpretq_u64_u16(vld1q_u16(&a[second<Rows>(r)][i].bits));
      left[0][r / 2] = vzip1q_u64(row, next);
      left[1][r / 2] = vzip2q_u64(row, next);
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 4
      for (int n = 0; n < kSquares; ++n, b += 8) {
        const bfloat16x8_t right = vreinterpretq_bf16_u16(vld1q_u16(b));
#pragma GCC unroll 4
        for (int r = 0; r < Rows; r += 2) {
          sum[r / 2][n] = vbfmmlaq_f32(sum[r / 2][n], vreinterpretq_bf16_u64(left[half][r / 2]), right);
        }
      }
    }
  }
};

}  // namespace vnpu::product
