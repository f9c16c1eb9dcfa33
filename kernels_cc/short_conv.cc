// A short causal convolution, each column for itself: out[r, c] = sum over t of rows[r, t, c] weight[t, c]. A row comes with
// the rows before it that it needs, the oldest first, so that rows do not depend on each other.
//
// Products of bf16 are exact in f32; they are summed from the oldest tap on, and the sum is rounded once.

#include <cstdint>

#include <aie_api/aie.hpp>

#ifndef CONV_TAPS
#define CONV_TAPS 3
#endif

namespace {

constexpr unsigned lanes = 16;
constexpr int32_t taps = CONV_TAPS;

}  // namespace

extern "C" {

// rows: count x taps x cols, weight: taps x cols, out: count x cols, bf16. cols is a multiple of 16.
// overwrites: out[0 : count * cols]
void short_conv_bf16(const bfloat16* __restrict rows, const bfloat16* __restrict weight, bfloat16* __restrict out,
                     int32_t count, int32_t cols) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  for (int32_t row = 0; row < count; ++row) {
    for (int32_t i = 0; i < cols; i += lanes) {
      aie::accum<accfloat, lanes> sum = aie::mul(aie::load_v<lanes>(rows + i), aie::load_v<lanes>(weight + i));
      for (int32_t at = i + cols; at < taps * cols; at += cols) {
        sum = aie::mac(sum, aie::load_v<lanes>(rows + at), aie::load_v<lanes>(weight + at));
      }
      aie::store_v(out + i, sum.to_vector<bfloat16>());
    }
    rows += taps * cols;
    out += cols;
  }
}
}
