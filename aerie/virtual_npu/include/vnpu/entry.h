// How a generated entry is called from outside, and how a run that cannot go on is reported.
#pragma once

#include <unistd.h>

#include "vnpu/base.h"

#define VNPU_EXPORT extern "C" __attribute__((visibility("default")))

// Declares a C function with its linker name, and that it is in this object, so that no library's function is taken instead.
// (An attribute of the declaration says the latter too, but not of one with a linker name.)
#if defined(__APPLE__)
#define VNPU_SYMBOL(name) "_" name
#define VNPU_HIDDEN(name)
#else
#define VNPU_SYMBOL(name) name
#define VNPU_HIDDEN(name) __asm__(".hidden " name)
#endif

namespace vnpu {

struct Stops;

// The mode registers (rounding, saturation) of the core that executes on this thread. External kernels set them, and in builds
// that follow them all code rounds by them. Kernels without the host AIE API have none.
extern "C" __attribute__((weak)) uint32_t aie_host_exchange_modes(uint32_t next);

inline uint32_t exchange_modes(uint32_t next) { return aie_host_exchange_modes ? aie_host_exchange_modes(next) : 0; }

// Their value when a core starts: 0 after power-up (floor), 6 if the program sets conv_even first.
constexpr uint32_t kFloor = 0, kConvEven = 6;

// For a tile that runs to its end on one thread: sets its registers during its lifetime.
class CoreModes {
 public:
  explicit CoreModes(uint32_t first = kFloor) : outer_(exchange_modes(first)) {}
  CoreModes(const CoreModes &) = delete;
  ~CoreModes() { exchange_modes(outer_); }

 private:
  uint32_t outer_;
};

// For a tile that takes turns with others: sets its registers during its lifetime, and saves them in `word` in between.
class CoreTurn {
 public:
  explicit CoreTurn(uint32_t &word) : word_(word), outer_(exchange_modes(word)) {}
  CoreTurn(const CoreTurn &) = delete;
  ~CoreTurn() { word_ = exchange_modes(outer_); }

 private:
  uint32_t &word_, outer_;
};

// The interpreter that calls a run, by functions of its C API, so that signals are handled during the run;
// aerie/virtual_npu/library.py has the same struct.
struct Interpreter {
  int (*acquire)();                                        // PyGILState_Ensure
  int (*handle_signals)();                                 // PyErr_CheckSignals: not 0 if a handler raised
  void (*take_raised)(void **type, void **value, void **trace);  // PyErr_Fetch
  void (*release)(int);                                    // PyGILState_Release
};

// How a run executes; aerie/virtual_npu/library.py has the same structs.
struct RunOptions {
  int32_t threads;
  int32_t record;  // what to collect: 1 statistics, 2 a trace
  uint64_t seed;   // 0: program order; else the seed of a random legal schedule
  int32_t races_are_notes;
  int64_t max_events;  // accesses that the race check records
  uint64_t garbage;     // the seed of the initial contents of memory; 0: what the checks fill it with
  const Interpreter *interpreter;  // null: signals do not stop the run
  int64_t stall;        // nanoseconds of computing without progress after which a loop ends the run; 0: no limit
  const char *traced;   // an element of an argument: the report says what wrote it; null: none
  Stops *stops;         // where the run stops (stop.h); null: nowhere
};

// The result of a run. The texts are malloc'ed; the caller passes them to vnpu_release.
struct RunReport {
  char *message;  // of the failure
  char *notes;    // findings that did not end the run, a line each
  char *record;   // the statistics or trace, as JSON
  char *writer;         // what wrote the traced element last
  int64_t nanoseconds;  // time in the entry
  void *raised[3];      // of a run that was stopped: what the signal's handler raised, for PyErr_Restore
};

// One step of a batch of calls from outside; aerie/virtual_npu/pyxrt/batch.py has the same struct.
struct Step {
  int (*function)(void *, void *, void *);  // an entry or a function of the host; null copies `third` bytes
  void *first, *second, *third;             // its arguments; of a copy: destination, source, number of bytes
  int64_t nanoseconds;                      // its duration
  int64_t status;                           // its result; not 0: it failed
};

// Runs `entry`. Returns 0, or a Failure::Kind.
int call_entry(void (*entry)(void *const *), void *const *arguments, const RunOptions *options, RunReport *report);

}  // namespace vnpu
