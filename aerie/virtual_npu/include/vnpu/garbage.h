// The initial contents of memory in runs that ask for garbage: finite numbers that look like data, by the run's seed. Without
// garbage, unwritten memory is all ones (check.cc), and variables of kernels are zero.
#pragma once

#include "vnpu/base.h"

namespace vnpu {

// The seed of this run's garbage; 0 means no garbage.
extern uint64_t garbage_seed;

// Called at the start of a run. If garbage is on, fills the uninitialised variables (.bss) of the program's kernels.
void begin_garbage(uint64_t seed);

// Fills memory. `key` gives each buffer other contents.
void fill_with_garbage(void *data, i64 bytes, uint64_t key);

}  // namespace vnpu
