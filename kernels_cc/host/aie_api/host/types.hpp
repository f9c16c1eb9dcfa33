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
// Wide vector types are passed only between inlined functions, so their ABI does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"
#pragma GCC diagnostic ignored "-Wignored-attributes"
// g++ 12's own headers begin with registers that they do not set.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#ifndef AIE_HOST_INLINE
#define AIE_HOST_INLINE [[gnu::always_inline]] inline
#endif
#define AIE_HOST_LAMBDA __attribute__((always_inline))

using int8 = std::int8_t;
using int16 = std::int16_t;
using int32 = std::int32_t;
using int64 = std::int64_t;
using uint8 = std::uint8_t;
using uint16 = std::uint16_t;
using uint32 = std::uint32_t;
using uint64 = std::uint64_t;

// Types of 4 bits, of which a byte holds two: only vectors have them.
struct int4 {};
struct uint4 {};

struct accfloat {};
struct acc32 {};
struct acc64 {};
struct accauto {};

// bfloat16: the upper half of an f32. Arithmetic is done in f32. A conversion from f32 at run time uses the core's rounding
// mode; a constant is rounded to nearest even, as by the compiler for the device.
struct bfloat16 {
  std::uint16_t bits;

  bfloat16() = default;
  template <typename A>
    requires std::is_arithmetic_v<A>
  constexpr bfloat16(A value)
      : bits(aie::host::round_bf16(float(value),
                                   std::is_constant_evaluated() ? aie::rounding_mode::conv_even : aie::host::modes.rounding)) {}
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
inline constexpr bool is_nibble = is_one_of<T, int4, uint4>;

template <typename T>
inline constexpr bool is_float = is_one_of<T, bfloat16, float>;

// AIE2P's registers are 128 to 1024 bits wide; wider vectors consist of several, so any power of two from 128 on is legal.
template <typename T, unsigned N>
inline constexpr bool is_vector_shape = (N & (N - 1)) == 0 && N * sizeof(T) * 8 >= 128 && N * sizeof(T) * 8 <= 8192;

// The storage of a type's lanes: bf16 as its bits, all others as themselves.
template <typename T>
using lane_t = std::conditional_t<std::is_same_v<T, bfloat16>, std::uint16_t, T>;

// The type that arithmetic on a lane is done in.
template <typename T>
using wide_t = std::conditional_t<is_float<T>, float, T>;

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
