// Statistics and traces. Linked into programs that are built with checks.
#include "vnpu/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vnpu/check.h"
#include "vnpu/memory.h"
#include "vnpu/record_text.h"

namespace vnpu::record {

int what = 0;

namespace {

// A growing array of plain values.
template <class T>
class Rows {
 public:
  Rows() = default;
  Rows(const Rows &) = delete;
  ~Rows() { free(items_); }
  int size() const { return size_; }
  T &operator[](int i) { return items_[i]; }
  T &add(const T &item) {
    if (size_ == capacity_) {
      capacity_ = capacity_ ? 2 * capacity_ : 64;
      items_ = static_cast<T *>(realloc(items_, size_t(capacity_) * sizeof(T)));
    }
    return items_[size_++] = item;
  }
  void clear() { size_ = 0; }

 private:
  T *items_ = nullptr;
  int size_ = 0, capacity_ = 0;
};

// A tile, or the body of a segment or function, or of all points of a launch.
struct Actor {
  char name[200];
  int line;
  i64 bytes_in, bytes_out, transfers, kernel_calls, l1, peak_l1;
};

struct Member {  // of a bundle of channels
  const char *channel;
  i64 outlet;
  char name[120];
  i64 transfers, bytes;
  int max_in_flight;
};

// A line of the trace: an actor, or an engine that works concurrently with its body.
struct Lane {
  char name[260];
};

struct Event {
  const char *name, *category;
  int line, lane;
  i64 begin, end;
  i64 bytes;  // -1: it moves none
  char point[60];  // of the launch
  const char *from = "", *to = "";  // the buffers, by their names in the text; empty: none, or without a name
  int from_space = -1, to_space = -1;  // their memory spaces; -1: no such side
};

// More events than this are counted, but not stored.
constexpr int kMaxEvents = 1 << 20;

Rows<Actor> actors;
Rows<Member> members;
Rows<Lane> lanes;
Rows<Event> events;
i64 now = 0, dropped = 0;
int last_actor = 0, last_lane = 0, last_member = 0;

bool is_launch(const ExecutionPlace &where) { return strncmp(where.name, "launch", 6) == 0; }

void write_point(char *text, size_t capacity, const ExecutionPlace &where) {
  if (where.dims == 0) text[0] = 0;
  else if (where.dims == 1) snprintf(text, capacity, " (%lld)", (long long)where.x);
  else snprintf(text, capacity, " (%lld, %lld)", (long long)where.x, (long long)where.y);
}

// Returns the index of the row that `same` accepts, searched from the end; -1 if there is none.
template <class T, class Same>
int find(Rows<T> &rows, int last, Same same) {
  for (int i = 0; i < rows.size(); ++i) {
    const int at = last + i < rows.size() ? last + i : last + i - rows.size();
    if (same(rows[at])) return at;
  }
  return -1;
}

const ExecutionPlace kFunction{"function", 0, 0, 0};

Actor &actor(const ExecutionPlace *where) {
  if (!where) where = &kFunction;
  Actor fresh{};
  char point[60] = "";
  if (!is_launch(*where)) write_point(point, sizeof(point), *where);
  snprintf(fresh.name, sizeof(fresh.name), "%.130s%s", where->name, point);
  fresh.line = where->line;
  const int known =
      find(actors, last_actor, [&](const Actor &a) { return a.line == fresh.line && strcmp(a.name, fresh.name) == 0; });
  last_actor = known < 0 ? actors.size() : known;
  return known < 0 ? actors.add(fresh) : actors[known];
}

int lane(const char *name, const char *op = nullptr, const char *index = nullptr) {
  Lane fresh;
  if (op) snprintf(fresh.name, sizeof(fresh.name), "%.130s: %.80s[%.30s]", name, op, index);
  else snprintf(fresh.name, sizeof(fresh.name), "%.130s", name);
  const int known = find(lanes, last_lane, [&](const Lane &l) { return strcmp(l.name, fresh.name) == 0; });
  last_lane = known < 0 ? lanes.size() : known;
  if (known < 0) lanes.add(fresh);
  return last_lane;
}

// The memory space at the end of the text of a memref type: `memref<8x8xbf16, 2 : i32>`.
int space_of(const Buffer *buffer) {
  if (!buffer) return 0;
  const char *last = strrchr(buffer->label.type, ',');
  if (!last) return 0;
  char *rest;
  const long space = strtol(last + 1, &rest, 10);
  return rest != last + 1 && (*rest == '>' || *rest == ' ') ? int(space) : 0;
}

const char *name_of(const Access *side) { return side && side->buffer ? side->buffer->label.name : ""; }

int space_of(const Access *side) { return side ? space_of(side->buffer) : -1; }

int open(const char *name, const char *category, int line, int at, const ExecutionPlace *where, i64 bytes,
         const Access *from = nullptr, const Access *to = nullptr) {
  if (!(what & kTrace)) return -1;
  if (events.size() == kMaxEvents) {
    ++dropped;
    return -1;
  }
  Event fresh{name, category, line, at, now++, -1, bytes, {}, name_of(from), name_of(to), space_of(from), space_of(to)};
  while (where && !is_launch(*where)) where = where->around;
  if (where) write_point(fresh.point, sizeof(fresh.point), *where);
  events.add(fresh);
  return events.size() - 1;
}

void close(int number) {
  if (number >= 0 && number < events.size()) events[number].end = now++;
}

constexpr int kL1 = 2;
constexpr int kHostLevel = 3;  // memory space 0 is L3, 1 is L2, 2 is L1

void put_stats(Text &text) {
  text.put("\"stats\": {\"tiles\": [");
  for (int i = 0; i < actors.size(); ++i) {
    const Actor &a = actors[i];
    text.put(
        "%s{\"where\": \"%s\", \"line\": %d, \"bytes_in\": %lld, \"bytes_out\": %lld, \"transfers\": %lld, "
        "\"kernel_calls\": %lld, \"peak_l1_bytes\": %lld}",
        i ? ", " : "", Quoted(a.name).text, a.line, (long long)a.bytes_in, (long long)a.bytes_out, (long long)a.transfers,
        (long long)a.kernel_calls, (long long)a.peak_l1);
  }
  text.put("], \"channels\": [");
  for (int i = 0; i < members.size(); ++i) {
    const Member &m = members[i];
    text.put("%s{\"name\": \"%s\", \"transfers\": %lld, \"bytes\": %lld, \"most_in_flight\": %d}", i ? ", " : "",
             Quoted(m.name).text, (long long)m.transfers, (long long)m.bytes, m.max_in_flight);
  }
  text.put("]}");
}

void put_trace(Text &text) {
  text.put("\"threads\": [");
  for (int i = 0; i < lanes.size(); ++i) text.put("%s\"%s\"", i ? ", " : "", Quoted(lanes[i].name).text);
  text.put("], \"events_left_out\": %lld, \"trace\": [", (long long)dropped);
  for (int i = 0; i < events.size(); ++i) {
    const Event &e = events[i];
    const bool is_open = e.end < 0;  // the run ended with a failure
    text.put(
        "%s{\"name\": \"%s\", \"cat\": \"%s\", \"ph\": \"X\", \"ts\": %lld, \"dur\": %lld, \"pid\": 1, \"tid\": %d, "
        "\"args\": {\"line\": %d",
        i ? ",\n" : "", Quoted(e.name).text, e.category, (long long)e.begin, (long long)((is_open ? now : e.end) - e.begin),
        e.lane, e.line);
    if (e.bytes >= 0) text.put(", \"bytes\": %lld", (long long)e.bytes);
    if (e.from[0]) text.put(", \"from\": \"%s\"", Quoted(e.from).text);
    if (e.to[0]) text.put(", \"to\": \"%s\"", Quoted(e.to).text);
    if (e.from_space >= 0) text.put(", \"from_memory\": \"L%d\"", kHostLevel - e.from_space);
    if (e.to_space >= 0) text.put(", \"to_memory\": \"L%d\"", kHostLevel - e.to_space);
    if (e.point[0]) text.put(", \"launch\": \"%s\"", e.point + 1);
    if (is_open) text.put(", \"unfinished\": true");
    text.put("}}");
  }
  text.put("]");
}

}  // namespace

void begin(int kinds) {
  what = kinds;
  actors.clear();
  members.clear();
  lanes.clear();
  events.clear();
  now = dropped = 0;
  last_actor = last_lane = last_member = 0;
}

char *take() {
  if (!what) return nullptr;
  Text text;
  text.put("{");
  if (what & kStats) put_stats(text);
  if (what == (kStats | kTrace)) text.put(", ");
  if (what & kTrace) put_trace(text);
  text.put("}");
  what = 0;
  return text.give();
}

int enter(const ExecutionPlace &where) {
  const Actor &a = actor(&where);
  return open(where.name, "body", where.line, lane(a.name), &where, -1);
}

void leave(int number) { close(number); }

void copied(Site site, const Access &dst, const Access &src) {
  Actor &a = actor(here);
  const i64 bytes = dst.count * dst.element;
  (space_of(dst.buffer) >= space_of(src.buffer) ? a.bytes_in : a.bytes_out) += bytes;
  ++a.transfers;
  close(open(site.op, "copy", site.line, lane(a.name), here, bytes, &src, &dst));
}

void called(Site site, const char *name) {
  Actor &a = actor(here);
  ++a.kernel_calls;
  close(open(name, "kernel", site.line, lane(a.name), here, -1));
}

int arrives(Site site, const ExecutionPlace &where, const Access &side, bool is_put, const char *engine) {
  Actor &a = actor(&where);
  const i64 bytes = side.count * side.element;
  (is_put ? a.bytes_out : a.bytes_in) += bytes;
  ++a.transfers;
  const int at = engine ? lane(a.name, site.op, engine) : lane(a.name);
  return open(site.op, is_put ? "put" : "get", site.line, at, &where, bytes, is_put ? &side : nullptr,
              is_put ? nullptr : &side);
}

void through(int number) { close(number); }

void delivered(const char *channel, i64 outlet, const char *index, i64 bytes, int in_flight) {
  const int known =
      find(members, last_member, [&](const Member &m) { return m.outlet == outlet && strcmp(m.channel, channel) == 0; });
  last_member = known < 0 ? members.size() : known;
  if (known < 0) {
    Member fresh{channel, outlet, {}, 0, 0, 0};
    snprintf(fresh.name, sizeof(fresh.name), "%.80s[%.30s]", channel, index);
    members.add(fresh);
  }
  Member &m = members[last_member];
  ++m.transfers;
  m.bytes += bytes;
  if (in_flight > m.max_in_flight) m.max_in_flight = in_flight;
}

void allocated(const Buffer &buffer) {
  if (space_of(&buffer) != kL1) return;
  Actor &a = actor(&buffer.maker);
  a.l1 += buffer.count * buffer.element;
  if (a.l1 > a.peak_l1) a.peak_l1 = a.l1;
}

void given_back(const Buffer &buffer) {
  if (space_of(&buffer) == kL1) actor(&buffer.maker).l1 -= buffer.count * buffer.element;
}

}  // namespace vnpu::record

namespace vnpu {

int begin_body(const ExecutionPlace &where) { return record::on() ? record::enter(where) : -1; }

void end_body(int number) { record::leave(number); }

}  // namespace vnpu
