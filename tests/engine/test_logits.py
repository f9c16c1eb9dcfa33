"""Logits of every element type, in parts and whole, against the rule written out element by element."""

import numpy as np
import pytest

from aerie.engine.logits import LogitsError, dequantise_logits, last_row, logits_arguments
from aerie.engine.sampler import Sampler
from aerie.kernel_builder.arguments import (
    Argument,
    ArgumentTable,
    ArgumentTableError,
    Role,
    bf16,
    f16,
    f32,
    i8,
    u8,
    u16,
)

QUANTISED = {"u8": (u8, 0.125, -131), "u16": (u16, 0.0009765625, -30000)}


def table(*outputs):
    return ArgumentTable([Argument("x", (4, 8), bf16, Role.INPUT), *outputs])


def logits(name, shape, dtype, scale=None, offset=0):
    return Argument(name, shape, dtype, Role.OUTPUT, scale, offset)


def drawn(shape, dtype):
    random = np.random.default_rng(3)
    if dtype in (u8, u16):
        return random.integers(0, np.iinfo(dtype.numpy).max + 1, shape).astype(dtype.numpy)
    return (random.normal(size=shape) * 8).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", [u8, u16, f16, f32, bf16], ids=str)
@pytest.mark.parametrize(("n_process", "count"), [(4, 1), (3, 1), (3, 3), (4, 2), (1, 1)])
def test_the_last_rows_of_tokens_as_numbers(dtype, n_process, count):
    scale, offset = QUANTISED.get(dtype.name, (dtype, None, 0))[1:]
    elements = drawn((4, 10), dtype)
    found = dequantise_logits(
        table(logits("logits", (4, 10), dtype, scale, offset)), {"logits": elements}, 9, n_process, count
    )
    assert (found.shape, found.dtype) == ((count, 9), np.dtype(np.float32))
    for row, got in zip(elements[n_process - count : n_process, :9], found, strict=True):
        for element, number in zip(row.tolist(), got.tolist(), strict=True):
            expected = element if scale is None else (element + offset) * scale
            assert number == np.float32(expected)


def test_parts_join_in_the_order_of_the_vocabulary():
    """Each with a scale of its own, and part 10 after part 9."""
    parts = [logits(f"logits_{part}", (2, 3), u8, 0.5 * (part + 1), -part) for part in (10, 2, 9, 0)]
    made = {each.name: np.full((2, 3), int(each.name[7:]) + 4, np.uint8) for each in parts}
    assert [each.name for each in logits_arguments(table(*parts))] == [f"logits_{n}" for n in (0, 2, 9, 10)]
    found = dequantise_logits(table(*parts), made, 11, n_process=2, count=2)
    np.testing.assert_array_equal(found, [[2.0] * 3 + [6.0] * 3 + [20.0] * 3 + [22.0] * 2] * 2)


@pytest.mark.parametrize("dtype", [u8, u16, f16, f32, bf16], ids=str)
def test_a_row_that_a_sampler_takes(dtype):
    """bf16 as it is made, which greedy sampling is fast on; the likeliest token is that of the numbers."""
    scale, offset = QUANTISED.get(dtype.name, (dtype, None, 0))[1:]
    parts = [logits(f"logits_{part}", (5,), dtype, scale, offset) for part in range(2)]
    elements = drawn((2, 5), dtype)
    made = dict(zip(("logits_0", "logits_1"), elements, strict=True))
    row = last_row(table(*parts), made, 9)
    assert row.shape == (9,)
    assert row.dtype == (bf16.numpy if dtype is bf16 else np.float32)
    np.testing.assert_array_equal(row.astype(np.float32), dequantise_logits(table(*parts), made, 9)[0])
    assert Sampler()(row) == int(np.argmax(elements.reshape(-1)[:9].astype(np.float64)))


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (
            [],
            r"none of the outputs among x is called logits, or logits_0 and so on; take the program of an LM",
        ),
        ([logits("logit", (4, 10), f32)], "none of the outputs among x, logit is called logits"),
        ([logits("logits", (4, 10), u8)], r"logits \(4x10 u8\) is quantised, and its table has no scale, .*"),
        (
            [logits("logits", (4, 10), i8)],
            r"\(4x10 i8\) has a type that logits are not read from; there are: u8",
        ),
    ],
)
def test_what_are_no_logits(outputs, message):
    for read in (dequantise_logits, last_row):
        with pytest.raises(LogitsError, match=message):
            read(table(*outputs), {"logits": np.zeros((4, 10), np.uint8)}, 10)


def test_elements_of_another_type_are_not_read_as_numbers():
    with pytest.raises(ArgumentTableError, match="was given elements of uint16"):
        dequantise_logits(table(logits("logits", (1, 4), f16)), {"logits": np.zeros((1, 4), np.uint16)}, 4)
