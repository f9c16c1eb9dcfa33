// Sums of 32 x 32 for tiles, a row for each column of c: turned in registers on their way from c and back.
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
  const i64 *columns;
  i64 rows[kSumsSide];  // those that are missing as the last one
  int count_columns, count_rows;
  bool in_eights;       // whether columns are a multiple of eight, of which each eight lie side by side
};

#if defined(VNPU_BF16_DOTS)
// 16 rows by eight columns of them.
class Eight {
 public:
  // From c. A vector has two rows, as far apart as four vectors of columns want them.
  VNPU_INLINE Eight(const float *c, const i64 *rows) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const __m512 low = _mm512_castps256_ps512(_mm256_loadu_ps(c + rows[row_of(i)]));
      sums_[i] = _mm512_insertf32x8(low, _mm256_loadu_ps(c + rows[row_of(i) + 4]), 1);
    }
  }
  // From turned rows.
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
  // What came from c, to turned rows.
  VNPU_INLINE void turn(float *to) {
    turn_fours(sums_);
    turn_fours(sums_ + 4);
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) {
      _mm512_store_ps(to + n * kSumsSide, _mm512_shuffle_f32x4(sums_[n], sums_[n + 4], 0x88));
      _mm512_store_ps(to + (n + 4) * kSumsSide, _mm512_shuffle_f32x4(sums_[n], sums_[n + 4], 0xdd));
    }
  }
  // What came from turned rows, to the first rows of c.
  VNPU_INLINE void turn_back(float *c, const i64 *rows, int count) {
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
    for (int i = 0; i < 8; ++i) {
      const int m = row_of(i);
      if (m < count) _mm256_storeu_ps(c + rows[m], _mm512_castps512_ps256(sums_[i]));
      if (m + 4 < count) _mm256_storeu_ps(c + rows[m + 4], _mm512_extractf32x8_ps(sums_[i], 1));
    }
  }

 private:
  // The first row of a vector; the other one is the fourth after it.
  static constexpr int row_of(int vector) { return vector / 4 * 8 + vector % 4; }
  // In every 16 bytes of four vectors, rows become columns.
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

struct alignas(64) TurnedSums {
  static constexpr int kSide = kSumsSide;
  float rows[kSide][kSide];

  // Takes sums, unless all of them are +0; false if they are.
  bool fill(const Sums &sums) {
#if defined(VNPU_BF16_DOTS)
    if (sums.in_eights) {
      if (!has_any(sums)) return false;
      each_eight(sums, [&](float *c, int n, int m) { Eight(c, sums.rows + m).turn(&rows[n][m]); });
      return true;
    }
#endif
    for (int n = 0; n < sums.count_columns; ++n) {
      for (int m = 0; m < kSide; ++m) rows[n][m] = sums.c[sums.columns[n] + sums.rows[m]];
    }
    return true;
  }
  void drain(const Sums &sums) const {
#if defined(VNPU_BF16_DOTS)
    if (sums.in_eights) {
      return each_eight(sums, [&](float *c, int n, int m) {
        Eight(&rows[n][m]).turn_back(c, sums.rows + m, sums.count_rows - m);
      });
    }
#endif
    for (int n = 0; n < sums.count_columns; ++n) {
      for (int m = 0; m < sums.count_rows; ++m) sums.c[sums.columns[n] + sums.rows[m]] = rows[n][m];
    }
  }

 private:
#if defined(VNPU_BF16_DOTS)
  static bool has_any(const Sums &sums) {
    __m512i any = _mm512_setzero_si512();
    each_eight(sums, [&](float *c, int, int m) { any = _mm512_or_si512(any, Eight(c, sums.rows + m).any()); });
    return _mm512_test_epi32_mask(any, any) != 0;
  }
  template <class Each>
  static VNPU_INLINE void each_eight(const Sums &sums, const Each &each) {
    for (int n = 0; n < sums.count_columns; n += 8) {
      for (int m = 0; m < sums.count_rows; m += 16) each(sums.c + sums.columns[n], n, m);
    }
  }
#endif
};

}  // namespace vnpu::product
