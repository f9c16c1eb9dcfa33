"""docs/hardware.md, section Compiling: its tables are what the code has."""

from __future__ import annotations

import re

from doc_transcripts import table

from aerie.device.npu2 import NPU2
from aerie.kernel_builder import attention
from aerie.kernel_builder.kernels import gemm, gemv, rope, swiglu
from aerie.multi_launch_builder.building import build_programs, stack_option
from aerie.multi_launch_builder.programs import ATTENTION_GRID, GEMM_GRID, ONE_COPY
from aerie.multi_launch_builder.shapes import DEMO
from aerie.runtime.npu.readings import READINGS

PAGE = "hardware.md"


def plain(*cells: str) -> tuple[str, ...]:
    """Cells as a page's are read: without backticks."""
    return tuple(cell.replace("`", "") for cell in cells)


def test_options_of_the_programs() -> None:
    expected, built = [], build_programs(DEMO, 64)
    for option in (stack_option(NPU2), GEMM_GRID[0], ATTENTION_GRID[0], ONE_COPY):
        users = [name for name, program in built.items() if option in program.options]
        programs = "all" if len(users) == len(built) else ", ".join(users)
        expected.append(plain(option.flag, programs, option.reason, option.source))
    assert table(PAGE, "option of aircc", "programs", "why", "source") == expected


def test_optimisation_of_the_kernels() -> None:
    users = {
        "transpose_blocks.cc": gemm,
        "mv.cc, mv_pieces.cc": gemv,
        "rope_halfsplit.cc": rope,
        "silu_and_mul.cc": swiglu,
        "attn_npu2.cc": attention,
    }
    expected = [
        plain(source, f"-{user.OPTIMIZE.level}", user.OPTIMIZE.reason) for source, user in users.items()
    ]
    assert table(PAGE, "kernel", "level", "why that one") == expected


def test_known_messages() -> None:
    expected = [plain(reading.name, reading.meaning) for reading in READINGS]
    assert table(PAGE, "known message", "what it means, and what to change") == expected
    assert all(re.compile(reading.pattern) for reading in READINGS)
