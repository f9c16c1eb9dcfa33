"""Products of bf16 on ARM, with its instructions for bf16 and with NEON alone: cross-compiled, under QEMU."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie.common.compiler import Compiler, compiler_flags
from aerie.device.external_kernels import OWN_KERNELS
from aerie.virtual_npu.codegen.module import RUNTIME
from aerie.virtual_npu.objects import INCLUDE
from aerie.virtual_npu.options import BuildOptions
from tests.virtual_npu.instruction_sets import ODD_PAIRS, ONE_BY_ONE, in_order
from tests.virtual_npu.test_vnpu_instruction_sets import drawn, far_apart, same

CROSS, EMULATOR = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64-static")
ORDERS = {"armv8.2-a+bf16": ODD_PAIRS, "armv8.2-a": ONE_BY_ONE}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CROSS and EMULATOR), reason="needs aarch64-linux-gnu-g++ and qemu-aarch64-static"
    ),
]


@pytest.fixture(scope="module", params=ORDERS)
def sums(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """sums_main.cc for a CPU, and the order of sums that it has."""
    folder = tmp_path_factory.mktemp("arm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VNPU_MARCH", request.param)
        flags = [
            flag for flag in compiler_flags(BuildOptions().compiler_flags) if not flag.startswith("-march")
        ]
    compiler = Compiler((str(CROSS),), (*flags, f"-march={request.param}"))
    headers = (f"-I{INCLUDE}", f"-I{OWN_KERNELS / 'host'}")
    sources = [Path(__file__).with_name("sums_main.cc")]
    sources += [INCLUDE / "vnpu" / name for name in ("product.cc", *RUNTIME)]
    for source in sources:
        compiler.compile(source, folder / f"{source.stem}.o", headers)
    program = folder / "sums"
    objects = [folder / f"{source.stem}.o" for source in sources]
    subprocess.run([str(CROSS), "-static", "-pthread", *objects, "-o", program], check=True)
    return program, ORDERS[request.param]


@pytest.mark.parametrize("numbers", [drawn, far_apart])
def test_every_way_to_multiply_gives_the_bits_of_the_manual(
    sums: tuple[Path, int], numbers: Callable[..., Any]
) -> None:
    """Recognised, by vector.contract, by aie::mmul."""
    program, order = sums
    m, n, k = 24, 40, 48
    operands = numbers(m, n, k, 1)
    done = subprocess.run(
        [str(EMULATOR), program, *map(str, (m, n, k))],
        input=b"".join(operand.tobytes() for operand in operands),
        capture_output=True,
        check=True,
    )
    results = np.frombuffer(done.stdout, np.float32).reshape(3, m, n)
    for result in results:
        same(result, in_order(order, *operands))
