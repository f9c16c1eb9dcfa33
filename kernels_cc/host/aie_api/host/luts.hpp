// Look-up tables in a core's memory.
//
// A table for parallel look-ups lies in memory several times, so that lanes read different banks at once: a piece of values,
// then the same piece again, in each of two arrays. A piece has 16 bytes on AIE2, for which the compiler defines __AIE_ARCH__
// as 20, and 32 on AIE2P (the tables of mlir-air's softmax example). Here only the first copy is read.
#pragma once

#include "native.hpp"

namespace aie {

namespace host {
#if defined(__AIE_ARCH__) && __AIE_ARCH__ == 20
inline constexpr unsigned lut_piece_bytes = 16;
#else
inline constexpr unsigned lut_piece_bytes = 32;
#endif
}  // namespace host

enum class lut_oor_policy { saturate, truncate };

// A table of `steps` values, in copies for `Parallel` look-ups at once.
template <unsigned Parallel, typename OffsetType, typename SlopeType = OffsetType>
class lut {
  static_assert(Parallel == 2 || Parallel == 4, "the AIE API has tables for 2 or 4 look-ups at once");

 public:
  using offset_type = OffsetType;
  using slope_type = SlopeType;
  static constexpr unsigned parallel = Parallel;

  lut(unsigned steps, const void* ab, [[maybe_unused]] const void* cd) : steps_(steps), first_(ab) {}
  explicit lut(unsigned steps, const void* only) : lut(steps, only, only) {}

  unsigned size() const { return steps_; }
  // Value `index`, which is in the table.
  OffsetType at(unsigned index) const {
    constexpr unsigned in_a_piece = host::lut_piece_bytes / sizeof(OffsetType);
    OffsetType value;
    const auto* const bytes = static_cast<const char*>(first_);
    const unsigned place = index / in_a_piece * 2 * in_a_piece + index % in_a_piece;
    std::memcpy(&value, bytes + place * sizeof(OffsetType), sizeof(value));
    return value;
  }

 private:
  unsigned steps_;
  const void* first_;
};

// Looks up lanes: the index is the lane without its lowest `step_bits` bits, plus `bias`. Beyond the table it is cut to its
// lowest bits (truncate) or to the nearest end (saturate).
template <typename T, typename Lut, lut_oor_policy policy = lut_oor_policy::saturate>
class parallel_lookup {
  static_assert(std::is_integral_v<T>, "this host subset looks up by integers");

 public:
  parallel_lookup(const Lut& table, unsigned step_bits, int bias = 0) : table_(table), step_bits_(step_bits), bias_(bias) {}

  template <unsigned N>
  vector<typename Lut::offset_type, N> fetch(const vector<T, N>& input) const {
    vector<typename Lut::offset_type, N> out;
    for (unsigned i = 0; i < N; ++i) out.set(table_.at(index(input.get(i))), i);
    return out;
  }

 private:
  unsigned index(T lane) const {
    const std::int64_t size = table_.size(), wanted = (std::int64_t(lane) >> step_bits_) + bias_;
    if (policy == lut_oor_policy::truncate) return unsigned(wanted & (size - 1));
    return unsigned(wanted < 0 ? 0 : wanted >= size ? size - 1 : wanted);
  }

  const Lut& table_;
  unsigned step_bits_;
  int bias_;
};

}  // namespace aie
