"""Upstream's files that say how forms are lowered, under the names that the table cites.

mlir-air is the state e972f294 of August 2026. What stands in its programming_examples and test/xrt has tests
that run on an NPU2 there. mlir-aie and Peano (llvm-aie) were read near the states that mlir-air pins, which
cannot be had; where a file says more than mlir-air's own programs confirm, the table follows the programs.
"""

from __future__ import annotations

from typing import Final

_EXAMPLES: Final = "mlir-air programming_examples"
_VECTORS: Final = f"{_EXAMPLES}/primitives/vector_examples"
_TO_AIEVEC: Final = "mlir-aie test/Conversion/VectorToAIEVec"
_TO_LLVM: Final = "mlir-aie test/Conversion/AIEVecToLLVM"

# Programs that upstream runs on an NPU2.
ATTENTION: Final = "mlir-air test/xrt/50_multi_launch_attention/attention.mlir"
SOFTMAX: Final = "mlir-air test/xrt/49_triton_softmax_optimized_bf16_strix"
MATMUL_I8: Final = "mlir-air test/xrt/46_triton_matmul_ver4_strix_8x4_i8_i8_i32"
BRANCHES: Final = "mlir-air test/xrt/51_scf_if_channel_herd"
FLASH: Final = f"{_EXAMPLES}/flash_attention/kernel_fusion_based/attn_npu2.py"
SHARED: Final = f"{_EXAMPLES}/shared_l1_single_herd/run.py"
DECODE: Final = f"{_EXAMPLES}/attention_decode/attn_decode_npu2.py"
RMS_NORM: Final = f"{_EXAMPLES}/weighted_rms_norm/weighted_rms_norm.py"
PLAIN_RMS_NORM: Final = f"{_EXAMPLES}/rms_norm/rms_norm.py"
GEMM: Final = f"{_EXAMPLES}/matrix_multiplication/bf16/run.py"
GEMM_F32: Final = f"{_EXAMPLES}/matrix_multiplication/bf16_in_fp32_out/run.py"
GEMM_I16: Final = f"{_EXAMPLES}/matrix_multiplication/i16/run.py"
BOTTLENECK: Final = f"{_EXAMPLES}/bottleneck/bottleneck_mlir.py"
ELTWISE_ADD: Final = f"{_EXAMPLES}/eltwise_add/eltwise_add.py"
RELU: Final = f"{_EXAMPLES}/relu/relu.py"
GELU: Final = f"{_EXAMPLES}/gelu/gelu.py"
AXPY: Final = f"{_EXAMPLES}/axpy/axpy.py"
SHIFTS: Final = f"{_EXAMPLES}/primitives/scalar_examples/scalar_shift_saturate"
INVSQRT: Final = f"{_EXAMPLES}/primitives/scalar_examples/scalar_invsqrt"
ADD: Final = f"{_VECTORS}/vector_add"
SUB: Final = f"{_VECTORS}/vector_sub"
MUL: Final = f"{_VECTORS}/vector_mul"
DIV: Final = f"{_VECTORS}/vector_div"
RECIPROCAL: Final = f"{_VECTORS}/vector_reciprocal"
FMA: Final = f"{_VECTORS}/vector_fma"
MULADD: Final = f"{_VECTORS}/vector_muladd"
MAX: Final = f"{_VECTORS}/vector_max"
SELECT: Final = f"{_VECTORS}/vector_select"
EXP: Final = f"{_VECTORS}/vector_exp"
TANH: Final = f"{_VECTORS}/vector_tanh"
RSQRT: Final = f"{_VECTORS}/vector_rsqrt"
REDUCE_ADD: Final = f"{_VECTORS}/vector_reduce_add"
REDUCE_MAX: Final = f"{_VECTORS}/vector_reduce_max"
BROADCAST: Final = f"{_VECTORS}/vector_broadcast_scalar"
AND: Final = f"{_VECTORS}/vector_andi"
OR: Final = f"{_VECTORS}/vector_ori"
XOR: Final = f"{_VECTORS}/vector_xori"
SITOFP: Final = f"{_VECTORS}/vector_sitofp"
FPTOSI: Final = f"{_VECTORS}/vector_fptosi"

# Upstream's tests of the lowering for AIE2P.
TEST_ADD: Final = f"{_TO_AIEVEC}/test-add-aie2p.mlir"
TEST_SUB: Final = f"{_TO_AIEVEC}/test-sub-aie2p.mlir"
TEST_NEG: Final = f"{_TO_LLVM}/test-neg-aie2p.mlir"
TEST_FMA: Final = f"{_TO_AIEVEC}/test-vector-fma.mlir"
TEST_EXP: Final = f"{_TO_AIEVEC}/test-exp-aie2p.mlir"
TEST_TANH: Final = f"{_TO_AIEVEC}/test-tanh-aie2p.mlir"
TEST_INV: Final = f"{_TO_AIEVEC}/test-inv-aie2p.mlir"
TEST_RSQRT: Final = f"{_TO_LLVM}/test-rsqrt-aie2p.mlir"
TEST_REDUCE: Final = f"{_TO_AIEVEC}/test-reduce-aie2p.mlir"
TEST_CONVERT: Final = f"{_TO_AIEVEC}/test-trunc-ext.mlir"
TEST_SRS: Final = f"{_TO_LLVM}/test-srs-aie2p.mlir"
TEST_MATMUL: Final = f"{_TO_LLVM}/matmul-aie2p.mlir"
TEST_BROADCAST: Final = f"{_TO_LLVM}/test-broadcast_scalar-aie2p.mlir"
TEST_SPLAT: Final = "mlir-aie test/dialect/AIEVec/transfer-read-splat.mlir"
TEST_EMULATION: Final = f"{_TO_AIEVEC}/test-bf16-emulation.mlir"

# Sources.
TO_AIEVEC: Final = "mlir-aie VectorToAIEVecConversions.cpp"
TO_LLVM: Final = "mlir-aie AIEVecToLLVM.cpp"
VECTOR_TO_VECTOR: Final = "mlir-aie VectorToVectorConversions.cpp"
PEANO: Final = "llvm-aie AIE2PLegalizerInfo.cpp"
CORE_PASSES: Final = "mlir-aie tools/aiecc/IRTransforms.h"
"""The passes of a core: affine, scf, memref, index and arith to LLVM."""
WIDTHS: Final = "mlir-air python/air/api/types.py"
OPS: Final = "mlir-air python/air/api/ops.py"
FLATTEN: Final = "mlir-air AIRTransformOps.td flatten_for_iter_args"
CARRIED_ISSUE: Final = "mlir-air issue 1591"
XDNA: Final = "amd/Triton-XDNA: AIE2P vector type constraints"
LINALG: Final = "mlir-air aircc.cpp convert-linalg-to-loops"


def is_reported_failure(evidence: str) -> bool:
    """Whether a piece of evidence records a failure that somebody met; else one follows from the source."""
    return evidence.startswith(("mlir-air ", "amd/"))


def is_run_upstream(evidence: str) -> bool:
    """Whether a piece of evidence is a program that upstream runs on an NPU2."""
    return evidence.startswith(("mlir-air programming_examples", "mlir-air test/xrt"))
