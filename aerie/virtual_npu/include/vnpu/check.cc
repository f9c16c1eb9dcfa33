// The state of buffers in programs built with checks, and the findings of a run. Linked only into those programs.
#include "vnpu/check.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>

#include "vnpu/garbage.h"
#include "vnpu/memory.h"
#include "vnpu/record.h"

namespace vnpu {

namespace {

using ll = long long;

// Writes `[3, 0]`: the index of an element in its buffer, and in which copy if there are several.
struct Coordinates {
  char text[200];
  Coordinates(const Buffer &buffer, i64 element) {
    i64 inner = 1;
    for (int d = 0; d < buffer.rank; ++d) inner *= buffer.sizes[d];
    const i64 copy = inner ? element / inner : 0;
    element = inner ? element % inner : 0;
    int used = snprintf(text, sizeof(text), "[");
    for (int d = 0; d < buffer.rank; ++d) {
      inner /= buffer.sizes[d];
      used += snprintf(text + used, sizeof(text) - size_t(used), "%s%lld", d ? ", " : "", ll(element / inner));
      element %= inner;
    }
    used += snprintf(text + used, sizeof(text) - size_t(used), "]");
    if (buffer.count > inner && copy) snprintf(text + used, sizeof(text) - size_t(used), " of tile %lld", ll(copy));
  }
};

// Whether every byte is as it was when the memory was allocated. The size is a multiple of 8.
bool all_ones(const char *at, i64 bytes) {
  uint64_t all = ~uint64_t(0), word;
  for (i64 i = 0; i < bytes; i += 8) {
    memcpy(&word, at + i, 8);
    all &= word;
  }
  return all == ~uint64_t(0);
}

}  // namespace

// ---- buffers ----

BufferText::BufferText(const BufferLabel &label) {
  const bool is_named = label.name[0];
  int used = snprintf(text, sizeof(text), "%.100s%s%.200s, %.60s", label.name, is_named ? " (" : "", label.type, label.how);
  if (label.site.line > 0) used += snprintf(text + used, sizeof(text) - size_t(used), " at line %d", label.site.line);
  if (is_named) snprintf(text + used, sizeof(text) - size_t(used), ")");
}

Buffer::Buffer(const BufferLabel &label, void *base, int element, std::initializer_list<i64> extents, i64 count,
               uint8_t *written, i64 guard)
    : label(label),
      maker(here ? *here : ExecutionPlace{"the program", 0, 0, 0}),
      base(static_cast<char *>(base)),
      count(count),
      element(element),
      guard(guard),
      rank(extents.size() <= kMaxRank ? int(extents.size()) : 1),
      owner(current_process()),
      shift_(__builtin_ctz(unsigned(element))),
      written_(written),
      hole_(written ? 0 : count) {
  sizes[0] = count;
  for (int d = 0; d < int(extents.size()) && d < rank; ++d) sizes[d] = extents.begin()[d];
  if (extents.size() > kMaxRank) sizes[0] = count;
  if (__builtin_expect(lists_buffers, 0)) list_buffer(*this);
}

bool Buffer::find_hole() {
  const i64 from = __atomic_load_n(&hole_, __ATOMIC_RELAXED);
  if (from == count) return false;
  if (!written_[from]) return true;
  const void *found = memchr(written_ + from, 0, size_t(count - from));
  const i64 hole = found ? static_cast<const uint8_t *>(found) - written_ : count;
  __atomic_store_n(&hole_, hole, __ATOMIC_RELAXED);
  return found;
}

i64 Buffer::first_hole(const void *low, const void *high) {
  if (!written_ || full()) return -1;
  const i64 first = (static_cast<const char *>(low) - base) / element;
  const i64 end = (static_cast<const char *>(high) - base + element - 1) / element;
  const void *found = memchr(written_ + first, 0, size_t(end - first));
  return found ? static_cast<const uint8_t *>(found) - written_ : -1;
}

bool Buffer::written_in_part(const void *low, const void *high) const {
  const i64 first = (static_cast<const char *>(low) - base) / element;
  const i64 end = (static_cast<const char *>(high) - base + element - 1) / element;
  return !written_ || memchr(written_ + first, 1, size_t(end - first));
}

void Buffer::mark_changed(const char *low, const char *high) {
  for (i64 i = (low - base) / element, end = (high - base) / element; i < end; ++i) {
    if (written_[i]) continue;
    for (int b = 0; b < element; ++b) written_[i] |= base[i * element + b] != char(0xff);
  }
}

i64 Buffer::count_strays() const {
  const char *const end = base + count * element;
  if (all_ones(base - guard, guard) && all_ones(end, guard)) return 0;
  i64 strays = 0;
  for (i64 i = 1; i <= guard; ++i) strays += (base[-i] != char(0xff)) + (end[i - 1] != char(0xff));
  return strays;
}

void Buffer::mark_run(i64 first, i64 end) {
  if (!written_) return;
  if (first == 0 && end == count) return mark_all();
  memset(written_ + first, 1, size_t(end - first));
}

uint8_t *Buffer::flags_from(const void *at, bool changes) {
  // Full without flags: one operation wrote all elements.
  if (full()) memset(written_, 1, size_t(count));
  if (changes) __atomic_store_n(&hole_, i64(0), __ATOMIC_RELAXED);
  return written_ + (static_cast<const char *>(at) - base) / element;
}

void Buffer::forget(Site by, const void *low, const void *high) {
  ended = by;
  if (!written_ || garbage_seed) return;  // memory keeps its content
  const i64 first = (static_cast<const char *>(low) - base) / element;
  const i64 end = (static_cast<const char *>(high) - base) / element;
  if (first == end) return;
  // Full without flags: one operation wrote all elements.
  if (full()) memset(written_, 1, size_t(count));
  memset(written_ + first, 0, size_t(end - first));
  __atomic_store_n(&hole_, first < hole_ ? first : hole_, __ATOMIC_RELAXED);
}

i64 Buffer::count_written() const {
  if (!written_ || hole_ == count) return count;
  i64 written = 0;
  for (i64 i = 0; i < count; ++i) written += written_[i];
  return written;
}

void Buffer::refuse(Site site, const char *verb, const void *low, const void *high) const {
  const BufferText self(label);
  if (freed.op) {
    fail_as(Failure::kFreed, site, "%s %s after line %d (%s) freed it: move the deallocation behind the last use", verb,
            self.text, freed.line, freed.op);
  }
  const i64 first = floor_div(static_cast<const char *>(low) - base, element);
  const i64 last = floor_div(static_cast<const char *>(high) - 1 - base, element);
  fail_as(Failure::kOutside, site, "%s elements %lld to %lld of %s, which has elements 0 to %lld", verb, ll(first), ll(last),
          self.text, ll(count - 1));
}

void Buffer::refuse_unwritten(Site site, const void *low, const void *high) {
  const Coordinates at(*this, first_hole(low, high));
  const BufferText self(label);
  if (ended.op) {
    fail_as(Failure::kUninitialised, site,
            "reads element %s of %s before anything wrote it since line %d (%s) freed the buffer: %lld of its %lld "
            "elements are written",
            at.text, self.text, ended.line, ended.op, ll(count_written()), ll(count));
  }
  fail_as(Failure::kUninitialised, site,
          "reads element %s of %s before anything wrote it: %lld of its %lld elements are written", at.text, self.text,
          ll(count_written()), ll(count));
}

void fail_index(const OperandPlace &at, int dimension, i64 index, i64 lanes, i64 size) {
  char last[40] = "", name[200] = "";
  if (lanes > 1) snprintf(last, sizeof(last), " to %lld", ll(index + lanes - 1));
  if (at.name[0]) snprintf(name, sizeof(name), " %s", at.name);
  fail_as(Failure::kOutside, at.site, "index %lld%s of dimension %d is outside %s%s%s: legal are 0 to %lld", ll(index), last,
          dimension, at.type, name, at.made, ll(size - 1));
}

void fail_outside(Site site, const Buffer &buffer, i64 low, i64 high, i64 extent) {
  fail_as(Failure::kOutside, site, "the access pattern reaches elements %lld to %lld of %s: legal are 0 to %lld", ll(low),
          ll(high), BufferText(buffer.label).text, ll(extent - 1));
}

void fail_offset(Site site, const Buffer &buffer, const char *first) {
  const i64 offset = first - buffer.base;
  fail_as(Failure::kOffset, site,
          "begins %lld bytes into %s; the shim gets offsets in 32 bits, so it would begin at byte %lld; let offsets "
          "end below %lld: put the rest into another argument",
          ll(offset), BufferText(buffer.label).text, ll(offset % kHostOffsets), ll(kHostOffsets));
}

namespace {

// Explains what a core does with an unaligned vector, and the remedy.
struct Masked {
  char text[400];
  Masked(const void *first, i64 bytes, bool writes) {
    const ll width = alignment_of(bytes), off = misaligned_by(first, bytes);
    snprintf(text, sizeof(text),
             "%lld bytes behind a multiple of %lld: the core drops the low bits of the address and %s %lld bytes lower, so "
             "the last %lld bytes are never %s; begin vectors of %lld bits at multiples of %lld bytes, and give L1 buffers "
             "sizes that are multiples of 64 bytes",
             off, width, writes ? "writes" : "reads", off, off, writes ? "written" : "read", width * 8, width);
  }
};

}  // namespace

void fail_misaligned(const OperandPlace &at, bool writes, const void *first, i64 bytes) {
  fail_as(Failure::kMisaligned, at.site, "%s %lld bytes of %s%s%s%s at an address that is %s", writes ? "writes" : "reads",
          ll(bytes), at.name, at.name[0] ? ": " : "", at.type, at.made, Masked(first, bytes, writes).text);
}

void fail_misaligned(Site site, const char *call, int argument, const Buffer &buffer, bool writes, const void *first,
                     i64 bytes) {
  fail_as(Failure::kMisaligned, site, "%s of %lld bytes in argument %d, %s, at an address that is %s", call, ll(bytes),
          argument, BufferText(buffer.label).text, Masked(first, bytes, writes).text);
}

void fail_extent(const OperandPlace &at, int dimension, i64 size, i64 loops) {
  fail_as(Failure::kOutside, at.site, "dimension %d of %s%s%s has %lld elements, and another operand has %lld", dimension,
          at.name, at.name[0] ? ": " : "", at.type, ll(size), ll(loops));
}

// ---- transfers ----

namespace {

// Calls run(low, high) for every dense run of bytes of an access, in its order.
template <class Run>
void each_run(const Access &a, Run run) {
  i64 dense = 1, index[kMaxRank] = {};
  int outer = a.rank;
  while (outer > 0 && (a.sizes[outer - 1] == 1 || a.strides[outer - 1] == dense)) dense *= a.sizes[--outer];
  const char *at = a.first;
  for (;;) {
    run(at, at + dense * a.element);
    int d = outer - 1;
    for (; d >= 0; --d) {
      at += a.strides[d] * a.element;
      if (++index[d] < a.sizes[d]) break;
      at -= a.strides[d] * a.element * a.sizes[d];
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

}  // namespace

void check_readable(Site site, const Access &src) {
  if (src.buffer && src.low != src.high) src.buffer->check(site, "reads", src.low, src.high);
}

void check_source(Site site, const Access &src) {
  if (!src.buffer || src.low == src.high) return;
  check_readable(site, src);
  if (src.buffer->full()) return;
  each_run(src, [&](const char *low, const char *high) { src.buffer->check_written(site, low, high); });
}

void check_destination(Site site, const Access &dst) {
  if (dst.buffer && dst.low != dst.high) dst.buffer->check(site, "writes", dst.low, dst.high);
}

void mark(const Access &dst) {
  if (dst.flags) memset(dst.flags, 1, size_t(dst.count));
  if (!dst.buffer || dst.low == dst.high || dst.buffer->full()) return;
  each_run(dst, [&](const char *low, const char *high) { dst.buffer->mark(low, high); });
}

bool copies_unwritten(Site site, const Access &dst, const Access &src) {
  if (src.count == 0) return false;
  bool has_holes = false;
  if (src.flags) {
    has_holes = memchr(src.flags, 0, size_t(src.count));
  } else if (src.buffer && !src.buffer->full()) {
    each_run(src, [&](const char *low, const char *high) { has_holes |= src.buffer->first_hole(low, high) >= 0; });
  }
  if (!has_holes) return false;
  if (dst.flags || (dst.buffer && dst.buffer->has_flags())) {
    if (!src.padding) return true;
  }
  check_source(site, src);
  if (dst.buffer) {
    fail_as(Failure::kUninitialised, site, "copies element %lld of a block into %s that was not written when it was sent",
            ll(static_cast<const uint8_t *>(memchr(src.flags, 0, size_t(src.count))) - src.flags),
            BufferText(dst.buffer->label).text);
  }
  return true;
}

Access flags_of(const Access &side, bool changes) {
  Access flags = side;
  uint8_t *const first = side.flags ? side.flags : side.buffer->flags_from(side.first, changes);
  flags.first = reinterpret_cast<char *>(first);
  flags.element = 1;
  return flags;
}

void reads_all(Site site, const Access &operand) {
  check_source(site, operand);
  if (!operand.buffer || operand.count == 0 || !watched(*operand.buffer)) return;
  each_run(operand, [&](const char *low, const char *high) { touch(site, *operand.buffer, low, high - low, false); });
}

void writes_all(Site site, const Access &operand) {
  check_destination(site, operand);
  mark(operand);
  if (!operand.buffer || operand.count == 0 || !watched(*operand.buffer)) return;
  each_run(operand, [&](const char *low, const char *high) { touch(site, *operand.buffer, low, high - low, true); });
}

// ---- values ----

void fail_shift(Site site, i64 amount, int width) {
  fail(site, "shifts a number of %d bits by %lld: legal are 0 to %d", width, ll(amount), width - 1);
}

void fail_fit(Site site, double value, const char *type) {
  fail(site, "%.17g does not fit %s: clamp it first, what becomes of it is not defined", value, type);
}

namespace {
std::atomic<bool> is_reported{false};  // of a result that is not finite
}  // namespace

void report_not_finite(Site site) {
  if (is_reported.exchange(true)) return;
  char who[600];
  who[describe(here, who, int(sizeof(who)))] = 0;
  note(site, "%s%smakes a NaN or an infinity out of finite numbers, the first of this run", who[0] ? who + 1 : "",
       who[0] ? ": " : "");
}

// ---- findings that do not end a run ----

namespace {

struct Note {
  Site site;
  const char *format;
  i64 count;
  char text[600];
};

constexpr int kMaxNotes = 100;
pthread_mutex_t notes_mutex = PTHREAD_MUTEX_INITIALIZER;
Note notes[kMaxNotes];
int note_count = 0;
i64 dropped_notes = 0;

struct Locked {
  Locked() { pthread_mutex_lock(&notes_mutex); }
  ~Locked() { pthread_mutex_unlock(&notes_mutex); }
};

}  // namespace

void note(Site site, const char *format, ...) {
  const Locked locked;
  for (int i = 0; i < note_count; ++i) {
    Note &known = notes[i];
    if (known.site.line == site.line && known.site.op == site.op && known.format == format) {
      ++known.count;
      return;
    }
  }
  if (note_count == kMaxNotes) {
    ++dropped_notes;
    return;
  }
  Note &fresh = notes[note_count++];
  fresh.site = site;
  fresh.format = format;
  fresh.count = 1;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(fresh.text, sizeof(fresh.text), format, arguments);
  va_end(arguments);
}

void begin_notes() {
  const Locked locked;
  note_count = 0;
  dropped_notes = 0;
  is_reported = false;
}

char *take_notes() {
  const Locked locked;
  if (note_count == 0) return nullptr;
  const size_t capacity = size_t(note_count + 1) * (sizeof(Note) + 300);
  char *const text = static_cast<char *>(malloc(capacity));
  size_t used = 0;
  for (int i = 0; i < note_count; ++i) {
    const Note &n = notes[i];
    if (n.site.line > 0) used += size_t(snprintf(text + used, capacity - used, "line %d: ", n.site.line));
    used += size_t(snprintf(text + used, capacity - used, "%s: %s", n.site.op, n.text));
    if (n.count > 1) used += size_t(snprintf(text + used, capacity - used, " (%lld times)", ll(n.count)));
    used += size_t(snprintf(text + used, capacity - used, "\n"));
  }
  if (dropped_notes) snprintf(text + used, capacity - used, "%lld more notes are left out\n", ll(dropped_notes));
  return text;
}

}  // namespace vnpu
