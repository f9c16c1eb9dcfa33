// What a run did and when, in cycles of its clock: turns of cores, descriptors, words of streams, arbiters and values of locks.
#pragma once

#include "vnpu/record_text.h"
#include "vnpu/storage.h"

namespace vnpu::aie {

class Actor;
class Arbiter;
class Array;
class Lock;
class Run;
class Source;

// Collects what a run with RunOptions::record asks for. A run without has none, and pays a comparison for each event.
class Trace {
 public:
  enum Kind { kStats = 1, kTrace = 2 };
  explicit Trace(int kinds) : kinds_(kinds) {}
  Trace(const Trace &) = delete;
  // An actor has had a turn, which began at a time: what it waits for from now on.
  void had_turn(Actor &actor, i64 begun);
  // Words go on to their receivers, a cycle each.
  void moved(Source &source, i64 bytes);
  // A packet of a sender has had an arbiter; `to` is -1 where it still has it.
  void had(Arbiter &arbiter, const Source &source, i64 from, i64 to);
  void changed(Lock &lock);
  // An actor, or a device with all that it has, comes to its end; what is open remains so.
  void end(Actor &actor);
  void end(Array &array);
  // What was collected, as JSON: malloc'ed.
  char *take();

 private:
  struct Event {
    int lane, line;
    i64 begin, end;  // end: -1 while it is open
    i64 bytes;  // or the value of a lock
    const char *category;
    char name[88];
  };
  struct Lane {
    char name[120];
  };
  int lane(int &known, const char *name);
  int add(const Event &event);
  void close(Actor &actor, i64 at);
  int open(Actor &actor, i64 at);
  void add_counts(Array &array);
  void put_events(record::Text &text);

  const int kinds_;
  List<Event> events_;
  List<Lane> lanes_;
  i64 left_out_ = 0;
  i64 last_ = 0;  // the latest time of all
  record::Text tiles_, channels_;  // rows of the statistics
};

// The trace of the runs of this thread; null: none is asked for.
extern thread_local Trace *tracing;

}  // namespace vnpu::aie
