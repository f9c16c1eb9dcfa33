// Checked vector accesses, whole operands, versions of loops, calls of external kernels. Included by vnpu/memory.h.
#pragma once

#include "vnpu/heartbeat.h"
#include "vnpu/values.h"

namespace vnpu {

// ---- vectors: on checked pointers, and on plain pointers where nothing can be wrong ----

template <int... S, class T, class Observe>
VNPU_INLINE void each_dense(Ptr<T> x, const i64 *strides, Observe observe) {
  if (is_contiguous<S...>(strides)) return observe(x.p, i64(volume<S...>));
  constexpr int L = last_of<S...>;
  const i64 step = strides[sizeof...(S) - 1];
  each_row<S...>(strides, [&](int, i64 offset) {
    if (step == 1) return observe(x.p + offset, i64(L));
    for (int i = 0; i < L; ++i) observe(x.p + offset + i * step, i64(1));
  });
}

template <class T, int... S>
VNPU_INLINE Vec<T, volume<S...>> read(const OperandPlace &at, Ptr<T> x, const i64 (&strides)[sizeof...(S)]) {
  each_dense<S...>(x, strides, [&](T *p, i64 n) { observe_read(at.site, *x.buffer, p, n * i64(sizeof(T)), x.asks); });
  return read<T, S...>(x.p, strides);
}
template <class T, int... S>
VNPU_INLINE Vec<T, volume<S...>> read(const OperandPlace &, const T *x, const i64 (&strides)[sizeof...(S)]) {
  return read<T, S...>(x, strides);
}

template <class T, int... S>
VNPU_INLINE void write(const OperandPlace &at, Ptr<T> x, const i64 (&strides)[sizeof...(S)],
                       const Vec<T, volume<S...>> &value) {
  each_dense<S...>(x, strides, [&](T *p, i64 n) { observe_write(at.site, *x.buffer, p, n * i64(sizeof(T)), x.asks); });
  write<T, S...>(x.p, strides, value);
}
template <class T, int... S>
VNPU_INLINE void write(const OperandPlace &, T *x, const i64 (&strides)[sizeof...(S)], const Vec<T, volume<S...>> &value) {
  write<T, S...>(x, strides, value);
}

// A buffer of a core's L1 has the same offset from a multiple of 64 bytes here as on the device (Arena).
template <int... S, class T>
VNPU_INLINE void aligned(const OperandPlace &at, bool writes, T *p, const i64 (&strides)[sizeof...(S)]) {
  each_dense<S...>(Ptr<T>{p, nullptr}, strides, [&](T *run, i64 n) {
    if (__builtin_expect(misaligned_by(run, n * i64(sizeof(T))), 0)) fail_misaligned(at, writes, run, n * i64(sizeof(T)));
  });
}
template <int... S, class T>
VNPU_INLINE void aligned(const OperandPlace &at, bool writes, Ptr<T> x, const i64 (&strides)[sizeof...(S)]) {
  aligned<S...>(at, writes, x.p, strides);
}

// Calls observe(element) for every lane that is enabled and inside.
template <int... S, class T, class Observe>
VNPU_INLINE void each_lane_within(Ptr<T> x, const i64 *strides, const i64 *limits, const Vec<bool, volume<S...>> *mask,
                                  Observe observe) {
  constexpr int N = volume<S...>;
  const Lanes<bool, N> on(mask ? *mask : splat<bool, N>(true));
  for (int i = 0; i < N; ++i) {
    if (on.at[i] && inside<S...>(i, limits)) observe(x.p + offset_of<S...>(i, strides));
  }
}

template <class T, int... S>
VNPU_INLINE Vec<T, volume<S...>> read_within(const OperandPlace &at, Ptr<T> x, const i64 (&strides)[sizeof...(S)],
                                             const i64 (&limits)[sizeof...(S)], T padding,
                                             const Vec<bool, volume<S...>> *mask = nullptr) {
  each_lane_within<S...>(x, strides, limits, mask, [&](T *p) { observe_read(at.site, *x.buffer, p, i64(sizeof(T)), x.asks); });
  return read_within<T, S...>(x.p, strides, limits, padding, mask);
}
template <class T, int... S>
VNPU_INLINE Vec<T, volume<S...>> read_within(const OperandPlace &, const T *x, const i64 (&strides)[sizeof...(S)],
                                             const i64 (&limits)[sizeof...(S)], T padding,
                                             const Vec<bool, volume<S...>> *mask = nullptr) {
  return read_within<T, S...>(x, strides, limits, padding, mask);
}

template <class T, int... S>
VNPU_INLINE void write_within(const OperandPlace &at, Ptr<T> x, const i64 (&strides)[sizeof...(S)],
                              const i64 (&limits)[sizeof...(S)], const Vec<T, volume<S...>> &value,
                              const Vec<bool, volume<S...>> *mask = nullptr) {
  each_lane_within<S...>(x, strides, limits, mask, [&](T *p) { observe_write(at.site, *x.buffer, p, i64(sizeof(T)), x.asks); });
  write_within<T, S...>(x.p, strides, limits, value, mask);
}
template <class T, int... S>
VNPU_INLINE void write_within(const OperandPlace &, T *x, const i64 (&strides)[sizeof...(S)], const i64 (&limits)[sizeof...(S)],
                              const Vec<T, volume<S...>> &value, const Vec<bool, volume<S...>> *mask = nullptr) {
  write_within<T, S...>(x, strides, limits, value, mask);
}

// Refuses lanes that are enabled and outside of [0, size).
template <int N>
VNPU_INLINE void lanes_within(const OperandPlace &at, int dimension, i64 index, const Vec<bool, N> &mask, i64 size) {
  const Lanes<bool, N> on(mask);
  for (int i = 0; i < N; ++i) {
    if (on.at[i]) within(at, dimension, index + i, size);
  }
}

// ---- whole operands of structured operations, before their loops run on plain pointers ----

void reads_all(Site site, const Access &operand);
void writes_all(Site site, const Access &operand);

template <class T>
VNPU_INLINE T *raw(Ptr<T> x) {
  return x.p;
}
template <class T>
VNPU_INLINE T *raw(T *x) {
  return x;
}

// ---- loops in two versions ----

// The elements of a memref that loops may touch.
template <class T>
struct Part {
  Ptr<T> x, first;
  i64 count;
  Site site{};          // of the loops, if they touch exactly these elements
  bool writes = false;  // some of them
  bool is_tight = false;  // the loops touch all of these elements, and no others

  // The part of a memref between two elements, limited to the memref. An access outside is refused separately.
  Part between(i64 low, i64 high) const {
    const i64 begin = low < 0 ? 0 : low, end = high < count ? high + 1 : count;
    return Part{x, x + begin, end > begin ? end - begin : 0, site, writes, true};
  }
  // Whether no access to it can have a finding.
  bool quiet() const {
    Buffer &buffer = *x.buffer;
    T *const end = first.p + count;
    if (buffer.freed.op || !buffer.holds(first.p, end)) return false;
    if (watched(buffer)) {
      if (!site.op) return false;
      touch(site, buffer, first.p, count * i64(sizeof(T)), writes);
    }
    // The search for unwritten elements takes time; it is skipped at times for a large buffer that never fills up.
    return buffer.full() || count == 0 || ((is_tight || count <= 4096) && buffer.written(first.p, end));
  }
  // Checked access for loops. Whether the order checks watch the buffer is decided once for all iterations.
  Ptr<T> checked() const { return Ptr<T>{x.p, x.buffer, watched(*x.buffer)}; }
};
template <class T>
VNPU_INLINE Part<T> part(Ptr<T> x, i64 extent) {
  return Part<T>{x, x, extent};
}
template <class T>
VNPU_INLINE Part<T> block(Site site, Ptr<T> x, Ptr<T> first, i64 count, bool writes) {
  return Part<T>{x, first, count, site, writes};
}

// Runs loops on plain pointers if nothing can be wrong with their buffers, otherwise on checked pointers.
template <class Loops, class... T>
VNPU_INLINE void nest(Loops loops, bool all_inside, Part<T>... parts) {
  if (all_inside && (parts.quiet() && ...)) loops(parts.x.p...);
  else loops(parts.checked()...);
}

// ---- calls of external kernels ----

// A memref argument of a kernel call.
struct Argument {
  Buffer *buffer;
  char *low, *high;
  int position;  // among the arguments of the call
  bool is_float;
  bool is_written = false;  // as the kernel reported
};
template <class T>
VNPU_INLINE Argument argument(int position, Ptr<T> x, i64 extent) {
  constexpr bool is_float = same_type<T, float> || same_type<T, double> || is_narrow_float<T>;
  char *const low = reinterpret_cast<char *>(x.p);
  return Argument{x.buffer, low, low + extent * i64(sizeof(T)), position, is_float};
}

// The scalar arguments of a call in one number.
template <class... T>
VNPU_INLINE uint64_t scalars(const T &...values) {
  uint64_t hash = 0;
  [[maybe_unused]] const auto mix = [&](const auto &value) {
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(value) < sizeof(bits) ? sizeof(value) : sizeof(bits));
    hash = (hash ^ bits) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  };
  (mix(values), ...);
  return hash;
}

// The calls of one operation that had no finding, by their arguments: the scalars and the offsets of its memrefs decide where a
// kernel reads and writes.
class CleanCalls {
 public:
  bool has(uint64_t key) const { return __atomic_load_n(&keys_[key % kCount], __ATOMIC_RELAXED) == key; }
  void add(uint64_t key) { __atomic_store_n(&keys_[key % kCount], key, __ATOMIC_RELAXED); }

 private:
  static constexpr int kCount = 256;
  uint64_t keys_[kCount] = {};
};

[[noreturn]] void fail_misaligned(Site site, const char *call, int argument, const Buffer &buffer, bool writes,
                                  const void *first, i64 bytes);

// The kernel call of this thread. The host AIE API reports vector loads and stores to it, unless nothing can be found: all
// elements are written, no buffer is watched, and the operation has made the same call before.
class KernelCall {
 public:
  KernelCall(Site site, uint64_t scalars, CleanCalls &known, Argument *arguments, int count);
  KernelCall(const KernelCall &) = delete;
  ~KernelCall();
  void touched(const void *at, i64 bytes, bool writes);
  Site site() const { return site_; }
  // Refuses a vector that is not aligned to its width.
  void misaligned(const void *at, i64 bytes, bool writes);
  // Called when the kernel has returned.
  void finish();

 private:
  void read(Buffer &buffer, const char *low, i64 bytes);
  [[noreturn]] void fail_outside(int argument, const char *low, const char *high, bool writes) const;

  Site site_;
  uint64_t key_;
  CleanCalls &known_;
  Argument *arguments_;
  int count_;
  bool is_quiet_ = true;
  KernelCall *outer_;
};

template <class Call, class... Arguments>
inline auto call_kernel(Site site, Call call, uint64_t scalars, Arguments... arguments) {
  static CleanCalls known;
  Argument list[] = {arguments..., Argument{}};
  KernelCall around(site, scalars, known, list, int(sizeof...(arguments)));
  if constexpr (same_type<decltype(call()), void>) {
    call();
    around.finish();
  } else {
    const auto result = call();
    around.finish();
    return result;
  }
}

}  // namespace vnpu
