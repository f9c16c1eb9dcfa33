// Blocks of quantised weights (kernels_cc/weight_blocks.cc) by the CPU's own instructions. Not in the AIE API.
//
// The same products and weights as by vectors of the API, bit for bit, in a fraction of the time. A vector holds 16 rows of a
// column, in an order that one shift brings: the columns of 4-bit codes are 64 bits, and lane pair q of the vector gets them
// shifted by q codes, so its lower halves begin with the codes of rows q and q + 8.
//
// AVX512-BF16 rounds weights in one instruction and adds the products of two columns in one, first those of the earlier one.
// Both take numbers below 2^-126 for zero, so blocks and factors in which such numbers might occur take the slow way. A weight
// is a multiple of the last bit of the smallest scale or minimum, and all products and sums are multiples of its product with
// the last bit of the smallest factor. After a block that took the slow way, the sums are looked at as well.
#pragma once

#include "types.hpp"
#include "vnpu/made_pairs.h"
#include "vnpu/prefetch.h"

#if defined(VNPU_FAST) && !VNPU_CHECKS && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define AIE_HOST_WEIGHT_BLOCKS 1
#define AIE_HOST_WEIGHT_PAIRS 1
#include <immintrin.h>

#include "weight_bytes.hpp"
#include "weight_pairs.hpp"
#include "weight_tables.hpp"

namespace aie {
namespace host {

template <unsigned Bits>
class weight_blocks {
  static constexpr unsigned columns = 256, rows = 32, lanes_of_row = 64, planes = 2, plane_rows = 16;
  static constexpr bool has_minima = Bits == 4;
  static constexpr unsigned minima_at = 512, codes_at = has_minima ? 1024 : 512;
  static constexpr unsigned column_bytes = 2 * Bits, plane_bytes = columns * column_bytes;
  static constexpr unsigned lines = (codes_at + planes * plane_bytes) / 64;

 public:
  static constexpr unsigned block_bytes = codes_at + planes * plane_bytes;

  // Whether a table of weights is made for every row and group.
#if defined(VNPU_BF16_DOTS)
  static constexpr bool has_tables = Bits == 4;
#else
  static constexpr bool has_tables = false;
#endif

  // The place of a partial sum of a row.
  static constexpr unsigned place(unsigned row, unsigned lane) {
#if defined(VNPU_BF16_DOTS)
    if constexpr (has_tables) return weight_tables::place(row, lane);
#endif
    return (row / plane_rows * lanes_of_row + lane) * plane_rows + lane_of(row % plane_rows);
  }

  // y = the sums of 32 rows, each added up in the order of aie::reduce_add; overwrites the sums.
  static void add_up(float* sums, float* y) {
#if defined(VNPU_BF16_DOTS)
    if constexpr (has_tables) {
      for (unsigned row = 0; row < rows; ++row) y[row] = weight_tables::total(sums + row * lanes_of_row);
      return;
    }
#endif
    for (unsigned plane = 0; plane < planes; ++plane, sums += lanes_of_row * plane_rows) {
      for (unsigned half = lanes_of_row / 2; half > 0; half /= 2)
        for (unsigned i = 0; i < half; ++i) {
          const __m512 other = _mm512_loadu_ps(sums + (half + i) * plane_rows);
          _mm512_storeu_ps(sums + i * plane_rows, _mm512_add_ps(_mm512_loadu_ps(sums + i * plane_rows), other));
        }
      for (unsigned row = 0; row < plane_rows; ++row) y[plane * plane_rows + row] = sums[lane_of(row)];
    }
  }

  // As matvec_blocks_f32 for one block, with sums in their places; false, and nothing done, if the block or x may need
  // numbers below 2^-126.
  static bool multiply(std::uint32_t first, std::uint32_t k, const std::uint8_t* block, const bfloat16* x, float* sums) {
    const std::uint32_t count = k - first < columns ? k - first : columns;
    Factors factors;
    if (!factors.fill(x + first, count, least_exponent(block)) || (first && was_slow() && has_small(sums))) {
      __atomic_store_n(&some_were_slow, true, __ATOMIC_RELAXED);
      return false;
    }
#if defined(VNPU_BF16_DOTS)
    if constexpr (has_tables) {
      weight_tables::multiply(first == 0, block, factors.by_columns, sums);
      return true;
    }
#endif
#if defined(AIE_HOST_WEIGHT_BYTES)
    if (Bits == 8 && greatest_exponent(block) <= weight_bytes::greatest_exponent) {
      weight_bytes::multiply(first == 0, block, factors.by_pairs, sums);
      return true;
    }
#endif
    for (unsigned plane = 0; plane < planes; ++plane) {
      const std::uint8_t* const codes = block + codes_at + plane * plane_bytes;
      for (unsigned half = 0; half < 2; ++half) {
        Group groups[4];
        for (unsigned t = 0; t < 4; ++t) groups[t] = Group(block, plane, half + 2 * t);
        for (unsigned i = half * 32; i < half * 32 + 32; ++i) {
          const unsigned line = plane * lanes_of_row + i;
          if (line < lines) vnpu::prefetch_ahead(reinterpret_cast<const char*>(block) + 64 * line);
          float* const to = sums + (plane * lanes_of_row + i) * plane_rows;
          __m512 sum = first ? _mm512_loadu_ps(to) : _mm512_setzero_ps();
          const std::uint8_t* const at = codes + i * column_bytes;
          constexpr unsigned next = lanes_of_row * column_bytes;
          sum = factors.add(sum, i, 0, groups[0].values(at), groups[1].values(at + next));
          sum = factors.add(sum, i, 1, groups[2].values(at + 2 * next), groups[3].values(at + 3 * next));
          _mm512_storeu_ps(to, sum);
        }
      }
    }
    return true;
  }

  // As unpack_blocks_bf16 for `count` columns of one block, from column `first` on; false, and nothing done, if the block may
  // have weights below 2^-126. apart: elements from 8 rows to the next ones.
  static bool unpack(std::uint32_t first, unsigned count, const std::uint8_t* block, unsigned apart, bfloat16* to) {
    if (least_exponent(block) < 8) return false;
    std::uint16_t indices[2][32];
    for (unsigned i = 0; i < 32; ++i) {
      const unsigned column = i / 8, lane = lane_of(i % 8), upper = lane_of(i % 8 + 8);
      indices[0][i] = std::uint16_t(column / 2 * 32 + column % 2 * 16 + lane);
      indices[1][i] = std::uint16_t(column / 2 * 32 + column % 2 * 16 + upper);
    }
    const __m512i low = _mm512_loadu_si512(indices[0]), high = _mm512_loadu_si512(indices[1]);
    for (unsigned plane = 0; plane < planes; ++plane, to += 2 * apart) {
      for (unsigned column = 0; column < count; column += 32) {
        const Group group(block, plane, (first + column) / 32);
        const std::uint8_t* at = block + codes_at + plane * plane_bytes + (first + column) * column_bytes;
        bfloat16* out = to + column * 8;
        for (unsigned c = 0; c < 32; c += 4, at += 4 * column_bytes, out += 32) {
          const __m512i a = rounded_to_bf16(group.values(at), group.values(at + column_bytes));
          const __m512i b = rounded_to_bf16(group.values(at + 2 * column_bytes), group.values(at + 3 * column_bytes));
          _mm512_storeu_si512(out, _mm512_permutex2var_epi16(a, low, b));
          _mm512_storeu_si512(out + apart, _mm512_permutex2var_epi16(a, high, b));
        }
      }
    }
    return true;
  }

  // As `unpack`, but the group of columns from `first` on, by pairs of columns: each the weights of 32 rows.
  static bool unpack_pairs(unsigned first, const std::uint8_t* block, std::uint32_t* to) {
    if (has_small_group(first / 32, block)) return false;
    weight_pairs<Bits>::unpack(block, first / 32, to, [] {});
    return true;
  }
#if defined(VNPU_BF16_DOTS)
  // The same, and meanwhile sums += the products of eight rows of a by a group that was unpacked before.
  static bool unpack_pairs_and_add(unsigned first, const std::uint8_t* block, std::uint32_t* to, const std::uint32_t* a,
                                   const std::uint32_t* made, float* sums) {
    if (has_small_group(first / 32, block)) return false;
    weight_pairs<Bits>::unpack_and_add(block, first / 32, to, a, made, sums);
    return true;
  }
  static void add_pairs(const std::uint32_t* a, const std::uint32_t* made, float* sums) {
    weight_pairs<Bits>::add(a, made, sums);
  }
#endif

 private:
  // The lane of a vector that has a row of a plane.
  static constexpr unsigned lane_of(unsigned row) { return Bits == 4 ? row % 8 * 2 + row / 8 : row; }

  // Whether any block took the slow way, which alone leaves sums below 2^-126. Threads share it. The compiler's own functions
  // read and write it: <atomic> takes a quarter of the time to compile a kernel.
  static inline bool some_were_slow = false;
  static bool was_slow() { return __atomic_load_n(&some_were_slow, __ATOMIC_RELAXED); }
  // Whether a sum is below 2^-126 and no zero.
  static bool has_small(const float* sums) {
    bool is_found = false;
    for (unsigned i = 0; i < rows * lanes_of_row; ++i) {
      const std::uint32_t magnitude = __builtin_bit_cast(std::uint32_t, sums[i]) & 0x7fffffffu;
      is_found |= magnitude - 1 < 0x7fffffu;
    }
    return is_found;
  }

  // What 16 rows of a group have in common, in f32.
  struct Group {
    __m512 scales, minima;

    Group() = default;
    AIE_HOST_INLINE Group(const std::uint8_t* block, unsigned plane, unsigned group) {
      const std::uint8_t* const at = block + (group * rows + plane * plane_rows) * 2;
      scales = wide(at);
      minima = has_minima ? wide(at + minima_at) : _mm512_setzero_ps();
    }
    // Weights before they are rounded to bf16.
    AIE_HOST_INLINE __m512 values(const std::uint8_t* column) const {
      if constexpr (Bits == 4) {
        std::int64_t codes;
        std::memcpy(&codes, column, sizeof(codes));
        const __m512i shifts = _mm512_setr_epi64(0, 4, 8, 12, 16, 20, 24, 28);
        const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        const __m512 code = _mm512_permutexvar_ps(_mm512_srlv_epi64(_mm512_set1_epi64(codes), shifts), numbers);
        return _mm512_fmadd_ps(code, scales, minima);
      } else {
        const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(column));
        return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)), scales);
      }
    }

   private:
    AIE_HOST_INLINE static __m512 wide(const std::uint8_t* at) {
      const __m256i sixteen = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
      if constexpr (Bits == 8) return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(sixteen), 16);
      const __m512i order = _mm512_set_epi16(15, 0, 7, 0, 14, 0, 6, 0, 13, 0, 5, 0, 12, 0, 4, 0, 11, 0, 3, 0, 10, 0, 2, 0, 9, 0,
                                             1, 0, 8, 0, 0, 0);
      return (__m512)_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, order, _mm512_castsi256_si512(sixteen));
    }
  };

  // The least exponent field of numbers that are not zero; 256 if all are.
  AIE_HOST_INLINE static unsigned least_exponent(__m512i least) { return (smallest(least) + 1) >> 8; }
  AIE_HOST_INLINE static unsigned least_exponent(const std::uint8_t* block) {
    __m512i least = _mm512_set1_epi16(-1);
    for (unsigned at = 0; at < codes_at; at += 64) least = lesser(least, doubled(_mm512_loadu_si512(block + at)));
    return least_exponent(least);
  }
  // Whether a group of columns may have weights below 2^-126.
  AIE_HOST_INLINE static bool has_small_group(unsigned group, const std::uint8_t* block) {
    __m512i least = _mm512_set1_epi16(-1);
    for (unsigned at = group * 64; at < codes_at; at += minima_at)
      least = lesser(least, doubled(_mm512_loadu_si512(block + at)));
    return _mm512_cmplt_epu16_mask(least, _mm512_set1_epi16((8 << 8) - 1)) != 0;
  }
  // Numbers without their signs, twice as large as integers.
  AIE_HOST_INLINE static __m512i doubled(__m512i bits) { return _mm512_add_epi16(bits, bits); }
  // Of each lane the lesser one that is not zero, less one.
  AIE_HOST_INLINE static __m512i lesser(__m512i least, __m512i twice) {
    return _mm512_min_epu16(least, _mm512_sub_epi16(twice, _mm512_set1_epi16(1)));
  }
  AIE_HOST_INLINE static unsigned smallest(__m512i words) {
    const __m256i half = _mm256_min_epu16(_mm512_castsi512_si256(words), _mm512_extracti64x4_epi64(words, 1));
    const __m128i quarter = _mm_min_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    return unsigned(_mm_extract_epi16(_mm_minpos_epu16(quarter), 0));
  }

  AIE_HOST_INLINE static unsigned greatest_exponent(const std::uint8_t* block) {
    __m512i most = _mm512_setzero_si512();
    for (unsigned at = 0; at < codes_at; at += 64) most = _mm512_max_epu16(most, doubled(_mm512_loadu_si512(block + at)));
    return greatest_exponent(most);
  }
  AIE_HOST_INLINE static unsigned greatest_exponent(__m512i most) {
    return (0xffff - smallest(_mm512_sub_epi16(_mm512_set1_epi16(-1), most))) >> 8;
  }

  // x for the columns of a block, with zeros after its last.
  class Factors {
   public:
#if defined(VNPU_BF16_DOTS)
    weight_tables::Pairs by_columns;
    std::uint32_t by_pairs[2][lanes_of_row];  // of two columns, the earlier one in the upper half
#endif

    // Whether no product needs numbers below 2^-126.
    AIE_HOST_INLINE bool fill(const bfloat16* x, std::uint32_t count, unsigned exponent) {
      alignas(64) std::uint16_t padded[columns] = {};
      if (count < columns) std::memcpy(padded, x, count * sizeof(*x));
      const std::uint16_t* const all = count < columns ? padded : reinterpret_cast<const std::uint16_t*>(x);
      __m512i least = _mm512_set1_epi16(-1), most = _mm512_setzero_si512();
      for (unsigned i = 0; i < columns; i += 32) {
        const __m512i some = doubled(_mm512_loadu_si512(all + i));
        least = lesser(least, some);
        most = _mm512_max_epu16(most, some);
      }
      const unsigned of_x = least_exponent(least);
      if (exponent < 8 || of_x == 0 || greatest_exponent(most) == 255 || exponent + of_x < 142) return false;
#if defined(VNPU_BF16_DOTS)
      if constexpr (has_tables) {
        by_columns.fill(all);
        return true;
      }
#endif
      for (unsigned i = 0; i < lanes_of_row; ++i) {
#if defined(VNPU_BF16_DOTS)
        by_pairs[0][i] = std::uint32_t(all[i]) << 16 | all[i + 64];
        by_pairs[1][i] = std::uint32_t(all[i + 128]) << 16 | all[i + 192];
#else
        for (unsigned t = 0; t < 4; ++t) wide_[t][i] = std::uint32_t(all[i + 64 * t]) << 16;
#endif
      }
      return true;
    }
    // Adds the products of two columns that are 64 apart, of which `pair` is the number.
    AIE_HOST_INLINE __m512 add(__m512 sum, unsigned i, unsigned pair, __m512 a, __m512 b) const {
#if defined(VNPU_BF16_DOTS)
      const __m512i order = _mm512_set_epi16(15, 31, 14, 30, 13, 29, 12, 28, 11, 27, 10, 26, 9, 25, 8, 24, 7, 23, 6, 22, 5, 21,
                                             4, 20, 3, 19, 2, 18, 1, 17, 0, 16);
      const __m512i weights = _mm512_permutexvar_epi16(order, rounded_to_bf16(a, b));
      const __m512i factor = _mm512_set1_epi32(int(by_pairs[pair][i]));
      return _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)factor);
#else
      const __m512i upper = _mm512_set1_epi32(int(0xffff0000u));
      const __m512 one = (__m512)_mm512_and_si512(rounded_to_even(a), upper),
                   other = (__m512)_mm512_and_si512(rounded_to_even(b), upper);
      sum = _mm512_fmadd_ps(one, _mm512_set1_ps(__builtin_bit_cast(float, wide_[2 * pair][i])), sum);
      return _mm512_fmadd_ps(other, _mm512_set1_ps(__builtin_bit_cast(float, wide_[2 * pair + 1][i])), sum);
#endif
    }

   private:
#if !defined(VNPU_BF16_DOTS)
    std::uint32_t wide_[4][lanes_of_row];
#endif
  };
};

}  // namespace host
}  // namespace aie
#endif
