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

// Runs `entry` with up to `threads` threads. Gives 0, or a Failure::Kind with its text in `message`.
int call_entry(void (*entry)(void *const *), void *const *arguments, int threads, char *message, i64 capacity);

}  // namespace vnpu
