"""Every form that our kernels and programs have, on the cores and of AIR, is one that upstream lowers.

A form without a row in `virtual_npu/static/lowering` fails here: find what upstream makes of it, write that
down with the file that says so, or write the kernel otherwise.
"""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import ModuleOp

from aerie.air_dialect import parse
from aerie.kernel_builder.kernels import registry
from aerie.multi_launch_builder.building import build_program
from aerie.multi_launch_builder.programs import PLANS
from aerie.multi_launch_builder.shapes import DEMO, DEMO_SEQ_LEN, LLAMA_3_2_1B
from aerie.virtual_npu.static.lowering import find, forms_of
from aerie.virtual_npu.static.lowering.air import AIR_TABLE, air_forms_of, find_air
from aerie.virtual_npu.static.rules.lowering import on_cores

MODELS = {"demo": (DEMO, DEMO_SEQ_LEN), "Llama-3.2-1B": (LLAMA_3_2_1B, 2048)}


def without_evidence(module: ModuleOp) -> list[str]:
    """The forms that have no row, or one that says that they do not lower."""
    on_core = {form: find(form, "aie2p") for op in on_cores(module) for form in forms_of(op)}
    of_air = {form: find_air(form, "aie2p") for op in module.walk() for form in air_forms_of(op)}
    assert on_core, "nothing runs on the cores"
    assert of_air, "nothing moves"
    rows = [*on_core.items(), *of_air.items()]
    return sorted(str(form) for form, row in rows if row is None or not row.verdict.lowers)


@pytest.mark.parametrize("name", registry())
def test_kernels(name: str) -> None:
    spec = registry()[name]
    for case in spec.cases:
        found = set(without_evidence(spec.build(**case).module))
        if found != set(spec.without_evidence):
            pytest.fail(
                f"kernel {name}: nothing tells that the board's compilers take {', '.join(sorted(found))}; "
                "write it otherwise, or give the form a row in virtual_npu/static/lowering with the file of "
                f"upstream that shows it, or say `without_evidence={tuple(sorted(found))}` in its KernelSpec",
                pytrace=False,
            )


def test_no_program_has_a_kernel_without_evidence() -> None:
    steps = {step.kernel for plan in PLANS.values() for step in plan(DEMO, DEMO_SEQ_LEN).steps}
    assert {name for name in steps if registry()[name].without_evidence} == set()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", PLANS)
def test_programs(name: str, model: str) -> None:
    program = build_program(PLANS[name](*MODELS[model]))
    assert without_evidence(parse(program.text)) == []


@pytest.mark.parametrize(
    ("kernel", "change", "forms"),
    [
        (
            "eltwise_add",
            ("vector<16xbf16>", "vector<24xbf16>"),
            [
                f"{op} vector<24xbf16>"
                for op in ("arith.addf", "vector.transfer_read", "vector.transfer_write")
            ],
        ),
        ("eltwise_add", ("arith.addf", "arith.divf"), ["arith.divf vector<16xbf16>"]),
        ("flash_attention", ("npu_dma_stream", "npu_dma_packet", 1), ["air.channel npu_dma_packet"]),
    ],
)
def test_a_form_that_nobody_tells_of_is_found(kernel: str, change: tuple, forms: list[str]) -> None:
    text = registry()[kernel].build(**registry()[kernel].cases[0]).text
    assert without_evidence(parse(text.replace(*change))) == forms


def test_rows_have_evidence() -> None:
    assert all(row.evidence and all("mlir-air" in source for source in row.evidence) for row in AIR_TABLE)
