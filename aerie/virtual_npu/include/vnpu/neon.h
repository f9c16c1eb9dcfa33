// ARM's intrinsics, together with the AIE API for the host: both have a type bfloat16_t, and kernels mean the latter's.
#pragma once

#define bfloat16_t arm_bfloat16_t
#include <arm_neon.h>
#undef bfloat16_t
