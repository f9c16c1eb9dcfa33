"""The numbers by which a step is compared, and when they are too far."""

import math

import ml_dtypes
import numpy as np
import pytest

from aerie.verify.measures import (
    BF16_ULP,
    MAX_BIAS,
    NOT_FINITE,
    BoundCheck,
    Measures,
    measure,
    own_checks,
    run_checks,
)

RNG = np.random.default_rng(0)
EXACT = RNG.normal(size=(40, 256)).astype(np.float32)
ROUNDED = EXACT.astype(ml_dtypes.bfloat16).astype(np.float32)
NEXT_DOWN = (EXACT.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)  # towards zero
FLOOR = np.where(EXACT < 0, -((-EXACT).view(np.uint32) + 0xFFFF & 0xFFFF0000).view(np.float32), NEXT_DOWN)


def left(checks):
    return {check.name for check in checks if not check.passes}


def own(ours):
    """What leaves its bound where transformers rounds to nearest."""
    return left(own_checks(measure(ours, EXACT), measure(ROUNDED, EXACT), of_blocks=False))


def test_equal_arrays_are_at_no_distance():
    same = measure(EXACT, EXACT)
    assert same.cosine == pytest.approx(1)
    assert (same.max_diff, same.mean_diff, same.relative_l1, same.bias, same.shrink) == (0, 0, 0, 0, 0)


def test_numbers_by_hand():
    found = measure(np.array([3.0, -4.0]), np.array([4.0, -4.0]))
    assert found.cosine == pytest.approx(28 / (5 * math.sqrt(32)))
    assert (found.max_diff, found.mean_diff, found.relative_l1) == (1, -0.5, 1 / 8)
    assert (found.bias, found.shrink) == (-BF16_ULP / 2, BF16_ULP / 2)


def test_all_zero_against_values_and_against_zeros():
    zeros = np.zeros_like(EXACT)
    assert measure(zeros, EXACT).cosine == 0
    assert measure(zeros, EXACT).relative_l1 == 1
    assert measure(zeros, EXACT).shrink == BF16_ULP
    assert measure(EXACT, zeros).relative_l1 == math.inf
    assert measure(zeros, zeros) == Measures(1, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_values_that_are_not_finite_have_no_distance_and_pass_no_bound(poison):
    ours = EXACT.copy()
    ours[3, 5] = poison
    found = measure(ours, EXACT)
    assert repr(found) == repr(NOT_FINITE)
    assert set(found.as_dict().values()) == {None}
    assert "cosine" in own(ours)
    assert "relative L1" in own(ours)


def test_arrays_of_two_shapes_are_refused():
    with pytest.raises(ValueError, match=r"ours is \(2,\) and theirs \(3,\); measure arrays of one shape"):
        measure(np.zeros(2), np.zeros(3))


def test_rounding_to_nearest_passes():
    assert own(ROUNDED) == set()


def test_rounding_towards_zero_shows_as_shrink_and_downwards_as_bias():
    assert "shrink" in own(NEXT_DOWN)
    assert "bias" not in own(NEXT_DOWN)
    assert "bias" in own(FLOOR)
    assert "shrink" not in own(FLOOR)
    assert measure(NEXT_DOWN, EXACT).shrink == pytest.approx(0.0027, rel=0.1)
    assert MAX_BIAS < 0.0027


def test_one_large_value_does_not_lean():
    """Its rounding error may be most of all differences; a trained model has such values."""
    exact = EXACT[0].copy()
    exact[9] = 300.9  # 300 or 302 in bf16
    ours = exact.astype(ml_dtypes.bfloat16).astype(np.float32)
    found = measure(ours, exact)
    assert abs(found.bias) < MAX_BIAS / 2
    assert abs(found.shrink) < MAX_BIAS / 2


def test_a_scale_of_half_a_percent_is_too_far():
    assert "shrink" in own((ROUNDED * 0.995).astype(ml_dtypes.bfloat16).astype(np.float32))


def test_one_wrong_number_is_too_far():
    ours = ROUNDED.copy()
    ours[7, 9] += 0.1
    assert own(ours) == {"largest difference"}


def test_a_copy_has_to_be_exact():
    ours = EXACT.copy()
    assert left(own_checks(measure(ours, EXACT), measure(EXACT, EXACT), of_blocks=False)) == set()
    ours[0, 0] = np.nextafter(ours[0, 0], np.float32(9))
    assert "largest difference" in left(
        own_checks(measure(ours, EXACT), measure(EXACT, EXACT), of_blocks=False)
    )


def test_products_of_blocks_may_lean_more():
    shrunk = (EXACT * 0.997).astype(np.float32)
    rough = (EXACT * RNG.normal(1, 0.01, EXACT.shape)).astype(np.float32)
    numbers = measure(shrunk, EXACT), measure(rough, EXACT)
    assert left(own_checks(*numbers, of_blocks=False)) == {"shrink"}
    assert left(own_checks(*numbers, of_blocks=True)) == set()


def test_the_whole_run_has_bounds_that_grow_with_the_yardstick():
    numbers = measure(ROUNDED, EXACT)
    assert left(run_checks(numbers, numbers, 1.01)) == set()
    assert left(run_checks(numbers, numbers, 0.99)) == {"cosine", "relative L1"}


def test_a_check_prints_value_and_bound_with_significant_digits():
    assert str(BoundCheck("cosine", 0.99991234, 0.9999989)) == "cosine 0.9999123 (bound 0.9999989)"
    assert str(BoundCheck("bias", -0.00275, 0.0016)) == "bias -0.00275 (bound 0.0016)"


@pytest.mark.parametrize(
    ("check", "used"),
    [
        (BoundCheck("bias", -0.5, 0.25), 2),
        (BoundCheck("cosine", 0.5, 0.75), 2),
        (BoundCheck("relative L1", 0.0, 0.0), 0),
        (BoundCheck("relative L1", 0.1, 0.0), math.inf),
        (BoundCheck("relative L1", math.nan, 0.1), math.inf),
    ],
)
def test_how_much_of_a_bound_is_used(check, used):
    assert check.used_share == used
    assert check.passes == (used <= 1)


def test_a_cosine_may_be_as_much_further_from_1_as_the_square_of_the_error() -> None:
    numbers = measure(ROUNDED, EXACT)
    cosine, relative = run_checks(numbers, numbers, 3.0)
    assert 1 - cosine.bound == pytest.approx(9 * (1 - numbers.cosine))
    assert relative.bound == pytest.approx(3 * numbers.relative_l1)
