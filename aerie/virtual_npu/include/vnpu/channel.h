// Channels between tiles and engines: bundles of bounded queues, and the two sides of a transfer that meet there.
#pragma once

#include <initializer_list>

#include "vnpu/task_loop.h"

namespace vnpu {

// One side of a transfer at its channel, and the task or process that resumes when the transfer is complete.
struct Transfer {
  Site site{"", 0};
  const ExecutionPlace &where;
  TaskLoop &task_loop;
  Strand *strand = nullptr;
  Process::Handle process = nullptr;
  Task *task = nullptr;
  SharedBlock *loan = nullptr;   // of a get that can borrow a block
  RelayBuffer *relay = nullptr;  // of a get or put whose buffer passes blocks on
  Transfer *next = nullptr;
  PartialGet partial{};
  int recorded = -1;  // its number in the trace
  Access side{};

  bool pass() {
#if VNPU_CHECKS
    record::through(recorded);
#endif
    return true;
  }
  void complete();
};

// A channel is a stream of elements. Mostly a get takes the block of one put. The compiler also merges loops of puts or gets,
// so a get may take part of a block, or the blocks of several puts.
class Channel {
 public:
  // `to` has the extents on the receiving side: those of `from`, or larger where one put feeds several gets. The cores
  // themselves move what goes through a cascade.
  Channel(TaskLoop &task_loop, const char *name, std::initializer_list<i64> from, std::initializer_list<i64> to,
          bool is_cascade = false);
  Channel(const Channel &) = delete;
  ~Channel();

  i64 put_index(Site site, std::initializer_list<i64> indices) const { return index(site, indices, from_); }
  i64 get_index(Site site, std::initializer_list<i64> indices) const { return index(site, indices, to_); }

  // Returns true if the transfer is complete; otherwise it is queued and completes later.
  bool put(Transfer &transfer, i64 index);
  bool get(Transfer &transfer, i64 index);

  // Fails if a block was sent that no get took.
  void refuse_leftovers() const;

 private:
  struct Shape {
    int rank = 0;
    i64 extents[kMaxRank];
    i64 count = 1;
  };
  // A block that was put and waits for its gets; all receivers share it.
  struct Block {
    static void *operator new(size_t bytes) { return pool_allocate(i64(bytes)); }
    static void operator delete(void *block) { pool_free(block); }
    Block(const Transfer &put, const SharedBlock &made, const ClockSnapshot &sent);
    int holders = 1;
    SharedBlock shared_block;  // empty if the elements stay in the sender's buffer
    ClockSnapshot mark;    // what the sender knew when it put the block
    Site site;
    Access side;  // the sender's access pattern; only count and element if the block is copied
    ExecutionPlace where;
  };
  using Waiting = SharedPtr<Block>;
  struct Queue {
    Transfer *first = nullptr, *last = nullptr;
    void push(Transfer &transfer);
    Transfer *pop();
  };
  struct SenderSide {
    Queue puts;
    i64 blocks = 0;        // sent so far
    SmallList<i64> receivers;  // the receivers' indices, in order
  };
  // Kept small: kernels that run between two steps leave few of its cache lines.
  struct alignas(64) ReceiverSide {
    static constexpr int kBlocks = TaskLoop::kMaxPendingPuts;
    Queue gets;
    int next = 0, full = 0;  // the first waiting block, and the number of waiting blocks
    int taker = 0;           // the line of the last get that took a part of the first block
    i64 taken = 0;           // elements of the first block that gets have taken
    i64 source = 0;
    Waiting blocks[kBlocks];

    Block &first() { return *blocks[next]; }
    void push(const Waiting &block) { blocks[(next + full++) % kBlocks] = block; }
    // Drops the first block, which is used up.
    void drop() {
      blocks[next] = Waiting();
      next = (next + 1) % kBlocks;
      --full;
      taken = 0;
    }
  };

  i64 index(Site site, std::initializer_list<i64> indices, const Shape &shape) const {
    i64 flat = 0;
    bool is_inside = int(indices.size()) == shape.rank;
    for (int d = 0; is_inside && d < int(indices.size()); ++d) {
      const i64 i = indices.begin()[d], extent = shape.extents[d];
      is_inside = uint64_t(i) < uint64_t(extent);
      flat = flat * extent + i;
    }
    return is_inside ? flat : index_of_any(site, indices, shape);
  }
  i64 index_of_any(Site site, std::initializer_list<i64> indices, const Shape &shape) const;
  bool deliver(Transfer &put, i64 index);
  bool serve(ReceiverSide &outlet, Transfer &get);
  void load(SharedBlock &shared_block, Site site, const Access &from);
  void hand_over(Transfer &get, const Access &block, const ClockSnapshot &mark);
  void hand_over(Transfer &get, const SharedBlock &shared_block, const ClockSnapshot &mark);
  static bool collect(Transfer &get, const Access &part);
  i64 source_of(i64 outlet) const;
  void record_arrival(Transfer &transfer, bool is_put, i64 index) const;
  void record_delivery(i64 outlet, const Access &side) const;
  static int describe_index(char *text, int capacity, const Shape &shape, i64 index);

  friend class Deadlock;
  TaskLoop &task_loop_;
  const int capacity_;  // of each receiver side, in blocks
  const char *const name_;
  const Engine mover_;
  Shape from_, to_;
  SenderSide *inlets_;
  ReceiverSide *outlets_;
};

// A put or get that a sequencer issued.
struct TransferTask final : Task {
  TransferTask(TaskLoop &task_loop, Site site, const ExecutionPlace &where, Channel &channel, i64 index, const Access &side,
               bool is_put)
      : Task(task_loop),
        transfer{.site = site, .where = where, .task_loop = task_loop, .strand = &strand, .side = side},
        channel(channel),
        index(index),
        is_put(is_put) {
    transfer.task = this;
  }
  void start() override {
    if (is_put && transfer.relay) transfer.relay->materialize(site, transfer.side);
    if (is_put ? channel.put(transfer, index) : channel.get(transfer, index)) finish();
  }
  Transfer transfer;
  Channel &channel;
  i64 index;
  bool is_put;
};

// The puts and gets of a tile, one after the other. The tile waits for each: `co_await` it.
struct TileTransfer : Transfer {
  TileTransfer(TaskLoop &task_loop, const ExecutionPlace &where) : Transfer{.where = where, .task_loop = task_loop} {}
  void put(Site site, Channel &channel, i64 index, const Access &side) { begin(site, channel, index, side, true, nullptr); }
  void get(Site site, Channel &channel, i64 index, const Access &side, SharedBlock *loan = nullptr) {
    begin(site, channel, index, side, false, loan);
  }
  bool await_ready() { return is_put ? channel->put(*this, index) : channel->get(*this, index); }
  void await_suspend(Process::Handle handle) { process = handle; }
  void await_resume() const {}

  Channel *channel = nullptr;
  i64 index = 0;
  bool is_put = false;

 private:
  // Reuses the memory of the transfer before: a kernel that ran in between leaves little of a body's frame in the cache.
  void begin(Site site, Channel &channel, i64 index, const Access &side, bool is_put, SharedBlock *loan) {
    this->site = site;
    this->channel = &channel;
    this->index = index;
    this->is_put = is_put;
    this->loan = loan;
    this->side = side;
    strand = current_strand();
    partial.drop();
  }
};

}  // namespace vnpu
