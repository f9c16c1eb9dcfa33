"""The kernels' shapes: what each refuses, what it chooses, and that what it takes fits the device."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from xdsl.dialects import scf
from xdsl.dialects.memref import AllocOp

from aerie.air_dialect.ops import ChannelGetOp, ChannelOp, ChannelPutOp, MemorySpace
from aerie.device import CheckReport, check
from aerie.device.npu2 import NPU1, NPU2, DeviceModel
from aerie.device.transfers import memref_bytes, space_of
from aerie.kernel_builder import attention, gemm_tiles
from aerie.kernel_builder.arguments import IllegalShapeError
from aerie.kernel_builder.buffers import l1_bytes
from aerie.kernel_builder.kernels import all_kernels, flash_attention, gemm, gemv

ATTENTION = {"lq": 128, "lk": 128, "n_heads": 4, "n_kv_heads": 2, "head_dim": 64}
HEADS = {"rows": 64, "n_heads": 4, "head_dim": 64}
CUBE = {"m": 64, "k": 64, "n": 64}
ROW = {"m": 256, "k": 768}
UPDATE = {"layer": 0, "layers": 2, "batch": 1, "block": 4, "max_len": 256, "n_kv_heads": 2, "head_dim": 64}
BLOCK = {**UPDATE, "n_heads": 4}
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "eltwise_add": [
        ({"rows": 8, "cols": 40}, r"cols=40 is no positive multiple of 16 .*; use 32 or 48"),
        ({"rows": 8, "cols": 8}, r"cols=8 is no positive multiple of 16 .*; use 16"),
        ({"rows": 8, "cols": 16.0}, "cols=16.0 is no whole number; use a multiple of 16"),
        ({"rows": 0, "cols": 16}, "0 rows leave nothing to do; use at least 1"),
        ({"rows": 6, "cols": 16, "herd_x": 4}, r"4 cores \(herd_x\) cannot share 6 rows .*; use 6"),
        ({"rows": None, "cols": 48, "herd_x": 8}, "cannot share 3 blocks of 16 elements .*; use 3"),
        ({"rows": 16, "cols": 16, "herd_x": 16}, r"16 cores \(herd_x\) .* in 8 columns; use 8"),
        ({"rows": 18, "cols": 16, "herd_x": 9}, r"9 cores \(herd_x\) .* in 8 columns; use 6"),
    ],
    "bias_add": [
        ({"rows": 8, "cols": 40}, r"cols=40 is no positive multiple of 16 .*; use 32 or 48"),
        ({"rows": 0, "cols": 16}, "rows=0 is no positive multiple of 1 .there must be a row.; use 1"),
        ({"rows": 8, "cols": 48, "herd_x": 8}, "cannot share 3 blocks of 16 elements .*; use 3"),
        (
            {"rows": 8, "cols": 16 * 487},
            "cols=7792 leaves 7792 for each of 1 cores, and L1 holds 6336 five times; use at most 50688",
        ),
    ],
    "short_conv": [
        ({"rows": 8, "cols": 40}, r"cols=40 is no positive multiple of 16 .*; use 32 or 48"),
        ({"rows": 0, "cols": 16}, "rows=0 is no positive multiple of 1 .there must be a row.; use 1"),
        (
            {"rows": 8, "cols": 16, "taps": 0},
            "taps=0 is no positive multiple of 1 .a result is made of a row",
        ),
        ({"rows": 8, "cols": 48, "herd_x": 8}, "cannot share 3 blocks of 16 elements .*; use 3"),
        (
            {"rows": 8, "cols": 16 * 487},
            "cols=7792 leaves 7792 for each of 1 cores, and L1 holds 2880 with 3 taps; use at most 23040",
        ),
    ],
    "gated_delta_rule": [
        (
            {"heads": 2, "positions": 8, "key_dim": 20, "value_dim": 32},
            r"key_dim=20 is no positive multiple of 16 .a core takes 16 .*; use 16 or 32",
        ),
        (
            {"heads": 2, "positions": 8, "key_dim": 16, "value_dim": 8},
            "value_dim=8 is no positive multiple of 16 .*; use 16",
        ),
        (
            {"heads": 0, "positions": 8, "key_dim": 16, "value_dim": 16},
            "heads=0 is no positive multiple of 1 .there must be a head.; use 1",
        ),
        (
            {"heads": 2, "positions": 0, "key_dim": 16, "value_dim": 16},
            "positions=0 is no positive multiple of 1 .there must be a position.; use 1",
        ),
        (
            {"heads": 2, "positions": 64, "key_dim": 256, "value_dim": 256},
            "key_dim=256 and value_dim=256 take 93696 bytes of a core.*; use smaller heads, as 128 and 128",
        ),
    ],
    "swiglu": [
        (
            {"rows": 8, "cols": 64, "activation": "relu"},
            "activation='relu'; there are 'silu', 'gelu_pyt.*'none'",
        ),
        ({"rows": 8, "cols": 100}, r"cols=100 is no positive multiple of 16 .*; use 96 or 112"),
        ({"rows": 20, "cols": 64, "herd_x": 8}, r"8 cores \(herd_x\) cannot share 20 rows .*; use 5"),
        ({"rows": None, "cols": 48, "herd_x": 2}, r"cannot share 3 blocks of 16 elements evenly .*; use 3"),
        ({"rows": 0, "cols": 64}, "0 rows leave nothing to do; use at least 1"),
    ],
    "rms_norm": [
        ({"rows": 8, "cols": 100}, r"cols=100 is no positive multiple of 32 .*; use 96 or 128"),
        ({"rows": 8, "cols": 10752}, "cols=10752 does not fit L1, .* use at most 10560"),
        ({"rows": 9, "cols": 64, "herd_x": 8}, "8 cores .* cannot share 9 rows .*; use 3"),
        ({"rows": 9, "cols": 64, "herd_x": 8, "heads": 3}, "8 cores .* cannot share 27 rows .*; use 3"),
        ({"rows": 9, "cols": 64, "heads": 0}, "heads=0 is no positive multiple of 1 .there must be a head"),
        ({"rows": None, "cols": 48, "heads": 2}, r"cols=48 is no positive multiple of 32 .*; use 32 or 64"),
    ],
    "rope": [
        ({**HEADS, "head_dim": 48}, r"head_dim=48 is no positive multiple of 32 .*; use 32 or 64"),
        ({**HEADS, "n_heads": 0}, r"n_heads=0 is no positive multiple of 1"),
        ({**HEADS, "rows": 20, "herd_x": 8}, r"8 cores \(herd_x\) cannot share 20 rows .*; use 5"),
        ({**HEADS, "rows": None, "herd_x": 8}, r"herd_x=8 cores for the one position of rows=None; use 1"),
        ({**HEADS, "head_dim": 8192}, r"a head of head_dim=8192 does not fit L1, .*; use at most 5280"),
    ],
    "gemm": [
        ({**CUBE, "m": 60}, "m=60 is no positive multiple of 8 .*; use 56 or 64"),
        ({**CUBE, "k": 4}, "k=4 is no positive multiple of 8 .*; use 8"),
        ({**CUBE, "n": -8}, "n=-8 is no positive multiple of 8 .*; use 8"),
        ({**CUBE, "tile_m": 12}, "tile_m=12 is no positive multiple of 8 .*; use 8 or 16"),
        ({**CUBE, "tile_m": 24}, "m=64 is no positive multiple of 24 .*; use 48 or 72"),
        ({**CUBE, "herd_m": 3}, "m=64 is no positive multiple of 24 .*; use 48 or 72"),
        ({**CUBE, "m": 128, "herd_m": 16}, "herd_m=16, but npu2 has 8; use 1 to 8"),
        ({**CUBE, "herd_n": 8}, "herd_n=8, but npu2 has 4; use 1 to 4"),
        ({**CUBE, "tile_k_l2": 48}, "k=64 is no positive multiple of 48 .*; use 48 or 96"),
        ({**CUBE, "tile_k_l2": 32, "tile_k_l1": 24}, "tile_k_l2=32 is no positive multiple of 24"),
        (
            {"m": 2056, "k": 8, "n": 8},
            "m=2056 makes 257 blocks of 8, a launch has at most 255 .*; use 2048",
        ),
        ({"m": 8, "k": 8, "n": 31936}, "n=31936 makes 499 blocks of 64, .* at most 255 .*; use 31944"),
        (
            {"m": 4096, "k": 8, "n": 8, "tile_m": 8, "herd_m": 1},
            "m=4096 makes 512 blocks of 8, .*; let the tiles be chosen",
        ),
        (
            {"m": 512, "k": 512, "n": 512, "tile_m": 64, "tile_n": 128},
            "tiles 64x32x128 take 73728 bytes of L1, 63488 are free on a core; use at most 32x32x128",
        ),
        (
            {"m": 256, "k": 8192, "n": 512, "tile_k_l2": 4096},
            "tile_k_l2=4096 takes 12845056 bytes of L2, npu2 has 4194304; use at most 256",
        ),
    ],
    "gemv": [
        ({**ROW, "k": 100}, r"k=100 is no positive multiple of 64 .*; use 64 or 128"),
        ({**ROW, "m": 255}, r"m=255 is no positive multiple of 2 .*; use 254 or 256"),
        ({**ROW, "m": 36, "herd_m": 8}, r"herd_m=8 cores cannot share m=36 rows in even numbers .*; use 6"),
        ({**ROW, "herd_m": 16}, r"herd_m=16 cores cannot share m=256 rows .* 8 columns; use 8"),
        ({**ROW, "tile_m": 3}, r"tile_m=3 is no even divisor of the 32 rows of a core; use 8"),
        ({**ROW, "m_input": 3}, r"m_input=3 does not divide tile_m=8; use 8"),
        ({**ROW, "k": 8192, "m_input": 4}, r"takes 147488 bytes of L1, a core has 63488; use m_input=1"),
        ({**ROW, "k": 32000}, r"x of k=32000 elements leaves no room in L1 .* use a k of at most 31424"),
        ({**ROW, "k_piece": 96}, r"k_piece=96 is no divisor of k=768 .* of 64; use 768"),
        ({**ROW, "k_piece": 512}, r"k_piece=512 is no divisor of k=768 .* of 64; use 768"),
        ({**ROW, "k_piece": 0}, r"k_piece=0 is no divisor of k=768"),
        (
            {**ROW, "k_piece": 384, "m_input": 2},
            r"m_input=2 rows at a time come whole, and k_piece=384 is less .*; use m_input=1, or k_piece=768",
        ),
        (
            {**ROW, "k": 14336, "k_piece": 14336},
            r"k=14336 in pieces of k_piece=14336 takes 86048 bytes of L1, .* use k_piece=7168",
        ),
    ],
    "block_attention": [
        ({**BLOCK, "layer": 2}, "there is no layer=2 of layers=2; use 0 to 1"),
        ({**BLOCK, "layers": 0}, "layers=0 is no positive multiple of 1"),
        ({**BLOCK, "batch": 0}, "batch=0 is no positive multiple of 1"),
        ({**BLOCK, "block": 3}, "block=3 is no positive multiple of 2 .*; use 2 or 4"),
        ({**BLOCK, "rows": 2}, "rows=2 do not hold 4 rows of 1 sequences; use 4 or more"),
        ({**BLOCK, "batch": 256}, "batch=256 sequences .* at most 255; use 255"),
        ({**BLOCK, "n_heads": 5}, r"n_heads=5 is no positive multiple of 2 .*; use 4 or 6"),
        ({**BLOCK, "max_len": 96}, r"max_len=96 is no positive multiple of 64 .*; use 64 or 128"),
        ({**BLOCK, "max_len": 320}, r"max_len=320 is no positive multiple of 256 .*; use 256 or 512"),
        ({**BLOCK, "max_len": 65536}, "max_len=65536 makes 256 tiles .* use a max_len of at most 65280"),
        ({**BLOCK, "n_heads": 2}, "block=4 rows of 1 query heads .* use a block that is a multiple of 8"),
        ({**BLOCK, "block": 66}, "block=66 rows have more keys .* use a block of at most 64"),
    ],
    "cache_update": [
        ({**UPDATE, "block": 5}, "block=5 is no positive multiple of 2 .*; use 4 or 6"),
        ({**UPDATE, "head_dim": 40}, "head_dim=40 is no positive multiple of 16 .*; use 32 or 48"),
        ({**UPDATE, "n_kv_heads": 0}, "n_kv_heads=0 is no positive multiple of 1"),
        ({**UPDATE, "max_len": 72}, "max_len=72 is no positive multiple of 16 .*; use 64 or 80"),
        ({**UPDATE, "layer": 2}, "there is no layer=2 of layers=2; use 0 to 1"),
        ({**UPDATE, "rows": 2}, "rows=2 do not hold 4 rows of 1 sequences; use 4 or more"),
        ({**UPDATE, "batch": 256}, "batch=256 sequences .* at most 255; use 255"),
        ({**UPDATE, "max_len": 65536}, "max_len=65536 makes 256 trips .* use a max_len of at most 65280"),
        ({**UPDATE, "block": 1024}, "block=1024 rows of head_dim=64 .* use a smaller block"),
    ],
    "flash_attention": [
        ({"n_heads": 5}, r"n_heads=5 is no positive multiple of 2 \(every KV head .*; use 4 or 6"),
        ({"n_kv_heads": 0}, r"n_kv_heads=0 is no positive multiple of 1"),
        (
            {"head_dim": 60},
            r"head_dim=60 is no positive multiple of 8 \(a panel has 8 columns\); use 56 or 64",
        ),
        ({"num_stages": 5}, r"num_stages=5 rows of cores, the array has 4; use 1 to 4"),
        ({"num_q_tiles": 9}, r"num_q_tiles=9 columns of cores, the array has 8; use 1 to 8"),
        (
            {"lkp": 32, "num_q_tiles": 2},
            "num_q_tiles=2 columns of cores and 4 stages: .* row 2 on .*; use num_q_tiles=1, or at least 4, "
            "or num_stages=2",
        ),
        ({"lk": 96}, r"lk=96 is no multiple of the K/V tile of 64 rows; pad to 128, or give lkp=48"),
        ({"lk": 100}, r"lk=100 is no multiple of the K/V tile of 64 rows; pad to 128$"),
        ({"lkp": 20}, r"lkp=20 is no positive multiple of 8 \(a matrix block has 8 rows\); use 16 or 24"),
        ({"lkp": 48}, r"lk=128 is no positive multiple of 48 .*; use 96 or 144"),
        ({"lq": 100}, r"lq=100 is no positive multiple of 8 .*; use 96 or 104"),
        ({"lqp": 48}, r"lq=128 is no positive multiple of 48 \(lqp, the rows of a launch\); use 96 or 144"),
        (
            {"lqp": 32, "num_q_tiles": 8},
            r"lqp=32 is no positive multiple of 64 \(8 rows for 8 cores\); use 64",
        ),
        (
            {"lqp": 128, "num_q_tiles": 1},
            r"128 query rows and lkp=64 at head_dim=64 take .* a core has 63488; ",
        ),
        (
            {"lq": 65536, "lqp": 64, "num_q_tiles": 8},
            r"makes 1024 blocks of lqp=64 rows, .* an lq of at most 16320",
        ),
    ],
}


@pytest.mark.parametrize(
    ("name", "parameters", "message"), [(name, *row) for name, rows in REFUSED.items() for row in rows]
)
def test_illegal_shapes_are_refused(name: str, parameters: dict[str, Any], message: str) -> None:
    defaults = ATTENTION if name == "flash_attention" else {}
    with pytest.raises(IllegalShapeError, match=f"{name}: .*{message}"):
        all_kernels()[name].build(**{**defaults, **parameters})


def fits(name: str, parameters: Any, device: DeviceModel = NPU2) -> CheckReport:
    """The report on a kernel, which must fit the device; and ask for no more of NPU2's compiler."""
    report = check(all_kernels()[name].build(**parameters, device=device).module, device, loop_tiling=(1, 1))
    report.raise_faults()
    if device is not NPU1 and report.warnings:
        words = "; ".join(map(str, report.warnings))
        pytest.fail(f"kernel {name} {parameters}: the static check warns: {words}", pytrace=False)
    return report


@pytest.mark.parametrize("name", all_kernels())
def test_cases_and_random_shapes_fit(name: str) -> None:
    spec, rng = all_kernels()[name], np.random.default_rng(7)
    for parameters in (*spec.cases, *(spec.random_case(rng) for _ in range(3))):
        fits(name, parameters)


OF_ELF_ALONE = {"block_attention", "cache_update"}
"""Kernels of a program that is an ELF: their six arguments are one more than the xclbin of an NPU1 takes."""


def faults_on_npu1(name: str, device: DeviceModel) -> list[str]:
    """What of a kernel's first case, built for `device`, an NPU1 does not have."""
    spec = all_kernels()[name]
    report = check(spec.build(**spec.cases[0], device=device).module, NPU1, loop_tiling=(1, 1))
    known = "host arguments takes 6, npu1 has 5" if name in OF_ELF_ALONE else "none of its faults"
    return [str(fault) for fault in report.faults if known not in fault.message]


@pytest.mark.parametrize("name", all_kernels())
def test_a_kernel_is_built_for_the_device_that_it_is_given(name: str) -> None:
    """NPU1 has half the columns: what is cut for them fits, and what is cut for NPU2 does not."""
    assert not faults_on_npu1(name, NPU1)
    if not faults_on_npu1(name, NPU2):
        pytest.fail(
            f"kernel {name}: its first case takes no more of an NPU2 than an NPU1 has, so nothing shows that "
            "it heeds `device`; begin `cases` with one that takes all 8 columns",
            pytrace=False,
        )


STATIC = {"layer": 27, "layers": 28, "batch": 1}
MODELS_SHAPES: dict[str, list[dict[str, Any]]] = {
    "block_attention": [
        {**STATIC, "block": block, "max_len": m, "n_heads": heads, "n_kv_heads": kv, "head_dim": dim}
        for block, m in ((4, 512), (32, 16384))
        for heads, kv, dim in ((4, 2, 64), (32, 8, 128), (16, 8, 128))
    ]
    + [{**STATIC, "block": 16, "max_len": 2048, "n_heads": 32, "n_kv_heads": 8, "head_dim": 128}]
    + [{**STATIC, "block": 32, "max_len": 2048, "n_heads": 4, "n_kv_heads": 1, "head_dim": 256}],
    "cache_update": [
        {**STATIC, "block": block, "max_len": m, "n_kv_heads": kv, "head_dim": dim}
        for block, m in ((4, 512), (4, 2048), (16, 2048), (32, 16384))
        for kv, dim in ((2, 64), (8, 128))
    ]
    + [{**STATIC, "block": 32, "max_len": 8192, "n_kv_heads": 1, "head_dim": 256}],
    "gemm": [
        {"m": 2048, "k": k, "n": n, "b_transposed": transposed}
        for k, n in ((2048, 2048), (2048, 512), (2048, 8192), (8192, 2048))
        for transposed in (False, True)
    ],
    "gemm_rows": [
        {"m": m, "k": k, "n": n}
        for m in (8, 32)
        for k, n in (
            (2048, 512),
            (2048, 16064),
            (8192, 2048),
            (3072, 1024),
            (896, 128),
            (4864, 896),
            (1024, 6144),
        )
    ],
    "cached_attention": [
        {"n": n, "m": 8192, "n_heads": heads, "n_kv_heads": kv, "head_dim": dim}
        for n in (8, 2048)
        for heads, kv, dim in ((4, 2, 64), (32, 8, 64), (24, 8, 128), (14, 2, 64), (32, 4, 64), (16, 8, 128))
    ]
    # Only the loop over keys depends on m.
    + [{"n": n, "m": 512, "n_heads": 24, "n_kv_heads": 8, "head_dim": 128} for n in (8, 32, 128)]
    + [{"n": n, "m": 8192, "n_heads": 4, "n_kv_heads": 1, "head_dim": 256} for n in (8, 128)],
    "gemv": [
        {"m": m, "k": k} for m in (128, 768, 8192, 16032) for k in (256, 768, 2048, 8192, 11008, 14336, 28672)
    ]
    # The longest row that comes whole, the next longer one, and the longest beside which a piece fits.
    + [{"m": 256, "k": k} for k in (10560, 10624, 31424)],
    "flash_attention": [
        {"lq": length, "lk": length, "n_heads": heads, "n_kv_heads": kv, "head_dim": dim}
        for length in (64, 2048)
        for heads, kv, dim in ((4, 2, 64), (32, 8, 64), (24, 8, 128), (3, 1, 32), (4, 1, 256))
    ]
    + [{"lq": n, "lk": n, "n_heads": 24, "n_kv_heads": 8, "head_dim": 128} for n in (192, 512)],
    # The longest row that goes whole, the next longer one, and the longest of all.
    "rms_norm": [
        {"rows": rows, "cols": cols} for rows in (2048, None, 16) for cols in (2048, 6336, 6368, 8192, 10560)
    ]
    + [
        {"rows": rows, "cols": dim, "heads": heads, "eps": 1e-6}
        for rows in (None, 8, 64, 2048)
        for heads, dim in ((16, 128), (8, 128), (32, 64), (1, 64), (64, 128), (4, 256))
    ],
    "bias_add": [
        {"rows": rows, "cols": cols} for rows in (None, 8, 32, 2048) for cols in (64, 128, 896, 2048, 8192)
    ],
    "rope": [{"rows": rows, "n_heads": n, "head_dim": 64} for rows in (2048, None) for n in (32, 8)]
    + [{"rows": 64, "n_heads": 256, "head_dim": 128}]
    + [{"rows": rows, "n_heads": 16, "head_dim": 256} for rows in (2048, None)],
    "swiglu": [{"rows": rows, "cols": 8192} for rows in (2048, None)] + [{"rows": 128, "cols": 768}],
    "eltwise_add": [{"rows": rows, "cols": 2048} for rows in (2048, None)],
}


@pytest.mark.parametrize("name", MODELS_SHAPES)
def test_shapes_of_models_fit(name: str) -> None:
    for parameters in MODELS_SHAPES[name]:
        fits(name, parameters)


def used(report: CheckReport, resource: str) -> int:
    (found,) = [usage.used for usage in report.usages if usage.resource == resource]
    return found


@pytest.mark.parametrize("b_transposed", [False, True])
def test_gemm_is_counted_as_its_schedule_says(b_transposed: bool) -> None:
    report = check(gemm.build(2048, 2048, 512, b_transposed=b_transposed).module)
    assert used(report, "trips of one dimension") == 8
    assert used(report, "cores") == 32
    # stack 1024, accumulator 32x128 f32, its bf16 copy, and 32x32 and 32x128 bf16 twice
    assert used(report, "L1 bytes") == 1024 + 16384 + 8192 + 2 * (2048 + 8192)
    # a (256, 256) and b (256, 512) twice, c (256, 512) once, bf16
    assert used(report, "L2 bytes") == 2 * (131072 + 262144) + 262144
    assert used(report, "input channels") == 2
    # a is broadcast along the columns of the herd, b along its rows; c leaves through one channel per core
    assert used(report, "memtile channels from L2") == 8 + 4 + 1
    assert used(report, "memtile channels to L2") == 32 + 2


ROOMY = replace(NPU2, l1_bytes=1 << 20)


def test_a_loop_around_a_herd_doubles_what_the_herd_fills() -> None:
    """One L1 tile of K in each of seven of L2: aircc moves the loop over those into the herd, and makes three
    copies of what it fills a trip."""
    tiles: dict[str, Any] = {
        "tile_m": 64,
        "tile_n": 64,
        "tile_k_l1": 128,
        "tile_k_l2": 128,
        "herd_m": 8,
        "herd_n": 1,
    }
    built = gemm.build(512, 896, 896, **tiles, device=ROOMY).module
    assert used(check(built), "L1 bytes") == 1024 + 16384 + 8192 + 3 * (16384 + 16384)
    assert used(check(built, omit_ping_pong="L1"), "L1 bytes") == 1024 + 16384 + 8192 + 16384 + 16384


def test_streams_of_two_dimensions_are_cut_along_the_first() -> None:
    """Without broadcasts all 32 cores read a and b for themselves: a is cut by the columns, b is not."""
    built = gemm.build(256, 2048, 1024).module
    resource = "descriptors of one memtile's even channels"
    assert used(check(built), resource) <= 24
    assert used(check(built, omit_auto_broadcast=True), resource) > 24


@pytest.mark.parametrize(
    ("build", "counted", "single"),
    [
        (partial(flash_attention.build, 256, 256, 2, 1, 64), flash_attention._l1_bytes(32, 64, 64), 16384),
        (
            partial(flash_attention.build, 256, 256, 2, 1, 32, lkp=64),
            flash_attention._l1_bytes(32, 64, 32),
            8192,
        ),
        (partial(flash_attention.build, 64, 64, 2, 1, 256), flash_attention._l1_bytes(8, 32, 256, 1), 0),
        (partial(gemv.build, 64, 2048), l1_bytes(gemv._l1_buffers(2048, 8, 4, 2048)), 16),
        (partial(gemv.build, 64, 14336), l1_bytes(gemv._l1_buffers(14336, 8, 1, 7168)), 16),
        (partial(gemm.build, 512, 512, 512), gemm_tiles.choose_tiles(512, 512, 512).l1_bytes, 0),
    ],
    ids=["attention", "attention with a next stage's buffer", "wide heads", "gemv", "gemv in pieces", "gemm"],
)
def test_counted_l1_is_the_l1_in_use(build: Any, counted: int, single: int) -> None:
    """single: bytes of buffers that a C++ function may read before it writes them. A kernel keeps room for a
    copy of them, which this state of mlir-air does not make."""
    assert used(check(build().module), "L1 bytes") + single == counted + NPU2.stack_bytes


@pytest.mark.parametrize(
    "shape", [(2048, 2048, 2048), (2048, 2048, 512), (2048, 2048, 8192), (2048, 8192, 2048)]
)
def test_gemm_tiles_of_full_size_shapes(shape: tuple[int, int, int]) -> None:
    tiles = gemm_tiles.choose_tiles(*shape)
    assert (tiles.tile_m, tiles.tile_k_l2, tiles.tile_k_l1, tiles.tile_n) == (32, 256, 32, 128)
    assert (tiles.herd_x, tiles.herd_y) == (8, 4)


def test_gemm_takes_multiples_of_8() -> None:
    """Multiples of 8 fit the device by default tiles, or are refused and the nearest that do are named."""
    rng = np.random.default_rng(0)
    for most in [40, 600, 5000] * 8:
        m, k, n = (8 * int(rng.integers(1, most)) for _ in range(3))
        legal_m, legal_n = (
            gemm_tiles.nearest_supported(m, 8, gemm_tiles.supports_rows),
            gemm_tiles.nearest_supported(n, 8, gemm_tiles.supports_columns),
        )
        if (m, n) != (legal_m, legal_n):
            with pytest.raises(IllegalShapeError, match=f"use ({legal_m}|{legal_n})$"):
                gemm.build(m, k, n)
        check(gemm.build(legal_m, k, legal_n).module).raise_faults()


def test_gemm_k_tiles_depend_on_k_alone() -> None:
    for k in (64, 256, 768, 2048, 40):
        chosen = {gemm_tiles.choose_tiles(m, k, 256) for m in (64, 128, 512, 8)}
        assert len({(t.tile_k_l1, t.tile_k_l2) for t in chosen}) == 1


@pytest.mark.parametrize(
    ("k", "tile"),
    [
        (256, 256),
        (768, 192),
        (896, 224),
        (2048, 256),
        (4864, 128),
        (480, 160),
        (864, 96),
        (248, 8),
        (2056, 8),
    ],
)
def test_gemm_takes_an_even_number_of_k_tiles_where_it_can(k: int, tile: int) -> None:
    """The third copy of an odd number takes more descriptors than a memtile's even channels have."""
    tiles = gemm_tiles.choose_tiles(64, k, 64)
    assert tiles.tile_k_l2 == tile
    copies = 1 if k == tile else 2 + k // tile % 2
    assert copies * tile // tiles.tile_k_l1 <= gemm_tiles.MAX_PIECES


@pytest.mark.parametrize(
    ("tile", "held"),
    [
        ((4, 16), (2, 2)),
        ((1, 16), (1, 4)),
        ((3, 16), (1, 4)),
        ((1, 14), (1, 2)),
        ((3, 5), (3, 1)),
        ((5, 7), (1, 1)),
    ],
)
def test_gemm_holds_as_many_blocks_as_there_are_accumulators_for(
    tile: tuple[int, int], held: tuple[int, int]
) -> None:
    assert gemm_tiles.accumulator_blocks(*tile) == held


@pytest.mark.parametrize(
    ("k", "piece"), [(8192, 8192), (10560, 10560), (10624, 5312), (11008, 5504), (14336, 7168), (28672, 1024)]
)
def test_rows_of_a_gemv_that_do_not_fit_come_in_pieces(k: int, piece: int) -> None:
    assert gemv.build(64, k).text == gemv.build(64, k, m_input=1, k_piece=piece).text
    assert ("mv_pieces.cc" in gemv.build(64, k).text) == (piece < k)


def test_products_of_one_k_share_a_symbol_and_others_do_not() -> None:
    def symbol(m: int, k: int) -> str:
        return gemv.build(m, k).text.split("@")[1].split("(")[0]

    assert symbol(256, 2048) == symbol(8192, 2048)
    assert len({symbol(256, 256), symbol(256, 768), symbol(256, 2048)}) == 3
    assert 'link_source = "mv.cc"' in gemv.build(256, 256).text


@pytest.mark.parametrize("length", [64, 128, 2048])
def test_kv_tiles_do_not_depend_on_the_length(length: int) -> None:
    text = flash_attention.build(length, length, 2, 1, 64).text
    assert "ATTN_KV_ROWS=64 ATTN_HEAD_DIM=64" in text
    assert text.count("air.channel @k_in_") == min(attention.STAGES, length // 64)


@pytest.mark.parametrize("heads", [(4, 2, 64), (14, 2, 64), (24, 8, 128)])
@pytest.mark.parametrize("length", [64, 192, 2048])
def test_attention_names_a_shim_column_for_all_that_passes_it(
    length: int, heads: tuple[int, int, int]
) -> None:
    """A shim tile has two channels in each direction, and mlir-air writes out a loop that holds two puts."""
    module = flash_attention.build(length, length, *heads).module
    channels = [op for op in module.walk() if isinstance(op, ChannelOp)]
    columns = {channel.sym_name: channel.attributes.get("air.shim_col") for channel in channels}
    ends = [op for op in module.walk() if isinstance(op, ChannelPutOp | ChannelGetOp)]
    launch = [op for op in ends if space_of(op.memref.type) == MemorySpace.L3]
    for kind in (ChannelPutOp, ChannelGetOp):
        taken = Counter(columns[op.chan_name] for op in launch if isinstance(op, kind))
        assert None not in taken
        assert max(taken.values()) <= NPU2.shim.mm2s_channels
    loops = Counter(op.parent_op() for op in launch if isinstance(op.parent_op(), scf.ForOp))
    assert set(loops.values()) == {1}
    assert len(launch) == len({op.chan_name for op in launch})


def test_attention_refuses_more_streams_than_the_shim_has() -> None:
    with pytest.raises(
        IllegalShapeError, match=r"take 12 shim channels from L3, the device has 8; use num_st"
    ):
        flash_attention.build(256, 256, 2, 1, 64, device=NPU1)
    assert check(flash_attention.build(256, 256, 2, 1, 64, num_stages=2, device=NPU1).module, NPU1).ok


@pytest.mark.parametrize(("head_dim", "lkp"), [(64, 64), (32, 64), (128, 32), (256, 32)])
def test_a_cascade_carries_whole_buffers_of_one_type(head_dim: int, lkp: int) -> None:
    module = flash_attention.build(256, 256, 2, 1, head_dim, lkp=lkp).module
    ends = [op for op in module.walk() if isinstance(op, ChannelPutOp | ChannelGetOp)]
    sent, taken = (
        [op.memref for op in ends if isinstance(op, kind) and op.chan_name == "partial"]
        for kind in (ChannelPutOp, ChannelGetOp)
    )
    assert [x.type for x in sent] == [x.type for x in taken]
    assert len(sent) == 2


WIDE = 64
"""Bytes of the widest access of AIE2P, 512 bits."""


@pytest.mark.parametrize("name", all_kernels())
def test_every_buffer_that_is_accessed_wide_lies_at_a_multiple_of_64(name: str) -> None:
    """Until its pull request 3662 (September 2026) mlir-aie aligns the buffers of a core to 32 bytes.

    It lays them out one after the other behind the stack, the largest first (AIEAssignBuffers.cpp). So a
    buffer lies well if the stack and all larger buffers are multiples of 64 bytes. That is so at widths of
    models, multiples of 32; at others RMSNorm's sums may lie wrong, after its rows.
    """
    assert NPU2.stack_bytes % WIDE == NPU2.program_stack_bytes % WIDE == 0
    for case in (case for case in all_kernels()[name].cases if case.get("cols", 32) % 32 == 0):
        types = [
            op.memref.type
            for op in all_kernels()[name].build(**case).module.walk()
            if isinstance(op, AllocOp)
        ]
        sizes = [memref_bytes(type_) or 0 for type_ in types if space_of(type_) == 2]
        wide = min((size for size in sizes if size >= WIDE), default=0)
        assert [size for size in sizes if size > wide and size % WIDE] == [], (case, sizes)
