// The part of the runtime that does not depend on the program: errors, memory pool, parallel loops.
// Compiled once per shared object.
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <atomic>
#include <new>

#include "vnpu/entry.h"
#include "vnpu/garbage.h"
#include "vnpu/happens_before.h"
#include "vnpu/heartbeat.h"
#include "vnpu/sizes.h"
#include "vnpu/stop.h"
#include "vnpu/team.h"

namespace vnpu {

// ---- errors ----

constinit thread_local const ExecutionPlace *here = nullptr;
constinit thread_local Standing standing = {};
uint64_t run_seed = 0;

int describe(const ExecutionPlace *where, char *text, int capacity) {
  int used = 0;
  const char *before = " in ";
  for (const ExecutionPlace *w = where; w && used < capacity - 200; w = w->around) {
    // Around the innermost place, a body that runs once adds nothing to what the line says.
    if (w != where && w->dims == 0) continue;
    used += snprintf(text + used, size_t(capacity - used), "%s%.150s", before, w->name);
    if (w->dims == 1) used += snprintf(text + used, size_t(capacity - used), " (%lld)", (long long)w->x);
    if (w->dims > 1) {
      used += snprintf(text + used, size_t(capacity - used), " (%lld, %lld)", (long long)w->x, (long long)w->y);
    }
    before = " of ";
  }
  return used;
}

namespace {

// Throws at once what shall say where everything stands: later the frames of the bodies are gone, and their operations with them.
[[noreturn]] void throw_standing(Failure &failure) {
  if (failure.is_stop && standing.loop) standing.add(*standing.loop, failure);
  throw failure;
}

[[noreturn]] void fail_with(Failure::Kind kind, Site site, const char *format, va_list arguments, bool is_stop = false) {
  Failure failure{kind, {}, is_stop};
  const int capacity = int(sizeof(failure.text));
  int used = site.line > 0 ? snprintf(failure.text, size_t(capacity), "line %d: %.1000s", site.line, site.op)
                           : snprintf(failure.text, size_t(capacity), "%.1000s", site.op);
  used += describe(here, failure.text + used, capacity - used);
  used += snprintf(failure.text + used, size_t(capacity - used), ": ");
  vsnprintf(failure.text + used, size_t(capacity - used), format, arguments);
  throw_standing(failure);
}

}  // namespace

void fail(Site site, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fail_with(Failure::kError, site, format, arguments);
}

void fail_stopped(Failure::Kind kind, Site site, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fail_with(kind, site, format, arguments, true);
}

void fail_as(Failure::Kind kind, Site site, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fail_with(kind, site, format, arguments);
}

void fail_outside(Site site, i64 low, i64 high, i64 extent) {
  fail_as(Failure::kOutside, site, "the access pattern reaches elements %lld to %lld of a buffer that has elements 0 to %lld",
          (long long)low, (long long)high, (long long)(extent - 1));
}

// ---- stopping ----

namespace {

constexpr i64 kUnasked = 50000000;  // nanoseconds between two checks for signals

i64 nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return i64(now.tv_sec) * 1000000000 + now.tv_nsec;
}

// A running entry, for all threads that work on it. Signal handlers belong to the interpreter and run in the calling thread.
// The flag that stops a run is that thread's, and all threads read it.
struct Running {
  const Interpreter *const interpreter;
  const i64 stall;
  void **const raised;
  const pthread_t caller = pthread_self();
  const int32_t *const flag = team().watched();
  i64 next = nanoseconds() + kUnasked;  // the time of the next check
  std::atomic<bool> is_stopped{false};

  void look() {
    if (!interpreter || is_stopped || !pthread_equal(caller, pthread_self()) || nanoseconds() < next) return;
    const int state = interpreter->acquire();
    if (interpreter->handle_signals() != 0) {
      interpreter->take_raised(raised, raised + 1, raised + 2);
      is_stopped = true;
    }
    interpreter->release(state);
    next = nanoseconds() + kUnasked;
  }

  bool shall_end() {
    if (flag && __atomic_load_n(flag, __ATOMIC_RELAXED)) is_stopped = true;
    return is_stopped.load(std::memory_order_relaxed);
  }
};
thread_local Running *running = nullptr;

}  // namespace

namespace {

void look_up() {
  Running *const run = running;
  if (!run) return;  // no entry was called, as in a test of one part
  run->look();
  if (!run->shall_end()) return;
  Failure stopped{Failure::kStopped, "stopped", true};
  throw_standing(stopped);
}

}  // namespace

void check_running() {
  ++moves;
  look_up();
}

// ---- loops without end ----

constinit thread_local uint64_t moves = 0;

// Counts the thread's own time, so that a loop has the same time on a busy machine. A loop that would end within a day at its
// present speed continues.
void Heartbeat::look(i64 left) {
  look_up();
  constexpr double kDay = 86400e9;
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  const i64 time = i64(now.tv_sec) * 1000000000 + now.tv_nsec;
  if (since_ < 0 || moves != moves_) {
    since_ = time;
    moves_ = moves;
    first_ = count_;
    return;
  }
  const i64 passed = time - since_;
  if (!running || running->stall == 0 || passed < running->stall) return;
  if (left >= 0 && double(left) * double(passed) < kDay * double(count_ - first_)) return;
  fail_stopped(Failure::kError, site_,
               "no channel, DMA or launch has moved in %lld s of computing, and iteration %llu of this loop has begun: it "
               "seems to have no end; --time-limit SECONDS gives it more time, 0 any",
               (long long)(passed / 1000000000), (unsigned long long)count_);
}

// ---- memory pool: free blocks of a thread, by power-of-two size ----

#if VNPU_SANITIZE

// Allocates every block separately with its exact size, so that AddressSanitizer sees accesses outside of it.
void *pool_allocate(i64 bytes, Site site) {
  void *block = nullptr;
  if (posix_memalign(&block, 64, size_t(bytes)) != 0) fail_memory(site, bytes);
  return block;
}

void pool_free(void *block) { free(block); }

#else

namespace {

constexpr i64 kHeader = 64;
struct Pool;
struct PoolBlock {
  PoolBlock *next;
  const Pool *owner;  // of the thread that allocated it
  int size_class;
  i64 bytes;  // the size in bytes
};
constexpr int kSaved = 22;  // larger size classes are not kept
struct Pool {
  PoolBlock *free_blocks[64];
};
constinit thread_local Pool pool = {};

std::atomic<i64> held{0};  // what all threads have allocated, in bytes

void release(PoolBlock *block) {
  held -= block->bytes;
  free(block);
}

// Allocates from the system. The system gives more than it has, and kills the process that uses it, so there is a limit; for a
// large block the free memory is checked too.
PoolBlock *taken_from_system(i64 bytes, int size_class, Site site) {
  constexpr i64 kUnasked = i64(1) << 28;
  const i64 whole = kHeader + (size_class > kSaved ? (bytes + 63) / 64 * 64 : i64(1) << size_class);
  const i64 before = held.fetch_add(whole);
  const bool is_there = before + whole <= memory_share() && (whole < kUnasked || whole <= memory_remaining());
  void *const block = is_there ? aligned_alloc(64, size_t(whole)) : nullptr;
  if (!block) {
    held -= whole;
    fail_memory(site, bytes, before);
  }
  return new (block) PoolBlock{nullptr, &pool, size_class, whole};
}

// Frees the thread's blocks when it ends. Separate from the pool because access to a thread_local with a destructor is slower.
struct Emptied {
  bool is_needed = false;
  ~Emptied() {
    for (PoolBlock *&list : pool.free_blocks) {
      while (list) {
        PoolBlock *block = list;
        list = block->next;
        release(block);
      }
    }
  }
};
thread_local Emptied emptied;

}  // namespace

void *pool_allocate(i64 bytes, Site site) {
  const int size_class = bytes <= 256 ? 8 : 64 - __builtin_clzll(uint64_t(bytes - 1));
  PoolBlock *&first = pool.free_blocks[size_class];
  PoolBlock *block = first;
  if (block) {
    first = block->next;
  } else {
    emptied.is_needed = true;
    block = taken_from_system(bytes, size_class, site);
  }
  return reinterpret_cast<char *>(block) + kHeader;
}

void pool_free(void *data) {
  PoolBlock *block = reinterpret_cast<PoolBlock *>(static_cast<char *>(data) - kHeader);
  // Large blocks go back to the system, so that a long-lived program does not keep its peak. So do blocks of another thread:
  // that thread would allocate new ones, and they would pile up here.
  if (block->size_class > kSaved || block->owner != &pool) return release(block);
  PoolBlock *&first = pool.free_blocks[block->size_class];
  block->next = first;
  first = block;
}

#endif

// ---- parallel loops ----

namespace {

struct Parallel {
  void (*run)(const Parallel &, i64 first, i64 end);  // some neighbouring indices
  const void *work;
  i64 count;
  i64 grain, shares;              // a thread takes the indices that are left / shares, but not fewer than grain
  const ExecutionPlace *where;    // the place that started it
  Running *run_state;
  i64 next = 0;          // the next index to run
  i64 failed_at = -1;    // the lowest index that failed, so that the message does not depend on timing
  Failure failure{};

  bool take(i64 &first, i64 &end) {
    first = __atomic_load_n(&next, __ATOMIC_RELAXED);
    do {
      if (first >= count) return false;
      const i64 left = count - first, share = left / shares;
      end = first + (share > grain ? share : grain < left ? grain : left);
    } while (!__atomic_compare_exchange_n(&next, &first, end, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return true;
  }
};
pthread_mutex_t failing = PTHREAD_MUTEX_INITIALIZER;

constexpr i64 kSharesPerThread = 2;  // a thread that is slower by half ends no later than the others

thread_local bool inside_loop = false;
thread_local int thread_limit = 1;  // helpers keep 1: a nested loop is theirs alone

// Index i of a parallel loop in the run's random order.
i64 shuffled(i64 i, i64 count) {
  if (!run_seed || count < 3) return run_seed ? (i + i64(run_seed)) % count : i;
  // A step without a common divisor with the count reaches every index.
  i64 step = i64(run_seed * 2654435761u % uint64_t(count));
  while (gcd(step, count) != 1) step = (step + 1) % count;
  return (i64(run_seed % uint64_t(count)) + i * step) % count;
}

void work_on(void *context) {
  Parallel &loop = *static_cast<Parallel *>(context);
  here = loop.where;
  running = loop.run_state;
  for (i64 first, end; loop.take(first, end);) {
    try {
      check_running();
      loop.run(loop, first, end);
    } catch (const Failure &failure) {
      const i64 at = shuffled(first, loop.count);
      pthread_mutex_lock(&failing);
      if (loop.failed_at < 0 || at < loop.failed_at) {
        loop.failed_at = at;
        loop.failure = failure;
      }
      pthread_mutex_unlock(&failing);
      // Later indices need not run; earlier ones have started and will end.
      __atomic_store_n(&loop.next, loop.count, __ATOMIC_RELAXED);
    }
  }
}

// Handles signals while it waits for the last thread.
void look_for_signals(void *) {
  inside_loop = false;
  if (running) running->look();
  inside_loop = true;
}

}  // namespace

int parallel_threads() { return inside_loop ? 1 : thread_limit; }

namespace {

struct ForEach {
  void (*body)(void *, i64);
  void *context;
};

struct ForTrips {
  void (*body)(void *, i64, Trips);
  void *context;
  i64 trips;  // of a tile
};

void share_loop(Parallel &&loop, int helpers) {
  inside_loop = true;
  team().share(helpers, work_on, look_for_signals, &loop);
  inside_loop = false;
  if (loop.failed_at >= 0) throw loop.failure;
}

// Trips of several tiles, counted through.
void run_trips(const Parallel &loop, i64 first, i64 end) {
  const ForTrips &work = *static_cast<const ForTrips *>(loop.work);
  while (first < end) {
    const i64 tile = first / work.trips, begin = tile * work.trips;
    const i64 stop = end - begin < work.trips ? end : begin + work.trips;
    work.body(work.context, tile, {first - begin, stop - begin});
    first = stop;
  }
}

}  // namespace

void parallel_for(i64 count, void (*body)(void *, i64), void *context) {
  const int helpers = int(count < thread_limit ? count : thread_limit) - 1;
  if (helpers <= 0 || inside_loop) {
    for (i64 i = 0; i < count; ++i) {
      check_running();
      body(context, shuffled(i, count));
    }
    return;
  }
  const ForEach work{body, context};
  const auto run = [](const Parallel &loop, i64 first, i64) {
    const ForEach &each = *static_cast<const ForEach *>(loop.work);
    each.body(each.context, shuffled(first, loop.count));
  };
  share_loop(Parallel{run, &work, count, 1, count + 1, here, running}, helpers);
}

void parallel_trips(const DividedTiles &tiles, bool apart, void (*body)(void *, i64, Trips), void *context) {
  const ForTrips work{body, context, tiles.trips};
  const i64 count = tiles.count * tiles.trips, grains = count / tiles.grain;
  const int threads = int(grains < thread_limit ? grains : thread_limit);
  if (thread_limit <= 1 || grains <= tiles.count || inside_loop || !apart || run_seed) {
    return parallel(tiles.count, [&](i64 tile) { body(context, tile, {0, tiles.trips}); });
  }
  share_loop(Parallel{run_trips, &work, count, tiles.grain, kSharesPerThread * threads, here, running}, threads - 1);
}

int call_entry(void (*entry)(void *const *), void *const *arguments, const RunOptions *options, RunReport *report) {
  thread_limit = kChecks && (options->record || options->traced || options->stops) ? 1 : options->threads;
  run_seed = options->seed;
  begin_order(options->races_are_notes, options->max_events, options->traced);
  const CoreModes modes;
  here = nullptr;
  Running run{options->interpreter, options->stall, report->raised};
  Running *const outer = running;  // set if the handler of a signal runs a program
  running = &run;
  int status = 0;
#if VNPU_CHECKS
  begin_notes();
  begin_garbage(options->garbage);
  begin_stops(options->stops);
  record::begin(options->record);
#endif
  team().expect(1);
  const i64 started = nanoseconds();
  try {
    check_running();
    entry(arguments);
  } catch (const Failure &failure) {
    report->message = strdup(failure.text);
    status = run.is_stopped ? Failure::kStopped : failure.kind;
  } catch (const std::bad_alloc &) {
    report->message = strdup("the system has no memory left for the run");
    status = Failure::kError;
  }
  running = outer;
  report->nanoseconds = nanoseconds() - started;
  team().expect(-1);
#if VNPU_CHECKS
  end_order();
  report->notes = take_notes();
  report->writer = take_writer();
  report->record = record::take();
#endif
  return status;
}

VNPU_EXPORT void vnpu_release(char *text) { free(text); }

namespace {

int take(const Step &step) {
  if (step.function) return step.function(step.first, step.second, step.third);
  memcpy(step.first, step.second, reinterpret_cast<size_t>(step.third));
  return 0;
}

}  // namespace

// Runs steps in order until one fails, or until the time is over after at least one. Returns the number of steps; if one
// failed, the complement of its number.
VNPU_EXPORT int64_t vnpu_take_steps(Step *steps, int64_t count, int64_t max_nanoseconds) {
  const i64 first = nanoseconds();
  i64 started = first, taken = 0;
  bool continues = true;
  team().expect(1);
  while (continues && taken < count) {
    Step &step = steps[taken];
    step.status = take(step);
    const i64 ended = nanoseconds();
    step.nanoseconds = ended - started;
    started = ended;
    if (step.status != 0) break;
    continues = ended - first <= max_nanoseconds;
    ++taken;
  }
  team().expect(-1);
  return continues && taken < count ? ~taken : taken;
}

}  // namespace vnpu
