"""Static check of what a compiler makes of a program: it takes of each core what the program did."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from virtual_npu.static import check

FORMS = sorted((Path(__file__).parent / "compiled_forms").glob("*.mlir"))
OF_A_CORE = ("L1 bytes", "input channels", "output channels", "descriptors")


@cache
def of_a_core(path: Path) -> dict[str, int]:
    report = check(path.read_text(), filename=str(path))
    report.require()
    return {usage.resource: usage.used for usage in report.usages if usage.resource in OF_A_CORE}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_takes_what_its_program_takes(path: Path) -> None:
    kernel, _, _ = path.stem.rpartition("_")
    first = next(form for form in FORMS if form.stem.rpartition("_")[0] == kernel)
    assert of_a_core(path) == of_a_core(first)
    assert len(of_a_core(path)) == len(OF_A_CORE)
