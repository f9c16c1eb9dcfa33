// Moving lanes about, and reductions over them.
#pragma once

#include "arithmetic.hpp"

namespace aie {
namespace host {

// out[i] = v[source(i)].
template <Vector V, typename Source>
AIE_HOST_INLINE V gather(const V& v, Source source) {
  V out;
  for (unsigned i = 0; i < V::size(); ++i) out.data[i] = v.data[source(i)];
  return out;
}

// Halves folded onto each other until one lane is left, in the type that arithmetic is done in.
template <unsigned N, typename L, typename Fold>
AIE_HOST_INLINE L fold_lanes(const lanes<L, N>& value, Fold fold) {
  if constexpr (N == 1) {
    return value[0];
  } else {
    lanes<L, N / 2> low, high;
    std::memcpy(&low, &value, sizeof(low));
    std::memcpy(&high, reinterpret_cast<const char*>(&value) + sizeof(low), sizeof(high));
    return fold_lanes<N / 2, L>(fold(low, high), fold);
  }
}

template <Vector V, typename Fold>
AIE_HOST_INLINE typename V::value_type reduce(const V& v, Fold fold) {
  using T = typename V::value_type;
  return T(fold_lanes<V::size(), wide_t<T>>(wide(v), fold));
}

}  // namespace host

template <Vector V>
AIE_HOST_INLINE V reverse(const V& v) {
  return host::gather(v, [](unsigned i) { return V::size() - 1 - i; });
}

// Lane i moves to lane i + n (up) or i - n (down). The lanes moved in are undefined on the device, zero here.
template <Vector V>
AIE_HOST_INLINE V shuffle_up(const V& v, unsigned n) {
  V out(typename V::storage_t{});
  for (unsigned i = n; i < V::size(); ++i) out.data[i] = v.data[i - n];
  return out;
}
template <Vector V>
AIE_HOST_INLINE V shuffle_down(const V& v, unsigned n) {
  V out(typename V::storage_t{});
  for (unsigned i = n; i < V::size(); ++i) out.data[i - n] = v.data[i];
  return out;
}
template <Vector V>
AIE_HOST_INLINE V shuffle_up_rotate(const V& v, unsigned n) {
  return host::gather(v, [n](unsigned i) { return (i + V::size() - n % V::size()) % V::size(); });
}
template <Vector V>
AIE_HOST_INLINE V shuffle_down_rotate(const V& v, unsigned n) {
  return host::gather(v, [n](unsigned i) { return (i + n) % V::size(); });
}
template <Vector V>
AIE_HOST_INLINE V shuffle_up_replicate(const V& v, unsigned n) {
  return host::gather(v, [n](unsigned i) { return i < n ? 0u : i - n; });
}
template <Vector V>
AIE_HOST_INLINE V shuffle_down_replicate(const V& v, unsigned n) {
  return host::gather(v, [n](unsigned i) { return i + n < V::size() ? i + n : V::size() - 1; });
}
// The lanes moved in come from the top (up) or the bottom (down) of `fill`.
template <Vector V>
AIE_HOST_INLINE V shuffle_up_fill(const V& v, const V& fill, unsigned n) {
  V out = shuffle_up(v, n);
  for (unsigned i = 0; i < n; ++i) out.data[i] = fill.data[i + V::size() - n];
  return out;
}
template <Vector V>
AIE_HOST_INLINE V shuffle_down_fill(const V& v, const V& fill, unsigned n) {
  V out = shuffle_down(v, n);
  for (unsigned i = 0; i < n; ++i) out.data[i + V::size() - n] = fill.data[i];
  return out;
}

namespace host {
#if defined(__AVX512BW__) && defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define AIE_HOST_WIDE_SHUFFLE 1
// Four of the eight rows of the transpose of an 8 x 8 matrix of 16-bit lanes: one instruction.
template <unsigned First, typename L, unsigned... I>
AIE_HOST_INLINE lanes<L, 32> four_columns(const lanes<L, 32>& low, const lanes<L, 32>& high,
                                          std::integer_sequence<unsigned, I...>) {
  return __builtin_shufflevector(low, high, (I % 8 * 8 + I / 8 + First)...);
}
template <Vector V>
AIE_HOST_INLINE V transpose_8x8(const V& v) {
  using Half = lanes<typename V::lane_type, 32>;
  Half halves[2];
  std::memcpy(&halves, &v.data, sizeof(halves));
  constexpr auto all = std::make_integer_sequence<unsigned, 32>();
  const Half turned[] = {four_columns<0, typename V::lane_type>(halves[0], halves[1], all),
                         four_columns<4, typename V::lane_type>(halves[0], halves[1], all)};
  V out;
  std::memcpy(&out.data, &turned, sizeof(turned));
  return out;
}
#endif
#endif
}  // namespace host

// A rows x cols matrix, row by row, to its transpose, row by row.
template <Vector V>
AIE_HOST_INLINE V transpose(const V& v, unsigned rows, unsigned cols) {
#if defined(AIE_HOST_WIDE_SHUFFLE)
  if constexpr (V::size() == 64 && sizeof(typename V::storage_t) == 128) {
    if (rows == 8 && cols == 8) return host::transpose_8x8(v);
  }
#endif
  return host::gather(v, [rows, cols](unsigned i) { return i % rows * cols + i / rows; });
}

// Chunks of the two vectors by turns: { v0, w0, v1, w1, ... } over both results.
template <Vector V>
AIE_HOST_INLINE std::pair<V, V> interleave_zip(const V& v, const V& w, unsigned chunk) {
  std::pair<V, V> out;
  for (unsigned i = 0; i < 2 * V::size(); ++i) {
    const unsigned block = i / chunk, from = block / 2 * chunk + i % chunk;
    (i < V::size() ? out.first : out.second).data[i % V::size()] = (block % 2 ? w : v).data[from];
  }
  return out;
}
// The inverse: even chunks of v and w, then odd ones.
template <Vector V>
AIE_HOST_INLINE std::pair<V, V> interleave_unzip(const V& v, const V& w, unsigned chunk) {
  std::pair<V, V> out;
  for (unsigned i = 0; i < 2 * V::size(); ++i) {
    const unsigned block = i / chunk, to = block / 2 * chunk + i % chunk;
    (block % 2 ? out.second : out.first).data[to] = (i < V::size() ? v : w).data[i % V::size()];
  }
  return out;
}

namespace host {
template <unsigned Odd, typename T, unsigned N>
AIE_HOST_INLINE vector<T, N / 2> every_other(const vector<T, N>& v, unsigned chunk) {
  vector<T, N / 2> out;
  for (unsigned i = 0; i < N / 2; ++i) out.data[i] = v.data[(2 * (i / chunk) + Odd) * chunk + i % chunk];
  return out;
}
}  // namespace host

template <Vector V>
AIE_HOST_INLINE auto filter_even(const V& v, unsigned chunk = 1) {
  return host::every_other<0>(v, chunk);
}
template <Vector V>
AIE_HOST_INLINE auto filter_odd(const V& v, unsigned chunk = 1) {
  return host::every_other<1>(v, chunk);
}

// bf16 lanes are summed in f32 and the sum is rounded once.
template <Vector V>
AIE_HOST_INLINE typename V::value_type reduce_add(const V& v) {
  return host::reduce(v, [](const auto& a, const auto& b) { return a + b; });
}
template <Vector V>
AIE_HOST_INLINE typename V::value_type reduce_max(const V& v) {
  return host::reduce(v, [](const auto& a, const auto& b) { return a < b ? b : a; });
}
template <Vector V>
AIE_HOST_INLINE typename V::value_type reduce_min(const V& v) {
  return host::reduce(v, [](const auto& a, const auto& b) { return b < a ? b : a; });
}
template <Vector V>
AIE_HOST_INLINE typename V::value_type reduce_mul(const V& v) {
  return host::reduce(v, [](const auto& a, const auto& b) { return a * b; });
}

// The sum of each of up to four vectors, in the first lanes of one.
template <Vector V, typename... Rest>
  requires(std::is_same_v<V, Rest> && ...)
AIE_HOST_INLINE V reduce_add_v(const V& first, const Rest&... rest) {
  static_assert(sizeof...(Rest) < 4, "reduce_add_v sums at most 4 vectors at once");
  V out(typename V::storage_t{});
  unsigned i = 0;
  out.set(reduce_add(first), i);
  (out.set(reduce_add(rest), ++i), ...);
  return out;
}

}  // namespace aie
