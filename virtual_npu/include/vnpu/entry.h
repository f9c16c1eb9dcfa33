// How a generated entry is called from outside, and how a run that cannot go on is reported.
#pragma once

#include <unistd.h>

#include "vnpu/base.h"

#define VNPU_EXPORT extern "C" __attribute__((visibility("default")))

namespace vnpu {

// The mode registers (rounding, saturation) of the core that executes external kernels on this thread. Reset when
// made, given back when destroyed, so that no kernel sees what another tile left behind. Kernels that do not include
// the host AIE API have none.
extern "C" __attribute__((weak)) uint32_t aie_host_exchange_modes(uint32_t next);

inline uint32_t exchange_modes(uint32_t next) { return aie_host_exchange_modes ? aie_host_exchange_modes(next) : 0; }

// Of a tile that runs to its end on one thread: its registers are in place as long as this lives.
class CoreModes {
 public:
  CoreModes() : outer_(exchange_modes(0)) {}
  CoreModes(const CoreModes &) = delete;
  ~CoreModes() { exchange_modes(outer_); }

 private:
  uint32_t outer_;
};

// Of a tile that takes turns with others: its registers, in `word`, are in place during one call.
template <class Call>
inline auto with_modes(uint32_t &word, Call call) {
  struct Swap {
    uint32_t &word, outer;
    ~Swap() { word = exchange_modes(outer); }
  } const swap{word, exchange_modes(word)};
  return call();
}

// How a run executes; virtual_npu/library.py has the same structs.
struct RunOptions {
  int32_t threads;
  int32_t record;  // what to collect: 1 statistics, 2 a trace
  uint64_t seed;   // 0: in the order of the program; else a legal schedule drawn with it
};

// What a run gives back. The texts are malloc'ed; the caller hands them to vnpu_release.
struct RunReport {
  char *message;  // of the failure
  char *notes;    // findings that did not end the run, a line each
  char *record;   // what was collected, as JSON
};

// Runs `entry`. Gives 0, or a Failure::Kind.
int call_entry(void (*entry)(void *const *), void *const *arguments, const RunOptions *options, RunReport *report);

}  // namespace vnpu
