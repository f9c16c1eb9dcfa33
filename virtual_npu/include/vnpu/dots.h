// Products of bf16 in pairs, where the CPU has an instruction for them (AVX512-BF16: x86 since Cooper Lake and Zen 4).
//
// One instruction adds two products of bf16 to an f32. It forms the sum in another order than one product after the
// other, takes numbers below 2^-126 for zero, and does so for every width of vector alike. A program with fast paths
// (VNPU_FAST) uses it for all its products of bf16, recognised or not, checked or not, in generated code and in kernels:
// so all of these give the same bits. Without fast paths, or on another CPU, all of them sum one by one.
//
// Whether a program has it is settled when it is compiled: it is compiled for the CPU that runs it (VNPU_MARCH and the
// CPU are part of its key in the cache), so nothing is left to ask at run time.
#pragma once

#include <stdint.h>

#if defined(VNPU_FAST) && defined(__AVX512BF16__) && defined(__AVX512VL__) && defined(__AVX512BW__) && \
    defined(__AVX512DQ__)
#define VNPU_BF16_DOTS 1
#include <immintrin.h>
#include <string.h>

namespace vnpu::dots {

#define VNPU_DOTS_INLINE __attribute__((always_inline)) inline

// Columns of a product that are made together: 8 or 4.
template <int N>
inline constexpr int width = N % 8 == 0 ? 8 : 4;

// Whether blocks of K by N can be the right factor.
template <int N, int K>
inline constexpr bool can_multiply = K % 2 == 0 && N % 4 == 0;

VNPU_DOTS_INLINE __m256bh interleaved(__m128i even, __m128i odd) {
  const __m256i low = _mm256_castsi128_si256(_mm_unpacklo_epi16(even, odd));
  return (__m256bh)_mm256_inserti128_si256(low, _mm_unpackhi_epi16(even, odd), 1);
}
VNPU_DOTS_INLINE __m256 add(__m256 sum, int factor, __m256bh pairs) {
  return _mm256_dpbf16_ps(sum, (__m256bh)_mm256_set1_epi32(factor), pairs);
}
VNPU_DOTS_INLINE __m128 add(__m128 sum, int factor, __m128bh pairs) {
  return _mm_dpbf16_ps(sum, (__m128bh)_mm_set1_epi32(factor), pairs);
}

// Of two rows of b, Width columns.
template <int Width>
VNPU_DOTS_INLINE auto pairs_of(const uint16_t *even, const uint16_t *odd) {
  if constexpr (Width == 8) {
    return interleaved(_mm_loadu_si128((const __m128i *)even), _mm_loadu_si128((const __m128i *)odd));
  } else {
    return (__m128bh)_mm_unpacklo_epi16(_mm_loadu_si64(even), _mm_loadu_si64(odd));
  }
}

// Width columns of c += a b. a: M x K, row by row; b: K rows, N apart, from its first column of these; both bf16 by
// their bits. c: M vectors of f32, `step` apart.
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

}  // namespace vnpu::dots
#endif
