// The notes of a run, its time limit, and what it leaves behind.
#include "vnpu/aie/watch.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "vnpu/aie/array.h"

namespace vnpu::aie {

// ---- notes ----

namespace {

constexpr int kMostNotes = 100;

struct Notes {
  char text[kMostNotes * 300];
  int used, count, left_out;
  Site sites[kMostNotes];
};
thread_local Notes *notes = nullptr;
thread_local i64 stall = 0;
thread_local Core *turning = nullptr;
thread_local i64 turn_began = -1;  // in nanoseconds of the thread's time; -1: its loops have not been looked at yet

i64 thread_time() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return i64(now.tv_sec) * 1000000000 + now.tv_nsec;
}

bool is_known(Site site) {
  for (int i = 0; i < notes->count; ++i) {
    if (notes->sites[i].line == site.line && strcmp(notes->sites[i].op, site.op) == 0) return true;
  }
  return false;
}

void add_note(Site site, const char *format, va_list arguments) {
  if (notes->count == kMostNotes || notes->used + 300 > int(sizeof(notes->text))) {
    ++notes->left_out;
    return;
  }
  notes->sites[notes->count++] = site;
  char *const at = notes->text + notes->used;
  const int room = 298;
  const int head = site.line > 0 ? snprintf(at, size_t(room), "line %d: %s: ", site.line, site.op) : 0;
  const int body = vsnprintf(at + head, size_t(room - head), format, arguments);
  notes->used += head + (body < room - head ? body : room - head - 1);
  notes->text[notes->used++] = '\n';
  notes->text[notes->used] = 0;
}

}  // namespace

void note(Site site, const char *format, ...) {
  if (!notes || is_known(site)) return;
  va_list arguments;
  va_start(arguments, format);
  add_note(site, format, arguments);
  va_end(arguments);
}

namespace {

// Adds a line each time.
void note_each(Site site, const char *format, ...) __attribute__((format(printf, 2, 3)));
void note_each(Site site, const char *format, ...) {
  if (!notes) return;
  va_list arguments;
  va_start(arguments, format);
  add_note(site, format, arguments);
  va_end(arguments);
}

}  // namespace

int call_sequence(void (*entry)(void *const *), void *const *arguments, const RunOptions *options, RunReport *report) {
  static thread_local Notes own;
  own.used = own.count = own.left_out = 0;
  notes = &own;
  stall = options->stall;
  RunOptions without_record = *options;
  without_record.record = 0;
  Trace trace(options->record);
  tracing = options->record ? &trace : nullptr;
  const int status = call_entry(entry, arguments, &without_record, report);
  if (tracing) report->record = trace.take();
  tracing = nullptr;
  if (own.left_out) own.used += snprintf(own.text + own.used, 60, "%d more notes are left out\n", own.left_out);
  if (own.used) report->notes = strdup(own.text);
  notes = nullptr;
  return status;
}

// ---- what is left ----

namespace {

void note_words(const Channel &channel) {
  const bool sends = channel.table->sends;
  const i64 held = (sends ? channel.source.held.size() : channel.sink.held.size()) / 4;
  const i64 left = channel.is_transferring ? channel.cursor.left / 4 : 0;
  const bool has_begun = channel.is_transferring && channel.cursor.has_begun();
  if (sends ? held + left == 0 : held == 0 && !has_begun) return;
  char name[160];
  channel.describe(name, int(sizeof(name)));
  const Site site{"aie.dma_bd", channel.line};
  if (sends) {
    note_each(site, "at the end of the run %s has %lld words that nobody took: the next run would begin with them", name,
              (long long)(held + left));
  } else if (held > 0) {
    note_each(site, "at the end of the run %lld words wait in the stream before %s: the next run would begin with them",
              (long long)held, name);
  } else {
    note_each(site,
              "at the end of the run %s still waits for %lld words of a descriptor that it has begun: the next run would "
              "fill it up",
              name, (long long)left);
  }
}

void note_tasks(const Channel &channel) {
  const bool runs_host = channel.running && channel.running->bds == &channel.running->own;
  const int waiting = channel.queue.size();
  if (!runs_host && waiting == 0) return;
  char name[160];
  channel.describe(name, int(sizeof(name)));
  note_each(Site{"aie.runtime_sequence", channel.line},
            "at the end of the run %s has a task to do, and %d in its queue: wait for a "
            "token of the last one, or the next run begins with them",
            name, waiting);
}

}  // namespace

void note_remains(Array &array) {
  for (int i = 0; i < array.channels.size(); ++i) {
    note_words(*array.channels[i]);
    note_tasks(*array.channels[i]);
  }
  for (int i = 0; i < array.cascades.size(); ++i) {
    const Cascade &cascade = *array.cascades[i];
    if (cascade.steps.empty()) continue;
    const Place to = cascade.to->table->place;
    note_each(Site{"aie.put_cascade", cascade.from->line},
              "at the end of the run %d steps wait in the cascade into core (%d, %d)", cascade.steps.size(), to.column, to.row);
  }
}

// ---- the time limit ----

Turn::Turn(Core &core) {
  turning = &core;
  turn_began = -1;  // to ask for the time at each turn would be a third of the time of a small design
}

Turn::~Turn() { turning = nullptr; }

void Progress::check(Run &run) {
  if (stall == 0 || !run.host.array) return;
  if (seen_ != moves_) {
    since_ = -1;
    seen_ = moves_;
    return;
  }
  const i64 time = thread_time();
  if (since_ < 0) {
    since_ = time;
  } else if (time - since_ >= stall * (run.host.array->cores.size() + 1)) {
    fail_endless(run, (time - since_) / 1000000000);
  }
}

void Heartbeat::look(i64 left) const {
  check_running();
  if (!turning) return;
  turning->line = site_.line;
  if (stall == 0) return;
  const i64 time = thread_time();
  if (turn_began < 0) turn_began = time;
  const i64 passed = time - turn_began;
  if (passed < stall) return;
  constexpr double kDay = 86400e9;  // a loop that would end within a day continues
  if (left >= 0 && double(left) * double(passed) < kDay * double(count_)) return;
  throw Endless{};
}

}  // namespace vnpu::aie
