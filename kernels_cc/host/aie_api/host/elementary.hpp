// Functions of one variable.
//
// exp2 and tanh are look-ups of the core whose accuracy is not published. Here they are the bf16 nearest to the exact value,
// except one in 100,000 of exp2's, whose exact value is within 2^-22 of halfway between two. inv, invsqrt and sqrt of bf16
// lanes are approximations on the device (a few units of bf16); here they are exact before one rounding.
#pragma once

#include <cmath>

#include "reshape.hpp"

namespace aie {
namespace host {

// 2^x in f32, for -126 <= x <= 128: 2^round(x) times a polynomial in the rest, |rest| <= 1/2. The relative error is below
// 2^-22, and 0 for integers. The polynomial is the one of degree 5 that is 1 at zero and has the least maximum relative error,
// 2^-23.4 (iterated weighted least squares). It is computed by squares, so that fewer steps wait for each other. Each step is
// computed for all registers before the next step, because a CPU looks only a few steps ahead.
template <unsigned N>
AIE_HOST_INLINE registers<float, N> exp2_inside(const registers<float, N>& x) {
  using F = registers<float, N>;
  const F magic(12582912.0f);  // 1.5 * 2^23: adding it leaves no bits for a fraction
  const F shifted = x + magic;
  const F rest = x - (shifted - magic);
  const F square = rest * rest, low = rest * F(6.93147004e-1f) + F(1.0f);
  const F middle = rest * F(5.55073358e-2f) + F(2.40222424e-1f), high = rest * F(1.32647273e-3f) + F(9.67151299e-3f);
  const F p = (high * square + middle) * square + low;
  // The integer is in the low bits of `shifted`.
  const auto scaled = [](const auto& value, const auto& exponent) AIE_HOST_LAMBDA {
    using I = lanes<std::int32_t, F::width>;
    return (typename F::part_type)((I)value + ((I)exponent << 23));
  };
  return F::each(scaled, p, shifted);
}

// For any x.
template <unsigned N>
AIE_HOST_INLINE registers<float, N> exp2_f32(const registers<float, N>& x) {
  using V = typename registers<float, N>::part_type;
  const auto bounded = [](const V& v) AIE_HOST_LAMBDA {
    const V low = V{} - 127.0f, high = V{} + 128.0f, least = v < low ? low : v;
    return high < least ? high : least;
  };
  const auto beyond = [](const V& v, const V& power) AIE_HOST_LAMBDA {
    V value = v < V{} - 127.0f ? V{} : power;
    value = v >= V{} + 128.0f ? V{} + __builtin_inff() : value;
    return v == v ? value : v;
  };
  return registers<float, N>::each(beyond, x, exp2_inside(registers<float, N>::each(bounded, x)));
}

// In bf16, for any x. Not inlined: it is hardly ever needed.
template <unsigned N>
[[gnu::noinline, gnu::cold]] void exp2_bf16_of_any(const float* x, std::uint16_t* out) {
  narrow_even(exp2_f32(registers<float, N>::load(x))).store(out);
}

// For |x|: whether 2^x and 2^-x are surely normal numbers. Others may be normal too; they take the longer path, with the same
// result.
struct has_normal_power {
  template <typename V>
  AIE_HOST_INLINE static auto flags(const V& x) {
    return x <= 126.0f;
  }
#if defined(__AVX512F__)
  AIE_HOST_INLINE static unsigned failing(const lanes<float, 16>& x) {
    return __builtin_ia32_cmpps512_mask(x, 126.0f - lanes<float, 16>{}, /* not at most */ 6, -1, 4);
  }
#endif
};

// For each lane, the largest magnitude in all registers, or a NaN, which is last in the order of the bits.
template <unsigned N>
AIE_HOST_INLINE auto largest_sizes(const registers<float, N>& x) {
  using Sizes = registers<std::int32_t, registers<float, N>::width>;
  const auto bits = bits_as<std::int32_t>(x);
  auto most = bits.part[0] & 0x7fffffff;
  each_number<bits.count>([&](auto i) AIE_HOST_LAMBDA {
    const auto size = bits.part[i] & 0x7fffffff;
    most = size > most ? size : most;
  });
  Sizes sizes;
  sizes.part[0] = most;
  return bits_as<float>(sizes);
}

// In bf16. Nearly always all results are normal numbers.
template <unsigned N>
AIE_HOST_INLINE registers<std::uint16_t, N> exp2_bf16(const registers<float, N>& x) {
  if (any_fails<has_normal_power>(largest_sizes(x))) [[unlikely]] {
    float from[N];
    std::uint16_t to[N];
    x.store(from);
    exp2_bf16_of_any<N>(from, to);
    return registers<std::uint16_t, N>::load(to);
  }
  return narrow_normal(exp2_inside(x));
}

template <typename T, unsigned N, typename Function>
AIE_HOST_INLINE vector<T, N> map(const vector<T, N>& v, Function function) {
  T lane[N];
  v.data.store(lane);
  for (T& x : lane) x = T(function(float(x)));
  return vector<T, N>(registers<lane_t<T>, N>::load(lane));
}

}  // namespace host

template <typename TR = bfloat16, unsigned N>
AIE_HOST_INLINE vector<TR, N> exp2(const vector<float, N>& v) {
  static_assert(std::is_same_v<TR, bfloat16>, "aie::exp2 gives bfloat16 on AIE2P: aie::exp2<bfloat16>(float vector)");
  return vector<bfloat16, N>(host::exp2_bf16(v.data));
}
template <typename TR = bfloat16, unsigned N>
AIE_HOST_INLINE vector<TR, N> tanh(const vector<float, N>& v) {
  static_assert(std::is_same_v<TR, bfloat16>, "aie::tanh gives bfloat16 on AIE2P: aie::tanh<bfloat16>(float vector)");
  float lane[N];
  v.data.store(lane);
  for (float& x : lane) x = std::tanh(x);
  return vector<bfloat16, N>(host::narrow_even(host::registers<float, N>::load(lane)));
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
  const auto inverse = [](const auto& x) AIE_HOST_LAMBDA { return 1.0f / x; };
  return host::from_wide<T, N>(host::registers<float, N>::each(inverse, host::wide(v)));
}
template <typename T, unsigned N>
  requires host::is_float<T>
AIE_HOST_INLINE vector<T, N> sqrt(const vector<T, N>& v) {
  return host::map(v, [](float x) AIE_HOST_LAMBDA { return std::sqrt(x); });
}
template <typename T, unsigned N>
  requires host::is_float<T>
AIE_HOST_INLINE vector<T, N> invsqrt(const vector<T, N>& v) {
  return host::map(v, [](float x) AIE_HOST_LAMBDA { return 1.0f / std::sqrt(x); });
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
// A product with the inverse, left in the accumulator, as on the device.
template <typename T, unsigned N>
  requires host::is_float<T>
AIE_HOST_INLINE accum<accfloat, N> div(const vector<T, N>& a, const vector<T, N>& b) {
  return mul(a, inv(b));
}

// An integer times 2^-shift.
template <typename TR = float, Vector V>
  requires(host::is_float<TR> && !host::is_float<typename V::value_type>)
AIE_HOST_INLINE auto to_float(const V& v, int shift = 0) {
  constexpr unsigned N = V::size();
  return host::from_wide<TR, N>(host::convert<float>(v.data) * host::registers<float, N>(std::ldexp(1.0f, -shift)));
}
template <typename TR = float, typename Tag, unsigned N>
  requires(std::is_same_v<TR, float> && !std::is_same_v<Tag, accfloat>)
AIE_HOST_INLINE vector<TR, N> to_float(const accum<Tag, N>& acc, int shift = 0) {
  return vector<float, N>(host::convert<float>(acc.data) * host::registers<float, N>(std::ldexp(1.0f, -shift)));
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
  for (unsigned i = 0; i < N; ++i) out.data.set(i, host::fixed<TR>(float(v.get(i)), shift));
  return out;
}
template <typename TR = int32>
  requires std::is_integral_v<TR>
AIE_HOST_INLINE TR to_fixed(float value, int shift = 0) {
  return host::fixed<TR>(value, shift);
}

}  // namespace aie
