// What the C++ of cores uses beside the array: arithmetic on vectors, and lanes of two of them.
#pragma once

#include "vnpu/aie/array.h"
#include "vnpu/shuffle.h"

namespace vnpu::aie {

// The lanes of two vectors in a row, from lane `From` of the first one on.
template <int From, class T, int N>
VNPU_INLINE Vec<T, N> joined(const Vec<T, N> &first, const Vec<T, N> &second) {
  Lanes<T, N> low(first), high(second), to(first);
  for (int i = 0; i < N; ++i) to.at[i] = i + From < N ? low.at[i + From] : high.at[i + From - N];
  return to.vec();
}

}  // namespace vnpu::aie
