// Updates some positions of a KV cache: each position stays, or becomes a row of a block, by its factors.
//
// out[p] = keep[p] * cache[p] + sum over i of insert[p, i] * rows[i], in f32, rounded once to bf16. With keep 1 and zeros in
// insert a position stays as it is, up to the sign of zero; with keep 0 and a single 1 it becomes that row.

#include <cstdint>

#include <aie_api/aie.hpp>

#ifndef CACHE_BLOCK
#define CACHE_BLOCK 4
#endif
#ifndef CACHE_HEAD_DIM
#define CACHE_HEAD_DIM 64
#endif

namespace {

constexpr unsigned block = CACHE_BLOCK;
constexpr unsigned head_dim = CACHE_HEAD_DIM;
constexpr unsigned lanes = 16;
static_assert(head_dim % lanes == 0, "CACHE_HEAD_DIM must be a multiple of 16, the lanes of a sum");

}  // namespace

extern "C" {

// cache, out: n x head_dim, the positions of core number `core`. keep and insert have all positions, one number and one row of
// `block` for each. rows: block x head_dim. All bf16, row-major.
void cache_update_bf16(const bfloat16* __restrict cache, const bfloat16* __restrict keep, const bfloat16* __restrict insert,
                       const bfloat16* __restrict rows, bfloat16* __restrict out, int32_t core, int32_t n) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  keep += core * n;
  insert += unsigned(core * n) * block;
  for (int32_t p = 0; p < n; ++p)
    for (unsigned d = 0; d < head_dim; d += lanes) {
      const unsigned at = unsigned(p) * head_dim + d;
      aie::accum<accfloat, lanes> sum = aie::mul(aie::load_v<lanes>(cache + at), keep[p]);
      for (unsigned i = 0; i < block; ++i)
        sum = aie::mac(sum, aie::load_v<lanes>(rows + i * head_dim + d), insert[unsigned(p) * block + i]);
      aie::store_v(out + at, sum.to_vector<bfloat16>());
    }
}
}
