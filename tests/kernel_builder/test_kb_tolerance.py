"""What a comparison with a reference says."""

from __future__ import annotations

import numpy as np
import pytest

from aerie.kernel_builder.spec import Tolerance


def test_a_difference_says_how_many_where_and_what() -> None:
    want = np.arange(6.0).reshape(2, 3)
    wrong = want + np.array([[0, 0, 0], [0.5, 0, -2]])
    exact, loose = (
        Tolerance(0.0, 0.0, "for the test"),
        Tolerance(0.1, 0.5, "for the test", max_differing_share=0.0),
    )
    assert str(exact.compare(wrong, want)) == (
        "2 of 6 elements differ, worst at index [1, 2]: got 3, wanted 5"
    )
    assert not exact.compare(wrong, want).passes
    assert str(loose.compare(wrong, want)) == (
        "2 of 6 elements differ, worst at index [1, 2]: got 3, wanted 5, allowed error 1"
    )
    assert loose.compare(wrong, want).excess == 2
    assert str(loose.compare(want + 0.25, want)).startswith("6 of 6 elements differ, at most 2 may, worst at")
    assert loose.compare(want, want).passes
    assert "got nan, wanted 0" in str(loose.compare(np.array([1.0, np.nan]), np.array([1.0, 0.0])))


def test_shapes_that_differ_are_no_result() -> None:
    with pytest.raises(ValueError, match=r"the result has shape \(2,\), its reference \(2, 1\)"):
        Tolerance(0.0, 0.0, "for the test").compare(np.zeros(2), np.zeros((2, 1)))


def test_tolerance_counts_in_allowed_distances() -> None:
    tolerance = Tolerance(0.1, 1.0, "for the test")
    want = np.array([10.0, 0.0])
    assert tolerance.excess(np.array([12.0, 0.0]), want) == pytest.approx(1.0)
    assert tolerance.excess(np.array([10.0, np.nan]), want) == np.inf
    assert tolerance.excess(want, np.array([np.nan, 0.0])) == np.inf
    assert tolerance.excess(want, np.array([np.inf, 0.0])) == np.inf
    assert tolerance.excess(np.array([np.inf, np.nan]), np.array([np.inf, np.nan])) == 0
    exact = Tolerance(0.0, 0.0, "for the test")
    assert exact.excess(want, want) == 0
    assert exact.excess(want + 1e-9, want) > 1


def test_tolerance_counts_differing_elements() -> None:
    few = Tolerance(1.0, 1.0, "for the test", max_differing_share=0.1)
    want = np.ones(100)
    assert few.excess(want + (np.arange(100) < 12) * 0.5, want) == pytest.approx(1.0)
    assert few.excess(want + (np.arange(100) < 13) * 0.5, want) > 1
