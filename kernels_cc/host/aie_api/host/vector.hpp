// aie::vector: N lanes of T in a register.
#pragma once

#include <array>
#include <cstdio>
#include <cstdlib>

#include "registers.hpp"
#include "vnpu/prefetch.h"
#include "weight_blocks.hpp"
#include "weight_blocks_avx2.hpp"

namespace aie {

template <typename T, unsigned N>
class vector;

namespace host {

// Lane `index` of a vector, assignable.
template <typename T, unsigned N>
class lane_ref {
 public:
  AIE_HOST_INLINE lane_ref(vector<T, N>& owner, unsigned index) : owner_(owner), index_(index) {}
  AIE_HOST_INLINE operator T() const { return owner_.get(index_); }
  template <typename U>
    requires(!std::is_same_v<T, U> && std::is_constructible_v<U, T>)
  AIE_HOST_INLINE explicit operator U() const {
    return U(owner_.get(index_));
  }
  AIE_HOST_INLINE T get() const { return owner_.get(index_); }
  AIE_HOST_INLINE lane_ref& operator=(T value) {
    owner_.set(value, index_);
    return *this;
  }
  AIE_HOST_INLINE lane_ref& operator=(const lane_ref& other) { return *this = T(other); }

 private:
  vector<T, N>& owner_;
  unsigned index_;
};

template <typename E, typename T>
inline constexpr bool is_lane_of = false;
template <typename T, unsigned N>
inline constexpr bool is_lane_of<lane_ref<T, N>, T> = true;

}  // namespace host

template <typename T, unsigned N>
class vector {
  static_assert(host::is_element<T>,
                "AIE2P vectors hold int8, uint8, int16, uint16, int32, uint32, bfloat16 or float (double and 64-bit "
                "integers do not exist on the core; complex and 4-bit types are not in this host subset)");
  static_assert(!host::is_element<T> || host::is_vector_shape<T, N>,
                "AIE2P vectors are a power of two of lanes and at least 128 bits wide: bfloat16 8, 16, 32, 64; float 4, "
                "8, 16, 32; int8 16 to 128; int16 8 to 64; int32 4 to 32; wider ones are made of several");

 public:
  using value_type = T;
  using lane_type = host::lane_t<T>;
  using storage_t = host::registers<lane_type, N>;
  using native_type = vector;

  storage_t data;

  static constexpr unsigned size() { return N; }
  static constexpr unsigned type_bits() { return 8 * sizeof(T); }
  static constexpr unsigned bits() { return N * type_bits(); }
  static constexpr unsigned bytes() { return N * sizeof(T); }
  static constexpr bool is_signed() { return host::is_float<T> || std::is_signed_v<T>; }
  static constexpr bool is_complex() { return false; }
  static constexpr bool is_real() { return true; }
  static constexpr bool is_integral() { return !host::is_float<T>; }
  static constexpr bool is_floating_point() { return host::is_float<T>; }

  vector() = default;
  AIE_HOST_INLINE explicit vector(const storage_t& lanes) : data(lanes) {}
  template <typename... Values>
    requires(sizeof...(Values) + 1 <= N && (std::is_convertible_v<Values, T> && ...))
  AIE_HOST_INLINE explicit vector(T first, Values... rest) : data(lane_type(0)) {
    unsigned i = 0;
    set(first, i);
    (set(T(rest), ++i), ...);
  }

  // The same bits as lanes of another type.
  template <typename U, unsigned M>
    requires(host::is_element<U> && !std::is_same_v<T, U> && M * sizeof(U) == N * sizeof(T))
  AIE_HOST_INLINE explicit vector(const vector<U, M>& v) : data(host::bits_as<lane_type>(v.data)) {}

  AIE_HOST_INLINE const vector& to_native() const { return *this; }

  AIE_HOST_INLINE T get(unsigned i) const {
    const lane_type lane = data[i];
    if constexpr (std::is_same_v<T, bfloat16>) return bfloat16::from_bits(lane);
    else return lane;
  }
  AIE_HOST_INLINE void set(T value, unsigned i) {
    if constexpr (std::is_same_v<T, bfloat16>) data.set(i, value.bits);
    else data.set(i, value);
  }
  AIE_HOST_INLINE T operator[](unsigned i) const { return get(i); }
  AIE_HOST_INLINE host::lane_ref<T, N> operator[](unsigned i) { return {*this, i}; }

  // Shifts all lanes up by one and puts `value` in lane 0.
  AIE_HOST_INLINE vector& push(T value) {
    for (unsigned i = N - 1; i > 0; --i) data.set(i, data[i - 1]);
    set(value, 0);
    return *this;
  }

  template <unsigned M>
  AIE_HOST_INLINE vector<T, M> extract(unsigned index) const {
    static_assert(M <= N, "extract<M>: a part is not larger than the vector");
    return vector<T, M>(host::extracted<M>(data, index));
  }
  template <unsigned M>
  AIE_HOST_INLINE vector& insert(unsigned index, const vector<T, M>& part) {
    static_assert(M <= N, "insert: a part is not larger than the vector");
    host::insert(data, index, part.data);
    return *this;
  }
  // A vector of M lanes with this one as its part `index`. The device leaves the rest undefined; here it is zero.
  template <unsigned M>
  AIE_HOST_INLINE vector<T, M> grow(unsigned index = 0) const {
    static_assert(M >= N, "grow<M>: the result is not smaller than the vector");
    return vector<T, M>(typename vector<T, M>::storage_t(0)).insert(index, *this);
  }
  template <unsigned M>
  AIE_HOST_INLINE vector<T, M> grow_replicate() const {
    vector<T, M> whole;
    for (unsigned i = 0; i < M / N; ++i) whole.insert(i, *this);
    return whole;
  }
#if defined(AIE_HOST_WEIGHT_BLOCKS)
  // Not in the AIE API: blocks of quantised weights by the CPU's own instructions.
  template <unsigned Bits>
  using weight_blocks = host::weight_blocks<Bits>;
#endif

  // The same bits read as lanes of U.
  template <typename U>
  AIE_HOST_INLINE auto cast_to() const {
    if constexpr (host::is_nibble<U>) return vector<U, N * sizeof(T) * 2>(host::bits_as<uint8>(data));
    else return vector<U, N * sizeof(T) / sizeof(U)>(host::bits_as<host::lane_t<U>>(data));
  }
};

// Lanes of 4 bits: two in a byte, the first in its lower half.
template <typename T, unsigned N>
  requires(host::is_nibble<T>)
class vector<T, N> {
  static_assert(N >= 32 && (N & (N - 1)) == 0, "AIE2P vectors of 4 bits have 32 lanes or more, a power of two");

 public:
  using value_type = T;
  using storage_t = host::registers<uint8, N / 2>;

  storage_t data;

  static constexpr unsigned size() { return N; }
  static constexpr unsigned type_bits() { return 4; }
  static constexpr bool is_signed() { return std::is_same_v<T, int4>; }

  vector() = default;
  AIE_HOST_INLINE explicit vector(const storage_t& bytes) : data(bytes) {}

  template <typename U>
  AIE_HOST_INLINE auto cast_to() const {
    return vector<uint8, N / 2>(data).template cast_to<U>();
  }
  // The lanes in 8 bits: int8 for int4, uint8 for uint4.
  AIE_HOST_INLINE auto unpack() const { return unpack_sign<std::conditional_t<is_signed(), int8, uint8>>(is_signed()); }
  // The lanes in 8 bits, with the sign that `is_signed_now` says.
  template <typename To>
  AIE_HOST_INLINE vector<To, N> unpack_sign(bool is_signed_now) const {
    static_assert(sizeof(To) == 1, "lanes of 4 bits are unpacked to 8 bits");
    uint8 packed[N / 2];
    To lanes[N];
    data.store(packed);
    const uint8 sign = is_signed_now ? 8 : 0;
    for (unsigned i = 0; i < N / 2; ++i) {
      lanes[2 * i] = To(uint8(((packed[i] & 15) ^ sign) - sign));
      lanes[2 * i + 1] = To(uint8(((packed[i] >> 4) ^ sign) - sign));
    }
    return vector<To, N>(vector<To, N>::storage_t::load(lanes));
  }
};

namespace host {

template <typename T>
struct is_vector_type : std::false_type {};
template <typename T, unsigned N>
struct is_vector_type<vector<T, N>> : std::true_type {};

// The lanes in the type that arithmetic is done in: f32 for bf16, themselves otherwise.
template <typename T, unsigned N>
AIE_HOST_INLINE decltype(auto) wide(const vector<T, N>& v) {
  if constexpr (std::is_same_v<T, bfloat16>) return widen(v.data);
  else return (v.data);
}

template <typename T, unsigned N>
AIE_HOST_INLINE vector<T, N> from_wide(const registers<wide_t<T>, N>& value) {
  if constexpr (std::is_same_v<T, bfloat16>) return vector<T, N>(narrow(value));
  else return vector<T, N>(value);
}

#if VNPU_CHECKS
extern "C" __attribute__((cold)) void vnpu_kernel_misaligned(const void* at, long bytes, bool writes);
#endif

// Stops at an access that the device would silently move to an aligned address: any such access with AIE_HOST_CHECK_ALIGNMENT,
// and in programs with checks an access to a buffer whose address on the device is known.
template <typename T, unsigned N>
AIE_HOST_INLINE void check_alignment([[maybe_unused]] const void* at, [[maybe_unused]] bool writes) {
  [[maybe_unused]] constexpr std::size_t bytes = N * sizeof(T) < 64 ? N * sizeof(T) : 64;
#if VNPU_CHECKS
  if (reinterpret_cast<std::uintptr_t>(at) % bytes != 0) vnpu_kernel_misaligned(at, long(N * sizeof(T)), writes);
#endif
#ifdef AIE_HOST_CHECK_ALIGNMENT
  if (reinterpret_cast<std::uintptr_t>(at) % bytes != 0) {
    std::fprintf(stderr,
                 "aie::load_v/store_v of %zu bytes at %p, which is not a multiple of %zu: AIE2P would access "
                 "another address; use load_unaligned_v/store_unaligned_v or align the buffer\n",
                 N * sizeof(T), at, bytes);
    std::abort();
  }
#endif
}

// Reports to the virtual NPU, in programs built with checks, what a kernel reads and writes.
#if VNPU_CHECKS
extern "C" __thread int vnpu_kernel_watched;  // whether the virtual NPU needs reports of this thread's call
extern "C" __attribute__((cold)) void vnpu_kernel_read(const void* at, long bytes);
extern "C" __attribute__((cold)) void vnpu_kernel_write(const void* at, long bytes);
extern "C" void vnpu_kernel_product(const std::uint16_t* left, int rows, const std::uint16_t* right);
// For block floating point: bf16 bits.
AIE_HOST_INLINE void report_product(const std::uint16_t* left, int rows, const std::uint16_t* right) {
  vnpu_kernel_product(left, rows, right);
}
AIE_HOST_INLINE void report_read(const void* at, long bytes) {
  if (vnpu_kernel_watched) vnpu_kernel_read(at, bytes);
}
AIE_HOST_INLINE void report_write(const void* at, long bytes) {
  if (vnpu_kernel_watched) vnpu_kernel_write(at, bytes);
}
#else
AIE_HOST_INLINE void report_product(const std::uint16_t*, int, const std::uint16_t*) {}
AIE_HOST_INLINE void report_read(const void*, long) {}
AIE_HOST_INLINE void report_write(const void*, long) {}
#endif

}  // namespace host

template <typename V>
concept Vector = host::is_vector_type<std::remove_cvref_t<V>>::value;

template <typename V1, typename V2>
concept SameVector = Vector<V1> && std::is_same_v<std::remove_cvref_t<V1>, std::remove_cvref_t<V2>>;

inline constexpr unsigned vector_decl_align = 64;
template <typename T, unsigned N>
inline constexpr unsigned vector_ldst_align_v = N * sizeof(T) < 64 ? N * sizeof(T) : 64;

// ---- loads and stores ----------------------------------------------------------------------------------------------

template <unsigned N, typename T>
AIE_HOST_INLINE vector<T, N> load_unaligned_v(const T* from, [[maybe_unused]] unsigned aligned_elems = 1) {
  host::report_read(from, N * sizeof(T));
  return vector<T, N>(vector<T, N>::storage_t::load(from));
}
template <typename T>
AIE_HOST_INLINE auto load_unaligned_v(const T* from, unsigned aligned_elems = 1) {
  return load_unaligned_v<native_vector_length_v<T>>(from, aligned_elems);
}

template <unsigned N, typename T>
AIE_HOST_INLINE vector<T, N> load_v(const T* from) {
  host::check_alignment<T, N>(from, false);
  return load_unaligned_v<N>(from);
}
template <typename T>
AIE_HOST_INLINE auto load_v(const T* from) {
  return load_v<native_vector_length_v<T>>(from);
}

// Loads from the last multiple of `elems` elements at or below `from`.
template <unsigned N, typename T>
AIE_HOST_INLINE vector<T, N> load_floor_v(const T* from, unsigned elems = N) {
  const std::uintptr_t bytes = elems * sizeof(T);
  return load_v<N>(reinterpret_cast<const T*>(reinterpret_cast<std::uintptr_t>(from) & ~(bytes - 1)));
}

template <unsigned N, typename T>
AIE_HOST_INLINE T* store_unaligned_v(T* to, const vector<T, N>& v, [[maybe_unused]] unsigned aligned_elems = 1) {
  host::report_write(to, N * sizeof(T));
  v.data.store(to);
  return to;
}

template <typename T, unsigned N>
AIE_HOST_INLINE T* store_v(T* to, const vector<T, N>& v) {
  host::check_alignment<T, N>(to, true);
  return store_unaligned_v<N>(to, v);
}

namespace host {
// Prefetches some bytes: on the device, a core's DMA fetches a buffer while the core works on the one before.
template <unsigned Bytes>
AIE_HOST_INLINE void prefetch_ahead(const void* at) {
  const char* const from = static_cast<const char*>(at);
  each_number<(Bytes + 63) / 64>([&](auto line) AIE_HOST_LAMBDA { vnpu::prefetch_beside_others(from + 64 * line); });
}
}  // namespace host

// Walks a buffer a vector at a time: `*it` reads, `*it = v` writes, `++it` steps. One that only reads a stream prefetches.
template <typename T, unsigned N, bool Streams = false>
class vector_iterator {
 public:
  using element = std::remove_const_t<T>;
  struct reference {
    T* at;
    AIE_HOST_INLINE operator vector<element, N>() const { return load_v<N, element>(at); }
    AIE_HOST_INLINE const reference& operator=(const vector<element, N>& v) const {
      store_v(at, v);
      return *this;
    }
  };

  AIE_HOST_INLINE explicit vector_iterator(T* at) : at_(at) {}
  AIE_HOST_INLINE auto operator*() const {
    if constexpr (Streams) host::prefetch_ahead<N * sizeof(T)>(at_);
    if constexpr (std::is_const_v<T>) return load_v<N, element>(at_);
    else return reference{at_};
  }
  AIE_HOST_INLINE vector_iterator& operator++() { return *this += 1; }
  AIE_HOST_INLINE vector_iterator operator++(int) {
    vector_iterator before = *this;
    ++*this;
    return before;
  }
  AIE_HOST_INLINE vector_iterator& operator+=(int vectors) {
    at_ += vectors * int(N);
    return *this;
  }
  AIE_HOST_INLINE vector_iterator operator+(int vectors) const { return vector_iterator(*this) += vectors; }
  AIE_HOST_INLINE bool operator==(const vector_iterator& other) const { return at_ == other.at_; }

 private:
  T* at_;
};

template <unsigned N, typename T>
AIE_HOST_INLINE auto begin_vector(T* at) {
  return vector_iterator<T, N>(at);
}
template <unsigned N, typename T>
AIE_HOST_INLINE auto begin_restrict_vector(T* at) {
  return vector_iterator<T, N>(at);
}
template <unsigned N, typename T>
AIE_HOST_INLINE auto cbegin_vector(const T* at) {
  return vector_iterator<const T, N>(at);
}
// For a buffer that nothing writes during the walk: a stream.
template <unsigned N, typename T>
AIE_HOST_INLINE auto cbegin_restrict_vector(const T* at) {
  return vector_iterator<const T, N, true>(at);
}

// ---- making and joining vectors ------------------------------------------------------------------------------------

template <typename T, unsigned N = native_vector_length_v<T>>
  requires host::is_element<T>
AIE_HOST_INLINE vector<T, N> broadcast(std::type_identity_t<T> value) {
  if constexpr (std::is_same_v<T, bfloat16>) return vector<T, N>(typename vector<T, N>::storage_t(value.bits));
  else return vector<T, N>(typename vector<T, N>::storage_t(value));
}

template <typename T, unsigned N = native_vector_length_v<T>>
  requires host::is_element<T>
AIE_HOST_INLINE vector<T, N> zeros() {
  return vector<T, N>(typename vector<T, N>::storage_t(0));
}

template <typename T, unsigned N, typename... Rest>
  requires(std::is_same_v<vector<T, N>, Rest> && ...)
AIE_HOST_INLINE auto concat(const vector<T, N>& first, const Rest&... rest) {
  return vector<T, N * (1 + sizeof...(Rest))>(host::joined(first.data, rest.data...));
}

template <typename U, Vector V>
AIE_HOST_INLINE auto vector_cast(const V& v) {
  return v.template cast_to<U>();
}

// Lanes of 4 bits in 8.
template <Vector V>
  requires(host::is_nibble<typename V::value_type>)
AIE_HOST_INLINE auto unpack(const V& v) {
  return v.unpack();
}

}  // namespace aie
