// The threads that a process has for native work, whatever that is: the loops of programs, and what the host computes
// between them.
//
// Every shared object of ours brings a team with it. A process uses that of the first one it loads, which is told to all
// others (aerie/virtual_npu/thread_team.py): so threads are started once, and one that has just ended a loop of one program looks out
// for the next, of whichever it is.
#pragma once

#include "vnpu/entry.h"

namespace vnpu {

struct Team {
  // work(context), on this thread and at once on up to `helpers` more; returns when all that began it are done. On this
  // thread alone where the team is at work already. While the last of them is awaited, look(context) is called now and
  // then. work throws nothing.
  void (*share)(int helpers, void (*work)(void *), void (*look)(void *), void *context);
  // What this thread calls ends once *flag is not 0, and does not begin; none: it goes on to its end.
  void (*watch)(const int32_t *flag);
  const int32_t *(*watched)();
  // 1 when things begin that follow each other closely, -1 when they end: meanwhile threads look out for work before they
  // sleep.
  void (*expect)(int change);
};

// The team that the process uses.
const Team &team();

}  // namespace vnpu

// This object's own team, and which one it shall use.
VNPU_EXPORT const vnpu::Team *vnpu_own_team();
VNPU_EXPORT void vnpu_use_team(const vnpu::Team *used);

// As the team's `watch`.
VNPU_EXPORT void vnpu_watch(const int32_t *flag);
