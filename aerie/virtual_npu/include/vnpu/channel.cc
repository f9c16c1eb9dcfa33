// Channels: bundles of bounded queues between tiles and engines.
#include "vnpu/channel.h"

#include <stdio.h>

namespace vnpu {

namespace {

// Checks one side of a transfer on behalf of the tile or engine that issued it, whichever executes it.
class OnBehalf {
 public:
  explicit OnBehalf(const ExecutionPlace &where) { here = &where; }
  OnBehalf(const OnBehalf &) = delete;
  ~OnBehalf() { here = outer_; }

 private:
  const ExecutionPlace *const outer_ = here;
};

}  // namespace

void Transfer::complete() {
  pass();
  if (process) task_loop.ready(process);
  else task->finish();
}

Channel::Channel(TaskLoop &task_loop, const char *name, std::initializer_list<i64> from, std::initializer_list<i64> to,
                 bool is_cascade)
    : task_loop_(task_loop),
      capacity_(task_loop.max_pending_puts()),
      name_(name),
      mover_(is_cascade ? Engine::kCores : Engine::kTransfer) {
  for (i64 extent : from) {
    from_.extents[from_.rank++] = extent;
    from_.count *= extent;
  }
  for (i64 extent : to) {
    to_.extents[to_.rank++] = extent;
    to_.count *= extent;
  }
  inlets_ = new SenderSide[size_t(from_.count)];
  outlets_ = new ReceiverSide[size_t(to_.count)];
  for (i64 i = 0; i < to_.count; ++i) {
    outlets_[i].source = source_of(i);
    inlets_[outlets_[i].source].receivers.push(i);
  }
  task_loop.add(this);
}

Channel::~Channel() {
  task_loop_.remove(this);
  delete[] outlets_;
  delete[] inlets_;
}

// The put index that feeds a get index: dimensions of extent 1 on the putting side are broadcast.
i64 Channel::source_of(i64 outlet) const {
  i64 source = 0, inner = 1;
  for (int d = to_.rank - 1; d >= 0; --d) {
    const i64 coordinate = outlet % to_.extents[d];
    outlet /= to_.extents[d];
    if (from_.extents[d] > 1) source += coordinate * inner;
    inner *= from_.extents[d];
  }
  return source;
}

i64 Channel::index_of_any(Site site, std::initializer_list<i64> indices, const Shape &shape) const {
  if (indices.size() == 0) {
    if (shape.count != 1) {
      fail(site, "the channel has %lld members, and the operation has no index: write one index per dimension",
           (long long)shape.count);
    }
    return 0;
  }
  if (int(indices.size()) != shape.rank) {
    for (const i64 i : indices) {
      if (from_.count == 1 && to_.count == 1 && i != 0)
        fail(site, "index %lld of a single channel: it has one member, 0", (long long)i);
    }
    if (from_.count == 1 && to_.count == 1) return 0;
    fail(site, "%d indices for a channel of %d dimensions", int(indices.size()), shape.rank);
  }
  i64 flat = 0;
  int d = 0;
  // The compiler specialises broadcasts by row or column of tiles, and the gets still name both coordinates.
  const bool is_broadcast_get = &shape == &to_ && from_.count != to_.count;
  for (i64 i : indices) {
    if (is_broadcast_get && shape.extents[d] == 1) i = 0;
    if (i < 0 || i >= shape.extents[d]) {
      fail(site, "index %lld of dimension %d is outside the channel's extent %lld", (long long)i, d,
           (long long)shape.extents[d]);
    }
    flat = flat * shape.extents[d++] + i;
  }
  return flat;
}

void Channel::Queue::push(Transfer &transfer) {
  transfer.next = nullptr;
  if (last) last->next = &transfer;
  else first = &transfer;
  last = &transfer;
}

Transfer *Channel::Queue::pop() {
  Transfer *transfer = first;
  first = transfer->next;
  if (!first) last = nullptr;
  return transfer;
}

namespace {

bool divides(i64 a, i64 b) { return a && b && (a % b == 0 || b % a == 0); }

void refuse_mismatch(const Transfer &get, i64 count, int element, Site from, const ExecutionPlace &sender) {
  const i64 needed = get.side.count;
  if (get.side.element == element && (needed == count || divides(needed, count))) return;
  char who[400];
  vnpu::describe(&sender, who, int(sizeof(who)));
  here = &get.where;
  fail_as(Failure::kMismatch, get.site, "takes %lld elements of %d bytes, but the put at line %d%s sends %lld of %d bytes",
          (long long)needed, get.side.element, from.line, who, (long long)count, element);
}

}  // namespace

// Copies a block into its dense order, unless that was done before.
void Channel::load(SharedBlock &shared_block, Site site, const Access &from) {
  if (shared_block) return;
  RetainedBlocks *const retained = from.stays ? task_loop_.retained() : nullptr;
  shared_block = retained ? retained->block(site, from) : SharedBlock(site, from);
}

void Channel::hand_over(Transfer &get, const Access &block, const ClockSnapshot &mark) {
  if (get.relay) {
    if (block.stays) return get.relay->point_to(block);
    get.relay->hold();
  }
  const OnBehalf of(get.where);
  get.strand->learn(mark);
  observe(get.site, get.side, true, *get.strand, mover_);
  vnpu::copy(get.site, get.side, block);
}

// Gives a get a whole dense block: lent, if the get can borrow it.
void Channel::hand_over(Transfer &get, const SharedBlock &shared_block, const ClockSnapshot &mark) {
  if (get.loan) *get.loan = shared_block;
  else hand_over(get, shared_block.part(get.side.count, get.side.element, 0, get.side.count), mark);
}

// Adds a part to a get. Returns true when the get is complete.
bool Channel::collect(Transfer &get, const Access &part) {
  PartialGet &all = get.partial;
  const i64 count = get.side.count;
  if (!all.data) all.data = static_cast<char *>(pool_allocate(SharedBlock::bytes(count, get.side.element)));
  __builtin_memcpy(all.data + all.count * part.element, part.first, size_t(part.count * part.element));
#if VNPU_CHECKS
  __builtin_memcpy(SharedBlock::run(all.data, count, part.element, all.count, part.count).flags, part.flags,
                   size_t(part.count));
#endif
  all.count += part.count;
  return all.count == get.side.count;
}

// Fills a get from the waiting blocks. Returns false if they are not enough.
bool Channel::serve(ReceiverSide &outlet, Transfer &get) {
  while (outlet.full > 0) {
    Block &block = outlet.first();
    const i64 all = block.side.count;
    const int element = block.side.element;
    refuse_mismatch(get, all, element, block.site, block.where);
    const i64 left = all - outlet.taken, needed = get.side.count - get.partial.count;
    const i64 count = left < needed ? left : needed;
    const bool is_whole = count == get.side.count;
    get.strand->learn(block.mark);
    const FromPut from(block.site, block.where);
    if (is_whole && count == all && !block.shared_block && !get.loan) {
      hand_over(get, block.side, block.mark);
    } else {
      load(block.shared_block, block.site, block.side);
      const Access part = block.shared_block.part(all, element, outlet.taken, count);
      if (is_whole && count == all) hand_over(get, block.shared_block, block.mark);
      else if (is_whole) hand_over(get, part, block.mark);
      else if (collect(get, part))
        hand_over(get, SharedBlock::run(get.partial.data, get.side.count, element, 0, get.side.count), block.mark);
    }
    const bool is_complete = is_whole || get.partial.count == get.side.count;
    outlet.taken += count;
    outlet.taker = get.site.line;
    if (outlet.taken == all) outlet.drop();
    if (is_complete) return true;
  }
  return false;
}

Channel::Block::Block(const Transfer &put, const SharedBlock &made, const ClockSnapshot &sent)
    : shared_block(made), mark(sent), site(put.site), where(put.where) {
  if (made) {
    side.count = put.side.count;
    side.element = put.side.element;
  } else {
    side = put.side;
  }
  where.around = nullptr;  // the sender's outer place may be gone when the block is taken
}

#if VNPU_CHECKS
namespace {

// Checks what a put reads before the get copies it: a freed buffer is the put's error, not the get's.
void check_source_of(const Transfer &put) {
  const ExecutionPlace *const outer = here;
  here = &put.where;
  check_readable(put.site, put.side);
  here = outer;
}

}  // namespace
#endif

bool Channel::deliver(Transfer &put, i64 index) {
  SenderSide &inlet = inlets_[index];
  const int receivers = inlet.receivers.size();
  const bool is_broadcast = from_.count != to_.count;
  for (int i = 0; i < receivers; ++i) {
    if (outlets_[inlet.receivers[i]].full == capacity_) return false;
  }
  ++inlet.blocks;
#if VNPU_CHECKS
  check_source_of(put);
#endif
  {
    const OnBehalf of(put.where);
    observe(put.site, put.side, false, *put.strand, mover_);
  }
  const ClockSnapshot mark = put.strand->publish();
  // If several gets take or borrow the block, it is copied into its dense order once.
  SharedBlock shared_block;
  Waiting block;
  for (int i = 0; i < receivers; ++i) {
    const i64 o = inlet.receivers[i];
    ReceiverSide &outlet = outlets_[o];
    Transfer *const first = outlet.gets.first;
    if (first && outlet.full == 0 && first->partial.count == 0 && first->side.count == put.side.count) {
      refuse_mismatch(*first, put.side.count, put.side.element, put.site, put.where);
      const FromPut from(put.site, put.where);
      if (is_broadcast || first->loan) {
        load(shared_block, put.site, put.side);
        hand_over(*first, shared_block, mark);
      } else {
        hand_over(*first, put.side, mark);
      }
      outlet.gets.pop()->complete();
    } else {
      if (is_broadcast || !put.side.stays) load(shared_block, put.site, put.side);
      if (!block) block = Waiting(new Block(put, shared_block, mark));
      outlet.push(block);
      while (outlet.gets.first && serve(outlet, *outlet.gets.first)) outlet.gets.pop()->complete();
    }
    record_delivery(o, put.side);
  }
  return true;
}

bool Channel::put(Transfer &transfer, i64 index) {
  SenderSide &inlet = inlets_[index];
  record_arrival(transfer, true, index);
  if (!inlet.puts.first && deliver(transfer, index)) return transfer.pass();
  inlet.puts.push(transfer);
  return false;
}

bool Channel::get(Transfer &transfer, i64 index) {
  ReceiverSide &outlet = outlets_[index];
  record_arrival(transfer, false, index);
  Queue &puts = inlets_[outlet.source].puts;
  const auto next_put = [&] {
    if (!puts.first || !deliver(*puts.first, outlet.source)) return false;
    puts.pop()->complete();
    return true;
  };
  bool is_served = false;
  if (!outlet.gets.first) {
    // When blocks are used up, a waiting put has room.
    do {
      is_served = serve(outlet, transfer);
    } while (!is_served && next_put());
  }
  if (!is_served) {
    outlet.gets.push(transfer);
    return false;
  }
  while (next_put()) {
  }
  return transfer.pass();
}

#if VNPU_CHECKS

void Channel::record_arrival(Transfer &transfer, bool is_put, i64 index) const {
  if (!record::on()) return;
  char text[64];
  describe_index(text, int(sizeof(text)), is_put ? from_ : to_, index);
  transfer.recorded = record::arrives(transfer.site, transfer.where, transfer.side, is_put, transfer.task ? text : nullptr);
}

void Channel::record_delivery(i64 outlet, const Access &side) const {
  if (!record::on()) return;
  char text[64];
  describe_index(text, int(sizeof(text)), to_, outlet);
  record::delivered(name_, outlet, text, side.count * side.element, outlets_[outlet].full);
}

#else

void Channel::record_arrival(Transfer &, bool, i64) const {}
void Channel::record_delivery(i64, const Access &) const {}

#endif

int Channel::describe_index(char *text, int capacity, const Shape &shape, i64 index) {
  int used = 0;
  i64 inner = shape.count;
  text[0] = 0;
  for (int d = 0; d < shape.rank && used < capacity; ++d) {
    inner /= shape.extents[d];
    used += snprintf(text + used, size_t(capacity - used), "%s%lld", d ? ", " : "", (long long)(index / inner));
    index %= inner;
  }
  return used;
}

void Channel::refuse_leftovers() const {
  for (i64 i = 0; i < to_.count; ++i) {
    ReceiverSide &outlet = outlets_[i];
    if (outlet.full == 0) continue;
    char index[64];
    describe_index(index, int(sizeof(index)), to_, i);
    const Block &block = outlet.first();
    here = &block.where;
    if (outlet.taken > 0) {
      fail_as(Failure::kMismatch, block.site,
              "sent %lld elements to %s[%s], of which the get at line %d takes %lld and no other "
              "takes the rest",
              (long long)block.side.count, name_, index, outlet.taker, (long long)outlet.taken);
    }
    fail(block.site,
         "sent %lld elements that no get ever takes from %s[%s] (%d left there at the end): add the get, or "
         "drop the put",
         (long long)block.side.count, name_, index, outlet.full);
  }
}

}  // namespace vnpu
