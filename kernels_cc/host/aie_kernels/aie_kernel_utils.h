// Loop hints that kernels place before loops. On the device they steer software pipelining; the host needs none.
// A kernel that uses them includes this file: mlir-aie has it under this name, and its aie_api does not include it.
#pragma once

#define AIE_PREPARE_FOR_PIPELINING
#define AIE_PREPARE_FOR_POSTPIPELINING
#define AIE_TRY_INITIATION_INTERVAL(cycles)
#define AIE_LOOP_UNROLL(times)
#define AIE_LOOP_UNROLL_FULL
#define AIE_LOOP_NO_UNROLL
#define AIE_LOOP_MIN_ITERATION_COUNT(count)
#define AIE_LOOP_MAX_ITERATION_COUNT(count)
#define AIE_LOOP_RANGE(...)
#define AIE_LOOP_FLATTEN
