"""A table of the CPU seconds that tests take, their processes and compilers with them: what slow.txt goes by.

A busy machine stretches the time on the clock, and hardly these. `--cpu-seconds 20` shows the 20 that take
most.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Generator

import pytest

NAME = "CPU seconds"
BOUND_S = 1.0
"""A test that takes more where nothing is built yet belongs into slow.txt."""


def spent() -> float:
    """CPU seconds of this process, and of those that it started and waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _counted(item: pytest.Item) -> Generator[None, object, object]:
    began = spent()
    try:
        return (yield)
    finally:
        item.user_properties.append((NAME, spent() - began))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Count the fixtures that a test is the first to ask for."""
    return (yield from _counted(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Count the test itself."""
    return (yield from _counted(item))


def pytest_addoption(parser: pytest.Parser) -> None:
    """--cpu-seconds N."""
    parser.addoption("--cpu-seconds", type=int, default=0, metavar="N", help="show N tests, by CPU seconds")


def table(reports: list[pytest.TestReport], most: int) -> list[str]:
    """The lines of the table: what all take together, then the tests that take most."""
    taken = {
        report.nodeid: sum(float(str(value)) for name, value in report.user_properties if name == NAME)
        for report in reports
    }
    above = sum(seconds > BOUND_S for seconds in taken.values())
    ordered = sorted(taken.items(), key=lambda each: -each[1])[:most]
    return [
        f"{sum(taken.values()):.0f} CPU seconds in {len(taken)} tests, {above} of them above {BOUND_S:.0f}",
        *(f"{seconds:8.1f} {name}" for name, seconds in ordered),
    ]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table where it is asked for."""
    most = config.getoption("--cpu-seconds")
    if not most:
        return
    reports = [
        report
        for found in terminalreporter.stats.values()
        for report in found
        if isinstance(report, pytest.TestReport) and report.when == "call"
    ]
    terminalreporter.section("CPU seconds")
    for line in table(reports, most):
        terminalreporter.write_line(line)
