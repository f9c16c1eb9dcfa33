// What the memory checks need of the order checks (happens_before.h), below both.
#pragma once

#include "vnpu/base.h"

namespace vnpu {

struct Buffer;
class Cells;  // the last writes and reads of the parts of a buffer

#if VNPU_CHECKS
// Whether single accesses to a buffer must be recorded now, with `touch`.
bool watched(const Buffer &buffer);
void touch(Site site, Buffer &buffer, const void *low, i64 bytes, bool writes);

// Refuses to free a buffer that an asynchronous operation of this tile may still use.
void check_settled(Site site, const Buffer &buffer);

// Which process (tile or body) a buffer that is allocated now belongs to.
uint32_t current_process();

// The buffer ends: what its records are asked for is answered now.
void release_cells(const Buffer &buffer);
#endif

}  // namespace vnpu
