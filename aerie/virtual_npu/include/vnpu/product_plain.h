// The micro-kernel of any machine: one fused multiply-add of f32 per step of k, in the order of k.
#pragma once

#include "vnpu/product_kernels.h"
#if defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include "vnpu/neon.h"
#endif

namespace vnpu::product {

// The CPU's vectors of f32, and how many sums fit its registers together with their operands.
#if defined(__AVX512F__)
inline constexpr int kFloats = 16, kRowsOfSums = 8, kVectorsOfSums = 2;
#elif defined(__AVX2__)
inline constexpr int kFloats = 8, kRowsOfSums = 4, kVectorsOfSums = 3;
#elif defined(__aarch64__)
inline constexpr int kFloats = 4, kRowsOfSums = 4, kVectorsOfSums = 4;
#else
inline constexpr int kFloats = 4, kRowsOfSums = 4, kVectorsOfSums = 2;
#endif

// Lanes of two vectors; the second vector's lanes are numbered after the first's.
template <int... Lane>
VNPU_INLINE Vec<float, 8> lanes_of(const Vec<float, 8> &a, const Vec<float, 8> &b) {
#if defined(VNPU_SHUFFLE)
  return {__builtin_shufflevector(a.v, b.v, Lane...)};
#else
  typedef int Order __attribute__((vector_size(32)));
  return {__builtin_shuffle(a.v, b.v, Order{Lane...})};
#endif
}

// Transposes eight rows of eight.
VNPU_INLINE void transpose(Vec<float, 8> (&rows)[8]) {
  Vec<float, 8> pairs[8], fours[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = lanes_of<0, 8, 1, 9, 4, 12, 5, 13>(rows[i], rows[i + 1]);
    pairs[i + 1] = lanes_of<2, 10, 3, 11, 6, 14, 7, 15>(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      fours[i + 2 * j] = lanes_of<0, 1, 8, 9, 4, 5, 12, 13>(pairs[i + j], pairs[i + 2 + j]);
      fours[i + 2 * j + 1] = lanes_of<2, 3, 10, 11, 6, 7, 14, 15>(pairs[i + j], pairs[i + 2 + j]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    rows[i] = lanes_of<0, 1, 2, 3, 8, 9, 10, 11>(fours[i], fours[i + 4]);
    rows[i + 4] = lanes_of<4, 5, 6, 7, 12, 13, 14, 15>(fours[i], fours[i + 4]);
  }
}

struct Plain : DefaultKernel {
  static constexpr int kLanes = kFloats, kRows = kRowsOfSums, kColumns = kVectorsOfSums * kLanes, kGroup = 1, kSteps = 1;
  using Left = float;
  using Packed = float;

  // Packs columns of b over k steps, widened; zeros if there are fewer than kColumns.
  static void pack(const bf16 *b, const Places &k, const Places &columns, Packed *to) {
    const int whole = columns.count / 8 * 8;
    int n = 0;
    if (k.are_runs_of(8)) {
      for (; n < whole; n += 8) pack_squares(b, k, columns.at + n, to + n);
    } else if (columns.run >= 8) {
      pack_runs(b, k, columns, to);
      n = whole;
    }
    if (n == kColumns) return;
    for (i64 i = 0; i < k.count; ++i) {
      const bf16 *const row = b + k.at[i];
      for (int m = n; m < kColumns; ++m) to[i * kColumns + m] = m < columns.count ? widen(row[columns.at[m]]) : 0;
    }
  }

  template <int Rows>
  static void add(const Left *const *a, const Packed *b, i64 k, float *const *c, const Places &columns) {
    if (columns.count < kColumns || columns.run < 8) return add_to<Rows, 1>(a, b, k, c, columns);
    if (kLanes > 8 && columns.run < kLanes) return add_to<Rows, 8>(a, b, k, c, columns);
    add_to<Rows, kLanes>(a, b, k, c, columns);
  }

 private:
  typedef float Floats __attribute__((vector_size(kLanes * 4)));

  // a b + c, rounded once.
  static VNPU_INLINE Floats fused(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__aarch64__)
    return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return fma(Vec<float, kLanes>{a}, Vec<float, kLanes>{b}, Vec<float, kLanes>{c}).v;
#endif
  }

  // Reads the next row's factor when these sums are computed. AVX2 has just enough registers for the sums, the columns and one
  // factor; clang++ would read a second factor early, and keep a sum in memory.
  static VNPU_INLINE void after([[maybe_unused]] const Floats *sums, [[maybe_unused]] const Left *&next) {
#if defined(__clang__) && defined(__AVX2__) && !defined(__AVX512F__)
    static_assert(kVectorsOfSums == 3, "one operand for each");
    asm("" : "+r"(next) : "x"(sums[0]), "x"(sums[1]), "x"(sums[2]));
#endif
  }

  // Packs eight columns that are runs of eight steps of k: transposes squares of eight by eight.
  static VNPU_INLINE void pack_squares(const bf16 *b, const Places &k, const i64 *columns, Packed *to) {
    for (i64 i = 0; i < k.count; i += 8) {
      Vec<float, 8> square[8];
#pragma GCC unroll 8
      for (int n = 0; n < 8; ++n) square[n] = widen(vnpu::load<bf16, 8>(b + k.at[i] + columns[n]));
      transpose(square);
#pragma GCC unroll 8
      for (int n = 0; n < 8; ++n) vnpu::store(to + (i + n) * kColumns, square[n]);
    }
  }

  // Packs columns that are contiguous in eights, step by step of k, so that each cache line is read once.
  static void pack_runs(const bf16 *b, const Places &k, const Places &columns, Packed *to) {
    const int eights = columns.count / 8;
    for (i64 i = 0; i < k.count; ++i, to += kColumns) {
      const bf16 *const row = b + k.at[i];
      for (int n = 0; n < eights; ++n) vnpu::store(to + 8 * n, widen(vnpu::load<bf16, 8>(row + columns.at[8 * n])));
    }
  }

  // The v-th vector of columns of a row of c, in contiguous runs; or of the buffer that replaces single columns.
  template <int Run>
  static VNPU_INLINE Floats load(const float *c, const Places &columns, int v, const float *buffer) {
    Floats sum{};
    if constexpr (Run == kLanes) {
      memcpy(&sum, c + columns.at[v * kLanes], sizeof(sum));
    } else if constexpr (Run == 1) {
      memcpy(&sum, buffer + v * kLanes, sizeof(sum));
    } else {
#if defined(__AVX512F__)
      const __m256d low = _mm256_loadu_pd((const double *)(c + columns.at[v * kLanes]));
      const __m256d high = _mm256_loadu_pd((const double *)(c + columns.at[v * kLanes + Run]));
      sum = (Floats)_mm512_insertf64x4(_mm512_castpd256_pd512(low), high, 1);
#endif
    }
    return sum;
  }
  template <int Run>
  static VNPU_INLINE void store(float *c, const Places &columns, int v, float *buffer, Floats sum) {
    if constexpr (Run == kLanes) {
      memcpy(c + columns.at[v * kLanes], &sum, sizeof(sum));
    } else if constexpr (Run == 1) {
      memcpy(buffer + v * kLanes, &sum, sizeof(sum));
    } else {
#if defined(__AVX512F__)
      _mm256_storeu_pd((double *)(c + columns.at[v * kLanes]), _mm512_castpd512_pd256((__m512d)sum));
      _mm256_storeu_pd((double *)(c + columns.at[v * kLanes + Run]), _mm512_extractf64x4_pd((__m512d)sum, 1));
#endif
    }
  }

  // A separate function, so that no other code competes with its inner loop for registers.
  template <int Rows, int Run>
  [[gnu::noinline]] static void add_to(const Left *const *a, const Packed *b, i64 k, float *const *c, const Places &columns) {
    Floats sum[Rows][kVectorsOfSums];
    const Left *row[Rows];
    alignas(64) float buffer[kColumns] = {};
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      row[r] = a[r];
      if constexpr (Run == 1) gather(c[r], columns, buffer);
#pragma GCC unroll 6
      for (int v = 0; v < kVectorsOfSums; ++v) sum[r][v] = load<Run>(c[r], columns, v, buffer);
    }
    for (i64 i = 0; i < k; ++i, b += kColumns) {
      Floats right[kVectorsOfSums];
#pragma GCC unroll 6
      for (int v = 0; v < kVectorsOfSums; ++v) memcpy(&right[v], b + v * kLanes, sizeof(Floats));
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const Floats factor = row[r][i] - Floats{};
#pragma GCC unroll 6
        for (int v = 0; v < kVectorsOfSums; ++v) sum[r][v] = fused(factor, right[v], sum[r][v]);
        after(sum[r], row[(r + 1) % Rows]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 6
      for (int v = 0; v < kVectorsOfSums; ++v) store<Run>(c[r], columns, v, buffer, sum[r][v]);
      if constexpr (Run == 1) scatter(c[r], columns, buffer);
    }
  }
};

}  // namespace vnpu::product
