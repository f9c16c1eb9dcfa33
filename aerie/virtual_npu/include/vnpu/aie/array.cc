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

void Actor::stop() {
  if (fiber_) fiber_.destroy();
  fiber_ = nullptr;
  if (waiting.kind == Waiting::kLock) const_cast<Lock *>(waiting.lock)->forget(*this);
  waiting = Waiting();
  is_queued = is_done = false;
}

namespace {

uint64_t draw(uint64_t &random) {
  random ^= random << 13;
  random ^= random >> 7;
  random ^= random << 17;
  return random;
}

}  // namespace

void Run::ready_at(Runnable *runnable, i64 at) {
  // Another seed is an array in which all takes other times.
  if (random_) at += (at - time()) * i64(draw(random_) % 4) + i64(draw(random_) % 64);
  if (runnable->is_queued && runnable->due <= at) return;
  runnable->is_queued = true;
  runnable->due = at;
  push(Event{at, order_++, runnable});
}

void Run::at_time(Runnable *runnable) {
  runnable->is_queued = true;
  runnable->due = time();
  push(Event{runnable->due, order_++, runnable});
}

void Run::push(Event event) {
  events_.push(event);
  for (int i = events_.size() - 1; i > 0 && events_[i] < events_[(i - 1) / 2]; i = (i - 1) / 2) {
    events_[i] = events_[(i - 1) / 2];
    events_[(i - 1) / 2] = event;
  }
}

Run::Event Run::pop() {
  const Event first = events_[0], last = events_[events_.size() - 1];
  events_.shrink(events_.size() - 1);
  const int count = events_.size();
  for (int i = 0; count > 0;) {
    int least = 2 * i + 1;
    if (least + 1 < count && events_[least + 1] < events_[least]) ++least;
    events_[i] = least < count && events_[least] < last ? events_[least] : last;
    if (least >= count || !(events_[least] < last)) break;
    i = least;
  }
  return first;
}

void Run::forget_turns() {
  for (int i = 0; i < events_.size(); ++i) events_[i].runnable->is_queued = false;
  for (int i = 0; i < events_.size(); ++i) events_[i].runnable->forgotten();
  events_.shrink(0);
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
    if (events_.size() > 0 && is_patient) {
      const Event event = pop();
      Runnable *const runnable = event.runnable;
      if (!runnable->is_queued || runnable->due != event.time) continue;  // it has had this turn, or an earlier one
      if (at_rest || host.is_done) ++busy;
      now_ = event.time > now_ ? event.time : now_;
      runnable->is_queued = false;
      if (!runnable->is_core) progress.moved();
      runnable->turn();
      spent = 0;
    } else if (at_rest) {
      Actor *const waiting = at_rest;
      at_rest = nullptr;
      busy = 0;
      waiting->wake();
    } else if (events_.size() == 0 || host.is_done) {
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

void Lock::forget(const Actor &actor) {
  int kept = 0;
  for (int i = 0; i < waiters_.size(); ++i) {
    if (waiters_[i] != &actor) waiters_[kept++] = waiters_[i];
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

// A token is a packet too: where the switches have a way for it, it needs the arbiters there.
void send_token(Channel &channel) {
  if (!channel.token_port) return channel.add_token();
  List<Channel *> &all = channel.array->channels;
  for (int i = 0; i < all.size(); ++i) {
    if (all[i] == &channel) channel.token_port->put_word(uint32_t(i));
  }
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

Await later(Channel &channel, i64 cycles) {
  channel.run.ready_at(&channel, channel.run.time() + cycles);
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
    sink.accept(earlier.data(), earlier.size(), 0);
    sink.changed();
  }
  return Await{false};  // whatever ends the transfer wakes the channel
}

Fiber run_channel(Channel &channel) {
  for (;;) {
    const bool is_idle = channel.queue.empty();
    co_await next_task(channel);
    Task *const task = channel.running = channel.queue.pop();
    tell_room(channel);
    const bool sends = channel.table->sends;
    if (is_idle && sends && channel.is_shim()) co_await later(channel, Cycles::kShimStart);
    for (i64 round = 0; round <= task->repeat; ++round) {
      for (int next = task->first; next >= 0; next = channel.bd->next) {
        Bd &bd = (*task->bds)[next];
        channel.bd = &bd;
        channel.line = bd.table->line;
        const Await lock = take_lock(channel, bd.table->acquire);
        co_await lock;
        if (!lock.is_ready && sends) co_await later(channel, Cycles::kFetch);
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

// A core's own port into the switch, or that of a tile's tokens: word by word.
Fiber run_port(Channel &channel) {
  BdTable table{0, 0, -1, 0, 1, 4, 0, {}, {}, {}, {}, -1, {}};
  if (channel.source.routes.size() > 0) table.packet.id = channel.source.routes[0].table->id;
  uint32_t word;
  Bd bd{&table, reinterpret_cast<char *>(&word), sizeof(word)};
  for (;;) {
    while (channel.words.size() == 0) {
      channel.waiting.kind = Waiting::kTask;
      co_await Await{false};
    }
    memcpy(&word, channel.words.data(), sizeof(word));
    channel.words.drop(sizeof(word));
    if (channel.core && channel.core->waiting.kind == Waiting::kStreamOut) channel.core->wake();
    channel.bd = &bd;
    co_await transfer(channel);
    channel.bd = nullptr;
    if (!channel.core) channel.array->channels[int(word)]->add_token();
  }
}

}  // namespace

void Channel::add_token() {
  ++tokens;
  for (int i = 0; i < for_token.size(); ++i) for_token[i]->wake();
  for_token.shrink(0);
}

void Channel::put_word(uint32_t word) {
  words.push(reinterpret_cast<const char *>(&word), sizeof(word));
  if (waiting.kind == Waiting::kTask) wake();
}

void Channel::start() {
  if (!is_port()) begin(run_channel(*this));
  else if (table->sends) begin(run_port(*this));
}

void Channel::reset() {
  if (bd && is_transferring && bd->table->acquire.lock >= 0)
    array->locks[bd->table->acquire.lock]->held -= bd->table->acquire.value;
  stop();
  source.reset();
  sink.reset();
  queue.clear();
  running = nullptr;
  bd = nullptr;
  cursor.left = 0;
  is_transferring = false;
  tell_room(*this);
  start();
  sink.changed();
}

void Channel::describe(char *text, int capacity) const {
  char where[80];
  name_place(where, int(sizeof(where)), table->place);
  if (is_port() && !core) {
    snprintf(text, size_t(capacity), "the port for tokens of %s", where);
    return;
  }
  if (core) {
    snprintf(text, size_t(capacity), "%s port Core : %d of %s", table->sends ? "sending" : "receiving", table->number, where);
    return;
  }
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
  if (Lock *const lock = asks_.lock) {
    asks_.lock = nullptr;
    if (!lock->take(asks_.value, asks_.at_least)) return lock->acquire_by(*this, asks_.value, asks_.at_least);
  }
  const CoreTurn registers(modes);
  const Turn turn(*this);
  try {
    Actor::turn();
  } catch (const Endless &) {
    is_endless = true;
  }
}

void Core::halt() {
  stop();
  asks_.lock = nullptr;
  is_halted = true;
}

void Core::begin_again() {
  if (!is_halted) return;
  is_halted = is_endless = false;
  begin(table->run(*this));
}

void Core::spend(i64 cycles) { run.spent += cycles; }

Lock &Core::lock(int number) const { return *array->locks[number]; }

char *Core::memory(int number) const { return array->memory[number]; }

Await Core::acquire(int number, int value, bool at_least, int at) {
  line = at;
  asks_ = {&lock(number), value, at_least};
  // Time passes where it gets its lock at once, too, so that the others go on where it asks again and again.
  run.ready_at(this, run.time() + Cycles::kLock);
  return Await{false};
}

namespace {

void release_now(Lock &lock, int value, int line) {
  lock.value += value;
  lock.check_credits(Site{"aie.use_lock", line});
  lock.value -= value;
  lock.release(Site{"aie.use_lock", line}, value);
}

// A release by a core, after it has computed.
class Release final : public Runnable {
 public:
  Release(Lock &lock, int value, int line) : lock_(lock), value_(value), line_(line) { is_core = true; }
  void turn() override {
    Lock &lock = lock_;
    const int value = value_, line = line_;
    delete this;
    release_now(lock, value, line);
  }
  void forgotten() override { delete this; }

 private:
  Lock &lock_;
  const int value_, line_;
};

}  // namespace

void Core::release(int number, int value, int at) {
  line = at;
  if (run.spent == 0) return release_now(lock(number), value, at);
  run.at_time(new Release(lock(number), value, at));
}

Await Core::to_put_word(int number, int at) {
  line = at;
  if (array->channels[number]->words.size() < 4 * Capacity::kPort) return Await{true};
  waiting.kind = Waiting::kStreamOut;
  waiting.channel = array->channels[number];
  return Await{false};
}

void Core::put_word(int number, uint32_t word) { array->channels[number]->put_word(word); }

Await Core::to_get_word(int number, int at) {
  line = at;
  if (array->channels[number]->sink.held.size() >= 4) return Await{true};
  waiting.kind = Waiting::kStreamIn;
  waiting.channel = array->channels[number];
  return Await{false};
}

uint32_t Core::get_word(int number) {
  Sink &sink = array->channels[number]->sink;
  uint32_t word;
  memcpy(&word, sink.held.data(), sizeof(word));
  sink.held.drop(sizeof(word));
  sink.changed();
  return word;
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
  for (int i = 0; i < table.channels; ++i) channels[i]->start();
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
  for (int i = 0; i < table.cores; ++i) {
    cores.push(new Core(run));
    cores[i]->is_core = true;
    cores[i]->array = this;
    cores[i]->table = table.core + i;
  }
  for (int i = 0; i < table.channels; ++i) {
    Channel *const channel = new Channel(run);
    channels.push(channel);
    channel->array = this;
    channel->table = table.channel + i;
    channel->source.channel = channel->sink.channel = channel;
    if (channel->table->core >= 0) channel->core = cores[channel->table->core];
    if (channel->is_shim() && !channel->is_port()) channel->source.read_ahead = 4 * Capacity::kShimReadAhead;
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
  for (int i = 0; i < channels.size(); ++i) {
    if (channels[i]->table->core != ChannelTable::kTokens) continue;
    const Place place = channels[i]->table->place;
    for (int k = 0; k < channels.size(); ++k) {
      const Place other = channels[k]->table->place;
      if (other.column == place.column && other.row == place.row) channels[k]->token_port = channels[i];
    }
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
