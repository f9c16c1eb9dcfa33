"""Kernel texts and argument tables for the stitcher's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aerie.kernel_builder.arguments import Argument, ArgumentTable, Role, bf16

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def text() -> Callable[[str], str]:
    """text("add"): the hand-written kernel module texts/add.mlir."""
    return lambda name: (HERE / "texts" / f"{name}.mlir").read_text()


@pytest.fixture(scope="session")
def table() -> Callable[..., ArgumentTable]:
    """table(x=(512, "input"), y=((8, 64), "output")): bf16 arguments, in the order written."""

    def make(**rows: tuple[int | tuple[int, ...], str]) -> ArgumentTable:
        shaped = {name: (s if isinstance(s, tuple) else (s,), role) for name, (s, role) in rows.items()}
        return ArgumentTable(Argument(name, s, bf16, Role(role)) for name, (s, role) in shaped.items())

    return make
