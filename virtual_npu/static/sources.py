"""Where the limits come from: the names under which reports cite them.

They were read, never measured: none of these limits was ever checked on hardware by us. mlir-air is the state
e972f294 of August 2026; mlir-aie, whose state pinned by it cannot be had, was read near it.
"""

from __future__ import annotations

from typing import Final

TARGET_MODEL: Final = "mlir-aie AIETargetModel.h"
"""Geometry, memory sizes, descriptors, channels: the classes AIE2, BaseNPU1 and BaseNPU2 TargetModel."""
DESCRIPTOR_FIELDS: Final = "mlir-aie AIEXDialect.cpp verifyStridesWraps"
DESCRIPTOR_RULES: Final = "mlir-aie AIEDialect.cpp DMABDOp::verify"
TASK_QUEUE: Final = "mlir-air AIRRtToNpuPass.cpp"
"""airrt-to-npu: the host's side of transfers, as tasks of the shim's queues."""
LOWERING: Final = "mlir-air AIRLoweringPass.cpp"
CHANNEL_API: Final = "mlir-air python/air/api/_channel.py"
AIRCC: Final = "mlir-air aircc.cpp"
TO_AIE: Final = "mlir-air AIRToAIEPass.cpp"
ALLOCATION: Final = "mlir-air AIRToAIESchedulingUtils.cpp"
PLACEMENT: Final = "mlir-air AIRHerdPlacementPass.cpp"
DIALECT: Final = "mlir-air AIRDialect.cpp"
XRT_BACKEND: Final = "mlir-air python/air/backend/xrt.py"
AIE_API: Final = "aie_api aie_doc.hpp vector_alignment"
LINKING: Final = "mlir-aie aiecc: aie-assign-core-link-files"
"""How `link_with` becomes an object on the linker's command line."""
ADDRESS_PATCH: Final = "mlir-aie pull request 3718"
REGISTRY: Final = "mlir-air kernel_registry: GEMV_bf16"
