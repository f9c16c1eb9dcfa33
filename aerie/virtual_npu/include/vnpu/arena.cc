// The buffers of a body in programs built with checks: allocated, freed, never freed.
#include <stdint.h>
#include <string.h>

#include <new>

#include "vnpu/check.h"

#if VNPU_SANITIZE
#include <sanitizer/asan_interface.h>
#endif

#include "vnpu/garbage.h"
#include "vnpu/memory.h"
#include "vnpu/record.h"

namespace vnpu {

namespace {
using ll = long long;
}  // namespace

// The buffer, then its elements, then one byte per element that says whether it is written.
struct Arena::Block : Buffer {
  using Buffer::Buffer;
  Block *previous = nullptr, *next = nullptr;
  i64 bytes() const { return count * element; }
};

void Arena::Chain::add(Block *block) {
  block->previous = last;
  block->next = nullptr;
  (last ? last->next : first) = block;
  last = block;
}

void Arena::Chain::remove(Block *block) {
  (block->previous ? block->previous->next : first) = block->next;
  (block->next ? block->next->previous : last) = block->previous;
}

namespace {

constexpr i64 aligned(i64 bytes) { return (bytes + 63) / 64 * 64; }

// Guard bytes before and behind every buffer, to catch accesses outside of it: a vector of 64 floats.
constexpr i64 kGap = 256;

#if VNPU_SANITIZE
constexpr i64 kGuard = 0;  // the sanitizer watches the gaps itself
void forbid(const char *data, i64 bytes) { __asan_poison_memory_region(data, size_t(bytes)); }
#else
constexpr i64 kGuard = kGap;
void forbid(const char *, i64) {}
#endif

// How much freed memory a body keeps.
constexpr i64 kRetainedBlocks = 256, kRetainedBytes = i64(4) << 20;

}  // namespace

Buffer *Arena::make(const BufferLabel &label, int element, std::initializer_list<i64> sizes, i64 count) {
  const i64 skew = label.skew > 0 ? label.skew : 0;
  const i64 header = aligned(sizeof(Block)) + kGap + skew, bytes = count * element;
  char *const data = static_cast<char *>(pool_allocate(header + bytes + kGap + count, label.site)) + header;
  // All ones is a NaN in every format, so that unwritten memory is easy to see.
  memset(data - kGap, 0xff, size_t(bytes + 2 * kGap));
  uint8_t *const written = reinterpret_cast<uint8_t *>(data + bytes + kGap);
  memset(written, 0, size_t(count));
  Block *const block = new (data - header) Block(label, data, element, sizes, count, written, kGuard);
  if (garbage_seed) {
    fill_with_garbage(data, bytes, uint64_t(label.site.line) * 4096 + uint64_t(block->maker.x * 64 + block->maker.y));
    block->mark_all();
  }
  forbid(data - kGap, kGap);
  forbid(data + bytes, kGap);
  live_.add(block);
  if (record::on()) record::allocated(*block);
  return block;
}

void Arena::drop(Chain &chain, Block *block) {
  chain.remove(block);
  block->~Block();
  pool_free(block);
}

Arena::~Arena() {
  while (live_.first) {
    if (record::on()) record::given_back(*live_.first);
    drop(live_, live_.first);
  }
  while (freed_.first) drop(freed_, freed_.first);
}

void Arena::take_back(Site site, Buffer &buffer) {
  buffer.check(site, "frees", buffer.base, buffer.base);
  check_settled(site, buffer);
  buffer.freed = site;
  Block *const block = static_cast<Block *>(&buffer);
  if (record::on()) record::given_back(*block);
  live_.remove(block);
  freed_.add(block);
  ++freed_count_;
  freed_bytes_ += block->bytes();
  while (freed_count_ > kRetainedBlocks || freed_bytes_ > kRetainedBytes) {
    --freed_count_;
    freed_bytes_ -= freed_.first->bytes();
    drop(freed_, freed_.first);
  }
}

void Arena::close() const {
  for (const Block *block = live_.first; block; block = block->next) {
    if (block->label.ends_with_body || block->ended.op) continue;
    i64 count = 0, bytes = 0;
    for (const Block *b = block; b; b = b->next) {
      if (&b->label != &block->label) continue;
      ++count;
      bytes += b->bytes();
    }
    const BufferText self(block->label);
    if (count > 1) {
      fail_as(Failure::kLeak, block->label.site,
              "%lld buffers (%lld bytes) of this allocation are never freed: add memref.dealloc of %s to the loop", ll(count),
              ll(bytes), self.text);
    }
    note(block->label.site, "%s is never freed (%lld bytes): add memref.dealloc, unless its core keeps it", self.text,
         ll(bytes));
  }
}

}  // namespace vnpu
