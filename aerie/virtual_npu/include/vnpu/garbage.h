// What memory holds before a program writes it, in runs that ask for garbage: finite numbers that look like data, drawn
// with the run's seed. Without it, memory is all ones where nobody wrote (check.cc), and variables of kernels are zero.
#pragma once

#include "vnpu/base.h"

namespace vnpu {

// Of this run: 0 for none; else what garbage is drawn with.
extern uint64_t garbage_seed;

// A run begins: variables without a value of the kernels that the program calls (.bss) become garbage, if it is asked for.
void begin_garbage(uint64_t seed);

// Fills memory. `key` tells one buffer from another.
void fill_with_garbage(void *data, i64 bytes, uint64_t key);

}  // namespace vnpu
