// Lanes in the CPU's own registers: what vectors, accumulators and masks are made of.
//
// Compilers do not keep a vector type wider than a register in registers: g++ 12 puts it in memory, 16 bytes at a time, where a
// sum that grows in a loop waits for its own stores. So N lanes are as many registers as they fill, and every operation is
// unrolled over the registers: an array that a loop indexes would stay in memory too.
#pragma once

#include <cstring>
#include <utility>

#include "types.hpp"

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define AIE_HOST_SHUFFLE 1
#endif
#endif

namespace aie {
namespace host {

template <typename T, unsigned N>
struct lanes_of {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
  typedef T unaligned __attribute__((vector_size(N * sizeof(T)), aligned(1), may_alias));
};
template <typename T, unsigned N>
using lanes = typename lanes_of<T, N>::type;

template <typename V>
using lane_of = std::remove_cvref_t<decltype(std::declval<const V&>()[0])>;
template <typename V>
inline constexpr unsigned lane_count = sizeof(V) / sizeof(lane_of<V>);

#if defined(__AVX512F__)
inline constexpr unsigned register_bytes = 64;
#elif defined(__AVX__)
inline constexpr unsigned register_bytes = 32;
#else
inline constexpr unsigned register_bytes = 16;
#endif

// Lanes I of a and b; b's lanes are numbered after a's.
template <unsigned... I, typename V>
AIE_HOST_INLINE lanes<lane_of<V>, sizeof...(I)> shuffled(const V& a, const V& b) {
#if defined(AIE_HOST_SHUFFLE)
  return __builtin_shufflevector(a, b, I...);
#else
  if constexpr (sizeof...(I) == lane_count<V>) {
    return __builtin_shuffle(a, b, decltype(a < b){I...});
  } else {
    const V both[] = {a, b};
    lane_of<V> from[2 * lane_count<V>];
    std::memcpy(&from, &both, sizeof(from));
    return lanes<lane_of<V>, sizeof...(I)>{from[I]...};
  }
#endif
}
template <unsigned First, typename V, unsigned... I>
AIE_HOST_INLINE auto slice(const V& v, std::integer_sequence<unsigned, I...>) {
  return shuffled<(First + I)...>(v, v);
}
// M lanes from lane First on.
template <unsigned First, unsigned M, typename V>
AIE_HOST_INLINE auto slice(const V& v) {
  return slice<First>(v, std::make_integer_sequence<unsigned, M>());
}
template <typename V, unsigned... I>
AIE_HOST_INLINE auto side_by_side(const V& a, const V& b, std::integer_sequence<unsigned, I...>) {
  return shuffled<I...>(a, b);
}
// { a, b }.
template <typename V>
AIE_HOST_INLINE auto side_by_side(const V& a, const V& b) {
  return side_by_side(a, b, std::make_integer_sequence<unsigned, 2 * lane_count<V>>());
}

// f(0), ..., f(Count - 1), each with its number as a constant.
template <unsigned Count, typename F>
AIE_HOST_INLINE void each_number(F f) {
  [&]<unsigned... I>(std::integer_sequence<unsigned, I...>) AIE_HOST_LAMBDA {
    (f(std::integral_constant<unsigned, I>()), ...);
  }(std::make_integer_sequence<unsigned, Count>());
}

template <typename L, unsigned N>
struct registers {
  static constexpr unsigned width = N < register_bytes / sizeof(L) ? N : register_bytes / sizeof(L);
  static constexpr unsigned count = N / width;
  using part_type = lanes<L, width>;

  part_type part[count];

  registers() = default;
  // The same value in every lane; subtraction keeps the sign of a zero.
  AIE_HOST_INLINE explicit registers(L value) {
    each_number<count>([&](auto i) AIE_HOST_LAMBDA { part[i] = value - part_type{}; });
  }

  AIE_HOST_INLINE static registers load(const void* from) {
    using Unaligned = typename lanes_of<L, width>::unaligned;
    registers out;
    each_number<count>([&](auto i) AIE_HOST_LAMBDA { out.part[i] = static_cast<const Unaligned*>(from)[i]; });
    return out;
  }
  AIE_HOST_INLINE void store(void* to) const {
    using Unaligned = typename lanes_of<L, width>::unaligned;
    each_number<count>([&](auto i) AIE_HOST_LAMBDA { static_cast<Unaligned*>(to)[i] = part[i]; });
  }

  AIE_HOST_INLINE L operator[](unsigned i) const { return part[i / width][i % width]; }
  AIE_HOST_INLINE void set(unsigned i, L value) { part[i / width][i % width] = value; }

  // f(part of in...) for every part.
  template <typename F, typename... In>
  AIE_HOST_INLINE static registers each(F f, const In&... in) {
    registers out;
    each_number<count>([&](auto i) AIE_HOST_LAMBDA { out.part[i] = f(in.part[i]...); });
    return out;
  }

#define AIE_HOST_OPERATOR(op)                                                               \
  AIE_HOST_INLINE friend registers operator op(const registers& a, const registers& b) {    \
    return each([](const auto& x, const auto& y) AIE_HOST_LAMBDA { return x op y; }, a, b); \
  }
  AIE_HOST_OPERATOR(+)
  AIE_HOST_OPERATOR(-)
  AIE_HOST_OPERATOR(*)
  AIE_HOST_OPERATOR(&)
  AIE_HOST_OPERATOR(|)
  AIE_HOST_OPERATOR(^)
#undef AIE_HOST_OPERATOR
  AIE_HOST_INLINE friend registers operator-(const registers& a) {
    return each([](const auto& x) AIE_HOST_LAMBDA { return -x; }, a);
  }
  AIE_HOST_INLINE friend registers operator~(const registers& a) {
    return each([](const auto& x) AIE_HOST_LAMBDA { return ~x; }, a);
  }
  AIE_HOST_INLINE friend registers operator<<(const registers& a, int shift) {
    return each([shift](const auto& x) AIE_HOST_LAMBDA { return x << L(shift); }, a);
  }
  AIE_HOST_INLINE friend registers operator>>(const registers& a, int shift) {
    return each([shift](const auto& x) AIE_HOST_LAMBDA { return x >> L(shift); }, a);
  }
};

// ---- parts that are smaller than a register ------------------------------------------------------------------------

// Lanes i * M to i * M + M - 1. Goes through memory, which compilers optimise: each piece of lanes that were just loaded
// becomes a load of its own, into the instruction that widens it.
template <unsigned M, typename L, unsigned N>
AIE_HOST_INLINE lanes<L, M> piece(const registers<L, N>& v, unsigned i) {
  constexpr unsigned width = registers<L, N>::width;
  if constexpr (M == width) {
    return v.part[i];
  } else {
    lanes<L, M> out;
    std::memcpy(&out, reinterpret_cast<const char*>(&v.part[i * M / width]) + i * M % width * sizeof(L), sizeof(out));
    return out;
  }
}

template <unsigned Width, unsigned First, typename F>
AIE_HOST_INLINE auto put_together(const F& f) {
  using Piece = decltype(f(std::integral_constant<unsigned, First>()));
  if constexpr (Width == lane_count<Piece>) return f(std::integral_constant<unsigned, First>());
  else
    return side_by_side(put_together<Width / 2, First>(f), put_together<Width / 2, First + Width / 2 / lane_count<Piece>>(f));
}
// N lanes of L out of pieces of M: f(0), f(1), ...
template <typename L, unsigned N, unsigned M, typename F>
AIE_HOST_INLINE registers<L, N> from_pieces(const F& f) {
  registers<L, N> out;
  each_number<registers<L, N>::count>([&](auto i) AIE_HOST_LAMBDA {
    constexpr unsigned width = registers<L, N>::width;
    out.part[i] = put_together<width, i*(width / M)>(f);
  });
  return out;
}

// f(in...), as many lanes at a time as a register has of 4 bytes.
template <typename L, unsigned N, typename F, typename... In>
AIE_HOST_INLINE registers<L, N> by_registers(F f, const In&... in) {
  constexpr unsigned M = N < register_bytes / 4 ? N : register_bytes / 4;
  return from_pieces<L, N, M>([&](auto i) AIE_HOST_LAMBDA { return f(piece<M>(in, i)...); });
}

template <typename To, typename From, unsigned N>
AIE_HOST_INLINE registers<To, N> convert(const registers<From, N>& v) {
  if constexpr (std::is_same_v<To, From>) {
    return v;
  } else {
    constexpr unsigned most = register_bytes / (sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From));
    constexpr unsigned M = N < most ? N : most;
    return from_pieces<To, N, M>([&](auto i) AIE_HOST_LAMBDA { return __builtin_convertvector(piece<M>(v, i), lanes<To, M>); });
  }
}

// Part `index` of M lanes.
template <unsigned M, typename L, unsigned N>
AIE_HOST_INLINE registers<L, M> extracted(const registers<L, N>& v, unsigned index) {
  constexpr unsigned width = registers<L, N>::width;
  registers<L, M> out;
  if constexpr (M >= width)
    each_number<M / width>([&](auto i) AIE_HOST_LAMBDA { out.part[i] = v.part[index * (M / width) + i]; });
  else
    each_number<N / M>([&](auto i) AIE_HOST_LAMBDA {
      if (index == i) out.part[0] = slice<i * M % width, M>(v.part[i * M / width]);
    });
  return out;
}
template <typename L, unsigned N, unsigned M>
AIE_HOST_INLINE void insert(registers<L, N>& whole, unsigned index, const registers<L, M>& v) {
  constexpr unsigned width = registers<L, N>::width;
  if constexpr (M >= width)
    each_number<M / width>([&](auto i) AIE_HOST_LAMBDA { whole.part[index * (M / width) + i] = v.part[i]; });
  else std::memcpy(reinterpret_cast<char*>(&whole) + index * sizeof(v), &v, sizeof(v));
}
// { first, rest... }.
template <typename L, unsigned N, typename... Rest>
AIE_HOST_INLINE auto joined(const registers<L, N>& first, const Rest&... rest) {
  constexpr unsigned M = registers<L, N>::width, count = registers<L, N>::count;
  const registers<L, N> all[] = {first, rest...};
  return from_pieces<L, N * (1 + sizeof...(Rest)), M>([&](auto i) AIE_HOST_LAMBDA { return all[i / count].part[i % count]; });
}
// The same bits as lanes of another type.
template <typename To, typename From, unsigned N>
AIE_HOST_INLINE auto bits_as(const registers<From, N>& v) {
  using Result = registers<To, N * sizeof(From) / sizeof(To)>;
  static_assert(Result::count == registers<From, N>::count);
  Result out;
  each_number<Result::count>([&](auto i) AIE_HOST_LAMBDA { out.part[i] = (typename Result::part_type)v.part[i]; });
  return out;
}

// ---- bf16 and f32 --------------------------------------------------------------------------------------------------

template <unsigned N>
AIE_HOST_INLINE lanes<float, N> widen(const lanes<std::uint16_t, N>& bits) {
#if defined(__AVX2__) && !defined(__clang__)
  // g++ 12 compiles this conversion to several instructions although there is one.
#if defined(__AVX512F__)
  if constexpr (N == 16) {
    typedef short Shorts __attribute__((vector_size(32)));
    typedef int Ints __attribute__((vector_size(64)));
    return (lanes<float, 16>)(__builtin_ia32_pmovzxwd512_mask((Shorts)bits, Ints{}, -1) << 16);
  }
#endif
  if constexpr (N == 8) {
    typedef short Shorts __attribute__((vector_size(16)));
    return (lanes<float, 8>)(__builtin_ia32_pmovzxwd256((Shorts)bits) << 16);
  }
#endif
  return (lanes<float, N>)(__builtin_convertvector(bits, lanes<std::uint32_t, N>) << 16);
}
template <unsigned N>
AIE_HOST_INLINE registers<float, N> widen(const registers<std::uint16_t, N>& bits) {
  registers<float, N> out;
  constexpr unsigned M = registers<float, N>::width;
  each_number<N / M>([&](auto i) AIE_HOST_LAMBDA {
    constexpr unsigned width = registers<std::uint16_t, N>::width;
    out.part[i] = widen<M>(slice<i * M % width, M>(bits.part[i * M / width]));
  });
  return out;
}

struct is_number {
  template <typename V>
  AIE_HOST_INLINE static auto flags(const V& v) {
    return v == v;
  }
#if defined(__AVX512F__)
  AIE_HOST_INLINE static unsigned failing(const lanes<float, 16>& v) {
    return __builtin_ia32_cmpps512_mask(v, v, /* unordered */ 3, -1, 4);
  }
#endif
};

// Whether Test fails for some lane of v.
template <typename Test, unsigned N>
AIE_HOST_INLINE bool any_fails(const registers<float, N>& v) {
#if defined(__AVX512F__)
  if constexpr (N % 16 == 0) {
    unsigned failing = 0;
    each_number<N / 16>([&](auto i) AIE_HOST_LAMBDA { failing |= Test::failing(v.part[i]); });
    return failing != 0;
  }
#endif
  auto all = Test::flags(v.part[0]);
  each_number<registers<float, N>::count>([&](auto i) AIE_HOST_LAMBDA {
    if constexpr (i > 0) all = all & Test::flags(v.part[i]);
  });
#if defined(__AVX__)
  if constexpr (sizeof(all) == 32) return __builtin_ia32_movmskps256((lanes<float, 8>)all) != 0xff;
#endif
  std::uint64_t words[sizeof(all) / 8], both = -1;
  std::memcpy(&words, &all, sizeof(words));
  for (const std::uint64_t word : words) both &= word;
  return both + 1 != 0;
}

// The upper halves of words.
template <unsigned N>
AIE_HOST_INLINE registers<std::uint16_t, N> upper_halves(const registers<std::uint32_t, N>& words) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  // Two instructions for two registers; compilers make many.
  if constexpr (N % 16 == 0) {
    registers<std::uint16_t, N> out;
    each_number<N / 16>([&](auto i) AIE_HOST_LAMBDA {
      typedef int Ints __attribute__((vector_size(32)));
      const auto both = __builtin_ia32_packusdw256((Ints)(words.part[2 * i] >> 16), (Ints)(words.part[2 * i + 1] >> 16));
      const auto quarters = (lanes<std::uint64_t, 4>)both;
      out.part[i] = (lanes<std::uint16_t, 16>)shuffled<0, 2, 1, 3>(quarters, quarters);
    });
    return out;
  }
#endif
  return convert<std::uint16_t>(words >> 16);
}

// Whether the CPU rounds to bf16 in one instruction, which takes numbers below 2^-126 for zero.
template <unsigned N>
inline constexpr bool rounds_at_once =
#if defined(VNPU_BF16_DOTS)
    N == 16 || N % 32 == 0;
#else
    false;
#endif

// To nearest, ties to even, of normal numbers and infinities.
template <unsigned N>
AIE_HOST_INLINE registers<std::uint16_t, N> narrow_normal(const registers<float, N>& value) {
#if defined(VNPU_BF16_DOTS)
  registers<std::uint16_t, N> out;
  if constexpr (N == 16) {
    out.part[0] = (lanes<std::uint16_t, N>)_mm512_cvtneps_pbh((__m512)value.part[0]);
    return out;
  } else if constexpr (N % 32 == 0) {
    each_number<N / 32>([&](auto i) AIE_HOST_LAMBDA {
      const auto low = (__m512)value.part[2 * i], high = (__m512)value.part[2 * i + 1];
      out.part[i] = (lanes<std::uint16_t, 32>)_mm512_cvtne2ps_pbh(high, low);
    });
    return out;
  }
#endif
  const auto bits = bits_as<std::uint32_t>(value);
  return upper_halves(bits + registers<std::uint32_t, N>(0x7fff) + ((bits >> 16) & registers<std::uint32_t, N>(1)));
}

// The same for any lanes. Nearly always all are normal numbers; testing for the others first is shorter than choosing for each
// lane.
template <unsigned N>
AIE_HOST_INLINE registers<std::uint16_t, N> narrow_even(const registers<float, N>& value) {
  bool special = false;
#if defined(VNPU_BF16_DOTS)
  if constexpr (rounds_at_once<N>) {
    constexpr int subnormal = 0x20;
    each_number<N / 16>(
        [&](auto i) AIE_HOST_LAMBDA { special |= _mm512_fpclass_ps_mask((__m512)value.part[i], subnormal) != 0; });
  }
#endif
  if constexpr (!rounds_at_once<N>) special = any_fails<is_number>(value);
  if (!special) [[likely]]
    return narrow_normal(value);
  const auto round = [](const auto& v) AIE_HOST_LAMBDA {
    using Words = lanes<std::uint32_t, lane_count<std::remove_cvref_t<decltype(v)>>>;
    const Words bits = (Words)v, rounded = bits + 0x7fffu + ((bits >> 16) & 1u), quiet = bits | 0x400000u;
    return v == v ? rounded : quiet;
  };
  registers<std::uint32_t, N> words;
  each_number<words.count>([&](auto i) AIE_HOST_LAMBDA { words.part[i] = round(value.part[i]); });
  return upper_halves(words);
}

// f32 lanes to bf16 lanes in the core's rounding mode.
template <unsigned N>
AIE_HOST_INLINE registers<std::uint16_t, N> narrow(const registers<float, N>& value) {
  const rounding_mode mode = modes.rounding;
  if (mode == rounding_mode::conv_even) [[likely]]
    return narrow_even<N>(value);
  registers<std::uint16_t, N> out;
  for (unsigned i = 0; i < N; ++i) out.set(i, round_bf16(value[i], mode));
  return out;
}

// a * b + c of f32 lanes that hold bf16 values in a and b: the product is exact unless it is below 2^-126, so the bits are the
// same fused or not, and fused is faster. Compilers must not fuse other products, whose bits would change.
template <unsigned N>
AIE_HOST_INLINE lanes<float, N> multiply_add_bf16(const lanes<float, N>& a, const lanes<float, N>& b,
                                                  const lanes<float, N>& c) {
#if !defined(__FMA__) && !defined(__aarch64__)
  return a * b + c;
#elif __has_builtin(__builtin_elementwise_fma)
  return __builtin_elementwise_fma(a, b, c);
#elif defined(__aarch64__)
  static_assert(N == 4, "a register of ARM");
  return __builtin_aarch64_fmav4sf(a, b, c);
#else
#ifdef __AVX512F__
  if constexpr (N == 16) return __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4);
#endif
  if constexpr (N == 8) return __builtin_ia32_vfmaddps256(a, b, c);
  if constexpr (N == 4) return __builtin_ia32_vfmaddps(a, b, c);
#endif
}
// The same for bf16 lanes. Each register is widened just before its use: all of them at once would exceed the CPU's registers.
template <unsigned N>
AIE_HOST_INLINE registers<float, N> multiply_add_bf16(const registers<std::uint16_t, N>& a,
                                                      const registers<std::uint16_t, N>& b, const registers<float, N>& c) {
  constexpr unsigned M = registers<float, N>::width;
  registers<float, N> out;
  each_number<N / M>([&](auto i) AIE_HOST_LAMBDA {
    out.part[i] = multiply_add_bf16<M>(widen<M>(piece<M>(a, i)), widen<M>(piece<M>(b, i)), c.part[i]);
  });
  return out;
}

}  // namespace host
}  // namespace aie
