// Element by element: add, sub, mul, mac and their kin, maximum and minimum, bits.
//
// bf16 sums and differences go through f32 and are rounded once, as on the device. A product of two bf16 is exact in
// f32. A product of two floats is one f32 product here; the device makes it of several bf16 products.
#pragma once

#include "accum.hpp"

namespace aie {

namespace host {

template <typename L, unsigned N>
AIE_HOST_INLINE registers<L, N> greater(const registers<L, N>& x, const registers<L, N>& y) {
  return registers<L, N>::each([](const auto& a, const auto& b) AIE_HOST_LAMBDA { return a < b ? b : a; }, x, y);
}
template <typename L, unsigned N>
AIE_HOST_INLINE registers<L, N> lesser(const registers<L, N>& x, const registers<L, N>& y) {
  return registers<L, N>::each([](const auto& a, const auto& b) AIE_HOST_LAMBDA { return b < a ? b : a; }, x, y);
}

}  // namespace host

#define AIE_HOST_VECTOR_OP(name, expression)          \
  template <typename A, typename B>                   \
    requires Operands<A, B>                           \
  AIE_HOST_INLINE auto name(const A& a, const B& b) { \
    using V = host::common_t<A, B>;                   \
    using T = typename V::value_type;                 \
    constexpr unsigned N = V::size();                 \
    const auto& v = host::as_vector<T, N>(a);         \
    const auto& w = host::as_vector<T, N>(b);         \
    const auto& x = host::wide(v);                    \
    const auto& y = host::wide(w);                    \
    return host::from_wide<T, N>(expression);         \
  }
AIE_HOST_VECTOR_OP(add, x + y)
AIE_HOST_VECTOR_OP(sub, x - y)
AIE_HOST_VECTOR_OP(max, host::greater(x, y))
AIE_HOST_VECTOR_OP(min, host::lesser(x, y))
#undef AIE_HOST_VECTOR_OP

#define AIE_HOST_BIT_OP(name, op)                                                             \
  template <typename A, typename B>                                                           \
    requires(Operands<A, B> && host::common_t<A, B>::is_integral())                           \
  AIE_HOST_INLINE auto name(const A& a, const B& b) {                                         \
    using V = host::common_t<A, B>;                                                           \
    using T = typename V::value_type;                                                         \
    return V(host::as_vector<T, V::size()>(a).data op host::as_vector<T, V::size()>(b).data); \
  }
AIE_HOST_BIT_OP(bit_and, &)
AIE_HOST_BIT_OP(bit_or, |)
AIE_HOST_BIT_OP(bit_xor, ^)
#undef AIE_HOST_BIT_OP

template <Vector V>
  requires(V::is_integral())
AIE_HOST_INLINE V bit_not(const V& v) {
  return V(~v.data);
}
template <Vector V>
  requires(V::is_integral())
AIE_HOST_INLINE V upshift(const V& v, unsigned shift) {
  return V(v.data << shift);
}
template <Vector V>
  requires(V::is_integral())
AIE_HOST_INLINE V downshift(const V& v, unsigned shift) {
  return V(v.data >> shift);
}

template <typename T, unsigned N>
AIE_HOST_INLINE vector<T, N> neg(const vector<T, N>& v) {
  if constexpr (std::is_same_v<T, bfloat16>) return vector<T, N>(v.data ^ typename vector<T, N>::storage_t(0x8000));
  else if constexpr (std::is_unsigned_v<T>) return v;
  else return vector<T, N>(-v.data);
}
template <typename T, unsigned N>
AIE_HOST_INLINE vector<T, N> abs(const vector<T, N>& v) {
  if constexpr (std::is_same_v<T, bfloat16>) return vector<T, N>(v.data & typename vector<T, N>::storage_t(0x7fff));
  else if constexpr (std::is_unsigned_v<T>) return v;
  else if constexpr (std::is_same_v<T, float>)
    return bit_and(0x7fffffffu, v.template cast_to<uint32>()).template cast_to<float>();
  else return max(v, neg(v));
}
template <Vector V, host::ElementOf<typename V::value_type> L, host::ElementOf<typename V::value_type> H>
AIE_HOST_INLINE V clamp(const V& v, L low, H high) {
  return min(max(v, low), high);
}

namespace host {

// Whether lanes of a type fit an accumulator of Tag: floats in accfloat, integers in the others.
template <typename E, typename Tag>
concept AddedTo = is_element<E> && is_float<E> == std::is_same_v<Tag, accfloat>;

}  // namespace host

// ---- accumulators --------------------------------------------------------------------------------------------------

template <typename Tag, unsigned N>
AIE_HOST_INLINE accum<Tag, N> neg(const accum<Tag, N>& acc) {
  return accum<Tag, N>(-acc.data);
}
template <typename Tag, unsigned N>
AIE_HOST_INLINE accum<Tag, N> add(const accum<Tag, N>& a, const accum<Tag, N>& b) {
  return accum<Tag, N>(a.data + b.data);
}
template <typename Tag, unsigned N>
AIE_HOST_INLINE accum<Tag, N> sub(const accum<Tag, N>& a, const accum<Tag, N>& b) {
  return accum<Tag, N>(a.data - b.data);
}
template <typename Tag, unsigned N, typename T>
AIE_HOST_INLINE accum<Tag, N> add(const accum<Tag, N>& a, const vector<T, N>& v) {
  return add(a, accum<Tag, N>(v));
}
template <typename Tag, unsigned N, typename T>
AIE_HOST_INLINE accum<Tag, N> sub(const accum<Tag, N>& a, const vector<T, N>& v) {
  return sub(a, accum<Tag, N>(v));
}
template <typename Tag, unsigned N, typename E>
  requires host::AddedTo<E, Tag>
AIE_HOST_INLINE accum<Tag, N> add(const accum<Tag, N>& a, E value) {
  return accum<Tag, N>(a.data + typename accum<Tag, N>::storage_t(value));
}
template <typename Tag, unsigned N, typename E>
  requires host::AddedTo<E, Tag>
AIE_HOST_INLINE accum<Tag, N> sub(const accum<Tag, N>& a, E value) {
  return accum<Tag, N>(a.data - typename accum<Tag, N>::storage_t(value));
}

// ---- lazy operations: computed at once here ----------------------------------------------------------------------

template <typename X>
AIE_HOST_INLINE X op_none(const X& x) {
  return x;
}
template <Accum A>
AIE_HOST_INLINE A op_add(const A& acc) {
  return acc;
}
template <Accum A>
AIE_HOST_INLINE A op_sub(const A& acc) {
  return neg(acc);
}
template <Accum A>
AIE_HOST_INLINE A op_zero(const A& acc, bool to_zero = true) {
  return to_zero ? A(typename A::storage_t(0)) : acc;
}
template <Vector V>
AIE_HOST_INLINE V op_abs(const V& v) {
  return abs(v);
}
template <Vector V>
AIE_HOST_INLINE V op_max(const V& a, const V& b) {
  return max(a, b);
}
template <Vector V>
AIE_HOST_INLINE V op_min(const V& a, const V& b) {
  return min(a, b);
}

// ---- products ------------------------------------------------------------------------------------------------------

namespace host {

// A factor in the lanes of an accumulator of Tag.
template <typename Tag, unsigned N, typename T>
AIE_HOST_INLINE auto factor(const vector<T, N>& v) {
  return convert<typename accum_lane<Tag>::type>(wide(v));
}
template <typename A>
struct factor_traits {
  using type = A;
  static constexpr unsigned size = 0;
};
template <typename T, unsigned N>
struct factor_traits<vector<T, N>> {
  using type = T;
  static constexpr unsigned size = N;
};
template <typename T, unsigned N>
struct factor_traits<lane_ref<T, N>> {
  using type = T;
  static constexpr unsigned size = 0;
};
template <typename Tag, unsigned N, typename E>
  requires(factor_traits<E>::size == 0)
AIE_HOST_INLINE auto factor(E value) {
  using L = typename accum_lane<Tag>::type;
  return registers<L, N>(L(typename factor_traits<E>::type(value)));
}

template <typename A, typename B>
inline constexpr unsigned factor_lanes =
    factor_traits<A>::size > factor_traits<B>::size ? factor_traits<A>::size : factor_traits<B>::size;

// The pairs of element types that AIE2P multiplies (aie_api aie.hpp, is_valid_mul_op): bf16 by bf16, float by float, integers
// of the same width or of the next.
template <typename A, typename B>
inline constexpr bool multiplies =
    is_element<A> && is_element<B> &&
    (is_float<A> || is_float<B> ? std::is_same_v<A, B> : sizeof(A) <= 2 * sizeof(B) && sizeof(B) <= 2 * sizeof(A));

template <typename A, typename B>
concept Factors = (Vector<A> || Vector<B>) && multiplies<typename factor_traits<A>::type, typename factor_traits<B>::type> &&
                  (!Vector<A> || !Vector<B> || factor_traits<A>::size == factor_traits<B>::size);

// Factors whose products fit an accumulator of Tag and N lanes.
template <typename Tag, unsigned N, typename A, typename B>
concept FactorsFor = Factors<A, B> && AddedTo<typename factor_traits<A>::type, Tag> && factor_lanes<A, B> == N;

template <typename A, typename B>
inline constexpr bool exact_product =
    std::is_same_v<typename factor_traits<A>::type, bfloat16> && std::is_same_v<typename factor_traits<B>::type, bfloat16>;

template <typename Tag, typename A, typename B>
using tag_for = tag_or_default<Tag, typename factor_traits<A>::type, typename factor_traits<B>::type>;

}  // namespace host

template <typename Tag = accauto, typename A, typename B>
  requires host::Factors<A, B>
AIE_HOST_INLINE auto mul(const A& a, const B& b) {
  using T = host::tag_for<Tag, A, B>;
  constexpr unsigned N = host::factor_lanes<A, B>;
  return accum<T, N>(host::factor<T, N>(a) * host::factor<T, N>(b));
}
template <typename Tag = accauto, typename A, typename B>
  requires host::Factors<A, B>
AIE_HOST_INLINE auto negmul(const A& a, const B& b) {
  return neg(mul<Tag>(a, b));
}
template <typename Tag, unsigned N, typename A, typename B>
  requires host::FactorsFor<Tag, N, A, B>
AIE_HOST_INLINE accum<Tag, N> mac(const accum<Tag, N>& acc, const A& a, const B& b) {
  if constexpr (host::exact_product<A, B>) {
    const auto x = host::as_vector<bfloat16, N>(a), y = host::as_vector<bfloat16, N>(b);
    return accum<Tag, N>(host::multiply_add_bf16(x.data, y.data, acc.data));
  } else {
    return accum<Tag, N>(acc.data + host::factor<Tag, N>(a) * host::factor<Tag, N>(b));
  }
}
template <typename Tag, unsigned N, typename A, typename B>
  requires host::FactorsFor<Tag, N, A, B>
AIE_HOST_INLINE accum<Tag, N> msc(const accum<Tag, N>& acc, const A& a, const B& b) {
  return sub(acc, mul<Tag>(a, b));
}
template <typename Tag = accauto, Vector V>
AIE_HOST_INLINE auto mul_square(const V& v) {
  return mul<Tag>(v, v);
}
template <typename Tag, unsigned N, Vector V>
AIE_HOST_INLINE accum<Tag, N> mac_square(const accum<Tag, N>& acc, const V& v) {
  return mac(acc, v, v);
}
template <typename Tag, unsigned N, Vector V>
AIE_HOST_INLINE accum<Tag, N> msc_square(const accum<Tag, N>& acc, const V& v) {
  return msc(acc, v, v);
}

// acc + the sum of data_i * coeff[start + i], for accumulators and vectors of `Lanes` lanes.
template <unsigned Lanes, typename Tag, Vector C, Vector... D>
AIE_HOST_INLINE accum<Tag, Lanes> accumulate(const accum<Tag, Lanes>& acc, const C& coeff, unsigned start, const D&... data) {
  accum<Tag, Lanes> sum = acc;
  ((sum = mac(sum, data, coeff.get(start++))), ...);
  return sum;
}
template <unsigned Lanes, typename Tag = accauto, Vector C, Vector First, Vector... D>
AIE_HOST_INLINE auto accumulate(const C& coeff, unsigned start, const First& first, const D&... data) {
  using T = host::tag_or_default<Tag, typename C::value_type, typename First::value_type>;
  return accumulate<Lanes>(zeros<T, Lanes>(), coeff, start, first, data...);
}

}  // namespace aie
