// The order checks: what happened before what, by clocks. Linked only into programs with checks.
#include "vnpu/happens_before.h"

#include <stdlib.h>
#include <string.h>

#include "vnpu/check.h"
#include "vnpu/events.h"

namespace vnpu {

thread_local Strand **strand_slot = nullptr;

// ---- clocks ----

// Makes the times this clock's alone, for at least so many chains.
void Clock::own(uint32_t size) {
  const uint32_t known = times_ ? times_->size : 0;
  if (size < known) size = known;
  if (times_ && times_->holders == 1 && size == known) return;
  Times *const fresh = static_cast<Times *>(malloc(sizeof(Times) + size * sizeof(uint32_t)));
  fresh->holders = 1;
  fresh->size = size;
  if (known) memcpy(fresh->at, times_->at, known * sizeof(uint32_t));
  memset(fresh->at + known, 0, (size - known) * sizeof(uint32_t));
  clear();
  times_ = fresh;
}

void Clock::set(uint32_t chain, uint32_t time) {
  own(chain + 1);
  times_->at[chain] = time;
}

void Clock::join(const Clock &other) {
  if (!other.times_ || times_ == other.times_) return;
  if (!times_) return share(other);
  const uint32_t size = times_->size, other_size = other.times_->size, both = size < other_size ? size : other_size;
  bool is_behind = other_size > size, is_ahead = size > other_size;
  for (uint32_t i = 0; i < both; ++i) {
    is_behind |= times_->at[i] < other.times_->at[i];
    is_ahead |= times_->at[i] > other.times_->at[i];
  }
  if (!is_behind) return;
  if (!is_ahead) return share(other);
  own(other_size);
  for (uint32_t i = 0; i < other_size; ++i) {
    if (times_->at[i] < other.times_->at[i]) times_->at[i] = other.times_->at[i];
  }
}

// ---- the records of a run ----

Store<Event> events;
Store<IssueOrder> lineages;
Store<Root> roots;
Store<Sender> senders;
const char *traced = nullptr;
char *traced_writer = nullptr;
bool races_are_notes = false;
i64 unchecked = 0;
bool lost_track = false;

namespace {

uint32_t bodies = 0, processes = 0, phase = 0;
i64 max_events = 0;
uint32_t generation = 0;  // counts runs: numbers that threads kept from an earlier run are invalid
thread_local LastNumbers last_numbers;

}  // namespace

LastNumbers &this_thread() {
  if (last_numbers.generation != generation) last_numbers = LastNumbers{0, 0, 0, generation};
  return last_numbers;
}

constinit thread_local const FromPut *FromPut::current = nullptr;

void begin_order(bool as_notes, i64 max_count, const char *element) {
  traced = element;
  traced_writer = nullptr;
  races_are_notes = as_notes;
  max_events = max_count;
  unchecked = 0;
  lost_track = false;
  static thread_local Strand function;
  static thread_local Strand *slot = &function;
  strand_slot = &slot;
  events.clear(max_count);
  lineages.clear(max_count);
  roots.clear(max_count);
  senders.clear(max_count);
  bodies = processes = 0;
  phase = 1;
  ++generation;
}

void end_order() {
  if (unchecked == 0) return;
  note(Site{"race check", 0},
       "%lld accesses came after the %lld that it remembers were used up, so data races with them may be missed: run the "
       "program for a smaller shape, or set VNPU_RACE_EVENTS higher (%d bytes of memory each)",
       (long long)unchecked, (long long)max_events, int(sizeof(Event)));
}

char *take_writer() { return traced_writer; }

void next_phase() { ++phase; }

uint32_t new_body() { return __atomic_add_fetch(&bodies, 1, __ATOMIC_RELAXED); }

const IssueOrder *new_lineage(const IssueOrder *around, uint32_t body, uint32_t issue, bool is_async, Engine engine) {
  const uint32_t number = lineages.add(this_thread().lineage);
  if (!number) {
    __atomic_store_n(&lost_track, true, __ATOMIC_RELAXED);
    return around;
  }
  lineages[number] = IssueOrder{around, body, issue, is_async, engine, around ? around->depth + 1 : 0};
  return &lineages[number];
}

bool find_siblings(const IssueOrder *&earlier, const IssueOrder *&later) {
  while (earlier && later && earlier->depth > later->depth) earlier = earlier->around;
  while (earlier && later && later->depth > earlier->depth) later = later->around;
  while (earlier && later && earlier->around != later->around) {
    earlier = earlier->around;
    later = later->around;
  }
  return earlier && later && earlier != later && earlier->body == later->body;
}

bool holds_back(const IssueOrder *earlier, const IssueOrder *later) {
  return find_siblings(earlier, later) && !(earlier->is_async && (later->is_async || later->engine == Engine::kHost));
}

bool ordered_by_locks(const IssueOrder *earlier, bool earlier_writes, const IssueOrder *later, bool later_writes) {
  if (!find_siblings(earlier, later) || earlier->issue > later->issue) return false;
  if (earlier->engine == Engine::kNone || later->engine == Engine::kNone) return false;
  return earlier_writes != later_writes || earlier->engine == Engine::kCores || later->engine == Engine::kCores;
}

// ---- chains and strands ----

StrandChains::~StrandChains() {
  for (Family *family : buckets_) {
    while (family) {
      Family *const next = family->next;
      if (family->merged && family->site.op[0]) {
        note(family->site,
             "%lld of these started while %d others were running, and nothing orders them: the race check distinguishes %d, "
             "so data races with the rest may be missed; let each depend on the token of an earlier one, or wait for some "
             "before the next start",
             (long long)family->merged, kSiblings, kSiblings);
      }
      delete family;
      family = next;
    }
  }
  free(times_);
}

uint32_t StrandChains::add() {
  if (size_ == capacity_) {
    capacity_ = capacity_ ? 2 * capacity_ : 64;
    times_ = static_cast<uint32_t *>(realloc(times_, capacity_ * sizeof(uint32_t)));
  }
  times_[size_] = 0;
  return size_++;
}

uint32_t StrandChains::choose(uint32_t before, Site site, i64 flat, const Clock &clock) {
  const uint64_t hash = (uint64_t(before) * 31 + uint64_t(site.line)) * 1000003u + uint64_t(flat);
  Family *&bucket = buckets_[hash % kBuckets];
  Family *family = bucket;
  while (family &&
         (family->before != before || family->site.line != site.line || family->site.op != site.op || family->flat != flat)) {
    family = family->next;
  }
  if (!family) bucket = family = new Family{before, site, flat, 0, 0, {}, bucket};
  for (int i = 0; i < family->size; ++i) {
    const uint32_t chain = family->chains[i];
    if (clock.at(chain) >= times_[chain]) return chain;
  }
  if (family->size == kSiblings) {
    ++family->merged;
    return family->chains[0];
  }
  return family->chains[family->size++] = add();
}

void Strand::begin(const Strand &before, Site site, i64 flat, const IssueOrder *own) {
  phase = before.phase;
  task_loop = before.task_loop;
  process = before.process;
  chains = before.chains;
  lineage = own;
  where = before.where;
  clock.join(before.clock);
  outer = before.outer;
  origin = Origin{before.chain, site, flat};
}

void Strand::start() {
  if (!chains) return;  // a join makes no access
  chain = chains->choose(origin.chain, origin.site, origin.flat, clock);
  time = chains->advance(chain);
  clock.set(chain, time);
}

void Strand::start_task_loop(StrandChains &own, const ExecutionPlace *root, const Strand *around) {
  phase = vnpu::phase;
  task_loop = roots.add(this_thread().root);
  if (around && around->task_loop) {
    outer = around;
    lineage = around->lineage;
  }
  if (task_loop) {
    Root &own_root = roots[task_loop];
    own_root = outer ? Root{*root, roots[outer->task_loop].depth + 1, outer->task_loop, outer->chain, outer->time}
                     : Root{*root, 0, 0, 0, 0};
    own_root.where.around = nullptr;
  } else {
    __atomic_store_n(&lost_track, true, __ATOMIC_RELAXED);
  }
  chains = &own;
  start();
  enter(root);
}

void Strand::enter(const ExecutionPlace *own) {
  where = own;
  process = __atomic_add_fetch(&processes, 1, __ATOMIC_RELAXED);
}

ClockSnapshot Strand::publish() {
  ClockSnapshot mark(clock);
  time = chains->advance(chain);
  clock.set(chain, time);
  return mark;
}

void AsyncStrand::begin(Site site) {
  outer_ = *strand_slot;
  strand_.begin(*outer_, site, 0, outer_->lineage);
  strand_.is_fork = true;
  *strand_slot = &strand_;
}

void AsyncStrand::covers(Site site, std::initializer_list<Use> uses) {
  for (const Use &use : uses) {
    if (use.buffer && use.buffer->owner == strand_.process) observe(site, use, strand_);
  }
  strand_.covers = true;
}

ClockSnapshot AsyncStrand::end() {
  *strand_slot = outer_;
  outer_->forked.join(strand_.clock);
  outer_->forked.join(strand_.forked);
  return ClockSnapshot(strand_.clock);
}

uint32_t current_process() { return current_strand() ? current_strand()->process : 0; }

}  // namespace vnpu
