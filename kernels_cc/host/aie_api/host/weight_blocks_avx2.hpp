// Blocks of quantised weights (kernels_cc/weight_blocks.cc) on CPUs with AVX2 and without AVX-512. Not in the AIE API.
//
// Two vectors hold 16 rows of a column, first the even ones: as their codes lie side by side in a byte or in a word, and as two
// weights in bf16 make one word. 8-bit codes are used as code * 2^24, by scale * 2^-24, which saves an instruction. Blocks with
// scales or minima that are small or so great that a sum of the rounding overflows take the slow way.
#pragma once

#include "types.hpp"
#include "vnpu/made_pairs.h"
#include "vnpu/prefetch.h"

#if defined(VNPU_FAST) && !VNPU_CHECKS && !defined(AIE_HOST_WEIGHT_BLOCKS) && defined(__AVX2__) && defined(__FMA__)
#define AIE_HOST_WEIGHT_BLOCKS 1
#define AIE_HOST_WEIGHT_PAIRS 1
#include <immintrin.h>

namespace aie {
namespace host {

template <unsigned Bits>
class weight_blocks {
  static constexpr unsigned columns = 256, rows = 32, lanes_of_row = 64, planes = 2, plane_rows = 16;
  static constexpr bool has_minima = Bits == 4;
  static constexpr unsigned minima_at = 512, codes_at = has_minima ? 1024 : 512;
  static constexpr unsigned column_bytes = 2 * Bits, plane_bytes = columns * column_bytes;
  static constexpr unsigned lines = (codes_at + planes * plane_bytes) / 64, lines_of_half = lines / 4;
  static constexpr int least = 8 + (has_minima ? 0 : 24), most = 228;  // exponents of scales and minima

 public:
  // The place of a partial sum of a row.
  static constexpr unsigned place(unsigned row, unsigned lane) {
    return (row / plane_rows * lanes_of_row + lane) * plane_rows + lane_of(row % plane_rows);
  }

  // y = the sums of 32 rows, each added up in the order of aie::reduce_add; overwrites the sums.
  static void add_up(float* sums, float* y) {
    for (unsigned plane = 0; plane < planes; ++plane, sums += lanes_of_row * plane_rows) {
      for (unsigned half = lanes_of_row / 2 * plane_rows; half >= plane_rows; half /= 2)
        for (unsigned i = 0; i < half; i += 8)
          _mm256_storeu_ps(sums + i, _mm256_add_ps(_mm256_loadu_ps(sums + i), _mm256_loadu_ps(sums + half + i)));
      for (unsigned row = 0; row < plane_rows; ++row) y[plane * plane_rows + row] = sums[lane_of(row)];
    }
  }

  // As matvec_blocks_f32 for one block, with sums in their places; false, and nothing done, if the block or x may need
  // numbers below 2^-126.
  static bool multiply(std::uint32_t first, std::uint32_t k, const std::uint8_t* block, const bfloat16* x, float* sums) {
    const std::uint32_t count = k - first < columns ? k - first : columns;
    const Range of_block(block, codes_at / 2);
    if (!of_block.is_within(least, most)) return false;
    alignas(32) std::uint16_t all[columns] = {};
    std::memcpy(all, x + first, count * sizeof(*x));
    const Range of_x(reinterpret_cast<const std::uint8_t*>(all), columns);
    if (!of_x.is_within(int(142 - of_block.least), 254)) return false;
    alignas(32) std::uint32_t factors[columns];
    for (unsigned i = 0; i < columns; ++i) factors[i] = std::uint32_t(all[i]) << 16;
    const char* ahead = reinterpret_cast<const char*>(block);
    for (unsigned plane = 0; plane < planes; ++plane)
      for (unsigned half = 0; half < 2; ++half, ahead += lines_of_half * 64)
        multiply_half(first == 0, block, plane, half, factors, sums, ahead);
    return true;
  }

  // As unpack_blocks_bf16 for `count` columns of one block, from column `first` on; false, and nothing done, if the block may
  // have weights below 2^-126. apart: elements from 8 rows to the next ones.
  static bool unpack(std::uint32_t first, unsigned count, const std::uint8_t* block, unsigned apart, bfloat16* to) {
    if (!Range(block, codes_at / 2).is_within(least, most)) return false;
    for (unsigned plane = 0; plane < planes; ++plane, to += 2 * apart) {
      for (unsigned column = 0; column < count; column += 32) {
        const Group group(block, plane, (first + column) / 32);
        const std::uint8_t* at = block + codes_at + plane * plane_bytes + (first + column) * column_bytes;
        bfloat16* out = to + column * 8;
        for (unsigned c = 0; c < 32; ++c, at += column_bytes, out += 8) {
          const Weights weights = group.weights(at);
          const __m256i both = _mm256_or_si256(_mm256_srli_epi32(to_even(weights.of[0]), 16), upper(to_even(weights.of[1])));
          _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(both));
          _mm_storeu_si128(reinterpret_cast<__m128i*>(out + apart), _mm256_extracti128_si256(both, 1));
        }
      }
    }
    return true;
  }

  // As `unpack`, but the group of columns from `first` on, in f32: of each column the weights of 32 rows.
  static bool unpack_pairs(unsigned first, const std::uint8_t* block, std::uint32_t* to) {
    const std::uint8_t* const numbers = block + first / 32 * 2 * rows;
    if (!Range(numbers, rows).is_within(least, most)) return false;
    if (has_minima && !Range(numbers + minima_at, rows).is_within(least, most)) return false;
    const char* const ahead = reinterpret_cast<const char*>(block) + first / 32 * (lines / 8 * 64);
    for (unsigned line = 0; line < lines / 8; ++line) vnpu::prefetch_ahead(ahead + 64 * line);
    for (unsigned eight = 0; eight < rows / 8; ++eight) {
      const __m256 scales = wide_eight(numbers + 16 * eight);
      const __m256 minima = has_minima ? wide_eight(numbers + minima_at + 16 * eight) : _mm256_setzero_ps();
      const std::uint8_t* at = block + codes_at + eight / 2 * plane_bytes + first * column_bytes + eight % 2 * column_bytes / 2;
      for (unsigned column = 0; column < 32; ++column, at += column_bytes) {
        const __m256 codes = eight_codes(at);
        const __m256 weights = has_minima ? _mm256_fmadd_ps(codes, scales, minima) : _mm256_mul_ps(codes, scales);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + column * rows + 8 * eight), upper(to_even(weights)));
      }
    }
    return true;
  }

 private:
  AIE_HOST_INLINE static __m256 wide_eight(const std::uint8_t* at) {
    return (__m256)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))), 16);
  }
  // Codes of eight rows of a column.
  AIE_HOST_INLINE static __m256 eight_codes(const std::uint8_t* at) {
    if constexpr (Bits == 8) {
      return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
    } else {
      int all;
      std::memcpy(&all, at, sizeof(all));
      const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
      return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(all), shifts), _mm256_set1_epi32(15)));
    }
  }

  // The lane of two vectors that has a row of a plane.
  static constexpr unsigned lane_of(unsigned row) { return row % 2 * 8 + row / 2; }

  // 16 rows of a column: the even ones and the odd ones.
  struct Weights {
    __m256 of[2];
  };

  AIE_HOST_INLINE static __m256i upper(__m256i bits) { return _mm256_and_si256(bits, _mm256_set1_epi32(int(0xffff0000u))); }
  // f32 of which the upper half is rounded to even.
  AIE_HOST_INLINE static __m256i to_even(__m256 v) {
    const __m256i bits = (__m256i)v, odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  }
  // Rounded to bf16, but for the sign of zero, which changes no sum that begins with +0. 1.5 * 2^16 times a number's power of
  // two leaves the bits of bf16 in the sum.
  AIE_HOST_INLINE static __m256 rounded(__m256 v) {
    const __m256 power = _mm256_and_ps(v, (__m256)_mm256_set1_epi32(0x7f800000)), most = _mm256_set1_ps(0x1.8p16f);
    return _mm256_fnmadd_ps(power, most, _mm256_fmadd_ps(power, most, v));
  }

  // What 16 rows of a group have in common, in f32.
  struct Group {
    Weights scales, minima;

    Group() = default;
    AIE_HOST_INLINE Group(const std::uint8_t* block, unsigned plane, unsigned group) {
      const std::uint8_t* const at = block + (group * rows + plane * plane_rows) * 2;
      scales = wide(at);
      if constexpr (has_minima) minima = wide(at + minima_at);
      else
        for (auto& each : scales.of) each = _mm256_mul_ps(each, _mm256_set1_ps(0x1p-24f));
    }
    // Weights before they are rounded to bf16.
    AIE_HOST_INLINE Weights weights(const std::uint8_t* column) const {
      if constexpr (Bits == 4) {
        const __m256i codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(column)));
        const __m256 even = _mm256_cvtepi32_ps(_mm256_and_si256(codes, _mm256_set1_epi32(15)));
        const __m256 odd = _mm256_cvtepi32_ps(_mm256_srli_epi32(codes, 4));
        return {{_mm256_fmadd_ps(even, scales.of[0], minima.of[0]), _mm256_fmadd_ps(odd, scales.of[1], minima.of[1])}};
      } else {
        const __m256i codes = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(column)));
        const auto of = [&](int next, __m256 scale) AIE_HOST_LAMBDA {
          // The byte of a row above three zeros.
          const __m256i rows_of =
              _mm256_setr_epi32(0x00808080, 0x02808080, 0x04808080, 0x06808080, 0x08808080, 0x0a808080, 0x0c808080, 0x0e808080);
          const __m256i places = _mm256_add_epi32(rows_of, _mm256_set1_epi32(next << 24));
          return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_shuffle_epi8(codes, places)), scale);
        };
        return {{of(0, scales.of[0]), of(1, scales.of[1])}};
      }
    }

   private:
    AIE_HOST_INLINE static Weights wide(const std::uint8_t* at) {
      const __m256i sixteen = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
      return {{(__m256)_mm256_slli_epi32(sixteen, 16), (__m256)upper(sixteen)}};
    }
  };

  // 32 of the 64 partial sums of 16 rows. ahead: lines of the block that this prefetches.
  AIE_HOST_INLINE static void multiply_half(bool begins, const std::uint8_t* block, unsigned plane, unsigned half,
                                            const std::uint32_t* factors, float* sums, const char* ahead) {
    Group groups[4];
    for (unsigned t = 0; t < 4; ++t) groups[t] = Group(block, plane, half + 2 * t);
    for (unsigned i = half * 32, line = 0; i < half * 32 + 32; ++i) {
      for (const unsigned end = (i % 32 + 1) * lines_of_half / 32; line < end; ++line) vnpu::prefetch_ahead(ahead + 64 * line);
      float* const to = sums + (plane * lanes_of_row + i) * plane_rows;
      __m256 even = begins ? _mm256_setzero_ps() : _mm256_loadu_ps(to);
      __m256 odd = begins ? _mm256_setzero_ps() : _mm256_loadu_ps(to + 8);
      const std::uint8_t* const at = block + codes_at + plane * plane_bytes + i * column_bytes;
#pragma GCC unroll 4
      for (unsigned t = 0; t < 4; ++t) {
        const Weights weights = groups[t].weights(at + t * lanes_of_row * column_bytes);
        const __m256 factor = (__m256)_mm256_set1_epi32(int(factors[i + t * lanes_of_row]));
        even = _mm256_fmadd_ps(rounded(weights.of[0]), factor, even);
        odd = _mm256_fmadd_ps(rounded(weights.of[1]), factor, odd);
      }
      _mm256_storeu_ps(to, even);
      _mm256_storeu_ps(to + 8, odd);
    }
  }

  // The exponent fields of some bf16: the least one of those that are not zero, 255 if all are, and the greatest one.
  struct Range {
    unsigned least, most;

    AIE_HOST_INLINE Range(const std::uint8_t* from, unsigned count) {
      const __m256i magnitude = _mm256_set1_epi16(0x7fff);
      __m256i low = magnitude, high = _mm256_setzero_si256();
      for (unsigned i = 0; i < count; i += 16) {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 2 * i));
        const __m256i some = _mm256_and_si256(bits, magnitude);
        const __m256i none = _mm256_cmpeq_epi16(some, _mm256_setzero_si256());
        low = _mm256_min_epu16(low, _mm256_or_si256(some, none));
        high = _mm256_max_epu16(high, some);
      }
      least = smallest(low) >> 7;
      most = 255 - (smallest(_mm256_sub_epi16(magnitude, high)) >> 7);
    }
    // Whether all are zero or have an exponent between these.
    AIE_HOST_INLINE bool is_within(int low, int high) const { return int(most) <= high && int(least) >= low; }

   private:
    AIE_HOST_INLINE static unsigned smallest(__m256i v) {
      const __m128i half = _mm_min_epu16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
      return unsigned(_mm_extract_epi16(_mm_minpos_epu16(half), 0));
    }
  };
};

}  // namespace host
}  // namespace aie
#endif
