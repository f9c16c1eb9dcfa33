// Products of panels by AMX: what a kernel's aie::mmul adds up block by block, many blocks at once and with the same bits, as
// either is given eight steps of k at a time (dots.h says the order).
//
// A panel has 8 columns, and its rows follow each other: so 8 x 8 blocks lie in it one after the other, and rows of several
// blocks are 16 bytes apart. That is how a tile wants its left factor, which is read where it lies. An instruction takes as
// long for 8 columns as for 16, so two panels of the right factor are put side by side, turned into pairs of steps, and so are
// the sums, which pass through a buffer. A tile that is loaded right after what it loads was written waits for that, so all of
// it is written before.
#pragma once

#include "vnpu/tiles.h"

namespace vnpu::dots::tiles {

constexpr int kBlock = 128, kHalf = 32;  // bytes of an 8 x 8 block of bf16, and of 8 columns of a tile

// An 8 x 8 block of bf16, row by row, as four rows of pairs of steps, so many bytes of a tile apart. rows: a bit for each step;
// one without is taken for zeros.
#if defined(__AVX512BW__)
VNPU_INLINE void store_rows(__m512i two, char *to, int apart) {
  _mm256_store_si256(reinterpret_cast<__m256i *>(to), _mm512_castsi512_si256(two));
  _mm256_store_si256(reinterpret_cast<__m256i *>(to + apart), _mm512_extracti64x4_epi64(two, 1));
}
template <bool transposed>
VNPU_INLINE void pack_block(const char *from, uint8_t rows, char *to, int apart) {
  const __m512i low = _mm512_loadu_si512(from), high = _mm512_loadu_si512(from + 64);
  if constexpr (transposed) {
    const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    store_rows(_mm512_permutex2var_epi32(low, first, high), to, apart);
    store_rows(_mm512_permutex2var_epi32(low, _mm512_add_epi32(first, _mm512_set1_epi32(2)), high), to + 2 * apart, apart);
  } else {
    const __m512i order = _mm512_set_epi64(0x001f0017001e0016, 0x001d0015001c0014, 0x001b0013001a0012, 0x0019001100180010,
                                           0x000f0007000e0006, 0x000d0005000c0004, 0x000b0003000a0002, 0x0009000100080000);
    const auto words = [rows](int first) {
      const auto of = [&](int row, uint32_t lanes) { return rows >> (first + row) & 1 ? lanes : 0u; };
      return __mmask32(of(0, 0x5555) | of(1, 0xaaaa) | of(2, 0x55550000) | of(3, 0xaaaa0000));
    };
    store_rows(_mm512_maskz_permutexvar_epi16(words(0), order, low), to, apart);
    store_rows(_mm512_maskz_permutexvar_epi16(words(4), order, high), to + 2 * apart, apart);
  }
}
#else
template <bool transposed>
VNPU_INLINE void pack_block(const char *from, uint8_t rows, char *to, int apart) {
  const auto *const block = reinterpret_cast<const uint16_t *>(from);
  for (int k = 0; k < 8; ++k) {
    auto *const pairs = reinterpret_cast<uint16_t *>(to + k / 2 * apart) + k % 2;
    for (int n = 0; n < 8; ++n) pairs[2 * n] = transposed ? block[n * 8 + k] : rows >> k & 1 ? block[k * 8 + n] : uint16_t{0};
  }
}
#endif

// c = a b, or c += a b where it adds: kRows x 8 kColumns of f32, and bf16 of 8 kSteps steps of k, all in panels. transposed: b has
// a row for each column of c.
template <int kRows, int kSteps, int kColumns, bool transposed, bool adds>
class Panels {
  static_assert(kRows % 8 == 0, "blocks have 8 rows");

 public:
  // seen: a bit for each step of k, in words of 32; the rows of b without one are taken for zeros, whatever they hold. Null:
  // all have one. A transposed b has none.
  static void multiply(const void *a, const void *b, const uint32_t *seen, float *c) {
    amx::prepare();
    const amx::Turn turn({kTileRows, kTileBytes}, {kTileRows, kLeftBytes}, {4, kTileBytes});
    Right right;
    Sums sums;
    pack(static_cast<const char *>(b), seen, right);
    if constexpr (adds) fetch(c, sums);
    add_all(static_cast<const char *>(a), right, sums);
    put(sums, c);
  }

 private:
  // Four tiles of sums are added to in turn: two of rows by two pairs of panels, where there are as many.
  static constexpr int kTileRows = kRows % 16 == 0 ? 16 : 8, kParts = kRows / kTileRows, kDown = kParts % 2 ? 1 : 2;
  static constexpr int kPairs = (kColumns + 1) / 2, kAcross = kPairs % 2 ? 1 : 2;
  static constexpr int kLeftBytes = 16, kTileBytes = 64;
  struct Right { alignas(64) char pairs[kPairs][kSteps][4][kTileBytes]; };
  struct Sums { alignas(64) char pairs[kPairs][kRows][kTileBytes]; };

  static VNPU_INLINE void add_all(const char *a, const Right &right, Sums &sums) {
    for (int pair = 0; pair < kPairs; pair += kAcross) {
      for (int part = 0; part < kParts; part += kDown) {
        add(a + part * kTileRows * kLeftBytes, right.pairs[pair][0][0], sums.pairs[pair][part * kTileRows]);
      }
    }
  }

  static VNPU_INLINE void pack(const char *b, const uint32_t *seen, Right &to) {
    for (int step = 0; step < kSteps; ++step) {
      const uint8_t rows = seen ? uint8_t(seen[step / 4] >> step % 4 * 8) : uint8_t{0xff};
      for (int column = 0; column < kColumns; ++column) {
        const int block = transposed ? step * kColumns + column : column * kSteps + step;
        pack_block<transposed>(b + block * kBlock, rows, to.pairs[column / 2][step][0] + column % 2 * kHalf, kTileBytes);
      }
      if constexpr (kColumns % 2) for (auto &row : to.pairs[kPairs - 1][step]) memset(row + kHalf, 0, kHalf);
    }
  }

  // f(eight sums in the buffer, the same in c) for all of c.
  template <class Buffer, class C, class F>
  static VNPU_INLINE void each_eight(Buffer &sums, C *c, const F &f) {
    for (int column = 0; column < kColumns; ++column) {
      for (int row = 0; row < kRows; ++row, c += 8) f(sums.pairs[column / 2][row] + column % 2 * kHalf, c);
    }
  }
  static VNPU_INLINE void fetch(const float *c, Sums &sums) {
    if constexpr (kColumns % 2) memset(sums.pairs[kPairs - 1], 0, sizeof(sums.pairs[0]));
    each_eight(sums, c, [](char *to, const float *from) { memcpy(to, from, kHalf); });
  }
  static VNPU_INLINE void put(const Sums &sums, float *c) {
    each_eight(sums, c, [](const char *from, float *to) { memcpy(to, from, kHalf); });
  }

  // To the tile that begins at `sums`, the one below, those of the next pair.
  [[gnu::noinline]] static void add(const char *a, const char *b, char *sums) {
    constexpr int kLower = kTileRows * kLeftBytes, kNext = kSteps * 4 * kTileBytes;
    using Four = amx::Sums<kDown, kAcross, kTileBytes, kRows * kTileBytes, kTileRows * kTileBytes>;
    Four::begin(!adds, sums);
#pragma GCC unroll 2
    for (int step = 0; step < kSteps; ++step, a += kRows * kLeftBytes, b += 4 * kTileBytes) {
      Four::add({a, a + kLower, kLeftBytes}, {b, b + kNext, kTileBytes});
    }
    Four::end(sums);
  }
};

}  // namespace vnpu::dots::tiles
