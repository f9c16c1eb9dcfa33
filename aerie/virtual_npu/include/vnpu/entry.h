// How a generated entry is called from outside, and how a run that cannot go on is reported.
#pragma once

#include <unistd.h>

#include "vnpu/base.h"

#define VNPU_EXPORT extern "C" __attribute__((visibility("default")))

// What the linker calls a function of C; and says that it is in this object, so that it is taken from no library. (An
// attribute of its declaration says so too, but not of one that has a name for the linker.)
#if defined(__APPLE__)
#define VNPU_SYMBOL(name) "_" name
#define VNPU_HIDDEN(name)
#else
#define VNPU_SYMBOL(name) name
#define VNPU_HIDDEN(name) __asm__(".hidden " name)
#endif

namespace vnpu {

// The mode registers (rounding, saturation) of the core that executes on this thread: those that external kernels set
// and, where a build follows them, all code rounds by. Kernels that do not include the host AIE API have none.
extern "C" __attribute__((weak)) uint32_t aie_host_exchange_modes(uint32_t next);

inline uint32_t exchange_modes(uint32_t next) { return aie_host_exchange_modes ? aie_host_exchange_modes(next) : 0; }

// What they hold when a core starts: 0 after power-up (floor), 6 where the program sets conv_even first.
constexpr uint32_t kFloor = 0, kConvEven = 6;

// Of a tile that runs to its end on one thread: its registers are in place as long as this lives.
class CoreModes {
 public:
  explicit CoreModes(uint32_t first = kFloor) : outer_(exchange_modes(first)) {}
  CoreModes(const CoreModes &) = delete;
  ~CoreModes() { exchange_modes(outer_); }

 private:
  uint32_t outer_;
};

// Of a tile that takes turns with others: its registers, kept in `word` meanwhile, are in place as long as this lives.
class CoreTurn {
 public:
  explicit CoreTurn(uint32_t &word) : word_(word), outer_(exchange_modes(word)) {}
  CoreTurn(const CoreTurn &) = delete;
  ~CoreTurn() { word_ = exchange_modes(outer_); }

 private:
  uint32_t &word_, outer_;
};

// The interpreter that a run is called from, by functions of its C API, so that signals are handled while the run goes
// on; aerie/virtual_npu/library.py has the same struct.
struct Interpreter {
  int (*acquire)();                                        // PyGILState_Ensure
  int (*handle_signals)();                                 // PyErr_CheckSignals: not 0 where a handler raised
  void (*take_raised)(void **type, void **value, void **trace);  // PyErr_Fetch
  void (*release)(int);                                    // PyGILState_Release
};

// How a run executes; aerie/virtual_npu/library.py has the same structs.
struct RunOptions {
  int32_t threads;
  int32_t record;  // what to collect: 1 statistics, 2 a trace
  uint64_t seed;   // 0: in the order of the program; else a legal schedule drawn with it
  int32_t races_are_notes;
  int64_t max_events;  // accesses that the race check remembers
  uint64_t garbage;     // what memory holds at first is drawn with it; 0: what the checks fill it with
  const Interpreter *interpreter;  // none: the run goes on to its end
  int64_t stall;        // nanoseconds of computing after which a loop ends the run in which nothing moves; 0: none does
};

// What a run gives back. The texts are malloc'ed; the caller hands them to vnpu_release.
struct RunReport {
  char *message;  // of the failure
  char *notes;    // findings that did not end the run, a line each
  char *record;   // what was collected, as JSON
  int64_t nanoseconds;  // in the entry
  void *raised[3];      // of a run that was stopped: what the handler of a signal raised, as PyErr_Restore takes it
};

// One of several things that one call from outside does; aerie/virtual_npu/pyxrt/batch.py has the same struct.
struct Step {
  int (*function)(void *, void *, void *);  // an entry or a function of the host; none: `third` bytes are copied
  void *first, *second, *third;             // its arguments; of a copy: to, from, number of bytes
  int64_t nanoseconds;                      // what it took
  int64_t status;                           // what it gave; not 0: it failed
};

// Runs `entry`. Gives 0, or a Failure::Kind.
int call_entry(void (*entry)(void *const *), void *const *arguments, const RunOptions *options, RunReport *report);

}  // namespace vnpu
