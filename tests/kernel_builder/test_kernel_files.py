"""What a kernel's file must have. Each failure says in a sentence what is missing, and how to give it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie.kernel_builder import kernels
from aerie.kernel_builder.arguments import IllegalShapeError, Role
from aerie.kernel_builder.kernels import KernelFileError, all_kernels, eltwise_add, gemm, rms_norm
from aerie.kernel_builder.spec import KernelSpec, Tolerance
from aerie.kernel_builder.testing import random_arrays

FOLDER = Path(gemm.__file__).parent


def complaints(spec: KernelSpec) -> Iterator[str]:
    """A sentence for each thing that a kernel lacks."""
    if not spec.cases:
        yield "has no `cases`; give the parameters of two or three shapes, which every test runs"
        return
    device = inspect.signature(spec.build).parameters.get("device")
    if device is None or device.kind is not device.KEYWORD_ONLY:
        yield "cannot be built for another device; let build end with `*, device: Device = NPU2`, and use it"
        return
    if len(spec.tolerance.reason) < 20:
        yield "has a tolerance without a reason; say why its results may differ from the reference's"
    for case in spec.cases:
        if (name := spec.build(**case).name) != spec.name:
            yield f"calls itself '{name}' in its MLIR; give Kernel(...) and KernelSpec(name=...) one name"
            return
    yield from _of_the_reference(spec)
    yield from _of_random_cases(spec)


def _of_the_reference(spec: KernelSpec) -> Iterator[str]:
    case = spec.cases[0]
    table = spec.build(**case).arguments
    outputs = {a.name: (a.shape, a.dtype.numpy) for a in table if a.role is Role.OUTPUT}
    arrays = random_arrays(spec, case, np.random.default_rng(0))
    given = {name: (array.shape, array.dtype) for name, array in spec.reference(case, arrays).items()}
    if given != outputs:
        yield (
            f"has a reference that gives {_arrays_text(given)} where its results are "
            f"{_arrays_text(outputs)}; return an "
            "array for every OUTPUT argument, by its name, in its shape and type"
        )


def _arrays_text(arrays: dict[str, Any]) -> str:
    return ", ".join(f"{name} {list(shape)} {np.dtype(dtype)}" for name, (shape, dtype) in arrays.items())


def _of_random_cases(spec: KernelSpec) -> Iterator[str]:
    for seed in range(20):
        case = spec.random_case(np.random.default_rng(seed))
        try:
            spec.build(**case)
        except IllegalShapeError as error:
            yield f"draws a random_case that it refuses itself ({error}); draw legal shapes alone"
            return


@pytest.mark.parametrize("name", all_kernels())
def test_a_kernel_has_all_that_it_needs(name: str) -> None:
    if found := list(complaints(all_kernels()[name])):
        pytest.fail("\n".join(f"kernel {name} {what}" for what in found), pytrace=False)


def changed(**fields: Any) -> KernelSpec:
    return dataclasses.replace(eltwise_add.KERNEL, **fields)


def without_device(rows: int | None, cols: int) -> Any:
    return eltwise_add.build(rows, cols)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (changed(cases=()), "has no `cases`; give the parameters"),
        (changed(build=without_device), "cannot be built for another device; let build end with"),
        (changed(tolerance=Tolerance(0.1, 0.1, "")), "has a tolerance without a reason; say why"),
        (changed(name="add"), "calls itself 'eltwise_add' in its MLIR; give Kernel"),
        (
            changed(reference=lambda _, arrays: {"sum": arrays["a"]}),
            "has a reference that gives sum [64, 256] bfloat16 where its results are out [64, 256]",
        ),
        (
            changed(random_case=lambda _: {"rows": 1, "cols": 8}),
            "draws a random_case that it refuses itself (elt",
        ),
    ],
)
def test_missing_parts_of_a_kernel_are_reported(spec: KernelSpec, sentence: str) -> None:
    (found,) = complaints(spec)
    assert found.startswith(sentence)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """folder(file, text): the kernels, and one more file among them."""
    monkeypatch.setattr(kernels, "__path__", [*kernels.__path__, str(tmp_path)])
    all_kernels.cache_clear()

    def write(file: str, text: str) -> None:
        (tmp_path / file).write_text(text)

    yield write
    all_kernels.cache_clear()


def test_a_new_file_is_a_kernel(folder: Callable[[str, str], None]) -> None:
    text = (FOLDER / "eltwise_add.py").read_text()
    folder("new_kernel_of_a_test.py", text.replace('"eltwise_add"', '"new_kernel"'))
    assert all_kernels()["new_kernel"].build(8, 32).name == "new_kernel"
    assert all_kernels()["eltwise_add"] is eltwise_add.KERNEL
    sizes = ("rows", "cols", "eps", "herd_x", "heads")
    assert rms_norm.KERNEL.parameters == (*sizes, "round_once", "weight_offset")


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("no_kernel_of_a_test.py", "X = 1", r"kernels/no_kernel_of_a_test.py has no KERNEL: end it with"),
        (
            "twin_of_a_test.py",
            "import dataclasses\nfrom aerie.kernel_builder.kernels import eltwise_add\n"
            "KERNEL = dataclasses.replace(eltwise_add.KERNEL)\n",
            "kernels/twin_of_a_test.py: there is a kernel named 'eltwise_add' already; give it another name",
        ),
    ],
)
def test_a_file_that_is_no_kernel_is_refused(
    folder: Callable[[str, str], None], file: str, text: str, sentence: str
) -> None:
    folder(file, text)
    with pytest.raises(KernelFileError, match=sentence):
        all_kernels()
