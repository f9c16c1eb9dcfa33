"""Attention's products of whole panels, where the CPU has tiles, against those of its kernel's blocks."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie.common import cpu
from aerie.device.external_kernels import OWN_KERNELS
from aerie.virtual_npu.objects import INCLUDE, TranslationUnit
from tests.virtual_npu.instruction_sets import (
    BF16,
    SETS,
    TILES,
    aligned,
    in_order,
    pointers,
    sums_on,
    with_products,
)

Array = np.ndarray[Any, Any]
Shape = tuple[int, int, int]

WITH_TILES = [name for name in SETS if "AMX" in name] + ["native"]
SHAPES: tuple[Shape, ...] = ((32, 64, 64), (8, 32, 96), (16, 40, 24), (24, 8, 40), (48, 96, 160))
"""Rows of queries, keys, and the width of a head: tiles of 16 and of 8 rows, one, two and three of them;
panels in pairs and one left over."""
QUICK = (SHAPES[0], SHAPES[3])
"""Even ones, and those with something left over of each: on AMX, what `make test` builds."""


class Panels:
    """What panels.cc exports, built for a set and a shape."""

    def __init__(self, library: ctypes.CDLL, shape: Shape) -> None:
        self.library, self.shape = library, shape

    def keys(self, made_by: str, q: Array, k: Array) -> Array:
        scores = aligned(np.full((self.shape[1] // 8, self.shape[0], 8), np.nan, np.float32))
        getattr(self.library, f"{made_by}_keys")(*pointers(q, k, scores))
        return scores

    def values(self, made_by: str, p: Array, v: Array, seen: Array | None, acc: Array) -> Array:
        out = aligned(acc)
        words = pointers(seen)[0] if seen is not None else None
        getattr(self.library, f"{made_by}_values")(*pointers(p, v), words, *pointers(out))
        return out


@functools.cache
def panels_on(name: str, shape: Shape) -> Panels:
    """panels.cc built for a set."""
    sizes = zip(("Q_ROWS", "KV_ROWS", "HEAD_DIM"), shape, strict=True)
    flags = tuple(f"-DATTN_{size}={value}" for size, value in sizes)
    folders = (OWN_KERNELS, OWN_KERNELS / "host", INCLUDE)
    with SETS[name].chosen():
        unit = TranslationUnit(Path(__file__).with_name("panels.cc"), folders=folders, flags=flags)
        return Panels(ctypes.CDLL(str(with_products(unit))), shape)


def cases() -> Iterator[Any]:
    """Every shape on AMX, emulated and by signal, and on the CPU's own tiles; those of AVX2 need few."""
    for name, shape in itertools.product(WITH_TILES, SHAPES):
        is_quick = name == "AMX emulated" and shape in QUICK
        if shape in QUICK or name != "AMX emulated on AVX2":
            yield pytest.param((name, shape), marks=() if is_quick else pytest.mark.slow)


@pytest.fixture(params=cases(), ids=str)
def panels(request: pytest.FixtureRequest) -> Panels:
    name, shape = request.param
    if name == "native" and "amx-tile" not in cpu.cpu_features():
        pytest.skip("this CPU has no tiles")
    return panels_on(name, shape)


def drawn(rows: int, columns: int, seed: int) -> Array:
    """In panels of 8 columns; every third row is zeros of either sign and numbers whose products vanish."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((columns // 8, rows, 8))
    small = values[:, ::3]
    small *= np.where(rng.random(small.shape) < 0.5, 0.0, 2.0**-100)
    return aligned(values.astype(np.float32).astype(BF16))


def flat(panels: Array) -> Array:
    """Row-major."""
    return np.ascontiguousarray(panels.swapaxes(0, 1).reshape(panels.shape[1], -1))


def same(got: Array, want: Array) -> None:
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def seen_rows(rows: int, seed: int) -> tuple[Array, Array]:
    """A bit for each of them, in words of 32, and which they are."""
    seen = np.random.default_rng(seed).random(-(-rows // 32) * 32) < 0.6
    return aligned(np.packbits(seen, bitorder="little").view(np.uint32)), seen[:rows]


def test_sets_with_tiles_multiply_panels() -> None:
    for name in SETS:
        if SETS[name].is_here():
            has_tiles = sums_on(name).order_of(8, 8) == TILES
            assert panels_on(name, SHAPES[0]).library.multiplies_panels() == has_tiles


def test_scores_have_the_bits_of_blocks(panels: Panels) -> None:
    rows, keys, width = panels.shape
    q, k = drawn(rows, width, 1), drawn(keys, width, 2)
    same(panels.keys("panels", q, k), panels.keys("blocks", q, k))


@pytest.mark.parametrize("has_unseen", [False, True])
def test_values_have_the_bits_of_blocks(panels: Panels, has_unseen: bool) -> None:
    rows, keys, width = panels.shape
    p, v = drawn(rows, keys, 3), drawn(keys, width, 4)
    acc = np.random.default_rng(5).standard_normal((width // 8, rows, 8)).astype(np.float32)
    seen, which = seen_rows(keys, 6)
    if has_unseen:
        v[:, ~which] = np.nan
    given = seen if has_unseen else None
    same(panels.values("panels", p, v, given, acc), panels.values("blocks", p, v, given, acc))


def test_panels_are_those_of_the_manual() -> None:
    panels = panels_on("AMX emulated", SHAPES[0])
    rows, keys, width = panels.shape
    q, k, p, v = drawn(rows, width, 1), drawn(keys, width, 2), drawn(rows, keys, 3), drawn(keys, width, 4)
    scores = in_order(TILES, flat(q), flat(k).T, np.zeros((rows, keys), np.float32), 32)
    same(flat(panels.keys("panels", q, k)), scores)
    acc = np.random.default_rng(5).standard_normal((width // 8, rows, 8)).astype(np.float32)
    same(flat(panels.values("panels", p, v, None, acc)), in_order(TILES, flat(p), flat(v), flat(acc), 32))
