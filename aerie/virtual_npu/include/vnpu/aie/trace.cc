// Records a run as the record of an AIR program is: lanes of events, in the format that Perfetto reads.
#include "vnpu/aie/trace.h"

#include <stdio.h>

#include "vnpu/aie/array.h"

namespace vnpu::aie {

thread_local Trace *tracing = nullptr;

namespace {

constexpr int kMaxEvents = 100000;
constexpr char kLock[] = "lock";

}  // namespace

int Trace::lane(int &known, const char *name) {
  if (known >= 0) return known;
  // A device that is loaded again has the lanes that it had.
  Lane fresh;
  snprintf(fresh.name, sizeof(fresh.name), "%s", name);
  for (known = 0; known < lanes_.size(); ++known) {
    if (strcmp(lanes_[known].name, fresh.name) == 0) return known;
  }
  lanes_.push(fresh);
  return known;
}

int Trace::add(const Event &event) {
  const i64 until = event.end > event.begin ? event.end : event.begin;
  last_ = until > last_ ? until : last_;
  if (!(kinds_ & kTrace)) return -1;
  if (events_.size() == kMaxEvents) {
    ++left_out_;
    return -1;
  }
  events_.push(event);
  return events_.size() - 1;
}

// ---- actors ----

void Trace::close(Actor &actor, i64 at) {
  if (actor.event >= 0) events_[actor.event].end = at;
  actor.event = -1;
  last_ = at > last_ ? at : last_;
}

namespace {

// Writes what an actor waits for, or does meanwhile. Returns the category; null: nothing that is shown.
const char *describe_waiting(const Actor &actor, char *text, size_t capacity, i64 &bytes) {
  const Waiting &waiting = actor.waiting;
  char name[80] = "";
  if (waiting.channel) waiting.channel->describe(name, int(sizeof(name)));
  switch (waiting.kind) {
    case Waiting::kLock:
      snprintf(text, capacity, "waits for lock %.40s %s %d", waiting.lock->table->name,
               waiting.at_least ? ">=" : "==", waiting.value);
      return "wait";
    case Waiting::kSend:
    case Waiting::kReceive: {
      const Channel &channel = *waiting.channel;
      const BdTable &bd = *channel.bd->table;
      bytes = bd.length * bd.element;
      if (channel.is_port()) snprintf(text, capacity, "a word");
      else if (bd.buffer < 0) snprintf(text, capacity, "BD of the host");
      else snprintf(text, capacity, "BD of %.60s", channel.array->table.buffer[bd.buffer].name);
      return "bd";
    }
    case Waiting::kToken: snprintf(text, capacity, "waits for a token of %s", name); return "wait";
    case Waiting::kQueue: snprintf(text, capacity, "waits for room in the queue of %s", name); return "wait";
    case Waiting::kCascadeIn:
    case Waiting::kCascadeOut: snprintf(text, capacity, "waits for the cascade"); return "wait";
    case Waiting::kStreamIn:
    case Waiting::kStreamOut: snprintf(text, capacity, "waits for its port"); return "wait";
    default: return nullptr;
  }
}

}  // namespace

int Trace::open(Actor &actor, i64 at) {
  Event event{0, actor.line, at, -1, -1, nullptr, ""};
  event.category = describe_waiting(actor, event.name, sizeof(event.name), event.bytes);
  if (!event.category) return -1;
  char name[120];
  actor.describe(name, int(sizeof(name)));
  event.lane = lane(actor.lane, name);
  return add(event);
}

void Trace::had_turn(Actor &actor, i64 begun) {
  close(actor, begun);
  const i64 now = actor.run.time();
  if (actor.is_core && now > begun) {
    char name[120];
    actor.describe(name, int(sizeof(name)));
    add(Event{lane(actor.lane, name), actor.line, begun, now, -1, "body", "computes"});
  }
  actor.event = open(actor, now);
}

void Trace::end(Actor &actor) { actor.event = -1; }

// ---- streams and locks ----

void Trace::moved(Source &source, i64 bytes) {
  if (!(kinds_ & kTrace)) return;
  char sender[80], name[120];
  source.channel->describe(sender, int(sizeof(sender)));
  snprintf(name, sizeof(name), "stream of %s", sender);
  const i64 now = source.channel->run.time();
  Event event{lane(source.lane, name), source.channel->line, now, now + (bytes + 3) / 4, bytes, "stream", ""};
  snprintf(event.name, sizeof(event.name), "%lld words", (long long)((bytes + 3) / 4));
  add(event);
}

void Trace::had(Arbiter &arbiter, const Source &source, i64 from, i64 to) {
  if (!(kinds_ & kTrace)) return;
  char place[80], name[120];
  name_place(place, int(sizeof(place)), arbiter.table->place);
  if (arbiter.table->number < 0) snprintf(name, sizeof(name), "the port into %s", place);
  else snprintf(name, sizeof(name), "arbiter %d of %s", arbiter.table->number, place);
  Event event{lane(arbiter.lane, name), source.channel->line, from, to, -1, "arbiter", ""};
  source.channel->describe(event.name, int(sizeof(event.name)));
  add(event);
}

void Trace::changed(Lock &lock) {
  if (!(kinds_ & kTrace)) return;
  char name[120];
  const Place place = lock.table->place;
  snprintf(name, sizeof(name), "lock %.60s of tile (%d, %d)", lock.table->name, place.column, place.row);
  const i64 now = lock.run->time();
  add(Event{lane(lock.lane, name), 0, now, now, lock.value, kLock, ""});
}

// ---- the end ----

namespace {

bool is_same(Place one, Place other) { return one.column == other.column && one.row == other.row; }

void put_channels(record::Text &text, Array &array, bool is_first) {
  for (int i = 0; i < array.channels.size(); ++i) {
    const Channel &channel = *array.channels[i];
    char name[120];
    channel.describe(name, int(sizeof(name)));
    text.put("%s{\"name\": \"%s\", \"transfers\": %lld, \"bytes\": %lld}", is_first && i == 0 ? "" : ", ",
             record::Quoted(name).text, (long long)channel.transfers, (long long)channel.bytes);
  }
}

// A tile stands where the first of its channels does.
void put_tiles(record::Text &text, Array &array, bool is_first) {
  for (int i = 0; i < array.channels.size(); ++i) {
    const Place place = array.channels[i]->table->place;
    i64 in = 0, out = 0, transfers = 0;
    bool is_known = false;
    for (int k = 0; k < array.channels.size(); ++k) {
      const Channel &other = *array.channels[k];
      if (!is_same(place, other.table->place)) continue;
      is_known = is_known || k < i;
      (other.table->sends ? out : in) += other.bytes;
      transfers += other.transfers;
    }
    if (is_known) continue;
    char name[80];
    name_place(name, int(sizeof(name)), place);
    text.put("%s{\"where\": \"%s\", \"bytes_in\": %lld, \"bytes_out\": %lld, \"transfers\": %lld}", is_first ? "" : ", ", name,
             (long long)in, (long long)out, (long long)transfers);
    is_first = false;
  }
}

}  // namespace

void Trace::add_counts(Array &array) {
  put_channels(channels_, array, !*channels_.text());
  put_tiles(tiles_, array, !*tiles_.text());
}

void Trace::end(Array &array) {
  const i64 now = array.run.time();
  last_ = now > last_ ? now : last_;
  for (int i = 0; i < array.cores.size(); ++i) end(*array.cores[i]);
  for (int i = 0; i < array.channels.size(); ++i) {
    array.channels[i]->source.note_arbiters();
    end(*array.channels[i]);
  }
  add_counts(array);
}

void Trace::put_events(record::Text &text) {
  text.put("\"clock\": \"cycles of a model of the device: nothing was measured on hardware\", \"threads\": [");
  for (int i = 0; i < lanes_.size(); ++i) text.put("%s\"%s\"", i ? ", " : "", record::Quoted(lanes_[i].name).text);
  text.put("], \"events_left_out\": %lld, \"trace\": [", (long long)left_out_);
  for (int i = 0; i < events_.size(); ++i) {
    const Event &event = events_[i];
    const bool is_lock = event.category == kLock;
    text.put("%s{\"name\": \"%s\"", i ? ",\n" : "", record::Quoted(is_lock ? lanes_[event.lane].name : event.name).text);
    if (is_lock) {
      text.put(", \"cat\": \"lock\", \"ph\": \"C\", \"ts\": %lld, \"pid\": 1, \"args\": {\"value\": %lld}}",
               (long long)event.begin, (long long)event.bytes);
      continue;
    }
    const bool is_open = event.end < 0;
    text.put(", \"cat\": \"%s\", \"ph\": \"X\", \"ts\": %lld, \"dur\": %lld, \"pid\": 1, \"tid\": %d, \"args\": {\"line\": %d",
             event.category, (long long)event.begin, (long long)((is_open ? last_ : event.end) - event.begin), event.lane,
             event.line);
    if (event.bytes >= 0) text.put(", \"bytes\": %lld", (long long)event.bytes);
    text.put(is_open ? ", \"unfinished\": true}}" : "}}");
  }
  text.put("]");
}

char *Trace::take() {
  record::Text text;
  text.put("{");
  if (kinds_ & kStats) {
    text.put("\"stats\": {\"tiles\": [%s], \"channels\": [%s]}", tiles_.text(), channels_.text());
  }
  if (kinds_ == (kStats | kTrace)) text.put(", ");
  if (kinds_ & kTrace) put_events(text);
  text.put("}");
  return text.give();
}

}  // namespace vnpu::aie
