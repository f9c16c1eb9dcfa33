"""The argument table: slots by name, and the sets that follow from roles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aerie.kernel_builder.arguments import (
    DTYPES,
    Argument,
    ArgumentTable,
    ArgumentTableError,
    DType,
    Role,
    bf16,
    byte,
    f16,
    f32,
    u8,
    u16,
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


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ArgumentTableError, match="no argument named 'wieght'; there are: weight"):
        TABLE.slot("wieght")


def test_a_name_is_unique() -> None:
    with pytest.raises(ArgumentTableError, match="argument declared twice: x; give each its own name"):
        ArgumentTable([TABLE["x"], TABLE["x"]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_agree_with_numpy(dtype: DType) -> None:
    assert np.zeros(1, dtype.numpy).nbytes == dtype.itemsize
    assert str(dtype) == dtype.name
    assert dtype.mlir == ("i8" if dtype is byte else dtype.name)


@pytest.mark.parametrize(
    ("dtype", "quantised", "elements", "numbers"),
    [
        (u8, {"scale": 0.5, "offset": -128}, [0, 128, 255], [-64.0, 0.0, 63.5]),
        (u16, {"scale": 2.0**-10, "offset": -32768}, [0, 32769, 65535], [-32.0, 2.0**-10, 32 - 2.0**-10]),
        (u8, {"scale": 2.0}, [0, 3, 255], [0.0, 6.0, 510.0]),
        (f16, {}, [0.5, -65504, 1], [0.5, -65504, 1]),
        (bf16, {}, [0.5, 3.0e38, 1], [0.5, float(bf16.numpy(3.0e38)), 1]),
        (f32, {}, [0.1, -1, 1], [np.float32(0.1), -1, 1]),
    ],
)
def test_meaning_of_element_types(
    dtype: DType, quantised: dict[str, Any], elements: list[float], numbers: list[float]
) -> None:
    logits = Argument("logits", (3,), dtype, Role.OUTPUT, **quantised)
    found = logits.dequantise(np.array(elements, dtype.numpy))
    assert found.dtype == np.float32
    assert found.tolist() == numbers


def test_elements_of_another_type_are_refused() -> None:
    with pytest.raises(
        ArgumentTableError, match=r"logits \(3 u8\) was given elements of float16, .* give uint8"
    ):
        Argument("logits", (3,), u8, Role.OUTPUT, 0.5).dequantise(np.zeros(3, np.float16))


@pytest.mark.parametrize(
    ("scale", "offset", "message"),
    [
        (None, -3, "logits .3 u8. has offset=-3 and no scale"),
        (0.0, 0, "logits .3 u8. has scale=0.0, and a step is a positive number"),
        (float("nan"), 0, "has scale=nan"),
    ],
)
def test_an_invalid_quantisation_is_refused(scale: float | None, offset: int, message: str) -> None:
    with pytest.raises(ArgumentTableError, match=message):
        Argument("logits", (3,), u8, Role.OUTPUT, scale, offset)
