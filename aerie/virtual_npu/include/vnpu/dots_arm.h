// Products of bf16 in odd pairs by ARM's BFDOT, for single blocks (dots.h defines the order).
#pragma once

#if !defined(VNPU_EMULATED_ARM_BF16)
#include "vnpu/neon.h"
#endif
#include <stdint.h>
#include <string.h>

namespace vnpu::dots::arm {

// See dots::multiply_add.
template <int M, int N, int K, class Row>
__attribute__((always_inline)) inline void multiply_add(const uint16_t *a, const uint16_t *b, Row *c, int step) {
  constexpr int kFours = width<N> / 4;
#pragma GCC unroll 16
  for (int k = 0; k < K; k += 2) {
    bfloat16x8_t pairs[kFours];
#pragma GCC unroll 2
    for (int q = 0; q < kFours; ++q) {
      const uint16x4_t even = vld1_u16(b + k * N + 4 * q), odd = vld1_u16(b + (k + 1) * N + 4 * q);
      pairs[q] = vreinterpretq_bf16_u16(vcombine_u16(vzip1_u16(even, odd), vzip2_u16(even, odd)));
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      uint32_t factors;
      memcpy(&factors, a + m * K + k, sizeof(factors));
      float32x4_t sums[kFours];
      memcpy(sums, &c[m * step], sizeof(sums));
#pragma GCC unroll 2
      for (int q = 0; q < kFours; ++q) {
        sums[q] = vbfdotq_f32(sums[q], vreinterpretq_bf16_u32(vdupq_n_u32(factors)), pairs[q]);
      }
      memcpy(&c[m * step], sums, sizeof(sums));
    }
  }
}

}  // namespace vnpu::dots::arm
