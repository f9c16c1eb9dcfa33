// Functions of one variable.
//
// exp2 and tanh are look-ups of the core whose accuracy is not published; here they are the bf16 nearest to the exact
// value. inv, invsqrt and sqrt of bf16 lanes are approximations on the device (a few units of bf16), here exact
// before the one rounding.
#pragma once

#include <cmath>

#include "reshape.hpp"

namespace aie {
namespace host {

// 2^x in f32, for -126 <= x <= 128: 2^round(x) times a polynomial in the rest, |rest| <= 1/2. Relative error below
// 2^-22, and exact for integers. The coefficients are ln(2)^n / n!.
template <unsigned N>
AIE_HOST_INLINE lanes<float, N> exp2_inside(const lanes<float, N>& x) {
  using F = lanes<float, N>;
  using I = lanes<std::int32_t, N>;
  const F magic = F{} + 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits for a fraction
  const F shifted = x + magic;
  const F rest = x - (shifted - magic);
  F p = rest * 1.5403530e-4f + 1.3333558e-3f;
  p = p * rest + 9.6181291e-3f;
  p = p * rest + 5.5504109e-2f;
  p = p * rest + 2.4022651e-1f;
  p = p * rest + 6.9314718e-1f;
  p = p * rest + 1.0f;
  const I exponent = ((I)shifted << 23);  // the integer sits in the low bits of `shifted`
  return (F)((I)p + exponent);
}

// For any x.
template <unsigned N>
AIE_HOST_INLINE lanes<float, N> exp2_f32(const lanes<float, N>& x) {
  using F = lanes<float, N>;
  const F low = F{} - 127.0f, high = F{} + 128.0f;
  F bounded = x < low ? low : x;
  bounded = high < bounded ? high : bounded;
  F value = exp2_inside<N>(bounded);
  value = x < low ? F{} : value;
  value = x >= high ? F{} + __builtin_inff() : value;
  return x == x ? value : x;
}

#if defined(VNPU_BF16_DOTS)
// Of 16 lanes or 32, in bf16.
[[gnu::noinline, gnu::cold]] inline lanes<std::uint16_t, 16> exp2_bf16_of_any(__m512 x) {
  return narrow_even<16>(exp2_f32<16>((lanes<float, 16>)x));
}
[[gnu::noinline, gnu::cold]] inline lanes<std::uint16_t, 32> exp2_bf16_of_any(__m512 low, __m512 high) {
  const lanes<float, 16> halves[] = {exp2_f32<16>((lanes<float, 16>)low), exp2_f32<16>((lanes<float, 16>)high)};
  lanes<float, 32> value;
  std::memcpy(&value, &halves, sizeof(value));
  return narrow_even<32>(value);
}
// The same, where nearly always all results are normal numbers.
AIE_HOST_INLINE __mmask16 normal_exp2(__m512 x) {
  const __m512 least = _mm512_set1_ps(-126.0f), most = _mm512_set1_ps(128.0f);
  return _mm512_cmp_ps_mask(x, least, _CMP_GE_OQ) & _mm512_cmp_ps_mask(x, most, _CMP_LE_OQ);
}
AIE_HOST_INLINE __m512 exp2_inside(__m512 x) { return (__m512)exp2_inside<16>((lanes<float, 16>)x); }
AIE_HOST_INLINE lanes<std::uint16_t, 16> exp2_bf16(__m512 x) {
  if (normal_exp2(x) != 0xffff) [[unlikely]] return exp2_bf16_of_any(x);
  return (lanes<std::uint16_t, 16>)_mm512_cvtneps_pbh(exp2_inside(x));
}
AIE_HOST_INLINE lanes<std::uint16_t, 32> exp2_bf16(__m512 low, __m512 high) {
  if ((normal_exp2(low) & normal_exp2(high)) != 0xffff) [[unlikely]] return exp2_bf16_of_any(low, high);
  return (lanes<std::uint16_t, 32>)_mm512_cvtne2ps_pbh(exp2_inside(high), exp2_inside(low));
}
#endif

template <typename T, unsigned N, typename Function>
AIE_HOST_INLINE vector<T, N> map(const vector<T, N>& v, Function function) {
  vector<T, N> out;
  for (unsigned i = 0; i < N; ++i) out.set(T(function(float(v.get(i)))), i);
  return out;
}

}  // namespace host

template <typename TR = bfloat16, unsigned N>
AIE_HOST_INLINE vector<TR, N> exp2(const vector<float, N>& v) {
  static_assert(std::is_same_v<TR, bfloat16>, "aie::exp2 gives bfloat16 on AIE2P: aie::exp2<bfloat16>(float vector)");
#if defined(VNPU_BF16_DOTS)
  if constexpr (N == 16) return vector<bfloat16, N>(host::exp2_bf16((__m512)host::lanes<float, N>(v.data)));
  if constexpr (N % 32 == 0) {
    vector<bfloat16, N> out;
    for (unsigned i = 0; i < N / 32; ++i) {
      const auto low = (__m512)host::part_of<16>(v.data, 2 * i), high = (__m512)host::part_of<16>(v.data, 2 * i + 1);
      const auto piece = host::exp2_bf16(low, high);
      std::memcpy(reinterpret_cast<char*>(&out.data) + i * sizeof(piece), &piece, sizeof(piece));
    }
    return out;
  }
#endif
  const auto value = host::by_registers<float, N>(
      [](const auto& x) { return host::exp2_f32<host::lane_count<float, std::remove_cvref_t<decltype(x)>>>(x); }, v.data);
  return vector<bfloat16, N>(host::narrow_even<N>(value));
}
template <typename TR = bfloat16, unsigned N>
AIE_HOST_INLINE vector<TR, N> tanh(const vector<float, N>& v) {
  static_assert(std::is_same_v<TR, bfloat16>, "aie::tanh gives bfloat16 on AIE2P: aie::tanh<bfloat16>(float vector)");
  host::lanes<float, N> out;
  for (unsigned i = 0; i < N; ++i) out[i] = std::tanh(v.data[i]);
  return vector<bfloat16, N>(host::narrow_even<N>(out));
}
template <typename TR = bfloat16, unsigned N>
vector<TR, N> exp2(const vector<bfloat16, N>&) {
  static_assert(N == 0, "aie::exp2 takes float lanes on AIE2P: go through an accumulator, acc.to_vector<float>()");
}
template <typename TR = bfloat16, unsigned N>
vector<TR, N> tanh(const vector<bfloat16, N>&) {
  static_assert(N == 0, "aie::tanh takes float lanes on AIE2P: go through an accumulator, acc.to_vector<float>()");
}

template <typename T, unsigned N>
  requires host::is_float<T>
AIE_HOST_INLINE vector<T, N> inv(const vector<T, N>& v) {
  return host::from_wide<T, N>(1.0f / host::wide(v));
}
template <typename T, unsigned N>
  requires host::is_float<T>
AIE_HOST_INLINE vector<T, N> sqrt(const vector<T, N>& v) {
  return host::map(v, [](float x) { return std::sqrt(x); });
}
template <typename T, unsigned N>
  requires host::is_float<T>
AIE_HOST_INLINE vector<T, N> invsqrt(const vector<T, N>& v) {
  return host::map(v, [](float x) { return 1.0f / std::sqrt(x); });
}
template <typename E>
  requires host::is_float<E>
AIE_HOST_INLINE E inv(E x) {
  return E(1.0f / float(x));
}
template <typename E>
  requires host::is_float<E>
AIE_HOST_INLINE E sqrt(E x) {
  return E(std::sqrt(float(x)));
}
template <typename E>
  requires host::is_float<E>
AIE_HOST_INLINE E invsqrt(E x) {
  return E(1.0f / std::sqrt(float(x)));
}
AIE_HOST_INLINE float div(float a, float b) { return a / b; }
// As on the device a product with the inverse, left in the accumulator.
template <typename T, unsigned N>
  requires host::is_float<T>
AIE_HOST_INLINE accum<accfloat, N> div(const vector<T, N>& a, const vector<T, N>& b) {
  return mul(a, inv(b));
}

// An integer times 2^-shift.
template <typename TR = float, typename T, unsigned N>
  requires(host::is_float<TR> && !host::is_float<T>)
AIE_HOST_INLINE vector<TR, N> to_float(const vector<T, N>& v, int shift = 0) {
  const auto value = __builtin_convertvector(v.data, host::lanes<float, N>);
  return host::from_wide<TR, N>(value * std::ldexp(1.0f, -shift));
}
template <typename TR = float, typename Tag, unsigned N>
  requires(std::is_same_v<TR, float> && !std::is_same_v<Tag, accfloat>)
AIE_HOST_INLINE vector<TR, N> to_float(const accum<Tag, N>& acc, int shift = 0) {
  const auto value = __builtin_convertvector(typename accum<Tag, N>::storage_t(acc.data), host::lanes<float, N>);
  return vector<float, N>(value * std::ldexp(1.0f, -shift));
}
template <typename TR = float>
AIE_HOST_INLINE TR to_float(int value, int shift = 0) {
  return TR(std::ldexp(float(value), -shift));
}

namespace host {
// The nearest integer to value * 2^shift, ties to even, saturated to T (the device saturates here in every mode).
template <typename T>
AIE_HOST_INLINE T fixed(float value, int shift) {
  const double scaled = std::nearbyint(std::ldexp(double(value), shift));
  const double top = std::is_signed_v<T> ? std::ldexp(1.0, 8 * sizeof(T) - 1) - 1 : std::ldexp(1.0, 8 * sizeof(T)) - 1;
  const double bottom = std::is_signed_v<T> ? -top - 1 : 0;
  if (scaled != scaled) return T(0);
  return T(scaled > top ? top : scaled < bottom ? bottom : scaled);
}
}  // namespace host

template <typename TR = int32, typename T, unsigned N>
  requires(host::is_float<T> && std::is_integral_v<TR>)
AIE_HOST_INLINE vector<TR, N> to_fixed(const vector<T, N>& v, int shift = 0) {
  vector<TR, N> out;
  for (unsigned i = 0; i < N; ++i) out.data[i] = host::fixed<TR>(float(v.get(i)), shift);
  return out;
}
template <typename TR = int32>
  requires std::is_integral_v<TR>
AIE_HOST_INLINE TR to_fixed(float value, int shift = 0) {
  return host::fixed<TR>(value, shift);
}

}  // namespace aie
