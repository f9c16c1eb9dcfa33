// Checks of operand values that an operation must not get, and of results that are not finite although the operands are, in
// programs built with checks. Included by vnpu/check_access.h.
#pragma once

#include <type_traits>

namespace vnpu {

[[noreturn]] void fail_shift(Site site, i64 amount, int width);
[[noreturn]] void fail_fit(Site site, double value, const char *type);
// The first one in a run becomes a note.
__attribute__((cold)) void report_not_finite(Site site);

VNPU_INLINE double widen(double x) { return x; }

// Lane i of a vector; a scalar is the same in all lanes.
template <class T>
VNPU_INLINE T lane_of(const T &x, int) {
  return x;
}
template <class T, int N>
VNPU_INLINE T lane_of(const Vec<T, N> &x, int i) {
  return Lanes<T, N>(x).at[i];
}
template <class T>
inline constexpr int lanes_of = 1;
template <class T, int N>
inline constexpr int lanes_of<Vec<T, N>> = N;

// Refuses a shift by as many bits as the number has, or more.
template <class T>
VNPU_INLINE void check_shift(Site site, const T &amounts, int width) {
  for (int i = 0; i < lanes_of<T>; ++i) {
    const i64 amount = i64(lane_of(amounts, i));
    if (__builtin_expect(uint64_t(amount) >= uint64_t(width), 0)) fail_shift(site, amount, width);
  }
}

// Refuses a float whose integer part is outside of [low, high), the range of an integer `type`.
template <class T>
VNPU_INLINE void check_fit(Site site, const T &values, double low, double high, const char *type) {
  for (int i = 0; i < lanes_of<T>; ++i) {
    const double value = double(widen(lane_of(values, i))), whole = __builtin_trunc(value);
    if (__builtin_expect(!(whole >= low && whole < high), 0)) fail_fit(site, value, type);
  }
}

template <class T>
VNPU_INLINE bool is_finite(const T &x) {
  if constexpr (std::is_integral_v<T>) return true;
  else return widen(x) - widen(x) == 0;
}
template <class T, int N>
VNPU_INLINE bool is_finite(const Vec<T, N> &x) {
  const Lanes<T, N> lanes(x);
  bool all = true;
  for (int i = 0; i < N; ++i) all &= is_finite(lanes.at[i]);
  return all;
}

// Whether a lane of the result is not finite although its operands are; for an operation that is not lanewise, although all
// operands are.
template <class R, class... A>
__attribute__((noinline, cold)) bool became_not_finite(const R &result, const A &...operands) {
  constexpr bool is_lanewise = ((lanes_of<A> == 1 || lanes_of<A> == lanes_of<R>) && ...);
  if constexpr (!is_lanewise) return (is_finite(operands) && ...);
  for (int i = 0; i < lanes_of<R>; ++i) {
    if (!is_finite(lane_of(result, i)) && (is_finite(lane_of(operands, i)) && ...)) return true;
  }
  return false;
}

// Reports a result that is not finite, of operands that are.
template <class R, class... A>
VNPU_INLINE void check_finite(Site site, const R &result, const A &...operands) {
  if (__builtin_expect(!is_finite(result), 0) && became_not_finite(result, operands...)) report_not_finite(site);
}

}  // namespace vnpu
