// The threads of a process for native work: the loops of programs, and what the host computes between them.
//
// Each of our shared objects has a team. A process uses the team of the first object it loads, and tells all others
// (aerie/virtual_npu/thread_team.py): so threads are started once, and one that has ended a loop of one program waits for the
// next loop of any program.
#pragma once

#include "vnpu/entry.h"

namespace vnpu {

struct Team {
  // Calls work(context) on this thread and on up to `helpers` more at the same time, never on more threads than the team may
  // have; returns when all of them are done. If the team is busy, only this thread works. While the last thread is awaited, look(context) is called from time to time. work
  // must not throw.
  void (*share)(int helpers, void (*work)(void *), void (*look)(void *), void *context);
  // When *flag is not 0, calls of this thread end, and new ones do not start; null means no flag.
  void (*watch)(const int32_t *flag);
  const int32_t *(*watched)();
  // Pass 1 when a series of short calls starts, -1 when it ends: in between, threads poll for work before they sleep.
  void (*expect)(int change);
};

// The team that the process uses.
const Team &team();

}  // namespace vnpu

// This object's own team, and the one that it must use.
VNPU_EXPORT const vnpu::Team *vnpu_own_team();
VNPU_EXPORT void vnpu_use_team(const vnpu::Team *used);

// How many CPUs the process may use, and how many threads may work at once. More threads than CPUs gain nothing and take the
// CPU from each other. Before the first call, both are the CPUs that the system lets the process run on.
VNPU_EXPORT void vnpu_size_team(int32_t cpus, int32_t max_threads);

// The team's `watch` function.
VNPU_EXPORT void vnpu_watch(const int32_t *flag);
