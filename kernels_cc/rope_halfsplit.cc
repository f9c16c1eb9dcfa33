// Rotary position embedding in the half-split convention of Hugging Face: lane i of a head turns with lane
// i + head_dim / 2. (The interleaved convention, 2i with 2i + 1, gives other numbers from the same table.)
//
// The two products are summed in f32 and rounded once. Hugging Face in bf16 rounds each product and then the sum; one
// rounding is nearer to the exact value, and the two differ by at most about one unit of bf16 of the larger product.

#include <cstdint>

#include <aie_api/aie.hpp>

namespace {

constexpr unsigned lanes = 16;

}  // namespace

extern "C" {

// One position. x, out: n_heads x head_dim bf16. lut: head_dim bf16, cosines then sines, head_dim / 2 of each.
// head_dim is a multiple of 32. With ROPE_ROTARY_DIM, a multiple of 32 too, only so many elements of a head turn, as a head
// of that size does; the others pass.
//   out[h, i]        = x[h, i] cos[i] - x[h, i + half] sin[i]
//   out[h, i + half] = x[h, i] sin[i] + x[h, i + half] cos[i]
// overwrites: out[0 : n_heads * head_dim]
void rope(const bfloat16* __restrict x, const bfloat16* __restrict lut, bfloat16* __restrict out, int32_t n_heads,
          int32_t head_dim) {
  aie::set_rounding(aie::rounding_mode::conv_even);
#ifdef ROPE_ROTARY_DIM
  const int32_t rotary_dim = ROPE_ROTARY_DIM;
#else
  const int32_t rotary_dim = head_dim;
#endif
  const int32_t half = rotary_dim / 2;
  for (int32_t head = 0; head < n_heads; ++head) {
    for (int32_t i = 0; i < half; i += lanes) {
      const aie::vector<bfloat16, lanes> first = aie::load_v<lanes>(x + i);
      const aie::vector<bfloat16, lanes> second = aie::load_v<lanes>(x + half + i);
      const aie::vector<bfloat16, lanes> cosine = aie::load_v<lanes>(lut + i);
      const aie::vector<bfloat16, lanes> sine = aie::load_v<lanes>(lut + half + i);
      const aie::accum<accfloat, lanes> turned = aie::msc(aie::mul(first, cosine), second, sine);
      const aie::accum<accfloat, lanes> across = aie::mac(aie::mul(first, sine), second, cosine);
      aie::store_v(out + i, turned.to_vector<bfloat16>());
      aie::store_v(out + half + i, across.to_vector<bfloat16>());
    }
    for (int32_t i = rotary_dim; i < head_dim; i += lanes) aie::store_v(out + i, aie::load_v<lanes>(x + i));
    x += head_dim;
    out += head_dim;
  }
}
}
