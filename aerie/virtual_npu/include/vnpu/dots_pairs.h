// Products of bf16 in pairs by AVX512-BF16, for single blocks (dots.h defines the order).
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

namespace vnpu::dots::pairs {

#define VNPU_DOTS_INLINE __attribute__((always_inline)) inline

// Hides the value from the compiler: clang++ 16 overflows its stack if it knows that a bf16 vector repeats one pair.
template <class Vector>
VNPU_DOTS_INLINE Vector unknown(Vector pairs) {
#if defined(__clang__) && __clang_major__ == 16
  asm("" : "+v"(pairs));
#endif
  return pairs;
}

VNPU_DOTS_INLINE __m256bh interleaved(__m128i even, __m128i odd) {
  const __m256i low = _mm256_castsi128_si256(_mm_unpacklo_epi16(even, odd));
  return (__m256bh)_mm256_inserti128_si256(low, _mm_unpackhi_epi16(even, odd), 1);
}
VNPU_DOTS_INLINE __m256 add(__m256 sum, int factor, __m256bh pairs) {
  return _mm256_dpbf16_ps(sum, (__m256bh)unknown(_mm256_set1_epi32(factor)), pairs);
}
VNPU_DOTS_INLINE __m128 add(__m128 sum, int factor, __m128bh pairs) {
  return _mm_dpbf16_ps(sum, (__m128bh)unknown(_mm_set1_epi32(factor)), pairs);
}

// Adds the products of a pair of steps to sums of some rows in 32 columns. a: a pair of each row; b: of each column.
template <int Rows, class Sixteen>
VNPU_DOTS_INLINE void add_rows(const uint32_t *a, const uint32_t *b, Sixteen (&sums)[Rows][2]) {
  const __m512bh low = (__m512bh)_mm512_load_si512(b), high = (__m512bh)_mm512_load_si512(b + 16);
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    const __m512bh factor = (__m512bh)unknown(_mm512_set1_epi32(int(a[r])));
    sums[r][0] = (Sixteen)_mm512_dpbf16_ps((__m512)sums[r][0], factor, low);
    sums[r][1] = (Sixteen)_mm512_dpbf16_ps((__m512)sums[r][1], factor, high);
  }
}

// Interleaves two rows of b, Width columns.
template <int Width>
VNPU_DOTS_INLINE auto pairs_of(const uint16_t *even, const uint16_t *odd) {
  if constexpr (Width == 8) {
    return interleaved(_mm_loadu_si128((const __m128i *)even), _mm_loadu_si128((const __m128i *)odd));
  } else {
    return (__m128bh)_mm_unpacklo_epi16(_mm_loadu_si64(even), _mm_loadu_si64(odd));
  }
}

// See dots::multiply_add.
template <int M, int N, int K, class Row>
VNPU_DOTS_INLINE void multiply_add(const uint16_t *a, const uint16_t *b, Row *c, int step) {
#pragma GCC unroll 16
  for (int k = 0; k < K; k += 2) {
    const auto pairs = pairs_of<width<N>>(b + k * N, b + (k + 1) * N);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      int factor;
      memcpy(&factor, a + m * K + k, sizeof(factor));
      c[m * step] = add(c[m * step], factor, pairs);
    }
  }
}

// The sum of products of 8 x 8 blocks, in four registers of 4 x 4 elements each, a row in 16 bytes: so one instruction spreads
// the left factors of a pair of products, which a block has in its rows, for 16 sums.
class Block8x8 {
 public:
  VNPU_DOTS_INLINE Block8x8() : quads_{} {}
  // From 64 elements, row by row.
  VNPU_DOTS_INLINE explicit Block8x8(const float *rows) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512 first = _mm512_loadu_ps(rows + half * 32), second = _mm512_loadu_ps(rows + half * 32 + 16);
      quads_[half * 2] = _mm512_shuffle_f32x4(first, second, 0x88);
      quads_[half * 2 + 1] = _mm512_shuffle_f32x4(first, second, 0xdd);
    }
  }
  VNPU_DOTS_INLINE void store(float *rows) const {
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512d left = _mm512_castps_pd(quads_[half * 2]), right = _mm512_castps_pd(quads_[half * 2 + 1]);
      _mm512_storeu_pd((double *)(rows + half * 32), _mm512_permutex2var_pd(left, first, right));
      _mm512_storeu_pd((double *)(rows + half * 32 + 16), _mm512_permutex2var_pd(left, second, right));
    }
  }
  // += a b, both 8 x 8 bf16 bits, row by row.
  VNPU_DOTS_INLINE void multiply_add(const void *a, const void *b) {
    const __m512i left[] = {_mm512_loadu_si512(a), _mm512_loadu_si512((const char *)a + 64)};
    const __m512i first = _mm512_loadu_si512(b), second = _mm512_loadu_si512((const char *)b + 64);
    multiply_add_pair<0>(left, first);
    multiply_add_pair<1>(left, first);
    multiply_add_pair<2>(left, second);
    multiply_add_pair<3>(left, second);
  }

 private:
  // Adds the products of columns 2 Pair and 2 Pair + 1 of a with these rows of b, which are in `rows`.
  template <int Pair>
  VNPU_DOTS_INLINE void multiply_add_pair(const __m512i *a, __m512i rows) {
    const __m512i left = _mm512_permutexvar_epi16(order<Pair % 2, 0>(), rows);
    const __m512i right = _mm512_permutexvar_epi16(order<Pair % 2, 4>(), rows);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512i factors = _mm512_shuffle_epi32(a[half], (_MM_PERM_ENUM)(Pair * 0x55));
      quads_[half * 2] = added(quads_[half * 2], factors, left);
      quads_[half * 2 + 1] = added(quads_[half * 2 + 1], factors, right);
    }
  }
  static VNPU_DOTS_INLINE __m512 added(__m512 sum, __m512i factors, __m512i pairs) {
    return _mm512_dpbf16_ps(sum, (__m512bh)unknown(factors), (__m512bh)unknown(pairs));
  }
  // The lanes that form pairs of two rows of 8, for four columns from the first on, four times.
  template <int Odd, int First>
  VNPU_DOTS_INLINE static __m512i order() {
    constexpr long long at = Odd * 16 + First;
    constexpr long long two = (at + 8) << 16 | at, low = (two + 0x10001) << 32 | two, high = low + 0x0002000200020002;
    return _mm512_set_epi64(high, low, high, low, high, low, high, low);
  }

  __m512 quads_[4];
};

}  // namespace vnpu::dots::pairs
