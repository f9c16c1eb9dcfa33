// Names that kernels use outside of namespace aie: register types, trace events, loop hints of the two compilers.
#pragma once

#include "accum.hpp"

using v8bfloat16 = aie::vector<bfloat16, 8>;
using v16bfloat16 = aie::vector<bfloat16, 16>;
using v32bfloat16 = aie::vector<bfloat16, 32>;
using v64bfloat16 = aie::vector<bfloat16, 64>;
using v4float = aie::vector<float, 4>;
using v8float = aie::vector<float, 8>;
using v16float = aie::vector<float, 16>;
using v32float = aie::vector<float, 32>;
using v4int32 = aie::vector<int32, 4>;
using v8int32 = aie::vector<int32, 8>;
using v16int32 = aie::vector<int32, 16>;
using v32int32 = aie::vector<int32, 32>;

using v8accfloat = aie::accum<accfloat, 8>;
using v16accfloat = aie::accum<accfloat, 16>;
using v32accfloat = aie::accum<accfloat, 32>;
using v64accfloat = aie::accum<accfloat, 64>;

static inline v16bfloat16 to_v16bfloat16(const v16accfloat& acc) { return acc.to_vector<bfloat16>(); }
static inline v32bfloat16 to_v32bfloat16(const v32accfloat& acc) { return acc.to_vector<bfloat16>(); }

// Marks in the hardware trace; the host has no trace.
static inline void event0() {}
static inline void event1() {}

// C's spelling, which the compiler for the core accepts in C++ too.
#ifndef restrict
#define restrict __restrict
#endif
#ifndef chess_prepare_for_pipelining
#define chess_prepare_for_pipelining
#endif
#ifndef chess_loop_range
#define chess_loop_range(...)
#endif
#ifndef chess_loop_count
#define chess_loop_count(...)
#endif
#ifndef chess_flatten_loop
#define chess_flatten_loop
#endif
#ifndef chess_unroll_loop
#define chess_unroll_loop(...)
#endif
