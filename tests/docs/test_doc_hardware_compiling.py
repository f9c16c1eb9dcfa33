"""docs/hardware.md, section Compiling: its tables are what the code has."""

from __future__ import annotations

import re

from doc_transcripts import table

from kernel_builder.kernels import flash_attention, gemm, gemv, rope, swiglu
from multi_launch_builder.compile_options import ATTENTION_GRID, GEMM_GRID, ONE_COPY, STACK
from multi_launch_builder.programs import (
    flash_attn,
    lm_head_gemv,
    o_ffn,
    o_gemv_ffn,
    rms_gemms_rope,
    rms_gemv_rope,
)
from runtime.npu.readings import READINGS

PAGE = "hardware.md"
PROGRAMS = (rms_gemms_rope, flash_attn, o_ffn, rms_gemv_rope, o_gemv_ffn, lm_head_gemv)


def plain(*cells: str) -> tuple[str, ...]:
    """Cells as a page's are read: without backticks."""
    return tuple(cell.replace("`", "") for cell in cells)


def test_options_of_the_programs() -> None:
    expected = []
    for option in (STACK, GEMM_GRID[0], ATTENTION_GRID[0], ONE_COPY):
        users = [each.__name__.rsplit(".", 1)[1] for each in PROGRAMS if option in each.OPTIONS]
        programs = "all" if len(users) == len(PROGRAMS) else ", ".join(users)
        expected.append(plain(option.flag, programs, option.reason, option.source))
    assert table(PAGE, "option of aircc", "programs", "why", "source") == expected


def test_optimisation_of_the_kernels() -> None:
    users = {
        "transpose_blocks.cc": gemm,
        "mv.cc, mv_pieces.cc": gemv,
        "rope_halfsplit.cc": rope,
        "silu_and_mul.cc": swiglu,
        "attn_npu2.cc": flash_attention,
    }
    expected = [
        plain(source, f"-{user.OPTIMIZE.level}", user.OPTIMIZE.reason) for source, user in users.items()
    ]
    assert table(PAGE, "kernel", "level", "why that one") == expected


def test_known_messages() -> None:
    expected = [plain(reading.name, reading.meaning) for reading in READINGS]
    assert table(PAGE, "known message", "what it means, and what to change") == expected
    assert all(re.compile(reading.pattern) for reading in READINGS)
