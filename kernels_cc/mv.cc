// Matrix times vector: y = W x for a few rows of W at a time. bf16 in, f32 accumulation, bf16 out.
//
// A program that needs two variants side by side builds this file twice and renames the symbols of the second build,
// for example -DDIM_M_OUTPUT=2 -Dmatvec_vectorized_bf16_bf16=dg_matvec_vectorized_bf16_bf16
// -Dlinalg_fill_bf16=dg_linalg_fill_bf16.

#include <cstdint>

#include <aie_api/aie.hpp>

// Rows of the output tile that linalg_fill_bf16 clears.
#ifndef DIM_M_OUTPUT
#define DIM_M_OUTPUT 8
#endif

namespace {

constexpr unsigned lanes = 64;

// The sum is rounded to bf16 as a vector, because the rounding mode governs vector conversions.
inline bfloat16 rounded(float sum) {
  aie::accum<accfloat, 16> acc(aie::broadcast<float, 16>(sum));
  return acc.to_vector<bfloat16>().get(0);
}

}  // namespace

extern "C" {

// y[row_offset + i] = sum over j of w[i, j] * x[j], i < m, j < k. w: m x k bf16 row-major, x: k bf16, y: bf16.
// k is a multiple of 64.
// overwrites: y[row_offset : row_offset + m]
void matvec_vectorized_bf16_bf16(uint32_t m, uint32_t k, uint32_t row_offset, const bfloat16* __restrict w,
                                 const bfloat16* __restrict x, bfloat16* __restrict y) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  y += row_offset;
  auto weights = aie::cbegin_restrict_vector<lanes>(w);
  for (uint32_t row = 0; row < m; ++row) {
    aie::accum<accfloat, lanes> acc = aie::zeros<accfloat, lanes>();
    for (uint32_t j = 0; j < k; j += lanes) acc = aie::mac(acc, *weights++, aie::load_v<lanes>(x + j));
    const aie::accum<accfloat, 32> half = aie::add(acc.extract<32>(0), acc.extract<32>(1));
    y[row] = rounded(aie::reduce_add(half.to_vector<float>()));
  }
}

// y[i] = 0, i < DIM_M_OUTPUT. Our own GEMV writes every row and needs no clearing; programs that clear first, such as
// mlir-air's, find both functions in one object.
void linalg_fill_bf16(bfloat16* y) {
  for (unsigned i = 0; i < DIM_M_OUTPUT; ++i) y[i] = bfloat16(0.0f);
}
}
