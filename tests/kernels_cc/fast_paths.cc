// Functions of the host AIE API that have a fast path for the CPU's instructions.
#include <aie_api/aie.hpp>

template <unsigned N>
static void exp2(const float* in, bfloat16* out, int count) {
  for (int i = 0; i < count; i += N) aie::store_v(out + i, aie::exp2<bfloat16>(aie::load_v<N>(in + i)));
}

template <unsigned N>
static void round_to_bf16(const float* in, bfloat16* out, int count) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (int i = 0; i < count; i += N)
    aie::store_v(out + i, aie::accum<accfloat, N>(aie::load_v<N>(in + i)).template to_vector<bfloat16>());
}

extern "C" {

int has_dots() {
#if defined(VNPU_BF16_DOTS)
  return 1;
#else
  return 0;
#endif
}

void exp2_of_16(const float* in, bfloat16* out, int count) { exp2<16>(in, out, count); }
void exp2_of_32(const float* in, bfloat16* out, int count) { exp2<32>(in, out, count); }
void round_16_to_bf16(const float* in, bfloat16* out, int count) { round_to_bf16<16>(in, out, count); }
void round_32_to_bf16(const float* in, bfloat16* out, int count) { round_to_bf16<32>(in, out, count); }

// c += a b, of 8 x 8 blocks.
void block_8x8(const bfloat16* a, const bfloat16* b, float* c) {
  aie::mmul<8, 8, 8, bfloat16, bfloat16, accfloat> block(aie::load_v<64>(c));
  block.mac(aie::load_v<64>(a), aie::load_v<64>(b));
  aie::store_v(c, block.to_vector<float>());
}

// The same with the first four columns of b and c.
void block_8x4(const bfloat16* a, const bfloat16* b, float* c) {
  aie::mmul<8, 8, 4, bfloat16, bfloat16, accfloat> block(aie::load_v<32>(c));
  block.mac(aie::load_v<64>(a), aie::load_v<32>(b));
  aie::store_v(c, block.to_vector<float>());
}

// Transposes an 8 x 8 matrix.
void turn(const bfloat16* in, bfloat16* out) { aie::store_v(out, aie::transpose(aie::load_v<64>(in), 8, 8)); }

// Products of 64 lanes summed lane by lane, and of them: the sum and the maximum of all lanes, and those of a that b exceeds.
void lanes_of_64(const bfloat16* a, const bfloat16* b, float* sums, float* folded, float* chosen) {
  aie::accum<accfloat, 64> acc = aie::zeros<accfloat, 64>();
  for (int i = 0; i < 3; ++i) acc = aie::mac(acc, aie::load_v<64>(a + i * 64), aie::load_v<64>(b + i * 64));
  const aie::vector<float, 64> lanes = acc.to_vector<float>();
  aie::store_v(sums, lanes);
  folded[0] = aie::reduce_add(lanes);
  folded[1] = aie::reduce_max(lanes);
  folded[2] = aie::reduce_min(lanes.extract<8>(5));
  const auto x = aie::load_v<64>(a), y = aie::load_v<64>(b);
  aie::store_v(chosen, aie::accum<accfloat, 64>(aie::select(x, y, aie::lt(x, y))).to_vector<float>());
}

// Four vectors of 8 lanes joined to one, and two of 16.
void join(const float* in, float* four, float* two) {
  aie::store_v(four, aie::concat(aie::load_v<8>(in), aie::load_v<8>(in + 8), aie::load_v<8>(in + 16), aie::load_v<8>(in + 24)));
  aie::store_v(two, aie::concat(aie::load_v<16>(in), aie::load_v<16>(in + 16)));
}
}
