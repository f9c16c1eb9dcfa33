"""What the device has: the only place in this project where a hardware limit is written.

Sources: mlir-aie's target model (`include/aie/Dialect/AIE/IR/AIETargetModel.h` and `.cpp`; both NPUs inherit
memories, descriptors and field widths from its AIE2TargetModel), its descriptor checks
(`lib/Dialect/AIEX/IR/AIEXDialect.cpp`, `lib/Dialect/AIE/IR/AIEDialect.cpp`) and mlir-air's `aircc` and
`airrt-to-npu`. They were read, not measured: none of these limits was ever checked on hardware by us. At the
end are the names under which reports cite their sources.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True)
class DmaLimits:
    """What the DMA engine of one tile kind can do (mlir-aie `AIETargetModel`, `verifyStridesWraps`).

    mm2s_channels, s2mm_channels: channels per tile, out of and into the tile's memory.
    descriptors: buffer descriptors (BDs) per tile.
    dims: sizes and strides one BD holds, without the iteration dimension, which only tasks of the shim have.
    wrap_bits: bits of a size; the innermost size counts 4-byte granules, the others elements.
    stride_bits: bits of a stride, in 4-byte granules.
    length_bits: bits of a BD's length, in 4-byte granules.
    iterations: most steps of the iteration dimension; 1 where mlir-air makes no use of it.
    """

    mm2s_channels: int
    s2mm_channels: int
    descriptors: int
    dims: int
    wrap_bits: int
    stride_bits: int
    length_bits: int
    iterations: int

    @property
    def max_wrap(self) -> int:
        """The largest size of one dimension."""
        return int(2**self.wrap_bits - 1)

    @property
    def max_stride_granules(self) -> int:
        """The largest stride, in 4-byte granules (the register holds stride - 1)."""
        return int(2**self.stride_bits)

    @property
    def max_length_granules(self) -> int:
        """The longest transfer of one BD, in 4-byte granules."""
        return int(2**self.length_bits - 1)


@dataclass(frozen=True)
class DeviceModel:
    """One device. Bytes for memories; `columns` x `rows` core tiles (herd x, herd y).

    l1_bytes: data memory of a core tile (64 KiB on AIE2P, `AIETargetModel`).
    stack_bytes: what aircc reserves of it for the stack by default (`air-to-aie` option
    `stack-size`; 1024, from September 2026 on 2048). program_stack_bytes: what Aerie's own programs ask for.
    reset_stack_bytes: what those ask for whose launches mlir-air resets by a copy of the device.
    program_bytes: program memory of a core (`AIETargetLdScript`: length 0x4000).
    l2_bytes: one memtile; there is one per column. cores_per_memtile: of a segment with more cores,
    air-split-l2-memref cuts buffers (`tiles-per-l2-tile`).
    shim: limits of one column's shim tile; launch_mm2s/launch_s2mm: all columns together, the number of
    launch-level endpoints per direction that aircc allows (`cols * 2`).
    repeat_limit: most trips of one dimension of a launch: airrt-to-npu writes them to the task queue's 8-bit
    repeat count, and a GEMV launch of more than 255 trips fails, while a GEMM of 4 x 74 launch points is
    known to run (mlir-air kernel registry, GEMV_bf16 and GEMM_bf16_in_bf16_out).
    granule_bytes: DMA lengths, strides and offsets are whole multiples of this.
    architecture: what the cores are, `aie2` or `aie2p`.
    elf: whether programs can be built as ELF; else as xclbin, whose caller in mlir-air (`xrt.py`) passes at
    most `xclbin_arguments` buffers.
    first_core_row: the row of the lowest cores; row 0 is the shim's, row 1 the memtiles'.
    cascade_bits: width of the accumulator cascade between neighbouring cores.
    packet_ids: ids that packets can carry (5 bits).
    max_lock_value: what a semaphore lock counts to (6 bits). core_locks: locks of a core tile.
    l1_banks: of equal size, which buffers take turns in. bus_bytes: what mlir-aie aligns L1 buffers to
    (`getComputeTileLoadStoreBusWidth`). vector_bytes: the widest load or store of a core, which is aligned to
    its own width (aie_api `vector_ldst_align`).
    shim_offset_bits: bits of the offset that is added to a host buffer's address where a command stream is
    patched; what lies further on in the buffer cannot be named (mlir-aie pull request 3718).
    """

    name: str
    architecture: str
    columns: int
    rows: int
    l1_bytes: int
    stack_bytes: int
    program_bytes: int
    l2_bytes: int
    core: DmaLimits
    memtile: DmaLimits
    shim: DmaLimits
    elf: bool
    repeat_limit: int = 255
    granule_bytes: int = 4
    xclbin_arguments: int = 5
    program_stack_bytes: int = 2048
    reset_stack_bytes: int = 1024
    first_core_row: int = 2
    cascade_bits: int = 512
    packet_ids: int = 32
    max_lock_value: int = 63
    core_locks: int = 16
    shim_offset_bits: int = 32
    l1_banks: int = 4
    cores_per_memtile: int = 4
    bus_bytes: int = 32
    vector_bytes: int = 64

    @property
    def host_buffer_bytes(self) -> int:
        """Bytes of a host buffer at which a transfer can begin: 4 GiB."""
        return int(2**self.shim_offset_bits)

    @property
    def l1_budget(self) -> int:
        """Bytes of L1 that a kernel of Aerie's programs may take for buffers: what their stack leaves."""
        return self.l1_bytes - self.program_stack_bytes

    @property
    def l2_total_bytes(self) -> int:
        """All memtiles together."""
        return self.l2_bytes * self.columns

    @property
    def launch_mm2s(self) -> int:
        """Shim channels that read from L3, over all columns."""
        return self.shim.mm2s_channels * self.columns

    @property
    def launch_s2mm(self) -> int:
        """Shim channels that write to L3, over all columns."""
        return self.shim.s2mm_channels * self.columns


_CORE = DmaLimits(2, 2, descriptors=16, dims=3, wrap_bits=8, stride_bits=13, length_bits=14, iterations=1)
_MEMTILE = DmaLimits(6, 6, descriptors=48, dims=4, wrap_bits=10, stride_bits=17, length_bits=17, iterations=1)
_SHIM = DmaLimits(2, 2, descriptors=16, dims=3, wrap_bits=10, stride_bits=20, length_bits=32, iterations=64)

NPU2 = DeviceModel(
    name="npu2",
    architecture="aie2p",
    columns=8,
    rows=4,
    l1_bytes=64 * 1024,
    stack_bytes=1024,
    program_bytes=16 * 1024,
    l2_bytes=512 * 1024,
    core=_CORE,
    memtile=_MEMTILE,
    shim=_SHIM,
    elf=True,
)
"""Strix, Strix Halo and Krackan: 8 columns of 4 AIE2P cores, a memtile and a shim tile each."""

NPU1 = replace(NPU2, name="npu1", architecture="aie2", columns=4, elf=False, vector_bytes=32)
"""Phoenix and Hawk Point: 4 columns of 4 AIE2 cores, a memtile and a shim tile each.

The array has a fifth column, which has no shim DMA; mlir-aie's `npu1` is the 4 that have one (its pull
request 2397), and mlir-air's `xrt.py` refuses ELF output for it.
"""

DEVICES: dict[str, DeviceModel] = {device.name: device for device in (NPU2, NPU1)}
"""Every device known, by name."""

# ---- where the limits come from ----

# mlir-air is the state e972f294 of August 2026; mlir-aie, whose state pinned by it cannot be had, was read
# near it.

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
SCHEDULE_OPT: Final = "mlir-air AIRDependencyScheduleOpt.cpp"
DMA_TO_CHANNEL: Final = "mlir-air AIRDmaToChannel.cpp"
SPLIT_L2: Final = "mlir-air AIRMiscPasses.cpp air-split-l2-memref"
SPECIALIZE_BROADCAST: Final = "mlir-air AIRMiscPasses.cpp air-specialize-dma-broadcast"
SHRINK: Final = "mlir-air AIRDependencyScheduleOpt.cpp air-shrink-memref-sizes-by-access"
PLACE_TILES: Final = "mlir-aie AIEPlacer.cpp"
DESCRIPTOR_IDS: Final = "mlir-aie AIEAssignBufferDescriptorIDs.cpp"
LOWER_CASCADES: Final = "mlir-aie AIELowerCascadeFlows.cpp"
PLACEMENT: Final = "mlir-air AIRHerdPlacementPass.cpp"
DIALECT: Final = "mlir-air AIRDialect.cpp"
LOCALITY: Final = "mlir-air AIRVerifyHierarchyLocality.cpp"
SEQUENCES: Final = "mlir-aie AIEMaterializeRuntimeSequences.cpp"
INSTRUCTIONS: Final = "mlir-aie aie-translate --aie-npu-to-binary"
"""The last step: the host's sequence as words."""
XRT_BACKEND: Final = "mlir-air python/air/backend/xrt.py"
AIE_API: Final = "aie_api aie_doc.hpp vector_alignment"
ALIGN_STRIPPED: Final = "mlir-aie aiecc IRTransforms.h downgradeIRForPeano"
"""What Peano is given: LLVM IR without alignments."""
SHIFTS: Final = "mlir-aie VectorToVectorConversions.cpp"
SHIFT_LOWERING: Final = "mlir-aie AIEVecToLLVM.cpp ShiftOpConversion"
LINKER_SCRIPT: Final = "mlir-aie AIETargetLdScript.cpp"
"""Where a core's data and constants go: the largest run of L1 that buffers and stack leave."""
BUFFER_ADDRESSES: Final = "mlir-aie AIEAssignBuffers.cpp"
LINKING: Final = "mlir-aie aiecc: aie-assign-core-link-files"
"""How `link_with` becomes an object on the linker's command line."""
REFEED_PASS: Final = "mlir-air AIRMiscPasses.cpp AIRAnnotateRefeed"
ADDRESS_PATCH: Final = "mlir-aie pull request 3718"
REGISTRY: Final = "mlir-air kernel_registry: GEMV_bf16"
