// Fixed-size vectors. An n-d MLIR vector is held flat, in row-major order.
//
// A vector of up to 32 bytes with a power-of-two length is one compiler vector (a leaf); every other one is
// a pair of smaller vectors. No arrays are involved, so values stay in registers. 32 bytes, also where there
// are 64-byte registers: a row of an 8x8 block of floats is then one leaf, and takes no shuffles to reach.
#pragma once

#include <utility>

#include "vnpu/base.h"

// Lanes move inside registers where the compiler has a builtin for it (g++ from 12 on, clang++), else
// through memory.
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define VNPU_SHUFFLE 1
#endif
#endif

namespace vnpu {

template <class T>
struct LaneOf {
  using type = T;
};
template <>
struct LaneOf<bf16> {
  using type = uint16_t;
};
template <>
struct LaneOf<f16> {
  using type = uint16_t;
};
template <>
struct LaneOf<bool> {
  using type = uint8_t;
};
template <class T>
using Lane = typename LaneOf<T>::type;

constexpr bool is_power_of_two(int n) { return n > 0 && (n & (n - 1)) == 0; }
constexpr int low_part(int n) {
  int p = 1;
  while (p * 2 < n) p *= 2;
  return p;
}
template <class T, int N>
inline constexpr bool is_leaf = is_power_of_two(N) && N * int(sizeof(T)) <= 32;

template <class T, int N, bool Leaf = is_leaf<T, N>>
struct Vec;

template <class T, int N>
struct Vec<T, N, true> {
  typedef Lane<T> V __attribute__((vector_size(N * sizeof(T))));
  V v;
};

template <class T, int N>
struct Vec<T, N, false> {
  static constexpr int P = low_part(N);
  Vec<T, P> lo;
  Vec<T, N - P> hi;
};

template <class A, class B>
inline constexpr bool same_type = false;
template <class A>
inline constexpr bool same_type<A, A> = true;

// ---- memory ----

template <class T, int N>
VNPU_INLINE Vec<T, N> load(const T *p) {
  Vec<T, N> r;
  if constexpr (is_leaf<T, N>) {
    memcpy(&r.v, p, sizeof(r.v));
  } else {
    r.lo = load<T, Vec<T, N>::P>(p);
    r.hi = load<T, N - Vec<T, N>::P>(p + Vec<T, N>::P);
  }
  return r;
}

template <class T, int N>
VNPU_INLINE void store(T *p, const Vec<T, N> &x) {
  if constexpr (is_leaf<T, N>) {
    memcpy(p, &x.v, sizeof(x.v));
  } else {
    store(p, x.lo);
    store(p + Vec<T, N>::P, x.hi);
  }
}

// A vector as an array of its elements, for ops that address single lanes.
template <class T, int N>
struct alignas(64) Lanes {
  T at[N];
  Lanes() = default;
  VNPU_INLINE explicit Lanes(const Vec<T, N> &x) { store(at, x); }
  VNPU_INLINE Vec<T, N> vec() const { return load<T, N>(at); }
};

// ---- lanewise ops ----

// Op::run takes compiler vectors (or scalars) of one lane type and gives the same.
template <class Op, class T, int N>
VNPU_INLINE Vec<T, N> map1(const Vec<T, N> &a) {
  if constexpr (is_leaf<T, N>) return {Op::run(a.v)};
  else return {map1<Op>(a.lo), map1<Op>(a.hi)};
}

template <class Op, class T, int N>
VNPU_INLINE Vec<T, N> map2(const Vec<T, N> &a, const Vec<T, N> &b) {
  if constexpr (is_leaf<T, N>) return {Op::run(a.v, b.v)};
  else return {map2<Op>(a.lo, b.lo), map2<Op>(a.hi, b.hi)};
}

// A scalar function on every lane.
template <class R, class T, int N, class F>
VNPU_INLINE Vec<R, N> each(F f, const Vec<T, N> &a) {
  Lanes<T, N> x(a);
  Lanes<R, N> r;
  for (int i = 0; i < N; ++i) r.at[i] = f(x.at[i]);
  return r.vec();
}

template <class R, class T, int N, class F>
VNPU_INLINE Vec<R, N> each(F f, const Vec<T, N> &a, const Vec<T, N> &b) {
  Lanes<T, N> x(a), y(b);
  Lanes<R, N> r;
  for (int i = 0; i < N; ++i) r.at[i] = f(x.at[i], y.at[i]);
  return r.vec();
}

template <class T, int N>
VNPU_INLINE Vec<T, N> splat(T value) {
  if constexpr (is_leaf<T, N>) {
    return {bit_cast<Lane<T>>(value) - typename Vec<T, N>::V{}};  // minus keeps the sign of a zero
  } else {
    return {splat<T, Vec<T, N>::P>(value), splat<T, N - Vec<T, N>::P>(value)};
  }
}

#if defined(VNPU_SHUFFLE)
template <int Offset, class Result, class V, int... I>
VNPU_INLINE Result slice_leaf(V v, std::integer_sequence<int, I...>) {
  return {__builtin_shufflevector(v, v, (Offset + I)...)};
}
template <class Result, class V, int... I>
VNPU_INLINE Result join_leaves(V a, V b, std::integer_sequence<int, I...>) {
  return {__builtin_shufflevector(a, b, I...)};
}
#endif

// Elements [Offset, Offset + Count) of a vector.
template <int Offset, int Count, class T, int N>
VNPU_INLINE Vec<T, Count> part(const Vec<T, N> &a) {
  static_assert(Offset + Count <= N, "a part lies inside its vector");
  if constexpr (Offset == 0 && Count == N) return a;
#if defined(VNPU_SHUFFLE)
  else if constexpr (is_leaf<T, N> && is_leaf<T, Count>) {
    return slice_leaf<Offset, Vec<T, Count>>(a.v, std::make_integer_sequence<int, Count>());
  }
#endif
  else if constexpr (is_leaf<T, N>)
    return load<T, Count>(Lanes<T, N>(a).at + Offset);
  else if constexpr (Offset + Count <= Vec<T, N>::P) return part<Offset, Count>(a.lo);
  else if constexpr (Offset >= Vec<T, N>::P) return part<Offset - Vec<T, N>::P, Count>(a.hi);
  else return load<T, Count>(Lanes<T, N>(a).at + Offset);
}

template <class T, int A, int B>
VNPU_INLINE Vec<T, A + B> join(const Vec<T, A> &a, const Vec<T, B> &b) {
  if constexpr (!is_leaf<T, A + B> && low_part(A + B) == A) return {a, b};
#if defined(VNPU_SHUFFLE)
  else if constexpr (is_leaf<T, A + B> && A == B) {
    return join_leaves<Vec<T, A + B>>(a.v, b.v, std::make_integer_sequence<int, A + B>());
  }
#endif
  else {
    Lanes<T, A + B> r;
    store(r.at, a);
    store(r.at + A, b);
    return r.vec();
  }
}

// A vector as rows of Width lanes, and back.
template <int Width, class T, int N>
VNPU_INLINE void split_rows(const Vec<T, N> &a, Vec<T, Width> *rows) {
  if constexpr (N == Width) {
    rows[0] = a;
  } else {
    constexpr int A = (N / Width + 1) / 2 * Width;
    split_rows<Width>(part<0, A>(a), rows);
    split_rows<Width>(part<A, N - A>(a), rows + A / Width);
  }
}
template <int N, class T, int Width>
VNPU_INLINE Vec<T, N> join_rows(const Vec<T, Width> *rows) {
  if constexpr (N == Width) {
    return rows[0];
  } else {
    constexpr int A = (N / Width + 1) / 2 * Width;
    return join(join_rows<A>(rows), join_rows<N - A>(rows + A / Width));
  }
}

// Lane-by-lane change of type between types the compiler can convert (floats and integers).
template <class R, class T, int N>
VNPU_INLINE Vec<R, N> convert(const Vec<T, N> &a) {
  if constexpr (is_leaf<T, N> && is_leaf<R, N>) {
    return {__builtin_convertvector(a.v, typename Vec<R, N>::V)};
  } else {
    constexpr int P = low_part(N);
    return join(convert<R>(part<0, P>(a)), convert<R>(part<P, N - P>(a)));
  }
}

template <class T, int N>
VNPU_INLINE Vec<float, N> widen(const Vec<T, N> &a) {
  if constexpr (same_type<T, float>) {
    return a;
  } else if constexpr (same_type<T, f16>) {
    return each<float>([](f16 h) { return widen(h); }, a);
  } else if constexpr (is_leaf<T, N> && is_leaf<float, N>) {
    typedef uint32_t U __attribute__((vector_size(N * 4)));
    typedef float F __attribute__((vector_size(N * 4)));
#if defined(__AVX2__) && !defined(__clang__)
    // g++ compiles this conversion to three instructions although there is one.
    typedef short S __attribute__((vector_size(16)));
    if constexpr (N == 8) return {(F)(__builtin_ia32_pmovzxwd256((S)a.v) << 16)};
#endif
    return {(F)(__builtin_convertvector(a.v, U) << 16)};
#if defined(__AVX2__)
  } else if constexpr (is_leaf<T, N>) {
    // Goes through memory, which compilers optimise: each half of a vector that was just loaded becomes a load of its own, into
    // the instruction that widens it.
    Vec<T, N / 2> halves[2];
    memcpy(&halves, &a.v, sizeof(halves));
    return join(widen(halves[0]), widen(halves[1]));
#endif
  } else {
    constexpr int P = low_part(N);
    return join(widen(part<0, P>(a)), widen(part<P, N - P>(a)));
  }
}

#if defined(__AVX2__) && defined(VNPU_SHUFFLE) && !defined(VNPU_ROUND_FLOOR)
#define VNPU_NARROW_16 1
typedef float Floats8 __attribute__((vector_size(32)));
typedef uint32_t Words8 __attribute__((vector_size(32)));

// Whether a lane of either is NaN.
VNPU_INLINE bool any_nan(Floats8 a, Floats8 b) {
#if defined(__AVX512VL__)
  return __builtin_ia32_cmpps256_mask(a, b, /* unordered */ 3, -1) != 0;
#else
  return __builtin_ia32_movmskps256(__builtin_ia32_cmpps256(a, b, 3)) != 0;
#endif
}

// 16 numbers to bf16, to nearest even. With two instructions for two registers; compilers make many.
VNPU_INLINE Vec<bf16, 16> narrow_numbers(Floats8 a, Floats8 b) {
  typedef int Ints __attribute__((vector_size(32)));
  typedef uint64_t Quarters __attribute__((vector_size(32)));
  const auto rounded = [](Words8 u) __attribute__((always_inline)) { return (u + 0x7fffu + ((u >> 16) & 1u)) >> 16; };
  const Quarters both = (Quarters)__builtin_ia32_packusdw256((Ints)rounded((Words8)a), (Ints)rounded((Words8)b));
  return {(Vec<bf16, 16>::V)__builtin_shufflevector(both, both, 0, 2, 1, 3)};
}
#endif

// float lanes rounded to T: one rounding, as round_bf16 and round_f16 do it.
template <class T, int N>
VNPU_INLINE Vec<T, N> narrow(const Vec<float, N> &a) {
  if constexpr (same_type<T, float>) {
    return a;
  } else if constexpr (same_type<T, f16>) {
    return each<f16>([](float x) { return round_f16(x); }, a);
  } else if constexpr (is_leaf<float, N>) {
#if defined(VNPU_ROUND_FLOOR)
    using aie::rounding_mode, aie::host::modes;
    const auto down = [](float x) { return bf16{aie::host::round_bf16(x, rounding_mode::floor)}; };
    if (modes.rounding == rounding_mode::floor) return each<bf16>(down, a);
    if (modes.rounding != rounding_mode::conv_even) return each<bf16>([](float x) { return round_bf16(x); }, a);
#endif
    typedef uint32_t U __attribute__((vector_size(N * 4)));
    const U u = (U)a.v;
    const U rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const U is_nan = (U)((u & 0x7fffffffu) > 0x7f800000u);
    const U lanes = (is_nan & ((u >> 16) | 0x40u)) | (~is_nan & rounded);
    return {__builtin_convertvector(lanes, typename Vec<T, N>::V)};
  } else {
#if defined(VNPU_NARROW_16)
    // Nearly always all lanes are normal numbers; testing for the others first is shorter than choosing for each lane.
    if constexpr (N == 16) {
      if (!any_nan(a.lo.v, a.hi.v)) [[likely]]
        return narrow_numbers(a.lo.v, a.hi.v);
    }
#endif
    constexpr int P = low_part(N);
    return join(narrow<T>(part<0, P>(a)), narrow<T>(part<P, N - P>(a)));
  }
}

}  // namespace vnpu
