// The tile instructions of AMX-BF16 in plain C++, for tests on CPUs without them. Included before a source of the virtual NPU
// (-include), they replace the intrinsics in vnpu/tiles.h.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tile_instructions.h"

#define VNPU_EMULATED_TILES 1

#if !defined(EMULATED_TILES_DENIED)
#define EMULATED_TILES_DENIED 0  // or the errno with which the kernel denies tiles
#endif
inline int emulated_tiles_denied() { return EMULATED_TILES_DENIED; }

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig(memory) emulated::load_config(memory)
#define _tile_release() emulated::tile_state.is_configured = false
#define _tile_loadd(number, from, stride) emulated::load(number, from, stride)
#define _tile_stored(number, to, stride) emulated::store(number, to, stride)
#define _tile_zero(number) emulated::zero(number)
#define _tile_dpbf16ps(sums, left, right) emulated::dpbf16ps(sums, left, right)
