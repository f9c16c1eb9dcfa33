// Products of blocks of 4-bit weights with AVX512-BF16: a table of 16 weights for every row and group.
//
// The 32 weights of a row in a group are 16 different ones at most. They are computed once, and one instruction looks up 32. A
// register of codes has those of four rows: 16 bits of a column. Two groups of a row share a register of tables, and weights come
// out in the pairs of columns in which they are multiplied. Sums are kept row by row, 64 of each.
#pragma once

#include "types.hpp"
#include "weight_pairs.hpp"

#if defined(AIE_HOST_WEIGHT_BLOCKS) && defined(VNPU_BF16_DOTS)

namespace aie {
namespace host {

struct weight_tables {
  static constexpr unsigned columns = 256, rows = 32, lanes_of_row = 64, groups = 8;
  static constexpr unsigned minima_at = 512, codes_at = 1024, plane_bytes = 2048, lines = 80;

  // x for the columns of a block: pairs of columns that are 64 apart, the earlier one in the upper halves.
  struct Pairs {
    alignas(64) std::uint32_t all[2][2][2][16];  // half of 64 columns, pair, half of these 32 columns

    AIE_HOST_INLINE void fill(const std::uint16_t* x) {
      const __m512i order = interleaved(0), other = interleaved(16);
      for (unsigned half = 0; half < 2; ++half)
        for (unsigned pair = 0; pair < 2; ++pair) {
          const __m512i earlier = _mm512_loadu_si512(x + 128 * pair + 32 * half);
          const __m512i later = _mm512_loadu_si512(x + 128 * pair + 64 + 32 * half);
          _mm512_store_si512(all[half][pair][0], _mm512_permutex2var_epi16(later, order, earlier));
          _mm512_store_si512(all[half][pair][1], _mm512_permutex2var_epi16(later, other, earlier));
        }
    }

   private:
    // The order of words in which those of two registers alternate, from `first` on.
    AIE_HOST_INLINE static __m512i interleaved(unsigned first) {
      std::uint16_t order[32];
      for (unsigned i = 0; i < 32; ++i) order[i] = std::uint16_t(first + i / 2 + i % 2 * 32);
      return _mm512_loadu_si512(order);
    }
  };

  // The place of a partial sum of a row.
  static constexpr unsigned place(unsigned row, unsigned lane) { return row * lanes_of_row + lane; }

  static void multiply(bool begins, const std::uint8_t* block, const Pairs& x, float* sums) {
    Numbers numbers;
    numbers.fill(block);
    const char* ahead = reinterpret_cast<const char*>(block);
    for (unsigned half = 0; half < 2; ++half)
      for (unsigned eight = 0; eight < 4; ++eight, ahead += lines / 8 * 64)
        multiply_eight(begins, block, numbers, eight, half, x.all[half], sums + eight * 8 * lanes_of_row + 32 * half, ahead);
  }

  // The sum of all partial sums of a row, in the order of aie::reduce_add.
  static float total(const float* sums) {
    const __m512 low = _mm512_add_ps(_mm512_loadu_ps(sums), _mm512_loadu_ps(sums + 32));
    const __m512 high = _mm512_add_ps(_mm512_loadu_ps(sums + 16), _mm512_loadu_ps(sums + 48));
    float all[16];
    _mm512_storeu_ps(all, _mm512_add_ps(low, high));
    const __m256 eight = _mm256_add_ps(_mm256_loadu_ps(all), _mm256_loadu_ps(all + 8));
    float four[4];
    _mm_storeu_ps(four, _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)));
    return (four[0] + four[2]) + (four[1] + four[3]);
  }

 private:
  // Scales and minima of rows and groups.
  struct Numbers {
    AIE_HOST_INLINE void fill(const std::uint8_t* block) {
      for (unsigned group = 0; group < groups; ++group) {
        const std::uint8_t* const at = block + 2 * rows * group;
        const __m512i scales = _mm512_loadu_si512(at), minima = _mm512_loadu_si512(at + minima_at);
        _mm512_store_si512(both_[group], _mm512_unpacklo_epi16(scales, minima));
        _mm512_store_si512(both_[group] + 16, _mm512_unpackhi_epi16(scales, minima));
      }
    }
    // The weights of a row in a group by code, before they are rounded to bf16.
    AIE_HOST_INLINE __m512 weights(unsigned group, unsigned row) const {
      // code * scale + (1 * minimum - 0), as one instruction: -0 keeps the sign of a minimum that is zero.
      const __m512i codes =
          _mm512_setr_epi32(0x3f800000, 0x3f803f80, 0x3f804000, 0x3f804040, 0x3f804080, 0x3f8040a0, 0x3f8040c0, 0x3f8040e0,
                            0x3f804100, 0x3f804110, 0x3f804120, 0x3f804130, 0x3f804140, 0x3f804150, 0x3f804160, 0x3f804170);
      const __m512i both = _mm512_set1_epi32(int(both_[group][row / 4 % 2 * 16 + row / 8 * 4 + row % 4]));
      return _mm512_dpbf16_ps(_mm512_set1_ps(-0.0f), (__m512bh)codes, (__m512bh)both);
    }

   private:
    alignas(64) std::uint32_t both_[groups][rows];  // the scale in the lower half; four rows of every eight, then the others
  };

  // Half of the partial sums of eight rows.
  static void multiply_eight(bool begins, const std::uint8_t* block, const Numbers& numbers, unsigned eight, unsigned half,
                             const std::uint32_t (&x)[2][2][16], float* sums, const char* ahead) {
    const std::uint8_t* at = block + codes_at + eight / 2 * plane_bytes + half * 256;
    const __m512i order = words(eight % 2 * 2), nibbles = _mm512_set1_epi16(0x0f0f), second = _mm512_set1_epi32(0x10100000);
    __m512 sum[8][2];
    each_number<8>([&](auto r) AIE_HOST_LAMBDA {
      sum[r][0] = begins ? _mm512_setzero_ps() : _mm512_loadu_ps(sums + r * lanes_of_row);
      sum[r][1] = begins ? _mm512_setzero_ps() : _mm512_loadu_ps(sums + r * lanes_of_row + 16);
    });
    for (unsigned pair = 0; pair < 2; ++pair, at += 1024) {
      __m512i codes[2][2];  // of four rows in a word, of two columns
      each_number<2>([&](auto part) AIE_HOST_LAMBDA {
        const auto sixteen = [&](const std::uint8_t* from) AIE_HOST_LAMBDA {
          return _mm512_permutex2var_epi16(_mm512_loadu_si512(from), order, _mm512_loadu_si512(from + 64));
        };
        const __m512i earlier = sixteen(at + part * 128), later = sixteen(at + part * 128 + 512);
        codes[0][part] = _mm512_unpacklo_epi16(later, earlier);
        codes[1][part] = _mm512_unpackhi_epi16(later, earlier);
      });
      const __m512bh first = (__m512bh)_mm512_load_si512(x[pair][0]), last = (__m512bh)_mm512_load_si512(x[pair][1]);
      each_number<8>([&](auto r) AIE_HOST_LAMBDA {
        // Evenly: a core has few requests in flight.
        if (r % 2 == 0 || r == 1) vnpu::prefetch_beside_others(ahead), ahead += 64;
        const unsigned earlier = 4 * pair + half, row = eight * 8 + r;
        const __m512i table = rounded_to_bf16(numbers.weights(earlier + 2, row), numbers.weights(earlier, row));
        const auto weights = [&](__m512i four) AIE_HOST_LAMBDA {
          const __m512i two = _mm512_ternarylogic_epi32(r % 2 ? _mm512_srli_epi16(four, 4) : four, nibbles, second, 0xea);
          return (__m512bh)_mm512_permutexvar_epi16(r % 4 < 2 ? two : _mm512_srli_epi16(two, 8), table);
        };
        sum[r][0] = _mm512_dpbf16_ps(sum[r][0], weights(codes[r / 4][0]), first);
        sum[r][1] = _mm512_dpbf16_ps(sum[r][1], weights(codes[r / 4][1]), last);
      });
    }
    each_number<8>([&](auto r) AIE_HOST_LAMBDA {
      _mm512_storeu_ps(sums + r * lanes_of_row, sum[r][0]);
      _mm512_storeu_ps(sums + r * lanes_of_row + 16, sum[r][1]);
    });
  }
  // Of 16 columns the words of four rows each, and of the next four rows: four columns of the first, then of the others.
  AIE_HOST_INLINE static __m512i words(unsigned first) {
    std::uint16_t order[32];
    for (unsigned i = 0; i < 32; ++i) order[i] = std::uint16_t((i / 8 * 4 + i % 4) * 4 + i / 4 % 2 + first);
    return _mm512_loadu_si512(order);
  }
};

}  // namespace host
}  // namespace aie
#endif
