"""Ctrl-C in a command's process ends it with one word and 130, from its first imports on."""

from __future__ import annotations

import _thread
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aerie.common import interrupts

INTERRUPTED = """
import builtins, runpy, sys

target, *sys.argv[1:] = sys.argv[1:]
load = builtins.__import__

def interrupted(name, *rest, **more):
    if name == target:
        raise KeyboardInterrupt
    return load(name, *rest, **more)

builtins.__import__ = interrupted
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("target", "module", "words"),
    [
        ("typing", "aerie", ["--version"]),
        ("aerie.cli.command_line", "aerie", ["run"]),
        ("numpy", "aerie", ["serve"]),
        ("aerie.verify.gate", "aerie", ["verify"]),
        ("aerie.virtual_npu.commands.common", "aerie", ["vnpu", "ops"]),
        ("aerie.kernel_builder.index", "aerie", ["kernels", "list"]),
        ("xdsl.dialects.builtin", "aerie", ["air", "-"]),
        ("aerie.board.doctor.checks", "aerie", ["doctor"]),
        ("benchmarks.plan", "benchmarks", ["--help"]),
    ],
)
def test_in_an_import(target: str, module: str, words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, target, module, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (interrupts.INTERRUPTED_STATUS, "", "stopped\n")


def test_an_interrupt_in_a_finaliser_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other exceptions are reported as Python reports them."""
    handled: list[int] = []
    reported: list[Any] = []
    monkeypatch.setattr(_thread, "interrupt_main", lambda: handled.append(1))
    monkeypatch.setattr(sys, "__unraisablehook__", reported.append)
    for kind in (KeyboardInterrupt, ValueError):
        interrupts._unraisable(SimpleNamespace(exc_type=kind))
    assert handled == [1]
    assert [each.exc_type for each in reported] == [ValueError]


IN_C = """
import os, runpy, signal, sys

class Swallowed:
    def find_spec(self, name, path=None, target=None):
        if name == "rich":
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                raise ImportError("numpy's C API failed") from None

sys.argv[1:] = ["kernels", "list"]
sys.meta_path.insert(0, Swallowed())
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("aerie", run_name="__main__", alter_sys=True)
"""


def test_in_an_import_that_turns_it_into_another_error() -> None:
    """As numpy's C modules do."""
    done = subprocess.run(
        [sys.executable, "-c", IN_C],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (interrupts.INTERRUPTED_STATUS, "", "stopped\n")


def test_outside_of_an_import_it_is_raised() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupts.on_interrupt(2, None)


IN_EXEC = """
import runpy, sys

from aerie.cli import command_line

def cache(arguments):
    'Cache.'
    exec("import signal; signal.raise_signal(signal.SIGINT)")

command_line.COMMANDS = [("cache", cache, [])]
sys.argv[1:] = ["cache"]
runpy.run_module("aerie", run_name="__main__", alter_sys=True)
"""


def test_in_code_that_is_executed_as_text(tmp_path: Path) -> None:
    """As dataclasses make theirs: Python would end by the signal, and shells see that. With -m, as with -c
    Python ends before it looks."""
    (tmp_path / "stopped.py").write_text(IN_EXEC)
    tree = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "stopped"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{tree}"},
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (interrupts.INTERRUPTED_STATUS, "", "stopped\n")
