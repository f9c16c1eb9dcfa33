// Products of bf16 blocks through block floating point, as AIE2P makes them (its type bfp16ebs8).
//
// Eight numbers along K share one exponent, that of the largest; each keeps a two's complement mantissa of 8 bits
// in units of 2^(exponent - 6). Blocks are the rows of the left factor and the columns of the right one. The
// products of two blocks are summed exactly, and the sum is added to the f32 accumulator with one rounding.
//
// From public sources: the format (mlir-air, programming_examples/matrix_multiplication/bfp16/bfp16_utils.py), which
// products take this way (aie_api, detail/aie2p/mmul_bf16_bf16.hpp; mlir-aie, AIEVecToLLVM/matmul-aie2p.mlir), and that
// the conversion obeys the rounding mode of the core (mlir-aie, pull request 3442).
// Inferred: a mantissa that would round to 128 raises the exponent of its block by one (-128 fits and does not). Of the rules
// that were tried, only this one reproduces mlir-air's published errors in every digit (kernel_builder/published_errors.py).
#pragma once

#include <stdint.h>
#include <string.h>

namespace vnpu::bfp16 {

constexpr int kBlock = 8;
typedef float Row __attribute__((vector_size(4 * kBlock)));
typedef int32_t Ints __attribute__((vector_size(4 * kBlock)));
typedef uint16_t Halves __attribute__((vector_size(2 * kBlock)));

#define VNPU_BFP16_INLINE __attribute__((always_inline)) inline

constexpr int32_t exponent_bits(int biased) { return biased << 23; }

// Rounds v to the nearest multiple of 2^(exponent - 6), ties to even. `exponent` is at its place in the bits of an f32.
struct NearestEven {
  static VNPU_BFP16_INLINE Row round(Row v, Ints exponent) {
    // Near 1.5 * 2^(exponent + 17) the spacing of f32 is exactly this step.
    const Row magic = (Row)((exponent + exponent_bits(17)) | 0x400000);
    return v + magic - magic;
  }
};

// For larger exponents NearestEven's steps leave the range of f32; such blocks are scaled by 2^-64 for the conversion.
constexpr int32_t kHighest = exponent_bits(200), kInfinite = exponent_bits(255);

VNPU_BFP16_INLINE bool any(Ints flags) {
  int64_t words[4];
  memcpy(words, &flags, sizeof(words));
  return (words[0] | words[1] | words[2] | words[3]) != 0;
}

// Rounds 8 blocks. Returns the lanes whose exponent is too low because a mantissa would exceed 127.
template <class Rounding>
VNPU_BFP16_INLINE Ints round_rows(const Row (&from)[kBlock], Ints exponent, Row (&to)[kBlock]) {
  const Row top = (Row)(exponent | 0x7e0000);  // 127 steps
  Ints above = {};
  for (int k = 0; k < kBlock; ++k) {
    to[k] = Rounding::round(from[k], exponent);
    above |= to[k] > top;
  }
  return above;
}

template <class Rounding>
VNPU_BFP16_INLINE void round_blocks(Row (&rows)[kBlock], Ints exponent) {
  Row rounded[kBlock];
  const Ints above = round_rows<Rounding>(rows, exponent, rounded);
  if (any(above)) [[unlikely]]
    round_rows<Rounding>(rows, exponent + (above & exponent_bits(1)), rounded);
  memcpy(rows, rounded, sizeof(rounded));
}

// Converts 8 blocks, which run down the columns, in place: each number becomes its value in bfp16.
template <class Rounding>
VNPU_BFP16_INLINE void convert(Row (&rows)[kBlock]) {
  Ints exponent = exponent_bits(1) - Ints{};
  for (const Row &row : rows) {
    const Ints found = (Ints)row & kInfinite;
    exponent = found > exponent ? found : exponent;
  }
  if (!any(exponent > kHighest)) [[likely]] {
    round_blocks<Rounding>(rows, exponent);
    return;
  }
  const Ints high = exponent > kHighest;
  const Row down = high ? 0x1p-64f - Row{} : 1.0f - Row{}, up = high ? 0x1p64f - Row{} : 1.0f - Row{};
  const Ints nan = (exponent == kInfinite) & 0x7fc00000;
  for (Row &row : rows) row *= down;
  round_blocks<Rounding>(rows, exponent - (high & exponent_bits(64)));
  for (Row &row : rows) row = (Row)((Ints)(row * up) | nan);
}

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define VNPU_BFP16_SHUFFLE 1
#endif
#endif

VNPU_BFP16_INLINE void transpose(Halves (&rows)[kBlock]) {
#if defined(VNPU_BFP16_SHUFFLE)
  // Three times: rows i and i + 4 interleave, and so become rows 2i and 2i + 1.
#pragma GCC unroll 3
  for (int step = 0; step < 3; ++step) {
    Halves next[kBlock];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      next[2 * i] = __builtin_shufflevector(rows[i], rows[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      next[2 * i + 1] = __builtin_shufflevector(rows[i], rows[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    memcpy(rows, next, sizeof(next));
  }
#else
  for (int i = 0; i < kBlock; ++i)
    for (int j = 0; j < i; ++j) {
      const uint16_t below = rows[i][j];
      rows[i][j] = rows[j][i];
      rows[j][i] = below;
    }
#endif
}

VNPU_BFP16_INLINE void widen(const Halves (&bits)[kBlock], Row (&rows)[kBlock]) {
  for (int i = 0; i < kBlock; ++i) rows[i] = (Row)(__builtin_convertvector(bits[i], Ints) << 16);
}

// Factors converted to bfp16 once for all of their products. Both are bf16 bits, row by row.

// Rows x 8 numbers, 4 or 8 rows, column by column in memory: a broadcast from memory is free, from a register it is a shuffle.
template <class Rounding, int Rows>
struct Left {
  float at[kBlock][kBlock];

  explicit VNPU_BFP16_INLINE Left(const uint16_t *a) {
    Halves bits[kBlock] = {};
    Row rows[kBlock];
    memcpy(bits, a, Rows * sizeof(Halves));
    transpose(bits);
    widen(bits, rows);
    convert<Rounding>(rows);
    memcpy(at, rows, sizeof(at));
    asm("" : "+m"(at));
  }
};

// 8 x 8 numbers.
template <class Rounding>
struct Right {
  Row rows[kBlock];

  explicit VNPU_BFP16_INLINE Right(const uint16_t *b) {
    Halves bits[kBlock];
    memcpy(bits, b, sizeof(bits));
    widen(bits, rows);
    convert<Rounding>(rows);
  }
};

// c += a b; c: Rows rows of 8.
template <class Rounding, int Rows>
VNPU_BFP16_INLINE void multiply_add(const Left<Rounding, Rows> &a, const Right<Rounding> &b, Row *c) {
  // Mantissas of 8 bits: every product and partial sum is exact in f32.
#pragma GCC unroll 8
  for (int m = 0; m < Rows; ++m) {
    Row sum = a.at[0][m] * b.rows[0];
#pragma GCC unroll 8
    for (int k = 1; k < kBlock; ++k) sum += a.at[k][m] * b.rows[k];
    c[m] += sum;
  }
}

template <class Rounding, int Rows>
VNPU_BFP16_INLINE void multiply_add(const uint16_t *a, const uint16_t *b, Row *c) {
  multiply_add(Left<Rounding, Rows>(a), Right<Rounding>(b), c);
}

}  // namespace vnpu::bfp16
