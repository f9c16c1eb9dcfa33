"""Drawing: runs of equal scores draw, to the token, what all scores one by one do."""

import numpy as np
import pytest

from aerie.engine import sampling_filters
from aerie.engine.numerics import bf16
from aerie.engine.sampling_filters import SamplingFilters, apply_filters


def drawn_case(random):
    """Scores as bf16 has them, the largest first, some changed as penalties do it; and filters."""
    scores = random.normal(size=random.integers(12000, 40000)) * random.choice([0.5, 3, 8])
    scores = scores.astype(bf16).astype(np.float32)
    if random.random() < 0.3:
        scores[:50] /= np.float32(1.3)
    filters = SamplingFilters(
        temperature=float(random.choice([1.0, 0.3, 0.8, 2.5])),
        top_p=float(random.choice([1.0, 1.0, 0.05, 0.5, random.uniform(0.01, 1), 0.999999])),
        min_p=float(random.choice([0.0, 0.0, 0.01, 0.5, 1.0])),
    )
    return np.sort(scores)[::-1].copy(), filters


def edges_of(values, filters):
    """After which numbers the one before is drawn no more: places, and these."""
    ranks, probabilities = apply_filters(values, filters)
    below = np.cumsum(probabilities)
    return ranks, below / below[-1]


@pytest.mark.parametrize("seed", range(3))
def test_runs_draw_what_all_scores_do(seed):
    random, by_runs, count = np.random.default_rng(seed), 0, 0
    for _ in range(50):
        values, filters = drawn_case(random)
        ranks, edges = edges_of(values, filters)
        for number in random.random(40):
            place = sampling_filters.sample_index(values, filters, number)
            assert place == ranks[np.searchsorted(edges, number, side="right")], (filters, number)
            by_runs += sampling_filters._draw_by_runs(values, filters, number) is not None
            count += 1
    assert by_runs > 0.98 * count


@pytest.mark.parametrize("seed", range(3))
def test_the_numbers_beside_every_edge(seed):
    """Where the last bit of a sum decides, runs do not."""
    random = np.random.default_rng(seed)
    for _ in range(20):
        values, filters = drawn_case(random)
        ranks, edges = edges_of(values, filters)
        for edge in random.choice(edges[edges < 1 - 1e-9], 10 if len(edges) > 1 else 0):
            for number in (edge, np.nextafter(edge, 0), np.nextafter(edge, 1)):
                assert sampling_filters._draw_by_runs(values, filters, number) is None
                expected = ranks[np.searchsorted(edges, number, side="right")]
                assert sampling_filters.sample_index(values, filters, number) == expected


def test_a_share_that_top_p_or_min_p_names_to_the_bit_is_left_to_the_long_way():
    values = np.zeros(4096, np.float32)
    for filters in (SamplingFilters(1.0, 0.5, 0.0), SamplingFilters(1.0, 1.0, 0.0)):
        ranks, edges = edges_of(values, filters)
        assert (
            sampling_filters.sample_index(values, filters, 0.3)
            == ranks[np.searchsorted(edges, 0.3, side="right")]
        )
    assert sampling_filters._draw_by_runs(values, SamplingFilters(1.0, 0.5, 0.0), 0.3) is None
    assert sampling_filters._draw_by_runs(values, SamplingFilters(1.0, 1.0, 0.0), 0.3) == int(0.3 * 4096)
    values[2048:] = np.log(np.float32(0.5))
    share = float(np.exp(np.float64(values[-1])))
    for min_p in (share, np.nextafter(share, 0), np.nextafter(share, 1)):
        assert sampling_filters._draw_by_runs(values, SamplingFilters(1.0, 1.0, min_p), 0.9) is None
        assert sampling_filters.sample_index(values, SamplingFilters(1.0, 1.0, min_p), 0.9) == edge_rank(
            values, min_p
        )


def edge_rank(values, min_p):
    ranks, edges = edges_of(values, SamplingFilters(1.0, 1.0, min_p))
    return ranks[np.searchsorted(edges, 0.9, side="right")]


@pytest.mark.parametrize("temperature", [1e-6, 1e6])
def test_extreme_temperatures(temperature):
    values = np.sort(np.repeat(np.arange(50, dtype=np.float32), 40))[::-1].copy()
    filters = SamplingFilters(temperature, 1.0, 0.0)
    ranks, edges = edges_of(values, filters)
    for number in np.linspace(0, 1, 200, endpoint=False):
        expected = ranks[np.searchsorted(edges, number, side="right")]
        assert sampling_filters.sample_index(values, filters, number) == expected
