// Stops a run before an operation and shows its buffers, in programs built with checks (`--stop-at`). Such a run executes on
// one thread, so it stops at the same place each time.
#pragma once

#include "vnpu/base.h"

namespace vnpu {

struct Buffer;

// Where to stop; aerie/virtual_npu/library.py has the same structs.
struct StopPoint {
  int32_t line;
  int32_t has_tile;  // whether only bodies with these coordinates count
  int64_t x, y;
  int64_t hit;       // stops at this one, from 1 on
  int64_t count;     // how many there were in this run
};

// A buffer as it is where the run stops. The pointers are valid during the call of `look`.
struct StoppedBuffer {
  const char *name, *type, *how;  // of its label
  const char *place;              // the tile or body that allocated it
  const void *data;
  const uint8_t *written;  // a byte for each element; null: all are written
  const int64_t *sizes;    // `rank` extents of one memref; there may be several, one after the other
  int64_t count;           // elements
  int64_t x, y;            // the coordinates of that tile or body
  int32_t line, element;   // where it is allocated; bytes of an element
  int32_t rank;
  int32_t level;           // 1, 2, 3: L1, L2, L3
  int32_t is_here;         // whether the stopped operation's own tile or body allocated it
};

struct Stops {
  StopPoint *points;
  int32_t count;
  int32_t reached;  // the number of the point where the run stopped; -1
  void (*look)(const StoppedBuffer *buffers, int64_t count);
};

// A run begins, and nothing is counted yet; null: it stops nowhere.
void begin_stops(Stops *stops);

// Called before an operation. Throws if the run stops there.
void stop_before(Site site);

// Whether buffers are listed: in a run with stops, and before the first run, when those of globals are made.
extern constinit bool lists_buffers;
void list_buffer(Buffer &buffer);
void unlist_buffer(Buffer &buffer);

}  // namespace vnpu
