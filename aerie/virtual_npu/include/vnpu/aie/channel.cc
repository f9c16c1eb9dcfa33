// Locks and channels of a loaded device.
#include "vnpu/aie/array.h"

#include <stdio.h>

namespace vnpu::aie {

// ---- locks ----

bool Lock::take(int wanted, bool at_least) {
  if (at_least ? value < wanted : value != wanted) return false;
  value -= wanted;
  if (run->trace) run->trace->changed(*this);
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
  if (run->trace) run->trace->changed(*this);
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
  if (run->trace) run->trace->changed(*this);
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
        ++channel.transfers;
        channel.bytes += bd.table->length * bd.table->element;
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
  const Route *const of_tokens = channel.core ? nullptr : channel.token_route();
  const int id = of_tokens ? of_tokens->table->id : channel.core ? channel.source.routes[0].table->id : -1;
  uint32_t word;
  Answer answer{};
  Bd bd{&table, reinterpret_cast<char *>(&word), sizeof(word)};
  Bd of_answer{&table, reinterpret_cast<char *>(answer.word), sizeof(answer.word)};
  for (;;) {
    while (channel.words.size() == 0 && channel.answers.empty()) {
      channel.waiting.kind = Waiting::kTask;
      co_await Await{false};
    }
    if (!channel.answers.empty()) {
      answer = channel.answers.pop();
      table.length = answer.words;
      table.packet.id = answer.id;
      channel.bd = &of_answer;
      co_await transfer(channel);
      channel.bd = nullptr;
      continue;
    }
    table.length = 1;
    table.packet.id = id;
    memcpy(&word, channel.words.data(), sizeof(word));
    channel.words.drop(sizeof(word));
    if (channel.core && channel.core->waiting.kind == Waiting::kStreamOut) channel.core->wake();
    channel.bd = &bd;
    co_await transfer(channel);
    channel.bd = nullptr;
    ++channel.transfers;
    channel.bytes += i64(sizeof(word));
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

void Channel::answer(const Answer &answer) {
  answers.push(answer);
  if (waiting.kind == Waiting::kTask) wake();
}

const Route *Channel::token_route() const {
  List<Route> &all = const_cast<List<Route> &>(source.routes);
  for (int i = 0; i < all.size(); ++i) {
    if (all[i].table->sinks == 0) return &all[i];
  }
  return nullptr;
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
    const char *const what = takes_control() ? "control packets" : answers.empty() && token_route() ? "tokens" : "answers";
    snprintf(text, size_t(capacity), "the port for %s of %s", what, where);
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

}  // namespace vnpu::aie
