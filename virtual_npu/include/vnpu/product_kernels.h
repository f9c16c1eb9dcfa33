// Micro-kernels of the matrix product: what product_driver.h needs of a machine.
//
// A micro-kernel adds to kColumns columns of up to kRows rows of c. The rows of a are runs of k, of Left; b comes as the
// kernel itself packs it, kGroup steps of k together. There are two:
//
//   Bf16Dots    two products and their sum per lane and instruction (dots.h)
//   Plain       any machine: one fused multiply-add of f32 at a time, in the order of k; the same bits on all of them
//
// Either gives the bits that vector.contract gives by itself on that machine (contract.h): products in pairs are those of
// steps 2i and 2i + 1 of k.
//
// dots.h says which of them a program has.
#pragma once

#include "vnpu/arith.h"
#include "vnpu/dots.h"
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

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

// The CPU's vectors of f32, and how many sums fit its registers beside what they are made of.
#if defined(__AVX512F__)
inline constexpr int kFloats = 16, kRowsOfSums = 8, kVectorsOfSums = 2;
#elif defined(__AVX2__)
inline constexpr int kFloats = 8, kRowsOfSums = 4, kVectorsOfSums = 3;
#elif defined(__aarch64__)
inline constexpr int kFloats = 4, kRowsOfSums = 8, kVectorsOfSums = 2;
#else
inline constexpr int kFloats = 4, kRowsOfSums = 4, kVectorsOfSums = 2;
#endif

// Lanes of two vectors, those of the second numbered on from those of the first.
template <int... Lane>
VNPU_INLINE Vec<float, 8> lanes_of(const Vec<float, 8> &a, const Vec<float, 8> &b) {
#if defined(VNPU_SHUFFLE)
  return {__builtin_shufflevector(a.v, b.v, Lane...)};
#else
  typedef int Order __attribute__((vector_size(32)));
  return {__builtin_shuffle(a.v, b.v, Order{Lane...})};
#endif
}

// Eight rows of eight: rows become columns.
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

struct Plain {
  static constexpr int kLanes = kFloats, kRows = kRowsOfSums, kColumns = kVectorsOfSums * kLanes, kGroup = 1;
  using Left = float;
  using Packed = float;

  // Columns of b over k steps, widened; zeros where there are fewer than kColumns.
  static void pack(const bf16 *b, const Places &k, const Places &columns, Packed *to) {
    const int whole = columns.count / 8 * 8;
    int n = 0;
    if (k.are_runs_of(8)) {
      for (; n < whole; n += 8) pack_squares(b, k, columns.at + n, to + n);
    } else if (columns.run >= 8) {
      for (; n < whole; n += 8) pack_runs(b + columns.at[n], k, to + n);
    }
    if (n == kColumns) return;
    for (i64 i = 0; i < k.count; ++i) {
      const bf16 *const row = b + k.at[i];
      for (int m = n; m < kColumns; ++m) to[i * kColumns + m] = m < columns.count ? widen(row[columns.at[m]]) : 0;
    }
  }

  template <int Rows>
  static void add(const Left *const *a, const Packed *b, i64 k, float *const *c, const Places &columns) {
    if (columns.count == kColumns && columns.run >= kLanes) return add_to<Rows, true>(a, b, k, c, columns);
    add_to<Rows, false>(a, b, k, c, columns);
  }

 private:
  typedef float Floats __attribute__((vector_size(kLanes * 4)));

  // a b + c, rounded once.
  static VNPU_INLINE Floats fused(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
    return fma(Vec<float, kLanes>{a}, Vec<float, kLanes>{b}, Vec<float, kLanes>{c}).v;
#endif
  }

  // Eight columns that are runs of eight steps of k: squares of eight by eight are turned.
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

  // Eight columns that lie side by side.
  static VNPU_INLINE void pack_runs(const bf16 *b, const Places &k, Packed *to) {
    for (i64 i = 0; i < k.count; ++i, to += kColumns) vnpu::store(to, widen(vnpu::load<bf16, 8>(b + k.at[i])));
  }

  // A function by itself, so that nothing around it competes for registers with its inner loop.
  template <int Rows, bool Runs>
  [[gnu::noinline]] static void add_to(const Left *const *a, const Packed *b, i64 k, float *const *c, const Places &columns) {
    Floats sum[Rows][kVectorsOfSums];
    const Left *row[Rows];
    alignas(64) float buffer[kColumns] = {};
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      row[r] = a[r];
      if constexpr (!Runs) gather(c[r], columns, buffer);
#pragma GCC unroll 4
      for (int v = 0; v < kVectorsOfSums; ++v) {
        memcpy(&sum[r][v], Runs ? c[r] + columns.at[v * kLanes] : buffer + v * kLanes, sizeof(Floats));
      }
    }
    for (i64 i = 0; i < k; ++i, b += kColumns) {
      Floats right[kVectorsOfSums];
#pragma GCC unroll 4
      for (int v = 0; v < kVectorsOfSums; ++v) memcpy(&right[v], b + v * kLanes, sizeof(Floats));
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const Floats factor = row[r][i] - Floats{};
#pragma GCC unroll 4
        for (int v = 0; v < kVectorsOfSums; ++v) sum[r][v] = fused(factor, right[v], sum[r][v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectorsOfSums; ++v) {
        memcpy(Runs ? c[r] + columns.at[v * kLanes] : buffer + v * kLanes, &sum[r][v], sizeof(Floats));
      }
      if constexpr (!Runs) scatter(c[r], columns, buffer);
    }
  }
};

#if defined(VNPU_BF16_DOTS)
struct Bf16Dots {
  static constexpr int kLanes = 16, kRows = 8, kVectors = 2, kColumns = kVectors * kLanes, kGroup = 2;
  using Left = bf16;
  using Packed = uint32_t;  // of one column, two steps of k

  // Columns of b over k steps, every two of them interleaved; zeros for what is missing.
  static void pack(const bf16 *b, const Places &k, const Places &columns, Packed *to) {
    if (columns.count == kColumns && k.are_runs_of(32)) return pack_columns(b, k, columns, to);
    const bool whole = columns.count == kColumns && columns.are_runs_of(kColumns);
    const bool eights = columns.count == kColumns && columns.are_runs_of(8);
    for (i64 i = 0; i < k.count; i += 2, to += kColumns) {
      const bf16 *const even = b + k.at[i], *const odd = i + 1 < k.count ? b + k.at[i + 1] : nullptr;
      const __m512i none = _mm512_setzero_si512();
      if (whole) interleave(row(even, columns), odd ? row(odd, columns) : none, to);
      else if (eights) interleave(row_of_eights(even, columns), odd ? row_of_eights(odd, columns) : none, to);
      else interleave(row_of_any(even, columns), odd ? row_of_any(odd, columns) : none, to);
    }
  }

  template <int Rows>
  static void add(const bf16 *const *a, const Packed *b, i64 k, float *const *c, const Places &columns) {
    if (columns.count < kColumns) return add_to<Rows, 1>(a, b, k, c, columns);
    if (columns.are_runs_of(kLanes)) return add_to<Rows, kLanes>(a, b, k, c, columns);
    if (columns.are_runs_of(8)) return add_to<Rows, 8>(a, b, k, c, columns);
    add_to<Rows, 1>(a, b, k, c, columns);
  }

 private:
  static VNPU_INLINE __m512i row(const bf16 *b, const Places &columns) { return _mm512_loadu_si512(b + columns.at[0]); }
  static VNPU_INLINE __m512i row_of_eights(const bf16 *b, const Places &columns) {
    const auto eight = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(b + columns.at[8 * i])); };
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(eight(0)), eight(1), 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(eight(2)), eight(3), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  static VNPU_INLINE __m512i row_of_any(const bf16 *b, const Places &columns) {
    alignas(64) bf16 buffer[kColumns] = {};
    gather(b, columns, buffer);
    return _mm512_load_si512(buffer);
  }

  static VNPU_INLINE void interleave(__m512i even, __m512i odd, Packed *to) {
    alignas(64) static constexpr uint16_t kOrder[2][32] = {
        {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
         8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
        {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
         24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
    for (int half = 0; half < 2; ++half) {
      _mm512_store_si512(to + 16 * half, _mm512_permutex2var_epi16(even, _mm512_load_si512(kOrder[half]), odd));
    }
  }

  // b transposed: a column is a run of k. Squares of 16 columns by 16 pairs are turned.
  static void pack_columns(const bf16 *b, const Places &k, const Places &columns, Packed *to) {
    for (int first = 0; first < kColumns; first += 16, to += 16) {
      for (i64 i = 0; i < k.count; i += 32) {
        __m512i pairs[16];
#pragma GCC unroll 16
        for (int n = 0; n < 16; ++n) pairs[n] = _mm512_loadu_si512(b + k.at[i] + columns.at[first + n]);
        transpose(pairs);
#pragma GCC unroll 16
        for (int pair = 0; pair < 16; ++pair) _mm512_store_si512(to + (i / 2 + pair) * kColumns, pairs[pair]);
      }
    }
  }

  // First 4 x 4 elements inside of every 16 bytes of four rows, then these 16 bytes themselves.
  static VNPU_INLINE void transpose(__m512i (&rows)[16]) {
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
      const __m512i a = _mm512_unpacklo_epi32(rows[i], rows[i + 1]), b = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
      const __m512i c = _mm512_unpacklo_epi32(rows[i + 2], rows[i + 3]), d = _mm512_unpackhi_epi32(rows[i + 2], rows[i + 3]);
      rows[i] = _mm512_unpacklo_epi64(a, c);
      rows[i + 1] = _mm512_unpackhi_epi64(a, c);
      rows[i + 2] = _mm512_unpacklo_epi64(b, d);
      rows[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    const auto even = [](__m512i x, __m512i y) { return _mm512_shuffle_i32x4(x, y, 0x88); };
    const auto odd = [](__m512i x, __m512i y) { return _mm512_shuffle_i32x4(x, y, 0xdd); };
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i a = even(rows[i], rows[i + 4]), b = odd(rows[i], rows[i + 4]);
      const __m512i c = even(rows[i + 8], rows[i + 12]), d = odd(rows[i + 8], rows[i + 12]);
      rows[i] = even(a, c);
      rows[i + 4] = even(b, d);
      rows[i + 8] = odd(a, c);
      rows[i + 12] = odd(b, d);
    }
  }

  // 16 columns of a row of c, which lie in runs of so many.
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

  // A function by itself, so that nothing around it competes for registers with its inner loop.
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
        const __m512bh factor = (__m512bh)_mm512_set1_epi32(pair);
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
using Best = Bf16Dots;
#else
using Best = Plain;
#endif

}  // namespace vnpu::product
