// Says why nothing can go on: who waits for whom, in a circle where there is one, and what a board's registers would show.
#include <stdarg.h>
#include <stdio.h>

#include "vnpu/aie/array.h"

namespace vnpu::aie {

namespace {

class Text {
 public:
  Text(char *text, int capacity) : text_(text), capacity_(capacity) {}
  void add(const char *format, ...) __attribute__((format(printf, 2, 3))) {
    if (used_ >= capacity_ - 1) return;
    va_list arguments;
    va_start(arguments, format);
    used_ += vsnprintf(text_ + used_, size_t(capacity_ - used_), format, arguments);
    va_end(arguments);
  }
  void add_name(const Actor &actor) {
    char name[160];
    actor.describe(name, int(sizeof(name)));
    add("%s", name);
    if (actor.line > 0) add(" at line %d", actor.line);
  }
  bool is_full() const { return used_ > capacity_ - 700; }

 private:
  char *const text_;
  const int capacity_;
  int used_ = 0;
};

using Actors = List<Actor *>;

// Who releases a lock: cores that have such an operation, and channels whose tasks have such a descriptor.
void add_releasers(const Lock &lock, Array &array, Actors &found) {
  const int number = int(lock.table - array.table.lock);
  for (int i = 0; i < array.cores.size(); ++i) {
    const CoreTable &core = *array.cores[i]->table;
    for (int k = 0; k < core.releases; ++k) {
      if (array.table.core_releases[core.first_release + k] == number) {
        found.push(array.cores[i]);
        break;
      }
    }
  }
  for (int i = 0; i < array.table.tasks; ++i) {
    const TaskTable &task = array.table.task[i];
    int steps = 0;
    for (int bd = task.bd; bd >= 0 && steps <= array.table.bds; bd = array.table.bd[bd].next, ++steps) {
      if (array.table.bd[bd].release.lock != number) continue;
      found.push(array.channels[task.channel]);
      break;
    }
  }
}

// The channel that holds what a sender waits for.
Channel *holder_of(const Source &source) {
  if (const Arbiter *const arbiter = source.blocking_arbiter()) return arbiter->holder ? arbiter->holder->channel : nullptr;
  const Sink *const sink = source.blocking_sink();
  return sink ? sink->channel : nullptr;
}

bool sends_to(const Source &source, const Sink &sink) {
  if (!source.crossing) return false;
  for (int i = 0; i < source.crossing->table->sinks; ++i) {
    if (source.crossing->sinks[i] == &sink) return true;
  }
  return false;
}

void add_blockers(Actor &actor, Run &run, Actors &found) {
  Array &array = *run.host.array;
  const Waiting &waiting = actor.waiting;
  switch (waiting.kind) {
    case Waiting::kLock: add_releasers(*waiting.lock, array, found); break;
    case Waiting::kTask: {
      Channel &channel = static_cast<Channel &>(actor);
      if (Channel *const holder = holder_of(channel.source)) found.push(holder);
      else if (channel.is_shim()) found.push(&run.host);
      break;
    }
    case Waiting::kToken:
    case Waiting::kQueue: {
      Channel *const channel = waiting.channel;
      Channel *const port = channel->token_port;
      if (port && port->is_transferring) found.push(port);
      found.push(channel);
      break;
    }
    case Waiting::kStreamOut:
    case Waiting::kSend:
      if (Channel *const holder = holder_of(waiting.channel->source)) found.push(holder);
      break;
    case Waiting::kStreamIn:
    case Waiting::kReceive: {
      Sink &sink = waiting.channel->sink;
      for (int pass = 0; pass < 2 && found.size() == 0; ++pass) {
        for (int i = 0; i < sink.sources.size(); ++i) {
          Source &source = *sink.sources[i];
          if (pass == 1 || sends_to(source, sink)) found.push(source.channel);
        }
      }
      break;
    }
    case Waiting::kCascadeIn: found.push(waiting.cascade->from); break;
    case Waiting::kCascadeOut: found.push(waiting.cascade->to); break;
    default: break;
  }
}

void add_held(Text &text, const Source &source) {
  if (const Arbiter *const arbiter = source.blocking_arbiter()) {
    const ArbiterTable &table = *arbiter->table;
    if (table.number < 0) text.add("the way into the port of tile (%d, %d)", table.place.column, table.place.row);
    else text.add("arbiter %d of the switch of tile (%d, %d)", table.number, table.place.column, table.place.row);
    if (arbiter->holder) {
      char name[160];
      arbiter->holder->channel->describe(name, int(sizeof(name)));
      text.add(", which a packet of %s holds", name);
      if (arbiter->holder->crossing) text.add(" (id %d)", arbiter->holder->crossing->table->id);
    }
  } else if (const Sink *const sink = source.blocking_sink()) {
    char name[160];
    sink->channel->describe(name, int(sizeof(name)));
    text.add("room at %s, where %lld words wait", name, (long long)(sink->held.size() / 4));
  } else {
    text.add("the stream");
  }
}

struct LockName {
  char text[160];
};

LockName lock_name(const Lock &lock) {
  LockName name;
  if (lock.table->name[0]) snprintf(name.text, sizeof(name.text), "%.150s", lock.table->name);
  else snprintf(name.text, sizeof(name.text), "%d", lock.table->number);
  return name;
}

void add_wait(Text &text, const Actor &actor) {
  const Waiting &waiting = actor.waiting;
  switch (waiting.kind) {
    case Waiting::kLock:
      text.add("waits for lock %s of tile (%d, %d) to be %s%d; it is %d", lock_name(*waiting.lock).text,
               waiting.lock->table->place.column, waiting.lock->table->place.row, waiting.at_least ? "at least " : "",
               waiting.value, waiting.lock->value);
      break;
    case Waiting::kTask: {
      const Channel &channel = static_cast<const Channel &>(actor);
      if (channel.source.crossing) {
        text.add("has read all, and of that %lld words wait for ", (long long)(channel.source.held.size() / 4));
        add_held(text, channel.source);
      } else {
        text.add("%s", channel.is_shim() ? "has no task: its queue is empty" : "has come to the end of its chain");
      }
      break;
    }
    case Waiting::kSend:
      text.add("has %lld words to send and waits for ", (long long)(waiting.channel->cursor.left / 4));
      add_held(text, waiting.channel->source);
      break;
    case Waiting::kReceive: text.add("waits for %lld words", (long long)(waiting.channel->cursor.left / 4)); break;
    case Waiting::kToken:
    case Waiting::kQueue: {
      char name[160];
      waiting.channel->describe(name, int(sizeof(name)));
      if (waiting.kind == Waiting::kToken) text.add("waits for a token of %s", name);
      else text.add("waits for room in the queue of %s, which has %d tasks", name, Capacity::kQueue);
      break;
    }
    case Waiting::kCascadeIn: text.add("waits for the cascade, which is empty"); break;
    case Waiting::kCascadeOut: text.add("waits for the cascade, which is full"); break;
    case Waiting::kStreamIn:
      text.add("waits for a word at its port Core : %d, which has none", waiting.channel->table->number);
      break;
    case Waiting::kStreamOut:
      text.add("waits for room in its port Core : %d, which holds %d words", waiting.channel->table->number, Capacity::kPort);
      break;
    case Waiting::kQuiet: text.add("waits until nothing else goes on"); break;
    default:
      if (actor.is_core && static_cast<const Core &>(actor).is_endless) {
        text.add("computes for longer than --time-limit says (0: any time), and does not wait");
      } else {
        const bool is_halted = actor.is_core && static_cast<const Core &>(actor).is_halted;
        text.add("%s", is_halted ? "is held in reset" : actor.is_done ? "has ended" : "goes on");
      }
      break;
  }
}

bool contains(Actors &actors, const Actor *actor) {
  for (int i = 0; i < actors.size(); ++i) {
    if (actors[i] == actor) return true;
  }
  return false;
}

// Follows who waits for whom from `actor` on; true where the way leads back to one that it has passed. `path` is that way.
bool follow(Actor &actor, Run &run, Actors &path, Actors &seen) {
  path.push(&actor);
  seen.push(&actor);
  Actors blockers;
  add_blockers(actor, run, blockers);
  for (int i = 0; i < blockers.size(); ++i) {
    if (contains(path, blockers[i])) {
      path.push(blockers[i]);
      return true;
    }
    if (!contains(seen, blockers[i]) && follow(*blockers[i], run, path, seen)) return true;
  }
  path.shrink(path.size() - 1);
  return false;
}

// The status register of a channel, as a board would show it.
uint32_t status_of(const Channel &channel) {
  const Waiting::Kind kind = channel.waiting.kind;
  uint32_t status = kind == Waiting::kTask ? 0 : 3u | 1u << 19;
  if (kind == Waiting::kLock) status |= 1u << 2;
  if (kind == Waiting::kSend || kind == Waiting::kReceive) status |= 1u << 4;
  const int queued = channel.queue.size();
  status |= uint32_t(queued < 7 ? queued : 7) << 20;
  if (channel.bd) status |= uint32_t(channel.bd->table->number) << 24;
  return status;
}

uint32_t status_of(const Core &core) {
  if (core.is_halted) return 2;
  uint32_t status = 1;
  if (core.is_done) return status | 1u << 20;
  const Waiting &waiting = core.waiting;
  if (waiting.kind == Waiting::kStreamIn) status |= 1u << 10;
  if (waiting.kind == Waiting::kStreamOut) status |= 1u << 12;
  if (waiting.kind == Waiting::kCascadeIn) status |= 1u << 14;
  if (waiting.kind == Waiting::kCascadeOut) status |= 1u << 15;
  if (waiting.kind == Waiting::kLock) {
    const Place own = core.table->place, other = waiting.lock->table->place;
    const int side = other.row < own.row ? 0 : other.column < own.column ? 1 : other.row > own.row ? 2 : 3;
    status |= 1u << (6 + side);  // south, west, north, own
  }
  return status;
}

void add_line(Text &text, const Actor &actor) {
  text.add("\n  ");
  text.add_name(actor);
  text.add(" ");
  add_wait(text, actor);
}

void add_registers(Text &text, Array &array) {
  text.add("\nregisters of a board in this state:");
  for (int i = 0; i < array.cores.size() && !text.is_full(); ++i) {
    const Core &core = *array.cores[i];
    if (core.waiting.kind == Waiting::kNothing && !core.is_done) continue;
    text.add("\n  core (%d, %d) Core_Status 0x32004 = 0x%06x", core.table->place.column, core.table->place.row,
             status_of(core));
  }
  for (int i = 0; i < array.channels.size() && !text.is_full(); ++i) {
    const Channel &channel = *array.channels[i];
    if (channel.waiting.kind == Waiting::kTask || channel.is_port()) continue;
    const ChannelTable &table = *channel.table;
    const int base = table.place.row == 0   ? (table.sends ? 0x1d228 : 0x1d220)
                     : table.place.row == 1 ? (table.sends ? 0xa0680 : 0xa0660)
                                            : (table.sends ? 0x1df10 : 0x1df00);
    text.add("\n  tile (%d, %d) DMA_%s_Status_%d 0x%05x = 0x%08x", table.place.column, table.place.row,
             table.sends ? "MM2S" : "S2MM", table.number, base + 4 * table.number, status_of(channel));
  }
}

}  // namespace

void fail_hang(Run &run) {
  char buffer[7600];
  Text text(buffer, int(sizeof(buffer)));
  text.add("nothing can go on\n  ");
  text.add_name(run.host);
  text.add(" ");
  add_wait(text, run.host);
  Actors path, seen;
  Actors told;
  told.push(&run.host);
  if (run.host.array && follow(run.host, run, path, seen)) {
    const Actor *const again = path[path.size() - 1];
    for (int i = 1; i + 1 < path.size(); ++i) {
      add_line(text, *path[i]);
      told.push(path[i]);
    }
    text.add("\n  which waits for ");
    text.add_name(*again);
  } else {
    for (int i = 1; i < seen.size() && !text.is_full(); ++i) {
      add_line(text, *seen[i]);
      told.push(seen[i]);
    }
  }
  Array *const array = run.host.array;
  if (array) {
    bool is_first = true;
    for (int pass = 0; pass < 2; ++pass) {
      const int count = pass == 0 ? array->cores.size() : array->channels.size();
      for (int i = 0; i < count && !text.is_full(); ++i) {
        Actor *const actor = pass == 0 ? static_cast<Actor *>(array->cores[i]) : array->channels[i];
        const Waiting::Kind kind = actor->waiting.kind;
        const bool is_endless = pass == 0 && array->cores[i]->is_endless;
        if (contains(told, actor) || (kind == Waiting::kNothing && !is_endless) || kind == Waiting::kTask) continue;
        if (is_first) text.add("\nthese wait too:");
        is_first = false;
        add_line(text, *actor);
      }
    }
    add_registers(text, *array);
  }
  fail_as(Failure::kDeadlock, Site{"aie.runtime_sequence", run.host.line}, "%s", buffer);
}

void fail_endless(Run &run, i64 seconds) {
  char buffer[7600];
  Text text(buffer, int(sizeof(buffer)));
  text.add(
      "nothing but cores has moved in %lld s of computing: they seem to have no end; --time-limit SECONDS gives them more "
      "time, 0 any",
      (long long)seconds);
  add_line(text, run.host);
  for (int i = 0; i < run.host.array->cores.size() && !text.is_full(); ++i) add_line(text, *run.host.array->cores[i]);
  fail(Site{"aie.runtime_sequence", run.host.line}, "%s", buffer);
}

}  // namespace vnpu::aie
