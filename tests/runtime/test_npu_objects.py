"""Objects of the C++ kernels that programs share: two processes, and what is left of one that was killed."""

import json
import subprocess
import sys

import pytest

from aerie.common.store import Store
from aerie.multi_launch_builder.program import ExternalObject
from aerie.runtime import CompileError
from aerie.runtime.npu.toolchain import Peano
from aerie.runtime.npu.tools import find_tools

MV = ExternalObject("mv_4x64_8.o", "mv.cc", ("DIM_M_OUTPUT=8",), ("matvec_vectorized_bf16_bf16",), "O2")

BUILD = """
import pathlib, subprocess, sys
from aerie.multi_launch_builder.program import ExternalObject
from aerie.runtime.npu.toolchain import Peano
from aerie.runtime.npu.tools import find_tools
from aerie.common.store import Store
mv = ExternalObject(*{fields!r})
run = lambda line: subprocess.run(line, check=True)
print(Peano(find_tools()).build(mv, Store(pathlib.Path(sys.argv[1])), run))
"""


@pytest.fixture
def peano(npu_tools):
    return Peano(find_tools())


def refuse(command):
    raise CompileError("p", "the object is there already")


def test_two_processes_compile_an_object_once(npu_tools, tmp_path):
    script = BUILD.format(fields=(MV.name, MV.source, MV.defines, MV.symbols, MV.optimize))
    command = [sys.executable, "-c", script, str(tmp_path / "shared")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    made = {process.communicate(timeout=60)[0].splitlines()[-1] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(made) == 1
    assert len(npu_tools.calls("clang++")) == 1


def test_an_object_that_is_there_is_not_compiled(peano, tmp_path):
    made = peano.build(MV, Store(tmp_path), lambda line: subprocess.run(line, check=True))
    assert peano.build(MV, Store(tmp_path), refuse) == made
    (kept,) = (tmp_path / "shared").iterdir()
    assert kept.name == f"mv_4x64_8-{peano.key(MV)}.o"


def test_a_damaged_object_is_compiled_again(peano, tmp_path):
    made = peano.build(MV, Store(tmp_path), lambda line: subprocess.run(line, check=True))
    (kept,) = (tmp_path / "shared").iterdir()
    kept.write_bytes(b"x" + kept.read_bytes()[1:])
    with pytest.raises(CompileError):
        peano.build(MV, Store(tmp_path), refuse)
    assert peano.build(MV, Store(tmp_path), lambda line: subprocess.run(line, check=True)) == made


def test_what_a_killed_process_left_is_no_object(peano, tmp_path):
    left = tmp_path / "unfinished" / f"shared-mv_4x64_8-{peano.key(MV)}.o"
    left.mkdir(parents=True)
    (left / MV.name).write_bytes(b"half")
    with pytest.raises(CompileError):
        peano.build(MV, Store(tmp_path), refuse)
    assert not left.exists()
    assert list(tmp_path.glob("**/*.o")) == []


def test_the_key_is_of_content_not_of_time(peano, tmp_path):
    first = peano.key(MV)
    assert json.dumps(peano.ingredients()) == json.dumps(Peano(find_tools()).ingredients())
    assert Peano(find_tools()).key(MV) == first
