// Rows of a block of bfp16 (bfp16.h) that meet only zeros of the other factor and share the exponent of the rest all the
// same: what they hold changes no exact product, but takes bits of mantissa. As S*V does on an NPU, where keys beyond the
// context have no weight but their values stand in the block (mlir-air, pull request 1942).
#pragma once

#include "vnpu/base.h"

namespace vnpu {

// Looks at the blocks of one product and makes a note of such rows. left: rows x 8, right: 8 x 8, bf16 by their bits.
void note_stale_rows(Site site, const uint16_t *left, int rows, const uint16_t *right);

}  // namespace vnpu
