// Rows of a bfp16 block (bfp16.h) that meet only zeros of the other factor but share the block's exponent: they change no exact
// product, but take bits of the mantissa. This happens in S*V on an NPU, where keys beyond the context have no weight but their
// values are in the block (mlir-air, pull request 1942).
#pragma once

#include "vnpu/base.h"

namespace vnpu {

// Checks the blocks of one product and makes a note of such rows. left: rows x 8, right: 8 x 8, bf16 bits.
void note_stale_rows(Site site, const uint16_t *left, int rows, const uint16_t *right);

}  // namespace vnpu
