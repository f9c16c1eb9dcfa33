"""mlir-air's Python bindings: the plumbing against a stand-in package `air`, the rest where they are."""

import importlib.util
import sys

import pytest

from aerie.kernel_builder.kernels import all_kernels
from aerie.multi_launch_builder import build_programs
from aerie.multi_launch_builder.programs import PLANS
from aerie.multi_launch_builder.shapes import ModelShape
from aerie.multi_launch_builder.stitcher import Stitcher
from aerie.runtime.npu import checks

STAND_IN = '''
"""A stand-in for mlir-air's air.ir: it refuses text with the word `bad`, and crashes at `crash`."""
import os

class Context:
    def __enter__(self): return self
    def __exit__(self, *_): pass

class Location(Context):
    @staticmethod
    def unknown(): return Location()

class Module:
    @staticmethod
    def parse(text):
        if "crash" in text:
            os.abort()
        if "bad" in text:
            raise ValueError("unknown op 'bad'")
        module = Module()
        module.operation = module
        module.text = text
        return module

    def verify(self):
        return "unverified" not in self.text
'''


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A package `air` with a module `ir`, on the path of this Python and of those it starts."""
    (tmp_path / "air").mkdir()
    (tmp_path / "air" / "ir.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield tmp_path
    sys.modules.pop("air", None)  # finding air.ir loads the package around it


@pytest.fixture
def file(tmp_path):
    return lambda text: (tmp_path / "program.mlir", (tmp_path / "program.mlir").write_text(text))[0]


def test_without_the_bindings(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not checks.bindings_installed()
    assert checks.bindings_status() == (
        "air.ir is not installed: modules are verified by Aerie's own dialect alone"
    )


def test_with_a_stand_in(stand_in, file):
    assert checks.bindings_installed()
    assert checks.bindings_status() == (
        "air.ir (not from a wheel) parses and verifies every module before aircc sees it"
    )
    assert checks.bindings_error_text(file("fine")) == ""
    assert "air.ir" not in sys.modules  # it was loaded by the child alone


def test_a_module_that_is_refused(stand_in, file):
    assert "unknown op 'bad'" in checks.bindings_error_text(file("bad"))
    assert checks.bindings_error_text(file("unverified")) == "air.ir: the module does not verify"


def test_a_crash_is_a_message(stand_in, file):
    objection = checks.bindings_error_text(file("crash"))
    assert "air.ir" in objection or "Abort" in objection


def test_bindings_that_do_not_end(stand_in, file, monkeypatch):
    (stand_in / "air" / "ir.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(checks, "SECONDS", 1)
    assert checks.bindings_error_text(file("fine")) == "air.ir did not end within 1 s"


needs_bindings = pytest.mark.skipif(
    not checks.bindings_installed(), reason="needs mlir-air's Python bindings (air.ir)"
)
SHAPE = ModelShape(256, 4, 2, 64, 512, 2048, 1e-5)


@needs_bindings
def test_every_program_verifies_upstream(file):
    for program in build_programs(SHAPE, 64).values():
        assert checks.bindings_error_text(file(program.text)) == ""


@needs_bindings
def test_text_that_upstream_prints_goes_through_the_stitcher():
    """Kernels printed by the bindings, in their own form, are stitched like ours, and to the same program."""
    from air.ir import Context, Location, Module

    plan = PLANS["rms_gemv_rope"](SHAPE, 64)
    stitcher = Stitcher(plan.name, plan.arguments)
    for step in plan.launches:
        kernel = all_kernels()[step.kernel].build(**step.parameters)
        with Context(), Location.unknown():
            printed = str(Module.parse(kernel.text))
        stitcher.add(printed, step.wiring, label=step.label, argument_names=kernel.arguments.names)
    stitcher.finish().verify()
