// Matrix times vector for rows of W too long for a core's memory: a row arrives in pieces, and its partial sums stay in memory
// between them. bf16 in, f32 accumulation, bf16 out.
//
// The sum is that of mv.cc bit for bit: 64 partial sums of elements 64 apart in the order of the row, added up in the same way
// at the end. The two are separate files because a program that builds a file twice renames all of its symbols.

#include <cstdint>

#include <aie_api/aie.hpp>

namespace {

constexpr unsigned lanes = 64;
constexpr unsigned half = lanes / 2;

using Half = aie::accum<accfloat, half>;

// The sum is rounded to bf16 as a vector, because the rounding mode governs vector conversions.
inline bfloat16 rounded(float sum) {
  aie::accum<accfloat, 16> acc(aie::broadcast<float, 16>(sum));
  return acc.to_vector<bfloat16>().get(0);
}

}  // namespace

extern "C" {

// sums[i] += w[j] * x[first + j] for every j < k, in lane i = j % 64. w: k bf16, a piece of a row; x: the whole vector; sums:
// 64 f32, which the piece with first = 0 clears. k and first are multiples of 64.
// overwrites: sums if first == 0
void matvec_piece_bf16_f32(uint32_t k, uint32_t first, const bfloat16* __restrict w, const bfloat16* __restrict x,
                           float* __restrict sums) {
  aie::accum<accfloat, lanes> acc = aie::zeros<accfloat, lanes>();
  if (first != 0) acc = aie::concat(Half(aie::load_v<half>(sums)), Half(aie::load_v<half>(sums + half)));
  auto weights = aie::cbegin_restrict_vector<lanes>(w);
  for (uint32_t j = 0; j < k; j += lanes) acc = aie::mac(acc, *weights++, aie::load_v<lanes>(x + first + j));
  aie::store_v(sums, acc.extract<half>(0).to_vector<float>());
  aie::store_v(sums + half, acc.extract<half>(1).to_vector<float>());
}

// y[row] = the 64 sums added up, rounded.
// overwrites: y[row : row + 1]
void matvec_row_f32_bf16(uint32_t row, const float* __restrict sums, bfloat16* __restrict y) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const Half total = aie::add(Half(aie::load_v<half>(sums)), Half(aie::load_v<half>(sums + half)));
  y[row] = rounded(aie::reduce_add(total.to_vector<float>()));
}
}
