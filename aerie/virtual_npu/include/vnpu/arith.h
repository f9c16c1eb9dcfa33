// The arith and math dialects on scalars and vectors. Narrow floats are computed in float and rounded once.
#pragma once

#include "vnpu/vec.h"

namespace vnpu {

// ---- from one scalar function to scalars, narrow floats and vectors ----

#define VNPU_LANE_OP(name, expression)                                 \
  struct name##_lanes {                                                \
    template <class V>                                                 \
    static VNPU_INLINE V run(V a, V b) {                               \
      return expression;                                               \
    }                                                                  \
  };                                                                   \
  template <class T>                                                   \
  VNPU_INLINE T name(T a, T b) {                                       \
    if constexpr (is_narrow_float<T>) {                                \
      return RoundTo<T>::from(name##_lanes::run(widen(a), widen(b)));  \
    } else {                                                           \
      return T(name##_lanes::run(a, b));                               \
    }                                                                  \
  }                                                                    \
  template <class T, int N>                                            \
  VNPU_INLINE Vec<T, N> name(const Vec<T, N> &a, const Vec<T, N> &b) { \
    if constexpr (is_narrow_float<T>) {                                \
      return narrow<T>(map2<name##_lanes>(widen(a), widen(b)));        \
    } else {                                                           \
      return map2<name##_lanes>(a, b);                                 \
    }                                                                  \
  }

VNPU_LANE_OP(add, a + b)
VNPU_LANE_OP(sub, a - b)
VNPU_LANE_OP(mul, a * b)
VNPU_LANE_OP(divf, a / b)
VNPU_LANE_OP(andi, a & b)
VNPU_LANE_OP(ori, a | b)
VNPU_LANE_OP(xori, a ^ b)
// A NaN on either side is the result (maximumf, minimumf); -0 counts as less than +0.
VNPU_LANE_OP(maximumf, a > b ? a : (a < b ? b : (a == b ? (a == 0 ? a + b : a) : a + b)))
VNPU_LANE_OP(minimumf, a < b ? a : (a > b ? b : (a == b ? (a == 0 ? -(-a - b) : a) : a + b)))
// A NaN on one side gives the other (maxnumf, minnumf).
VNPU_LANE_OP(maxnumf, a > b ? a : (b == b ? b : a))
VNPU_LANE_OP(minnumf, a < b ? a : (b == b ? b : a))
#undef VNPU_LANE_OP

#define VNPU_SCALAR_OP(name, expression)                               \
  template <class T>                                                   \
  VNPU_INLINE T name(T a, T b) {                                       \
    return T(expression);                                              \
  }                                                                    \
  template <class T, int N>                                            \
  VNPU_INLINE Vec<T, N> name(const Vec<T, N> &a, const Vec<T, N> &b) { \
    return each<T>([](T x, T y) { return name(x, y); }, a, b);         \
  }

template <class T>
struct UnsignedOf {
  using type = T;
};
template <>
struct UnsignedOf<int8_t> {
  using type = uint8_t;
};
template <>
struct UnsignedOf<int16_t> {
  using type = uint16_t;
};
template <>
struct UnsignedOf<int32_t> {
  using type = uint32_t;
};
template <>
struct UnsignedOf<int64_t> {
  using type = uint64_t;
};
template <class T>
using Unsigned = typename UnsignedOf<T>::type;

template <class T>
inline constexpr int bit_width = int(sizeof(T)) * 8;
template <>
inline constexpr int bit_width<bool> = 1;

VNPU_SCALAR_OP(maxsi, a > b ? a : b)
VNPU_SCALAR_OP(minsi, a < b ? a : b)
VNPU_SCALAR_OP(maxui, Unsigned<T>(a) > Unsigned<T>(b) ? a : b)
VNPU_SCALAR_OP(minui, Unsigned<T>(a) < Unsigned<T>(b) ? a : b)
// A shift by the width or more has no defined result in MLIR; here it gives what shifting bit by bit gives.
VNPU_SCALAR_OP(shli, Unsigned<T>(b) >= bit_width<T> ? T(0) : T(Unsigned<T>(a) << Unsigned<T>(b)))
VNPU_SCALAR_OP(shrui, Unsigned<T>(b) >= bit_width<T> ? T(0) : T(Unsigned<T>(a) >> Unsigned<T>(b)))
VNPU_SCALAR_OP(shrsi, a >> (Unsigned<T>(b) >= bit_width<T> ? bit_width<T> - 1 : b))
#undef VNPU_SCALAR_OP
// A core's SRS: a shift that rounds halves up, then a clamp. MLIR defines it for 0 to 31 bits.
VNPU_INLINE int32_t round_shift(int32_t number, int32_t bits, int32_t low, int32_t high) {
  const int64_t half = bits & 31 ? int64_t(1) << ((bits & 31) - 1) : 0;
  const int64_t shifted = (int64_t(number) + half) >> (bits & 31);
  return int32_t(shifted < low ? low : shifted > high ? high : shifted);
}

// Divisions name the op that divided by zero.
#define VNPU_DIVISION(name, expression)                                           \
  template <class T>                                                              \
  VNPU_INLINE T name(Site site, T a, T b) {                                       \
    if (b == 0) fail(site, "division by zero");                                   \
    return T(expression);                                                         \
  }                                                                               \
  template <class T, int N>                                                       \
  VNPU_INLINE Vec<T, N> name(Site site, const Vec<T, N> &a, const Vec<T, N> &b) { \
    return each<T>([=](T x, T y) { return name(site, x, y); }, a, b);             \
  }

// x / -1 is written as 0 - x: the smallest integer then wraps instead of trapping.
VNPU_DIVISION(divsi, b == T(-1) ? T(0 - Unsigned<T>(a)) : T(a / b))
VNPU_DIVISION(remsi, b == T(-1) ? T(0) : T(a % b))
VNPU_DIVISION(divui, Unsigned<T>(a) / Unsigned<T>(b))
VNPU_DIVISION(remui, Unsigned<T>(a) % Unsigned<T>(b))
VNPU_DIVISION(floordivsi, b == T(-1) ? T(0 - Unsigned<T>(a)) : T(a / b - ((a % b != 0) && ((a < 0) != (b < 0)))))
VNPU_DIVISION(ceildivsi, b == T(-1) ? T(0 - Unsigned<T>(a)) : T(a / b + ((a % b != 0) && ((a < 0) == (b < 0)))))
VNPU_DIVISION(ceildivui, Unsigned<T>(a) / Unsigned<T>(b) + (Unsigned<T>(a) % Unsigned<T>(b) != 0))
// affine's mod: the result has the sign of the (positive) divisor.
VNPU_DIVISION(floormod, T(a % b) + ((a % b != 0 && ((a < 0) != (b < 0))) ? b : T(0)))
#undef VNPU_DIVISION

// ---- comparisons and select ----

#define VNPU_COMPARE(name, expression)                                    \
  template <class T>                                                      \
  VNPU_INLINE bool name(T left, T right) {                                \
    if constexpr (is_narrow_float<T>) {                                   \
      const float a = widen(left), b = widen(right);                      \
      return expression;                                                  \
    } else {                                                              \
      const T a = left, b = right;                                        \
      return expression;                                                  \
    }                                                                     \
  }                                                                       \
  template <class T, int N>                                               \
  VNPU_INLINE Vec<bool, N> name(const Vec<T, N> &a, const Vec<T, N> &b) { \
    return each<bool>([](T x, T y) { return name(x, y); }, a, b);         \
  }

VNPU_COMPARE(cmp_eq, a == b)
VNPU_COMPARE(cmp_ne, a != b)
VNPU_COMPARE(cmp_slt, a < b)
VNPU_COMPARE(cmp_sle, a <= b)
VNPU_COMPARE(cmp_sgt, a > b)
VNPU_COMPARE(cmp_sge, a >= b)
VNPU_COMPARE(cmp_ult, Unsigned<T>(a) < Unsigned<T>(b))
VNPU_COMPARE(cmp_ule, Unsigned<T>(a) <= Unsigned<T>(b))
VNPU_COMPARE(cmp_ugt, Unsigned<T>(a) > Unsigned<T>(b))
VNPU_COMPARE(cmp_uge, Unsigned<T>(a) >= Unsigned<T>(b))
// Floats: `f` ordered (false on a NaN), `u` unordered (true on a NaN).
VNPU_COMPARE(cmpf_false, a != b && a == b)
VNPU_COMPARE(cmpf_oeq, a == b)
VNPU_COMPARE(cmpf_ogt, a > b)
VNPU_COMPARE(cmpf_oge, a >= b)
VNPU_COMPARE(cmpf_olt, a < b)
VNPU_COMPARE(cmpf_ole, a <= b)
VNPU_COMPARE(cmpf_one, a < b || a > b)
VNPU_COMPARE(cmpf_ord, a == a && b == b)
VNPU_COMPARE(cmpf_ueq, !(a < b || a > b))
VNPU_COMPARE(cmpf_ugt, !(a <= b))
VNPU_COMPARE(cmpf_uge, !(a < b))
VNPU_COMPARE(cmpf_ult, !(a >= b))
VNPU_COMPARE(cmpf_ule, !(a > b))
VNPU_COMPARE(cmpf_une, a != b)
VNPU_COMPARE(cmpf_uno, a != a || b != b)
VNPU_COMPARE(cmpf_true, a == b || a != b)
#undef VNPU_COMPARE

template <class T>
VNPU_INLINE T select(bool condition, T a, T b) {
  return condition ? a : b;
}
template <class T, int N>
VNPU_INLINE Vec<T, N> select(const Vec<bool, N> &condition, const Vec<T, N> &a, const Vec<T, N> &b) {
  Lanes<bool, N> c(condition);
  Lanes<T, N> x(a), y(b), r;
  for (int i = 0; i < N; ++i) r.at[i] = c.at[i] ? x.at[i] : y.at[i];
  return r.vec();
}

// ---- conversions; R is the result's element type ----

template <class R, class T>
VNPU_INLINE R cast(T a) {
  if constexpr (same_type<R, T>) return a;
  else if constexpr (is_narrow_float<T>) return cast<R>(widen(a));
  else if constexpr (is_narrow_float<R>) return RoundTo<R>::from(float(a));
  else return R(a);
}
// From integers seen as unsigned.
template <class R, class T>
VNPU_INLINE R cast_unsigned(T a) {
  return cast<R>(Unsigned<T>(a));
}
// i1 is -1 when it is read as signed.
template <class R>
VNPU_INLINE R cast_signed_bit(bool a) {
  return cast<R>(a ? -1 : 0);
}

// The rounding of arith.truncf, if it is not to nearest even.
enum class Rounding { downward, upward, toward_zero, to_nearest_away };

// The next larger or next smaller float, for finite ones.
template <class R>
inline R next_float(R x, bool up) {
  using Bits = decltype([] {
    if constexpr (sizeof(R) == 2) return uint16_t(0);
    else return uint32_t(0);
  }());
  constexpr Bits kSign = Bits(Bits(1) << (8 * sizeof(R) - 1));
  const Bits bits = bit_cast<Bits>(x);
  if (Bits(bits & Bits(~kSign)) == 0) return bit_cast<R>(up ? Bits(1) : Bits(kSign | 1));
  return bit_cast<R>(Bits(up != bool(bits & kSign) ? bits + 1 : bits - 1));
}
template <class R, Rounding M, class T>
inline R cast_rounded(T a) {
  const double x = cast<double>(a);
  R low = cast<R>(x);
  if (x != x || double(widen(low)) == x) return low;
  while (double(widen(low)) > x) low = next_float(low, false);
  while (double(widen(next_float(low, true))) < x) low = next_float(low, true);
  const R high = next_float(low, true);
  if (M == Rounding::downward) return low;
  if (M == Rounding::upward) return high;
  if (M == Rounding::toward_zero) return x > 0 ? low : high;
  const double below = x - double(widen(low)), above = double(widen(high)) - x;
  if (above > 1.7e308 || below > 1.7e308) return cast<R>(x);  // next to an infinity
  return below < above || (below == above && x < 0) ? low : high;
}
template <class R, Rounding M, class T, int N>
inline Vec<R, N> cast_rounded(const Vec<T, N> &a) {
  return each<R>([](T x) { return cast_rounded<R, M>(x); }, a);
}

template <class R, class T, int N>
VNPU_INLINE Vec<R, N> cast(const Vec<T, N> &a) {
  if constexpr (same_type<R, T>) return a;
  else if constexpr (is_narrow_float<T>) return cast<R>(widen(a));
  else if constexpr (is_narrow_float<R> && same_type<T, float>) return narrow<R>(a);
  else if constexpr (is_narrow_float<R>) return narrow<R>(cast<float>(a));
  else if constexpr (same_type<R, bool> || same_type<T, bool>) return each<R>([](T x) { return R(x); }, a);
  else return convert<R>(a);
}
template <class R, class T, int N>
VNPU_INLINE Vec<R, N> cast_unsigned(const Vec<T, N> &a) {
  return each<R>([](T x) { return cast_unsigned<R>(x); }, a);
}
template <class R, int N>
VNPU_INLINE Vec<R, N> cast_signed_bit(const Vec<bool, N> &a) {
  return each<R>([](bool x) { return cast_signed_bit<R>(x); }, a);
}
// The low bit only.
template <class T>
VNPU_INLINE bool truncate_to_bit(T a) {
  return (a & 1) != 0;
}
template <class T, int N>
VNPU_INLINE Vec<bool, N> truncate_to_bit(const Vec<T, N> &a) {
  return each<bool>([](T x) { return (x & 1) != 0; }, a);
}

// ---- lanes of 4 bits: two in a byte, the first in its lower half; here each in a byte of its own, 0 to 15 ----

template <int N>
inline Vec<uint8_t, 2 * N> unpack_nibbles(const Vec<uint8_t, N> &packed) {
  Lanes<uint8_t, N> x(packed);
  Lanes<uint8_t, 2 * N> r;
  for (int i = 0; i < 2 * N; ++i) r.at[i] = x.at[i / 2] >> (i % 2 * 4) & 15;
  return r.vec();
}
template <int N>
inline Vec<uint8_t, N / 2> pack_nibbles(const Vec<uint8_t, N> &lanes) {
  Lanes<uint8_t, N> x(lanes);
  Lanes<uint8_t, N / 2> r;
  for (int i = 0; i < N / 2; ++i) r.at[i] = uint8_t(x.at[2 * i] | x.at[2 * i + 1] << 4);
  return r.vec();
}
template <int N>
inline Vec<int8_t, N> signed_nibbles(const Vec<uint8_t, N> &lanes) {
  return each<int8_t>([](uint8_t x) { return int8_t((x ^ 8) - 8); }, lanes);
}
template <class T, int N>
inline Vec<uint8_t, N> low_nibbles(const Vec<T, N> &lanes) {
  return each<uint8_t>([](T x) { return uint8_t(x & 15); }, lanes);
}

// ---- functions of floats ----

#define VNPU_UNARY(name, single, twice)               \
  template <class T>                                  \
  VNPU_INLINE T name(T value) {                       \
    const float x = widen(value);                     \
    return RoundTo<T>::from(single);                  \
  }                                                   \
  VNPU_INLINE double name(double x) { return twice; } \
  template <class T, int N>                           \
  VNPU_INLINE Vec<T, N> name(const Vec<T, N> &a) {    \
    return each<T>([](T x) { return name(x); }, a);   \
  }
#define VNPU_LIBM(name) VNPU_UNARY(name, __builtin_##name##f(x), __builtin_##name(x))

VNPU_UNARY(negf, -x, -x)
VNPU_UNARY(absf, __builtin_fabsf(x), __builtin_fabs(x))
VNPU_UNARY(roundeven, __builtin_nearbyintf(x), __builtin_nearbyint(x))
VNPU_UNARY(rsqrt, 1 / __builtin_sqrtf(x), 1 / __builtin_sqrt(x))
VNPU_LIBM(ceil)
VNPU_LIBM(floor)
VNPU_LIBM(round)
VNPU_LIBM(trunc)
VNPU_LIBM(sqrt)
VNPU_LIBM(cbrt)
VNPU_LIBM(exp)
VNPU_LIBM(exp2)
VNPU_LIBM(expm1)
VNPU_LIBM(log)
VNPU_LIBM(log2)
VNPU_LIBM(log10)
VNPU_LIBM(log1p)
VNPU_LIBM(sin)
VNPU_LIBM(cos)
VNPU_LIBM(tan)
VNPU_LIBM(asin)
VNPU_LIBM(acos)
VNPU_LIBM(atan)
VNPU_LIBM(sinh)
VNPU_LIBM(cosh)
VNPU_LIBM(tanh)
VNPU_LIBM(erf)
VNPU_LIBM(erfc)
VNPU_LIBM(asinh)
VNPU_LIBM(acosh)
VNPU_LIBM(atanh)
#undef VNPU_LIBM
#undef VNPU_UNARY

#define VNPU_BINARY(name, single, twice)                               \
  template <class T>                                                   \
  VNPU_INLINE T name(T a, T b) {                                       \
    return RoundTo<T>::from(single(widen(a), widen(b)));               \
  }                                                                    \
  VNPU_INLINE double name(double a, double b) { return twice(a, b); }  \
  template <class T, int N>                                            \
  VNPU_INLINE Vec<T, N> name(const Vec<T, N> &a, const Vec<T, N> &b) { \
    return each<T>([](T x, T y) { return name(x, y); }, a, b);         \
  }

VNPU_BINARY(powf, __builtin_powf, __builtin_pow)
VNPU_BINARY(atan2, __builtin_atan2f, __builtin_atan2)
VNPU_BINARY(copysign, __builtin_copysignf, __builtin_copysign)
VNPU_BINARY(remf, __builtin_fmodf, __builtin_fmod)
#undef VNPU_BINARY

template <class T>
VNPU_INLINE T absi(T a) {
  return a < 0 ? T(0 - Unsigned<T>(a)) : a;
}
template <class T, int N>
VNPU_INLINE Vec<T, N> absi(const Vec<T, N> &a) {
  return each<T>([](T x) { return absi(x); }, a);
}

// One rounding for a * b + c.
VNPU_INLINE double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
template <class T>
VNPU_INLINE T fma(T a, T b, T c) {
  return RoundTo<T>::from(__builtin_fmaf(widen(a), widen(b), widen(c)));
}

#if __has_builtin(__builtin_elementwise_fma)  // clang++ from 17 on
#define VNPU_FMA_LEAF(a, b, c) __builtin_elementwise_fma(a, b, c)
#endif

template <int N>
VNPU_INLINE Vec<float, N> fma(const Vec<float, N> &a, const Vec<float, N> &b, const Vec<float, N> &c) {
  if constexpr (!is_leaf<float, N>) {
    return {fma(a.lo, b.lo, c.lo), fma(a.hi, b.hi, c.hi)};
  } else {
#if defined(VNPU_FMA_LEAF)
    return {VNPU_FMA_LEAF(a.v, b.v, c.v)};
#else
#if defined(__FMA__)
    if constexpr (N == 8) return {__builtin_ia32_vfmaddps256(a.v, b.v, c.v)};
    if constexpr (N == 4) return {__builtin_ia32_vfmaddps(a.v, b.v, c.v)};
#elif defined(__aarch64__)
    if constexpr (N == 4) return {__builtin_aarch64_fmav4sf(a.v, b.v, c.v)};
    if constexpr (N == 8) {
      const Vec<float, 4> low = fma(part<0, 4>(a), part<0, 4>(b), part<0, 4>(c));
      return join(low, fma(part<4, 4>(a), part<4, 4>(b), part<4, 4>(c)));
    }
#endif
    Vec<float, N> r;
    for (int i = 0; i < N; ++i) r.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
    return r;
#endif
  }
}
template <class T, int N>
VNPU_INLINE Vec<T, N> fma(const Vec<T, N> &a, const Vec<T, N> &b, const Vec<T, N> &c) {
  if constexpr (is_narrow_float<T>) {
    return narrow<T>(fma(widen(a), widen(b), widen(c)));
  } else {
    Lanes<T, N> x(a), y(b), z(c), r;
    for (int i = 0; i < N; ++i) r.at[i] = fma(x.at[i], y.at[i], z.at[i]);
    return r.vec();
  }
}

// ---- bits, powers and tests ----

#define VNPU_BITS(name, expression)                  \
  template <class T>                                 \
  VNPU_INLINE T name(T value) {                      \
    const uint64_t x = uint64_t(Unsigned<T>(value)); \
    return T(expression);                            \
  }                                                  \
  template <class T, int N>                          \
  VNPU_INLINE Vec<T, N> name(const Vec<T, N> &a) {   \
    return each<T>([](T x) { return name(x); }, a);  \
  }

VNPU_BITS(ctlz, x == 0 ? bit_width<T> : __builtin_clzll(x) - (64 - bit_width<T>))
VNPU_BITS(cttz, x == 0 ? bit_width<T> : __builtin_ctzll(x))
VNPU_BITS(ctpop, __builtin_popcountll(x))
#undef VNPU_BITS

// An integer to an integer power; below zero only 1 and -1 have one that is no fraction.
template <class T>
inline T ipowi(T value, T exponent) {
  if (exponent < 0) return value == 1 ? T(1) : value == T(-1) ? T(exponent % 2 ? -1 : 1) : T(0);
  Unsigned<T> result = 1, power = Unsigned<T>(value);
  for (; exponent; exponent >>= 1, power *= power) {
    if (exponent & 1) result *= power;
  }
  return T(result);
}
template <class T, int N>
VNPU_INLINE Vec<T, N> ipowi(const Vec<T, N> &a, const Vec<T, N> &b) {
  return each<T>([](T x, T y) { return ipowi(x, y); }, a, b);
}

// A float to an integer power, rounded once.
template <class T, class E>
VNPU_INLINE T fpowi(T value, E exponent) {
  if constexpr (same_type<T, double>) return __builtin_pow(value, double(exponent));
  else return RoundTo<T>::from(float(__builtin_pow(double(widen(value)), double(exponent))));
}
template <class T, class E, int N>
VNPU_INLINE Vec<T, N> fpowi(const Vec<T, N> &a, const Vec<E, N> &b) {
  Lanes<T, N> x(a), r;
  Lanes<E, N> y(b);
  for (int i = 0; i < N; ++i) r.at[i] = fpowi(x.at[i], y.at[i]);
  return r.vec();
}

// The smallest and the largest exponents of the format itself count, so narrow floats look at their bits.
template <class T>
struct Format {
  static constexpr int exponent = same_type<T, double> ? 11 : same_type<T, f16> ? 5 : 8;
  static constexpr int mantissa = int(sizeof(T)) * 8 - 1 - exponent;
  static VNPU_INLINE uint64_t bits(T value) {
    if constexpr (sizeof(T) == 8) return bit_cast<uint64_t>(value);
    else if constexpr (sizeof(T) == 4) return bit_cast<uint32_t>(value);
    else return bit_cast<uint16_t>(value);
  }
};

#define VNPU_TEST(name, expression)                                                        \
  template <class T>                                                                       \
  VNPU_INLINE bool name(T value) {                                                         \
    constexpr uint64_t top = (uint64_t(1) << Format<T>::exponent) - 1;                     \
    const uint64_t bits = Format<T>::bits(value);                                          \
    const uint64_t e = (bits >> Format<T>::mantissa) & top;                                \
    [[maybe_unused]] const uint64_t m = bits & ((uint64_t(1) << Format<T>::mantissa) - 1); \
    return expression;                                                                     \
  }                                                                                        \
  template <class T, int N>                                                                \
  VNPU_INLINE Vec<bool, N> name(const Vec<T, N> &a) {                                      \
    return each<bool>([](T x) { return name(x); }, a);                                     \
  }

VNPU_TEST(isfinite, e != top)
VNPU_TEST(isinf, e == top && m == 0)
VNPU_TEST(isnan, e == top && m != 0)
VNPU_TEST(isnormal, e != top && e != 0)
#undef VNPU_TEST

// The upper half of a product.
template <class T>
VNPU_INLINE T mulsi_high(T a, T b) {
  return T((__int128(a) * __int128(b)) >> bit_width<T>);
}
template <class T>
VNPU_INLINE T mului_high(T a, T b) {
  using Wide = unsigned __int128;
  return T((Wide(Unsigned<T>(a)) * Wide(Unsigned<T>(b))) >> bit_width<T>);
}
template <class T, int N>
VNPU_INLINE Vec<T, N> mulsi_high(const Vec<T, N> &a, const Vec<T, N> &b) {
  return each<T>([](T x, T y) { return mulsi_high(x, y); }, a, b);
}
template <class T, int N>
VNPU_INLINE Vec<T, N> mului_high(const Vec<T, N> &a, const Vec<T, N> &b) {
  return each<T>([](T x, T y) { return mului_high(x, y); }, a, b);
}

}  // namespace vnpu
