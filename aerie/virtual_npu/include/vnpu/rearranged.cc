// Finds functions that only rearrange a buffer, by calling them.
#include "vnpu/rearranged.h"

#include <stdint.h>
#include <string.h>

#include "vnpu/entry.h"

namespace vnpu {

namespace {

constexpr i64 kNumbers = 1 << 16;  // that 16 bits hold
constexpr i64 kGuardElements = 64;        // elements on either side that a function must not change
constexpr uint16_t kUntouched = 0x5aa5;

// A label per element: all differ, and over all rounds an element gets every number, or nearly.
uint16_t label(i64 element, i64 count, i64 round) { return uint16_t((round * count + element) * 40503 + 77); }

// Where each element was, or empty.
std::vector<i64> moved(void (*function)(bf16 *), i64 count, i64 round) {
  Blocks blocks;
  uint16_t *const memory = blocks.alloc<uint16_t>(count + 2 * kGuardElements);
  for (i64 i = 0; i < count + 2 * kGuardElements; ++i) memory[i] = kUntouched;
  std::vector<i64> element(kNumbers, -1), from;
  for (i64 i = 0; i < count; ++i) element[memory[kGuardElements + i] = label(i, count, round)] = i;
  const uint32_t modes = exchange_modes(kFloor);
  function(reinterpret_cast<bf16 *>(memory + kGuardElements));
  if (exchange_modes(modes) != kFloor) return {};
  for (i64 i = 0; i < kGuardElements; ++i) {
    if (memory[i] != kUntouched || memory[kGuardElements + count + i] != kUntouched) return {};
  }
  for (i64 i = 0; i < count; ++i) {
    i64 &was = element[memory[kGuardElements + i]];
    if (was < 0) return {};
    from.push_back(was);
  }
  return from;
}

}  // namespace

std::vector<i64> rearranged(void (*function)(bf16 *), i64 count) {
  if (count > kNumbers) return {};
  const std::vector<i64> from = moved(function, count, 0);
  // Calls it twice, so that a function whose result changes with every call is found too.
  for (i64 round = 1; !from.empty() && round < 2 * kNumbers / count; ++round) {
    if (moved(function, count, round) != from) return {};
  }
  return from;
}

i64 Rearranged::place(i64 position, const std::vector<i64> &from, const Axes &buffer) const {
  if (position < 0 || position >= i64(from.size())) return -1;
  i64 rest = from[position], at = 0;
  for (int i = buffer.count - 1; i >= 0; --i) {
    at += rest % buffer.list[i].extent * buffer.list[i].first;
    rest /= buffer.list[i].extent;
  }
  return at;
}

Rearranged::Rearranged(void (*function)(bf16 *), const Axes &buffer, i64 start, const Axes &outer, const Axes &depth) {
  i64 count = 1;
  for (int i = 0; i < buffer.count; ++i) count *= buffer.list[i].extent;
  const std::vector<i64> from = rearranged(function, count);
  start_ = place(start, from, buffer);
  // Where elements are along the axes, in the buffer and in the operand, as if every axis had one step.
  std::vector<i64> positions{start}, places{start_};
  const auto walk = [&](const Axes &axes, i64 *steps) {
    for (int i = 0; i < axes.count; ++i) {
      if (axes.list[i].first == 0) continue;
      steps[i] = place(start + axes.list[i].first, from, buffer) - start_;
      const size_t inner = positions.size();
      for (i64 j = 1; j < axes.list[i].extent; ++j) {
        for (size_t at = 0; at < inner; ++at) {
          positions.push_back(positions[at] + j * axes.list[i].first);
          places.push_back(places[at] + j * steps[i]);
        }
      }
    }
  };
  if (start_ < 0) return;
  walk(outer, outer_);
  walk(depth, depth_);
  for (size_t i = 0; i < positions.size(); ++i) {
    if (place(positions[i], from, buffer) != places[i]) return;
  }
  can_read_operand_ = true;
}

Product Rearranged::as_a(Product product) const {
  product.a += start_;
  for (int i = 0; i < product.m.count; ++i) product.m.list[i].first += outer_[i];
  for (int i = 0; i < product.k.count; ++i) product.k.list[i].first += depth_[i];
  return product;
}

Product Rearranged::as_b(Product product) const {
  product.b += start_;
  for (int i = 0; i < product.n.count; ++i) product.n.list[i].first += outer_[i];
  for (int i = 0; i < product.k.count; ++i) product.k.list[i].second += depth_[i];
  return product;
}

}  // namespace vnpu
