// Watches a run: ends loops of cores that have no end, and notes what does not end a run.
#pragma once

#include "vnpu/entry.h"

namespace vnpu::aie {

class Array;
class Run;

// Calls an entry as call_entry does; the report has its notes.
int call_sequence(void (*entry)(void *const *), void *const *arguments, const RunOptions *options, RunReport *report);

// Adds a line to the notes of the run, once for each operation.
void note(Site site, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Notes what streams, queues and cascades still hold: the next run on a board would find it there.
void note_remains(Array &array);

// Ends a core that computes for longer than the time limit; the others go on.
struct Endless {};

class Core;

// That a core has a turn.
class Turn {
 public:
  explicit Turn(Core &core);
  Turn(const Turn &) = delete;
  ~Turn();
};

// How long cores have had turns while no DMA, no host and no other core had one because of them.
class Progress {
 public:
  void moved() { ++moves_; }
  // Ends the run where that has been longer than the time limit says, for each of the cores.
  void check(Run &run);

 private:
  uint64_t moves_ = 0, seen_ = 0;
  i64 since_ = -1;  // nanoseconds of the thread's time
};

// Counts the iterations of a loop of a core.
class Heartbeat {
 public:
  explicit Heartbeat(Site site) : site_(site) {}
  // Called at the start of an iteration. left: the maximum number of iterations after it; negative means unknown.
  VNPU_INLINE void beat(i64 left) {
    if (__builtin_expect(++count_ % kOften == 0, 0)) look(left);
  }

 private:
  static constexpr uint64_t kOften = 1024;
  void look(i64 left) const;
  Site site_;
  uint64_t count_ = 0;
};

// Notes an access of 512 bits that lies at no multiple of 64 bytes. shift: of its buffer's address in the tile.
VNPU_INLINE void aligned(Site site, const void *pointer, int shift) {
  constexpr int kBytes = 64;
  const int beyond = int((uint64_t(reinterpret_cast<uintptr_t>(pointer)) + uint64_t(shift)) % kBytes);
  if (__builtin_expect(beyond == 0, 1)) return;
  note(site,
       "accesses 512 bits %d bytes behind a multiple of 64: a core gets other bytes there. Align the buffer or the index to "
       "64 bytes",
       beyond);
}

}  // namespace vnpu::aie
