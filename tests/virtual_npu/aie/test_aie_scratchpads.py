"""Parameters by a scratchpad: in Python and by pyxrt; test_aie_hosts runs a host in C++."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aerie import virtual_npu
from aerie.virtual_npu import pyxrt
from aerie.virtual_npu.errors import VirtualNpuRuntimeError
from aerie.virtual_npu.options import BuildOptions
from aerie.virtual_npu.program import Program
from aerie.virtual_npu.toolchain import parameters_text
from tests.virtual_npu.aie.scratchpad_designs import MODULE, SKIP, START, WANTED, WORDS


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scratch") / "aie.elf"
    virtual_npu.build(MODULE, path, options=BuildOptions(checks=False))
    return path


def test_the_scratchpad_is_the_last_argument() -> None:
    program = Program.from_text(MODULE, "scratch.mlir", options=BuildOptions(checks=False))
    data, out = np.arange(64, dtype=np.int32), np.zeros(8, np.int32)
    assert np.array_equal(program.run(data, np.int64(START), out, WORDS.view(np.int32)).outputs[2], WANTED)
    with pytest.raises(VirtualNpuRuntimeError, match=r"aie\.dma_bd: reaches bytes 256 to 287"):
        program.run(data, np.int64(64 - SKIP), out, WORDS.view(np.int32))


def test_a_python_host(path: Path) -> None:
    device = pyxrt.device(0)
    kernel = pyxrt.ext.kernel(pyxrt.hw_context(device, pyxrt.elf(str(path))), "main:scratch")
    run = pyxrt.run(kernel)
    data, out = pyxrt.ext.bo(device, 4 * 64), pyxrt.ext.bo(device, 4 * 8)
    np.frombuffer(data.map(), np.int32)[:] = np.arange(64)
    run.set_arg(0, data)
    run.set_arg(1, START)
    run.set_arg(2, out)
    np.frombuffer(run.get_ctrl_scratchpad_bo().map(), np.uint32)[:] = WORDS
    run.start()
    run.wait2()
    assert np.array_equal(np.frombuffer(out.map(), np.int32), WANTED)


def test_a_file_of_the_parameters() -> None:
    assert parameters_text(MODULE) == "3\nskip 0 i32 addr\nfactor 1 i16 core\nhalf 2 bf16 core\n"
