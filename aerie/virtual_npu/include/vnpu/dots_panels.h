// Products of panels by AMX: the sum that a kernel's aie::mmul computes block by block, for many blocks at once and with the
// same bits, because both sum 32 steps of k, four blocks, together (dots.h defines the order).
//
// A panel has 8 columns, and its rows follow each other, so its 8 x 8 blocks are contiguous. A tile of sums is 16 rows of 8
// columns, directly in c: an instruction takes as long for 8 columns as for 16, but interleaving two panels and back would take
// longer than it saves. One row of a factor's tile has steps of four panels, so both factors are packed first: loading a tile
// waits if its memory was written just before.
#pragma once

#include "vnpu/tiles.h"

namespace vnpu::dots::tiles {

// Blocks that are summed together; bytes of an 8 x 8 block of bf16, and of its rows.
constexpr int kBlocks = 4, kBlock = 128, kBlockRow = 16;

// Packs four rows of a group's blocks of the left factor, which are `apart` bytes apart, side by side. Missing blocks are -0
// here and +0 in the right factor: that changes no sum, not even the sign of a zero.
template <int blocks, int apart>
VNPU_INLINE void pack_rows(const char *from, char *to, int row_bytes) {
#if defined(__AVX512F__)
  __m512i rows[kBlocks];
  for (int i = 0; i < kBlocks; ++i) {
    rows[i] = i < blocks ? _mm512_loadu_si512(from + i * apart) : _mm512_set1_epi16(int16_t(0x8000));
  }
  // Rows 0 and 2, or 1 and 3, of each two blocks.
  const auto even = [](__m512i a, __m512i b) { return _mm512_shuffle_i32x4(a, b, 0x88); };
  const auto odd = [](__m512i a, __m512i b) { return _mm512_shuffle_i32x4(a, b, 0xdd); };
  const __m512i evens[] = {even(rows[0], rows[1]), even(rows[2], rows[3])};
  const __m512i odds[] = {odd(rows[0], rows[1]), odd(rows[2], rows[3])};
  _mm512_storeu_si512(to, even(evens[0], evens[1]));
  _mm512_storeu_si512(to + row_bytes, even(odds[0], odds[1]));
  _mm512_storeu_si512(to + 2 * row_bytes, odd(evens[0], evens[1]));
  _mm512_storeu_si512(to + 3 * row_bytes, odd(odds[0], odds[1]));
#else
  const uint16_t none[8] = {0x8000, 0x8000, 0x8000, 0x8000, 0x8000, 0x8000, 0x8000, 0x8000};
  for (int row = 0; row < 4; ++row) {
    for (int i = 0; i < kBlocks; ++i) {
      memcpy(to + row * row_bytes + i * kBlockRow, i < blocks ? from + i * apart + row * kBlockRow : (const char *)none,
             kBlockRow);
    }
  }
#endif
}

// Packs a block of the right factor, row by row, as four rows of pairs of steps. rows: one bit per step; a step without its bit
// counts as zeros.
template <bool transposed>
VNPU_INLINE void pack_block(const char *from, uint8_t rows, char *to) {
#if defined(__AVX512BW__)
  const __m512i low = _mm512_loadu_si512(from), high = _mm512_loadu_si512(from + 64);
  if constexpr (transposed) {
    const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi32(low, first, high));
    _mm512_storeu_si512(to + 64, _mm512_permutex2var_epi32(low, _mm512_add_epi32(first, _mm512_set1_epi32(2)), high));
  } else {
    const __m512i order = _mm512_set_epi64(0x001f0017001e0016, 0x001d0015001c0014, 0x001b0013001a0012, 0x0019001100180010,
                                           0x000f0007000e0006, 0x000d0005000c0004, 0x000b0003000a0002, 0x0009000100080000);
    const auto words = [rows](int first) {
      const auto of = [&](int row, uint32_t lanes) { return rows >> (first + row) & 1 ? lanes : 0u; };
      return __mmask32(of(0, 0x5555) | of(1, 0xaaaa) | of(2, 0x55550000) | of(3, 0xaaaa0000));
    };
    _mm512_storeu_si512(to, _mm512_maskz_permutexvar_epi16(words(0), order, low));
    _mm512_storeu_si512(to + 64, _mm512_maskz_permutexvar_epi16(words(4), order, high));
  }
#else
  const auto *const block = reinterpret_cast<const uint16_t *>(from);
  auto *const pairs = reinterpret_cast<uint16_t *>(to);
  for (int k = 0; k < 8; ++k) {
    for (int n = 0; n < 8; ++n) {
      pairs[k / 2 * 16 + n * 2 + k % 2] = transposed ? block[n * 8 + k] : rows >> k & 1 ? block[k * 8 + n] : uint16_t{0};
    }
  }
#endif
}

// c = a b, or c += a b if it adds: kRows x 8 kColumns of f32, and bf16 of 8 kSteps steps of k, all in panels. transposed: b has
// one row for each column of c.
template <int kRows, int kSteps, int kColumns, bool transposed, bool adds>
class Panels {
  static_assert(kRows % 8 == 0, "blocks have 8 rows");

 public:
  // seen: one bit per step of k, in words of 32; rows of b without their bit count as zeros, whatever they hold. Null means all
  // bits are set. Not for a transposed b.
  static void multiply(const void *a, const void *b, const uint32_t *seen, float *c) {
    amx::prepare();
    const amx::Turn turn({kTileRows, kSumBytes}, {kTileRows, kGroupBytes}, {kGroupBytes / 4, kSumBytes});
    Left left;
    Right right;
    pack(static_cast<const char *>(b), seen, right);
    pack(static_cast<const char *>(a), left);
    for (int column = 0; column < kColumns; column += kAcross) {
      for (int part = 0; part < kRows; part += kTileRows * kDown) {
        add(left.rows[part], right.blocks[column], reinterpret_cast<char *>(c) + (column * kRows + part) * kSumBytes);
      }
    }
  }

 private:
  // Adds to four tiles of sums in turn: two of rows by two panels, if there are as many.
  static constexpr int kTileRows = kRows % 16 == 0 ? 16 : 8, kDown = kRows / kTileRows % 2 ? 1 : 2;
  static constexpr int kAcross = kColumns % 2 ? 1 : 2, kGroups = (kSteps + kBlocks - 1) / kBlocks;
  static constexpr int kSumBytes = 32, kGroupBytes = kBlocks * kBlockRow;  // of a row of 8 sums, and of the left factor's rows
  struct Left {
    alignas(64) char rows[kRows][kGroups * kGroupBytes];
  };
  struct Right {
    alignas(64) char blocks[kColumns][kGroups * kBlocks * kBlock];
  };

  static VNPU_INLINE void pack(const char *a, Left &to) {
    constexpr int kPanel = kRows * kBlockRow, kWhole = kSteps / kBlocks, kRemaining = kSteps % kBlocks;
    for (int row = 0; row < kRows; row += 4) {
      const char *const from = a + row * kBlockRow;
      for (int group = 0; group < kWhole; ++group) {
        pack_rows<kBlocks, kPanel>(from + group * kBlocks * kPanel, to.rows[row] + group * kGroupBytes, kGroups * kGroupBytes);
      }
      if constexpr (kRemaining > 0) {
        pack_rows<kRemaining, kPanel>(from + kWhole * kBlocks * kPanel, to.rows[row] + kWhole * kGroupBytes,
                                      kGroups * kGroupBytes);
      }
    }
  }

  static VNPU_INLINE void pack(const char *b, const uint32_t *seen, Right &to) {
    for (int step = 0; step < kSteps; ++step) {
      const uint8_t rows = seen ? uint8_t(seen[step / 4] >> step % 4 * 8) : uint8_t{0xff};
      for (int column = 0; column < kColumns; ++column) {
        const int block = transposed ? step * kColumns + column : column * kSteps + step;
        pack_block<transposed>(b + block * kBlock, rows, to.blocks[column] + step * kBlock);
      }
    }
    constexpr int kDone = kSteps * kBlock;
    if constexpr (kDone < sizeof(to.blocks[0]))
      for (auto &blocks : to.blocks) memset(blocks + kDone, 0, sizeof(blocks) - kDone);
  }

  // Adds to the tile at `sums`, the one below, and those of the next panel.
  [[gnu::noinline]] static void add(const char *a, const char *b, char *sums) {
    constexpr int kRowBytes = kGroups * kGroupBytes, kLower = kTileRows * kRowBytes, kNext = kGroups * kBlocks * kBlock;
    using Four = amx::Sums<kDown, kAcross, kSumBytes, kRows * kSumBytes, kTileRows * kSumBytes>;
    Four::begin(!adds, sums);
#pragma GCC unroll 2
    for (int group = 0; group < kGroups; ++group, a += kGroupBytes, b += kBlocks * kBlock) {
      Four::add({a, a + kLower, kRowBytes}, {b, b + kNext, kSumBytes});
    }
    Four::end(sums);
  }
};

}  // namespace vnpu::dots::tiles
