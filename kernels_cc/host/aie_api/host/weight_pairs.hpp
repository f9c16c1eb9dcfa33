// Blocks of quantised weights by pairs of columns, with AVX-512: what few rows are multiplied by.
//
// A vector has the weights of eight rows in a column and the next one, side by side, and two of these are rounded into one of
// 16 rows in bf16. With AVX512-VBMI one instruction brings 16 codes above the bits of 2^15, which is then taken away. Products
// take other units of the CPU than most of this, so with AVX512-BF16 those by the group before are added in the same loop.
#pragma once

#include "types.hpp"
#include "vnpu/dots.h"
#include "vnpu/prefetch.h"

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

template <unsigned Bits>
struct weight_pairs {
  static constexpr unsigned rows = 32, planes = 2, plane_rows = 16, group_columns = 32;
  static constexpr bool has_minima = Bits == 4;
  static constexpr unsigned minima_at = 512, codes_at = has_minima ? 1024 : 512;
  static constexpr unsigned column_bytes = 2 * Bits, plane_bytes = 256 * column_bytes,
                            group_bytes = group_columns * column_bytes;
  static constexpr unsigned block_bytes = codes_at + planes * plane_bytes;
  static constexpr unsigned at_once = 32 / column_bytes;  // pairs of columns in a vector of codes

  // The weights of a group of columns: 16 pairs of columns, each of 32 rows. Calls meanwhile() as many times.
  template <typename Meanwhile>
  AIE_HOST_INLINE static void unpack(const std::uint8_t* block, unsigned group, std::uint32_t* to, Meanwhile meanwhile) {
    const char* ahead = reinterpret_cast<const char*>(block) + group * (block_bytes / 8);
    for (unsigned plane = 0; plane < planes; ++plane, to += plane_rows) {
      vnpu::prefetch_ahead(ahead), ahead += 64;
      const Numbers numbers(block + group * rows * 2, plane);
      const std::uint8_t* at = block + codes_at + plane * plane_bytes + group * group_bytes;
      for (unsigned pair = 0; pair < group_columns / 2; pair += at_once, at += 64) {
        vnpu::prefetch_ahead(ahead), ahead += 64;
        const Codes codes(at);
        const Places places;
        each_pair([&](auto p) AIE_HOST_LAMBDA {
          const __m512 first = numbers.weights(codes.eight(places, p, 0), 0),
                       last = numbers.weights(codes.eight(places, p, 1), 1);
          _mm512_store_si512(to + (pair + p) * rows, rounded_to_bf16(first, last));
          if constexpr (p % 2) meanwhile();
        });
      }
    }
  }

#if defined(VNPU_BF16_DOTS)
#define AIE_HOST_WEIGHT_SUMS 1
  static void unpack_and_add(const std::uint8_t* block, unsigned group, std::uint32_t* to, const std::uint32_t* a,
                             const std::uint32_t* made, float* sums) {
    Products products(a, made, sums);
    unpack(block, group, to, [&]() AIE_HOST_LAMBDA { products.add(); });
    products.store(sums);
  }
  static void add(const std::uint32_t* a, const std::uint32_t* made, float* sums) {
    Products products(a, made, sums);
    for (unsigned pair = 0; pair < group_columns / 2; ++pair) products.add();
    products.store(sums);
  }

 private:
  // Sums of eight rows, and what is added to them: pair by pair of columns, of a the rows, of `made` 32 rows of weights.
  struct Products {
    const std::uint32_t *a, *made;
    __m512 sums[8][2];

    AIE_HOST_INLINE Products(const std::uint32_t* a, const std::uint32_t* made, const float* from) : a(a), made(made) {
#pragma GCC unroll 8
      for (unsigned r = 0; r < 8; ++r)
        sums[r][0] = _mm512_load_ps(from + rows * r), sums[r][1] = _mm512_load_ps(from + rows * r + 16);
    }
    AIE_HOST_INLINE void add() {
      vnpu::dots::pairs::add_rows(a, made, sums);
      a += 8, made += rows;
    }
    AIE_HOST_INLINE void store(float* to) const {
#pragma GCC unroll 8
      for (unsigned r = 0; r < 8; ++r)
        _mm512_store_ps(to + rows * r, sums[r][0]), _mm512_store_ps(to + rows * r + 16, sums[r][1]);
    }
  };
#endif

 private:
  template <typename F>
  AIE_HOST_INLINE static void each_pair(F f) {
    f(std::integral_constant<unsigned, 0>()), f(std::integral_constant<unsigned, 1>());
    if constexpr (at_once == 4) f(std::integral_constant<unsigned, 2>()), f(std::integral_constant<unsigned, 3>());
  }

  // Scales and minima of 16 rows in f32: eight rows each, every one twice.
  struct Numbers {
    __m512 scales[2], minima[2];

    // at: the scales of a group.
    AIE_HOST_INLINE Numbers(const std::uint8_t* at, unsigned plane) {
      for (unsigned half = 0; half < 2; ++half) {
        scales[half] = twice(at, plane * 2 + half);
        minima[half] = has_minima ? twice(at + minima_at, plane * 2 + half) : _mm512_setzero_ps();
      }
    }
    // Weights before they are rounded to bf16.
    AIE_HOST_INLINE __m512 weights(__m512 codes, unsigned half) const {
      return has_minima ? _mm512_fmadd_ps(codes, scales[half], minima[half]) : _mm512_mul_ps(codes, scales[half]);
    }

   private:
    AIE_HOST_INLINE static __m512 twice(const std::uint8_t* at, unsigned eight) {
      const __m512i order =
          _mm512_set_epi16(7, 0, 7, 0, 6, 0, 6, 0, 5, 0, 5, 0, 4, 0, 4, 0, 3, 0, 3, 0, 2, 0, 2, 0, 1, 0, 1, 0, 0, 0, 0, 0);
      const __m512i places = _mm512_add_epi16(order, _mm512_set1_epi16(short(8 * eight)));
      return (__m512)_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, places, _mm512_loadu_si512(at));
    }
  };

#if defined(__AVX512VBMI__)
  // Where the codes of eight rows of two columns are among the bytes of Codes; other bytes are those of 2^15. In memory, for the
  // registers have sums.
  struct Table {
    alignas(64) std::uint32_t of[at_once][2][16];
  };
  static constexpr Table table = [] {
    Table table{};
    for (unsigned p = 0; p < at_once; ++p)
      for (unsigned half = 0; half < 2; ++half)
        for (unsigned lane = 0; lane < 16; ++lane) {
          const unsigned row = lane / 2, column = 2 * p + lane % 2;
          // Codes of 4 bits are two rows in a byte, the odd ones in the second register.
          const unsigned in_column = Bits == 8 ? row : row / 2 + row % 2 * 64;
          table.of[p][half][lane] = (column * column_bytes + half * column_bytes / 2 + in_column) << 8 | 0x47000000u;
        }
    return table;
  }();
  struct Places {
    const Table* of = &table;
    AIE_HOST_INLINE Places() { asm("" : "+r"(of)); }
    AIE_HOST_INLINE __m512i at(unsigned p, unsigned half) const { return _mm512_load_si512(of->of[p][half]); }
  };

  // Codes of some columns as bytes: of 4 bits those of even and of odd rows, of 8 bits with 128 added.
  struct Codes {
    __m512i even, odd;

    AIE_HOST_INLINE explicit Codes(const std::uint8_t* at) {
      const __m512i all = _mm512_loadu_si512(at), nibbles = _mm512_set1_epi8(15);
      even = Bits == 8 ? _mm512_xor_si512(all, _mm512_set1_epi8(char(0x80))) : _mm512_and_si512(all, nibbles);
      odd = Bits == 8 ? even : _mm512_and_si512(_mm512_srli_epi16(all, 4), nibbles);
    }
    AIE_HOST_INLINE __m512 eight(const Places& places, unsigned pair, unsigned half) const {
      constexpr __mmask64 only_codes = 0x2222222222222222u;
      const __m512i above = _mm512_mask2_permutex2var_epi8(even, places.at(pair, half), only_codes, odd);
      return _mm512_sub_ps((__m512)above, _mm512_set1_ps((1 << 15) + (Bits == 8 ? 128 : 0)));
    }
  };
#else
  struct Places {};

  struct Codes {
    const std::uint8_t* const from;

    AIE_HOST_INLINE explicit Codes(const std::uint8_t* at) : from(at) {}
    AIE_HOST_INLINE __m512 eight(const Places&, unsigned pair, unsigned half) const {
      const std::uint8_t* const at = from + 2 * pair * column_bytes + half * column_bytes / 2;
      if constexpr (Bits == 4) {
        std::uint64_t columns[2] = {};
        std::memcpy(&columns[0], at, 4), std::memcpy(&columns[1], at + column_bytes, 4);
        const __m512i both = _mm512_set1_epi64(std::int64_t(columns[0] | columns[1] << 32));
        const __m512i shifts = _mm512_setr_epi64(0, 4, 8, 12, 16, 20, 24, 28);
        const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        return _mm512_permutexvar_ps(_mm512_srlv_epi64(both, shifts), numbers);
      } else {
        const __m128i first = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
        const __m128i last = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at + column_bytes));
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_unpacklo_epi8(first, last)));
      }
    }
  };
#endif
};

}  // namespace host
}  // namespace aie
#endif
