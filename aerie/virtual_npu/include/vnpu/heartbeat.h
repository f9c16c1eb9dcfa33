// Detects loops without end, in programs built with checks: each loop checks from time to time whether the run makes progress.
#pragma once

#include "vnpu/base.h"

namespace vnpu {

// Counts what this thread has started: transfers, launches, tiles, turns of engines.
extern constinit thread_local uint64_t moves;

class Heartbeat {
 public:
  explicit Heartbeat(Site site) : site_(site) {}
  // Called at the start of an iteration. left: the maximum number of iterations after it; negative means unknown.
  VNPU_INLINE void beat(i64 left) {
    if (__builtin_expect(++count_ % kOften == 0, 0)) look(left);
  }

 private:
  static constexpr uint64_t kOften = 1024;
  void look(i64 left);

  Site site_;
  uint64_t count_ = 0, moves_ = 0, first_ = 0;  // iterations; the progress so far, and the iteration at which it changed
  i64 since_ = -1;                              // when that was, in nanoseconds of the thread's time
};

}  // namespace vnpu
