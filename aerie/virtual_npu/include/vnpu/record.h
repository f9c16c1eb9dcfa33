// Statistics and traces of a run, in programs built with checks. Nothing is collected unless a run asks for it. Such a run
// executes on one thread, and its clock counts events in the order of the schedule.
#pragma once

#include "vnpu/base.h"

namespace vnpu {

struct Access;
struct Buffer;

#if VNPU_CHECKS

namespace record {

enum EventKind { kStats = 1, kTrace = 2 };

// What this run collects; 0 means nothing.
extern int what;
inline bool on() { return __builtin_expect(what != 0, 0); }

// begin: a run starts. end: it has ended; returns what was collected as JSON, malloc'ed, or null.
void begin(int kinds);
char *take();

// A body starts; the returned number is for its end.
int enter(const ExecutionPlace &where);
void leave(int number);

// A transfer that its body executes itself, and the call of an external kernel.
void copied(Site site, const Access &dst, const Access &src);
void called(Site site, const char *name);

// A side of a transfer arrives at its channel, and completes. `engine`: the channel's index if the body continues meanwhile.
int arrives(Site site, const ExecutionPlace &where, const Access &side, bool is_put, const char *engine);
void through(int number);

// A block is handed over or waits for its get; `in_flight` blocks wait.
void delivered(const char *channel, i64 outlet, const char *index, i64 bytes, int in_flight);

void allocated(const Buffer &buffer);
void given_back(const Buffer &buffer);

}  // namespace record

#endif

}  // namespace vnpu
