// Contraction of two vectors into a third: c[b, m, n] += sum over k of a[b, m, k] * b[b, k, n], in the order of dots.h.
// Separate from shuffle.h because compilers need more time for the CPU's instructions (dots.h) than for most programs.
//
// Apart from shuffle.h, because a compiler takes longer for the CPU's instructions (dots.h) than for most programs.
#pragma once

#include "vnpu/arith.h"
#include "vnpu/dots.h"
#if defined(VNPU_BFP16)
#include "vnpu/bfp16.h"
#if VNPU_CHECKS
#include "vnpu/stale.h"
#endif
#endif

namespace vnpu {

// Keeps the compiler from tracking the contents of memory.
template <class L>
VNPU_INLINE void keep_in_memory(L &lanes) {
  asm("" : "+m"(lanes));
}

// Up to 8 rows of c stay in registers for all k. Float products are fused: one rounding per step.
template <int Rows, int N, int K>
VNPU_INLINE void contract_rows(const float *a, const Vec<float, N> *b, Vec<float, N> *c) {
#pragma GCC unroll 16
  for (int k = 0; k < K; ++k) {
#pragma GCC unroll 8
    for (int m = 0; m < Rows; ++m) c[m] = fma(splat<float, N>(a[m * K + k]), b[k], c[m]);
  }
}

#if defined(VNPU_BFP16)
// The compiler for the NPU takes 8x8x8 and 4x8x8 products of bf16 into f32 through bfp16, and no others (mlir-aie,
// test/Conversion/AIEVecToLLVM/matmul-aie2p.mlir). It sets conv_even on every core that has one (pull request 2984).
template <int B, int M, int N, int K, class TA, class TB, class TC>
inline constexpr bool is_bfp16_product =
    B == 1 && (M == 8 || M == 4) && N == 8 && K == 8 && same_type<TA, bf16> && same_type<TB, bf16> && same_type<TC, float>;

// A factor of several such products, converted once.
template <int M>
struct Bfp16Left : bfp16::Left<bfp16::NearestEven, M> {
  using Block = Lanes<bf16, M * 8>;
  explicit VNPU_INLINE Bfp16Left(const Vec<bf16, M * 8> &a) : Bfp16Left(Block(a)) {}
  explicit VNPU_INLINE Bfp16Left(const Block &a) : bfp16::Left<bfp16::NearestEven, M>(&a.at[0].bits) {}
};

struct Bfp16Right : bfp16::Right<bfp16::NearestEven> {
  using Block = Lanes<bf16, 64>;
  explicit VNPU_INLINE Bfp16Right(const Vec<bf16, 64> &b) : Bfp16Right(Block(b)) {}
  explicit VNPU_INLINE Bfp16Right(const Block &b) : bfp16::Right<bfp16::NearestEven>(&b.at[0].bits) {}
};

template <int M>
VNPU_INLINE Vec<float, M * 8> contract(const Bfp16Left<M> &a, const Bfp16Right &b, const Vec<float, M * 8> &c) {
  Vec<float, 8> rows[M];
  split_rows<8>(c, rows);
  bfp16::Row sums[M];
  for (int m = 0; m < M; ++m) sums[m] = rows[m].v;
  bfp16::multiply_add(a, b, sums);
  for (int m = 0; m < M; ++m) rows[m].v = sums[m];
  return join_rows<M * 8>(rows);
}

#if VNPU_CHECKS
template <int B, int M, int N, int K, class TA, class TB, class TC>
VNPU_INLINE void look_at_blocks(Site site, const Vec<TA, B * M * K> &a, const Vec<TB, B * K * N> &b,
                                const Vec<TC, B * M * N> &) {
  if constexpr (is_bfp16_product<B, M, N, K, TA, TB, TC>) {
    const Lanes<bf16, M * K> x(a);
    const Lanes<bf16, K * N> y(b);
    note_stale_rows(site, &x.at[0].bits, M, &y.at[0].bits);
  }
}
#endif
#endif

template <int B, int M, int N, int K, class TC>
VNPU_INLINE Vec<TC, B * M * N> contract_dots(const Vec<bf16, B * M * K> &a, const Vec<bf16, B * K * N> &b,
                                             const Vec<TC, B * M * N> &c) {
  constexpr int W = dots::width<N>, chunks = N / W;
  const Lanes<bf16, B * M * K> x(a);
  const Lanes<bf16, B * K * N> y(b);
  Vec<float, W> rows[B * M * chunks];
  split_rows<W>(widen(c), rows);
  decltype(rows[0].v) sums[B * M * chunks];
  for (int i = 0; i < B * M * chunks; ++i) sums[i] = rows[i].v;
#pragma GCC unroll 4
  for (int i = 0; i < B; ++i) {
#pragma GCC unroll 4
    for (int q = 0; q < chunks; ++q) {
      dots::multiply_add<dots::order_of(K, N), M, N, K>(&x.at[i * M * K].bits, &y.at[i * K * N].bits + q * W,
                                                        sums + i * M * chunks + q, chunks);
    }
  }
  for (int i = 0; i < B * M * chunks; ++i) rows[i].v = sums[i];
  return narrow<TC>(join_rows<B * M * N>(rows));
}

template <int B, int M, int N, int K, class TA, class TB, class TC>
VNPU_INLINE Vec<TC, B * M * N> contract(const Vec<TA, B * M * K> &a, const Vec<TB, B * K * N> &b, const Vec<TC, B * M * N> &c) {
  constexpr bool float_a = same_type<TA, float> || is_narrow_float<TA>;
  constexpr bool float_c = same_type<TC, float> || is_narrow_float<TC>;
#if defined(VNPU_BFP16)
  if constexpr (is_bfp16_product<B, M, N, K, TA, TB, TC>) return contract(Bfp16Left<M>(a), Bfp16Right(b), c);
  else
#endif
      if constexpr (same_type<TA, bf16> && same_type<TB, bf16> && float_c && dots::order_of(K, N) != dots::Order::kOneByOne) {
    return contract_dots<B, M, N, K, TC>(a, b, c);
  } else if constexpr (float_a && float_c) {
    // Goes through memory on purpose: a broadcast or a widening load costs less than register shuffles.
    Lanes<float, B * M * K> x(widen(a));
    keep_in_memory(x);
    Lanes<TB, B * K * N> rows_of_b(b);
    keep_in_memory(rows_of_b);
    Vec<float, N> y[B * K], z[B * M];
#pragma GCC unroll 64
    for (int i = 0; i < B * K; ++i) y[i] = widen(load<TB, N>(rows_of_b.at + i * N));
    split_rows<N>(widen(c), z);
    constexpr int rows = M < 8 ? M : 8, left = M % rows, done = M - left;
#pragma GCC unroll 4
    for (int i = 0; i < B; ++i) {
#pragma GCC unroll 4
      for (int m = 0; m < done; m += rows) {
        contract_rows<rows, N, K>(x.at + (i * M + m) * K, y + i * K, z + i * M + m);
      }
      if constexpr (left > 0) contract_rows<left, N, K>(x.at + (i * M + done) * K, y + i * K, z + i * M + done);
    }
    return narrow<TC>(join_rows<B * M * N>(z));
  } else {
    Lanes<TA, B * M * K> x(a);
    Lanes<TB, B * K * N> y(b);
    Lanes<TC, B * M * N> z(c);
    for (int i = 0; i < B; ++i) {
      for (int m = 0; m < M; ++m) {
        for (int k = 0; k < K; ++k) {
          for (int n = 0; n < N; ++n) {
            const TC product = mul(cast<TC>(x.at[(i * M + m) * K + k]), cast<TC>(y.at[(i * K + k) * N + n]));
            TC &sum = z.at[(i * M + m) * N + n];
            sum = add(sum, product);
          }
        }
      }
    }
    return z.vec();
  }
}

// Collects the blocks that a loop over k adds to a carried sum. Groups of `Blocks` are summed together, by one instruction if
// the CPU has one for several blocks (dots.h). The sum is complete after each group.
template <int Blocks, int M, int N, int K>
class SummedTogether {
 public:
  VNPU_INLINE Vec<float, M * N> contract(const Vec<bf16, M * K> &a, const Vec<bf16, K * N> &b, const Vec<float, M * N> &c) {
#if defined(VNPU_BF16_TILES)
    const Lanes<bf16, M * K> rows(a);
    const Lanes<bf16, K * N> steps(b);
    for (int m = 0; m < M; ++m) memcpy(a_.at + (m * Blocks + count_) * K, rows.at + m * K, K * sizeof(bf16));
    memcpy(b_.at + count_ * K * N, steps.at, K * N * sizeof(bf16));
    if (++count_ < Blocks) return c;
    count_ = 0;
    return vnpu::contract<1, M, N, Blocks * K>(a_.vec(), b_.vec(), c);
  }

 private:
  Lanes<bf16, Blocks * M * K> a_;
  Lanes<bf16, Blocks * K * N> b_;
  int count_ = 0;
#else
    return vnpu::contract<1, M, N, K>(a, b, c);
  }
#endif
};

// The same with another operation instead of the sum.
template <int B, int M, int N, int K, class TA, class TB, class TC, class Combine>
inline Vec<TC, B * M * N> contract_by(const Vec<TA, B * M * K> &a, const Vec<TB, B * K * N> &b, const Vec<TC, B * M * N> &c,
                                      Combine combine) {
  Lanes<TA, B * M * K> x(a);
  Lanes<TB, B * K * N> y(b);
  Lanes<TC, B * M * N> z(c);
  for (int i = 0; i < B * M; ++i) {
    for (int k = 0; k < K; ++k) {
      for (int n = 0; n < N; ++n) {
        TC &into = z.at[i * N + n];
        into = combine(into, mul(cast<TC>(x.at[i * K + k]), cast<TC>(y.at[(i / M * K + k) * N + n])));
      }
    }
  }
  return z.vec();
}

}  // namespace vnpu
