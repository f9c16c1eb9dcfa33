"""out = the gated delta rule over a run of positions, and the state after it, as linear attention has it.

A head keeps a state of keys by values in f32. Each position decays it, writes what its value has that the
state does not give for its key yet, and reads it with its query. So positions go one after the other, and a
run begins with the state before it. Positions that are not there leave the state as it is, to the bit: a run
has the same results whatever its length.

The host brings what a position needs of a head in one row: query, key, decay and rate, value. Columns of the
state do not depend on each other, so a head is cut into tiles of columns: the unit of work. Up to eight cores
in a row share the heads evenly, and go through the units of theirs: the state comes over one input channel of
the core, rows over the other. The compute is `gated_delta_rule.cc`, in f32.

Two loops go over a core's heads and their tiles, since mlir-air makes of a loop's variable that only an
offset needs bounds that grow evenly, which its quotient and remainder do not.

The state is f32 because a rate of decay near 1 is lost in 8 bits, and as `transformers` has it so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aerie.device.npu2 import NPU2, DeviceModel
from aerie.kernel_builder.arguments import IllegalShapeError
from aerie.kernel_builder.buffers import CoreBuffers, l1_bytes
from aerie.kernel_builder.delta_rows import (
    DECAY,
    LANES,
    PRESENT,
    RATE,
    from_tiles,
    row_width,
    state_shape,
    tile_columns,
    to_tiles,
)
from aerie.kernel_builder.dsl import L1, Kernel, Role, bf16, f32, i32
from aerie.kernel_builder.spec import (
    Allowance,
    Array,
    KernelModule,
    KernelSpec,
    Parameters,
    Tolerance,
    cores,
    largest_divisor,
    require_multiple,
)
from aerie.kernel_builder.values import ExternalFunction

GROUP = 8
"""Most positions of one DMA: in heads of 128, two of them and their results take 13.5 KiB of L1."""


def held(group: int, key_dim: int, value_dim: int) -> CoreBuffers:
    """The buffers of a core in L1; 2 copies if the compiler may double-buffer what a loop receives."""
    tile = tile_columns(value_dim)
    return {
        "l1_rows": (L1((group, row_width(key_dim, value_dim)), bf16), 2),
        "l1_units": (L1((2 * key_dim,), f32), 1),
        "l1_start": (L1((key_dim, tile), f32), 1),
        "l1_state": (L1((key_dim, tile), f32), 1),
        "l1_out": (L1((group, tile), bf16), 2),
    }


def l1_bytes_of_page(key_dim: int, value_dim: int) -> int:
    """Bytes of L1 that a core needs for a page of positions."""
    return l1_bytes(held(GROUP, key_dim, value_dim))


def build(
    heads: int, positions: int, key_dim: int, value_dim: int, *, device: DeviceModel = NPU2
) -> KernelModule:
    """rows are (heads, positions, row_width) bf16, state and state_out `state_shape` f32, out is (positions,
    heads * value_dim) bf16.

    A row: query (key_dim), key (key_dim), 8 f32 in 16 elements of which the first are the decay, the rate and
    1 for a position that is there, value (value_dim). key_dim and value_dim are multiples of 16, and fit L1.
    Raises IllegalShapeError.
    """
    name = KERNEL.name
    require_multiple(name, "heads", heads, 1, "there must be a head")
    require_multiple(name, "positions", positions, 1, "there must be a position")
    for size, value in (("key_dim", key_dim), ("value_dim", value_dim)):
        require_multiple(name, size, value, LANES, "a core takes 16 elements at a time")
    group = largest_divisor(positions, GROUP)
    buffers = held(group, key_dim, value_dim)
    if (nbytes := l1_bytes(buffers)) > device.l1_budget:
        raise IllegalShapeError(
            f"{name}: key_dim={key_dim} and value_dim={value_dim} take {nbytes} bytes of a core's "
            f"{device.l1_budget}: {group} rows, and {key_dim} rows of the state twice; use smaller heads, as "
            "128 and 128"
        )
    units, _, tile = state_shape(heads, key_dim, value_dim)
    herd_x = cores(name, "heads", heads, None, device)
    k = Kernel(name, device)
    rows = k.argument("rows", (heads, positions, row_width(key_dim, value_dim)), bf16, Role.INPUT)
    state = k.argument("state", (units, key_dim, tile), f32, Role.INPUT)
    out = k.argument("out", (positions, heads * value_dim), bf16, Role.OUTPUT)
    state_out = k.argument("state_out", (units, key_dim, tile), f32, Role.OUTPUT)
    begin, rule = _externals(k, group, key_dim, value_dim)
    tiles, share = value_dim // tile, heads // herd_x
    with (
        k.launch(),
        k.segment("delta_segment"),
        k.herd(herd_x, 1, name="delta_herd") as (tx, _),
    ):
        l1_rows, l1_units, l1_start, l1_state, l1_out = k.alloc_each(buffers).values()
        for own in k.loop(share):
            head = tx * share + own
            for part in k.loop(tiles):
                unit = head * tiles + part
                k.dma(l1_start, state[unit, :, :])
                begin(l1_start, l1_state)
                for at in k.loop(0, positions, group):
                    k.dma(l1_rows, rows[head, at : at + group, :])
                    rule(l1_rows, l1_units, l1_state, l1_out, group, part * tile)
                    k.dma(out[at : at + group, unit * tile : unit * tile + tile], l1_out)
                k.dma(state_out[unit, :, :], l1_state)
    return k.finish()


def _externals(
    k: Kernel, group: int, key_dim: int, value_dim: int
) -> tuple[ExternalFunction, ExternalFunction]:
    """Both functions of gated_delta_rule.cc, under symbols of their own for these sizes."""
    types = {name: type_ for name, (type_, _) in held(group, key_dim, value_dim).items()}
    start, sizes = types.pop("l1_start"), f"{group}x{key_dim}x{value_dim}"
    rule, begin = f"gated_delta_rule_bf16_{sizes}", f"begin_delta_rule_f32_{sizes}"
    source = "gated_delta_rule.cc"
    defines = {
        "gated_delta_rule_bf16": rule,
        "begin_delta_rule_f32": begin,
        "DELTA_KEY": key_dim,
        "DELTA_VALUE": value_dim,
        "DELTA_TILE": tile_columns(value_dim),
    }
    return (
        k.external(begin, f"{rule}.o", [start, types["l1_state"]], source, defines),
        k.external(rule, f"{rule}.o", [*types.values(), i32, i32], source, defines),
    )


def reference(parameters: Parameters, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The rule in f64, position by position; the results rounded to bf16 and f32."""
    key_dim, value_dim = parameters["key_dim"], parameters["value_dim"]
    rows, heads = arrays["rows"], parameters["heads"]
    gates = np.ascontiguousarray(rows[..., 2 * key_dim : 2 * key_dim + LANES]).view(np.float32)
    query, key = (_unit(rows[..., at : at + key_dim].astype(np.float64)) for at in (0, key_dim))
    query, value = query / np.sqrt(key_dim), rows[..., 2 * key_dim + LANES :].astype(np.float64)
    state = from_tiles(arrays["state"].astype(np.float64), heads)
    out = np.zeros((parameters["positions"], heads, value_dim))
    for at in range(parameters["positions"]):
        there = gates[:, at, PRESENT, None, None] != 0
        decayed = state * gates[:, at, DECAY, None, None]
        missing = value[:, at] - np.einsum("hk,hkv->hv", key[:, at], decayed)
        added = missing * gates[:, at, RATE, None]
        state = np.where(there, decayed + key[:, at, :, None] * added[:, None], state)
        out[at] = np.where(there[..., 0], np.einsum("hk,hkv->hv", query[:, at], state), 0)
    results = out.reshape(len(out), -1).astype(np.float32).astype(bf16.numpy)
    return {"out": results, "state_out": to_tiles(state).astype(np.float32)}


def _unit(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6))


def random_inputs(parameters: Parameters, rng: np.random.Generator) -> dict[str, Array]:
    """Normal numbers, decays and rates between 0 and 1, and the first positions there."""
    heads, positions = parameters["heads"], parameters["positions"]
    key_dim, value_dim = parameters["key_dim"], parameters["value_dim"]
    rows = rng.standard_normal((heads, positions, row_width(key_dim, value_dim))).astype(bf16.numpy)
    gates = np.zeros((heads, positions, LANES // 2), np.float32)
    gates[..., DECAY] = np.exp(-rng.exponential(0.3, gates.shape[:2]))
    gates[..., RATE] = rng.random(gates.shape[:2])
    gates[:, : rng.integers(1, positions + 1), PRESENT] = 1
    rows[..., 2 * key_dim : 2 * key_dim + LANES] = gates.view(bf16.numpy)
    state = rng.standard_normal(state_shape(heads, key_dim, value_dim)).astype(np.float32)
    return {"rows": rows, "state": state}


def random_case(rng: np.random.Generator) -> dict[str, Any]:
    """Up to 6 heads of up to 64 keys and values, and up to 20 positions."""
    key_dim, value_dim = (LANES * int(rng.integers(1, 5)) for _ in range(2))
    heads, positions = int(rng.integers(1, 7)), int(rng.integers(1, 21))
    return {"heads": heads, "positions": positions, "key_dim": key_dim, "value_dim": value_dim}


KERNEL = KernelSpec(
    name="gated_delta_rule",
    build=build,
    reference=reference,
    cases=(
        {"heads": 8, "positions": 64, "key_dim": 32, "value_dim": 32},
        {"heads": 3, "positions": 24, "key_dim": 16, "value_dim": 48},
        {"heads": 16, "positions": 64, "key_dim": 128, "value_dim": 128},
    ),
    tolerance=Tolerance(
        2.0**-7,
        1e-4,
        "f32 sums of up to 128 products, over up to 64 positions, against f64: 1e-5 of sums whose terms are "
        "near 1, and a result near halfway rounds to a neighbour in bf16",
    ),
    random_case=random_case,
    random_inputs=random_inputs,
    rows="",
    allowance=Allowance(
        1e-3,
        0.02,
        "a core puts a product of two f32 together from several of bf16; what of it is lost is not published",
    ),
)
