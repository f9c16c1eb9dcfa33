// Functions of kernels that make an operand of a product (made.h) which have another form: by pairs of k.
//
// The function itself makes blocks of 8 n by some k, each (k, n 8), as a core multiplies by them. A CPU multiplies few rows by
// vectors of neighbouring n, each with two steps of k (product_few.h). A form is used if it is announced, and if what it makes
// is the same.
#pragma once

#include <stdint.h>

namespace vnpu {

class MadePairs {
 public:
  static constexpr int64_t kColumns = 32, kSteps = 32;  // n and k of a piece
#if defined(__AVX512F__)
  static constexpr bool kAreWide = false;
#else
  static constexpr bool kAreWide = true;  // with AVX2 alone, elements are made as f32, and nothing is widened later
#endif
  static constexpr int64_t kElements = kColumns * kSteps / (kAreWide ? 1 : 2);  // of 32 bits

  // As the function, but one piece: kColumns n of one of the parts of what the function reads, which begins at `from`, by kSteps k
  // from `first` on. The elements (n, k) and (n, k + 1), of an even k, are the lower and the upper half of
  // to[k / 2 * kColumns + n], counted from the piece's begin; if they are wide, (n, k) is to[k * kColumns + n], the bits of an f32.
  // `to` begins at a cache line.
  using Make = void (*)(int32_t argument, const uint8_t *from, int64_t first, uint32_t *to);

  // The same, and meanwhile adds the products of eight rows by the piece before, in pairs (dots.h). a: of each pair of k those of
  // the rows; sums: eight rows of kColumns.
  using MakeAndAdd = void (*)(int32_t argument, const uint8_t *from, int64_t first, uint32_t *to, const uint32_t *a,
                              const uint32_t *made, float *sums);

  // Announces the form of a function that makes `depth` k, a multiple of kSteps, and kColumns n for each of some parts, of which
  // one follows the other; null: it has none on this CPU, and make_and_add may be null by itself. An object of static storage does it before any program runs.
  template <class Function>
  MadePairs(Function *function, int64_t depth, int64_t parts, Make make, MakeAndAdd make_and_add)
      : make(make),
        make_and_add(make_and_add),
        depth(depth),
        parts(parts),
        function_(reinterpret_cast<const void *>(function)),
        next_(first()) {
    if (make) first() = this;
  }

  // The form of a function; null if it has none.
  static const MadePairs *of(const void *function) {
    const MadePairs *form = first();
    while (form && form->function_ != function) form = form->next_;
    return form;
  }

  const Make make;
  const MakeAndAdd make_and_add;
  const int64_t depth, parts;

 private:
  static const MadePairs *&first() {
    static const MadePairs *form = nullptr;
    return form;
  }

  const void *const function_;
  const MadePairs *const next_;
};

}  // namespace vnpu
