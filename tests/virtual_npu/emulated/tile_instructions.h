// The tile instructions of AMX-BF16 in plain C++.
//
// They follow Intel's Software Developer's Manual, volume 2: LDTILECFG, TILELOADD, TILESTORED, TILEZERO, TDPBF16PS,
// TILERELEASE. An instruction that would raise #UD ends the process: tiles without a configuration in this thread, shapes that
// do not fit each other.
#pragma once

#include <stdint.h>
#include <string.h>

namespace emulated {

struct Tile {
  int rows, bytes;
  char row[16][64];
};

struct TileState {
  bool is_configured;
  Tile tile[8];
};
inline thread_local TileState tile_state;

inline void load_config(const void *memory) {
  uint8_t bytes[64];
  memcpy(bytes, memory, sizeof(bytes));
  if (bytes[0] != 1 || bytes[1] != 0) __builtin_trap();  // palette 1, from the first row
  for (int i = 2; i < 16; ++i)
    if (bytes[i] != 0) __builtin_trap();
  tile_state = {};
  tile_state.is_configured = true;
  for (int t = 0; t < 8; ++t) {
    uint16_t row_bytes;
    memcpy(&row_bytes, bytes + 16 + 2 * t, sizeof(row_bytes));
    if (bytes[48 + t] > 16 || row_bytes > 64) __builtin_trap();
    tile_state.tile[t].rows = bytes[48 + t];
    tile_state.tile[t].bytes = row_bytes;
  }
}

inline Tile &tile(int number) {
  Tile &found = tile_state.tile[number];
  if (!tile_state.is_configured || found.rows == 0 || found.bytes == 0) __builtin_trap();
  return found;
}

inline void load(int number, const void *from, int64_t stride) {
  Tile &to = tile(number);
  memset(to.row, 0, sizeof(to.row));
  for (int r = 0; r < to.rows; ++r) memcpy(to.row[r], static_cast<const char *>(from) + r * stride, size_t(to.bytes));
}

inline void store(int number, void *to, int64_t stride) {
  const Tile &from = tile(number);
  for (int r = 0; r < from.rows; ++r) memcpy(static_cast<char *>(to) + r * stride, from.row[r], size_t(from.bytes));
}

inline void zero(int number) { memset(tile(number).row, 0, sizeof(Tile::row)); }

// Numbers below 2^-126 are zeros of their sign.
inline float flushed(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0, x) : x; }

inline float factor(const Tile &from, int row, int element) {
  uint16_t half;
  memcpy(&half, from.row[row] + 2 * element, sizeof(half));
  const uint32_t bits = uint32_t(half) << 16;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return flushed(value);
}

inline void dpbf16ps(int sums, int left, int right) {
  Tile &c = tile(sums);
  const Tile &a = tile(left), &b = tile(right);
  if (a.rows != c.rows || b.bytes != c.bytes || a.bytes != 4 * b.rows) __builtin_trap();
  for (int m = 0; m < c.rows; ++m) {
    for (int n = 0; n < c.bytes / 4; ++n) {
      float chains[2] = {}, sum;
      for (int k = 0; k < a.bytes / 4; ++k) {
        for (int odd = 0; odd < 2; ++odd) {
          chains[odd] = flushed(__builtin_fmaf(factor(a, m, 2 * k + odd), factor(b, k, 2 * n + odd), chains[odd]));
        }
      }
      memcpy(&sum, c.row[m] + 4 * n, sizeof(sum));
      sum = flushed(flushed(sum) + flushed(chains[0] + chains[1]));
      memcpy(c.row[m] + 4 * n, &sum, sizeof(sum));
    }
  }
}

}  // namespace emulated
