"""Where the buffers of a core lie: at multiples of 64 bytes, whatever mlir-aie aligns them to.

AIE2P's 512-bit accesses need 64 bytes, and until its pull request 3662 (September 2026) mlir-aie aligns to
32. It lays buffers out one after the other behind the stack, the largest first (AIEAssignBuffers.cpp). So a
buffer lies well if the stack and all larger buffers are multiples of 64 bytes.
"""

from __future__ import annotations

import pytest
from xdsl.dialects.memref import AllocOp

from kernel_builder.kernels import registry
from virtual_npu.static.device import NPU2
from virtual_npu.static.transfers import memref_bytes, space_of

WIDE = 64
"""Bytes of the widest access."""


def l1_sizes(name: str, case: dict[str, object]) -> list[int]:
    """Bytes of the L1 buffers of one core, the largest first."""
    module = registry()[name].build(**case).module
    types = [op.memref.type for op in module.walk() if isinstance(op, AllocOp)]
    return sorted((memref_bytes(type_) or 0 for type_ in types if space_of(type_) == 2), reverse=True)


@pytest.mark.parametrize("name", registry())
def test_every_buffer_that_is_accessed_wide_lies_at_a_multiple_of_64(name: str) -> None:
    """At widths of models, multiples of 32; at others RMSNorm's sums may lie wrong, after its rows."""
    for case in (case for case in registry()[name].cases if case.get("cols", 32) % 32 == 0):
        sizes = l1_sizes(name, dict(case))
        before_wide = [size for size in sizes if size > min(s for s in sizes if s >= WIDE)]
        assert [size for size in before_wide if size % WIDE] == [], (case, sizes)


def test_the_stack_ends_at_a_multiple_of_64() -> None:
    assert NPU2.stack_bytes % WIDE == 0
    assert NPU2.program_stack_bytes % WIDE == 0
