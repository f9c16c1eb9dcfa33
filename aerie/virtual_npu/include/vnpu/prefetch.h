// Streams, asked of memory before their turn: a CPU by itself asks for too little while it computes.
//
// What a core gets of memory is the lines that it has under way, over the time that memory takes for one. Where L1 has most
// of them a stream is asked for once, into L1. VNPU_L2_ASKS says that L2 has more (aerie/common/cpu.py): then a line is
// asked into L2 early, and into L1 late, when it has come so far, so that it holds none of L1's few requests for long.
#pragma once

#include <stdint.h>

namespace vnpu {

#define VNPU_PREFETCH __attribute__((always_inline)) inline

// Bytes that a stream is asked for ahead of what is read of it, early and, where that is not 0, soon before its turn.
#if defined(VNPU_L2_PREFETCH)
constexpr int64_t kFirstDistance = 16384, kSecondDistance = 1024;
VNPU_PREFETCH void prefetch_early(const char *line) { __builtin_prefetch(line, 0, 2); }
#else
constexpr int64_t kFirstDistance = 8192, kSecondDistance = 0;
VNPU_PREFETCH void prefetch_early(const char *line) { __builtin_prefetch(line); }
#endif
VNPU_PREFETCH void prefetch_soon(const char *line) {
  if (kSecondDistance > 0) __builtin_prefetch(line);
}

// Of a stream that lies in a row, whose byte `at` is read now. Behind its end that brings what nobody reads.
VNPU_PREFETCH void prefetch_ahead(const char *at) {
  prefetch_early(at + kFirstDistance);
  prefetch_soon(at + kSecondDistance);
}

#undef VNPU_PREFETCH

}  // namespace vnpu
