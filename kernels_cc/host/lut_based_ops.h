// What mlir-aie's header of this name has: tables of e^x and 1/x, and exponentials, inverses and tanh by them.
//
// They are templates, so that a kernel with a function of the same name calls its own.
#pragma once

#include "aie_api/aie.hpp"
#include "aie_api/host/lut_values.hpp"

// Values as they lie in an array, in pieces that host/luts.hpp describes.
#if defined(__AIE_ARCH__) && __AIE_ARCH__ == 20
#define AIE_HOST_TWICE(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) \
  a, b, c, d, e, f, g, h, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, i, j, k, l, m, n, o, p
#else
#define AIE_HOST_TWICE(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) \
  a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p
#endif

// The arrays as kernels declare them. One unit of several has them, as of all inline variables.
#define AIE_HOST_LUT(name, VALUES) alignas(aie::vector_decl_align) inline int16 name[512] = {VALUES(AIE_HOST_TWICE)}
AIE_HOST_LUT(exp_ilut_ab, AIE_HOST_INTEGER_POWERS);
AIE_HOST_LUT(exp_ilut_cd, AIE_HOST_INTEGER_POWERS);
AIE_HOST_LUT(exp_flut_ab, AIE_HOST_FRACTION_POWERS);
AIE_HOST_LUT(exp_flut_cd, AIE_HOST_FRACTION_POWERS);
AIE_HOST_LUT(softmax_ilut_ab, AIE_HOST_INTEGER_POWERS);
AIE_HOST_LUT(softmax_ilut_cd, AIE_HOST_INTEGER_POWERS);
AIE_HOST_LUT(softmax_flut_ab, AIE_HOST_FRACTION_POWERS);
AIE_HOST_LUT(softmax_flut_cd, AIE_HOST_FRACTION_POWERS);
#undef AIE_HOST_LUT
#undef AIE_HOST_TWICE
alignas(aie::vector_decl_align) inline unsigned char m_inv_lut[128] = {AIE_HOST_INVERSE_MANTISSAS};

// The inverse, by a table of the upper 7 bits of the mantissa.
template <typename F>
  requires std::is_same_v<F, float>
inline bfloat16 getInvBf16(F x) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x) + 0x8000u;
  const std::uint32_t exponent = bits >> 23 & 0xffu, mantissa = bits >> 16 & 0x7fu;
  const std::uint32_t inverse = 253u - exponent + (mantissa == 0);
  return bfloat16::from_bits(std::uint16_t((inverse << 7) + m_inv_lut[mantissa]));
}

// e^x: the product of the powers for the integer and for the fraction of x, which has 8 bits.
template <typename V>
  requires std::is_same_v<V, v16bfloat16>
inline v16accfloat getExpBf16(const V& x) {
  using table = aie::lut<4, bfloat16, bfloat16>;
  const table integers(256, exp_ilut_ab, exp_ilut_cd), fractions(256, exp_flut_ab, exp_flut_cd);
  const aie::parallel_lookup<uint16, table, aie::lut_oor_policy::truncate> of_integer(integers, 8), of_fraction(fractions, 0);
  const auto index = aie::filter_even(v32int16(bfloat16_to_int(x, 8))).template cast_to<uint16>();
  return aie::mul(of_integer.fetch(index), of_fraction.fetch(index));
}

// tanh. The device's is linear between 32 points; here it is the bf16 nearest to the exact value.
template <typename V>
  requires std::is_same_v<V, v16bfloat16>
inline v16bfloat16 getTanhBf16(const V& x) {
  return aie::host::map(x, [](float lane) AIE_HOST_LAMBDA { return std::tanh(lane); });
}
