// Names that kernels use outside of namespace aie: register types, trace events, loop hints of the two compilers.
#pragma once

#include <cassert>

#include "elementary.hpp"

// Registers of 128 to 1024 bits, and `extract_v8bfloat16(v, i)`: part i of a larger one.
#define AIE_HOST_NATIVE(T, N)                                                      \
  using v##N##T = aie::vector<T, N>;                                               \
  template <unsigned M>                                                            \
    requires(M >= N)                                                               \
  AIE_HOST_INLINE v##N##T extract_v##N##T(const aie::vector<T, M>& v, int index) { \
    return v.template extract<N>(index);                                           \
  }
#define AIE_HOST_NATIVES(T, A, B, C, D) AIE_HOST_NATIVE(T, A) AIE_HOST_NATIVE(T, B) AIE_HOST_NATIVE(T, C) AIE_HOST_NATIVE(T, D)
AIE_HOST_NATIVES(int8, 16, 32, 64, 128)
AIE_HOST_NATIVES(uint8, 16, 32, 64, 128)
AIE_HOST_NATIVES(int16, 8, 16, 32, 64)
AIE_HOST_NATIVES(uint16, 8, 16, 32, 64)
AIE_HOST_NATIVES(int32, 4, 8, 16, 32)
AIE_HOST_NATIVES(uint32, 4, 8, 16, 32)
AIE_HOST_NATIVES(bfloat16, 8, 16, 32, 64)
AIE_HOST_NATIVES(float, 4, 8, 16, 32)
#undef AIE_HOST_NATIVES
#undef AIE_HOST_NATIVE

using v8accfloat = aie::accum<accfloat, 8>;
using v16accfloat = aie::accum<accfloat, 16>;
using v32accfloat = aie::accum<accfloat, 32>;
using v64accfloat = aie::accum<accfloat, 64>;
using v8acc32 = aie::accum<acc32, 8>;
using v16acc32 = aie::accum<acc32, 16>;
using v32acc32 = aie::accum<acc32, 32>;
using v64acc32 = aie::accum<acc32, 64>;
using v4acc64 = aie::accum<acc64, 4>;
using v8acc64 = aie::accum<acc64, 8>;
using v16acc64 = aie::accum<acc64, 16>;
using v32acc64 = aie::accum<acc64, 32>;

static inline v16bfloat16 to_v16bfloat16(const v16accfloat& acc) { return acc.to_vector<bfloat16>(); }
static inline v32bfloat16 to_v32bfloat16(const v32accfloat& acc) { return acc.to_vector<bfloat16>(); }

static inline v32bfloat16 broadcast_one_to_v32bfloat16() { return aie::broadcast<bfloat16, 32>(1.0f); }
static inline v16bfloat16 broadcast_one_to_v16bfloat16() { return aie::broadcast<bfloat16, 16>(1.0f); }
static inline v32bfloat16 broadcast_zero_to_v32bfloat16() { return aie::zeros<bfloat16, 32>(); }
static inline v16bfloat16 broadcast_zero_to_v16bfloat16() { return aie::zeros<bfloat16, 16>(); }
static inline v64accfloat mul_elem_64(const v64bfloat16& a, const v64bfloat16& b) { return aie::mul(a, b); }
static inline v32accfloat mul_elem_32(const v32bfloat16& a, const v32bfloat16& b) { return aie::mul(a, b); }
static inline v16accfloat mul_elem_16(const v16bfloat16& a, const v16bfloat16& b) { return aie::mul(a, b); }

// x * 2^shift as integers: the nearest ones, ties to even.
static inline v16int32 bfloat16_to_int(const v16bfloat16& x, int shift) { return aie::to_fixed<int32>(x, shift); }

// `shuffle(v, shuffle_T16_8x2)`: each matrix of 8 x 2 lanes of 16 bits is transposed, one after the other in the register.
struct shuffle_mode {
  unsigned lane_bits, rows, cols;
};
#define AIE_HOST_TRANSPOSITION(bits, rows, cols) \
  inline constexpr shuffle_mode shuffle_T##bits##_##rows##x##cols { bits, rows, cols }
AIE_HOST_TRANSPOSITION(8, 8, 8);
AIE_HOST_TRANSPOSITION(8, 4, 16);
AIE_HOST_TRANSPOSITION(8, 16, 4);
AIE_HOST_TRANSPOSITION(16, 8, 2);
AIE_HOST_TRANSPOSITION(16, 2, 8);
AIE_HOST_TRANSPOSITION(16, 4, 4);
AIE_HOST_TRANSPOSITION(16, 8, 4);
AIE_HOST_TRANSPOSITION(16, 4, 8);
AIE_HOST_TRANSPOSITION(16, 16, 2);
AIE_HOST_TRANSPOSITION(16, 2, 16);
AIE_HOST_TRANSPOSITION(32, 4, 4);
#undef AIE_HOST_TRANSPOSITION

template <aie::Vector V>
  requires(V::bytes() == 64)
inline V shuffle(const V& v, shuffle_mode mode) {
  const unsigned bytes = mode.lane_bits / 8, size = mode.rows * mode.cols;
  char from[64], to[64];
  v.data.store(from);
  for (unsigned i = 0; i < 64 / bytes; ++i) {
    const unsigned place = i % size, source = i - place + place % mode.rows * mode.cols + place / mode.rows;
    std::memcpy(to + i * bytes, from + source * bytes, bytes);
  }
  return V(V::storage_t::load(to));
}

// Marks in the hardware trace; the host has no trace.
static inline void event0() {}
static inline void event1() {}

// The bank of a pointer's memory, which tells the compiler for the core what may be loaded at once.
#define __aie_dm_resource_a
#define __aie_dm_resource_b
#define __aie_dm_resource_c
#define __aie_dm_resource_d
#define __aie_dm_resource_ab
#define __aie_dm_resource_cd
#define __aie_dm_resource_stack

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
#ifndef chess_storage
#define chess_storage(...)
#endif
