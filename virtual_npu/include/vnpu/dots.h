// The order in which a program sums products of bf16 in f32, and which instructions make the sums.
//
// A CPU's instructions for bf16 add several products at once, each kind in an order of its own. A program with fast paths
// (VNPU_FAST) keeps to one order for all products of blocks of one shape, recognised as a large product or not, checked or
// not, in generated code and in kernels: so all of these give the same bits. Of a block of K by N, the right factor:
//
//   set                order           c becomes
//   AMX-BF16           in eights       round(c + round(even + odd)) for every eight steps of k, where `even` is the sum of
//                                      products of steps 0, 2, 4 and 6 from zero on, one fused multiply-add each, and `odd`
//                                      that of the others
//   AVX512-BF16        in pairs        fma(even product, fma(odd product, c)) for every two steps, as Intel states it
//   ARM with BF16      in odd pairs    round(c + round(even product + odd product)) for every two steps, all rounded to odd
//   any other          one by one      fma(product, c) for every step
//
// The first three take numbers below 2^-126 for zero, in what they read and in what they write, and need K to be a multiple
// of 8 or of 2, and N of 4 (order_of); other blocks take the next order that is not the other architecture's. Sources: Intel's
// Software Developer's Manual, TDPBF16PS and VDPBF16PS; Arm's manual, BFMMLA and BFDOT with FPCR.EBF = 0, as Linux sets it:
// there BFMMLA is two BFDOTs, and either may be used.
//
// Why eight steps for AMX, whose instruction takes up to 32: it adds its sum to c once, so what is summed by one instruction
// is what one vector.contract must be given, and nearly all texts contract blocks of 8x8x8, as the core of AIE2P does. With 32
// a contract by itself, a program with checks, and a kernel's aie::mmul would all differ from the recognised product. The
// price: an instruction takes as long with 8 steps as with 32, so a quarter of the tiles' peak is the most that can be reached,
// 128 multiplications per cycle and core instead of 512, four times what two AVX-512 units do in f32.
//
// Which set a program has is settled when it is compiled: it is compiled for the CPU that runs it, whose features are part of
// its key in the cache, so nothing is left to choose at run time. AMX moreover needs leave of the kernel (product_tiles.h).
#pragma once

#include <stdint.h>

#if defined(VNPU_FAST) && defined(__AVX512BF16__) && defined(__AVX512VL__) && defined(__AVX512BW__) && \
    defined(__AVX512DQ__)
#define VNPU_BF16_DOTS 1  // vdpbf16ps and its like
#endif
#if defined(VNPU_FAST) && (defined(VNPU_EMULATED_TILES) || \
                           (defined(VNPU_BF16_DOTS) && defined(__AMX_TILE__) && defined(__AMX_BF16__)))
#define VNPU_BF16_TILES 1
#endif
#if defined(VNPU_FAST) && (defined(VNPU_EMULATED_ARM_BF16) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC))
#define VNPU_BF16_ARM 1
#endif

namespace vnpu::dots {

enum class Order { kOneByOne, kPairs, kOddPairs, kEights };

// Of blocks of `steps` (K) by `columns` (N).
constexpr Order order_of([[maybe_unused]] int steps, [[maybe_unused]] int columns) {
#if defined(VNPU_BF16_TILES)
  if (steps % 8 == 0 && columns % 4 == 0) return Order::kEights;
#endif
#if defined(VNPU_BF16_DOTS)
  if (steps % 2 == 0 && columns % 4 == 0) return Order::kPairs;
#elif defined(VNPU_BF16_ARM)
  if (steps % 2 == 0 && columns % 4 == 0) return Order::kOddPairs;
#endif
  return Order::kOneByOne;
}

// Whether multiply_add takes blocks of K by N.
template <int N, int K>
inline constexpr bool can_multiply = order_of(K, N) != Order::kOneByOne;

// Columns of a product that are made together: 8 or 4.
template <int N>
inline constexpr int width = N % 8 == 0 ? 8 : 4;

}  // namespace vnpu::dots

#if defined(VNPU_BF16_DOTS)
#include "vnpu/dots_pairs.h"
#endif
#if defined(VNPU_BF16_TILES)
#include "vnpu/dots_eights.h"
#endif
#if defined(VNPU_BF16_ARM)
#include "vnpu/dots_arm.h"
#endif

namespace vnpu::dots {

// Width columns of c += a b. a: M x K, row by row; b: K rows, N apart, from its first column of these; both bf16 by
// their bits. c: M vectors of `width` f32, `step` apart.
template <int M, int N, int K, class Row>
__attribute__((always_inline)) inline void multiply_add([[maybe_unused]] const uint16_t *a, [[maybe_unused]] const uint16_t *b,
                                                        [[maybe_unused]] Row *c, [[maybe_unused]] int step) {
  constexpr Order order = order_of(K, N);
  static_assert(order != Order::kOneByOne, "look at can_multiply first");
#if defined(VNPU_BF16_TILES)
  if constexpr (order == Order::kEights) eights::multiply_add<M, N, K>(a, b, c, step);
#endif
#if defined(VNPU_BF16_DOTS)
  if constexpr (order == Order::kPairs) pairs::multiply_add<M, N, K>(a, b, c, step);
#endif
#if defined(VNPU_BF16_ARM)
  if constexpr (order == Order::kOddPairs) arm::multiply_add<M, N, K>(a, b, c, step);
#endif
}

#if defined(VNPU_BF16_TILES) && defined(VNPU_BF16_DOTS)
using Block8x8 = pairs::Block8x8<eights::Sums>;
#elif defined(VNPU_BF16_DOTS)
using Block8x8 = pairs::Block8x8<pairs::Sums>;
#endif

}  // namespace vnpu::dots
