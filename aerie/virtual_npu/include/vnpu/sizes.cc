#include "vnpu/sizes.h"

#include <stdio.h>
#include <unistd.h>

#include "vnpu/entry.h"

namespace vnpu {

namespace {

using ll = long long;

constexpr i64 kLargest = INT64_MAX;

// Arithmetic that stops at the largest number.
i64 product(i64 a, i64 b) {
  i64 result;
  if (!__builtin_mul_overflow(a, b, &result)) return result;
  return (a < 0) == (b < 0) ? kLargest : -kLargest;
}
i64 sum(i64 a, i64 b) {
  i64 result;
  if (!__builtin_add_overflow(a, b, &result)) return result;
  return a < 0 ? -kLargest : kLargest;
}

// The product of sizes; refuses a negative one.
i64 count_of(Site site, std::initializer_list<i64> sizes) {
  i64 count = 1;
  bool is_empty = false;
  int dimension = 0;
  for (const i64 size : sizes) {
    check_size(site, dimension++, size);
    is_empty |= size == 0;
    count = product(count, size);
  }
  return is_empty ? 0 : count;
}

// `4 x 5`.
struct Listed {
  Listed(const i64 *sizes, int rank) {
    int used = 0;
    for (int d = 0; d < rank && used < int(sizeof(text)) - 30; ++d) {
      used += snprintf(text + used, sizeof(text) - size_t(used), d ? " x %lld" : "%lld", ll(sizes[d]));
    }
  }
  explicit Listed(std::initializer_list<i64> sizes) : Listed(sizes.begin(), int(sizes.size())) {}
  char text[200] = "";
};

}  // namespace

void fail_size(Site site, int dimension, i64 size) {
  fail_as(Failure::kOutside, site, "dimension %d has %lld elements: give a size of 0 or more", dimension, ll(size));
}

void fail_step(Site site, i64 step) {
  fail(site, "the step is %lld, with which the loop has no end: give a step of 1 or more", ll(step));
}

void fail_position(Site site, int dimension, i64 position, i64 size) {
  fail_as(Failure::kOutside, site, "position %lld of dimension %d is outside the vector: legal are 0 to %lld", ll(position),
          dimension, ll(size - 1));
}

void fail_extent(Site site, int dimension, i64 size, i64 loops) {
  fail_as(Failure::kOutside, site, "dimension %d of an operand has %lld elements, and another operand has %lld", dimension,
          ll(size), ll(loops));
}

void fail_divisor(Site site, i64 divisor) { fail(site, "divides by an extent of %lld: give one of 1 or more", ll(divisor)); }

void fail_pattern(Site site, int rank, const i64 *sizes, const i64 *strides) {
  fail_as(Failure::kOutside, site, "the access pattern of sizes %s and strides %s reaches beyond what 64 bits address",
          Listed(sizes, rank).text, Listed(strides, rank).text);
}

i64 memory_share() {
  static const i64 share = i64(sysconf(_SC_PHYS_PAGES)) * i64(sysconf(_SC_PAGESIZE)) / 4;
  return share;
}

i64 memory_remaining() {
  i64 left = memory_share();
  if (FILE *const file = fopen("/proc/meminfo", "r")) {
    char line[200];
    ll kilobytes;
    while (fgets(line, sizeof(line), file)) {
      if (sscanf(line, "MemAvailable: %lld kB", &kilobytes) == 1) left = kilobytes * 1024;
    }
    fclose(file);
  }
  return left;
}

void fail_memory(Site site, i64 bytes, i64 held) {
  fail(site,
       "out of memory: %lld bytes beside the %lld that the program's buffers have already; together they may take %lld here, a "
       "quarter of this machine's memory: free those that are not needed any more (memref.dealloc)",
       ll(bytes), ll(held), ll(memory_share()));
}

void check_buffer(Site site, std::initializer_list<i64> sizes, i64 bytes) {
  if (product(count_of(site, sizes), bytes) <= kMaxBytes) return;
  fail_as(Failure::kOutside, site,
          "a buffer of %s elements of %lld bytes each is more than any memory: %lld bytes are the most", Listed(sizes).text,
          ll(bytes), ll(kMaxBytes));
}

void check_part(Site site, int dimension, i64 offset, i64 size, i64 step, i64 extent) {
  check_size(site, dimension, size);
  const i64 last = sum(offset, product(size - 1, step));
  const bool is_inside =
      size == 0 ? offset >= 0 && offset <= extent : offset >= 0 && offset < extent && last >= 0 && last < extent;
  if (is_inside) return;
  fail_as(Failure::kOutside, site, "%lld elements from %lld on, %lld apart, leave dimension %d: legal are 0 to %lld", ll(size),
          ll(offset), ll(step), dimension, ll(extent - 1));
}

void check_view(Site site, i64 offset, std::initializer_list<i64> sizes, std::initializer_list<i64> strides, i64 extent) {
  if (count_of(site, sizes) == 0) return;
  i64 low = offset, high = offset;
  const i64 *stride = strides.begin();
  for (const i64 size : sizes) {
    const i64 reach = product(size - 1, *stride++);
    (reach > 0 ? high : low) = sum(reach > 0 ? high : low, reach);
  }
  if (low >= 0 && high < extent) return;
  fail_as(Failure::kOutside, site, "the view has elements %lld to %lld of a buffer that has elements 0 to %lld", ll(low),
          ll(high), ll(extent - 1));
}

void check_bytes(Site site, i64 first, std::initializer_list<i64> sizes, i64 element, i64 extent) {
  const i64 bytes = product(count_of(site, sizes), element);
  if (first < 0 || bytes > extent || first > extent - bytes) {
    fail_as(Failure::kOutside, site, "%s elements of %lld bytes from byte %lld on leave the buffer, which has %lld bytes",
            Listed(sizes).text, ll(element), ll(first), ll(extent));
  }
  if (first % element) {
    fail_as(Failure::kMisaligned, site, "the view begins at byte %lld, which is no multiple of the %lld bytes of an element",
            ll(first), ll(element));
  }
}

void check_promised(Site site, const char *what, int dimension, i64 number, i64 promised) {
  if (number == promised) return;
  fail_as(Failure::kMismatch, site, "the %s of dimension %d is %lld, and in the type of the result %lld", what, dimension,
          ll(number), ll(promised));
}

void check_shape(Site site, std::initializer_list<i64> sizes, i64 count) {
  const i64 made = count_of(site, sizes);
  if (made == count) return;
  fail_as(Failure::kMismatch, site, "%s elements in place of %lld: the products of the sizes must be equal", Listed(sizes).text,
          ll(count));
}

void check_points(Site site, std::initializer_list<i64> sizes) {
  if (count_of(site, sizes) < kLargest) return;
  fail(site, "a grid of %s points has more of them than 64 bits count", Listed(sizes).text);
}

i64 offset_in(std::initializer_list<i64> offsets, std::initializer_list<i64> strides) {
  i64 offset = 0;
  const i64 *stride = strides.begin();
  for (const i64 index : offsets) offset = sum(offset, product(index, *stride++));
  return offset;
}

}  // namespace vnpu
