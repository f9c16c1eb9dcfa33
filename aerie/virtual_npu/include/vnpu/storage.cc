// Blocks between puts and gets, and the blocks that a launch retains.
#include "vnpu/storage.h"

namespace vnpu {

SharedBlock::SharedBlock(Site site, const Access &from) {
  auto *const made = static_cast<Shared *>(pool_allocate(kHeader + bytes(from.count, from.element)));
  made->holders = 1;
  shared_ = SharedPtr<Shared>(made);
  vnpu::copy(site, part(from.count, from.element, 0, from.count), from);
}

bool RetainedBlocks::Entry::equals(const Access &access) const {
  if (first != access.first || count != access.count || element != access.element || rank != access.rank) return false;
  for (int d = 0; d < rank; ++d) {
    if (sizes[d] != access.sizes[d] || strides[d] != access.strides[d]) return false;
  }
  return true;
}

void RetainedBlocks::Entry::remember(const Access &access) {
  first = access.first;
  count = access.count;
  element = access.element;
  rank = access.rank;
  for (int d = 0; d < rank; ++d) {
    sizes[d] = access.sizes[d];
    strides[d] = access.strides[d];
  }
}

void RetainedBlocks::begin_point() {
  int left = 0;
  for (int i = 0; i < known_.size(); ++i) {
    Entry &entry = *known_[i];
    if (entry.is_used) known_[left++] = &entry;
    else drop(entry);
    entry.is_used = false;
  }
  known_.shrink(left);
}

void RetainedBlocks::drop(Entry &entry) {
  if (entry.shared_block) bytes_ -= entry.bytes();
  entry.shared_block = SharedBlock();
  entry.first = nullptr;
}

SharedBlock RetainedBlocks::block(Site site, const Access &from) {
  Entry &entry = entries_[(reinterpret_cast<uintptr_t>(from.first) * 0x9e3779b97f4a7c15u >> 32) % kEntries];
  const bool is_new = !entry.first && from.rank <= kDims;
  if (is_new) {
    entry.remember(from);
    known_.push(&entry);
  } else if (!entry.equals(from)) {
    return SharedBlock(site, from);  // the entry belongs to another block
  }
  entry.is_used = true;
  if (entry.shared_block) return entry.shared_block;
  const SharedBlock made(site, from);
  if (!is_new && bytes_ + entry.bytes() <= kBytes) {
    entry.shared_block = made;
    bytes_ += entry.bytes();
  }
  return made;
}

Launch::~Launch() {
  while (RetainedBlocks *const retained = free_) {
    free_ = retained->next_;
    delete retained;
  }
}

RetainedBlocks *Launch::acquire() {
  pthread_mutex_lock(&taking_);
  RetainedBlocks *const retained = free_;
  if (retained) free_ = retained->next_;
  pthread_mutex_unlock(&taking_);
  return retained ? retained : new RetainedBlocks;
}

void Launch::release(RetainedBlocks *retained) {
  pthread_mutex_lock(&taking_);
  retained->next_ = free_;
  free_ = retained;
  pthread_mutex_unlock(&taking_);
}

void RelayBuffer::materialize(Site site, Access &side) {
  if (!is_elsewhere_ || read_from(block_, own_, side)) return;
  vnpu::copy(site, dense(own_, block_.count, block_.element), block_);
  hold();
}

}  // namespace vnpu
