// Vector ops that move lanes, or reduce them.
#pragma once

#include "vnpu/arith.h"

namespace vnpu {

// Lane i of the result is lane index(i) of x.
template <int M, class T, int N, class Index>
VNPU_INLINE Vec<T, M> pick(const Vec<T, N> &x, Index index) {
  Lanes<T, N> from(x);
  Lanes<T, M> to;
  for (int i = 0; i < M; ++i) to.at[i] = from.at[index(i)];
  return to.vec();
}

// Lane index(i) of the result is lane i of x, every other lane is that of `into`.
template <class T, int M, int N, class Index>
VNPU_INLINE Vec<T, N> place(const Vec<T, M> &x, const Vec<T, N> &into, Index index) {
  Lanes<T, M> from(x);
  Lanes<T, N> to(into);
  for (int i = 0; i < M; ++i) to.at[index(i)] = from.at[i];
  return to.vec();
}

template <class T, int N>
VNPU_INLINE T lane(const Vec<T, N> &x, i64 i) {
  if constexpr (is_leaf<T, N>) return bit_cast<T>(Lane<T>(x.v[i]));
  else return Lanes<T, N>(x).at[i];
}

template <class T, int N>
VNPU_INLINE Vec<T, N> with_lane(Vec<T, N> x, i64 i, T value) {
  Lanes<T, N> r(x);
  r.at[i] = value;
  return r.vec();
}

// Folds lane i of x into lane target(i) of acc, in order of i.
template <class T, int N, int M, class Target, class Combine>
VNPU_INLINE Vec<T, M> fold(const Vec<T, N> &x, const Vec<T, M> &acc, Target target, Combine combine) {
  Lanes<T, N> from(x);
  Lanes<T, M> to(acc);
  for (int i = 0; i < N; ++i) to.at[target(i)] = combine(to.at[target(i)], from.at[i]);
  return to.vec();
}

// Folds all lanes into one scalar, in order, starting with lane 0.
template <class T, int N, class Combine>
VNPU_INLINE T reduce(const Vec<T, N> &x, Combine combine) {
  Lanes<T, N> from(x);
  T result = from.at[0];
  for (int i = 1; i < N; ++i) result = combine(result, from.at[i]);
  return result;
}

// The same where the op allows another order: halves are combined, then their halves.
template <class T, int N, class Combine>
VNPU_INLINE T reduce_tree(const Vec<T, N> &x, Combine combine) {
  if constexpr (N == 1) return lane(x, 0);
  else if constexpr (is_power_of_two(N)) {
    return reduce_tree(combine(part<0, N / 2>(x), part<N / 2, N / 2>(x)), combine);
  } else {
    return reduce(x, combine);
  }
}

}  // namespace vnpu
