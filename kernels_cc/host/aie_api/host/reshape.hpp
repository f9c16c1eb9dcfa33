// Moving lanes about, and reductions over them.
#pragma once

#include "arithmetic.hpp"

namespace aie {
namespace host {

// out[i] = v[source(i)].
template <Vector V, typename Source>
AIE_HOST_INLINE V gather(const V& v, Source source) {
  typename V::lane_type from[V::size()], to[V::size()];
  v.data.store(from);
  for (unsigned i = 0; i < V::size(); ++i) to[i] = from[source(i)];
  return V(V::storage_t::load(to));
}

// Reduces lanes by halves until one is left: in a register, the upper half is combined with the lower half.
template <unsigned Left, typename V, typename Fold>
AIE_HOST_INLINE lane_of<V> fold_register(const V& v, Fold fold) {
  if constexpr (Left == 1) {
    return v[0];
  } else if constexpr (Left == 2) {
    return fold(lane_of<V>(v[0]), lane_of<V>(v[1]));
  } else if constexpr (Left * sizeof(v[0]) > 16) {
    return fold_register<Left / 2>(fold(slice<0, Left / 2>(v), slice<Left / 2, Left / 2>(v)), fold);
  } else {
    const V upper = [&]<unsigned... I>(std::integer_sequence<unsigned, I...>) AIE_HOST_LAMBDA {
      return shuffled<(I % (Left / 2) + Left / 2)...>(v, v);
    }(std::make_integer_sequence<unsigned, lane_count<V>>());
    return fold_register<Left / 2>(fold(v, upper), fold);
  }
}
template <typename L, unsigned N, typename Fold>
AIE_HOST_INLINE L fold_lanes(const registers<L, N>& v, Fold fold) {
  if constexpr (registers<L, N>::count == 1) return fold_register<N>(v.part[0], fold);
  else return fold_lanes(registers<L, N / 2>::each(fold, extracted<N / 2>(v, 0), extracted<N / 2>(v, 1)), fold);
}

template <Vector V, typename Fold>
AIE_HOST_INLINE typename V::value_type reduce(const V& v, Fold fold) {
  using T = typename V::value_type;
  return T(fold_lanes(wide(v), fold));
}

}  // namespace host

template <Vector V>
AIE_HOST_INLINE V reverse(const V& v) {
  return host::gather(v, [](unsigned i) AIE_HOST_LAMBDA { return V::size() - 1 - i; });
}

// Lane i moves to lane i + n (up) or i - n (down). The lanes moved in are undefined on the device, zero here.
template <Vector V>
AIE_HOST_INLINE V shuffle_up(const V& v, unsigned n) {
  V out(typename V::storage_t(0));
  for (unsigned i = n; i < V::size(); ++i) out.data.set(i, v.data[i - n]);
  return out;
}
template <Vector V>
AIE_HOST_INLINE V shuffle_down(const V& v, unsigned n) {
  V out(typename V::storage_t(0));
  for (unsigned i = n; i < V::size(); ++i) out.data.set(i - n, v.data[i]);
  return out;
}
template <Vector V>
AIE_HOST_INLINE V shuffle_up_rotate(const V& v, unsigned n) {
  return host::gather(v, [n](unsigned i) AIE_HOST_LAMBDA { return (i + V::size() - n % V::size()) % V::size(); });
}
template <Vector V>
AIE_HOST_INLINE V shuffle_down_rotate(const V& v, unsigned n) {
  return host::gather(v, [n](unsigned i) AIE_HOST_LAMBDA { return (i + n) % V::size(); });
}
template <Vector V>
AIE_HOST_INLINE V shuffle_up_replicate(const V& v, unsigned n) {
  return host::gather(v, [n](unsigned i) AIE_HOST_LAMBDA { return i < n ? 0u : i - n; });
}
template <Vector V>
AIE_HOST_INLINE V shuffle_down_replicate(const V& v, unsigned n) {
  return host::gather(v, [n](unsigned i) AIE_HOST_LAMBDA { return i + n < V::size() ? i + n : V::size() - 1; });
}
// The lanes moved in come from the top (up) or the bottom (down) of `fill`.
template <Vector V>
AIE_HOST_INLINE V shuffle_up_fill(const V& v, const V& fill, unsigned n) {
  V out = shuffle_up(v, n);
  for (unsigned i = 0; i < n; ++i) out.data.set(i, fill.data[i + V::size() - n]);
  return out;
}
template <Vector V>
AIE_HOST_INLINE V shuffle_down_fill(const V& v, const V& fill, unsigned n) {
  V out = shuffle_down(v, n);
  for (unsigned i = 0; i < n; ++i) out.data.set(i + V::size() - n, fill.data[i]);
  return out;
}

namespace host {

// Transposes an 8 x 8 matrix of 2-byte lanes.
template <typename L>
AIE_HOST_INLINE registers<L, 64> transposed_8x8(const registers<L, 64>& v) {
#if defined(__AVX512BW__)
  // Four rows of the result are one instruction.
  return [&]<unsigned... I>(std::integer_sequence<unsigned, I...>) AIE_HOST_LAMBDA {
    registers<L, 64> out;
    out.part[0] = shuffled<(I % 8 * 8 + I / 8)...>(v.part[0], v.part[1]);
    out.part[1] = shuffled<(I % 8 * 8 + I / 8 + 4)...>(v.part[0], v.part[1]);
    return out;
  }(std::make_integer_sequence<unsigned, 32>());
#else
  // Three times: rows i and i + 4 interleave, and so become rows 2i and 2i + 1.
  lanes<L, 8> rows[8], next[8];
  each_number<8>([&](auto i) AIE_HOST_LAMBDA { rows[i] = piece<8>(v, i); });
  each_number<3>([&](auto) AIE_HOST_LAMBDA {
    each_number<4>([&](auto i) AIE_HOST_LAMBDA {
      next[2 * i] = shuffled<0, 8, 1, 9, 2, 10, 3, 11>(rows[i], rows[i + 4]);
      next[2 * i + 1] = shuffled<4, 12, 5, 13, 6, 14, 7, 15>(rows[i], rows[i + 4]);
    });
    each_number<8>([&](auto i) AIE_HOST_LAMBDA { rows[i] = next[i]; });
  });
  return from_pieces<L, 64, 8>([&](auto i) AIE_HOST_LAMBDA { return rows[i]; });
#endif
}

}  // namespace host

// A rows x cols matrix, row by row, to its transpose, row by row.
template <Vector V>
AIE_HOST_INLINE V transpose(const V& v, unsigned rows, unsigned cols) {
  if constexpr (V::size() == 64 && sizeof(typename V::lane_type) == 2) {
    if (rows == 8 && cols == 8) return V(host::transposed_8x8(v.data));
  }
  return host::gather(v, [rows, cols](unsigned i) { return i % rows * cols + i / rows; });
}

// Interleaves chunks of the two vectors: { v0, w0, v1, w1, ... } over both results.
template <Vector V>
AIE_HOST_INLINE std::pair<V, V> interleave_zip(const V& v, const V& w, unsigned chunk) {
  std::pair<V, V> out;
  for (unsigned i = 0; i < 2 * V::size(); ++i) {
    const unsigned block = i / chunk, from = block / 2 * chunk + i % chunk;
    (i < V::size() ? out.first : out.second).data.set(i % V::size(), (block % 2 ? w : v).data[from]);
  }
  return out;
}
// The inverse: even chunks of v and w, then odd ones.
template <Vector V>
AIE_HOST_INLINE std::pair<V, V> interleave_unzip(const V& v, const V& w, unsigned chunk) {
  std::pair<V, V> out;
  for (unsigned i = 0; i < 2 * V::size(); ++i) {
    const unsigned block = i / chunk, to = block / 2 * chunk + i % chunk;
    (block % 2 ? out.second : out.first).data.set(to, (i < V::size() ? v : w).data[i % V::size()]);
  }
  return out;
}

namespace host {
// Each register of the result comes from two neighbouring ones, or is half of the only one.
template <unsigned Odd, unsigned Chunk, typename L, unsigned N>
AIE_HOST_INLINE registers<L, N / 2> every_other(const registers<L, N>& v) {
  constexpr unsigned width = registers<L, N / 2>::width, count = registers<L, N>::count;
  registers<L, N / 2> out;
  each_number<N / 2 / width>([&](auto i) AIE_HOST_LAMBDA {
    const auto &first = v.part[2 * i], &second = v.part[(2 * i + 1) % count];
    out.part[i] = [&]<unsigned... I>(std::integer_sequence<unsigned, I...>) AIE_HOST_LAMBDA {
      return shuffled<((2 * (I / Chunk) + Odd) * Chunk + I % Chunk)...>(first, second);
    }(std::make_integer_sequence<unsigned, width>());
  });
  return out;
}
template <unsigned Odd, typename T, unsigned N>
AIE_HOST_INLINE vector<T, N / 2> every_other(const vector<T, N>& v, unsigned chunk) {
  if constexpr (sizeof(T) == 4 && N >= 8) {
    if (chunk == 1) return vector<T, N / 2>(every_other<Odd, 1>(v.data));
    if (chunk == 2) return vector<T, N / 2>(every_other<Odd, 2>(v.data));
    if (chunk == 4) return vector<T, N / 2>(every_other<Odd, 4>(v.data));
  }
  vector<T, N / 2> out;
  for (unsigned i = 0; i < N / 2; ++i) out.data.set(i, v.data[(2 * (i / chunk) + Odd) * chunk + i % chunk]);
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
  return host::reduce(v, [](const auto& a, const auto& b) AIE_HOST_LAMBDA { return a + b; });
}
template <Vector V>
AIE_HOST_INLINE typename V::value_type reduce_max(const V& v) {
  return host::reduce(v, [](const auto& a, const auto& b) AIE_HOST_LAMBDA { return a < b ? b : a; });
}
template <Vector V>
AIE_HOST_INLINE typename V::value_type reduce_min(const V& v) {
  return host::reduce(v, [](const auto& a, const auto& b) AIE_HOST_LAMBDA { return b < a ? b : a; });
}
template <Vector V>
AIE_HOST_INLINE typename V::value_type reduce_mul(const V& v) {
  return host::reduce(v, [](const auto& a, const auto& b) AIE_HOST_LAMBDA { return a * b; });
}

// The sum of each of up to four vectors, in the first lanes of one.
template <Vector V, typename... Rest>
  requires(std::is_same_v<V, Rest> && ...)
AIE_HOST_INLINE V reduce_add_v(const V& first, const Rest&... rest) {
  static_assert(sizeof...(Rest) < 4, "reduce_add_v sums at most 4 vectors at once");
  V out(typename V::storage_t(0));
  unsigned i = 0;
  out.set(reduce_add(first), i);
  (out.set(reduce_add(rest), ++i), ...);
  return out;
}

}  // namespace aie
