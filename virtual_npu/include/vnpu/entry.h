// How a generated entry is called from outside, and how a run that cannot go on is reported.
#pragma once

#include <unistd.h>

#include "vnpu/base.h"

#define VNPU_EXPORT extern "C" __attribute__((visibility("default")))

namespace vnpu {

// Thrown where the run cannot go on; ends as the text and the status of the entry.
struct Failure {
  enum Kind { kError = 1, kDeadlock = 2 };
  Kind kind;
  char text[4000];
};

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

// Runs `entry` with up to `threads` threads. Gives 0, or a Failure::Kind with its text in `message`.
int call_entry(void (*entry)(void *const *), void *const *arguments, int threads, char *message, i64 capacity);

}  // namespace vnpu
