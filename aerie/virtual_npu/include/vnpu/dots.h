// The order in which a program sums products of bf16 in f32, and which instructions make the sums.
//
// A CPU's instructions for bf16 add several products at once, each kind in an order of its own. A program with fast paths
// (VNPU_FAST) keeps to one order for all products of blocks of one shape, recognised as a large product or not, checked or
// not, in generated code (vector.contract) and in kernels (aie::mmul), so all of these give the same bits. Of a block of K by
// N, the right factor:
//
//   set                order           c becomes
//   AMX-BF16           in tiles        round(c + round(even + odd)) for every 32 steps of k that the text sums together (else
//                                      8, or what remains of a kernel's mmul), where `even` is the sum of products of steps 0,
//                                      2, 4 and so on from zero, one fused multiply-add each, and `odd` that of the others
//   AVX512-BF16        in pairs        fma(even product, fma(odd product, c)) for every two steps, as Intel states it; not
//                                      where VNPU_SLOW_PAIRS says that two instructions for f32 take less time (cpu.py)
//   ARM with BF16      in odd pairs    round(c + round(even product + odd product)) for every two steps, all rounded to odd
//   any other          one by one      fma(product, c) for every step
//
// The first three take numbers below 2^-126 for zero, in what they read and in what they write, and need K to be a multiple
// of 8 or of 2, and N of 4 (order_of); other blocks take the next order that is not the other architecture's. Sources: Intel's
// Software Developer's Manual, TDPBF16PS and VDPBF16PS; Arm's manual, BFMMLA and BFDOT with FPCR.EBF = 0, as Linux sets it:
// there BFMMLA is two BFDOTs, and either may be used.
//
// Summed together: an AMX instruction adds its sum to c once, so the text must say which blocks one instruction sums. Blocks
// are 8x8x8, as AIE2P's core contracts them, and a loop over k adds one after the other to carried sums. In such a loop every
// four blocks are summed together (contract.h, SummedTogether); a block outside of one is summed alone. An instruction takes as
// long for 8 steps as for 32, so a text with shorter loops reaches a quarter of the tiles' speed.
//
// aie::mmul collects blocks: from its start every four blocks are summed together, and so are the remaining ones, up to 24
// steps, when the sums are read. A block is in registers, and filling tiles would take longer than multiplying it, so vectors
// multiply it in the tiles' order (dots_tiles.h), slower than in pairs. A kernel with whole matrices in panels can call for
// their product, which tiles compute with the same bits (dots_panels.h).
//
// A program's order is fixed when it is compiled: it is compiled for the CPU that runs it, and the CPU's features are part of
// its key in the cache, so there is no choice at run time. AMX also needs permission from the kernel (tiles.h).
#pragma once

#include <stdint.h>

#if defined(VNPU_FAST) && defined(__AVX512BF16__) && defined(__AVX512VL__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define VNPU_BF16_DOTS 1  // vdpbf16ps and its like
#if !defined(VNPU_SLOW_PAIRS)
#define VNPU_BF16_PAIRS 1
#endif
#endif
#if (defined(__AMX_TILE__) && defined(__AMX_BF16__)) || (defined(__AMXTILE__) && defined(__AMXBF16__))  // clang 14's names
#define VNPU_AMX 1
#endif
#if defined(VNPU_FAST) && (defined(VNPU_EMULATED_TILES) || (defined(VNPU_BF16_DOTS) && defined(VNPU_AMX)))
#define VNPU_BF16_TILES 1
#endif
#if defined(VNPU_FAST) && (defined(VNPU_EMULATED_ARM_BF16) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC))
#define VNPU_BF16_ARM 1
#endif

namespace vnpu::dots {

enum class Order { kOneByOne, kPairs, kOddPairs, kTiles };

// How many blocks of `columns` (N) by `steps` (K) are summed together.
constexpr Order order_of([[maybe_unused]] int steps, [[maybe_unused]] int columns) {
#if defined(VNPU_BF16_TILES)
  if (steps % 8 == 0 && columns % 4 == 0) return Order::kTiles;
#endif
#if defined(VNPU_BF16_PAIRS)
  if (steps % 2 == 0 && columns % 4 == 0) return Order::kPairs;
#elif defined(VNPU_BF16_ARM)
  if (steps % 2 == 0 && columns % 4 == 0) return Order::kOddPairs;
#endif
  return Order::kOneByOne;
}

// Steps that one tile instruction sums, of a group of so many steps.
constexpr int depth_of(int steps) { return steps % 32 == 0 ? 32 : 8; }

// Columns of a product that are computed together: 8 or 4.
template <int N>
inline constexpr int width = N % 8 == 0 ? 8 : 4;

}  // namespace vnpu::dots

#if defined(VNPU_BF16_DOTS)
#include "vnpu/dots_pairs.h"
#endif
#if defined(VNPU_BF16_TILES)
#include "vnpu/dots_tiles.h"
#endif
#if defined(VNPU_BF16_ARM)
#include "vnpu/dots_arm.h"
#endif

namespace vnpu::dots {

// Adds a b to Width columns of c. a: M x K, row by row. b: K rows, N apart, from the first of these columns. Both are bf16
// bits. c: M vectors of `width` f32, `step` apart. how: any order but kOneByOne.
template <Order how, int M, int N, int K, class Row>
__attribute__((always_inline)) inline void multiply_add([[maybe_unused]] const uint16_t *a, [[maybe_unused]] const uint16_t *b,
                                                        [[maybe_unused]] Row *c, [[maybe_unused]] int step) {
  static_assert(how != Order::kOneByOne, "a product by itself is no dot");
#if defined(VNPU_BF16_TILES)
  if constexpr (how == Order::kTiles) tiles::multiply_add<M, N, K>(a, b, c, step);
#endif
#if defined(VNPU_BF16_DOTS)
  if constexpr (how == Order::kPairs) pairs::multiply_add<M, N, K>(a, b, c, step);
#endif
#if defined(VNPU_BF16_ARM)
  if constexpr (how == Order::kOddPairs) arm::multiply_add<M, N, K>(a, b, c, step);
#endif
}

}  // namespace vnpu::dots
