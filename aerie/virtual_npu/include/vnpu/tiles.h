// The tiles of AMX as a process and its threads have them, and how sums are made in them.
//
// The tiles belong to a thread, and what shape they have as well. Other libraries in the process may use them, so a thread
// configures them whenever it begins to multiply, and lets go of them when it ends. Before that the process asks the kernel
// for leave (Linux, Documentation/arch/x86/xstate.rst), which holds for all its threads and is refused where a filter of
// system calls is in the way, or where a thread has set up a stack for signals that is too small for the tiles.
#pragma once

#include "vnpu/base.h"
#if !defined(VNPU_EMULATED_TILES)
#include <errno.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace vnpu::amx {

// What was written so far is in memory: g++ 12 does not know that loading tiles reads it.
VNPU_INLINE void settle(const void *where) { asm volatile("" : : "r"(where) : "memory"); }

// 0, or why the kernel denies the tiles' data.
inline int request_permission() {
#if defined(VNPU_EMULATED_TILES)
  return emulated_tiles_denied();
#else
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0 ? 0 : errno;
#endif
}

// Asks once. Fails where they are denied.
inline void prepare() {
  static const int denied = request_permission();
  if (denied == 0) return;
  fail({"a matrix product", 0},
       "this program was built for the tiles of AMX, and the system denies them to this process (%s): with other "
       "instructions its sums would have other bits; allow arch_prctl(ARCH_REQ_XCOMP_PERM), or build it with "
       "VNPU_MARCH=x86-64-v4+avx512bf16",
       strerror(denied));
}

// Rows and bytes of a row of some tiles.
struct Shape {
  int rows, bytes;
};

// As long as a thread multiplies: tiles 0 to 3 are sums, 4 and 5 left factors, 6 and 7 right ones.
class Turn {
 public:
  Turn(Shape sums, Shape left, Shape right) {
    alignas(64) Shapes shapes{};
    for (int tile = 0; tile < 8; ++tile) shapes.set(tile, tile < 4 ? sums : tile < 6 ? left : right);
    settle(&shapes);
    _tile_loadconfig(&shapes);
  }
  Turn(const Turn &) = delete;
  ~Turn() { _tile_release(); }

 private:
  // The operand of ldtilecfg for palette 1.
  struct Shapes {
    uint8_t palette = 1, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
    void set(int tile, Shape shape) { rows[tile] = uint8_t(shape.rows), row_bytes[tile] = uint16_t(shape.bytes); }
  };
};

// A factor of a step of k: its first tile, its second one where there is one, and bytes from one row of either to the next.
struct Factor {
  const void *first, *second;
  i64 row;
};

// Kept in so many tiles below each other and side by side, one or two: 0, on its right 1, and below them 2 and 3. An
// instruction's sums are there after three others have begun, so four are added to in turn. In memory a tile's rows are kRow
// bytes apart, the tile on its right is kRight bytes away and the one below kBelow.
template <int Down, int Across, int kRow, int kRight, int kBelow>
struct Sums {
  static VNPU_INLINE void begin(bool with_zeros, const char *sums) {
    settle(sums);
    if (with_zeros) clear();
    else load(sums);
  }
  // The left factor's tiles are below each other, the right one's side by side.
  static VNPU_INLINE void add(const Factor &left, const Factor &right) {
    _tile_loadd(4, left.first, left.row);
    _tile_loadd(6, right.first, right.row);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (Down > 1) {
      _tile_loadd(5, left.second, left.row);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (Across > 1) {
      _tile_loadd(7, right.second, right.row);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (Down > 1) _tile_dpbf16ps(3, 5, 7);
    }
  }
  static VNPU_INLINE void end(char *sums) {
    _tile_stored(0, sums, kRow);
    if constexpr (Across > 1) _tile_stored(1, sums + kRight, kRow);
    if constexpr (Down > 1) _tile_stored(2, sums + kBelow, kRow);
    if constexpr (Down > 1 && Across > 1) _tile_stored(3, sums + kBelow + kRight, kRow);
    settle(sums);
  }

 private:
  static VNPU_INLINE void clear() {
    _tile_zero(0);
    if constexpr (Across > 1) _tile_zero(1);
    if constexpr (Down > 1) _tile_zero(2);
    if constexpr (Down > 1 && Across > 1) _tile_zero(3);
  }
  static VNPU_INLINE void load(const char *sums) {
    _tile_loadd(0, sums, kRow);
    if constexpr (Across > 1) _tile_loadd(1, sums + kRight, kRow);
    if constexpr (Down > 1) _tile_loadd(2, sums + kBelow, kRow);
    if constexpr (Down > 1 && Across > 1) _tile_loadd(3, sums + kBelow + kRight, kRow);
  }
};

}  // namespace vnpu::amx
