// What kernels of mlir-air call besides our own: look-up tables, block floats, lanes of 4 bits, shuffles, AIE2's blocks.
#define __AIEARCH__ 20
#include <lut_based_ops.h>

extern "C" {
void exponentials(const bfloat16* in, float* out) { aie::store_v(out, getExpBf16(aie::load_v<16>(in)).to_vector<float>()); }
void inverse(const float* in, bfloat16* out) {
  for (int i = 0; i < 16; ++i) out[i] = getInvBf16(in[i]);
}
void saturated(const int16* in, bfloat16* out) {
  const aie::lut<4, bfloat16> table(256, exp_flut_ab, exp_flut_cd);
  const aie::parallel_lookup<int16, aie::lut<4, bfloat16>> lookup(table, 1, 3);
  aie::store_v(out, lookup.fetch(aie::load_v<16>(in)));
}
void looked_up(const int16* values, const int16* in, int16* out) {
  const aie::lut<4, int16> table(64, values, values);
  const aie::parallel_lookup<int16, aie::lut<4, int16>> lookup(table, 0);
  aie::store_v(out, lookup.fetch(aie::load_v<16>(in)));
}
void to_blocks(const float* in, std::uint8_t* out) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  aie::block_vector_output_buffer_stream<bfp16ebs8, 64> stream(reinterpret_cast<bfp16ebs8*>(out));
  stream << aie::accum<accfloat, 64>(aie::load_v<64>(in)).to_vector<bfp16ebs8>();
}
void block_products(const std::uint8_t* a, const std::uint8_t* b, float* c) {
  aie::block_vector_input_buffer_stream<bfp16ebs8, 64> left(reinterpret_cast<const bfp16ebs8*>(a)),
      right(reinterpret_cast<const bfp16ebs8*>(b));
  aie::store_v(c, mac_8x8_8x8T(left.pop(), right.pop(), v64accfloat(aie::load_v<64>(c))).to_vector<float>());
}
void unpack(const uint8* in, int8* is_signed, int8* is_unsigned) {
  const auto lanes = aie::load_v<16>(in).cast_to<uint4>();
  aie::store_v(is_signed, lanes.unpack_sign<int8>(true));
  aie::store_v(is_unsigned, lanes.unpack_sign<int8>(false));
}
void turn(const int16* in, int16* out) {
  aie::store_v(out, shuffle(shuffle(aie::load_v<32>(in), shuffle_T16_8x2), shuffle_T16_4x8));
}
void sum_of_products(const int16* coefficients, const int16* data, int32* out) {
  const auto c = aie::load_v<16>(coefficients), x = aie::load_v<16>(data), y = aie::load_v<16>(data + 16);
  const auto acc = aie::accumulate<16>(c, 2, x, y);
  aie::store_v(out, aie::accumulate<16>(acc, c, 0, x).to_vector<int32>());
}
void row_of_blocks(const int8* a, const int8* b, int32* c) {
  aie::mmul<1, 16, 8, int8, int8, acc32> sums;
  sums.mul(aie::load_v<16>(a), aie::load_v<128>(b));
  sums.zero = true;
  sums.mac(aie::load_v<16>(a), aie::load_v<128>(b));
  sums.mac(aie::load_v<16>(a), aie::load_v<128>(b));
  aie::store_v(c, sums.to_vector<int32>());
}
}
