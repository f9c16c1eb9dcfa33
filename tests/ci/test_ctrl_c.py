"""Ctrl-C in a command's process ends it with one word and 130, from its first imports on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

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
        ("aerie.cli.arguments", "aerie", ["run"]),
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
    handled, reported = [], []
    monkeypatch.setattr(interrupts._thread, "interrupt_main", lambda: handled.append(1))
    monkeypatch.setattr(sys, "__unraisablehook__", reported.append)
    for kind in (KeyboardInterrupt, ValueError):
        interrupts._unraisable(SimpleNamespace(exc_type=kind))
    assert handled == [1]
    assert [each.exc_type for each in reported] == [ValueError]
