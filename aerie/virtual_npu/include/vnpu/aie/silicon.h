// What silicon holds and how long it takes.
#pragma once

#include "vnpu/base.h"

namespace vnpu::aie {

// What silicon holds, in words. Measured on NPU2 by mlir-aie: hw_verdicts ovr_5 and ovr_6 (a channel that has ended its chain
// takes 5 words more), deadlock_model_head_of_line (one that waits for the lock of its next descriptor takes 8), and the read-
// ahead of a shim (DeadlockModelPlan).
struct Capacity {
  static constexpr i64 kEnded = 5, kLoaded = 8, kShimReadAhead = 1580;
  static constexpr int kQueue = 4;     // tasks that wait in a channel's queue
  static constexpr int kCascade = 4;   // steps of 512 bits between two cores; not measured
  static constexpr int kMostLock = 63;
  static constexpr int kPort = 4;      // words in a core's own port of the switch (AM020: the FIFO of a slave port)
};

// How long things take, in cycles. AM020 has the hops; the others were measured on NPU1 by xdna-emu, whose ratios are
// taken: what counts here is which of two events comes first.
struct Cycles {
  static constexpr i64 kHop = 4;           // through a switch
  static constexpr i64 kLock = 2;          // to ask for a lock
  static constexpr i64 kFetch = 16;  // from a lock that a sender waited for to its first word: not measured, but longer
  // than a word takes to the next switch. Other descriptors are fetched ahead.
  static constexpr i64 kShimStart = 1330;  // a shim's first word of a task, out of the host's memory
  // From one task of the host to the next. NPU1 takes 3,050 where the channel's queue is empty. NPU2 takes less: hw_verdicts
  // stress_s105_old hangs there, and two senders miss each other here at 3,050. It takes 1,340 at least, if a descriptor has
  // to be done before it is written again: npu-xrt dmabd_task_queue passes.
  static constexpr i64 kHostOp = 2000;
};

}  // namespace vnpu::aie
