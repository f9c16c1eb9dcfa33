"""Figures of answers, against the numbers of the seed's example."""

from typing import Any

import pytest

from aerie.engine.kpis import Kpi, Kpis, Tps
from aerie.engine.strategies.strategy import PassCounts


def test_the_seeds_line():
    kpis = Kpis()
    kpis.record_prompt(50, 0.2505)
    kpis.record_generated(45, 1.85025)
    line = "prompt:250.50ms generate:1850.25ms tps:prompt=199.60 tps:generate=24.32"
    assert kpis.dump(" ") == kpis.dump() == line
    assert kpis.dump(" | ") == line.replace(" ", " | ")


about: Any = pytest.approx  # it stands for a number, and is of no type of numbers


def test_samples_mean_and_last_are_of_all_answers_and_rates_of_the_last():
    kpis = Kpis()
    kpis.record_prompt(100, 0.5)
    kpis.record_generated(10, 2.0)
    kpis.record_prompt(30, 0.1)
    kpis.record_generated(8, 1.0, PassCounts(passes=5, drafted=9, accepted=4))
    assert kpis.prompt == Kpi(2, about(300_000), about(100_000))
    assert kpis.generate == Kpi(2, about(1_500_000), about(1_000_000))
    assert kpis.tps == Tps(30, 9, about(300), about(8), 2.0, 9, 4)


def test_an_answer_of_one_token_has_no_second_phase():
    kpis = Kpis()
    kpis.record_prompt(10, 0.1)
    kpis.record_generated(5, 0.5)
    assert kpis.tps.tokenAcceptance == 1.0
    kpis.record_prompt(10, 0.1)
    kpis.record_generated(0, 0.0)
    assert kpis.generate.samples == 1
    assert kpis.tps == Tps(10, 1, about(100), 0.0, 0.0)


def test_nothing_yet():
    assert Kpis().dump() == "prompt:0.00ms generate:0.00ms tps:prompt=0.00 tps:generate=0.00"
