"""The line that a terminal shows while a command is silent."""

from __future__ import annotations

import io
import time

import pytest

from aerie.common import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def wait_for(self, text: str) -> None:
        end = time.monotonic() + 60
        while text not in self.getvalue():
            assert time.monotonic() < end
            time.sleep(0.005)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SILENCE_S", 0.05)
    monkeypatch.setattr(progress, "REFRESH_S", 0.02)


def test_a_terminal_sees_what_is_done_and_then_nothing(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a line that is shorter than the terminal's, and erased at the end."""
    monkeypatch.setenv("COLUMNS", "20")
    out = Terminal()
    with progress.working("case 1 of 2", out) as change:
        out.wait_for("case 1 of 2, 0 s")
        change("case 2 of 2, which has a long name")
        out.wait_for("case 2 of 2")
    lines = out.getvalue().split(progress.ERASE)
    assert lines[0] == lines[-1] == ""
    assert lines[1] == "case 1 of 2, 0 s"
    assert lines[-2] == "case 2 of 2, which "
    assert max(map(len, lines)) < 20


def test_short_work_shows_nothing() -> None:
    out = Terminal()
    with progress.working("short", out):
        pass
    assert out.getvalue() == ""


def test_without_a_terminal_nothing_is_shown(quick: None) -> None:
    out = io.StringIO()
    with progress.working("in a pipe", out) as change:
        change("other")
        time.sleep(0.1)
    assert out.getvalue() == ""


def test_the_line_goes_where_the_work_fails(quick: None) -> None:
    out = Terminal()

    def work() -> None:
        with progress.working("stopped", out):
            out.wait_for("stopped")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert out.getvalue().endswith(progress.ERASE)
