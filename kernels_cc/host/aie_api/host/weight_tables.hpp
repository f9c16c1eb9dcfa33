// Blocks of 4-bit weights with AVX-512: a table of 16 weights for every row and group.
//
// The 32 weights of a row in a group are 16 different ones at most. They are computed once, and one instruction looks up a row's
// 32 columns. Two rows share a register of tables, and four rows a register of codes: 16 bits of a column. In products of a
// vector, with AVX512-BF16, sums are kept row by row, 64 partial sums each, in the order in which pairs of columns come out of
// two registers of weights.
#pragma once

#include "types.hpp"

#if defined(AIE_HOST_WEIGHT_BLOCKS)

namespace aie {
namespace host {

// f32 of which the upper half is rounded to even; of normal numbers.
AIE_HOST_INLINE __m512i rounded_to_even(__m512 v) {
  const __m512i bits = (__m512i)v, odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
}
// Two vectors of f32 as bf16: the first in the lower half.
AIE_HOST_INLINE __m512i rounded_to_bf16(__m512 a, __m512 b) {
#if defined(VNPU_BF16_DOTS)
  return (__m512i)_mm512_cvtne2ps_pbh(b, a);
#else
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_to_even(a), 16))),
                            _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_to_even(b), 16)), 1);
#endif
}

struct weight_tables {
  static constexpr unsigned columns = 256, rows = 32, lanes_of_row = 64, groups = 8;
  static constexpr unsigned minima_at = 512, codes_at = 1024, plane_bytes = 2048, lines = 80;

#if defined(VNPU_BF16_DOTS)
  // x for the columns of a block: pairs of columns that are 64 apart, the earlier one in the upper halves.
  struct Pairs {
    alignas(64) std::uint32_t all[2][2][2][16];  // pair, half of 64 columns, lower or upper fours of eight columns

    AIE_HOST_INLINE void fill(const std::uint16_t (&x)[columns]) {
      for (unsigned pair = 0; pair < 2; ++pair)
        for (unsigned half = 0; half < 2; ++half) {
          const __m512i earlier = _mm512_load_si512(x + 128 * pair + 32 * half);
          const __m512i later = _mm512_load_si512(x + 128 * pair + 64 + 32 * half);
          _mm512_store_si512(all[pair][half][0], _mm512_unpacklo_epi16(later, earlier));
          _mm512_store_si512(all[pair][half][1], _mm512_unpackhi_epi16(later, earlier));
        }
    }
  };

  // The place of a partial sum of a row.
  static constexpr unsigned place(unsigned row, unsigned lane) {
    return row * lanes_of_row + lane / 32 * 32 + lane / 4 % 2 * 16 + lane % 32 / 8 * 4 + lane % 4;
  }

  static void multiply(bool begins, const std::uint8_t* block, const Pairs& x, float* sums) {
    Numbers numbers;
    numbers.fill(block, 0, groups);
    for (unsigned plane = 0; plane < 2; ++plane) {
      alignas(64) std::uint16_t codes[groups][4][32];
      for (unsigned group = 0; group < groups; ++group) {
        const std::uint8_t* const at = block + codes_at + plane * plane_bytes + group * 256;
        by_fours(at, codes[group]);
      }
      for (unsigned four = 0; four < 4; ++four) {
        const unsigned row = plane * 16 + 4 * four;
        const char* const ahead = reinterpret_cast<const char*>(block) + (plane * 4 + four) * lines / 8 * 64;
        multiply_four(begins, codes, four, numbers, row, x, sums + row * lanes_of_row, ahead);
      }
    }
  }

  // The sum of all partial sums of a row, in the order of aie::reduce_add.
  static float total(const float* sums) {
    const auto add_halves = [&](unsigned at) AIE_HOST_LAMBDA {
      const __m512 sixteen = _mm512_add_ps(_mm512_loadu_ps(sums + at), _mm512_loadu_ps(sums + 32 + at));
      float all[16];
      _mm512_storeu_ps(all, sixteen);
      const __m256 eight = _mm256_add_ps(_mm256_loadu_ps(all), _mm256_loadu_ps(all + 8));
      return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    };
    float four[4];
    _mm_storeu_ps(four, _mm_add_ps(add_halves(0), add_halves(16)));
    return (four[0] + four[2]) + (four[1] + four[3]);
  }
#endif

  // The weights of a group of columns, row by row, of which each begins `apart` elements after the one before it.
  static void unpack(const std::uint8_t* block, unsigned group, std::int64_t apart, bfloat16* to) {
    Numbers numbers;
    numbers.fill(block, group, 1);
    for (unsigned plane = 0; plane < 2; ++plane) {
      alignas(64) std::uint16_t codes[4][32];
      by_fours(block + codes_at + plane * plane_bytes + group * 256, codes);
      for (unsigned four = 0; four < 4; ++four) {
        const Weights weights(codes[four], numbers, group, plane * 16 + 4 * four);
        each_of_four([&](auto r) AIE_HOST_LAMBDA { _mm512_storeu_si512(to + r * apart, weights.of[r]); });
        to += 4 * apart;
      }
    }
  }

 private:
  // Scales and minima in f32, one by one.
  struct Numbers {
    float scales[groups][rows], minima[groups][rows];

    // Those of `count` groups from `first` on.
    AIE_HOST_INLINE void fill(const std::uint8_t* block, unsigned first, unsigned count) {
      for (unsigned i = first * rows; i < (first + count) * rows; i += 16) {
        _mm512_storeu_ps(scales[0] + i, wide(block + 2 * i));
        _mm512_storeu_ps(minima[0] + i, wide(block + minima_at + 2 * i));
      }
    }
    AIE_HOST_INLINE static __m512 wide(const std::uint8_t* at) {
      const __m256i sixteen = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
      return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(sixteen), 16);
    }
    // The weights of two rows of a group, by code.
    AIE_HOST_INLINE __m512i table(unsigned group, unsigned one, unsigned other) const {
      const __m512 codes = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      const auto of = [&](unsigned row) AIE_HOST_LAMBDA {
        return _mm512_fmadd_ps(codes, _mm512_set1_ps(scales[group][row]), _mm512_set1_ps(minima[group][row]));
      };
      return rounded_to_bf16(of(one), of(other));
    }
  };

  // 32 columns of 16 rows: four codes of every column together.
  AIE_HOST_INLINE static void by_fours(const std::uint8_t* from, std::uint16_t (&to)[4][32]) {
    __m512i in[4];
    each_of_four([&](auto i) AIE_HOST_LAMBDA { in[i] = _mm512_loadu_si512(from + 64 * i); });
    alignas(64) static constexpr std::uint16_t order[2][32] = {{0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60,
                                                                1, 5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45, 49, 53, 57, 61},
                                                               {2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62,
                                                                3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 47, 51, 55, 59, 63}};
    for (unsigned two = 0; two < 2; ++two) {
      const __m512i places = _mm512_load_si512(order[two]);
      const __m512i first = _mm512_permutex2var_epi16(in[0], places, in[1]);
      const __m512i last = _mm512_permutex2var_epi16(in[2], places, in[3]);
      _mm512_store_si512(to[2 * two], _mm512_shuffle_i64x2(first, last, 0x44));
      _mm512_store_si512(to[2 * two + 1], _mm512_shuffle_i64x2(first, last, 0xee));
    }
  }
  template <typename F>
  AIE_HOST_INLINE static void each_of_four(F f) {
    f(std::integral_constant<unsigned, 0>()), f(std::integral_constant<unsigned, 1>());
    f(std::integral_constant<unsigned, 2>()), f(std::integral_constant<unsigned, 3>());
  }

  // The weights of four rows in 32 columns.
  struct Weights {
    __m512i of[4];

    AIE_HOST_INLINE Weights(const std::uint16_t* codes, const Numbers& numbers, unsigned group, unsigned row) {
      const __m512i four = _mm512_load_si512(codes), nibbles = _mm512_set1_epi16(0x0f0f), second = _mm512_set1_epi16(0x1000);
      // Codes of rows 0 and 2, and of 1 and 3: the latter ones with a bit for the second table.
      const __m512i even = _mm512_ternarylogic_epi32(four, nibbles, second, 0xea);
      const __m512i odd = _mm512_ternarylogic_epi32(_mm512_srli_epi16(four, 4), nibbles, second, 0xea);
      const __m512i of_even = numbers.table(group, row, row + 2), of_odd = numbers.table(group, row + 1, row + 3);
      of[0] = _mm512_permutexvar_epi16(even, of_even);
      of[1] = _mm512_permutexvar_epi16(odd, of_odd);
      of[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(even, 8), of_even);
      of[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(odd, 8), of_odd);
    }
  };

#if defined(VNPU_BF16_DOTS)
  static void multiply_four(bool begins, const std::uint16_t (&codes)[groups][4][32], unsigned four, const Numbers& numbers,
                            unsigned row, const Pairs& x, float* sums, const char* ahead) {
    for (unsigned half = 0; half < 2; ++half) {
      __m512 sum[4][2];
      each_of_four([&](auto r) AIE_HOST_LAMBDA {
        const float* const at = sums + r * lanes_of_row + 32 * half;
        sum[r][0] = begins ? _mm512_setzero_ps() : _mm512_loadu_ps(at);
        sum[r][1] = begins ? _mm512_setzero_ps() : _mm512_loadu_ps(at + 16);
      });
#pragma GCC unroll 2
      for (unsigned pair = 0; pair < 2; ++pair) {
        const unsigned group = 4 * pair + half;
        // Evenly: a core has few requests in flight.
        vnpu::prefetch_ahead(ahead), vnpu::prefetch_ahead(ahead + 64), ahead += 128;
        if (pair) vnpu::prefetch_ahead(ahead), ahead += 64;
        const Weights earlier(codes[group][four], numbers, group, row), later(codes[group + 2][four], numbers, group + 2, row);
        const __m512bh low = (__m512bh)_mm512_load_si512(x.all[pair][half][0]);
        const __m512bh high = (__m512bh)_mm512_load_si512(x.all[pair][half][1]);
        each_of_four([&](auto r) AIE_HOST_LAMBDA {
          sum[r][0] = _mm512_dpbf16_ps(sum[r][0], (__m512bh)_mm512_unpacklo_epi16(later.of[r], earlier.of[r]), low);
          sum[r][1] = _mm512_dpbf16_ps(sum[r][1], (__m512bh)_mm512_unpackhi_epi16(later.of[r], earlier.of[r]), high);
        });
      }
      each_of_four([&](auto r) AIE_HOST_LAMBDA {
        float* const at = sums + r * lanes_of_row + 32 * half;
        _mm512_storeu_ps(at, sum[r][0]);
        _mm512_storeu_ps(at + 16, sum[r][1]);
      });
    }
  }
#endif
};

}  // namespace host
}  // namespace aie
#endif
