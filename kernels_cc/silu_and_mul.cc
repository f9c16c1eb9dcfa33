// SwiGLU's activation: out = silu(gate) * up, silu(g) = g / (1 + exp(-g)). With the macro GELU that of GeGLU: the tanh form
// of GELU, 0.5 g (1 + tanh(u)) = g / (1 + exp(-2 u)) with u = sqrt(2 / pi) (g + 0.044715 g^3). With the macro SIGMOID
// the gate is sigmoid(g) alone, with NO_ACTIVATION it is taken as it is.
//
// The core's tanh gives bf16, and 1 + tanh(g / 2) cancels for negative gates. So the sigmoid is computed from e = exp(-|g|),
// which never exceeds 1: 1 / (1 + e) for g >= 0 and e / (1 + e) for g < 0. The only large error is the rounding of e to bf16,
// at most 2^-8 of e, so the sigmoid is accurate to 2^-8 for very negative gates and to 2^-10 for positive ones. silu is rounded
// to bf16 before the product with up, as Hugging Face does in bf16.

#include <cstdint>

#include <aie_api/aie.hpp>

namespace {

constexpr unsigned lanes = 16;
using Bf16 = aie::vector<bfloat16, lanes>;

#ifdef NO_ACTIVATION
inline Bf16 activated(const Bf16& gate) { return gate; }
#else
using F32 = aie::vector<float, lanes>;
using Acc = aie::accum<accfloat, lanes>;

inline F32 as_f32(const Bf16& v) { return Acc(v).to_vector<float>(); }

// 1 / d for d in [1, 2]: the bf16 inverse and one Newton step, r (2 - d r).
inline F32 inverse(const F32& d) {
  const F32 seed = as_f32(aie::inv(Acc(d).to_vector<bfloat16>()));
  const Acc rest = aie::negmul(d, seed);
  return aie::mul(seed, aie::add(rest, 2.0f).to_vector<float>()).to_vector<float>();
}

// The sign bit cleared, as integers: every compiler for the core supports that.
inline Bf16 magnitude_of(const Bf16& v) { return aie::bit_and(int16(0x7fff), v.cast_to<int16>()).cast_to<bfloat16>(); }

#ifdef GELU
// |2 u| log2(e) of u = sqrt(2 / pi) (g + 0.044715 g^3), negated. Beyond |g| = 16 the sigmoid is 0 or 1 anyway.
inline Acc exponent(const Bf16& gate) {
  constexpr float scale = 2.3022082f, cubic = 0.10294324f;  // 2 sqrt(2 / pi) log2(e), and 0.044715 of it
  const Bf16 magnitude = aie::min(magnitude_of(gate), aie::broadcast<bfloat16, lanes>(16.0f));
  const F32 square = aie::mul(magnitude, magnitude).to_vector<float>();
  const Acc factor = aie::add(aie::mul(square, cubic), scale);
  return aie::negmul(as_f32(magnitude), factor.to_vector<float>());
}
#else
// |g| log2(e), negated; log2(e) is the sum of two bf16, so its product with a bf16 gate is accurate to 2^-17.
inline Acc exponent(const Bf16& gate) {
  const bfloat16 log2e_high = 1.4453125f, log2e_low = -0.00262451171875f;
  const Bf16 magnitude = magnitude_of(gate);
  return aie::msc(aie::negmul(magnitude, log2e_high), magnitude, log2e_low);
}
#endif

inline F32 sigmoid(const Bf16& gate) {
  const F32 e = as_f32(aie::exp2<bfloat16>(exponent(gate).to_vector<float>()));
  const F32 one = aie::broadcast<float, lanes>(1.0f);
  const F32 numerator = aie::select(one, e, aie::lt(gate, aie::zeros<bfloat16, lanes>()));
  return aie::mul(numerator, inverse(aie::add(one, e))).to_vector<float>();
}

#ifdef SIGMOID
inline Bf16 activated(const Bf16& gate) { return Acc(sigmoid(gate)).to_vector<bfloat16>(); }
#else
inline Bf16 activated(const Bf16& gate) { return aie::mul(as_f32(gate), sigmoid(gate)).to_vector<bfloat16>(); }
#endif
#endif

}  // namespace

extern "C" {

// gate, up, out: n bf16 each; n is a multiple of 16.
// overwrites: out[0 : n]
void silu_and_mul_bf16(const bfloat16* __restrict gate, const bfloat16* __restrict up, bfloat16* __restrict out, int32_t n) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (int32_t i = 0; i < n; i += lanes) {
    const Bf16 factor = activated(aie::load_v<lanes>(gate + i));
    aie::store_v(out + i, aie::mul(factor, aie::load_v<lanes>(up + i)).to_vector<bfloat16>());
  }
}
}
