// Columns of b in the format of x86's bf16 instructions: every two steps of k interleaved.
#pragma once

#include "vnpu/product_kernels.h"
#if defined(__AVX512BW__)
#include <immintrin.h>
#endif

namespace vnpu::product {

struct Interleaved {
  static constexpr int kColumns = 32, kSteps = 2;
  using Packed = uint32_t;  // of one column, two steps of k

#if defined(__AVX512BW__)
  // Packs k steps; missing ones are zeros.
  static void pack(const bf16 *b, const Places &k, const Places &columns, Packed *to) {
    if (columns.count == kColumns && k.are_runs_of(32)) return pack_columns(b, k, columns, to);
    const bool whole = columns.count == kColumns && columns.are_runs_of(kColumns);
    const bool eights = columns.count == kColumns && columns.are_runs_of(8);
    for (i64 i = 0; i < k.count; i += 2, to += kColumns) {
      const bf16 *const even = b + k.at[i], *const odd = i + 1 < k.count ? b + k.at[i + 1] : nullptr;
      const __m512i none = _mm512_setzero_si512();
      if (whole) interleave(row(even, columns), odd ? row(odd, columns) : none, to);
      else if (eights) interleave(row_of_eights(even, columns), odd ? row_of_eights(odd, columns) : none, to);
      else interleave(row_of_any(even, columns), odd ? row_of_any(odd, columns) : none, to);
    }
  }

 private:
  static VNPU_INLINE __m512i row(const bf16 *b, const Places &columns) { return _mm512_loadu_si512(b + columns.at[0]); }
  static VNPU_INLINE __m512i row_of_eights(const bf16 *b, const Places &columns) {
    const auto eight = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(b + columns.at[8 * i])); };
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(eight(0)), eight(1), 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(eight(2)), eight(3), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  static VNPU_INLINE __m512i row_of_any(const bf16 *b, const Places &columns) {
    alignas(64) bf16 buffer[kColumns] = {};
    gather(b, columns, buffer);
    return _mm512_load_si512(buffer);
  }

  static VNPU_INLINE void interleave(__m512i even, __m512i odd, Packed *to) {
    alignas(64) static constexpr uint16_t kOrder[2][32] = {
        {0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
        {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
         24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
    for (int half = 0; half < 2; ++half) {
      _mm512_store_si512(to + 16 * half, _mm512_permutex2var_epi16(even, _mm512_load_si512(kOrder[half]), odd));
    }
  }

  // b transposed: a column is a run of k. Transposes squares of 16 columns by 16 pairs.
  static void pack_columns(const bf16 *b, const Places &k, const Places &columns, Packed *to) {
    for (int first = 0; first < kColumns; first += 16, to += 16) {
      for (i64 i = 0; i < k.count; i += 32) {
        __m512i pairs[16];
#pragma GCC unroll 16
        for (int n = 0; n < 16; ++n) pairs[n] = _mm512_loadu_si512(b + k.at[i] + columns.at[first + n]);
        transpose(pairs);
#pragma GCC unroll 16
        for (int pair = 0; pair < 16; ++pair) _mm512_store_si512(to + (i / 2 + pair) * kColumns, pairs[pair]);
      }
    }
  }

  // Transposes 4 x 4 elements within every 16 bytes of four rows, then these 16 bytes themselves.
  static VNPU_INLINE void transpose(__m512i (&rows)[16]) {
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
      const __m512i a = _mm512_unpacklo_epi32(rows[i], rows[i + 1]), b = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
      const __m512i c = _mm512_unpacklo_epi32(rows[i + 2], rows[i + 3]), d = _mm512_unpackhi_epi32(rows[i + 2], rows[i + 3]);
      rows[i] = _mm512_unpacklo_epi64(a, c);
      rows[i + 1] = _mm512_unpackhi_epi64(a, c);
      rows[i + 2] = _mm512_unpacklo_epi64(b, d);
      rows[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    const auto even = [](__m512i x, __m512i y) { return _mm512_shuffle_i32x4(x, y, 0x88); };
    const auto odd = [](__m512i x, __m512i y) { return _mm512_shuffle_i32x4(x, y, 0xdd); };
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i a = even(rows[i], rows[i + 4]), b = odd(rows[i], rows[i + 4]);
      const __m512i c = even(rows[i + 8], rows[i + 12]), d = odd(rows[i + 8], rows[i + 12]);
      rows[i] = even(a, c);
      rows[i + 4] = even(b, d);
      rows[i + 8] = odd(a, c);
      rows[i + 12] = odd(b, d);
    }
  }
#else
  static void pack(const bf16 *b, const Places &k, const Places &columns, Packed *to) {
    for (i64 i = 0; i < k.count; i += 2, to += kColumns) {
      for (int n = 0; n < kColumns; ++n) to[n] = bits(b, k, i, columns, n) | uint32_t(bits(b, k, i + 1, columns, n)) << 16;
    }
  }

 private:
  static uint16_t bits(const bf16 *b, const Places &k, i64 i, const Places &columns, int n) {
    return i < k.count && n < columns.count ? b[k.at[i] + columns.at[n]].bits : 0;
  }
#endif
};

}  // namespace vnpu::product
