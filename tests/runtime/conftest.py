"""Stand-ins for the toolchain and the loaded program, so that the runtime is tested by itself.

The program `scale` has x (input), w (weight), tmp (intermediate) and y (output), all 4x8 f32; it computes
tmp = x and y = x * w. An artifact of the stand-in is a JSON file with the argument shapes.
"""

import ctypes
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from aerie import virtual_npu
from aerie.common.fingerprint import text_digest
from aerie.kernel_builder.arguments import Argument, ArgumentTable, Role, f32
from aerie.multi_launch_builder.program import CompileOption, Program
from aerie.runtime import Backend, CompileError, KernelCache, Profiler
from aerie.virtual_npu import pyxrt
from aerie.virtual_npu.library import ArgumentType, EntryPoint

SHAPE = (4, 8)


class FakeLibrary:
    """A loaded artifact; raises what `fail` holds instead of running."""

    fail = None

    def __init__(self, path):
        stored = json.loads(path.read_text())
        arguments = tuple(ArgumentType(tuple(shape), "f32") for shape in stored["shapes"])
        self.entries = {stored["name"]: EntryPoint(stored["name"], arguments)}

    def call(self, entry, pointers):
        return lambda: self._run(entry, pointers)

    def _run(self, entry, pointers):
        if FakeLibrary.fail:
            raise FakeLibrary.fail
        arrays = [
            np.ctypeslib.as_array((ctypes.c_float * math.prod(argument.shape)).from_address(pointer))
            for pointer, argument in zip(pointers, self.entries[entry].arguments, strict=True)
        ]
        arrays[2][:] = arrays[0]
        arrays[3][:] = arrays[0] * arrays[1]


class FakeToolchain:
    """Counts what it compiles; `fail` is raised instead; programs whose text says `bad` do not compile."""

    def __init__(self):
        self.compiled = []
        self.fail = None
        self.flags = "-O2"
        self.stopped = 0

    def ingredients(self, program):
        return {"program text": text_digest(program.text), "flags": self.flags}

    memory_bytes = 1

    def stop(self):
        self.stopped += 1

    def compile(self, program, work, shared):
        self.compiled.append(program.name)
        (work / "build.log").write_text(f"compiling {program.name}\n")
        if self.fail:
            raise self.fail
        if "bad" in program.text:
            raise CompileError(program.name, "line 3: unknown op 'bad'")
        made = work / "made"
        shapes = [argument.shape for argument in program.arguments]
        made.write_text(json.dumps({"name": program.name, "shapes": shapes}))
        return made


def make_program(name="scale", text="scale", shape=SHAPE, options=(), objects=()):
    roles = {"x": Role.INPUT, "w": Role.WEIGHT, "tmp": Role.INTERMEDIATE, "y": Role.OUTPUT}
    table = ArgumentTable(Argument(key, shape, f32, role) for key, role in roles.items())
    options = tuple(CompileOption(flag, "for the test", "no source") for flag in options)
    return Program(name, text, table, ("scale",), objects, options)


@pytest.fixture(autouse=True)
def fake_library(monkeypatch):
    monkeypatch.setattr(virtual_npu, "Library", FakeLibrary)
    monkeypatch.setattr(pyxrt, "run", type("RunOfFake", (pyxrt.run,), {}))  # which is no native call
    FakeLibrary.fail = None
    return FakeLibrary


@pytest.fixture(params=["", "1"], ids=["shared", "strict"])
def strict(request, monkeypatch):
    monkeypatch.setenv("VNPU_STRICT", request.param)
    return bool(request.param)


@pytest.fixture
def toolchain():
    return FakeToolchain()


@pytest.fixture
def program():
    return make_program()


@pytest.fixture
def variant(program):
    """Programs that differ from `program` in the named fields."""
    return lambda **changes: replace(program, **changes)


@pytest.fixture
def reports():
    return []


@pytest.fixture
def open_cache(tmp_path, toolchain, reports):
    """A new KernelCache over the same directory, as a new process would have."""

    def open_one(**options):
        backend = Backend("virtual", toolchain, pyxrt, "backend virtual: for the test")
        return KernelCache(tmp_path / "cache", backend, report=reports.append, **options)

    return open_one


@pytest.fixture
def cache(open_cache, program, strict):
    """A cache with `scale` compiled, in both memory modes."""
    with open_cache(profiler=Profiler()) as cache:
        cache.compile_and_cache(program)
        yield cache


@pytest.fixture
def arrays():
    random = np.random.default_rng(0)
    return {name: random.standard_normal(SHAPE, dtype=np.float32) for name in ("x", "w")}


@pytest.fixture
def npu_tools(tmp_path, monkeypatch, npu_stand_ins):
    """Stand-ins for the NPU's compilers, on PATH; they prove plumbing and compile nothing."""
    tools = npu_stand_ins.Tools(tmp_path / "tools")
    for name, value in tools.environment().items():
        monkeypatch.setenv(name, value)
    return tools
