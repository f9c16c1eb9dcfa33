// Blocks of 8-bit weights with AVX512-BF16 and AVX512-VBMI.
//
// A byte b beside constants is 2^15 + b as f32, so one instruction makes 16 numbers of the codes of two columns, side by side
// for each row, and one multiply-add makes their weights: scale * (2^15 + 128 + code) - scale * (2^15 + 128), of which both
// products have at most 24 bits, so that the result is exact. Two registers of these are rounded into one of pairs, as they are
// multiplied. A zero has no sign then; as sums begin with +0 and so never are -0, it changes no sum.
#pragma once

#include "types.hpp"
#include "vnpu/prefetch.h"

#if defined(AIE_HOST_WEIGHT_BLOCKS) && defined(VNPU_BF16_DOTS) && defined(__AVX512VBMI__)
#define AIE_HOST_WEIGHT_BYTES 1

namespace aie {
namespace host {

struct weight_bytes {
  static constexpr unsigned rows = 32, lanes_of_row = 64, plane_rows = 16, planes = 2;
  static constexpr unsigned codes_at = 512, plane_bytes = 4096, group_bytes = 512, lines = 136, at_once = 4;
  static constexpr unsigned greatest_exponent = 254 - 16;  // of a scale, so that its products are finite

  // sums: [plane][lane][row of the plane]. pairs: x for columns i and i + 64 of each half of a block, the earlier one in the
  // upper half.
  static void multiply(bool begins, const std::uint8_t* block, const std::uint32_t (&pairs)[2][lanes_of_row], float* sums) {
    const Places places;
    const char* ahead = reinterpret_cast<const char*>(block);
    for (unsigned plane = 0; plane < planes; ++plane)
      for (unsigned half = 0; half < 2; ++half) {
        const Pair earlier(block, plane, half), later(block, plane, half + 4);
        const std::uint8_t* at = block + codes_at + plane * plane_bytes + half * group_bytes;
        vnpu::prefetch_beside_others(ahead), vnpu::prefetch_beside_others(ahead + 64), ahead += 128;
        for (unsigned i = half * 32; i < half * 32 + 32; i += at_once, at += at_once * plane_rows, ahead += 256) {
          for (unsigned line = 0; line < 256; line += 64) vnpu::prefetch_beside_others(ahead + line);
          float* const to = sums + (plane * lanes_of_row + i) * plane_rows;
          const Codes first(at), last(at + 4 * group_bytes);
          each_column([&](auto c) AIE_HOST_LAMBDA {
            __m512 sum = begins ? _mm512_setzero_ps() : _mm512_loadu_ps(to + c * plane_rows);
            sum = _mm512_dpbf16_ps(sum, earlier.weights(first, places, c), (__m512bh)_mm512_set1_epi32(int(pairs[0][i + c])));
            sum = _mm512_dpbf16_ps(sum, later.weights(last, places, c), (__m512bh)_mm512_set1_epi32(int(pairs[1][i + c])));
            _mm512_storeu_ps(to + c * plane_rows, sum);
          });
        }
      }
  }

 private:
  static constexpr __mmask64 only_codes = 0x2222222222222222u;

  template <typename F>
  AIE_HOST_INLINE static void each_column(F f) {
    f(std::integral_constant<unsigned, 0>()), f(std::integral_constant<unsigned, 1>());
    f(std::integral_constant<unsigned, 2>()), f(std::integral_constant<unsigned, 3>());
  }

  // Where the bytes of eight rows of two columns are, the later column's in even lanes; other bytes are those of 2^15.
  struct Places {
    __m512i of[at_once][2];

    AIE_HOST_INLINE Places() {
      const __m512i rows_of = _mm512_setr_epi32(64, 0, 65, 1, 66, 2, 67, 3, 68, 4, 69, 5, 70, 6, 71, 7);
      for (unsigned c = 0; c < at_once; ++c)
        for (unsigned r = 0; r < 2; ++r) {
          const __m512i at = _mm512_add_epi32(rows_of, _mm512_set1_epi32(int(c * plane_rows + r * 8)));
          of[c][r] = _mm512_or_si512(_mm512_slli_epi32(at, 8), _mm512_set1_epi32(0x47000000));
        }
    }
  };

  // Codes of four columns and of those 64 columns later, with 128 added.
  struct Codes {
    __m512i first, last;

    AIE_HOST_INLINE explicit Codes(const std::uint8_t* at) : first(bytes(at)), last(bytes(at + 2 * group_bytes)) {}
    AIE_HOST_INLINE static __m512i bytes(const std::uint8_t* at) {
      return _mm512_xor_si512(_mm512_loadu_si512(at), _mm512_set1_epi8(char(0x80)));
    }
  };

  // Scales of two groups of columns, as the lanes of Places.
  struct Pair {
    __m512 scales[2], less[2];

    AIE_HOST_INLINE Pair(const std::uint8_t* block, unsigned plane, unsigned group) {
      const auto words = [&](unsigned of) AIE_HOST_LAMBDA {
        const std::uint8_t* const at = block + (of * rows + plane * plane_rows) * 2;
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
      };
      const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(words(group)), words(group + 2), 1);
      const __m512i order = _mm512_set_epi16(7, 0, 23, 0, 6, 0, 22, 0, 5, 0, 21, 0, 4, 0, 20, 0, 3, 0, 19, 0, 2, 0, 18, 0, 1, 0,
                                             17, 0, 0, 0, 16, 0);
      for (unsigned r = 0; r < 2; ++r) {
        const __m512i places = _mm512_add_epi16(order, _mm512_set1_epi16(short(8 * r)));
        scales[r] = (__m512)_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, places, both);
        less[r] = _mm512_mul_ps(scales[r], _mm512_set1_ps(-float((1 << 15) + 128)));
      }
    }
    AIE_HOST_INLINE __m512bh weights(const Codes& codes, const Places& places, unsigned c) const {
      const auto of = [&](unsigned r) AIE_HOST_LAMBDA {
        const __m512i numbers = _mm512_mask2_permutex2var_epi8(codes.first, places.of[c][r], only_codes, codes.last);
        return _mm512_fmadd_ps(scales[r], (__m512)numbers, less[r]);
      };
      return _mm512_cvtne2ps_pbh(of(1), of(0));
    }
  };
};

}  // namespace host
}  // namespace aie
#endif
