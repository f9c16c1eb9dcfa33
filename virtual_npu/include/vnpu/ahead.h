// Streams, asked of memory before their turn: a CPU by itself asks for too little while it computes.
//
// What a core gets of memory is the lines that it has under way, over the time that memory takes for one. Where L1 has most
// of them a stream is asked for once, into L1. VNPU_L2_ASKS says that L2 has more (virtual_npu/cpu.py): then a line is
// asked into L2 early, and into L1 late, when it has come so far, so that it holds none of L1's few requests for long.
#pragma once

#include <stdint.h>

namespace vnpu {

// Bytes that a stream is asked for ahead of what is read of it.
#if defined(VNPU_L2_ASKS)
constexpr int64_t kAhead = 16384, kSoon = 1024;
#else
constexpr int64_t kAhead = 8192;
#endif

// The line that is kAhead behind this byte of a stream, which is read now. Behind its end that brings what nobody reads.
__attribute__((always_inline)) inline void ask_ahead(const char *at) {
#if defined(VNPU_L2_ASKS)
  __builtin_prefetch(at + kAhead, 0, 2);
  __builtin_prefetch(at + kSoon);
#else
  __builtin_prefetch(at + kAhead);
#endif
}

}  // namespace vnpu
