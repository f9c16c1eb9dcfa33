"""Where two results differ first."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aerie.virtual_npu import ArgumentType
from aerie.virtual_npu.arrays import first_difference

NAN, INF = float("nan"), float("inf")


def difference(expected, found, tolerance=0.0, dtype="f32"):
    given = [np.array(values, np.float32) for values in (expected, found)]
    return first_difference([ArgumentType(given[0].shape, dtype)], [given[0]], [given[1]], tolerance)


def test_the_first_in_row_major_order():
    found = difference([[1, 2, 3], [4, 5, 6]], [[1, 2, 3.5], [0, 5, 6]])
    assert (found.argument, found.index, found.count, found.size) == (0, (0, 2), 2, 6)
    assert str(found) == "arg0[0, 2] is 3.5 instead of 3.0 (2 of 6 elements differ)"


def test_bit_for_bit():
    assert difference([NAN, INF, 0.0], [NAN, INF, 0.0]) is None
    assert difference([0.0], [-0.0]).count == 1
    assert difference([1.0], [NAN]).count == 1


@pytest.mark.parametrize(
    ("expected", "found", "far"),
    [
        ([1.0], [1.01], False),
        ([1.0], [1.03], True),
        ([100.0], [101.0], False),
        ([NAN], [NAN], False),
        ([INF], [-INF], True),
        ([INF], [1.0], True),
        ([1.0], [NAN], True),
        ([0.0], [-0.0], False),
    ],
)
def test_within_a_tolerance(expected, found, far):
    assert (difference(expected, found, tolerance=0.01) is not None) is far


def test_other_types():
    argument = ArgumentType((2,), "bf16")
    bits = [np.array(v, ml_dtypes.bfloat16).view(np.uint16) for v in ([1, 2], [1, 2.5])]
    found = first_difference([argument], bits[:1], bits[1:])
    assert found
    assert (found.expected, found.found) == (2.0, 2.5)
    integers = [np.array([3], np.int32)], [np.array([4], np.int32)]
    found = first_difference([ArgumentType((1,), "i32")], *integers, tolerance=9)
    assert found
    assert found.found == 4


def test_as_json():
    fields = difference([1.0], [NAN]).to_json()
    assert json.loads(json.dumps(fields, allow_nan=False)) == {
        "argument": "arg0",
        "index": [0],
        "expected": 1.0,
        "found": "nan",
        "count": 1,
        "size": 1,
    }


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.uint16])
def test_bf16_is_compared_by_its_bits_in_either_dtype(dtype: Any) -> None:
    argument = ArgumentType((2,), "bf16")
    numbers = [np.array(pair, ml_dtypes.bfloat16).view(dtype) for pair in ([0.25, 0.5], [0.25, 0.75])]
    assert first_difference([argument], numbers[:1], numbers[:1]) is None
    difference = first_difference([argument], numbers[:1], numbers[1:])
    assert str(difference) == "arg0[1] is 0.75 instead of 0.5 (1 of 2 elements differ)"
