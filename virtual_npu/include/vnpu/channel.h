// Channels between tiles and engines: bundles of bounded queues, and the two sides of a transfer that meet there.
#pragma once

#include <initializer_list>

#include "vnpu/island.h"

namespace vnpu {

// One side of a transfer that has arrived at its channel, and whom to wake when it is through.
struct Transfer {
  Site site;
  const Where &where;
  Access side;
  Island &island;
  Strand &strand;
  Process::Handle process = nullptr;
  Task *task = nullptr;
  Cargo *loan = nullptr;   // of a get that does with a block of others
  Relay *relay = nullptr;  // of a get or put whose buffer passes blocks on
  Transfer *next = nullptr;
  Collected collected{};
  int recorded = -1;  // its number in the trace

  bool pass() {
#if VNPU_CHECKS
    record::through(recorded);
#endif
    return true;
  }
  void complete();
};

// A channel is a stream of elements. Mostly a get takes the block of one put; the compiler also folds a loop of puts or
// gets into one, so a get may take a part of a block, or the blocks of several puts.
class Channel {
 public:
  // How many blocks a put may be ahead of its get, per index: the two buffers of a ping-pong pair.
  static constexpr int kCapacity = 2;

  // `to` has the extents on the receiving side: those of `from`, or larger where one put feeds several gets.
  Channel(Island &island, const char *name, std::initializer_list<i64> from, std::initializer_list<i64> to);
  Channel(const Channel &) = delete;
  ~Channel();

  i64 put_index(Site site, std::initializer_list<i64> indices) const { return index(site, indices, from_); }
  i64 get_index(Site site, std::initializer_list<i64> indices) const { return index(site, indices, to_); }

  // True when the block went through; else the transfer is queued and completes later.
  bool put(Transfer &transfer, i64 index);
  bool get(Transfer &transfer, i64 index);

  // Fails when blocks were sent that nobody took.
  void refuse_leftovers() const;

 private:
  struct Shape {
    int rank = 0;
    i64 extents[kMaxRank];
    i64 count = 1;
  };
  struct Block {
    Cargo cargo;  // none where it stays where it was
    Access side;  // where that is; of a cargo its count and element alone
    Site site;
    Where where;
    Mark mark;   // what the sender did before
    i64 taken;   // elements that gets have taken so far
    Site taker;  // the last of them
    void fill(const Transfer &put, const Cargo &made, const Mark &sent);
  };
  struct Queue {
    Transfer *first = nullptr, *last = nullptr;
    void push(Transfer &transfer);
    Transfer *pop();
  };
  struct Inlet {
    Queue puts;
    i64 blocks = 0;        // sent so far
    FewOf<i64> receivers;  // the outlets that get them, in order
  };
  struct Outlet {
    Queue gets;
    Block blocks[kCapacity];
    int next = 0, full = 0;  // the first one that waits, and how many do
    i64 source = 0;

    Block &waiting(int i) { return blocks[(next + i) % kCapacity]; }
    // The first one is used up.
    void drop() {
      blocks[next].cargo = Cargo();
      next = (next + 1) % kCapacity;
      --full;
    }
  };

  i64 index(Site site, std::initializer_list<i64> indices, const Shape &shape) const;
  bool deliver(Transfer &put, i64 index);
  bool serve(Outlet &outlet, Transfer &get);
  void load(Cargo &cargo, Site site, const Access &from);
  void hand_over(Transfer &get, const Access &block, const Mark &mark);
  void hand_over(Transfer &get, const Cargo &cargo, const Mark &mark);
  static bool collect(Transfer &get, const Access &part);
  i64 source_of(i64 outlet) const;
  void record_arrival(Transfer &transfer, bool is_put, i64 index) const;
  void record_delivery(i64 outlet, const Access &side) const;
  static int describe_index(char *text, int capacity, const Shape &shape, i64 index);

  friend class Deadlock;
  Island &island_;
  const char *const name_;
  Shape from_, to_;
  Inlet *inlets_;
  Outlet *outlets_;
};

// A put or get that a sequencer issued.
struct TransferTask final : Task {
  TransferTask(Island &island, Site site, const Where &where, Channel &channel, i64 index, const Access &side, bool is_put)
      : Task(island), transfer{site, where, side, island, strand}, channel(channel), index(index), is_put(is_put) {
    transfer.task = this;
  }
  void start() override {
    if (is_put && transfer.relay) transfer.relay->direct(site, transfer.side);
    if (is_put ? channel.put(transfer, index) : channel.get(transfer, index)) finish();
  }
  Transfer transfer;
  Channel &channel;
  i64 index;
  bool is_put;
};

// What `co_await put(...)` and `co_await get(...)` wait with, in tiles.
struct TransferAwaiter : Transfer {
  Channel &channel;
  i64 index;
  bool is_put;
  bool await_ready() { return is_put ? channel.put(*this, index) : channel.get(*this, index); }
  void await_suspend(Process::Handle handle) { process = handle; }
  void await_resume() const {}
};

inline TransferAwaiter put(Island &island, const Where &where, Site site, Channel &channel, i64 index, const Access &side) {
  return TransferAwaiter{{site, where, side, island, *current_strand()}, channel, index, true};
}
inline TransferAwaiter get(Island &island, const Where &where, Site site, Channel &channel, i64 index, const Access &side,
                           Cargo *loan = nullptr) {
  return TransferAwaiter{{.site = site, .where = where, .side = side, .island = island, .strand = *current_strand(), .loan = loan},
                         channel, index, false};
}

}  // namespace vnpu
