"""Every form of AIR that our kernels and programs have is one that upstream is known to lower.

A form without a row in `virtual_npu/static/lowering/air.py` fails here, as in test_mlb_forms.py.
"""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import ModuleOp

from air_dialect import parse
from kernel_builder.kernels import registry
from multi_launch_builder.building import build_program
from multi_launch_builder.programs import PLANS, plan_programs
from multi_launch_builder.shapes import DEMO, DEMO_SEQ_LEN
from virtual_npu.static.lowering.air import AIR_TABLE, air_forms_of, find_air

UNKNOWN = {"gemm_f32": ["air.dma_memcpy_nd L2 to L3 in the segment, in a loop"]}
"""What no file of upstream shows. No program uses the kernel; docs/hardware.md says so."""


def without_evidence(module: ModuleOp) -> list[str]:
    """The forms that have no row, or one that says that they do not lower."""
    found = {form for op in module.walk() for form in air_forms_of(op)}
    assert found, "nothing moves"
    rows = {form: find_air(form, "aie2p") for form in found}
    return sorted(str(form) for form, row in rows.items() if row is None or not row.verdict.lowers)


@pytest.mark.parametrize("name", registry())
def test_kernels(name: str) -> None:
    spec = registry()[name]
    for case in spec.cases:
        assert without_evidence(spec.build(**case).module) == UNKNOWN.get(name, [])


@pytest.mark.parametrize("name", PLANS)
def test_programs(name: str) -> None:
    program = build_program(plan_programs(DEMO, DEMO_SEQ_LEN)[name])
    assert without_evidence(parse(program.text)) == []


def test_a_form_that_nobody_tells_of_is_found() -> None:
    text = registry()["flash_attention"].build(64, 64, 1, 1, 64).text
    assert without_evidence(parse(text.replace("npu_dma_stream", "npu_dma_packet", 1))) == [
        "air.channel npu_dma_packet"
    ]


def test_rows_have_evidence() -> None:
    assert all(row.evidence and all("mlir-air" in source for source in row.evidence) for row in AIR_TABLE)
