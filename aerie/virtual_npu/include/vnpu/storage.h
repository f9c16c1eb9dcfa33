// Memory of programs with channels: growing arrays, the blocks between a put and its gets, and blocks that stay for the next
// points of a launch.
#pragma once

#include <pthread.h>

#include "vnpu/memory.h"

namespace vnpu {

// A growing array of plain values.
template <class T>
class List {
 public:
  List() = default;
  List(const List &) = delete;
  List &operator=(const List &) = delete;
  ~List() {
    if (items_) pool_free(items_);
  }
  int size() const { return size_; }
  T &operator[](int i) { return items_[i]; }
  void push(const T &item) {
    if (size_ == capacity_) grow();
    items_[size_++] = item;
  }
  void shrink(int size) { size_ = size; }

 private:
  void grow() {
    capacity_ = capacity_ ? 2 * capacity_ : 8;
    T *const larger = static_cast<T *>(pool_allocate(capacity_ * i64(sizeof(T))));
    if (items_) {
      __builtin_memcpy(larger, items_, size_t(size_) * sizeof(T));
      pool_free(items_);
    }
    items_ = larger;
  }

  T *items_ = nullptr;
  int size_ = 0, capacity_ = 0;
};

// A growing array that mostly has one element.
template <class T>
class SmallList {
 public:
  int size() const { return size_; }
  T &operator[](int i) { return i == 0 ? first_ : others_[i - 1]; }
  void push(const T &item) {
    if (size_++ == 0) first_ = item;
    else others_.push(item);
  }
  void clear() {
    size_ = 0;
    others_.shrink(0);
  }

 private:
  T first_{};
  List<T> others_;
  int size_ = 0;
};

// ---- blocks ----

// A dense block of elements between a put and its gets. All receivers share it; the last one frees it.
class SharedBlock {
 public:
  SharedBlock() = default;
  SharedBlock(Site site, const Access &from);
  explicit operator bool() const { return bool(shared_); }
  char *data() const { return reinterpret_cast<char *>(shared_.get()) + kHeader; }
  // `count` of its `all` elements, from `first` on.
  Access part(i64 all, int element, i64 first, i64 count) const { return run(data(), all, element, first, count); }
  // The same for other memory. With checks, one byte for each element follows all elements.
  static Access run(char *data, i64 all, int element, i64 first, i64 count) {
    Access part = dense(data + first * element, count, element);
#if VNPU_CHECKS
    part.flags = reinterpret_cast<uint8_t *>(data + all * element) + first;
#else
    (void)all;
#endif
    return part;
  }
  static i64 bytes(i64 count, int element) { return count * (element + (kChecks ? 1 : 0)); }

 private:
  static constexpr i64 kHeader = 64;
  // In front of the elements.
  struct Shared {
    static void operator delete(void *block) { pool_free(block); }
    int holders;
  };
  SharedPtr<Shared> shared_;
};

// Caches blocks, in order, in memory that stays until the launch ends. Points of a launch that read the same elements share one
// block, which is stored at its second request. A block that one point did not use is freed when the next point starts. So the
// blocks fit the caches, and new blocks reuse their memory.
class RetainedBlocks {
 public:
  static void *operator new(size_t bytes) { return pool_allocate(i64(bytes)); }
  static void operator delete(void *retained) { pool_free(retained); }
  void begin_point();
  SharedBlock block(Site site, const Access &from);

 private:
  friend class Launch;
  static constexpr int kDims = 4, kEntries = 1024;
  static constexpr i64 kBytes = 1 << 22;  // a core's share of the caches
  struct alignas(64) Entry {
    const char *first = nullptr;  // this and the fields below identify the access
    i64 count;
    int element, rank;
    i64 sizes[kDims], strides[kDims];
    SharedBlock shared_block;
    bool is_used;  // by the present point, or by the one before if the present point has just started
    bool equals(const Access &access) const;
    void remember(const Access &access);
    i64 bytes() const { return count * element; }
  };
  void drop(Entry &entry);

  Entry entries_[kEntries] = {};
  List<Entry *> known_;
  i64 bytes_ = 0;
  RetainedBlocks *next_ = nullptr;
};

struct Strand;

// The state that all points of a launch share.
class Launch {
 public:
  Launch() = default;
  explicit Launch(const Strand *outer) : outer(outer) {}
  Launch(const Launch &) = delete;
  ~Launch();
  // acquire() gives one point blocks that no other thread uses; release() returns them for the next point.
  RetainedBlocks *acquire();
  void release(RetainedBlocks *retained);

  const Strand *const outer = nullptr;  // what runs the launch, in programs with checks

 private:
  pthread_mutex_t taking_ = PTHREAD_MUTEX_INITIALIZER;
  RetainedBlocks *free_ = nullptr;
};

// The memory of a tile's buffer: a block that a channel lends it, or its own memory. The channel copies into its own memory
// what it cannot lend.
template <class T>
class LentBuffer {
 public:
  explicit LentBuffer(T *own) : own_(own) {}
  // Before a get: the own memory, for the channel to copy into.
  T *take_back() {
    shared_block = SharedBlock();
    return own_;
  }
  // After the get: where the elements are.
  T *block() const { return shared_block ? reinterpret_cast<T *>(shared_block.data()) : own_; }

  SharedBlock shared_block;

 private:
  T *const own_;
};

// The same for a buffer that only passes blocks on. It points to a retained block, or to its own memory. Its gets and puts run
// one after the other.
class RelayBuffer {
 public:
  template <class T>
  explicit RelayBuffer(T *own) : own_(reinterpret_cast<char *>(own)) {}
  void point_to(const Access &block) {
    block_ = block;
    is_elsewhere_ = true;
  }
  // The own memory has the elements now.
  void hold() { is_elsewhere_ = false; }
  // Makes a put that would read the own memory read the block instead. If no access pattern can do that, copies the block to
  // the own memory first.
  void materialize(Site site, Access &side);

 private:
  char *const own_;
  Access block_;
  bool is_elsewhere_ = false;
};

// The part of a get that has arrived, if several puts fill it.
struct PartialGet {
  PartialGet() = default;
  PartialGet(const PartialGet &) = delete;
  ~PartialGet() { drop(); }
  void drop() {
    if (!data) return;
    pool_free(data);
    data = nullptr;
    count = 0;
  }
  char *data = nullptr;
  i64 count = 0;
};

}  // namespace vnpu
