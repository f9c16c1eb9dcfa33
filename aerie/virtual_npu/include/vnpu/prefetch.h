// Prefetches streams of memory: a CPU by itself requests too few lines while it computes.
//
// The bandwidth of one core is the lines that it has in flight, divided by the latency of one line. If L1 has the most requests
// in flight, a stream is prefetched once, into L1. VNPU_L2_PREFETCH says that L2 has more (aerie/common/cpu.py): then a line is
// prefetched into L2 early, and into L1 shortly before it is read, so that it occupies one of L1's few requests only briefly.
// VNPU_SMALL_L1 (the same) says that L1 has 32 KB or less.
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

// The same for streams beside which other data in use fills a small L1: what waits there would be evicted before it is read, or
// evict what is in use (Zen 4; on Zen 5, with 48 KB, L2 would take half as long again).
#if defined(VNPU_SMALL_L1) && !defined(VNPU_L2_PREFETCH)
VNPU_PREFETCH void prefetch_beside_others(const char *at) { __builtin_prefetch(at + kFirstDistance, 0, 2); }
#else
VNPU_PREFETCH void prefetch_beside_others(const char *at) { prefetch_ahead(at); }
#endif

// Whether lines that are read much later are better prefetched into L2.
#if defined(VNPU_SMALL_L1)
constexpr bool kHasSmallL1 = true;
#else
constexpr bool kHasSmallL1 = false;
#endif

#undef VNPU_PREFETCH

}  // namespace vnpu
