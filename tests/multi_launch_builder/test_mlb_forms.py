"""Every form that our kernels and programs have on the cores is one that upstream is known to lower.

A form without a row in `virtual_npu/static/lowering` fails here: find what upstream makes of it, write that
down with the file that says so, or write the kernel otherwise.
"""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import ModuleOp

from air_dialect import parse
from kernel_builder.kernels import registry
from multi_launch_builder.building import build_program
from multi_launch_builder.programs import plan_programs
from multi_launch_builder.shapes import DEMO, DEMO_SEQ_LEN, LLAMA_3_2_1B
from virtual_npu.static.lowering import find, forms_of
from virtual_npu.static.rules.lowering import on_cores

MODELS = {"demo": (DEMO, DEMO_SEQ_LEN), "Llama-3.2-1B": (LLAMA_3_2_1B, 2048)}
PROGRAMS = tuple(plan_programs(*MODELS["demo"]))


def without_evidence(module: ModuleOp) -> list[str]:
    """The forms on the cores that have no row, or one that says that they do not lower."""
    found = {form for op in on_cores(module) for form in forms_of(op)}
    assert found, "nothing runs on the cores"
    rows = {form: find(form, "aie2p") for form in found}
    return sorted(str(form) for form, row in rows.items() if row is None or not row.verdict.lowers)


@pytest.mark.parametrize("name", registry())
def test_kernels(name: str) -> None:
    spec = registry()[name]
    for case in spec.cases:
        assert without_evidence(spec.build(**case).module) == []


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, model: str) -> None:
    plan = plan_programs(*MODELS[model])[name]
    assert without_evidence(parse(build_program(plan).text)) == []


def test_a_form_that_nobody_tells_of_is_found() -> None:
    text = registry()["eltwise_add"].build(64, 256).text
    assert without_evidence(parse(text.replace("vector<16xbf16>", "vector<24xbf16>"))) == [
        "arith.addf vector<24xbf16>",
        "vector.transfer_read vector<24xbf16>",
        "vector.transfer_write vector<24xbf16>",
    ]
    assert without_evidence(parse(text.replace("arith.addf", "arith.divf"))) == ["arith.divf vector<16xbf16>"]
