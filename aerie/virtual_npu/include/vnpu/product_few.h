// Micro-kernels for few rows. product_few_rows.h feeds them.
//
// Columns of b are runs of k. Eight columns over 32 steps are a piece, 512 bytes, which is transposed in registers so that a
// vector has the same steps of k of neighbouring columns. A panel of kColumns columns is transposed into a buffer in L1. All
// sums of kRows rows of a panel are in registers. Orders of sums and bits are those of the micro-kernels of many rows:
//
//   FewPairs    pairs        AVX512-BF16, 8 x 32 sums
//   FewPlain    one by one   AVX-512, 8 x 32 sums, widened when they are multiplied; AVX2, 4 x 24, widened when transposed
//
// Other instruction sets have none (Unserved).
#pragma once

#include "vnpu/product_kernels.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace vnpu::product {

struct Unserved {};
inline constexpr int kPieceColumns = 8, kPieceSteps = 32, kPiecePairs = kPieceSteps / 2;

#if defined(__AVX2__)

VNPU_INLINE void store_eight(void *to, __m256i eight) { _mm256_store_si256(static_cast<__m256i *>(to), eight); }

// The f32 of either bf16 of a pair: the first, of an even step, is in the lower half.
VNPU_INLINE __m256i even_of(__m256i pairs) { return _mm256_slli_epi32(pairs, 16); }
VNPU_INLINE __m256i odd_of(__m256i pairs) { return _mm256_and_si256(pairs, _mm256_set1_epi32(int(0xffff0000u))); }

#if defined(__AVX512F__)
// Transposes four vectors of 16 pairs within every 16 bytes, which are four pairs.
VNPU_INLINE void turn_fours(const bf16 *from, const i64 *columns, __m512i *to) {
  __m512i in[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) in[i] = _mm512_loadu_si512(from + columns[i]);
  const __m512i a = _mm512_unpacklo_epi32(in[0], in[1]), b = _mm512_unpackhi_epi32(in[0], in[1]);
  const __m512i c = _mm512_unpacklo_epi32(in[2], in[3]), d = _mm512_unpackhi_epi32(in[2], in[3]);
  to[0] = _mm512_unpacklo_epi64(a, c);
  to[1] = _mm512_unpackhi_epi64(a, c);
  to[2] = _mm512_unpacklo_epi64(b, d);
  to[3] = _mm512_unpackhi_epi64(b, d);
}

// Transposes a piece: calls put(pair, the pairs of two steps of eight columns) for each of 16 pairs.
template <class Put>
VNPU_INLINE void turn_piece(const bf16 *from, const i64 *columns, const Put &put) {
  __m512i left[4], right[4];
  turn_fours(from, columns, left);
  turn_fours(from, columns + 4, right);
  const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i first = _mm512_permutex2var_epi64(left[i], low, right[i]);
    const __m512i second = _mm512_permutex2var_epi64(left[i], high, right[i]);
    put(i, _mm512_castsi512_si256(first));
    put(i + 4, _mm512_extracti64x4_epi64(first, 1));
    put(i + 8, _mm512_castsi512_si256(second));
    put(i + 12, _mm512_extracti64x4_epi64(second, 1));
  }
}
#else
// Transposes a piece: calls put(pair, the pairs of two steps of eight columns) for each of 16 pairs.
template <class Put>
VNPU_INLINE void turn_piece(const bf16 *from, const i64 *columns, const Put &put) {
#pragma GCC unroll 2
  for (int half = 0; half < kPiecePairs; half += 8) {
    __m256i fours[8];
#pragma GCC unroll 2
    for (int n = 0; n < 8; n += 4) {
      __m256i in[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        in[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from + columns[n + i] + 2 * half));
      }
      const __m256i a = _mm256_unpacklo_epi32(in[0], in[1]), b = _mm256_unpackhi_epi32(in[0], in[1]);
      const __m256i c = _mm256_unpacklo_epi32(in[2], in[3]), d = _mm256_unpackhi_epi32(in[2], in[3]);
      fours[n] = _mm256_unpacklo_epi64(a, c);
      fours[n + 1] = _mm256_unpackhi_epi64(a, c);
      fours[n + 2] = _mm256_unpacklo_epi64(b, d);
      fours[n + 3] = _mm256_unpackhi_epi64(b, d);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      put(half + i, _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x20));
      put(half + i + 4, _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x31));
    }
  }
}
#endif
#endif

#if defined(__AVX512F__)
// 8 x 32 sums.
struct Few512 {
  static constexpr int kRows = 8, kColumns = 32, kVectors = 2, kLanes = 16;
  static constexpr bool kFetches = true;  // whether prefetching a piece from L2 before it is transposed pays
  template <int Rows>
  // A piece is transposed whenever this many pairs of steps were added to at most 8 rows.
  static constexpr int kPairsAPiece = 4;
  using Packed = uint32_t;                // of one column, two steps of k
  static constexpr int kPacked = kColumns;  // a pair of steps of a panel
  typedef float Floats __attribute__((vector_size(kLanes * 4)));

  static VNPU_INLINE void turn(const bf16 *b, const i64 *columns, Packed *to) {
    turn_piece(b, columns, [&](int pair, __m256i eight) { store_eight(to + pair * kPacked, eight); });
  }
};

struct FewPlain : Few512 {
  static constexpr bool kAddsPairs = false;  // whether products are added in pairs of steps
  static constexpr int kMinRows = 1;  // rows of c are taken kRows at a time, the last ones in halves of that, down to this many
  static constexpr int kMaxRowsPrefetchedTwice = 2;  // rows that leave time to prefetch lines of b twice if memory is busy
  using Left = float;
  static constexpr int kLefts = 2 * kRows;  // for a pair of steps: the numbers of the even one, then those of the odd one

  // Packs eight rows of a over a piece's steps. Each kRows rows take kLefts numbers per pair of steps.
  static void pack_rows(const bf16 *a, const i64 *rows, Left *to, i64) {
    turn_piece(a, rows, [&](int pair, __m256i eight) {
      store_eight(to + pair * kLefts, even_of(eight));
      store_eight(to + pair * kLefts + kRows, odd_of(eight));
    });
  }
  // Adds the products of a pair of steps to the sums of the first rows.
  template <int Rows>
  static VNPU_INLINE void add(const Left *a, const Packed *b, Floats (&sums)[Rows][kVectors]) {
    const __m512i low = _mm512_load_si512(b), high = _mm512_load_si512(b + kLanes);
    add_step(a, _mm512_slli_epi32(low, 16), _mm512_slli_epi32(high, 16), sums);
    const __m512i odd = _mm512_set1_epi32(int(0xffff0000u));
    add_step(a + kRows, _mm512_and_si512(low, odd), _mm512_and_si512(high, odd), sums);
  }

 private:
  template <int Rows>
  static VNPU_INLINE void add_step(const Left *a, __m512i low, __m512i high, Floats (&sums)[Rows][kVectors]) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const __m512 factor = _mm512_set1_ps(a[r]);
      sums[r][0] = (Floats)_mm512_fmadd_ps(factor, (__m512)low, (__m512)sums[r][0]);
      sums[r][1] = (Floats)_mm512_fmadd_ps(factor, (__m512)high, (__m512)sums[r][1]);
    }
  }
};
using FewMadePlain = FewPlain;
#elif defined(__AVX2__)
struct FewPlain {
  static constexpr int kMinRows = 1;
  static constexpr int kMaxRowsPrefetchedTwice = 0;
  static constexpr int kRows = 4, kColumns = 24, kVectors = 3, kLanes = 8;
  static constexpr bool kFetches = false;
  template <int Rows>
  static constexpr int kPairsAPiece = Rows <= 2 ? 8 : 16;  // for more rows, sums leave their registers in between
  using Left = float;
  static constexpr int kLefts = 2 * kRows;  // for a pair of steps: the numbers of the even one, then those of the odd one
  using Packed = float;
  static constexpr int kPacked = 2 * kColumns;
  typedef float Floats __attribute__((vector_size(kLanes * 4)));

  static VNPU_INLINE void turn(const bf16 *b, const i64 *columns, Packed *to) {
    turn_piece(b, columns, [&](int pair, __m256i eight) {
      store_eight(to + pair * kPacked, even_of(eight));
      store_eight(to + pair * kPacked + kColumns, odd_of(eight));
    });
  }
  // Packs eight rows of a over a piece's steps. Each kRows rows take kLefts numbers per pair of steps.
  static void pack_rows(const bf16 *a, const i64 *rows, Left *to, i64 apart) {
    turn_piece(a, rows, [&](int pair, __m256i eight) {
      store_fours(to + pair * kLefts, apart, even_of(eight));
      store_fours(to + pair * kLefts + kRows, apart, odd_of(eight));
    });
  }
  // Adds the products of a pair of steps to the sums of the first rows.
  template <int Rows>
  static VNPU_INLINE void add(const Left *a, const Packed *b, Floats (&sums)[Rows][kVectors]) {
    add_apart<kColumns>(a, b, sums);
  }
  // Apart: from one step of b to the next.
  template <int Apart, int Rows, int Vectors>
  static VNPU_INLINE void add_apart(const Left *a, const Packed *b, Floats (&sums)[Rows][Vectors]) {
#pragma GCC unroll 2
    for (int step = 0; step < 2; ++step, a += kRows, b += Apart) {
      __m256 right[Vectors];
#pragma GCC unroll 3
      for (int v = 0; v < Vectors; ++v) right[v] = _mm256_load_ps(b + v * kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        const __m256 factor = _mm256_set1_ps(a[r]);
#pragma GCC unroll 3
        for (int v = 0; v < Vectors; ++v) {
          sums[r][v] = (Floats)_mm256_fmadd_ps(factor, right[v], (__m256)sums[r][v]);
        }
      }
    }
  }

 private:
  static VNPU_INLINE void store_fours(Left *to, i64 apart, __m256i eight) {
    _mm_store_si128(reinterpret_cast<__m128i *>(to), _mm256_castsi256_si128(eight));
    _mm_store_si128(reinterpret_cast<__m128i *>(to + apart), _mm256_extracti128_si256(eight, 1));
  }
};

// By what a function makes in panels of 32 columns: 4 x 16 sums at a time.
struct FewMadePlain : FewPlain {
  static constexpr bool kAddsPairs = false;
  static constexpr int kColumns = 16, kVectors = 2, kPacked = 2 * 32;
  template <int Rows>
  static VNPU_INLINE void add(const Left *a, const Packed *b, Floats (&sums)[Rows][kVectors]) {
    add_apart<32>(a, b, sums);
  }
};
#else
using FewPlain = Unserved;
using FewMadePlain = Unserved;
#endif

#if defined(VNPU_BF16_DOTS)
struct FewPairs : Few512 {
  static constexpr bool kAddsPairs = true;
  static constexpr int kMinRows = kRows;  // fewer are no faster
  static constexpr int kMaxRowsPrefetchedTwice = kRows;
  using Left = uint32_t;  // two steps of a row
  static constexpr int kLefts = kRows;  // of a pair of steps

  // Packs eight rows of a over a piece's steps. Each kRows rows take kLefts numbers per pair of steps.
  static void pack_rows(const bf16 *a, const i64 *rows, Left *to, i64) {
    turn_piece(a, rows, [&](int pair, __m256i eight) { store_eight(to + pair * kLefts, eight); });
  }
  // Adds the products of a pair of steps to the sums of the first rows.
  template <int Rows>
  static VNPU_INLINE void add(const Left *a, const Packed *b, Floats (&sums)[Rows][kVectors]) {
    dots::pairs::add_rows(a, b, sums);
  }
};
#endif

}  // namespace vnpu::product
