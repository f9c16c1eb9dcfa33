// Element types, accumulator tags, and what AIE2P has of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "modes.hpp"
#include "vnpu/dots.h"

#if defined(__GNUC__) && !defined(__clang__)
// Wide vector types are passed only between functions that are inlined, so their ABI does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"
#pragma GCC diagnostic ignored "-Wignored-attributes"
#endif

#ifndef AIE_HOST_INLINE
#define AIE_HOST_INLINE [[gnu::always_inline]] inline
#endif

using int8 = std::int8_t;
using int16 = std::int16_t;
using int32 = std::int32_t;
using int64 = std::int64_t;
using uint8 = std::uint8_t;
using uint16 = std::uint16_t;
using uint32 = std::uint32_t;
using uint64 = std::uint64_t;

struct accfloat {};
struct acc32 {};
struct acc64 {};
struct accauto {};

// bfloat16: the upper half of an f32. Arithmetic is done in f32. A conversion from f32 at run time follows the core's
// rounding mode, a constant is rounded to nearest even, as the compiler for the device does.
struct bfloat16 {
  std::uint16_t bits;

  bfloat16() = default;
  template <typename A>
    requires std::is_arithmetic_v<A>
  constexpr bfloat16(A value)
      : bits(aie::host::round_bf16(float(value), std::is_constant_evaluated() ? aie::rounding_mode::conv_even
                                                                              : aie::host::modes.rounding)) {}
  constexpr operator float() const { return __builtin_bit_cast(float, std::uint32_t(bits) << 16); }
  static constexpr bfloat16 from_bits(std::uint16_t bits) {
    bfloat16 value;
    value.bits = bits;
    return value;
  }
  constexpr bfloat16& operator+=(float v) { return *this = bfloat16(float(*this) + v); }
  constexpr bfloat16& operator-=(float v) { return *this = bfloat16(float(*this) - v); }
  constexpr bfloat16& operator*=(float v) { return *this = bfloat16(float(*this) * v); }
  constexpr bfloat16& operator/=(float v) { return *this = bfloat16(float(*this) / v); }
};
using bfloat16_t = bfloat16;

namespace aie {
namespace host {

template <typename T, typename... Types>
inline constexpr bool is_one_of = (std::is_same_v<T, Types> || ...);

template <typename T>
inline constexpr bool is_element = is_one_of<T, int8, uint8, int16, uint16, int32, uint32, bfloat16, float>;

template <typename T>
inline constexpr bool is_float = is_one_of<T, bfloat16, float>;

// AIE2P's registers are 128 to 1024 bits wide; wider vectors are made of several, so any power of two from 128 on.
template <typename T, unsigned N>
inline constexpr bool is_vector_shape = (N & (N - 1)) == 0 && N * sizeof(T) * 8 >= 128 && N * sizeof(T) * 8 <= 8192;

// How the lanes of a type are kept: bf16 as its bits, all others as themselves.
template <typename T>
using lane_t = std::conditional_t<std::is_same_v<T, bfloat16>, std::uint16_t, T>;

// The type that arithmetic on a lane is done in.
template <typename T>
using wide_t = std::conditional_t<is_float<T>, float, T>;

template <typename T, unsigned N>
struct lanes_of {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
};
template <typename T, unsigned N>
using lanes = typename lanes_of<T, N>::type;

// All ones or all zeros per lane, what a comparison of lanes<T, N> gives.
template <typename T, unsigned N>
using truth = decltype(lanes<T, N>{} < lanes<T, N>{});

#if defined(__AVX512F__)
inline constexpr unsigned register_bytes = 64;
#elif defined(__AVX__)
inline constexpr unsigned register_bytes = 32;
#else
inline constexpr unsigned register_bytes = 16;
#endif

// Part `i` of M lanes.
template <unsigned M, typename V>
AIE_HOST_INLINE auto part_of(const V& whole, unsigned i) {
  using L = std::remove_cvref_t<decltype(whole[0])>;
  lanes<L, M> out;
  std::memcpy(&out, reinterpret_cast<const char*>(&whole) + i * sizeof(out), sizeof(out));
  return out;
}

// N lanes as so many CPU registers. A vector type wider than a register g++ 12 keeps in memory, where a sum that grows
// in a loop waits for its own stores.
template <typename L, unsigned N>
struct registers {
  static constexpr unsigned width = N < register_bytes / sizeof(L) ? N : register_bytes / sizeof(L);

  lanes<L, width> part[N / width];

  registers() = default;
  AIE_HOST_INLINE registers(L value) {
    each_index([&](auto i) { part[i] = value - lanes<L, width>{}; });
  }
  AIE_HOST_INLINE registers(const lanes<L, N>& whole) { std::memcpy(&part, &whole, sizeof(part)); }
  AIE_HOST_INLINE operator lanes<L, N>() const {
    lanes<L, N> whole;
    std::memcpy(&whole, &part, sizeof(part));
    return whole;
  }
  AIE_HOST_INLINE L operator[](unsigned i) const { return part[i / width][i % width]; }

  // f(part of in...) for every part.
  template <typename F, typename... In>
  AIE_HOST_INLINE static registers each(F f, const In&... in) {
    registers out;
    each_index([&](auto i) { out.part[i] = f(in.part[i]...); });
    return out;
  }
  // f(i) for every part. No loop: g++ 12 keeps in memory what a loop of eight goes over.
  template <typename F>
  AIE_HOST_INLINE static void each_index(F f) {
    [&]<unsigned... I>(std::integer_sequence<unsigned, I...>) {
      (f(std::integral_constant<unsigned, I>()), ...);
    }(std::make_integer_sequence<unsigned, N / width>());
  }
  AIE_HOST_INLINE friend registers operator-(const registers& a) {
    return each([](const auto& x) { return -x; }, a);
  }
  AIE_HOST_INLINE friend registers operator+(const registers& a, const registers& b) {
    return each([](const auto& x, const auto& y) { return x + y; }, a, b);
  }
  AIE_HOST_INLINE friend registers operator-(const registers& a, const registers& b) {
    return each([](const auto& x, const auto& y) { return x - y; }, a, b);
  }
  AIE_HOST_INLINE friend registers operator*(const registers& a, const registers& b) {
    return each([](const auto& x, const auto& y) { return x * y; }, a, b);
  }
};

// f(in...) of N lanes, a CPU register of 4-byte lanes at a time. g++ 12 takes comparisons and choices of wider vectors
// apart into single lanes; sums and products it does not.
template <typename L, unsigned N, typename F, typename... In>
AIE_HOST_INLINE lanes<L, N> by_registers(F f, const In&... in) {
  constexpr unsigned M = N < register_bytes / 4 ? N : register_bytes / 4;
  if constexpr (M == N) {
    return f(in...);
  } else {
    lanes<L, N> out;
    for (unsigned i = 0; i < N / M; ++i) {
      const lanes<L, M> piece = f(part_of<M>(in, i)...);
      std::memcpy(reinterpret_cast<char*>(&out) + i * sizeof(piece), &piece, sizeof(piece));
    }
    return out;
  }
}

// How many lanes a vector of lanes of L has.
template <typename L, typename V>
inline constexpr unsigned lane_count = sizeof(V) / sizeof(L);

template <unsigned N>
AIE_HOST_INLINE lanes<float, N> widen(const lanes<std::uint16_t, N>& bits) {
#if defined(__AVX2__) && !defined(__clang__)
  // g++ 12 makes several instructions of this conversion where there is one.
#if defined(__AVX512F__)
  if constexpr (N == 16) {
    typedef short Shorts __attribute__((vector_size(32)));
    typedef int Ints __attribute__((vector_size(64)));
    return (lanes<float, 16>)(__builtin_ia32_pmovzxwd512_mask((Shorts)bits, Ints{}, -1) << 16);
  }
#endif
  if constexpr (N == 8) {
    typedef short Shorts __attribute__((vector_size(16)));
    return (lanes<float, 8>)(__builtin_ia32_pmovzxwd256((Shorts)bits) << 16);
  }
#endif
  return (lanes<float, N>)(__builtin_convertvector(bits, lanes<std::uint32_t, N>) << 16);
}

template <unsigned N>
AIE_HOST_INLINE lanes<std::uint16_t, N> narrow_even_in_steps(const lanes<float, N>& value) {
  return by_registers<std::uint16_t, N>(
      [](const auto& v) {
        constexpr unsigned M = lane_count<float, std::remove_cvref_t<decltype(v)>>;
        const auto bits = (lanes<std::uint32_t, M>)v;
        const auto rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        const auto nan = (bits >> 16) | 0x40u;
        return __builtin_convertvector(v == v ? rounded : nan, lanes<std::uint16_t, M>);
      },
      value);
}

template <unsigned N>
AIE_HOST_INLINE lanes<std::uint16_t, N> narrow_even(const lanes<float, N>& value) {
#if defined(VNPU_BF16_DOTS)
  // One instruction, which takes numbers below 2^-126 for zero.
  constexpr int subnormal = 0x20;
  if constexpr (N == 16) {
    if (_mm512_fpclass_ps_mask((__m512)value, subnormal)) [[unlikely]] return narrow_even_in_steps<N>(value);
    return (lanes<std::uint16_t, N>)_mm512_cvtneps_pbh((__m512)value);
  }
  if constexpr (N % 32 == 0) {
    lanes<std::uint16_t, N> out;
    for (unsigned i = 0; i < N; i += 32) {
      const auto low = (__m512)part_of<16>(value, i / 16), high = (__m512)part_of<16>(value, i / 16 + 1);
      if (_mm512_fpclass_ps_mask(low, subnormal) | _mm512_fpclass_ps_mask(high, subnormal)) [[unlikely]]
        return narrow_even_in_steps<N>(value);
      const auto both = _mm512_cvtne2ps_pbh(high, low);
      std::memcpy(reinterpret_cast<char*>(&out) + i * 2, &both, sizeof(both));
    }
    return out;
  }
#endif
  return narrow_even_in_steps<N>(value);
}

// f32 lanes to bf16 lanes in the core's rounding mode.
template <unsigned N>
AIE_HOST_INLINE lanes<std::uint16_t, N> narrow(const lanes<float, N>& value) {
  const rounding_mode mode = modes.rounding;
  if (mode == rounding_mode::conv_even) [[likely]] return narrow_even<N>(value);
  lanes<std::uint16_t, N> out;
  for (unsigned i = 0; i < N; ++i) out[i] = round_bf16(value[i], mode);
  return out;
}

// a * b + c of f32 lanes that hold bf16 values in a and b: the product is exact unless it is below 2^-126, so fused or not
// the bits are the same, and fused is faster. Compilers are told not to fuse on their own, as it would change the bits of
// other products.
template <unsigned N>
AIE_HOST_INLINE lanes<float, N> multiply_add_bf16(const lanes<float, N>& a, const lanes<float, N>& b,
                                                  const lanes<float, N>& c) {
#if !defined(__FMA__) && !defined(__aarch64__)
  return a * b + c;
#elif __has_builtin(__builtin_elementwise_fma)
  return __builtin_elementwise_fma(a, b, c);
#elif defined(__aarch64__)
  lanes<float, N> out;
  for (unsigned i = 0; i < N; i += 4) {
    lanes<float, 4> part[3];
    std::memcpy(&part[0], (const char*)&a + i * 4, 16);
    std::memcpy(&part[1], (const char*)&b + i * 4, 16);
    std::memcpy(&part[2], (const char*)&c + i * 4, 16);
    part[0] = __builtin_aarch64_fmav4sf(part[0], part[1], part[2]);
    std::memcpy((char*)&out + i * 4, &part[0], 16);
  }
  return out;
#else
#ifdef __AVX512F__
  if constexpr (N == 16) return __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4);
#endif
  if constexpr (N == 8) return __builtin_ia32_vfmaddps256(a, b, c);
  if constexpr (N == 4) return __builtin_ia32_vfmaddps(a, b, c);
#endif
}
// The same of bf16 lanes. A register is widened when its turn comes: all of them at once are more than a CPU has.
template <unsigned N>
AIE_HOST_INLINE registers<float, N> multiply_add_bf16(const lanes<std::uint16_t, N>& a, const lanes<std::uint16_t, N>& b,
                                                      const registers<float, N>& c) {
  constexpr unsigned M = registers<float, N>::width;
  registers<float, N> out;
  out.each_index([&](auto i) {
    out.part[i] = multiply_add_bf16<M>(widen<M>(part_of<M>(a, i)), widen<M>(part_of<M>(b, i)), c.part[i]);
  });
  return out;
}

template <typename T>
inline constexpr unsigned native_lanes = 512 / (8 * sizeof(T));

}  // namespace host

template <typename T>
inline constexpr unsigned native_vector_length_v = host::native_lanes<T>;

static inline void set_rounding(rounding_mode mode) { host::modes.rounding = mode; }
static inline rounding_mode get_rounding() { return host::modes.rounding; }
static inline rounding_mode swap_rounding(rounding_mode mode) {
  const rounding_mode previous = host::modes.rounding;
  host::modes.rounding = mode;
  return previous;
}
static inline void set_saturation(saturation_mode mode) { host::modes.saturation = mode; }
static inline saturation_mode get_saturation() { return host::modes.saturation; }
static inline saturation_mode swap_saturation(saturation_mode mode) {
  const saturation_mode previous = host::modes.saturation;
  host::modes.saturation = mode;
  return previous;
}

}  // namespace aie
