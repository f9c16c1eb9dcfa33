// The host of a loaded device, and the descriptors that its tasks take.
#include <stdio.h>

#include "vnpu/aie/array.h"

namespace vnpu::aie {

Host::~Host() {
  if (run.trace) run.trace->end(*this);
  delete array;
  for (int i = 0; i < tasks_.size(); ++i) delete tasks_[i];
}

void Host::describe(char *text, int capacity) const { snprintf(text, size_t(capacity), "the runtime sequence"); }

Await Host::rest(int at) {
  line = at;
  waiting.kind = Waiting::kQuiet;
  run.at_rest = this;
  return Await{false};
}

Await Host::pause(int at) {
  line = at;
  waiting.kind = Waiting::kQuiet;
  run.ready_at(this, run.time() + Cycles::kHostOp);
  return Await{false};
}

namespace {

// The first of a tile's buffers from a number on; `buffers` where there is none.
int buffer_at(const DeviceTable &table, Place place, int from) {
  while (from < table.buffers) {
    const Place own = table.buffer[from].place;
    if (own.column == place.column && own.row == place.row) break;
    ++from;
  }
  return from;
}

// The buffer of another device that has the place of this one: -1 where the tile's buffers are not as long there, one by one.
int same_place(const DeviceTable &table, int buffer, const DeviceTable &other) {
  const Place place = table.buffer[buffer].place;
  int here = buffer_at(table, place, 0), there = buffer_at(other, place, 0), found = -1;
  while (here < table.buffers && there < other.buffers && table.buffer[here].bytes == other.buffer[there].bytes) {
    if (here == buffer) found = there;
    here = buffer_at(table, place, here + 1);
    there = buffer_at(other, place, there + 1);
  }
  return here == table.buffers && there == other.buffers ? found : -1;
}

}  // namespace

// Loading writes what the device says of a memory, and leaves the rest of it.
void Host::load(const DeviceTable &table, bool again) {
  if (array && &array->table == &table && !again) return;
  run.forget_turns();
  const DeviceTable *const last = array ? &array->table : nullptr;
  List<char *> left;
  for (int i = 0; last && i < last->buffers; ++i) left.push(array->memory[i]);
  if (array) array->memory.shrink(0);
  delete array;
  array = nullptr;
  array = new Array(run, table);
  for (int i = 0; last && i < table.buffers; ++i) {
    const int from = table.buffer[i].initial ? -1 : same_place(table, i, *last);
    if (from >= 0) memcpy(array->memory[i], left[from], size_t(table.buffer[i].bytes));
  }
  for (int i = 0; i < left.size(); ++i) pool_free(left[i]);
}

Task *Host::task(int channel, i64 repeat, bool sends_token) {
  Task *const task = new Task;
  tasks_.push(task);
  task->channel = array->channels[channel];
  task->repeat = repeat;
  task->sends_token = sends_token;
  return task;
}

Await Host::room(Task *task, int at) {
  line = at;
  Channel &channel = *task->channel;
  if (channel.queue.size() < Capacity::kQueue) return Await{true};
  waiting.kind = Waiting::kQueue;
  waiting.channel = &channel;
  channel.for_room.push(this);
  return Await{false};
}

namespace {

// Whether two descriptors of the host's move the same.
bool is_same(const Bd &one, const Bd &other) {
  return one.base == other.base && one.table->offset == other.table->offset && one.table->length == other.table->length;
}

// Descriptors of tasks that are not done, at the tile of a channel.
class DescriptorsInUse {
 public:
  DescriptorsInUse(Array &array, Place place) {
    for (int i = 0; i < array.channels.size(); ++i) {
      Channel &channel = *array.channels[i];
      const Place own = channel.table->place;
      if (own.column != place.column || own.row != place.row) continue;
      if (channel.running) add(*channel.running);
      for (int k = 0; k < channel.queue.size(); ++k) add(*channel.queue[k]);
    }
  }
  void add(const Task &task) {
    for (int next = task.first, steps = 0; next >= 0 && steps < task.bds->size(); next = (*task.bds)[next].next, ++steps) {
      const Bd *const bd = &(*task.bds)[next];
      if (!is_counted(*bd)) found.push(bd);
    }
  }
  List<const Bd *> found;

 private:
  bool is_counted(const Bd &bd) {
    for (int i = 0; i < found.size(); ++i) {
      const BdTable &known = *found[i]->table;
      if (found[i] == &bd || (known.is_given && bd.table->is_given && known.number == bd.table->number)) return true;
    }
    return false;
  }
};

// Ends the run where a task writes a descriptor that is in use, or needs more than the tile has.
void check_descriptors(Array &array, const Task &task, int line) {
  const Place place = task.channel->table->place;
  const int most = place.row == 1 ? 48 : 16;
  char name[80];
  name_place(name, int(sizeof(name)), place);
  DescriptorsInUse used(array, place);
  for (int i = 0; i < task.bds->size(); ++i) {
    const Bd &bd = (*task.bds)[i];
    for (int k = 0; k < used.found.size() && bd.table->is_given; ++k) {
      const Bd &other = *used.found[k];
      if (!other.table->is_given || other.table->number != bd.table->number || is_same(bd, other)) continue;
      fail(Site{"aie.runtime_sequence", line},
           "descriptor %d of %s is in use by the task of line %d, and would be overwritten: wait for that one first, or take "
           "another descriptor",
           bd.table->number, name, other.table->line);
    }
  }
  used.add(task);
  if (used.found.size() > most) {
    fail(Site{"aie.runtime_sequence", line},
         "%s would have %d descriptors in use, and has %d: a board hangs or sends wrong data. Wait for a task before", name,
         used.found.size(), most);
  }
}

}  // namespace

void Host::start(Task *task, int at) {
  check_descriptors(*array, *task, at);
  Channel &channel = *task->channel;
  channel.queue.push(task);
  if (channel.waiting.kind == Waiting::kTask) channel.wake();
}

i64 Host::number_of(const Task *task) {
  int number = tasks_.size() - 1;
  while (tasks_[number] != task) --number;
  return number;
}

Task *Host::task_of(i64 number) {
  if (number >= 0 && number < tasks_.size()) return tasks_[int(number)];
  fail(Site{"aiex.dma_start_task", 0}, "there is no task %lld: %d were configured", (long long)number, tasks_.size());
}

Await Host::token(Channel &channel, int at) {
  line = at;
  if (channel.tokens > 0) return Await{true};
  waiting.kind = Waiting::kToken;
  waiting.channel = &channel;
  channel.for_token.push(this);
  return Await{false};
}

void Host::write(int buffer, i64 index, int32_t value, uint32_t mask) {
  char *const at = array->memory[buffer] + 4 * index;
  uint32_t word;
  memcpy(&word, at, sizeof(word));
  word = (word & ~mask) | (uint32_t(value) & mask);
  memcpy(at, &word, sizeof(word));
}

void Host::copy_scratchpad(int words) {
  memcpy(copied_, scratchpad, sizeof(*copied_) * size_t(words));
  copied_words_ = words;
}

uint64_t Host::scratchpad_word(int index, int at) const {
  if (index < copied_words_) return copied_[index];
  fail(Site{"aie.runtime_sequence", at}, "word %d of the scratchpad is not there: aiex.npu.create_scratchpad has copied %d",
       index, copied_words_);
}

void Host::add(int buffer, i64 index, uint64_t delta) {
  char *const at = array->memory[buffer] + 4 * index;
  uint32_t words[2];
  memcpy(words, at, sizeof(words));
  const uint64_t sum = (uint64_t(words[1] & 0xFFFF) << 32 | (words[0] & ~3u)) + delta;
  words[0] = uint32_t(sum) & ~3u;
  words[1] = (words[1] & 0xFFFF0000u) | (uint32_t(sum >> 32) & 0xFFFFu);
  memcpy(at, words, sizeof(words));
}

Task *Host::chain(int channel, int bd, i64 repeat, bool sends_token) {
  Task *const chain = task(channel, repeat, sends_token);
  chain->bds = &array->bds;
  chain->first = bd;
  return chain;
}

void Host::reset(int channel) { array->channels[channel]->reset(); }

void Host::set_lock(int lock, int value) { array->locks[lock]->set(value); }

}  // namespace vnpu::aie
