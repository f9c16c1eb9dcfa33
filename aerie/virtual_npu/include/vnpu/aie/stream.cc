// Descriptors, and the streams between channels.
#include "vnpu/aie/array.h"

namespace vnpu::aie {

void Bytes::push(const char *from, i64 count) {
  if (count == 0) return;
  if (end_ + count > capacity_) {
    const i64 held = size();
    capacity_ = 2 * (held + count) + 64;
    char *const larger = static_cast<char *>(pool_allocate(capacity_));
    if (held) memcpy(larger, data_ + begin_, size_t(held));
    if (data_) pool_free(data_);
    data_ = larger;
    begin_ = 0;
    end_ = held;
  }
  memcpy(data_ + end_, from, size_t(count));
  end_ += count;
}

// ---- access patterns ----

void Cursor::start(const Bd &bd) {
  const BdTable &table = *bd.table;
  element_ = table.element;
  left = all_ = table.length * element_;
  i64 offset = table.offset;
  if (table.iteration.size > 1) {
    offset += (table.iteration.current + bd.uses) % table.iteration.size * table.iteration.stride;
  }
  base_ = bd.base + offset * element_;
  depth_ = table.dimensions;
  taken_ = 0;
  is_padded_ = false;
  i64 low = 0, high = 0, inner = 1;
  for (int i = 0; i < depth_; ++i) {
    dims_[i] = table.dimension[i];
    index_[i] = 0;
    is_padded_ = is_padded_ || dims_[i].before || dims_[i].after;
  }
  run_ = element_;
  if (!is_padded_) {
    // Dimensions that lie one after the other in memory are one run.
    while (depth_ > 0 && dims_[depth_ - 1].stride * element_ == run_) run_ *= dims_[--depth_].size;
    if (depth_ == 0) run_ = left;
  }
  for (int i = depth_ - 1; i > 0; --i) inner *= dims_[i].size + dims_[i].before + dims_[i].after;
  // The outermost dimension goes on as long as there is something to transfer.
  if (depth_ > 0 && !is_padded_) dims_[0].size = (left + inner * run_ - 1) / (inner * run_);
  for (int i = 0; i < depth_; ++i) (dims_[i].stride < 0 ? low : high) += (dims_[i].size - 1) * dims_[i].stride * element_;
  high += run_;
  low += base_ - bd.base;
  high += base_ - bd.base;
  if (left > 0 && (low < 0 || high > bd.extent)) {
    fail_as(Failure::kOutside, Site{"aie.dma_bd", table.line},
            "reaches bytes %lld to %lld of a buffer that has bytes 0 to %lld: make the offset, sizes or strides smaller",
            (long long)low, (long long)high - 1, (long long)bd.extent - 1);
  }
}

i64 Cursor::peek(i64 most, char **data) {
  char *place = base_;
  bool is_zero = false;
  for (int i = 0; i < depth_; ++i) {
    const i64 at = index_[i] - dims_[i].before;
    is_zero = is_zero || at < 0 || at >= dims_[i].size;
    place += at * dims_[i].stride * element_;
  }
  *data = is_padded_ && is_zero ? nullptr : place + taken_;
  const i64 here = run_ - taken_ < left ? run_ - taken_ : left;
  return here < most ? here : most;
}

void Cursor::advance(i64 bytes) {
  taken_ += bytes;
  left -= bytes;
  if (taken_ < run_) return;
  taken_ = 0;
  for (int i = depth_ - 1; i >= 0; --i) {
    if (++index_[i] < dims_[i].before + dims_[i].size + dims_[i].after || i == 0) return;
    index_[i] = 0;
  }
}

// ---- the receiving end ----

i64 Sink::room() const {
  if (channel->takes_control()) return i64(1) << 20;
  if (channel->core) return 4 * Capacity::kPort - held.size();
  const bool is_loaded = channel->waiting.kind == Waiting::kLock;
  const i64 capacity = 4 * (is_loaded ? Capacity::kLoaded : Capacity::kEnded);
  const i64 room = channel->is_transferring ? channel->cursor.left + capacity : capacity - held.size();
  return room > 0 ? room : 0;
}

void Sink::accept(const char *data, i64 bytes, i64 late) {
  if (channel->takes_control()) {
    for (i64 at = 0; at < bytes; at += 4) {
      uint32_t word;
      memcpy(&word, data + at, sizeof(word));
      channel->control.take(*channel, word);
    }
    return;
  }
  Cursor &cursor = channel->cursor;
  while (bytes > 0 && channel->is_transferring) {
    char *to;
    const i64 count = cursor.peek(bytes, &to);
    memcpy(to, data, size_t(count));
    cursor.advance(count);
    channel->transferred += count;
    data += count;
    bytes -= count;
    late += (count + 3) / 4;
    if (cursor.left == 0) {
      channel->is_transferring = false;
      channel->run.ready_at(channel, channel->run.time() + late);
    }
  }
  held.push(data, bytes);
  if (channel->core && channel->core->waiting.kind == Waiting::kStreamIn) channel->core->wake();
}

void Sink::reset() { held.drop(held.size()); }

void Sink::changed() {
  for (int i = 0; i < sources.size(); ++i) channel->run.ready(sources[i]);
}

// ---- the sending end ----

namespace {

uint32_t header_of(const Packet &packet, Place place) {
  uint32_t header =
      uint32_t(packet.id) | uint32_t(packet.type) << 12 | uint32_t(place.row) << 16 | uint32_t(place.column) << 21;
  return header | uint32_t(!(__builtin_popcount(header) & 1)) << 31;
}

}  // namespace

const Route *Source::route_of(const Packet &packet) const {
  List<Route> &all = const_cast<List<Route> &>(routes);
  for (int i = 0; i < all.size(); ++i) {
    if (all[i].table->id != -1 && all[i].table->id != packet.id) continue;
    return &all[i];
  }
  char name[120];
  channel->describe(name, int(sizeof(name)));
  if (packet.id < 0) fail(Site{"aie.dma_bd", channel->line}, "%s has no flow: add aie.flow for it", name);
  fail(Site{"aie.dma_bd", channel->line}, "%s has no flow for packets of id %d: add aie.packet_flow for it", name, packet.id);
}

void Source::send(const Packet &packet, i64) {
  reading_ = route_of(packet);
  header_ = header_of(packet, channel->table->place);
  channel->run.ready(this);
}

i64 Source::room(const Route &route) const {
  i64 least = i64(1) << 40;
  for (int i = 0; i < route.table->sinks; ++i) {
    const i64 room = route.sinks[i]->room();
    least = room < least ? room : least;
  }
  return least;
}

// The header goes on from switch to switch, on all branches of its way, and holds each arbiter that it has come to.
bool Source::enter_arbiters(const Route &route) {
  const int *const parents = channel->array->table.route_parents + route.table->first_arbiter;
  const i64 now = channel->run.time();
  i64 next = -1;
  bool is_through = true;
  for (int k = 0; k < route.table->arbiters; ++k) {
    Arbiter &arbiter = *route.arbiters[k];
    const i64 here = parents[k] < 0 ? now : entered_[parents[k]] < 0 ? -1 : entered_[parents[k]] + Cycles::kHop;
    if (entered_[k] < 0 && here >= 0 && here <= now) {
      if (!arbiter.holder) arbiter.holder = this;
      if (arbiter.holder == this) entered_[k] = now > arbiter.free_at ? now : arbiter.free_at;
      else arbiter.wait(this);
    }
    const i64 after = entered_[k] >= 0 ? entered_[k] + Cycles::kHop : here;
    is_through = is_through && entered_[k] >= 0 && after <= now;
    if (after > now && (next < 0 || after < next)) next = after;
  }
  if (next >= 0) channel->run.ready_at(this, next);
  return is_through;
}

bool Source::enter(const Route &route, uint32_t header) {
  if (!crossing) {
    for (int k = 0; k < route.table->arbiters; ++k) entered_.push(-1);
  }
  crossing = &route;
  if (has_header_) return true;
  if (!enter_arbiters(route)) return false;
  if (route.table->id >= 0) {
    const SinkTable *const table = channel->array->table.route_sinks + route.table->first_sink;
    for (int i = 0; i < route.table->sinks; ++i) {
      if (table[i].keeps_header && route.sinks[i]->room() < 4) return false;
    }
    for (int i = 0; i < route.table->sinks; ++i) {
      if (table[i].keeps_header) route.sinks[i]->accept(reinterpret_cast<const char *>(&header), 4, 0);
    }
  }
  return has_header_ = true;
}

void Arbiter::wait(Source *source) {
  for (int i = 0; i < waiters.size(); ++i) {
    if (waiters[i] == source) return;
  }
  waiters.push(source);
}

// The lowest port, however long others have waited: hw_verdicts stress_s30_old hangs so, and neither by turns nor in the order
// in which they came; stress_s105_old rules out the highest.
int Arbiter::next_waiter() const {
  List<Source *> &all = const_cast<List<Source *> &>(waiters);
  int next = 0;
  for (int k = 1; k < all.size(); ++k) {
    if (all[k]->port_at(*this) < all[next]->port_at(*this)) next = k;
  }
  return next;
}

int Source::port_at(const Arbiter &arbiter) const {
  for (int k = 0; k < crossing->table->arbiters; ++k) {
    if (crossing->arbiters[k] == &arbiter) return channel->array->table.route_ports[crossing->table->first_arbiter + k];
  }
  return 0;
}

void Arbiter::leave(Source *source, i64 at) {
  int kept = 0;
  for (int i = 0; i < waiters.size(); ++i) {
    if (waiters[i] != source) waiters[kept++] = waiters[i];
  }
  waiters.shrink(kept);
  if (holder != source) return;
  holder = nullptr;
  free_at = at;
  if (waiters.size() == 0) return;
  const int next = next_waiter();
  holder = waiters[next];
  for (int k = next + 1; k < waiters.size(); ++k) waiters[k - 1] = waiters[k];
  waiters.shrink(waiters.size() - 1);
  holder->channel->run.ready_at(holder, at);
}

void Source::leave(const Route &route) {
  const int *const parents = channel->array->table.route_parents + route.table->first_arbiter;
  for (int k = 0; k < route.table->arbiters; ++k) {
    // The last word passes a switch later than those before it.
    i64 at = channel->run.time();
    for (int before = parents[k]; before >= 0; before = parents[before]) at += Cycles::kHop;
    if (channel->run.trace && entered_[k] >= 0) channel->run.trace->had(*route.arbiters[k], *this, entered_[k], at);
    route.arbiters[k]->leave(this, at);
  }
  entered_.shrink(0);
  has_header_ = false;
  crossing = nullptr;
}

void Source::note_arbiters() {
  if (!crossing) return;
  for (int k = 0; k < crossing->table->arbiters; ++k) {
    if (entered_[k] >= 0) channel->run.trace->had(*crossing->arbiters[k], *this, entered_[k], -1);
  }
}

void Source::reset() {
  if (crossing) leave(*crossing);
  segments_.clear();
  held.drop(held.size());
  reading_ = nullptr;
  ending_ = kNone;
  busy_until_ = 0;
}

void Source::deliver(const Route &route, const char *data, i64 bytes, i64 late) {
  const SinkTable *const table = channel->array->table.route_sinks + route.table->first_sink;
  for (int i = 0; i < route.table->sinks; ++i) route.sinks[i]->accept(data, bytes, late + Cycles::kHop * table[i].switches);
}

namespace {

void fill(char *to, i64 bytes, uint32_t value) {
  for (i64 i = 0; i < bytes; ++i) to[i] = char(value >> i % 4 * 8);
}

}  // namespace

// Sends bytes straight from memory to the receivers.
void Source::move(const Route &route, i64 bytes) {
  static constexpr i64 kScratch = 4096;
  char scratch[kScratch];
  Cursor &cursor = channel->cursor;
  for (i64 sent = 0; sent < bytes;) {
    char *from;
    i64 count = cursor.peek(bytes - sent, &from);
    if (from && (count >= kScratch || count == bytes - sent)) {
      deliver(route, from, count, sent / 4);
      cursor.advance(count);
    } else {
      i64 gathered = 0;
      while (gathered < bytes - sent && gathered < kScratch) {
        const i64 left = bytes - sent - gathered, most = left < kScratch - gathered ? left : kScratch - gathered;
        count = cursor.peek(most, &from);
        if (from) memcpy(scratch + gathered, from, size_t(count));
        else fill(scratch + gathered, count, channel->table->pad_value);
        cursor.advance(count);
        gathered += count;
      }
      deliver(route, scratch, gathered, sent / 4);
      count = gathered;
    }
    sent += count;
    channel->transferred += count;
  }
}

// Words have gone as far as they could: they are on their way for as many cycles.
void Source::pump() {
  Run &run = channel->run;
  if (run.time() < busy_until_) return run.ready_at(this, busy_until_);
  end_packet();
  const bool is_held = !segments_.empty();
  const Route *const route = is_held ? segments_.front().route : reading_;
  if (route && enter(*route, is_held ? segments_.front().header : header_)) {
    const i64 left = is_held ? segments_.front().bytes : channel->cursor.left, room_now = room(*route);
    const i64 count = room_now < left ? room_now : left;
    if (is_held) {
      deliver(*route, held.data(), count, 0);
      held.drop(count);
      segments_.front().bytes -= count;
    } else {
      move(*route, count);
    }
    if (count == left) ending_ = is_held ? kHeld : kRead;
    if (run.trace && count > 0) run.trace->moved(*this, count);
    busy_until_ = run.time() + (count + 3) / 4;
    if (count > 0 || ending_ != kNone) run.ready_at(this, busy_until_);
  }
  if (ending_ != kRead) read_on();
}

void Source::end_packet() {
  const auto ending = ending_;
  ending_ = kNone;
  if (ending == kHeld && segments_.front().bytes == 0) {
    if (segments_.front().is_whole) leave(*crossing);
    segments_.pop();
  } else if (ending == kRead) {
    leave(*crossing);
    reading_ = nullptr;
    channel->is_transferring = false;
    channel->wake();
  }
}

// A shim reads ahead of what it sends.
void Source::read_on() {
  if (!reading_ || held.size() >= read_ahead) return;
  Cursor &cursor = channel->cursor;
  i64 count = read_ahead - held.size();
  count = count < cursor.left ? count : cursor.left;
  const bool goes_on = !segments_.empty() && !segments_[segments_.size() - 1].is_whole;
  if (!goes_on) segments_.push(Segment{reading_, header_, 0, false});
  Segment &segment = segments_[segments_.size() - 1];
  segment.bytes += count;
  for (i64 bytes = count; bytes > 0;) {
    char *from;
    const i64 part = cursor.peek(bytes, &from);
    if (from) held.push(from, part);
    cursor.advance(part);
    bytes -= part;
  }
  if (cursor.left > 0) return;
  segment.is_whole = true;
  reading_ = nullptr;
  channel->is_transferring = false;
  // A word a cycle comes out of the host's memory, those that have gone on before too.
  const i64 now = channel->run.time();
  channel->run.ready_at(channel, (now > busy_until_ ? now : busy_until_) + (count + 3) / 4);
}

const Arbiter *Source::blocking_arbiter() const {
  if (!crossing || has_header_) return nullptr;
  List<i64> &entered = const_cast<List<i64> &>(entered_);
  for (int k = 0; k < crossing->table->arbiters; ++k) {
    const Arbiter *const arbiter = crossing->arbiters[k];
    if (entered[k] < 0 && arbiter->holder && arbiter->holder != this) return arbiter;
  }
  return nullptr;
}

const Sink *Source::blocking_sink() const {
  if (!crossing || blocking_arbiter()) return nullptr;
  for (int i = 0; i < crossing->table->sinks; ++i) {
    if (crossing->sinks[i]->room() == 0) return crossing->sinks[i];
  }
  return nullptr;
}

}  // namespace vnpu::aie
