// Vectors of f32 as wide as the machine's registers: the compiler's own, except for operations that it lacks.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__FMA__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

#ifdef __AVX512F__
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
constexpr int kPair = 2 * kLanes;

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef std::int32_t Ints __attribute__((vector_size(4 * kLanes)));

#define INLINE __attribute__((always_inline)) inline  // keeps values in registers across calls

Floats load(const float* from) {
  Floats values;
  std::memcpy(&values, from, sizeof values);
  return values;
}

void store(float* to, Floats values) { std::memcpy(to, &values, sizeof values); }

INLINE Floats all(float value) { return value - Floats{}; }

// a * b + c, rounded once where the machine can.
INLINE Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

// Loads a value once for all uses, although each use could read it from memory.
INLINE Floats in_register(Floats values) {
#if defined(__AVX__)
  asm("" : "+v"(values));
#endif
  return values;
}

// kPair bf16: those at even places in one vector, those at odd places in the other. A bf16 is the upper half of a float32, and
// two of them fill 32 bits, so nothing has to move between lanes.
struct Pair {
  Floats even, odd;

  explicit Pair(const std::uint16_t* from) {
    Ints bits;
    std::memcpy(&bits, from, sizeof bits);
    even = (Floats)(bits << 16);
    odd = (Floats)(bits & std::int32_t(0xffff0000));
  }
};

// Rounds to nearest, ties to even; a NaN stays one.
std::uint16_t round_to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return std::uint16_t(bits >> 16) | 0x40;
  return std::uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Selects lanes of a, and of b from kLanes on.
template <int... LANE>
INLINE Floats picked(Floats a, Floats b) {
#if __has_builtin(__builtin_shufflevector)
  return __builtin_shufflevector(a, b, LANE...);
#else  // g++ 11
  return __builtin_shuffle(a, b, Ints{LANE...});
#endif
}

// Sums of neighbours of UNIT lanes each: first a's sums, then b's. Single lanes stay within their group of four, which one
// cheap instruction can move.
template <int UNIT, int... LANE>
INLINE Floats fold(Floats a, Floats b, std::integer_sequence<int, LANE...>) {
  constexpr int kWithin = UNIT == 1 ? 4 : kLanes;
  constexpr auto from = [](int lane, int second) {
    const int unit = lane % kWithin / UNIT * 2, of_b = unit * UNIT / kWithin;
    return of_b * kLanes + lane / kWithin * kWithin + (unit + second) * UNIT % kWithin + lane % UNIT;
  };
  return picked<from(LANE, 0)...>(a, b) + picked<from(LANE, 1)...>(a, b);
}

// Lane i of the result is the sum of v[i]'s lanes, all added in the same order.
template <int COUNT = kLanes>
INLINE Floats sums_of(const Floats* v) {
  if constexpr (COUNT == 1) {
    return *v;
  } else {
    constexpr int kHalf = COUNT / 2, kUnit = COUNT > 4 ? 4 : 1;
    constexpr auto kEvery = std::make_integer_sequence<int, kLanes>();
    return fold<kUnit>(sums_of<kHalf>(v), sums_of<kHalf>(v + kHalf), kEvery);
  }
}

// e^x for x <= 0, within two units in the last place; 0 from -87 on. Cephes' polynomial on [-ln 2 / 2, ln 2 / 2], in pairs of
// terms, so that fewer steps wait for each other.
INLINE Floats exponential(Floats x) {
  constexpr float kWhole = (3 << 22) + 127;  // for a float32 near it the lowest bits are the exponent: a whole number plus 127
  const Floats scaled = multiply_add(x, all(1.44269504088896341f), all(kWhole));
  const Floats n = scaled - kWhole;
  const Floats r = multiply_add(n, all(2.12194440e-4f), multiply_add(n, all(-0.693359375f), x));
  const Floats square = r * r;
  Floats p = multiply_add(r, all(1.9875691500e-4f), all(1.3981999507e-3f));
  p = multiply_add(p, square, multiply_add(r, all(8.3334519073e-3f), all(4.1665795894e-2f)));
  p = multiply_add(p, square, multiply_add(r, all(1.6666665459e-1f), all(5.0000001201e-1f)));
  const Floats result = (multiply_add(p, square, r) + 1.0f) * (Floats)((Ints)scaled << 23);
  return (Floats)((Ints)result & ~(x <= -87.0f));  // a NaN stays one
}

}  // namespace
