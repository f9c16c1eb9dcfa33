"""A pytest plugin: the fixture `vnpu_run`, and options that vary every run of a test suite.

Load it by `pytest_plugins = ["aerie.vnpu_pytest"]` in a conftest.py, or `pytest -p aerie.vnpu_pytest`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aerie import vnpu


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options; their defaults run each program once, in order."""
    group = parser.getgroup("vnpu", "virtual NPU")
    group.addoption("--vnpu-perturb", type=int, default=0, help="run under N other schedules, too")
    group.addoption("--vnpu-garbage", type=int, default=0, help="run on N kinds of garbage in memory, too")
    group.addoption("--vnpu-seed", type=int, default=1, help="the first seed of both")
    group.addoption("--vnpu-numerics", default="exact", help="exact, or bfp16")
    group.addoption("--vnpu-rounding", default="conv_even", help="conv_even, or floor")


@pytest.fixture
def vnpu_run(request: pytest.FixtureRequest) -> Callable[..., vnpu.Result]:
    """`vnpu.run` with the schedules, the garbage and the numerics of the command line.

    A test that names one of them itself has its own.
    """
    option = request.config.getoption
    built = vnpu.BuildOptions(
        checks=True, numerics=option("--vnpu-numerics"), rounding=option("--vnpu-rounding")
    )
    varied = {name: option(f"--vnpu-{name}") for name in ("perturb", "garbage", "seed")}

    def run(module: object, *arrays: Any, **how: Any) -> vnpu.Result:
        return vnpu.run(module, *arrays, **{"options": built, **varied, **how})

    return run
