// Prefetches streams of memory: a CPU by itself requests too few lines while it computes.
//
// The bandwidth of one core is the lines that it has in flight, divided by the latency of one line. If L1 has the most requests
// in flight, a stream is prefetched once, into L1. VNPU_L2_PREFETCH says that L2 has more (aerie/common/cpu.py): then a line is
// prefetched into L2 early, and into L1 shortly before it is read, so that it occupies one of L1's few requests only briefly.
#pragma once

#include <stdint.h>

namespace vnpu {

#define VNPU_PREFETCH __attribute__((always_inline)) inline

// Distance in bytes between the read position of a stream and the two prefetches. 0 means no second prefetch.
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

// Prefetches for a contiguous stream whose byte `at` is read now. Near the end of the stream this loads lines that nothing
// reads.
VNPU_PREFETCH void prefetch_ahead(const char *at) {
  prefetch_early(at + kFirstDistance);
  prefetch_soon(at + kSecondDistance);
}

#undef VNPU_PREFETCH

}  // namespace vnpu
