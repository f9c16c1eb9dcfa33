// The AIE API on the CPU: the part of the public API for AIE2P that kernels of this project and kernels written like
// them use, so that one source serves the core (compiled by Peano against the real header of this name) and the
// virtual NPU (compiled by g++ or clang against this one).
//
// A call that AIE2P does not support fails to compile. Each function, and kernels_cc/README.md, say what is modelled and what
// is only approximated.
#pragma once

#if !defined(__GNUC__)
#error "the host AIE API needs the vector extensions of g++ (11 or newer) or clang"
#endif
#if __cplusplus < 202002L
#error "the AIE API needs C++20: compile with -std=c++20"
#endif

#include "host/block_floats.hpp"
#include "host/luts.hpp"
#include "host/mmul.hpp"
