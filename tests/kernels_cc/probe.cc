// Functions of the host AIE API, reachable from Python. Every pointer is one vector long unless the name says otherwise.
#include <aie_api/aie.hpp>

template <unsigned N, typename T, typename F>
static void unary(const T* a, T* out, F f) {
  aie::store_v(out, f(aie::load_v<N>(a)));
}
template <unsigned N, typename T, typename F>
static void binary(const T* a, const T* b, T* out, F f) {
  aie::store_v(out, f(aie::load_v<N>(a), aie::load_v<N>(b)));
}

#define BINARY(name, T, N, expression)                                             \
  void name(const T* a, const T* b, T* out) {                                      \
    binary<N>(a, b, out, [](const auto& x, const auto& y) { return expression; }); \
  }
#define UNARY(name, T, N, expression)                           \
  void name(const T* a, T* out) {                               \
    unary<N>(a, out, [](const auto& x) { return expression; }); \
  }

template <unsigned M, unsigned K, unsigned N, typename T, typename R>
static void block_product(const T* a, const T* b, R* out) {
  using Block = aie::mmul<M, K, N, T>;
  Block c;
  c.mul(aie::load_v<Block::size_A>(a), aie::load_v<Block::size_B>(b));
  c.mac(aie::load_v<Block::size_A>(a), aie::load_v<Block::size_B>(b));
  aie::store_v(out, c.template to_vector<R>());
}

static auto unzipped_second(const std::pair<aie::vector<int16, 32>, aie::vector<int16, 32>>& zipped) {
  return aie::interleave_unzip(zipped.first, zipped.second, 2).second;
}

extern "C" {
void set_modes(unsigned rounding, unsigned saturation) {
  aie::set_rounding(aie::rounding_mode(rounding));
  aie::set_saturation(aie::saturation_mode(saturation));
}
unsigned rounding() { return unsigned(aie::get_rounding()); }

BINARY(add_bf16, bfloat16, 32, aie::add(x, y))
BINARY(sub_bf16, bfloat16, 16, aie::sub(x, y))
BINARY(mul_bf16, bfloat16, 64, aie::mul(x, y).template to_vector<bfloat16>())
BINARY(mac_f32, float, 16, aie::mac(aie::mul(x, y), x, x).template to_vector<float>())
BINARY(msc_f32, float, 16, aie::msc(aie::mul(x, y), y, y).template to_vector<float>())
BINARY(negmul_f32, float, 8, aie::negmul(x, y).template to_vector<float>())
BINARY(max_bf16, bfloat16, 32, aie::max(x, y))
BINARY(min_f32, float, 16, aie::min(x, y))
BINARY(select_lt_i32, int32, 16, aie::select(x, y, aie::lt(x, y)))
BINARY(select_not_ge_bf16, bfloat16, 16, aie::select(x, y, ~aie::ge(x, y)))
BINARY(select_eq_or_first_f32, float, 16, aie::select(x, y, aie::eq(x, y) | aie::mask<16>::from_uint32(3)))
BINARY(select_elements_f32, float, 16, aie::select(x[1], y[2], aie::lt(x, y)))
BINARY(zip_first, int16, 32, aie::interleave_zip(x, y, 4).first)
BINARY(zip_second, int16, 32, aie::interleave_zip(x, y, 4).second)
BINARY(zip_unzip, int16, 32, unzipped_second(aie::interleave_zip(x, y, 2)))
BINARY(up_fill, int16, 32, aie::shuffle_up_fill(x, y, 5))
BINARY(down_fill, int16, 32, aie::shuffle_down_fill(x, y, 5))
UNARY(reverse_lanes, int16, 32, aie::reverse(x))
UNARY(up_rotate, int16, 32, aie::shuffle_up_rotate(x, 7))
UNARY(down_rotate, int16, 32, aie::shuffle_down_rotate(x, 7))
UNARY(up_replicate, int16, 32, aie::shuffle_up_replicate(x, 3))
UNARY(down_replicate, int16, 32, aie::shuffle_down_replicate(x, 3))
UNARY(transpose_4x8, int16, 32, aie::transpose(x, 4, 8))
UNARY(even_odd_chunks, int16, 32, aie::concat(aie::filter_even(x, 2), aie::filter_odd(x, 2)))
UNARY(even_odd_4_f32, float, 32, aie::concat(aie::filter_even(x, 4), aie::filter_odd(x, 4)))
UNARY(even_odd_2_f32, float, 16, aie::concat(aie::filter_even(x, 2), aie::filter_odd(x, 2)))
UNARY(even_odd_1_f32, float, 8, aie::concat(aie::filter_even(x), aie::filter_odd(x)))
UNARY(even_odd_1_i32, int32, 16, aie::concat(aie::filter_even(x), aie::filter_odd(x)))
UNARY(swap_halves, bfloat16, 32, aie::concat(x.template extract<16>(1), x.template extract<16>(0)))
UNARY(scaled_and_shifted, float, 16, aie::add(aie::mul(x, 2.0f), 1.0f).template to_vector<float>())
UNARY(magnitude_f32, float, 32, aie::abs(x))
UNARY(magnitude_bf16, bfloat16, 32, aie::abs(x))
UNARY(magnitude_i32, int32, 32, aie::abs(x))
UNARY(inverse_f32, float, 16, aie::inv(x))
UNARY(inverse_bf16, bfloat16, 32, aie::inv(x))
UNARY(root_f32, float, 8, aie::sqrt(x))
UNARY(inverse_root_bf16, bfloat16, 32, aie::invsqrt(x))

void f32_to_bf16(const float* a, bfloat16* out) {  // 32 lanes
  aie::store_v(out, aie::accum<accfloat, 32>(aie::load_v<32>(a)).to_vector<bfloat16>());
}
void scalar_to_bf16(const float* a, bfloat16* out) { *out = bfloat16(*a); }
void spread_scalar(const float* a, float* out) { aie::store_v(out, aie::broadcast<float, 16>(*a)); }
void constant_to_bf16(bfloat16* out) {
  constexpr bfloat16 third = 1.0f / 3.0f;
  *out = third;
}
void exp2_lanes(const float* a, bfloat16* out, int n) {
  for (int i = 0; i < n; i += 16) aie::store_v(out + i, aie::exp2<bfloat16>(aie::load_v<16>(a + i)));
}
void tanh_lanes(const float* a, bfloat16* out) { aie::store_v(out, aie::tanh<bfloat16>(aie::load_v<16>(a))); }
void sums(const float* a, float* out) {  // 16 lanes; sum, max, min, then two sums at once
  const auto v = aie::load_v<16>(a);
  out[0] = aie::reduce_add(v);
  out[1] = aie::reduce_max(v);
  out[2] = aie::reduce_min(v);
  const auto both = aie::reduce_add_v(v, aie::add(v, v));
  out[3] = both.get(0);
  out[4] = both.get(1);
}
void shift_down(const int32* a, int16* out, int shift) {  // 16 lanes
  aie::store_v(out, aie::accum<acc64, 16>(aie::load_v<16>(a)).to_vector<int16>(shift));
}
void fixed_and_back(const float* a, int32* fixed, float* back, int shift) {  // 16 lanes
  const auto v = aie::to_fixed<int32>(aie::load_v<16>(a), shift);
  aie::store_v(fixed, v);
  aie::store_v(back, aie::to_float<float>(v, shift));
}
void unaligned_and_floor(const bfloat16* a, bfloat16* out) {  // 48 lanes to 3 x 16
  aie::store_v(out, aie::load_unaligned_v<16>(a + 3));
  aie::store_v(out + 16, aie::load_floor_v<16>(a + 21));
  aie::store_unaligned_v(out + 32, aie::load_v<16>(a + 16));
}
void double_by_iterators(const bfloat16* a, bfloat16* out) {  // 48 lanes
  auto from = aie::cbegin_vector<16>(a);
  auto to = aie::begin_restrict_vector<16>(out);
  for (int i = 0; i < 3; ++i) {
    const aie::vector<bfloat16, 16> v = *from++;
    *to++ = aie::add(v, v);
  }
}
unsigned mask_words(unsigned word) {
  aie::mask<16> m = aie::mask<16>::from_uint32(word);
  m.set(3);
  m.clear(0);
  unsigned back = 0;
  for (unsigned i = 0; i < 16; ++i) back |= unsigned((m << 1).test(i)) << i;
  return back | m.count() << 16;
}
void mmul_8x8x8(const bfloat16* a, const bfloat16* b, float* out) { block_product<8, 8, 8>(a, b, out); }
void mmul_8x8x4(const bfloat16* a, const bfloat16* b, float* out) { block_product<8, 8, 4>(a, b, out); }
void mmul_4x8x8(const bfloat16* a, const bfloat16* b, float* out) { block_product<4, 8, 8>(a, b, out); }
void mmul_4x8x4(const bfloat16* a, const bfloat16* b, float* out) { block_product<4, 8, 4>(a, b, out); }
void mmul_8x1x8(const bfloat16* a, const bfloat16* b, float* out) { block_product<8, 1, 8>(a, b, out); }
void mmul_f32_4x8x4(const float* a, const float* b, float* out) { block_product<4, 8, 4>(a, b, out); }
void mmul_i8_8x8x8(const int8* a, const int8* b, int32* out) { block_product<8, 8, 8>(a, b, out); }
void mmul_i16_4x4x8(const int16* a, const int16* b, int32* out) { block_product<4, 4, 8>(a, b, out); }
}
