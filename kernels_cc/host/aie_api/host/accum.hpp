// aie::accum: N lanes of accumulation, and the conversions between accumulators and vectors.
#pragma once

#include "mask.hpp"

struct bfp16ebs8;

namespace aie {

template <typename T, unsigned N>
class block_vector;

namespace host {

template <typename Tag>
struct accum_lane {};
template <>
struct accum_lane<accfloat> {
  using type = float;
  static constexpr unsigned min_lanes = 4, max_lanes = 128;
};
template <>
struct accum_lane<acc32> {
  using type = std::int32_t;
  static constexpr unsigned min_lanes = 8, max_lanes = 128;
};
template <>
struct accum_lane<acc64> {
  using type = std::int64_t;
  static constexpr unsigned min_lanes = 4, max_lanes = 64;
};

template <typename Tag>
concept AccumTag = is_one_of<Tag, accfloat, acc32, acc64>;

template <typename Tag, unsigned N>
constexpr bool is_accum_shape() {
  if constexpr (AccumTag<Tag>) return (N & (N - 1)) == 0 && N >= accum_lane<Tag>::min_lanes && N <= accum_lane<Tag>::max_lanes;
  return true;
}

// The tag that a multiplication of two types accumulates in by default.
template <typename A, typename B>
using product_tag =
    std::conditional_t<is_float<A> || is_float<B>, accfloat, std::conditional_t<(sizeof(A) + sizeof(B) > 4), acc64, acc32>>;
template <typename Tag, typename A, typename B>
using tag_or_default = std::conditional_t<std::is_same_v<Tag, accauto>, product_tag<A, B>, Tag>;

// An integer accumulator lane shifted right by `shift` bits, rounded and saturated by the mode registers.
template <typename T>
constexpr T shift_round_saturate(std::int64_t lane, int shift, core_modes modes) {
  if (shift > 0) {
    const std::uint64_t negative = lane < 0;
    const std::uint64_t magnitude = negative ? std::uint64_t(0) - std::uint64_t(lane) : std::uint64_t(lane);
    const std::uint64_t rest = magnitude & ((std::uint64_t(1) << shift) - 1);
    const std::uint64_t base = magnitude >> shift;
    const std::uint64_t half = std::uint64_t(1) << (shift - 1);
    const auto rounded = std::int64_t(base + round_up<std::uint64_t>(modes.rounding, rest, half, base & 1, negative));
    lane = negative ? -rounded : rounded;
  }
  if (modes.saturation == saturation_mode::none) return T(lane);
  const std::int64_t top = std::is_signed_v<T> ? (std::int64_t(1) << (8 * sizeof(T) - 1)) - 1
                                               : std::int64_t((std::uint64_t(1) << (8 * sizeof(T))) - 1);
  const std::int64_t bottom = !std::is_signed_v<T> ? 0 : modes.saturation == saturation_mode::symmetric ? -top : -top - 1;
  return T(lane > top ? top : lane < bottom ? bottom : lane);
}

}  // namespace host

template <typename Tag, unsigned N>
class accum {
  static_assert(host::AccumTag<Tag>,
                "accumulators of this host subset are accfloat, acc32 and acc64; AIE2P has no others "
                "but their complex forms");
  static_assert(host::is_accum_shape<Tag, N>(),
                "AIE2P accumulators have a power of two of lanes: accfloat 4 to 128, acc32 8 to 128, acc64 4 to 64");

 public:
  using value_type = Tag;
  using lane_type = typename host::accum_lane<Tag>::type;
  using storage_t = host::registers<lane_type, N>;

  storage_t data;

  static constexpr unsigned size() { return N; }
  static constexpr unsigned bits() { return N * 8 * sizeof(lane_type); }
  static constexpr bool is_floating_point() { return std::is_same_v<Tag, accfloat>; }
  static constexpr bool is_complex() { return false; }

  accum() = default;
  AIE_HOST_INLINE explicit accum(const storage_t& lanes) : data(lanes) {}
  template <typename T>
  AIE_HOST_INLINE explicit accum(const vector<T, N>& v, int shift = 0) {
    from_vector(v, shift);
  }
  template <typename T>
  AIE_HOST_INLINE accum& operator=(const vector<T, N>& v) {
    from_vector(v);
    return *this;
  }

  template <typename T>
    requires(std::is_same_v<Tag, accfloat>)
  AIE_HOST_INLINE explicit accum(const block_vector<T, N>& v) {
    lane_type lanes[N];
    v.to_floats(lanes);
    data = storage_t::load(lanes);
  }

  // Lanes << shift for integers; floats ignore the shift.
  template <typename T>
  AIE_HOST_INLINE void from_vector(const vector<T, N>& v, [[maybe_unused]] int shift = 0) {
    static_assert(is_floating_point() == host::is_float<T>,
                  "a float accumulator is made from bfloat16 or float lanes, an integer one from integers");
    data = host::convert<lane_type>(host::wide(v));
    if constexpr (!is_floating_point()) data = data << shift;
  }

  // The lanes in T, in the core's rounding and saturation modes.
  template <typename T>
    requires(!std::is_same_v<T, bfp16ebs8>)
  AIE_HOST_INLINE vector<T, N> to_vector([[maybe_unused]] int shift = 0) const {
    static_assert(is_floating_point() == host::is_float<T>,
                  "a float accumulator becomes bfloat16 or float, an integer one integers; use aie::to_fixed and "
                  "aie::to_float between them");
    if constexpr (is_floating_point()) {
      return host::from_wide<T, N>(data);
    } else {
      vector<T, N> v;
      const host::core_modes modes = host::modes;
      for (unsigned i = 0; i < N; ++i) v.data.set(i, host::shift_round_saturate<T>(data[i], shift, modes));
      return v;
    }
  }
  template <typename T>
    requires(std::is_same_v<T, bfp16ebs8> && std::is_same_v<Tag, accfloat>)
  AIE_HOST_INLINE block_vector<T, N> to_vector() const {
    lane_type lanes[N];
    data.store(lanes);
    return block_vector<T, N>::from_floats(lanes);
  }
  AIE_HOST_INLINE vector<float, N> to_vector() const
    requires(std::is_same_v<Tag, accfloat>)
  {
    return to_vector<float>();
  }
  template <typename T>
    requires(std::is_same_v<Tag, accfloat> && N <= 32 && host::is_float<T>)
  AIE_HOST_INLINE operator vector<T, N>() const {
    return to_vector<T>();
  }

  template <unsigned M>
  AIE_HOST_INLINE accum<Tag, M> extract(unsigned index) const {
    static_assert(M <= N, "extract<M>: a part is not larger than the accumulator");
    return accum<Tag, M>(host::extracted<M>(data, index));
  }
  template <unsigned M>
  AIE_HOST_INLINE accum& insert(unsigned index, const accum<Tag, M>& part) {
    static_assert(M <= N, "insert: a part is not larger than the accumulator");
    host::insert(data, index, part.data);
    return *this;
  }
  // The device leaves the new lanes undefined; here they are zero.
  template <unsigned M>
  AIE_HOST_INLINE accum<Tag, M> grow() const {
    static_assert(M >= N, "grow<M>: the result is not smaller than the accumulator");
    return accum<Tag, M>(typename accum<Tag, M>::storage_t(0)).insert(0, *this);
  }
  // The same bits as lanes of another tag of the same width.
  template <typename Other>
  AIE_HOST_INLINE accum<Other, N> cast_to() const {
    static_assert(sizeof(typename accum<Other, N>::storage_t) == sizeof(storage_t), "cast_to: the lanes have different widths");
    return accum<Other, N>(host::bits_as<typename accum<Other, N>::lane_type>(data));
  }
};

namespace host {
template <typename T>
struct is_accum_type : std::false_type {};
template <typename Tag, unsigned N>
struct is_accum_type<accum<Tag, N>> : std::true_type {};
}  // namespace host

template <typename A>
concept Accum = host::is_accum_type<std::remove_cvref_t<A>>::value;

// The same bits as lanes of an accumulator.
template <typename Tag, Vector V>
  requires host::AccumTag<Tag>
AIE_HOST_INLINE auto vector_cast(const V& v) {
  using lane = typename host::accum_lane<Tag>::type;
  return accum<Tag, V::bytes() / sizeof(lane)>(host::bits_as<lane>(v.data));
}
template <typename T, Accum A>
  requires host::is_element<T>
AIE_HOST_INLINE auto vector_cast(const A& acc) {
  return vector<T, A::bits() / 8 / sizeof(T)>(host::bits_as<host::lane_t<T>>(acc.data));
}

template <typename Tag, unsigned N = 16>
  requires host::AccumTag<Tag>
AIE_HOST_INLINE accum<Tag, N> zeros() {
  return accum<Tag, N>(typename accum<Tag, N>::storage_t(0));
}

template <typename Tag, unsigned N, typename... Rest>
  requires(std::is_same_v<accum<Tag, N>, Rest> && ...)
AIE_HOST_INLINE auto concat(const accum<Tag, N>& first, const Rest&... rest) {
  return accum<Tag, N * (1 + sizeof...(Rest))>(host::joined(first.data, rest.data...));
}

}  // namespace aie
