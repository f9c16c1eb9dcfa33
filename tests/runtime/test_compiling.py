"""Several programs compiled side by side."""

import threading
import time
from typing import Any

import pytest

from aerie.runtime import CompileError, CompileStage
from aerie.runtime import parallel_compile as compiling_module
from aerie.runtime.artifacts import ArtifactInputs
from aerie.runtime.parallel_compile import MemoryBudget, memory_budget


def test_programs_are_compiled_side_by_side(open_cache, variant, toolchain, monkeypatch):
    together = threading.Barrier(2, timeout=120)
    real = toolchain.compile
    monkeypatch.setattr(toolchain, "compile", lambda *rest: (together.wait(), real(*rest))[1])
    artifacts = open_cache().compile_all([variant(name="a"), variant(name="b")], jobs=2)
    assert sorted(artifacts) == ["a", "b"]


def test_one_job_compiles_one_after_the_other(open_cache, variant, toolchain):
    open_cache().compile_all([variant(name=name) for name in "cab"], jobs=1)
    assert toolchain.compiled == ["c", "a", "b"]


def test_progress(open_cache, variant):
    cache = open_cache()
    steps: list[Any] = []
    cache.compile_and_cache(variant(name="a"))
    programs = [variant(name="a"), variant(name="b"), variant(name="c", text="bad")]
    with pytest.raises(CompileError, match="program 'c' was not compiled"):
        cache.compile_all(programs, jobs=1, progress=steps.append)
    assert [(step.program, step.stage, step.done, step.total) for step in steps] == [
        ("a", CompileStage.REUSED, 1, 3),
        ("b", CompileStage.COMPILING, 1, 3),
        ("b", CompileStage.COMPILED, 2, 3),
        ("c", CompileStage.COMPILING, 2, 3),
        ("c", CompileStage.FAILED, 2, 3),
    ]
    assert "unknown op 'bad'" in steps[-1].detail
    assert steps[2].seconds > 0


def test_a_failure_cancels_what_has_not_started(open_cache, variant, toolchain):
    programs = [variant(name="a", text="bad"), *(variant(name=f"p{i}") for i in range(50))]
    with pytest.raises(CompileError):
        open_cache().compile_all(programs, jobs=1)
    assert len(toolchain.compiled) < 50


def peak(open_cache, variant, toolchain, monkeypatch, each, budget):
    """The most compilations under way at once, each taking so much of such a budget."""
    under_way, most, real, changing = 0, 0, toolchain.compile, threading.Lock()

    def watched(*rest):
        nonlocal under_way, most
        with changing:
            under_way += 1
            most = max(most, under_way)
        time.sleep(0.05)
        with changing:
            under_way -= 1
        return real(*rest)

    monkeypatch.setattr(toolchain, "compile", watched)
    monkeypatch.setattr(toolchain, "memory_bytes", each, raising=False)
    monkeypatch.setattr(compiling_module, "memory_budget", lambda: budget)
    open_cache().compile_all([variant(name=name) for name in "abcdef"], jobs=6)
    return most


@pytest.mark.parametrize(("each", "expected"), [(40, 2), (60, 1), (1000, 1)])
def test_no_more_compile_than_memory_is_for(open_cache, variant, toolchain, monkeypatch, each, expected):
    assert peak(open_cache, variant, toolchain, monkeypatch, each, 100) == expected


def test_memory_is_given_back_after_a_failure():
    budget = MemoryBudget(10)
    with pytest.raises(ValueError, match="no"), budget.reserve(10):
        raise ValueError("no")
    with budget.reserve(10):
        pass


def test_the_budget_is_the_requested_one_or_most_of_the_free_memory(monkeypatch):
    monkeypatch.setenv("AERIE_COMPILE_MEMORY", "2.5")
    assert memory_budget() == 2.5 * 2**30
    monkeypatch.delenv("AERIE_COMPILE_MEMORY")
    monkeypatch.setattr(compiling_module, "_free_bytes", lambda: 1000)
    assert memory_budget() == 800
    monkeypatch.undo()
    assert 0 < memory_budget() < 2**50


def test_an_interruption_ends_waiting_for_another_process(open_cache, variant, monkeypatch):
    cache, reported = open_cache(), threading.Event()
    monkeypatch.setattr(cache._store, "_report", lambda line: reported.set())

    def interrupt(futures):
        assert reported.wait(120)
        raise KeyboardInterrupt

    monkeypatch.setattr(compiling_module, "_raise_first", interrupt)
    a = variant(name="a")
    recipe = ArtifactInputs("a", "virtual", a.text, cache.backend.toolchain.ingredients(a))
    with cache._store.store.locked_work_folder(recipe.file), pytest.raises(KeyboardInterrupt):
        cache.compile_all([a])


def test_an_interruption_stops_what_compiles(open_cache, variant, toolchain, monkeypatch):
    started, stopped = threading.Event(), threading.Event()

    def until_stopped(*rest):
        started.set()
        assert stopped.wait(120)
        raise CompileError("a", "killed")

    def interrupt(futures):
        started.wait(120)
        raise KeyboardInterrupt

    monkeypatch.setattr(toolchain, "compile", until_stopped)
    monkeypatch.setattr(toolchain, "stop", stopped.set, raising=False)
    monkeypatch.setattr(compiling_module, "_raise_first", interrupt)
    with pytest.raises(KeyboardInterrupt):
        open_cache().compile_all([variant(name="a")])
    assert stopped.is_set()
