// What the C++ of cores uses beside the array: arithmetic on vectors, and lanes of two of them.
#pragma once

#include "vnpu/aie/array.h"
#include "vnpu/happens_before.h"
#include "vnpu/shuffle.h"

namespace vnpu {

// Ends the run where `count` elements from an index on are not inside of a dimension.
VNPU_INLINE void inside(Site site, int dimension, i64 index, i64 count, i64 size) {
  if (__builtin_expect(index >= 0 && index + count <= size, 1)) return;
  fail_as(Failure::kOutside, site, "index %lld of dimension %d, and %lld elements from it on, leave the %lld that there are",
          (long long)index, dimension, (long long)count, (long long)size);
}

}  // namespace vnpu

namespace vnpu::aie {

// The lanes of two vectors in a row, from lane `From` of the first one on.
template <int From, class T, int N>
VNPU_INLINE Vec<T, N> joined(const Vec<T, N> &first, const Vec<T, N> &second) {
  Lanes<T, N> low(first), high(second), to(first);
  for (int i = 0; i < N; ++i) to.at[i] = i + From < N ? low.at[i + From] : high.at[i + From - N];
  return to.vec();
}

// A core's end of an object FIFO: which buffer comes next, and how many it holds.
class FifoPort {
 public:
  // first: the first of `depth` buffers. to_hold, to_give: the locks. times: how many credits an object has.
  FifoPort(int first, int depth, int to_hold, int to_give, int times)
      : first_(first), depth_(depth), to_hold_(to_hold), to_give_(to_give), times_(times) {}
  // Holds `count` objects, with those that it holds already.
  Await acquire(Core &core, int count, int line) {
    const int more = count - held_;
    if (more <= 0) return Await{true};
    held_ = count;
    return core.acquire(to_hold_, more * times_, true, line);
  }
  void release(Core &core, int count, int line) {
    held_ -= count;
    next_ = (next_ + count) % depth_;
    core.release(to_give_, count * times_, line);
  }
  template <class T>
  T *object(Core &core, int number) const {
    return core.buffer<T>(first_ + (next_ + number) % depth_);
  }

 private:
  int first_, depth_, to_hold_, to_give_, times_;
  int next_ = 0, held_ = 0;
};

}  // namespace vnpu::aie
