// The mode registers of a core, and what rounding means in each mode.
#pragma once

#include <cstdint>

namespace aie {

enum class rounding_mode : unsigned {
  floor,
  ceil,
  positive_inf,
  negative_inf,
  symmetric_inf,
  symmetric_zero,
  conv_even,
  conv_odd,
  symmetric_floor,
  symmetric_ceil,
};

enum class saturation_mode : unsigned { none = 0, saturate = 1, symmetric = 3 };

namespace host {

// The two mode registers of a core. A core powers up with `floor`, and a register keeps its value from one kernel
// call to the next. All kernels that run on one host thread share this copy; see aie_host_exchange_modes.
struct core_modes {
  rounding_mode rounding = rounding_mode::floor;
  saturation_mode saturation = saturation_mode::none;
};

inline constinit thread_local core_modes modes{};

// How far a discarded part `rest` of `half * 2` moves a magnitude away from zero: 0 or 1.
template <typename I, typename R>
constexpr I round_up(rounding_mode mode, R rest, R half, I odd, I negative) {
  const I any = I(rest != 0), tie = I(rest == half), over = I(rest > half);
  switch (mode) {
    case rounding_mode::floor: return any & negative;
    case rounding_mode::ceil: return any & (I(1) - negative);
    case rounding_mode::positive_inf: return over | (tie & (I(1) - negative));
    case rounding_mode::negative_inf: return over | (tie & negative);
    case rounding_mode::symmetric_inf: return over | tie;
    case rounding_mode::symmetric_zero: return over;
    case rounding_mode::conv_even: return over | (tie & odd);
    case rounding_mode::conv_odd: return over | (tie & (I(1) - odd));
    case rounding_mode::symmetric_floor: return I(0);
    case rounding_mode::symmetric_ceil: return any;
  }
  return I(0);
}

// f32 to bf16 bits. NaN stays NaN whatever the mode.
constexpr std::uint16_t round_bf16(float value, rounding_mode mode) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t high = bits >> 16;
  if ((bits & 0x7fffffffu) > 0x7f800000u) return std::uint16_t(high | 0x40u);
  const std::uint32_t rest = bits & 0xffffu;
  return std::uint16_t(high + round_up<std::uint32_t>(mode, rest, 0x8000u, high & 1u, bits >> 31));
}

}  // namespace host
}  // namespace aie

extern "C" {
// For programs that run several cores on one host thread (the virtual NPU): sets a core's mode registers (bits 0-7 rounding,
// bits 8-15 saturation; 0 is the power-up state) and returns the old ones.
__attribute__((weak)) std::uint32_t aie_host_exchange_modes(std::uint32_t next) {
  auto& modes = aie::host::modes;
  const std::uint32_t previous = unsigned(modes.rounding) | unsigned(modes.saturation) << 8;
  modes.rounding = aie::rounding_mode(next & 0xffu);
  modes.saturation = aie::saturation_mode(next >> 8 & 0xffu);
  return previous;
}
}
