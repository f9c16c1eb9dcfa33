// Loads a device: makes its parts from the tables, and connects them.
#include "vnpu/aie/array.h"

namespace vnpu::aie {

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
    locks[i]->run = &run;
    if (run.trace) run.trace->changed(*locks[i]);
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
    if (channels[i]->table->core != ChannelTable::kTokens || !channels[i]->token_route()) continue;
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
  if (run.trace) run.trace->end(*this);
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
