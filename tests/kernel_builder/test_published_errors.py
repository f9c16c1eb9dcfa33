"""The published errors of large products come out too.

The largest are measured over the first ROWS rows of their results: no row depends on another, and half a
million numbers have the two digits that all of them have. A large product whose result is published in f32
and rounded to bf16 is measured in f32 alone: how the cores round is in all smaller rows, and it is the same
product. `aerie kernels numerics` measures all rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kernel_builder.test_numerics import FAST, NAMED, check_published_error

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("optimised")]

LARGE = 1 << 30
"""Multiply-adds of a large product."""
LARGEST, ROWS = 1 << 33, 256
ROUNDED = ", bf16 result"
TWICE = {
    name
    for name, row in NAMED.items()
    if row.work >= LARGE and name.endswith(ROUNDED) and name.removesuffix(ROUNDED) + ", f32 result" in NAMED
}


@pytest.fixture(scope="module")
def optimised() -> Iterator[None]:
    """A little, which takes the compiler half as long as what users have, and changes no bit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VNPU_OPT", "1")
        yield


def test_what_is_left_out_is_rounded_in_other_rows() -> None:
    assert len(TWICE) == 6
    assert sum(name.endswith(ROUNDED) for name in NAMED.keys() - TWICE) > 30


@pytest.mark.parametrize("name", sorted(NAMED.keys() - set(FAST) - TWICE))
def test_more_published_errors(name: str) -> None:
    is_cut = NAMED[name].work >= LARGEST and name.endswith(", f32 result")
    check_published_error(name, ROWS if is_cut else None)
