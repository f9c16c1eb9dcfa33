// Scheduling, locks, channels and cores of a loaded device.
#include "vnpu/aie/array.h"

#include <stdio.h>

namespace vnpu::aie {

// ---- turns ----

void Actor::begin(Fiber fiber) {
  fiber_ = fiber.handle;
  run.ready(this);
}

void Actor::wake() { run.ready(this); }

void Run::ready(Runnable *runnable) {
  if (runnable->is_queued) return;
  runnable->is_queued = true;
  queue_.push(runnable);
}

Runnable *Run::next() {
  if (random_ && queue_.size() > 1) {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    Runnable *&chosen = queue_[int(random_ % uint64_t(queue_.size()))];
    Runnable *const first = queue_.front();
    queue_.front() = chosen;
    chosen = first;
  }
  Runnable *const found = queue_.pop();
  found->is_queued = false;
  return found;
}

void Run::execute(Fiber sequence) {
  random_ = run_seed;
  host.begin(sequence);
  take_turns();
  if (!host.is_done) fail_hang(*this);
  if (host.array) note_remains(*host.array);
}

void Run::take_turns() {
  for (uint32_t turns = 0, busy = 0;; ++turns) {
    if (turns % 64 == 0) {
      check_running();
      progress.check(*this);
    }
    // Cores that go round and round without waiting do not keep the host from going on, nor the run from ending.
    const bool is_patient = busy < kPatience;
    if (!queue_.empty() && is_patient) {
      if (at_rest || host.is_done) ++busy;
      Runnable *const runnable = next();
      if (!runnable->is_core) progress.moved();
      runnable->turn();
    } else if (at_rest) {
      Actor *const waiting = at_rest;
      at_rest = nullptr;
      busy = 0;
      waiting->wake();
    } else if (queue_.empty() || host.is_done) {
      break;
    } else {
      busy = 0;
    }
  }
}

// ---- locks ----

bool Lock::take(int wanted, bool at_least) {
  if (at_least ? value < wanted : value != wanted) return false;
  value -= wanted;
  return true;
}

void Lock::acquire_by(Actor &actor, int wanted, bool at_least) {
  actor.waiting.kind = Waiting::kLock;
  actor.waiting.lock = this;
  actor.waiting.value = wanted;
  actor.waiting.at_least = at_least;
  waiters_.push(&actor);
}

void Lock::release(Site site, int count) {
  if (value + count > Capacity::kMostLock) {
    fail_as(Failure::kLock, site, "lock %d (%.200s) of tile (%d, %d) is %d and would become %d: it has six bits, 0 to %d",
            table->number, table->name, table->place.column, table->place.row, value, value + count, Capacity::kMostLock);
  }
  value += count;
  grant();
}

void Lock::check_credits(Site site) const {
  if (!partner) return;
  const int all = value + held + partner->value + partner->held;
  if (all <= credits) return;
  note(site,
       "locks %.60s and %.60s of tile (%d, %d) have %d credits, and began with %d: released twice, as in both arms of an if?",
       table->name, partner->table->name, table->place.column, table->place.row, all, credits);
}

void Lock::set(int to) {
  value = to;
  if (partner) partner->partner = nullptr;
  partner = nullptr;
  grant();
}

void Lock::grant() {
  int kept = 0;
  for (int i = 0; i < waiters_.size(); ++i) {
    Actor *const actor = waiters_[i];
    if (take(actor->waiting.value, actor->waiting.at_least)) {
      if (!actor->is_core) held += actor->waiting.value;
      actor->run.progress.moved();
      actor->wake();
    } else {
      waiters_[kept++] = actor;
    }
  }
  waiters_.shrink(kept);
}

// ---- channels ----

void name_place(char *text, int capacity, Place place) {
  const char *kind = place.row == 0 ? "shim" : place.row == 1 ? "memtile" : "core tile";
  snprintf(text, size_t(capacity), "%s (%d, %d)", kind, place.column, place.row);
}

namespace {

// A channel has taken a task out of its queue, so that the next one finds room.
void tell_room(Channel &channel) {
  for (int i = 0; i < channel.for_room.size(); ++i) channel.for_room[i]->wake();
  channel.for_room.shrink(0);
}

void send_token(Channel &channel) {
  ++channel.tokens;
  for (int i = 0; i < channel.for_token.size(); ++i) channel.for_token[i]->wake();
  channel.for_token.shrink(0);
}

Await next_task(Channel &channel) {
  if (!channel.queue.empty()) return Await{true};
  channel.waiting.kind = Waiting::kTask;
  channel.line = 0;
  return Await{false};
}

Await take_lock(Channel &channel, const LockUse &use) {
  if (use.lock < 0) return Await{true};
  Lock &lock = *channel.array->locks[use.lock];
  if (lock.take(use.value, use.at_least)) {
    lock.held += use.value;
    return Await{true};
  }
  lock.acquire_by(channel, use.value, use.at_least);
  if (!channel.table->sends) channel.sink.changed();  // a loaded descriptor makes room
  return Await{false};
}

Await transfer(Channel &channel) {
  channel.cursor.start(*channel.bd);
  if (channel.cursor.left == 0) return Await{true};
  channel.is_transferring = true;
  channel.waiting.channel = &channel;
  if (channel.table->sends) {
    channel.waiting.kind = Waiting::kSend;
    channel.source.send(channel.bd->table->packet, channel.cursor.left);
  } else {
    channel.waiting.kind = Waiting::kReceive;
    Sink &sink = channel.sink;
    Bytes earlier;
    earlier.push(sink.held.data(), sink.held.size());
    sink.held.drop(sink.held.size());
    sink.accept(earlier.data(), earlier.size());
    sink.changed();
  }
  return Await{false};  // whatever ends the transfer wakes the channel
}

Fiber run_channel(Channel &channel) {
  for (;;) {
    co_await next_task(channel);
    Task *const task = channel.running = channel.queue.pop();
    tell_room(channel);
    for (i64 round = 0; round <= task->repeat; ++round) {
      for (int next = task->first; next >= 0; next = channel.bd->next) {
        Bd &bd = (*task->bds)[next];
        channel.bd = &bd;
        channel.line = bd.table->line;
        co_await take_lock(channel, bd.table->acquire);
        co_await transfer(channel);
        ++bd.uses;
        const LockUse &acquire = bd.table->acquire, &release = bd.table->release;
        if (acquire.lock >= 0) channel.array->locks[acquire.lock]->held -= acquire.value;
        if (release.lock >= 0) {
          channel.array->locks[release.lock]->release(Site{"aie.use_lock", channel.line}, release.value);
        }
      }
    }
    task->is_done = true;
    channel.running = nullptr;
    channel.bd = nullptr;
    if (task->sends_token) send_token(channel);
  }
}

}  // namespace

void Channel::describe(char *text, int capacity) const {
  char where[80];
  name_place(where, int(sizeof(where)), table->place);
  snprintf(text, size_t(capacity), "%s %d of %s", table->sends ? "MM2S" : "S2MM", table->number, where);
}

void Task::add(const BdTable &from, const void *base, i64 extent) {
  BdTable *const table = static_cast<BdTable *>(pool_allocate(i64(sizeof(BdTable))));
  *table = from;
  tables.push(table);
  if (own.size()) own[own.size() - 1].next = own.size();
  own.push(Bd{table, const_cast<char *>(static_cast<const char *>(base)), extent});
  bds = &own;
}

// ---- cores ----

void Core::describe(char *text, int capacity) const {
  snprintf(text, size_t(capacity), "core (%d, %d)", table->place.column, table->place.row);
}

void Core::turn() {
  const CoreTurn registers(modes);
  const Turn turn(*this);
  try {
    Actor::turn();
  } catch (const Endless &) {
    is_endless = true;
  }
}

Lock &Core::lock(int number) const { return *array->locks[number]; }

char *Core::memory(int number) const { return array->memory[number]; }

Await Core::acquire(int number, int value, bool at_least, int at) {
  line = at;
  Lock &found = lock(number);
  // A core that gets its lock at once lets the others go on too: time passes where it asks again and again.
  if (found.take(value, at_least)) wake();
  else found.acquire_by(*this, value, at_least);
  return Await{false};
}

void Core::release(int number, int value, int at) {
  line = at;
  Lock &found = lock(number);
  found.value += value;
  found.check_credits(Site{"aie.use_lock", at});
  found.value -= value;
  found.release(Site{"aie.use_lock", at}, value);
}

Await Core::to_put(int at) {
  line = at;
  if (!out) fail(Site{"aie.put_cascade", at}, "no cascade leads on from this core: add aie.cascade_flow");
  if (out->steps.size() < Capacity::kCascade) return Await{true};
  waiting.kind = Waiting::kCascadeOut;
  waiting.cascade = out;
  return Await{false};
}

void Core::put_bytes(const void *value) {
  Cascade::Step step;
  memcpy(step.bytes, value, sizeof(step.bytes));
  out->steps.push(step);
  if (out->to->waiting.kind == Waiting::kCascadeIn) out->to->wake();
}

Await Core::to_get(int at) {
  line = at;
  if (!in) fail(Site{"aie.get_cascade", at}, "no cascade leads to this core: add aie.cascade_flow");
  if (!in->steps.empty()) return Await{true};
  waiting.kind = Waiting::kCascadeIn;
  waiting.cascade = in;
  return Await{false};
}

void Core::get_bytes(void *value) {
  const Cascade::Step step = in->steps.pop();
  memcpy(value, step.bytes, sizeof(step.bytes));
  if (in->from->waiting.kind == Waiting::kCascadeOut) in->from->wake();
}

// ---- loading ----

Array::Array(Run &run, const DeviceTable &table) : run(run), table(table) {
  for (int i = 0; i < table.buffers; ++i) {
    const BufferTable &buffer = table.buffer[i];
    char *const data = static_cast<char *>(pool_allocate(buffer.bytes));
    if (buffer.initial) memcpy(data, buffer.initial, size_t(buffer.bytes));
    else memset(data, 0, size_t(buffer.bytes));
    memory.push(data);
  }
  for (int i = 0; i < table.bds; ++i) {
    const BdTable &bd = table.bd[i];
    bds.push(Bd{&bd, memory[bd.buffer], table.buffer[bd.buffer].bytes, bd.next});
  }
  for (int i = 0; i < table.locks; ++i) {
    locks.push(new Lock);
    locks[i]->table = table.lock + i;
    locks[i]->value = table.lock[i].init;
  }
  for (int i = 0; i < table.arbiters; ++i) {
    arbiters.push(new Arbiter);
    arbiters[i]->table = table.arbiter + i;
  }
  pair_locks();
  connect();
  for (int i = 0; i < table.tasks; ++i) {
    const TaskTable &entry = table.task[i];
    Task *const task = new Task;
    tasks_.push(task);
    task->channel = channels[entry.channel];
    task->bds = &bds;
    task->first = entry.bd;
    task->repeat = entry.repeat;
    task->channel->queue.push(task);
  }
  for (int i = 0; i < table.channels; ++i) channels[i]->begin(run_channel(*channels[i]));
  for (int i = 0; i < table.cores; ++i) cores[i]->begin(table.core[i].run(*cores[i]));
}

// Finds the locks that descriptors move credits between, as many as they take, and always the same two.
void Array::pair_locks() {
  List<Lock *> others;
  for (int i = 0; i < locks.size(); ++i) others.push(nullptr);
  List<bool> is_other;
  for (int i = 0; i < locks.size(); ++i) is_other.push(false);
  for (int i = 0; i < table.bds; ++i) {
    const LockUse &acquire = table.bd[i].acquire, &release = table.bd[i].release;
    if (acquire.lock >= 0 && release.lock >= 0 && acquire.value == release.value && acquire.lock != release.lock) {
      Lock *const one = locks[acquire.lock], *const two = locks[release.lock];
      if (others[acquire.lock] && others[acquire.lock] != two) is_other[acquire.lock] = true;
      if (others[release.lock] && others[release.lock] != one) is_other[release.lock] = true;
      others[acquire.lock] = two;
      others[release.lock] = one;
    } else {
      if (acquire.lock >= 0) is_other[acquire.lock] = true;
      if (release.lock >= 0) is_other[release.lock] = true;
    }
  }
  for (int i = 0; i < locks.size(); ++i) {
    Lock *const other = others[i];
    if (!other || is_other[i] || is_other[int(other->table - table.lock)]) continue;
    locks[i]->credits = locks[i]->value + other->value;
    if (locks[i]->credits > 0) locks[i]->partner = other;
  }
}

void Array::connect() {
  for (int i = 0; i < table.channels; ++i) {
    Channel *const channel = new Channel(run);
    channels.push(channel);
    channel->array = this;
    channel->table = table.channel + i;
    channel->source.channel = channel->sink.channel = channel;
    if (channel->is_shim()) channel->source.read_ahead = 4 * Capacity::kShimReadAhead;
  }
  for (int i = 0; i < table.routes; ++i) {
    const RouteTable &entry = table.route[i];
    Route route{&entry, nullptr, nullptr};
    route.arbiters = static_cast<Arbiter **>(pool_allocate(8 * i64(entry.arbiters) + 8));
    route.sinks = static_cast<Sink **>(pool_allocate(8 * i64(entry.sinks) + 8));
    blocks_.push(route.arbiters);
    blocks_.push(route.sinks);
    Source &source = channels[entry.source]->source;
    for (int k = 0; k < entry.arbiters; ++k) route.arbiters[k] = arbiters[table.route_arbiters[entry.first_arbiter + k]];
    for (int k = 0; k < entry.sinks; ++k) {
      route.sinks[k] = &channels[table.route_sinks[entry.first_sink + k].channel]->sink;
      route.sinks[k]->sources.push(&source);
    }
    source.routes.push(route);
  }
  for (int i = 0; i < table.cores; ++i) {
    cores.push(new Core(run));
    cores[i]->is_core = true;
    cores[i]->array = this;
    cores[i]->table = table.core + i;
  }
  for (int i = 0; i < table.cascades; ++i) {
    cascades.push(new Cascade);
    cascades[i]->table = table.cascade + i;
    cascades[i]->from = cores[table.cascade[i].from];
    cascades[i]->to = cores[table.cascade[i].to];
    cascades[i]->from->out = cascades[i]->to->in = cascades[i];
  }
}

Array::~Array() {
  for (int i = 0; i < cores.size(); ++i) delete cores[i];
  for (int i = 0; i < channels.size(); ++i) delete channels[i];
  for (int i = 0; i < cascades.size(); ++i) delete cascades[i];
  for (int i = 0; i < arbiters.size(); ++i) delete arbiters[i];
  for (int i = 0; i < locks.size(); ++i) delete locks[i];
  for (int i = 0; i < tasks_.size(); ++i) delete tasks_[i];
  for (int i = 0; i < memory.size(); ++i) pool_free(memory[i]);
  for (int i = 0; i < blocks_.size(); ++i) pool_free(blocks_[i]);
}

}  // namespace vnpu::aie
