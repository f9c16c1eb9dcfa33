// The records of the order checks in a run: accesses, issue orders, task loops. For happens_before.cc, which orders operations,
// and races.cc, which compares accesses.
#pragma once

#include <stdlib.h>

#include "vnpu/happens_before.h"

namespace vnpu {

// Plain values that do not move until the run ends, numbered from 1. Several threads add values concurrently.
template <class T>
class Store {
 public:
  T &operator[](uint32_t number) { return blocks_[(number - 1) / kBlock][(number - 1) % kBlock]; }

  // Returns the number after `last`, the thread's last one: threads take numbers in blocks. Returns 0 when all are used up.
  uint32_t add(uint32_t &last) {
    if (last % kBlock == 0) {
      if (__atomic_load_n(&used_, __ATOMIC_RELAXED) >= max_count()) return 0;
      const int block = __atomic_fetch_add(&used_, 1, __ATOMIC_RELAXED);
      T *const values = block < max_count() ? static_cast<T *>(malloc(sizeof(T) * kBlock)) : nullptr;
      if (!values) return 0;
      __atomic_store_n(&blocks_[block], values, __ATOMIC_RELEASE);
      last = uint32_t(block) * kBlock;
    }
    return ++last;
  }

  // Of a store whose values have the numbers of another store's.
  bool has(uint32_t number) const { return number && blocks_[(number - 1) / kBlock]; }
  T &at(uint32_t number) {
    T *&block = blocks_[(number - 1) / kBlock];
    T *known = __atomic_load_n(&block, __ATOMIC_ACQUIRE);
    if (!known) {
      T *const fresh = static_cast<T *>(calloc(kBlock, sizeof(T)));
      if (__atomic_compare_exchange_n(&block, &known, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) known = fresh;
      else free(fresh);
      int used = __atomic_load_n(&used_, __ATOMIC_RELAXED);
      const int needed = int((number - 1) / kBlock) + 1;
      while (used < needed && !__atomic_compare_exchange_n(&used_, &used, needed, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
      }
    }
    return known[(number - 1) % kBlock];
  }

  // Drops all values and sets the capacity, rounded up to whole blocks.
  void clear(i64 max_count) {
    for (int block = 0; block < used_ && block < kBlocks; ++block) {
      free(blocks_[block]);
      blocks_[block] = nullptr;
    }
    used_ = 0;
    unused_blocks_ = max_count < i64(kBlocks) * kBlock ? kBlocks - int((max_count + kBlock - 1) / kBlock) : 0;
  }

 private:
  static constexpr int kBlock = 1024, kBlocks = 1 << 19;
  // Everything is zero at the start: otherwise every program file would have 4 MB more.
  T *blocks_[kBlocks] = {};
  int used_ = 0, unused_blocks_ = 0;

  int max_count() const { return kBlocks - unused_blocks_; }
};

// An access that happened.
struct Event {
  Site site;
  ExecutionPlace where;
  const IssueOrder *lineage;
  uint32_t phase, task_loop, process, chain, time;
  bool is_task;
  Engine by;
  bool is_reported = false;  // that an access is not ordered after it
};

// A task loop: its launch point, and the moment of the task loop around it at which it runs.
struct Root {
  ExecutionPlace where;
  int depth;
  uint32_t task_loop, chain, time;
};
// The put that sent the block of a get.
struct Sender {
  Site site;
  ExecutionPlace where;
};
extern Store<Event> events;
extern Store<IssueOrder> lineages;
extern Store<Root> roots;
extern Store<Sender> senders;  // by the number of the get's event; only in a run that traces an element

extern const char *traced;  // an element of an argument, or null
extern char *traced_writer;  // what wrote it last
extern bool races_are_notes;
extern i64 unchecked;  // accesses without a record, for lack of memory
extern bool lost_track;  // no memory for the body and task loop of a strand

// The numbers that a thread took last from the stores.
struct LastNumbers {
  uint32_t event = 0, lineage = 0, root = 0, generation = 0;
};
LastNumbers &this_thread();

// Goes outwards from both until it finds two operations of one body. Returns false if there are none.
bool find_siblings(const IssueOrder *&earlier, const IssueOrder *&later);

}  // namespace vnpu
