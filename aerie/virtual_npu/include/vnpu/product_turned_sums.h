// Sums of 32 x 32 for tiles, one row for each column of c: transposed in registers between c and the tiles.
#pragma once

#include "vnpu/product_kernels.h"
#if defined(VNPU_BF16_DOTS)
#include <immintrin.h>
#endif

namespace vnpu::product {

inline constexpr int kSumsSide = 32;

// Some rows and columns of c, at most kSumsSide of either.
struct Sums {
  float *c;
  bf16 *rounded;        // in place of c
  const i64 *columns;
  i64 rows[kSumsSide];  // missing rows repeat the last one
  int count_columns, count_rows;
  bool in_eights;       // whether columns are a multiple of eight, each eight contiguous
  bool in_lines;  // whether there are kSumsSide columns, all contiguous, and rounded ones occupy whole cache lines
};

#if defined(VNPU_BF16_DOTS)
// See round_bf16.
VNPU_INLINE __m256i round_sums(__m512 sums) {
  const __m512i bits = _mm512_castps_si512(sums), upper = _mm512_srli_epi32(bits, 16);
  const __m512i half = _mm512_add_epi32(_mm512_and_si512(upper, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x7fff));
  const __m512i even = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(sums, sums, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(even, is_nan, upper, _mm512_set1_epi32(0x40)));
}
// 16 rows by eight columns of them.
class Eight {
 public:
  // From c. A vector has two rows, as far apart as the transposition of four vectors needs.
  VNPU_INLINE Eight(const float *c, const i64 *rows) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const __m512 low = _mm512_castps256_ps512(_mm256_loadu_ps(c + rows[row_of(i)]));
      sums_[i] = _mm512_insertf32x8(low, _mm256_loadu_ps(c + rows[row_of(i) + 4]), 1);
    }
  }
  // From transposed rows.
  VNPU_INLINE explicit Eight(const float *turned) {
#pragma GCC unroll 8
    for (int n = 0; n < 8; ++n) sums_[n] = _mm512_load_ps(turned + n * kSumsSide);
  }
  // All their bits.
  VNPU_INLINE __m512i any() const {
    __m512i found = _mm512_castps_si512(sums_[0]);
#pragma GCC unroll 8
    for (int i = 1; i < 8; ++i) found = _mm512_or_si512(found, _mm512_castps_si512(sums_[i]));
    return found;
  }
  // Transposes what came from c.
  VNPU_INLINE void turn(float *to) {
    turn_fours(sums_);
    turn_fours(sums_ + 4);
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) {
      _mm512_store_ps(to + n * kSumsSide, _mm512_shuffle_f32x4(sums_[n], sums_[n + 4], 0x88));
      _mm512_store_ps(to + (n + 4) * kSumsSide, _mm512_shuffle_f32x4(sums_[n], sums_[n + 4], 0xdd));
    }
  }
  // Transposes what came from transposed rows: put(m, two rows of c): row m, and the fourth row after it.
  template <class Put>
  VNPU_INLINE void turn_back(const Put &put) {
    const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) {
      const __m512d left = _mm512_castps_pd(sums_[n]), right = _mm512_castps_pd(sums_[n + 4]);
      sums_[n] = _mm512_castpd_ps(_mm512_permutex2var_pd(left, low, right));
      sums_[n + 4] = _mm512_castpd_ps(_mm512_permutex2var_pd(left, high, right));
    }
    turn_fours(sums_);
    turn_fours(sums_ + 4);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) put(row_of(i), sums_[i]);
  }

  // The first row of a vector; the other row is the fourth after it.
  static constexpr int row_of(int vector) { return vector / 4 * 8 + vector % 4; }

 private:
  // Transposes four vectors within every 16 bytes.
  static VNPU_INLINE void turn_fours(__m512 *rows) {
    const __m512 a = _mm512_unpacklo_ps(rows[0], rows[1]), b = _mm512_unpackhi_ps(rows[0], rows[1]);
    const __m512 c = _mm512_unpacklo_ps(rows[2], rows[3]), d = _mm512_unpackhi_ps(rows[2], rows[3]);
    rows[0] = _mm512_shuffle_ps(a, c, 0x44);
    rows[1] = _mm512_shuffle_ps(a, c, 0xee);
    rows[2] = _mm512_shuffle_ps(b, d, 0x44);
    rows[3] = _mm512_shuffle_ps(b, d, 0xee);
  }

  __m512 sums_[8];
};
#endif

// Makes stores past the caches visible to other threads.
inline void end_stores() {
#if defined(VNPU_BF16_DOTS)
  _mm_sfence();
#endif
}

struct alignas(64) TurnedSums {
  static constexpr int kSide = kSumsSide;
  float rows[kSide][kSide];

  // Takes sums, unless all of them are +0; returns false if they are.
  bool fill(const Sums &sums) {
#if defined(VNPU_BF16_DOTS)
    if (sums.in_eights) {
      if (!has_any(sums)) return false;
      each_eight(sums, [&](i64 at, int n, int m) { Eight(sums.c + at, sums.rows + m).turn(&rows[n][m]); });
      return true;
    }
#endif
    for (int n = 0; n < sums.count_columns; ++n) {
      for (int m = 0; m < kSide; ++m) rows[n][m] = sums.c[sums.columns[n] + sums.rows[m]];
    }
    return true;
  }
  void drain(const Sums &sums) const {
    if (sums.rounded) drain_to(sums.rounded, sums);
    else drain_to(sums.c, sums);
  }

 private:
  template <class T>
  void drain_to(T *c, const Sums &sums) const {
#if defined(VNPU_BF16_DOTS)
    if (same_type<T, bf16> && sums.in_lines) return drain_lines(sums);
    if (sums.in_eights) {
      return each_eight(sums, [&](i64 at, int n, int m) {
        Eight(&rows[n][m]).turn_back([&](int row, __m512 two) {
          put_row(c + at, sums, m + row, two);
          put_row(c + at, sums, m + row + 4, _mm512_castps256_ps512(_mm512_extractf32x8_ps(two, 1)));
        });
      });
    }
#endif
    for (int n = 0; n < sums.count_columns; ++n) {
      for (int m = 0; m < sums.count_rows; ++m) put(rows[n][m], c + sums.columns[n] + sums.rows[m]);
    }
  }
  static void put(float sum, float *c) { *c = sum; }
  static void put(float sum, bf16 *c) { *c = round_bf16(sum); }
#if defined(VNPU_BF16_DOTS)
  static bool has_any(const Sums &sums) {
    __m512i any = _mm512_setzero_si512();
    each_eight(sums, [&](i64 at, int, int m) { any = _mm512_or_si512(any, Eight(sums.c + at, sums.rows + m).any()); });
    return _mm512_test_epi32_mask(any, any) != 0;
  }
  // The first eight of them.
  static VNPU_INLINE void put_row(float *c, const Sums &sums, int m, __m512 eight) {
    if (m < sums.count_rows) _mm256_storeu_ps(c + sums.rows[m], _mm512_castps512_ps256(eight));
  }
  static VNPU_INLINE void put_row(bf16 *c, const Sums &sums, int m, __m512 eight) {
    if (m >= sums.count_rows) return;
    _mm_storeu_si128(reinterpret_cast<__m128i *>(c + sums.rows[m]), _mm256_castsi256_si128(round_sums(eight)));
  }
  // Stores rounded sums a cache line at a time, past the caches: loading each line first, only to overwrite it, would cost as
  // much as a fifth of the multiplications. Rows of c may be so far apart that L1 does not hold many of them.
  void drain_lines(const Sums &sums) const {
    bf16 *const c = sums.rounded + sums.columns[0];
    for (int m = 0; m < kSide; m += 16) {
      __m256i twos[4][8];  // of eight columns, two rows
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) {
        int i = 0;
        Eight(&rows[8 * n][m]).turn_back([&](int, __m512 two) { twos[n][i++] = round_sums(two); });
      }
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const int row = m + Eight::row_of(i);
        const auto lows = [&](int n) { return _mm256_permute2x128_si256(twos[n][i], twos[n + 1][i], 0x20); };
        const auto highs = [&](int n) { return _mm256_permute2x128_si256(twos[n][i], twos[n + 1][i], 0x31); };
        if (row < sums.count_rows) put_line(c + sums.rows[row], lows(0), lows(2));
        if (row + 4 < sums.count_rows) put_line(c + sums.rows[row + 4], highs(0), highs(2));
      }
    }
  }
  static VNPU_INLINE void put_line(bf16 *c, __m256i left, __m256i right) {
    _mm512_stream_si512(reinterpret_cast<__m512i *>(c), _mm512_inserti64x4(_mm512_castsi256_si512(left), right, 1));
  }

  template <class Each>
  static VNPU_INLINE void each_eight(const Sums &sums, const Each &each) {
    for (int n = 0; n < sums.count_columns; n += 8) {
      for (int m = 0; m < sums.count_rows; m += 16) each(sums.columns[n], n, m);
    }
  }
#endif
};

}  // namespace vnpu::product
