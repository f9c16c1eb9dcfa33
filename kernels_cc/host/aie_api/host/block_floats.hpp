// Vectors of block floating point in memory and registers: bfp16ebs8, of which 8 numbers share an exponent.
//
// A block is 9 bytes: the exponent as f32 has it, then 8 mantissas of 8 bits in units of 2^(exponent - 6), as mlir-air's
// programming_examples/matrix_multiplication/bfp16/bfp16_utils.py packs them.
#pragma once

#include "native.hpp"

// One byte of a buffer of blocks.
struct bfp16ebs8 {
  std::uint8_t byte;
};

namespace aie {
namespace host {
constexpr double power_of_2(int exponent) { return __builtin_bit_cast(double, std::uint64_t(exponent + 1023) << 52); }
}  // namespace host

template <typename T, unsigned N>
class block_vector {
  static_assert(std::is_same_v<T, bfp16ebs8>, "block floats of this host subset are bfp16ebs8");
  static_assert(N % 8 == 0, "a block has 8 numbers");

 public:
  using value_type = T;
  static constexpr unsigned size() { return N; }
  static constexpr unsigned bytes() { return N / 8 * 9; }

  block_vector() = default;
  AIE_HOST_INLINE static block_vector load(const void* from) {
    block_vector out;
    std::memcpy(out.data_, from, bytes());
    return out;
  }
  AIE_HOST_INLINE void store(void* to) const { std::memcpy(to, data_, bytes()); }

  // The numbers nearest to these, as the core's rounding mode has it.
  static block_vector from_floats(const float* values) {
    block_vector out;
    for (unsigned i = 0; i < N / 8; ++i) round_block(values + 8 * i, out.data_ + 9 * i);
    return out;
  }
  void to_floats(float* values) const {
    for (unsigned i = 0; i < N; ++i) values[i] = float(double(mantissa(i)) * step(i / 8));
  }
  // Number i is its mantissa times the step of its block.
  AIE_HOST_INLINE int mantissa(unsigned i) const { return std::int8_t(data_[i / 8 * 9 + 1 + i % 8]); }
  AIE_HOST_INLINE double step(unsigned block) const {
    const unsigned exponent = data_[block * 9];
    return exponent == 255 ? __builtin_nan("") : host::power_of_2(int(exponent) - 127 - 6);
  }

 private:
  static void round_block(const float* values, std::uint8_t* block) {
    unsigned exponent = 1;
    for (unsigned i = 0; i < 8; ++i) {
      const unsigned own = __builtin_bit_cast(std::uint32_t, values[i]) >> 23 & 0xffu;
      exponent = own > exponent ? own : exponent;
    }
    while (!fits(values, exponent, block)) ++exponent;
  }
  // A mantissa that would round to 128 does not fit; its block takes the next exponent.
  static bool fits(const float* values, unsigned exponent, std::uint8_t* block) {
    block[0] = std::uint8_t(exponent);
    for (unsigned i = 0; i < 8; ++i) {
      const float steps = float(double(__builtin_fabsf(values[i])) * host::power_of_2(6 + 127 - int(exponent)));
      const float whole = __builtin_truncf(steps);
      const bool negative = __builtin_signbit(values[i]);
      if (!(steps < 256)) {  // an infinity or a NaN
        block[1 + i] = 0;
        continue;
      }
      const unsigned rounded =
          unsigned(whole) + host::round_up<unsigned>(host::modes.rounding, steps - whole, 0.5f, unsigned(whole) & 1u, negative);
      if (rounded > 127u + negative && exponent < 255) return false;
      block[1 + i] = std::uint8_t(negative ? -int(rounded) : int(rounded));
    }
    return true;
  }

  std::uint8_t data_[bytes()];
};

// Walks a buffer of blocks, N numbers at a time.
template <typename T, unsigned N>
class block_vector_input_buffer_stream {
 public:
  explicit block_vector_input_buffer_stream(const T* at) : at_(reinterpret_cast<const std::uint8_t*>(at)) {}
  AIE_HOST_INLINE block_vector<T, N> pop() {
    host::report_read(at_, block_vector<T, N>::bytes());
    const auto out = block_vector<T, N>::load(at_);
    at_ += block_vector<T, N>::bytes();
    return out;
  }
  // Steps over vectors.
  void seek(int vectors) { at_ += vectors * int(block_vector<T, N>::bytes()); }
  block_vector_input_buffer_stream& operator>>(block_vector<T, N>& to) {
    to = pop();
    return *this;
  }

 private:
  const std::uint8_t* at_;
};

template <typename T, unsigned N>
class block_vector_output_buffer_stream {
 public:
  explicit block_vector_output_buffer_stream(T* at) : at_(reinterpret_cast<std::uint8_t*>(at)) {}
  AIE_HOST_INLINE void push(const block_vector<T, N>& from) {
    host::report_write(at_, block_vector<T, N>::bytes());
    from.store(at_);
    at_ += block_vector<T, N>::bytes();
  }
  void seek(int vectors) { at_ += vectors * int(block_vector<T, N>::bytes()); }
  block_vector_output_buffer_stream& operator<<(const block_vector<T, N>& from) {
    push(from);
    return *this;
  }

 private:
  std::uint8_t* at_;
};

}  // namespace aie

// acc + a b^T, all 8 x 8: the products of two blocks are summed exactly, and the sum is added with one rounding.
inline v64accfloat mac_8x8_8x8T(const aie::block_vector<bfp16ebs8, 64>& a, const aie::block_vector<bfp16ebs8, 64>& b,
                                const v64accfloat& acc) {
  int left[64], right[64];
  double left_step[8], right_step[8];
  for (unsigned i = 0; i < 64; ++i) {
    left[i] = a.mantissa(i);
    right[i % 8 * 8 + i / 8] = b.mantissa(i);  // row k has the numbers that meet column k of `a`
  }
  for (unsigned i = 0; i < 8; ++i) {
    left_step[i] = a.step(i);
    right_step[i] = b.step(i);
  }
  float sums[64];
  acc.data.store(sums);
  for (unsigned i = 0; i < 8; ++i) {
    int row[8] = {};
    for (unsigned k = 0; k < 8; ++k)
      for (unsigned j = 0; j < 8; ++j) row[j] += left[i * 8 + k] * right[k * 8 + j];
    for (unsigned j = 0; j < 8; ++j) sums[i * 8 + j] += float(row[j] * left_step[i] * right_step[j]);
  }
  return v64accfloat(v64accfloat::storage_t::load(sums));
}
inline v64accfloat mul_8x8_8x8T(const aie::block_vector<bfp16ebs8, 64>& a, const aie::block_vector<bfp16ebs8, 64>& b) {
  return mac_8x8_8x8T(a, b, aie::zeros<accfloat, 64>());
}
