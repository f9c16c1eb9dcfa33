// The micro-kernel for AVX512-BF16: two products and their sum per lane and instruction.
#pragma once

#include "vnpu/product_interleaved.h"

namespace vnpu::product {

struct Pairs : DefaultKernel, Interleaved {
  static constexpr int kLanes = 16, kRows = 8, kVectors = 2, kGroup = 2;
  static_assert(kColumns == kVectors * kLanes, "a panel is as wide as it is packed");
  using Left = bf16;

  template <int Rows>
  static void add(const bf16 *const *a, const Packed *b, i64 k, float *const *c, const Places &columns) {
    if (columns.count < kColumns) return add_to<Rows, 1>(a, b, k, c, columns);
    if (columns.are_runs_of(kLanes)) return add_to<Rows, kLanes>(a, b, k, c, columns);
    if (columns.are_runs_of(8)) return add_to<Rows, 8>(a, b, k, c, columns);
    add_to<Rows, 1>(a, b, k, c, columns);
  }

 private:
  // 16 columns of a row of c, in contiguous runs.
  template <int Run>
  static VNPU_INLINE __m512 load(const float *c, const Places &columns) {
    if constexpr (Run == kLanes) return _mm512_loadu_ps(c + columns.at[0]);
    if constexpr (Run == 8) {
      const __m512 low = _mm512_castps256_ps512(_mm256_loadu_ps(c + columns.at[0]));
      return _mm512_insertf32x8(low, _mm256_loadu_ps(c + columns.at[8]), 1);
    }
    alignas(64) float buffer[kLanes] = {};
    gather(c, columns, buffer);
    return _mm512_load_ps(buffer);
  }
  template <int Run>
  static VNPU_INLINE void store(float *c, const Places &columns, __m512 sum) {
    if constexpr (Run == kLanes) return _mm512_storeu_ps(c + columns.at[0], sum);
    if constexpr (Run == 8) {
      _mm256_storeu_ps(c + columns.at[0], _mm512_castps512_ps256(sum));
      return _mm256_storeu_ps(c + columns.at[8], _mm512_extractf32x8_ps(sum, 1));
    }
    alignas(64) float buffer[kLanes];
    _mm512_store_ps(buffer, sum);
    scatter(c, columns, buffer);
  }
  static Places sixteen(const Places &columns, int first) {
    const int left = columns.count - first;
    return {columns.at + first, left < 0 ? 0 : left < kLanes ? left : kLanes, columns.run};
  }

  // A separate function, so that no other code competes with its inner loop for registers.
  template <int Rows, int Run>
  [[gnu::noinline]] static void add_to(const bf16 *const *a, const Packed *b, i64 k, float *const *c, const Places &columns) {
    const Places low = sixteen(columns, 0), high = sixteen(columns, kLanes);
    __m512 sum[Rows][kVectors];
    const bf16 *row[Rows];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      row[r] = a[r];
      sum[r][0] = load<Run>(c[r], low);
      sum[r][1] = load<Run>(c[r], high);
    }
    for (i64 i = 0; i < k; i += kGroup, b += kColumns) {
      const __m512bh left = (__m512bh)_mm512_load_si512(b), right = (__m512bh)_mm512_load_si512(b + kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        int pair;
        memcpy(&pair, row[r] + i, sizeof(pair));
        const __m512bh factor = (__m512bh)dots::pairs::unknown(_mm512_set1_epi32(pair));
        sum[r][0] = _mm512_dpbf16_ps(sum[r][0], factor, left);
        sum[r][1] = _mm512_dpbf16_ps(sum[r][1], factor, right);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      store<Run>(c[r], low, sum[r][0]);
      store<Run>(c[r], high, sum[r][1]);
    }
  }
};

}  // namespace vnpu::product
