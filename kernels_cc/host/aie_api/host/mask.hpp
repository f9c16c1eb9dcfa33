// aie::mask, comparisons and select.
#pragma once

#include "vector.hpp"

namespace aie {

// One bit per lane.
template <unsigned N>
class mask {
 public:
  // Four bytes per lane, 0 or -1: what a comparison of floats gives and a choice between them takes.
  using storage_t = host::registers<std::int32_t, N>;
  storage_t data;

  AIE_HOST_INLINE explicit mask(bool all = false) : data(storage_t(-std::int32_t(all))) {}
  AIE_HOST_INLINE explicit mask(const storage_t& lanes) : data(lanes) {}
  // From words of 32 bits, lane 0 in bit 0 of the first.
  template <typename... Words>
    requires(sizeof...(Words) + 1 == (N + 31) / 32)
  AIE_HOST_INLINE explicit mask(unsigned first, Words... rest) : mask(from_uint32(first, rest...)) {}

  template <typename... Words>
  AIE_HOST_INLINE static mask from_uint32(unsigned first, Words... rest) {
    static_assert(sizeof...(Words) + 1 == (N + 31) / 32, "from_uint32 takes a word for every 32 lanes, no more, no fewer");
    const unsigned words[] = {first, unsigned(rest)...};
    mask out;
    host::each_number<storage_t::count>([&](auto part) AIE_HOST_LAMBDA {
      constexpr unsigned at = part * storage_t::width;
      const host::lanes<std::uint32_t, storage_t::width> bits = bits_from<at % 32>();
      out.data.part[part] = (bits & words[at / 32]) != 0;
    });
    return out;
  }
  template <typename... Words>
  AIE_HOST_INLINE static mask from_uint64(std::uint64_t first, Words... rest) {
    static_assert(64 * (sizeof...(Words) + 1) == N, "from_uint64 takes a word for every 64 lanes, and whole words");
    const std::uint64_t words[] = {first, std::uint64_t(rest)...};
    mask out;
    for (unsigned i = 0; i < N && i < 64 * (1 + sizeof...(Words)); ++i) out.put(i, words[i / 64] >> (i % 64) & 1u);
    return out;
  }

  static constexpr unsigned size() { return N; }
  AIE_HOST_INLINE bool test(unsigned i) const { return data[i] != 0; }
  AIE_HOST_INLINE void set(unsigned i) { put(i, true); }
  AIE_HOST_INLINE void clear(unsigned i) { put(i, false); }
  AIE_HOST_INLINE unsigned count() const {
    unsigned n = 0;
    for (unsigned i = 0; i < N; ++i) n += test(i);
    return n;
  }
  AIE_HOST_INLINE bool empty() const { return count() == 0; }
  AIE_HOST_INLINE bool full() const { return count() == N; }
  AIE_HOST_INLINE bool operator==(const mask& other) const { return (*this ^ other).empty(); }
  AIE_HOST_INLINE mask operator&(const mask& other) const { return mask(data & other.data); }
  AIE_HOST_INLINE mask operator|(const mask& other) const { return mask(data | other.data); }
  AIE_HOST_INLINE mask operator^(const mask& other) const { return mask(data ^ other.data); }
  AIE_HOST_INLINE mask operator~() const { return mask(~data); }
  AIE_HOST_INLINE mask& operator&=(const mask& other) { return *this = *this & other; }
  AIE_HOST_INLINE mask& operator|=(const mask& other) { return *this = *this | other; }
  AIE_HOST_INLINE mask operator<<(unsigned n) const {
    mask out;
    for (unsigned i = n; i < N; ++i) out.data.set(i, data[i - n]);
    return out;
  }
  AIE_HOST_INLINE mask operator>>(unsigned n) const {
    mask out;
    for (unsigned i = n; i < N; ++i) out.data.set(i - n, data[i]);
    return out;
  }

 private:
  // One bit for each lane of a register, the first lane lowest.
  template <unsigned Lowest>
  AIE_HOST_INLINE static host::lanes<std::uint32_t, storage_t::width> bits_from() {
    return []<unsigned... I>(std::integer_sequence<unsigned, I...>) AIE_HOST_LAMBDA {
      return host::lanes<std::uint32_t, storage_t::width>{(1u << (Lowest + I))...};
    }(std::make_integer_sequence<unsigned, storage_t::width>());
  }

  AIE_HOST_INLINE void put(unsigned i, bool on) { data.set(i, on ? -1 : 0); }
};

namespace host {

// Converts flags of all ones or all zeros to flags of another width. A quarter of the width goes through half: g++ 12 converts
// lane by lane if it is one step.
template <typename To, typename From>
AIE_HOST_INLINE auto flags_as(const From& from) {
  constexpr unsigned N = lane_count<From>;
  if constexpr (sizeof(To) == sizeof(lane_of<From>)) return from;
  else return __builtin_convertvector(__builtin_convertvector(from, lanes<std::int16_t, N>), lanes<To, N>);
}
template <unsigned Bytes>
using flag_of = std::conditional_t<Bytes == 1, std::int8_t, std::conditional_t<Bytes == 2, std::int16_t, std::int32_t>>;

// The second operand of a comparison, maximum, ...: a vector unchanged, a scalar repeated in every lane.
template <typename T, unsigned N>
AIE_HOST_INLINE const vector<T, N>& as_vector(const vector<T, N>& v) {
  return v;
}
template <typename T, unsigned N, typename E>
  requires std::is_convertible_v<E, T>
AIE_HOST_INLINE vector<T, N> as_vector(E value) {
  return broadcast<T, N>(T(value));
}

// Whether a scalar has exactly the vector's element type: the API does not convert.
template <typename E, typename T>
concept ElementOf = std::is_same_v<std::remove_cvref_t<E>, T> || is_lane_of<std::remove_cvref_t<E>, T>;

// The type of an element, which may be a vector's lane.
template <typename E>
struct element {
  using type = E;
};
template <typename T, unsigned N>
struct element<lane_ref<T, N>> {
  using type = T;
};
template <typename E>
using element_t = typename element<E>::type;

// The vector type that two operands, at least one of them a vector, share.
template <typename A, typename B>
struct common;
template <typename T, unsigned N>
struct common<vector<T, N>, vector<T, N>> {
  using type = vector<T, N>;
};
template <typename T, unsigned N, ElementOf<T> E>
struct common<vector<T, N>, E> {
  using type = vector<T, N>;
};
template <typename T, unsigned N, ElementOf<T> E>
struct common<E, vector<T, N>> {
  using type = vector<T, N>;
};
template <typename A, typename B>
using common_t = typename common<std::remove_cvref_t<A>, std::remove_cvref_t<B>>::type;

}  // namespace host

template <typename A, typename B>
concept Operands = requires { typename host::common_t<A, B>; };

#define AIE_HOST_COMPARISON(name, op)                                                                      \
  template <typename A, typename B>                                                                        \
    requires Operands<A, B>                                                                                \
  AIE_HOST_INLINE auto name(const A& a, const B& b) {                                                      \
    using V = host::common_t<A, B>;                                                                        \
    using T = typename V::value_type;                                                                      \
    constexpr unsigned N = V::size();                                                                      \
    return mask<N>(host::by_registers<std::int32_t, N>(                                                    \
        [](const auto& x, const auto& y) AIE_HOST_LAMBDA { return host::flags_as<std::int32_t>(x op y); }, \
        host::wide(host::as_vector<T, N>(a)), host::wide(host::as_vector<T, N>(b))));                      \
  }
AIE_HOST_COMPARISON(lt, <)
AIE_HOST_COMPARISON(le, <=)
AIE_HOST_COMPARISON(gt, >)
AIE_HOST_COMPARISON(ge, >=)
AIE_HOST_COMPARISON(eq, ==)
AIE_HOST_COMPARISON(neq, !=)
#undef AIE_HOST_COMPARISON

template <typename A, typename B>
  requires Operands<A, B>
AIE_HOST_INLINE bool equal(const A& a, const B& b) {
  return eq(a, b).full();
}
template <typename A, typename B>
  requires Operands<A, B>
AIE_HOST_INLINE bool not_equal(const A& a, const B& b) {
  return !equal(a, b);
}

// Lane by lane: `a` where the bit is 0, `b` where it is 1.
template <typename A, typename B, unsigned N>
  requires(Operands<A, B> && host::common_t<A, B>::size() == N)
AIE_HOST_INLINE auto select(const A& a, const B& b, const mask<N>& m) {
  using V = host::common_t<A, B>;
  using T = typename V::value_type;
  using L = typename V::lane_type;
  return V(host::by_registers<L, N>(
      [](const auto& flags, const auto& zero, const auto& one) AIE_HOST_LAMBDA {
        return host::flags_as<host::flag_of<sizeof(L)>>(flags) != 0 ? one : zero;
      },
      m.data, host::as_vector<T, N>(a).data, host::as_vector<T, N>(b).data));
}

// Of two elements of one type, each repeated in every lane.
template <typename A, typename B, unsigned N>
  requires(!Vector<A> && !Vector<B> && std::is_same_v<host::element_t<A>, host::element_t<B>>)
AIE_HOST_INLINE auto select(const A& a, const B& b, const mask<N>& m) {
  using T = host::element_t<A>;
  return select(broadcast<T, N>(T(a)), broadcast<T, N>(T(b)), m);
}

}  // namespace aie
