// Transposes 8x8 blocks in place: (n 8, k 8), rows of a weight in Hugging Face's layout, becomes (k 8, n 8), rows of k, which
// the matrix unit multiplies by. Only bits move, so no rounding mode matters.
//
// A program that needs two sizes builds this file twice and renames the symbol, for example
// -DTRANSPOSED_BLOCKS=64 -Dtranspose_blocks_bf16=transpose_blocks_bf16_16x4.

#include <cstdint>

#include <aie_api/aie.hpp>

// Contiguous blocks.
#ifndef TRANSPOSED_BLOCKS
#define TRANSPOSED_BLOCKS 64
#endif

namespace {

constexpr unsigned side = 8;
constexpr unsigned block = side * side;

}  // namespace

extern "C" {

// blocks: TRANSPOSED_BLOCKS of 8x8 bf16, each row by row before and after.
void transpose_blocks_bf16(bfloat16* __restrict blocks) {
  for (bfloat16* at = blocks; at != blocks + TRANSPOSED_BLOCKS * block; at += block) {
    aie::store_v(at, aie::transpose(aie::load_v<block>(at), side, side));
  }
}
}
