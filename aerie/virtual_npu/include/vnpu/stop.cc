// Stops before an operation. Linked into programs that are built with checks.
#include "vnpu/stop.h"

#include "vnpu/check.h"
#include "vnpu/storage.h"

namespace vnpu {

constinit bool lists_buffers = true;

namespace {

constinit Stops *stops = nullptr;
constinit Buffer *last_listed = nullptr;

struct Place {
  explicit Place(const ExecutionPlace &place) { text[describe(&place, text, int(sizeof(text)))] = 0; }
  char text[400];
};

StoppedBuffer view_of(const Buffer &buffer, const Place &place) {
  const ExecutionPlace &maker = buffer.maker;
  StoppedBuffer view{};
  view.name = buffer.label.name;
  view.type = buffer.label.type;
  view.how = buffer.label.how;
  view.place = place.text;
  view.data = buffer.base;
  view.written = buffer.written_flags();
  view.sizes = buffer.sizes;
  view.rank = buffer.rank;
  view.count = buffer.count;
  view.x = maker.x;
  view.y = maker.y;
  view.line = buffer.label.site.line;
  view.element = buffer.element;
  view.level = buffer.label.is_l2 ? 2 : buffer.label.has_locks ? 1 : 3;
  view.is_here = here && here->name == maker.name && here->x == maker.x && here->y == maker.y && here->line == maker.line;
  return view;
}

void show_buffers() {
  List<const Buffer *> buffers;
  for (const Buffer *buffer = last_listed; buffer; buffer = buffer->listed_before) {
    if (!buffer->freed.op) buffers.push(buffer);
  }
  List<Place> places;
  for (int i = 0; i < buffers.size(); ++i) places.push(Place(buffers[i]->maker));
  List<StoppedBuffer> views;
  for (int i = 0; i < buffers.size(); ++i) views.push(view_of(*buffers[i], places[i]));
  stops->look(views.size() ? &views[0] : nullptr, views.size());
}

bool is_at(const StopPoint &point, Site site) {
  if (point.line != site.line) return false;
  return !point.has_tile || (here && here->dims > 0 && here->x == point.x && here->y == point.y);
}

}  // namespace

void begin_stops(Stops *of_run) {
  stops = of_run;
  lists_buffers = of_run;
  if (!stops) return;
  stops->reached = -1;
  for (int i = 0; i < stops->count; ++i) stops->points[i].count = 0;
}

void stop_before(Site site) {
  for (int i = 0; stops && i < stops->count; ++i) {
    StopPoint &point = stops->points[i];
    if (!is_at(point, site) || ++point.count != point.hit) continue;
    stops->reached = i;
    show_buffers();
    fail_stopped(Failure::kStopPoint, site, "stopped before it, hit %lld", (long long)point.hit);
  }
}

void list_buffer(Buffer &buffer) {
  buffer.listed_before = last_listed;
  if (last_listed) last_listed->listed_after = &buffer;
  last_listed = &buffer;
  buffer.is_listed = true;
}

void unlist_buffer(Buffer &buffer) {
  if (buffer.listed_before) buffer.listed_before->listed_after = buffer.listed_after;
  if (buffer.listed_after) buffer.listed_after->listed_before = buffer.listed_before;
  else last_listed = buffer.listed_before;
}

}  // namespace vnpu
