// Measures how fast memory can be read: every thread adds up a part of it, eight vectors at a time, with prefetches, as in our
// code that reads streams, or without.

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "vnpu/prefetch.h"

typedef std::uint64_t Words __attribute__((vector_size(64)));

namespace {

constexpr std::int64_t kStep = 8 * sizeof(Words);

template <bool ASKS>
void add_up(const char* from, std::int64_t nbytes, std::uint64_t* result) {
  Words sums[8] = {};
  for (std::int64_t at = 0; at + kStep <= nbytes; at += kStep)
    for (int i = 0; i < 8; ++i) {
      const char* const line = from + at + i * sizeof(Words);
      if (ASKS) vnpu::prefetch_ahead(line);
      Words words;
      std::memcpy(&words, line, sizeof words);
      sums[i] += words;
    }
  for (const Words& sum : sums)
    for (int lane = 0; lane < 8; ++lane) *result += sum[lane];
}

}  // namespace

extern "C" __attribute__((visibility("default"))) std::uint64_t read_memory(const char* from, std::int64_t nbytes,
                                                                            std::int64_t threads, std::int64_t asks) {
  const auto add = asks ? add_up<true> : add_up<false>;
  std::vector<std::uint64_t> sums(threads, 0);
  std::vector<std::thread> helpers;
  const std::int64_t part = nbytes / threads;
  for (std::int64_t i = 0; i < threads; ++i) helpers.emplace_back(add, from + i * part, part, &sums[i]);
  std::uint64_t total = 0;
  for (std::int64_t i = 0; i < threads; ++i) {
    helpers[i].join();
    total += sums[i];
  }
  return total;
}
