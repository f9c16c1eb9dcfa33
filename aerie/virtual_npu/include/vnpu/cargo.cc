// Blocks on their way, and those that a launch keeps.
#include "vnpu/cargo.h"

namespace vnpu {

Cargo::Cargo(Site site, const Access &from) {
  auto *const made = static_cast<Shared *>(pool_take(kHeader + bytes(from.count, from.element)));
  made->holders = 1;
  shared_ = Held<Shared>(made);
  vnpu::copy(site, part(from.count, from.element, 0, from.count), from);
}

bool Kept::Entry::is(const Access &access) const {
  if (first != access.first || count != access.count || element != access.element || rank != access.rank) return false;
  for (int d = 0; d < rank; ++d) {
    if (sizes[d] != access.sizes[d] || strides[d] != access.strides[d]) return false;
  }
  return true;
}

void Kept::Entry::know(const Access &access) {
  first = access.first;
  count = access.count;
  element = access.element;
  rank = access.rank;
  for (int d = 0; d < rank; ++d) {
    sizes[d] = access.sizes[d];
    strides[d] = access.strides[d];
  }
}

void Kept::begin_point() {
  int left = 0;
  for (int i = 0; i < known_.size(); ++i) {
    Entry &entry = *known_[i];
    if (entry.is_used) known_[left++] = &entry;
    else drop(entry);
    entry.is_used = false;
  }
  known_.shrink(left);
}

void Kept::drop(Entry &entry) {
  if (entry.cargo) bytes_ -= entry.bytes();
  entry.cargo = Cargo();
  entry.first = nullptr;
}

Cargo Kept::block(Site site, const Access &from) {
  Entry &entry = entries_[(reinterpret_cast<uintptr_t>(from.first) * 0x9e3779b97f4a7c15u >> 32) % kEntries];
  const bool is_new = !entry.first && from.rank <= kDims;
  if (is_new) {
    entry.know(from);
    known_.push(&entry);
  } else if (!entry.is(from)) {
    return Cargo(site, from);  // another block's place
  }
  entry.is_used = true;
  if (entry.cargo) return entry.cargo;
  const Cargo made(site, from);
  if (!is_new && bytes_ + entry.bytes() <= kBytes) {
    entry.cargo = made;
    bytes_ += entry.bytes();
  }
  return made;
}

Launch::~Launch() {
  while (Kept *const kept = free_) {
    free_ = kept->next_;
    delete kept;
  }
}

Kept *Launch::take() {
  pthread_mutex_lock(&taking_);
  Kept *const kept = free_;
  if (kept) free_ = kept->next_;
  pthread_mutex_unlock(&taking_);
  return kept ? kept : new Kept;
}

void Launch::give(Kept *kept) {
  pthread_mutex_lock(&taking_);
  kept->next_ = free_;
  free_ = kept;
  pthread_mutex_unlock(&taking_);
}

void Relay::direct(Site site, Access &side) {
  if (!is_elsewhere_ || read_from(block_, own_, side)) return;
  vnpu::copy(site, dense(own_, block_.count, block_.element), block_);
  hold();
}

}  // namespace vnpu
