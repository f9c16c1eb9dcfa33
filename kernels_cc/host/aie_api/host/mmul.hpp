// aie::mmul: products of small matrix blocks, in the shapes that AIE2P has.
#pragma once

#include "blocks.hpp"
#include "elementary.hpp"
#include "vnpu/dots.h"
#if defined(VNPU_BF16_TILES)
#include "vnpu/dots_panels.h"
#endif

// A kernel requests it as on the device; the virtual NPU uses it in builds for the device's numbers.
#if defined(VNPU_BFP16) && AIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16
#define AIE_HOST_BFP16 1
#include "vnpu/bfp16.h"
#endif

namespace aie {
namespace host {

// Whether the CPU sums several products of blocks of K by N at once.
template <unsigned N, unsigned K>
inline constexpr bool has_dots = vnpu::dots::order_of(K, N) != vnpu::dots::Order::kOneByOne;

#if defined(AIE_HOST_BFP16)
// Block shapes that the device multiplies in bfp16; the others stay exact.
template <unsigned M, unsigned K, unsigned N, typename A, typename B>
inline constexpr bool is_bfp16_product =
    std::is_same_v<A, bfloat16> && std::is_same_v<B, bfloat16> && (M == 8 || M == 4) && K == 8 && N == 8;
#endif

// How the sums of products of a shape are stored.
enum class kept { rows, quads, dots, goes };
template <unsigned M, unsigned K, unsigned N, typename A, typename B>
constexpr kept sums_kind() {
  constexpr auto order = vnpu::dots::order_of(K, N);
#if defined(AIE_HOST_BFP16)
  if (is_bfp16_product<M, K, N, A, B>) return kept::rows;
#endif
  if (!exact_product<A, B>) return kept::rows;
  if (order == vnpu::dots::Order::kTiles) return kept::goes;
  if (M != 8 || K != 8 || N != 8 || order == vnpu::dots::Order::kOddPairs) return kept::rows;
  return order == vnpu::dots::Order::kPairs ? kept::dots : kept::quads;
}

template <typename L, unsigned M, unsigned N, kept How>
struct sums {
  using type = block<L, M, N>;
};
template <typename L, unsigned M, unsigned N>
struct sums<L, M, N, kept::quads> {
  using type = quads;
};

// In a class of vnpu::dots.
template <typename Sums, unsigned Size>
struct of_dots : Sums {
  of_dots() = default;
  AIE_HOST_INLINE explicit of_dots(const registers<float, Size>& rows) : Sums((const float*)&rows) {}
  AIE_HOST_INLINE registers<float, Size> lanes_of_rows() const {
    registers<float, Size> rows;
    this->store((float*)&rows);
    return rows;
  }
};
#if defined(VNPU_BF16_PAIRS)
template <typename L, unsigned M, unsigned N>
struct sums<L, M, N, kept::dots> {
  using type = of_dots<vnpu::dots::pairs::Block8x8, M * N>;
};
#endif
#if defined(VNPU_BF16_TILES)
template <typename L, unsigned M, unsigned N>
struct sums<L, M, N, kept::goes> {
  using type = of_dots<vnpu::dots::tiles::AccumulationGroup<M, N>, M * N>;
};
#endif

template <unsigned M, unsigned K, unsigned N>
constexpr bool one_of_shapes(std::initializer_list<std::array<unsigned, 3>> shapes) {
  for (const auto& s : shapes)
    if (s[0] == M && s[1] == K && s[2] == N) return true;
  return false;
}

// The tag of the accumulator of a block product; void if AIE2P has no product of this shape with two dense row-major factors
// (aie_api detail/aie2p/mmul_*.hpp; 8-bit 4x16x8 and 8x16x8, 16 x 8-bit 2x16x8 and 4x16x8 and 16-bit 2x8x8 and 4x8x8 exist for
// a sparse B only). Only the width of operands counts: int8 and uint8 are equivalent.
template <unsigned M, unsigned K, unsigned N, typename A, typename B>
constexpr auto aie2p_tag() {
  constexpr unsigned a = sizeof(A), b = sizeof(B);
  constexpr auto is = [](std::initializer_list<std::array<unsigned, 3>> shapes) { return one_of_shapes<M, K, N>(shapes); };
  if constexpr (is_float<A> || is_float<B>) {
    constexpr bool bf16 = std::is_same_v<A, bfloat16> && std::is_same_v<B, bfloat16>;
    constexpr bool f32 = std::is_same_v<A, float> && std::is_same_v<B, float>;
    if constexpr (bf16 && is({{8, 8, 4}, {4, 8, 8}, {4, 8, 4}, {8, 1, 8}, {8, 8, 8}})) return accfloat();
    else if constexpr (f32 && is({{4, 8, 4}, {4, 1, 4}, {4, 1, 8}})) return accfloat();
  } else if constexpr (a == 1 && b == 1) {
    if constexpr (is({{2, 8, 8}, {4, 8, 8}, {8, 8, 8}})) return acc32();
  } else if constexpr (a == 1 && b == 2) {
    if constexpr (is({{8, 2, 8}})) return acc32();
    else if constexpr (is({{4, 4, 8}})) return acc64();
  } else if constexpr (a == 2 && b == 1) {
    if constexpr (is({{4, 4, 8}, {8, 4, 8}})) return acc32();
    else if constexpr (is({{4, 8, 8}})) return acc64();
  } else if constexpr (a == 2 && b == 2) {
    if constexpr (is({{4, 2, 8}, {8, 2, 8}, {8, 1, 8}})) return acc32();
    else if constexpr (is({{2, 4, 8}, {4, 4, 8}})) return acc64();
  } else if constexpr (a == 2 && b == 4) {
    if constexpr (is({{4, 4, 8}})) return acc64();
  } else if constexpr (a == 4 && b == 2) {
    if constexpr (is({{4, 2, 8}, {2, 4, 8}, {4, 4, 8}, {4, 1, 8}})) return acc64();
  } else {
    if constexpr (is({{4, 2, 8}, {4, 4, 8}, {4, 4, 4}, {8, 2, 8}, {4, 1, 8}})) return acc64();
  }
}

// The same with the shapes that the older AIE2 has besides (aie_api detail/aie2/mmul_*.hpp); a kernel that is compiled for it
// has __AIEARCH__ 20.
template <unsigned M, unsigned K, unsigned N, typename A, typename B>
constexpr auto mmul_tag() {
#if defined(__AIEARCH__) && __AIEARCH__ == 20
  constexpr unsigned a = sizeof(A), b = sizeof(B);
  constexpr auto is = [](std::initializer_list<std::array<unsigned, 3>> shapes) { return one_of_shapes<M, K, N>(shapes); };
  if constexpr (is_float<A> || is_float<B>) {
    if constexpr (std::is_same_v<A, bfloat16> && std::is_same_v<B, bfloat16> && is({{4, 16, 8}})) return accfloat();
    else return aie2p_tag<M, K, N, A, B>();
  } else if constexpr (a == 1 && b == 1 && is({{4, 8, 4}, {4, 16, 4}, {8, 8, 4}, {2, 16, 8}, {4, 16, 8}, {1, 16, 8}})) {
    return acc32();
  } else if constexpr (a == 1 && b == 2 && is({{4, 4, 4}})) {
    return acc64();
  } else if constexpr (a == 2 && b == 1 && is({{4, 4, 4}, {8, 4, 4}, {4, 8, 4}})) {
    return acc32();
  } else if constexpr (a == 2 && b == 2 && is({{4, 4, 4}})) {
    return acc64();
  } else if constexpr (a == 2 && b == 4 && is({{2, 4, 8}, {4, 4, 4}, {4, 2, 8}})) {
    return acc64();
  } else if constexpr (a == 4 && b == 2 && is({{4, 4, 4}, {4, 2, 4}})) {
    return acc64();
  } else if constexpr (a == 4 && b == 4 && is({{4, 2, 4}, {8, 2, 4}})) {
    return acc64();
  } else {
    return aie2p_tag<M, K, N, A, B>();
  }
#else
  return aie2p_tag<M, K, N, A, B>();
#endif
}

#if defined(AIE_HOST_BFP16)
// The conversion to bfp16 in any rounding mode of the core; the usual mode has a faster function.
struct CoreRounding {
  static vnpu::bfp16::Row round(const vnpu::bfp16::Row& v, const vnpu::bfp16::Ints& exponent) {
    const vnpu::bfp16::Row step = (vnpu::bfp16::Row)exponent * 0x1p-6f;
    vnpu::bfp16::Row out;
    for (unsigned i = 0; i < vnpu::bfp16::kBlock; ++i) out[i] = round_to_step(v[i], step[i]);
    return out;
  }

 private:
  static float round_to_step(float v, float step) {
    const float steps = __builtin_fabsf(v) / step, whole = __builtin_truncf(steps);
    if (!(steps < 256)) return v;  // an infinity or a NaN, whose block becomes NaN anyway
    const bool negative = __builtin_signbit(v), odd = unsigned(whole) & 1;
    const float moved = whole + float(round_up<unsigned>(modes.rounding, steps - whole, 0.5f, odd, negative));
    return (negative ? -moved : moved) * step;
  }
};
#endif

// Whether the next product of integers begins at zero, which some kernels set themselves.
template <bool of_integers>
struct zero_flag {};
template <>
struct zero_flag<true> {
  bool zero = false;
};

}  // namespace host

template <unsigned M_, unsigned K_, unsigned N_, typename TypeA, typename TypeB = TypeA, typename Tag = accauto>
struct mmul : host::zero_flag<!host::is_float<TypeA> && !host::is_float<TypeB>> {
  using tag = decltype(host::mmul_tag<M_, K_, N_, TypeA, TypeB>());
  static_assert(
      !std::is_void_v<tag>,
      "AIE2P has no aie::mmul of this shape for these types. It has (M x K x N): bfloat16 8x8x4, 4x8x8, 4x8x4, "
      "8x1x8, 8x8x8; float 4x8x4, 4x1x4, 4x1x8; int8 2x8x8, 4x8x8, 8x8x8; int16 4x2x8, 8x2x8, 2x4x8, 4x4x8, "
      "8x1x8; int32 4x2x8, 4x4x8, 4x4x4, 8x2x8, 4x1x8; AIE2's further shapes need __AIEARCH__ 20; a sparse B is not in this host subset");
  static_assert(std::is_same_v<Tag, accauto> || std::is_void_v<tag> || std::is_same_v<Tag, tag>,
                "aie::mmul: this shape accumulates in another tag on AIE2P; leave the tag out (accauto)");

  static constexpr unsigned M = M_, K = K_, N = N_;
  static constexpr unsigned size_A = M * K, size_B = K * N, size_C = M * N;
  static constexpr unsigned size() { return size_C; }

  using accum_type = accum<tag, size_C>;
  using lane_type = typename accum_type::lane_type;

  mmul() = default;
  AIE_HOST_INLINE mmul(const accum_type& acc) : sums_(acc.data) {}
  template <typename T>
  AIE_HOST_INLINE mmul(const vector<T, size_C>& v, int shift = 0) : mmul(accum_type(v, shift)) {}

  AIE_HOST_INLINE accum_type to_accum() const { return accum_type(sums_.lanes_of_rows()); }
  AIE_HOST_INLINE operator accum_type() const { return to_accum(); }
  template <typename T>
  AIE_HOST_INLINE vector<T, size_C> to_vector(int shift = 0) const {
    return to_accum().template to_vector<T>(shift);
  }

  // C = A B, blocks row by row. Each element of C is summed in the order of K.
  AIE_HOST_INLINE void mul(const vector<TypeA, size_A>& a, const vector<TypeB, size_B>& b) {
    sums_ = {};
    mac(a, b);
  }
  // C += A B.
  AIE_HOST_INLINE void mac(const vector<TypeA, size_A>& a, const vector<TypeB, size_B>& b) {
    constexpr host::kept how = host::sums_kind<M, K, N, TypeA, TypeB>();
    if constexpr (requires { this->zero; }) {
      if (this->zero) sums_ = {};
      this->zero = false;
    }
    if constexpr (how == host::kept::dots || how == host::kept::goes) sums_.multiply_add(&a.data, &b.data);
    else if constexpr (how == host::kept::quads) sums_.multiply_add(a.data, b.data);
    else mac_rows(a, b);
  }

#if defined(VNPU_BF16_TILES) && !defined(AIE_HOST_BFP16)
  // Not in the AIE API: C = A B, or C += A B if `adds`, for whole matrices in panels of 8 columns, with the bits of their
  // blocks added one after the other. Rows: of A and C; Steps, Columns: of blocks of 8; transposed: B has one row for each
  // column of C. seen: one bit per step of k, in words of 32, or null; rows of B without their bit count as zeros.
  template <unsigned Rows, unsigned Steps, unsigned Columns, bool transposed, bool adds>
  static void multiply_panels(const TypeA* a, const TypeB* b, const std::uint32_t* seen, float* c) {
    static_assert(M == 8 && K == 8 && N == 8 && host::exact_product<TypeA, TypeB>, "panels are of 8x8x8 blocks of bfloat16");
    vnpu::dots::tiles::Panels<Rows, Steps, Columns, transposed, adds>::multiply(a, b, seen, c);
  }
#endif

 private:
  AIE_HOST_INLINE void mac_rows(const vector<TypeA, size_A>& a, const vector<TypeB, size_B>& b) {
#if defined(AIE_HOST_BFP16)
    if constexpr (host::is_bfp16_product<M, K, N, TypeA, TypeB>) {
      const auto x = a.data;
      const auto y = b.data;
      const auto left = (const std::uint16_t*)&x, right = (const std::uint16_t*)&y;
      host::report_product(left, M, right);
      using vnpu::bfp16::multiply_add, vnpu::bfp16::NearestEven;
      in_rows([&](auto& rows) AIE_HOST_LAMBDA {
        if (get_rounding() == rounding_mode::conv_even) [[likely]]
          multiply_add<NearestEven, M>(left, right, rows);
        else multiply_add<host::CoreRounding, M>(left, right, rows);
      });
      return;
    }
#endif
    if constexpr (host::exact_product<TypeA, TypeB> && host::has_dots<N, K>) {
      const auto x = a.data;
      const auto y = b.data;
      in_rows([&](auto& rows) AIE_HOST_LAMBDA {
        vnpu::dots::multiply_add<vnpu::dots::order_of(K, N), M, N, K>((const std::uint16_t*)&x, (const std::uint16_t*)&y, rows,
                                                                      1);
      });
      return;
    }
    sums_.template multiply_add<host::exact_product<TypeA, TypeB>, K>(host::factor<tag, size_A>(a),
                                                                      host::factor<tag, size_B>(b));
  }

  // f(rows) on the sums as vectors of a row each.
  template <typename F>
  AIE_HOST_INLINE void in_rows(F f) {
    host::lanes<lane_type, N> rows[M];
    std::memcpy(&rows, &sums_.row, sizeof(rows));
    f(rows);
    std::memcpy(&sums_.row, &rows, sizeof(rows));
  }

  typename host::sums<lane_type, M, N, host::sums_kind<M, K, N, TypeA, TypeB>()>::type sums_;
};

}  // namespace aie
