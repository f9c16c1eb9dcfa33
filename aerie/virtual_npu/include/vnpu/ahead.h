// Streams, asked of memory before their turn: a CPU by itself asks for too little while it computes.
//
// What a core gets of memory is the lines that it has under way, over the time that memory takes for one. Where L1 has most
// of them a stream is asked for once, into L1. VNPU_L2_ASKS says that L2 has more (aerie/common/cpu.py): then a line is
// asked into L2 early, and into L1 late, when it has come so far, so that it holds none of L1's few requests for long.
#pragma once

#include <stdint.h>

namespace vnpu {

#define VNPU_ASK __attribute__((always_inline)) inline

// Bytes that a stream is asked for ahead of what is read of it, early and, where that is not 0, soon before its turn.
#if defined(VNPU_L2_ASKS)
constexpr int64_t kAhead = 16384, kSoon = 1024;
VNPU_ASK void ask_early(const char *line) { __builtin_prefetch(line, 0, 2); }
#else
constexpr int64_t kAhead = 8192, kSoon = 0;
VNPU_ASK void ask_early(const char *line) { __builtin_prefetch(line); }
#endif
VNPU_ASK void ask_soon(const char *line) {
  if (kSoon > 0) __builtin_prefetch(line);
}

// Of a stream that lies in a row, whose byte `at` is read now. Behind its end that brings what nobody reads.
VNPU_ASK void ask_ahead(const char *at) {
  ask_early(at + kAhead);
  ask_soon(at + kSoon);
}

#undef VNPU_ASK

}  // namespace vnpu
