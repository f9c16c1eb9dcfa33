// Products of bf16 in the order of AMX-BF16, without its tiles: for single blocks, where filling tiles would take longer than
// multiplying (dots.h defines the order).
//
// A step of either chain is one fused multiply-add that treats numbers below 2^-126 as zero, in and out, whatever modes the
// thread has. vdpbf16ps is two of these; with factors -0 and +0 the other one changes nothing, not even the sign of a zero.
// Without AVX512-BF16 (where tiles are emulated) the steps are written out.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(VNPU_BF16_DOTS)
#include "vnpu/dots_pairs.h"
#endif

namespace vnpu::dots::tiles {

#define VNPU_TILES_INLINE __attribute__((always_inline)) inline

// Lanes of f32, and their bits.
template <int W>
using Floats __attribute__((vector_size(W * 4))) = float;
template <int W>
using Words __attribute__((vector_size(W * 4))) = uint32_t;

// Replaces numbers below 2^-126 by zeros of their sign.
template <int W>
VNPU_TILES_INLINE Floats<W> flushed(Floats<W> x) {
  const Words<W> bits = (Words<W>)x;
  return (Floats<W>)((bits & 0x7f800000u) == 0u ? bits & 0x80000000u : bits);
}

// sum + a b. a and b are bf16 in the upper halves of lanes whose lower halves are zero.
template <int W>
VNPU_TILES_INLINE Floats<W> chained(Floats<W> sum, Words<W> a, Words<W> b) {
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

// Adds the sums of both chains to sum.
template <int W>
VNPU_TILES_INLINE Floats<W> ended(Floats<W> sum, Floats<W> even, Floats<W> odd) {
  return flushed<W>(flushed<W>(sum) + flushed<W>(even + odd));
}

template <int W>
VNPU_TILES_INLINE Words<W> widened(const uint16_t *row) {
  typedef uint16_t Halves __attribute__((vector_size(W * 2)));
  Halves halves;
  memcpy(&halves, row, sizeof(halves));
  return __builtin_convertvector(halves, Words<W>) << 16;
}

// Adds products of `depth` steps to both chains of every sum. a: M rows, K apart; b: rows of N.
template <int M, int N, int K, int depth>
VNPU_TILES_INLINE void chain(const uint16_t *a, const uint16_t *b, Floats<width<N>> *even, Floats<width<N>> *odd) {
  constexpr int W = width<N>;
#pragma GCC unroll 16
  for (int i = 0; i < depth; i += 2) {
    const Words<W> rows[] = {widened<W>(b + i * N), widened<W>(b + (i + 1) * N)};
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const uint16_t *const factors = a + m * K + i;
      even[m] = chained<W>(even[m], (uint32_t(factors[0]) << 16) - Words<W>{}, rows[0]);
      odd[m] = chained<W>(odd[m], (uint32_t(factors[1]) << 16) - Words<W>{}, rows[1]);
    }
  }
}

// See dots::multiply_add.
template <int M, int N, int K, class Row>
VNPU_TILES_INLINE void multiply_add(const uint16_t *a, const uint16_t *b, Row *c, int step) {
  constexpr int W = width<N>, depth = depth_of(K);
  for (int k = 0; k < K; k += depth) {
    Floats<W> even[M] = {}, odd[M] = {};
    chain<M, N, K, depth>(a + k, b + k * N, even, odd);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) c[m * step] = (Row)ended<W>((Floats<W>)c[m * step], even[m], odd[m]);
  }
}

// M x N sums to which blocks of 8 steps are added one after the other: every four blocks are summed together, and so are the
// remaining ones.
template <int M, int N>
class AccumulationGroup {
  static_assert(N == width<N>, "a row of sums is one vector");

 public:
  AccumulationGroup() = default;
  explicit AccumulationGroup(const float *sums) { memcpy(sums_, sums, sizeof(sums_)); }

  VNPU_TILES_INLINE void multiply_add(const void *a, const void *b) {
    uint16_t left[M * 8], right[8 * N];
    memcpy(left, a, sizeof(left)), memcpy(right, b, sizeof(right));
    chain<M, N, 8, 8>(left, right, even_, odd_);
    if (++blocks_ == kBlocks) *this = ended_go();
  }
  // The present sums; reading them changes nothing.
  VNPU_TILES_INLINE void store(float *to) const {
    const AccumulationGroup whole = blocks_ == 0 ? *this : ended_go();
    memcpy(to, whole.sums_, sizeof(sums_));
  }

 private:
  static constexpr int kBlocks = 4;
  VNPU_TILES_INLINE AccumulationGroup ended_go() const {
    AccumulationGroup whole;
    for (int m = 0; m < M; ++m) whole.sums_[m] = ended<N>(sums_[m], even_[m], odd_[m]);
    return whole;
  }

  Floats<N> sums_[M] = {}, even_[M] = {}, odd_[M] = {};
  int blocks_ = 0;
};

}  // namespace vnpu::dots::tiles
