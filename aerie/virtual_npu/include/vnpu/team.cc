// The team of team.h. Compiled once per shared object.
#include "vnpu/team.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <atomic>

namespace vnpu {

namespace {

constexpr i64 kUnasked = 50000000;  // nanoseconds between two calls of look

// How long to poll before sleeping, in nanoseconds: more than falling asleep and waking up take.
constexpr i64 kLookout = 200000;

struct Work {
  void (*function)(void *);
  void *context;
};

// Threads poll for work before they sleep, and so does the caller who waits for them: a program runs one short loop after the
// other, and waking a thread takes longer than many of them.
//
// Atomics order what the mutex does not guard: a thread that takes one of `invited` sees the work stored before it.
struct Workers {
  pthread_mutex_t entry = PTHREAD_MUTEX_INITIALIZER;  // one work at a time
  pthread_mutex_t sleep = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t begun = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
  int started = 0;  // threads that exist
  pid_t owner = 0;
  Work work{};
  std::atomic<uint64_t> generation{0};  // counts the works
  std::atomic<int> invited{0};           // threads that may still join the current work
  std::atomic<int> unfinished{0};       // threads that joined or may join, and are not done
  std::atomic<int> asleep{0};           // threads that must be woken for the next work
  std::atomic<bool> awaited{false};     // whether the caller who waits for the last of them sleeps
  std::atomic<int> expecting{0};        // how many callers expect more work; at 0 no thread polls
};
Workers workers;

i64 nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return i64(now.tv_sec) * 1000000000 + now.tv_nsec;
}

int usable_cpus() {
#if defined(__linux__)
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
#else
  return int(sysconf(_SC_NPROCESSORS_ONLN));
#endif
}

// With the thread that shares the work.
struct Size {
  int cpus = usable_cpus(), max_threads = cpus;
};

Size &size() {
  static Size of_process;
  return of_process;
}

// If threads outnumber the CPUs, a polling thread takes CPU time from others.
bool have_cpus(int threads) { return threads <= size().cpus; }

void pause_briefly() {
#if defined(__x86_64__)
  for (int i = 0; i < 8; ++i) __builtin_ia32_pause();
#endif
}

// Whether it happened before it was time to sleep.
template <class Happened>
bool look_out(Happened happened) {
  if (happened()) return true;
  if (!have_cpus(workers.started + 1)) return false;
  for (const i64 end = nanoseconds() + kLookout; workers.expecting > 0 && nanoseconds() < end;) {
    pause_briefly();
    if (happened()) return true;
  }
  return false;
}

void await_work(uint64_t seen) {
  const auto is_new = [&] { return workers.generation != seen; };
  if (look_out(is_new)) return;
  pthread_mutex_lock(&workers.sleep);
  ++workers.asleep;
  while (!is_new()) pthread_cond_wait(&workers.begun, &workers.sleep);
  --workers.asleep;
  pthread_mutex_unlock(&workers.sleep);
}

bool join_work() {
  int left = workers.invited;
  while (left > 0 && !workers.invited.compare_exchange_weak(left, left - 1)) {
  }
  return left > 0;
}

void leave_work() {
  if (--workers.unfinished > 0 || !workers.awaited) return;
  pthread_mutex_lock(&workers.sleep);
  pthread_cond_signal(&workers.done);
  pthread_mutex_unlock(&workers.sleep);
}

void *worker_main(void *) {
  for (uint64_t seen = 0;;) {
    await_work(seen);
    seen = workers.generation;
    if (!join_work()) continue;
    workers.work.function(workers.work.context);
    leave_work();
  }
  return nullptr;
}

// Threads do not survive a fork: a child process starts its own, whatever the parent's did at that moment.
void restart() {
  workers.owner = getpid();
  workers.started = workers.asleep = 0;
  workers.awaited = false;
  pthread_mutex_init(&workers.sleep, nullptr);
  pthread_cond_init(&workers.begun, nullptr);
  pthread_cond_init(&workers.done, nullptr);
}

void start_workers(int count) {
  if (workers.owner != getpid()) restart();
  while (workers.started < count) {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, worker_main, nullptr) != 0) return;
    pthread_detach(thread);
    ++workers.started;
  }
}

void begin_work(const Work &work, int helpers) {
  start_workers(helpers);
  workers.work = work;
  workers.unfinished = helpers < workers.started ? helpers : workers.started;
  workers.invited = int(workers.unfinished);
  ++workers.generation;
  if (workers.asleep == 0) return;
  pthread_mutex_lock(&workers.sleep);
  pthread_cond_broadcast(&workers.begun);
  pthread_mutex_unlock(&workers.sleep);
}

// Sleeps until the last thread is done, or until it is time to call look. The caller holds `sleep`.
void await_last() {
  timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  const i64 nanosecond = until.tv_nsec + kUnasked;
  until.tv_sec += nanosecond / 1000000000;
  until.tv_nsec = nanosecond % 1000000000;
  pthread_cond_timedwait(&workers.done, &workers.sleep, &until);
}

// After this no thread joins; returns when all that joined are done.
void end_work(void (*look)(void *), void *context) {
  workers.unfinished -= workers.invited.exchange(0);
  const auto is_done = [] { return workers.unfinished == 0; };
  if (look_out(is_done)) return;
  pthread_mutex_lock(&workers.sleep);
  workers.awaited = true;
  while (!is_done()) {
    await_last();
    // look() may run programs, so no lock is held while it runs.
    pthread_mutex_unlock(&workers.sleep);
    look(context);
    pthread_mutex_lock(&workers.sleep);
  }
  workers.awaited = false;
  pthread_mutex_unlock(&workers.sleep);
}

void share(int helpers, void (*work)(void *), void (*look)(void *), void *context) {
  if (helpers >= size().max_threads) helpers = size().max_threads - 1;
  if (helpers <= 0 || pthread_mutex_trylock(&workers.entry) != 0) return work(context);
  begin_work(Work{work, context}, helpers);
  work(context);
  end_work(look, context);
  pthread_mutex_unlock(&workers.entry);
}

void expect(int change) { workers.expecting += change; }

thread_local const int32_t *stop_flag = nullptr;

void watch(const int32_t *flag) { stop_flag = flag; }

const int32_t *watched() { return stop_flag; }

constexpr Team kOwn{share, watch, watched, expect};
const Team *used_team = &kOwn;

}  // namespace

const Team &team() { return *used_team; }

}  // namespace vnpu

VNPU_EXPORT const vnpu::Team *vnpu_own_team() { return &vnpu::kOwn; }
VNPU_EXPORT void vnpu_use_team(const vnpu::Team *used) { vnpu::used_team = used; }
VNPU_EXPORT void vnpu_size_team(int32_t cpus, int32_t max_threads) { vnpu::size() = {cpus, max_threads}; }
VNPU_EXPORT void vnpu_watch(const int32_t *flag) { vnpu::team().watch(flag); }
