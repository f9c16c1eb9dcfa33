// The AMX tiles of a process and its threads, and how sums are computed in them.
//
// Each thread has its tiles and their configuration. Other libraries in the process may use them too, so a thread configures
// the tiles whenever it starts to multiply, and releases them at the end. First the process requests permission from the kernel
// (Linux, Documentation/arch/x86/xstate.rst). The permission is for all threads. It is refused if a filter of system calls
// prevents it, or if a thread has a signal stack that is too small for the tiles.
#pragma once

#include "vnpu/base.h"
#if !defined(VNPU_EMULATED_TILES)
#include <errno.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace vnpu::amx {

// Makes earlier stores reach memory: g++ 12 does not know that loading tiles reads it.
VNPU_INLINE void settle(const void *where) { asm volatile("" : : "r"(where) : "memory"); }

// Returns 0, or the error number if the kernel denies the tiles' data.
inline int request_permission() {
#if defined(VNPU_EMULATED_TILES)
  return emulated_tiles_denied();
#else
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0 ? 0 : errno;
#endif
}

// Requests permission once. Fails if it is denied.
inline void prepare() {
  static const int denied = request_permission();
  if (denied == 0) return;
  fail({"a matrix product", 0},
       "this program was built for the tiles of AMX, and the system denies them to this process (%s): with other "
       "instructions its sums would have other bits; allow arch_prctl(ARCH_REQ_XCOMP_PERM), or build it with "
       "VNPU_MARCH=x86-64-v4+avx512bf16",
       strerror(denied));
}

// Rows, and bytes per row, of some tiles.
struct Shape {
  int rows, bytes;
};

// Alive while a thread multiplies: tiles 0 to 3 are sums, 4 and 5 left factors, 6 and 7 right ones.
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

// One factor of a step of k: its first tile, its second one if there is one, and the bytes from one row to the next in either.
struct Factor {
  const void *first, *second;
  i64 row;
};

// Sums in Down x Across tiles (one or two each): tile 0, on its right 1, below them 2 and 3. An instruction's sums are ready
// after three more instructions have started, so four tiles are added to in turn. In memory a tile's rows are kRow bytes apart,
// the tile on its right is kRight bytes away and the one below kBelow.
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
