// Loops that may have no end, in programs built with checks: each looks now and then whether anything moves.
#pragma once

#include "vnpu/base.h"

namespace vnpu {

// What this thread has begun so far: transfers, launches, tiles, turns of engines.
extern constinit thread_local uint64_t moves;

class Heartbeat {
 public:
  explicit Heartbeat(Site site) : site_(site) {}
  // An iteration begins, and at most `left` come after it; negative: nobody knows how many.
  VNPU_INLINE void beat(i64 left) {
    if (__builtin_expect(++count_ % kOften == 0, 0)) look(left);
  }

 private:
  static constexpr uint64_t kOften = 1024;
  void look(i64 left);

  Site site_;
  uint64_t count_ = 0, moves_ = 0, first_ = 0;  // iterations; what had moved, and at which iteration, when
  i64 since_ = -1;                              // the time began: of the thread, in nanoseconds
};

}  // namespace vnpu
