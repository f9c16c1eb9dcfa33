// Products of bf16 in eights, as AMX-BF16 sums them, without its tiles: for blocks that are multiplied by themselves, where
// filling tiles would take longer than multiplying (dots.h says the order).
//
// A step of either chain is one fused multiply-add that takes numbers below 2^-126 for zero, in and out, whatever modes the
// thread has. vdpbf16ps is two of these; with -0 and +0 as the factors of the other, that other changes nothing, not even the
// sign of a zero. Without AVX512-BF16 (where tiles are emulated) the steps are spelt out.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(VNPU_BF16_DOTS)
#include "vnpu/dots_pairs.h"
#endif

namespace vnpu::dots::eights {

#define VNPU_EIGHTS_INLINE __attribute__((always_inline)) inline

// Lanes of f32, and their bits.
template <int W>
using Floats __attribute__((vector_size(W * 4))) = float;
template <int W>
using Words __attribute__((vector_size(W * 4))) = uint32_t;

// With zeros of the same sign for numbers below 2^-126.
template <int W>
VNPU_EIGHTS_INLINE Floats<W> flushed(Floats<W> x) {
  const Words<W> bits = (Words<W>)x;
  return (Floats<W>)((bits & 0x7f800000u) == 0u ? bits & 0x80000000u : bits);
}

// sum + a b. Of a, b: bf16, in the upper halves of lanes whose lower halves are zero.
template <int W>
VNPU_EIGHTS_INLINE Floats<W> chained(Floats<W> sum, Words<W> a, Words<W> b) {
#if defined(VNPU_BF16_DOTS)
  a = pairs::unknown(a | 0x8000u);
  if constexpr (W == 4) return (Floats<W>)_mm_dpbf16_ps((__m128)sum, (__m128bh)a, (__m128bh)b);
  else return (Floats<W>)_mm256_dpbf16_ps((__m256)sum, (__m256bh)a, (__m256bh)b);
#else
  const Floats<W> left = flushed<W>((Floats<W>)a), right = flushed<W>((Floats<W>)b);
  for (int i = 0; i < W; ++i) sum[i] = __builtin_fmaf(left[i], right[i], sum[i]);
  return flushed<W>(sum);
#endif
}

// sum, to which what both chains gave is added.
template <int W>
VNPU_EIGHTS_INLINE Floats<W> ended(Floats<W> sum, Floats<W> even, Floats<W> odd) {
  return flushed<W>(flushed<W>(sum) + flushed<W>(even + odd));
}

template <int W>
VNPU_EIGHTS_INLINE Words<W> widened(const uint16_t *row) {
  typedef uint16_t Halves __attribute__((vector_size(W * 2)));
  Halves halves;
  memcpy(&halves, row, sizeof(halves));
  return __builtin_convertvector(halves, Words<W>) << 16;
}

// As dots::multiply_add.
template <int M, int N, int K, class Row>
VNPU_EIGHTS_INLINE void multiply_add(const uint16_t *a, const uint16_t *b, Row *c, int step) {
  constexpr int W = width<N>;
#pragma GCC unroll 4
  for (int k = 0; k < K; k += 8) {
    Words<W> rows[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) rows[i] = widened<W>(b + (k + i) * N);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const uint16_t *const factors = a + m * K + k;
      Floats<W> even{}, odd{};
#pragma GCC unroll 4
      for (int i = 0; i < 8; i += 2) {
        even = chained<W>(even, (uint32_t(factors[i]) << 16) - Words<W>{}, rows[i]);
        odd = chained<W>(odd, (uint32_t(factors[i + 1]) << 16) - Words<W>{}, rows[i + 1]);
      }
      c[m * step] = (Row)ended<W>((Floats<W>)c[m * step], even, odd);
    }
  }
}

#if defined(VNPU_BF16_DOTS)
// Sixteen sums of a block of eight steps, for pairs::Block8x8.
class Sums {
 public:
  VNPU_EIGHTS_INLINE Sums() : Sums(__m512{}) {}
  VNPU_EIGHTS_INLINE explicit Sums(__m512 sum) : sum_(sum), even_{}, odd_{} {}
  VNPU_EIGHTS_INLINE __m512 value() const { return sum_; }
  VNPU_EIGHTS_INLINE void add(__m512i factors, __m512i rows) {
    const __m512i low = _mm512_set1_epi32(0xffff), high = _mm512_set1_epi32(int(0xffff0000u));
    // (factors & half) | -0 in the other half
    const __m512i evens = _mm512_ternarylogic_epi32(factors, low, _mm512_set1_epi32(int(0x80000000u)), 0xea);
    const __m512i odds = _mm512_ternarylogic_epi32(factors, high, _mm512_set1_epi32(0x8000), 0xea);
    const __m512i even_pairs = pairs::unknown(_mm512_and_si512(rows, low)), odd_pairs = pairs::unknown(_mm512_and_si512(rows, high));
    even_ = _mm512_dpbf16_ps(even_, (__m512bh)pairs::unknown(evens), (__m512bh)even_pairs);
    odd_ = _mm512_dpbf16_ps(odd_, (__m512bh)pairs::unknown(odds), (__m512bh)odd_pairs);
  }
  VNPU_EIGHTS_INLINE void end_block() {
    sum_ = (__m512)ended<16>((Floats<16>)sum_, (Floats<16>)even_, (Floats<16>)odd_);
    even_ = odd_ = __m512{};
  }

 private:
  __m512 sum_, even_, odd_;
};
#endif

}  // namespace vnpu::dots::eights
