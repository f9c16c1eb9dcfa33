// The order checks: the last accesses of each part of a buffer, and the races among them. Linked only into programs with checks.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "vnpu/check.h"
#include "vnpu/events.h"
#include "vnpu/happens_before.h"

namespace vnpu {

namespace {

// The accesses of one part of a buffer: the last write, and the latest reads since, as far as they fit.
struct Cell {
  static constexpr int kReaders = 3;
  uint32_t writer, readers[kReaders];
  bool operator==(const Cell &other) const { return __builtin_memcmp(this, &other, sizeof(Cell)) == 0; }
};

// One access while it is recorded.
struct Entry {
  const Strand &strand;
  const uint32_t event;
  const bool writes;
  const bool has_locks, is_l2;
  bool is_forced = false;  // records it although it races
  // The cell visited last, before and after; initially one that differs from every cell.
  Cell before{~0u, {}}, after{};
  // The access that it races with, or that only locks order before it, and the byte.
  struct Other {
    uint32_t event = 0;
    bool writes = false;
    i64 place = 0;
  } raced{}, locked{}, herds{};

  uint32_t visit(Cell &cell, i64 byte);

 private:
  bool is_behind(uint32_t earlier, bool earlier_writes, i64 byte);
};

class Locked {
 public:
  explicit Locked(pthread_mutex_t &mutex) : mutex_(mutex) { pthread_mutex_lock(&mutex_); }
  ~Locked() { pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t &mutex_;
};

// Whether a strand of one task loop comes after what another task loop did: by what runs the two, in the innermost task loop
// around both. Nothing orders two points of one launch.
bool happened_before_outside(const Event &event, const Strand &later) {
  uint32_t task_loop = event.task_loop, chain = event.chain, time = event.time;
  const Strand *strand = &later;
  bool is_inner = false, is_later_inner = false;
  while (task_loop != strand->task_loop) {
    if (!task_loop || !strand->task_loop) return false;
    const Root &root = roots[task_loop], &other = roots[strand->task_loop];
    if (root.depth == 0 && other.depth == 0) return false;
    if (other.depth >= root.depth) {
      strand = strand->outer;
      is_later_inner = true;
    }
    if (root.depth >= other.depth) {
      task_loop = root.task_loop, chain = root.chain, time = root.time;
      is_inner = true;
    }
  }
  if (is_inner && is_later_inner && chain == strand->chain && time == strand->time) return false;
  return time <= strand->clock.at(chain) || holds_back(event.lineage, later.lineage);
}

// The launch point around the place of an event; null if it is that place.
const ExecutionPlace *around_of(const Event &event) {
  const ExecutionPlace &root = roots[event.task_loop].where;
  return root.line == event.where.line && root.name == event.where.name ? nullptr : &root;
}

bool happened_before(const Event &event, const Strand &strand) {
  if (event.phase != strand.phase) return true;
  if (event.task_loop != strand.task_loop) return happened_before_outside(event, strand);
  return event.time <= strand.clock.at(event.chain) || holds_back(event.lineage, strand.lineage);
}

// Whether the order of a tile puts an access before what the strand does now.
bool is_in_order(const Event &event, const Strand &strand) {
  return event.process == strand.process && !event.is_task && !strand.is_task;
}

// Whether a core made the access, and its order puts that before what the strand does now.
bool is_computed_before(const Event &event, const Strand &strand) {
  return is_in_order(event, strand) && event.by == Engine::kCores;
}

uint32_t outermost(uint32_t task_loop) {
  while (task_loop && roots[task_loop].depth) task_loop = roots[task_loop].task_loop;
  return task_loop;
}

// Whether two herds of one body made the accesses, the herds are on the device at the same time, and the earlier one has no
// token that the later one could depend on.
bool are_herds(const Event &event, const Strand &strand) {
  const IssueOrder *earlier = event.lineage, *later = strand.lineage;
  if (event.phase != strand.phase || !find_siblings(earlier, later)) return false;
  if (outermost(event.task_loop) != outermost(strand.task_loop)) return false;
  return earlier->engine == Engine::kCores && later->engine == Engine::kCores && !earlier->is_async;
}

}  // namespace

// All parts have one size, a power of two bytes: the largest that the accesses so far allow.
class Cells {
 public:
  explicit Cells(const Buffer &buffer) : bytes_(buffer.count * buffer.element), count_(1) {
    granule_ = 1;
    while (granule_ < bytes_) granule_ *= 2;
    cells_ = static_cast<Cell *>(calloc(1, sizeof(Cell)));
  }
  Cells(const Cells &) = delete;
  ~Cells() { free(cells_); }

  // Makes parts small enough for runs that start and end at these bytes.
  void refine(i64 low, i64 high);

  // Records one run of an access: bytes [low, high) of the buffer. Returns false if it races.
  bool enter(Entry &entry, i64 low, i64 high);

  // Whether every access so far happened before a strand.
  bool is_settled(const Strand &strand) const {
    return !find_unsettled(strand, [](uint32_t) { return true; }).event;
  }
  // An access that did not: one of a transfer if there is one, for the order of the tile settles the others.
  Entry::Other unsettled(const Strand &strand) const;
  uint32_t writer_of(i64 byte) const { return cells_[byte / granule_].writer; }

  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

 private:
  // The first access that did not happen before a strand and that is wanted, or none.
  template <class Wanted>
  Entry::Other find_unsettled(const Strand &strand, Wanted is_wanted) const;

  const i64 bytes_;
  Cell *cells_;
  i64 count_, granule_;
};

void Cells::refine(i64 low, i64 high) {
  i64 needed = low | granule_;
  if (high < bytes_) needed |= high;
  needed &= -needed;
  if (needed == granule_) return;
  const i64 parts = granule_ / needed, count = (bytes_ + needed - 1) / needed;
  Cell *const finer = static_cast<Cell *>(malloc(size_t(count) * sizeof(Cell)));
  for (i64 i = 0; i < count; ++i) finer[i] = cells_[i / parts];
  free(cells_);
  cells_ = finer;
  count_ = count;
  granule_ = needed;
}

bool Entry::is_behind(uint32_t earlier, bool earlier_writes, i64 byte) {
  if (is_forced) return true;
  if (is_l2 && writes && earlier_writes && !herds.event && are_herds(events[earlier], strand)) {
    herds = Other{earlier, true, byte};
  }
  if (happened_before(events[earlier], strand)) return true;
  if (!has_locks || !ordered_by_locks(events[earlier].lineage, earlier_writes, strand.lineage, writes)) return false;
  if (!locked.event) locked = Other{earlier, earlier_writes, byte};
  return true;
}

// Returns the event that this one races with, or 0. What is ordered after a read is ordered after the write before it.
uint32_t Entry::visit(Cell &cell, i64 byte) {
  uint32_t unordered = 0;
  bool is_behind_reader = false;
  for (const uint32_t reader : cell.readers) {
    if (!writes || !reader) continue;
    if (is_behind(reader, false, byte)) is_behind_reader = true;
    else unordered = reader;
  }
  if (cell.writer && !is_behind_reader && !is_behind(cell.writer, true, byte)) return cell.writer;
  if (unordered) return unordered;
  if (writes) {
    cell = Cell{event, {}};
    return 0;
  }
  // Drops reads that happened before this one: they add nothing.
  int place = int(event % Cell::kReaders);
  for (int i = Cell::kReaders - 1; i >= 0; --i) {
    if (!cell.readers[i] || happened_before(events[cell.readers[i]], strand)) place = i;
  }
  cell.readers[place] = event;
  return 0;
}

bool Cells::enter(Entry &entry, i64 low, i64 high) {
  for (i64 i = low / granule_, last = (high - 1) / granule_; i <= last; ++i) {
    Cell &cell = cells_[i];
    // Most parts have the same history as the part before.
    if (cell == entry.before) {
      cell = entry.after;
      continue;
    }
    entry.before = cell;
    if (const uint32_t other = entry.visit(cell, i * granule_)) {
      entry.raced = Entry::Other{other, cell.writer == other, i * granule_};
      return false;
    }
    entry.after = cell;
  }
  return true;
}

template <class Wanted>
Entry::Other Cells::find_unsettled(const Strand &strand, Wanted is_wanted) const {
  const auto is_found = [&](uint32_t event) { return event && !happened_before(events[event], strand) && is_wanted(event); };
  for (i64 i = 0; i < count_; ++i) {
    if (i > 0 && cells_[i] == cells_[i - 1]) continue;
    if (is_found(cells_[i].writer)) return Entry::Other{cells_[i].writer, true, i * granule_};
    for (const uint32_t reader : cells_[i].readers) {
      if (is_found(reader)) return Entry::Other{reader, false, i * granule_};
    }
  }
  return Entry::Other{};
}

Entry::Other Cells::unsettled(const Strand &strand) const {
  const Entry::Other open = find_unsettled(strand, [&](uint32_t event) { return !is_computed_before(events[event], strand); });
  return open.event ? open : find_unsettled(strand, [](uint32_t) { return true; });
}

namespace {

// The operation of an event, with the put that its block came from: `line 30: air.channel.get @out in launch (3)`.
void describe_writer(uint32_t number, char *text, int capacity) {
  const Event &event = events[number];
  int used = snprintf(text, size_t(capacity), "line %d: %s", event.site.line, event.site.op);
  ExecutionPlace where = event.where;
  if (event.task_loop && where.dims > 0) where.around = around_of(event);
  used += describe(&where, text + used, capacity - used);
  if (!senders.has(number) || !senders[number].site.op) return;
  const Sender &sender = senders[number];
  used += snprintf(text + used, size_t(capacity - used), ", a block from line %d: %s", sender.site.line, sender.site.op);
  describe(&sender.where, text + used, capacity - used);
}

}  // namespace

void release_cells(const Buffer &buffer) {
  if (traced && !traced_writer && buffer.holds(traced, traced + 1)) {
    constexpr int kCapacity = 1600;
    const uint32_t number = buffer.cells->writer_of(traced - buffer.base);
    if (number && (traced_writer = static_cast<char *>(malloc(kCapacity)))) describe_writer(number, traced_writer, kCapacity);
  }
  delete buffer.cells;
}

namespace {

// A tile's own buffer needs no records while only its program order touches it.
bool is_private(const Buffer &buffer, const Strand &strand) {
  return !__atomic_load_n(&buffer.cells, __ATOMIC_ACQUIRE) && buffer.owner == strand.process && !strand.is_fork;
}

Cells &cells_of(Buffer &buffer) {
  static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
  if (Cells *known = __atomic_load_n(&buffer.cells, __ATOMIC_ACQUIRE)) return *known;
  const Locked locked(making);
  if (!buffer.cells) __atomic_store_n(&buffer.cells, new Cells(buffer), __ATOMIC_RELEASE);
  return *buffer.cells;
}

// 0 means that there is no memory for it.
uint32_t new_event(Site site, const Strand &strand, Engine by) {
  const uint32_t number = __atomic_load_n(&lost_track, __ATOMIC_RELAXED) ? 0 : events.add(this_thread().event);
  if (!number) {
    __atomic_fetch_add(&unchecked, 1, __ATOMIC_RELAXED);
    return 0;
  }
  ExecutionPlace where = strand.where ? *strand.where : ExecutionPlace{"", 0, 0, 0};
  where.around = nullptr;
  events[number] = Event{site,           where,        strand.lineage, strand.phase,   strand.task_loop,
                         strand.process, strand.chain, strand.time,    strand.is_task, by};
  if (traced) {
    const FromPut *const put = FromPut::current;
    Sender &sender = senders.at(number);
    sender = put ? Sender{put->site, put->where} : Sender{Site{nullptr, 0}, where};
    sender.where.around = nullptr;
  }
  return number;
}

// Both are in one tile, which runs in program order: a token is missing, without harm here.
// What orders two accesses without a token.
enum class Guard { kNothing, kTile, kLocks, kText };

struct Wording {
  const char *what, *why;
};

Wording wording(Guard guard, const Buffer &buffer, bool both_write) {
  switch (guard) {
    case Guard::kTile:
      return {"missing token, a data race but for the order of the tile",
              "no token puts one before the other: right as long as the tile runs in this order, but a pass may change it; "
              "let the later one depend on the earlier one"};
    case Guard::kLocks:
      return {"missing token, a data race but for the locks of the device",
              "no token puts one before the other: the compiler puts locks around each use of a buffer in L1 or L2, in the "
              "order of the text, but a pass may change that; let the later one depend on the earlier one"};
    case Guard::kText:
      return {"two herds write the same bytes",
              "only the order of the text puts one before the other: the cores of both run at the same time; let the later "
              "herd depend on the token of the earlier one, or give each bytes of its own"};
    case Guard::kNothing: break;
  }
  if (!buffer.label.has_locks) {
    return {"data race",
            "nothing puts one before the other, for L3 has no locks; let one of them depend on the token of the "
            "other, or send the data through a channel"};
  }
  return {"data race", both_write ? "nothing puts one before the other, for locks keep a read and a write apart, and not two "
                                    "writes; let one of them depend on the token of the other"
                                  : "nothing puts one before the other; let one of them depend on the token of the other, or "
                                    "send the data through a channel"};
}

void report(Site site, const Buffer &buffer, const Entry &entry, const Entry::Other &other, Guard guard) {
  Event &event = events[other.event];
  event.is_reported = true;
  ExecutionPlace where = event.where;
  if (event.task_loop && where.dims > 0) where.around = around_of(event);
  char who[600], text[1200];
  describe(&where, who, int(sizeof(who)));
  const Wording words = wording(guard, buffer, entry.writes && other.writes);
  snprintf(text, sizeof(text), "%s: this %s element %lld of %s, which line %d: %s%s %s, and %s", words.what,
           entry.writes ? "writes" : "reads", (long long)(other.place / buffer.element), buffer.label.name, event.site.line,
           event.site.op, who, other.writes ? "writes" : "reads", words.why);
  const ExecutionPlace *const outer = here;
  here = entry.strand.where;
  if (!races_are_notes && guard == Guard::kNothing) fail_as(Failure::kRace, site, "%s", text);
  describe(here, who, int(sizeof(who)));
  note(site, "%s: %s", who + 1, text);
  here = outer;
}

// Calls run(first byte, end) for every run of bytes of a side, until one returns true.
template <class Run>
bool each_run(const Access &side, Run run) {
  i64 bytes = side.element;
  int rank = side.rank;
  while (rank > 0 && (side.sizes[rank - 1] == 1 || side.strides[rank - 1] * side.element == bytes)) {
    bytes *= side.sizes[--rank];
  }
  i64 index[kMaxRank] = {};
  for (;;) {
    i64 offset = 0;
    for (int d = 0; d < rank; ++d) offset += index[d] * side.strides[d] * side.element;
    if (run(side.first + offset, bytes)) return true;
    int d = rank - 1;
    while (d >= 0 && ++index[d] == side.sizes[d]) index[d--] = 0;
    if (d < 0) return false;
  }
}

void enter(Cells &cells, const Access &side, Entry &entry) {
  const Locked holding(cells.mutex);
  each_run(side, [&](const char *first, i64 bytes) {
    const i64 low = first - side.buffer->base;
    cells.refine(low, low + bytes);
    return !cells.enter(entry, low, low + bytes);
  });
}

}  // namespace

void observe(Site site, const Access &side, bool writes, Strand &strand, Engine by) {
  if (!side.buffer || side.low == side.high || is_private(*side.buffer, strand)) return;
  Buffer &buffer = *side.buffer;
  Cells &cells = cells_of(buffer);
  const uint32_t event = new_event(site, strand, by);
  if (!event) return;
  const bool has_locks = buffer.label.has_locks, is_l2 = buffer.label.is_l2;
  Entry entry{strand, event, writes, has_locks, is_l2};
  enter(cells, side, entry);
  if (entry.herds.event) report(site, buffer, entry, entry.herds, Guard::kText);
  else if (entry.locked.event) report(site, buffer, entry, entry.locked, Guard::kLocks);
  if (!entry.raced.event) return;
  report(site, buffer, entry, entry.raced, is_in_order(events[entry.raced.event], strand) ? Guard::kTile : Guard::kNothing);
  Entry again{strand, event, writes, has_locks, is_l2, true};
  enter(cells, side, again);
}

void observe(Site site, const Use &use, Strand &strand) {
  if (!use.buffer) return;
  const char *const base = use.buffer->base, *const end = base + use.buffer->count * use.buffer->element;
  const char *const low = use.low < base ? base : use.low, *const high = use.high > end ? end : use.high;
  Access side = dense(const_cast<char *>(low), high - low, 1);
  side.buffer = use.buffer;
  observe(site, side, use.writes, strand);
}

// In a tile. A sequencer frees a buffer when all that it issued before is done (Sequencer::dealloc).
void check_settled(Site site, const Buffer &buffer) {
  const Strand *const strand = current_strand();
  const Cells *const cells = __atomic_load_n(&buffer.cells, __ATOMIC_ACQUIRE);
  if (!strand || strand->is_task || !cells || buffer.owner != strand->process) return;
  const Entry::Other other = cells->unsettled(*strand);
  if (!other.event || events[other.event].process != strand->process || events[other.event].is_reported) return;
  const BufferText name(buffer.label);
  const Site by = events[other.event].site;
  const char *const how = other.writes ? "writes" : "reads";
  if (!is_computed_before(events[other.event], *strand)) {
    fail_as(Failure::kFreed, site,
            "frees %s while line %d: %s, which %s it, may be under way: let the deallocation depend on its token", name.text,
            by.line, by.op, how);
  }
  events[other.event].is_reported = true;
  char who[600];
  describe(here, who, int(sizeof(who)));
  note(
      site,
      "%s: missing token, a free of a buffer in use but for the order of the tile: this frees %s, which line %d: %s %s, and no "
      "token puts one before the other: right as long as the tile runs in this order, but a pass may change it; let the "
      "deallocation depend on the token of the other",
      who + 1, name.text, by.line, by.op, how);
}

bool watched(const Buffer &buffer) {
  const Strand *const strand = current_strand();
  if (!strand || is_private(buffer, *strand)) return false;
  if (buffer.owner != strand->process) return true;
  if (strand->covers) return false;
  // A buffer that only this tile touches, in its order or asynchronously, cannot race once all earlier operations are known.
  Cells *const cells = __atomic_load_n(&buffer.cells, __ATOMIC_ACQUIRE);
  return strand->is_fork || !cells->is_settled(*strand);
}

void touch(Site site, Buffer &buffer, const void *low, i64 bytes, bool writes) {
  Access side = dense(const_cast<void *>(low), bytes, 1);
  side.buffer = &buffer;
  if (Strand *const strand = current_strand()) observe(site, side, writes, *strand);
}

}  // namespace vnpu
