"""The argument table: slots by name, and the sets that follow from roles."""

from __future__ import annotations

import numpy as np
import pytest

from aerie.kernel_builder.arguments import (
    DTYPES,
    Argument,
    ArgumentError,
    ArgumentTable,
    DType,
    Role,
    bf16,
    f32,
)

TABLE = ArgumentTable(
    [
        Argument("x", (4, 8), bf16, Role.INPUT),
        Argument("weight", (8, 8), bf16, Role.WEIGHT),
        Argument("rope_lut", (4, 2), f32, Role.LUT),
        Argument("scratch", (4, 8), bf16, Role.INTERMEDIATE),
        Argument("out", (4, 8), bf16, Role.OUTPUT),
    ]
)


def test_sets_follow_from_roles() -> None:
    assert TABLE.static_input_indices == {1, 2}
    assert TABLE.intermediate_indices == {3, 4}
    assert TABLE.output_indices == (4,)


def test_arguments_are_found_by_name_and_by_slot() -> None:
    assert TABLE.slot("scratch") == 3
    assert TABLE["out"] is TABLE[4]
    assert [argument.name for argument in TABLE[1:3]] == ["weight", "rope_lut"]
    assert TABLE.names == ("x", "weight", "rope_lut", "scratch", "out")
    assert TABLE["rope_lut"].nbytes == 32
    assert str(TABLE["weight"]) == "weight (8x8 bf16)"


def test_an_unknown_name_comes_with_the_nearest() -> None:
    with pytest.raises(ArgumentError, match="no argument named 'wieght'; there are: weight"):
        TABLE.slot("wieght")


def test_a_name_stands_once() -> None:
    with pytest.raises(ArgumentError, match="argument declared twice: x; give each its own name"):
        ArgumentTable([TABLE["x"], TABLE["x"]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_agree_with_numpy(dtype: DType) -> None:
    assert np.zeros(1, dtype.numpy).nbytes == dtype.itemsize
    assert str(dtype) == dtype.name == dtype.mlir
