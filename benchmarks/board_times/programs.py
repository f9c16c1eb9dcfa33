"""The program of a measurement, in our DSL, with the shape, tiles and cores of the kernel that was measured.

A kernel of ours that moves its data in another way than upstream's stands in with a remark. What cannot be
built says why, and has no prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aerie.kernel_builder.arguments import Argument, ArgumentTable, DType, IllegalShapeError
from aerie.kernel_builder.dsl import Role, bf16, f32
from aerie.kernel_builder.kernels import (
    eltwise_add,
    gemm,
    gemv,
    rope,
    swiglu,
)
from aerie.kernel_builder.spec import KernelModule
from aerie.multi_launch_builder import Stitcher
from aerie.multi_launch_builder.program_store import load_programs
from aerie.multi_launch_builder.shapes import LLAMA_3_2_1B
from benchmarks.board_times.board_attention import build_board_attention
from benchmarks.board_times.board_cast import build_board_cast
from benchmarks.board_times.board_gemm import BoardGemm, build_board_gemm
from benchmarks.board_times.board_gemv import build_board_gemv
from benchmarks.board_times.board_rms_norm import build_board_rms_norm
from benchmarks.board_times.board_streamed_gemm import build_streamed_gemm
from benchmarks.board_times.gelu import build_gelu
from benchmarks.board_times.measurements import Measurement

PROMPT_TOKENS = 2048
PROGRAM_NAMES = ("rms_gemms_rope", "flash_attn", "o_ffn", "lm_head_gemv", "rms_gemv_rope", "o_gemv_ffn")


class NotBuildableError(Exception):
    """A measurement has no program here; the message says why."""


@dataclass(frozen=True)
class BoardProgram:
    """The text of a program, and how it differs from the one that was measured, or ''."""

    text: str
    remark: str = ""


def build_program(row: Measurement) -> BoardProgram:
    """The program that was measured. Raises NotBuildableError."""
    builder = BUILDERS.get(row.kernel)
    if builder is None:
        raise NotBuildableError(WITHOUT_PROGRAM.get(row.kernel, "we have no kernel of this kind"))
    try:
        return builder(row)
    except IllegalShapeError as error:
        raise NotBuildableError(f"our kernel refuses it: {error}") from None


WITHOUT_PROGRAM: Mapping[str, str] = {
    "core_cycles": "cycles of one core's loop, which no program of ours has alone; a source of parameters",
    "dispatch": "an intercept of a fit, not a program; a source of parameters",
    "switch": "the locks of each design are not published",
    "ddr": "an intercept of a fit, not a program; a source of parameters",
    "decode": "a whole model's token; its programs are not published in a form that we could build",
    "layer_norm": "we have no LayerNorm kernel",
}


def _columns_only(row: Measurement) -> int:
    columns, rows = row.cores
    if rows != 1:
        raise NotBuildableError(f"our {row.kernel} has one row of cores, this one {columns}x{rows}")
    return columns


def _eltwise_add(row: Measurement) -> BoardProgram:
    return _plain(eltwise_add.build(None, row.shape["n"], _columns_only(row)))


def _silu_mul(row: Measurement) -> BoardProgram:
    if row.tiles["tile"] != swiglu.RUN_LENGTH:
        raise NotBuildableError(f"our swiglu moves runs of {swiglu.RUN_LENGTH}, this one {row.tiles['tile']}")
    return _plain(swiglu.build(None, row.shape["n"], _columns_only(row)))


def _gelu(row: Measurement) -> BoardProgram:
    return _plain(build_gelu(row.shape["n"], *row.cores, row.tiles["tile"]))


def _rope(row: Measurement) -> BoardProgram:
    return _plain(rope.build(row.shape["rows"], 1, row.shape["head_dim"], _columns_only(row)))


def _rms_norm(row: Measurement) -> BoardProgram:
    return _plain(build_board_rms_norm(row.shape["rows"], row.shape["cols"], _columns_only(row)))


def _gemv(row: Measurement) -> BoardProgram:
    m, k, columns = row.shape["m"], row.shape["k"], _columns_only(row)
    if row.tiles:
        return _plain(build_board_gemv(m, k, columns, row.tiles["tile_m"], row.tiles["m_input"]))
    return _plain(gemv.build(m, k, herd_m=columns), "our schedule")


def _gemm_f32(row: Measurement) -> BoardProgram:
    return _product(row, f32)


def _gemm_bf16(row: Measurement) -> BoardProgram:
    if row.variant == "direct":
        raise NotBuildableError("it rounds c to bf16 after each L2 tile of K; our GEMM keeps f32 sums")
    if row.variant == "fused-cast":
        return BoardProgram(_with_cast(row))
    if row.variant.startswith("OFL"):
        m, k, n = (row.shape[side] for side in "mkn")
        return _plain(gemm.build(m, k, n), "our tiles, and b in bf16 where it has bfp16")
    return _product(row, bf16)


def _product(row: Measurement, out: DType) -> BoardProgram:
    """A GEMM with the tiles and inner loop that were measured: the compiler's, or C++."""
    if not row.tiles:
        raise NotBuildableError("its tiles are not published")
    m, k, n = (row.shape[side] for side in "mkn")
    if row.variant == "direct":
        tiles: dict[str, Any] = {**row.tiles, "herd_m": row.cores[0], "herd_n": row.cores[1]}
        return _plain(gemm.build(m, k, n, **tiles, out=out))
    native, of_registry = row.numerics == "native", not row.variant.startswith("EMB")
    how = BoardGemm(
        **row.tiles,
        cores=row.cores,
        m_by_columns=of_registry,
        block_rows=4 if native else 8,
        out=out,
    )
    return _plain((build_board_gemm if of_registry else build_streamed_gemm)(m, k, n, how))


def _with_cast(row: Measurement) -> str:
    """The product in f32 and its rounding to bf16, in two launches."""
    m, k, n = (row.shape[side] for side in "mkn")
    sides = (("a", (m, k), bf16, Role.INPUT), ("b", (k, n), bf16, Role.WEIGHT))
    results = (("sums", (m, n), f32, Role.INTERMEDIATE), ("c", (m, n), bf16, Role.OUTPUT))
    stitcher = Stitcher("gemm_and_cast", ArgumentTable([Argument(*each) for each in (*sides, *results)]))
    stitcher.add(
        _product(row, f32).text, {"a": "a", "b": "b", "c": "sums"}, label="product", argument_names="abc"
    )
    stitcher.add(build_board_cast(m, n).module, {"x": "sums", "out": "c"}, label="cast")
    return str(stitcher.finish())


def _flash_attention(row: Measurement) -> BoardProgram:
    if not row.tiles:
        raise NotBuildableError("its tiles are not published, or it skips masked blocks")
    shape = {name: row.shape[name] for name in ("lq", "lk", "n_heads", "n_kv_heads", "head_dim")}
    return _plain(build_board_attention(**shape, causal=row.variant == "causal"))


def _llama_program(row: Measurement) -> BoardProgram:
    """Our program of the same launches of Llama-3.2-1B."""
    name = next((name for name in PROGRAM_NAMES if name in row.variant.split()), None)
    if name is None or row.shape_text != f"llama-3.2-1b seq={PROMPT_TOKENS}":
        raise NotBuildableError("several launches whose tiles are not published")
    text = load_programs(LLAMA_3_2_1B, PROMPT_TOKENS, [name])[name].text
    return BoardProgram(text, "our program of these launches, with our tiles")


def _plain(module: KernelModule, remark: str = "") -> BoardProgram:
    return BoardProgram(module.text, remark)


BUILDERS: Mapping[str, Callable[[Measurement], BoardProgram]] = {
    "eltwise_add": _eltwise_add,
    "flash_attention": _flash_attention,
    "gelu": _gelu,
    "gemm_bf16": _gemm_bf16,
    "gemm_f32": _gemm_f32,
    "gemv": _gemv,
    "program": _llama_program,
    "rms_norm": _rms_norm,
    "rope": _rope,
    "silu_mul": _silu_mul,
}
