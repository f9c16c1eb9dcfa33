// The parts of NEON and of ARM's bf16 instructions that product_arm.h and dots_arm.h use, in plain C++, for tests on other
// CPUs. Included before a source of the virtual NPU (-include), it replaces arm_neon.h.
//
// They follow the Arm Architecture Reference Manual for A-profile with FPCR.EBF = 0, BFDOT and BFMMLA (BFDotAdd, BFMulH,
// BFAdd): every product and every sum is rounded to odd, numbers below 2^-126 are zeros, a NaN is the default NaN.
#pragma once

#include <stdint.h>
#include <string.h>

#define VNPU_EMULATED_ARM_BF16 1

typedef uint16_t uint16x4_t __attribute__((vector_size(8)));
typedef uint16_t uint16x8_t __attribute__((vector_size(16)));
typedef uint32_t uint32x4_t __attribute__((vector_size(16)));
typedef uint64_t uint64x2_t __attribute__((vector_size(16)));
typedef float float32x4_t __attribute__((vector_size(16)));
struct bfloat16x8_t {
  uint16_t bits[8];
};
struct uint16x4x4_t {
  uint16x4_t val[4];
};

namespace emulated {

template <class To, class From>
inline To reinterpreted(const From &from) {
  static_assert(sizeof(To) == sizeof(From), "a register of the same size");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}
template <class To>
inline To loaded(const void *from) {
  To to;
  memcpy(&to, from, sizeof(to));
  return to;
}

inline float flushed(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0, x) : x; }

// The f32 of a sum or product that is exact in `high + low`, where |low| is below half a last place of `high`.
inline float rounded_to_odd(double high, double low) {
  if (high != high) return __builtin_nanf("");
  float nearest = float(high);
  const float most = 0x1.fffffep127f;
  if (__builtin_isinf(nearest)) return __builtin_fabs(high) < 0x1p128 ? __builtin_copysignf(most, nearest) : nearest;
  if (double(nearest) == high && low == 0) return flushed(nearest);
  // Rounds towards zero, then sets the last bit.
  const bool is_beyond =
      double(nearest) == high ? (low < 0) == (high > 0) && low != 0 : __builtin_fabs(double(nearest)) > __builtin_fabs(high);
  uint32_t bits = reinterpreted<uint32_t>(nearest);
  if (is_beyond) --bits;
  return flushed(reinterpreted<float>(bits | 1));
}
inline float product(uint16_t a, uint16_t b) {
  const float x = flushed(reinterpreted<float>(uint32_t(a) << 16)), y = flushed(reinterpreted<float>(uint32_t(b) << 16));
  return rounded_to_odd(double(x) * double(y), 0);
}
inline float sum(float a, float b) {
  const double x = flushed(a), y = flushed(b), high = x + y;
  const double back = high - x, low = (x - (high - back)) + (y - back);  // what `high` lacks
  return rounded_to_odd(high, high - high == 0 ? low : 0);
}
inline float dot(float c, const uint16_t *a, const uint16_t *b) {
  return sum(c, sum(product(a[0], b[0]), product(a[1], b[1])));
}

}  // namespace emulated

inline uint16x4_t vld1_u16(const uint16_t *from) { return emulated::loaded<uint16x4_t>(from); }
inline uint16x8_t vld1q_u16(const uint16_t *from) { return emulated::loaded<uint16x8_t>(from); }
inline float32x4_t vld1q_f32(const float *from) { return emulated::loaded<float32x4_t>(from); }
inline void vst1q_f32(float *to, float32x4_t x) { memcpy(to, &x, sizeof(x)); }
inline void vst4_u16(uint16_t *to, const uint16x4x4_t &rows) {
  for (int i = 0; i < 16; ++i) to[i] = rows.val[i % 4][i / 4];
}
inline uint16x4_t vzip1_u16(uint16x4_t a, uint16x4_t b) { return uint16x4_t{a[0], b[0], a[1], b[1]}; }
inline uint16x4_t vzip2_u16(uint16x4_t a, uint16x4_t b) { return uint16x4_t{a[2], b[2], a[3], b[3]}; }
inline uint64x2_t vzip1q_u64(uint64x2_t a, uint64x2_t b) { return uint64x2_t{a[0], b[0]}; }
inline uint64x2_t vzip2q_u64(uint64x2_t a, uint64x2_t b) { return uint64x2_t{a[1], b[1]}; }
inline uint16x8_t vcombine_u16(uint16x4_t a, uint16x4_t b) {
  return uint16x8_t{a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]};
}
inline uint32x4_t vdupq_n_u32(uint32_t x) { return uint32x4_t{x, x, x, x}; }
inline bfloat16x8_t vreinterpretq_bf16_u16(uint16x8_t x) { return emulated::reinterpreted<bfloat16x8_t>(x); }
inline bfloat16x8_t vreinterpretq_bf16_u32(uint32x4_t x) { return emulated::reinterpreted<bfloat16x8_t>(x); }
inline bfloat16x8_t vreinterpretq_bf16_u64(uint64x2_t x) { return emulated::reinterpreted<bfloat16x8_t>(x); }
inline uint64x2_t vreinterpretq_u64_u16(uint16x8_t x) { return emulated::reinterpreted<uint64x2_t>(x); }
inline uint64x2_t vreinterpretq_u64_f32(float32x4_t x) { return emulated::reinterpreted<uint64x2_t>(x); }
inline float32x4_t vreinterpretq_f32_u64(uint64x2_t x) { return emulated::reinterpreted<float32x4_t>(x); }

inline float32x4_t vbfdotq_f32(float32x4_t sums, bfloat16x8_t a, bfloat16x8_t b) {
  for (int i = 0; i < 4; ++i) sums[i] = emulated::dot(sums[i], a.bits + 2 * i, b.bits + 2 * i);
  return sums;
}
inline float32x4_t vbfmmlaq_f32(float32x4_t sums, bfloat16x8_t a, bfloat16x8_t b) {
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < 4; k += 2) {
      sums[i] = emulated::dot(sums[i], a.bits + i / 2 * 4 + k, b.bits + i % 2 * 4 + k);
    }
  }
  return sums;
}
