"""Several programs compiled side by side."""

import threading

import pytest

from runtime import CompileError, Stage


def test_programs_are_compiled_side_by_side(open_cache, variant, toolchain, monkeypatch):
    together = threading.Barrier(2, timeout=20)
    real = toolchain.compile
    monkeypatch.setattr(toolchain, "compile", lambda *rest: (together.wait(), real(*rest))[1])
    artifacts = open_cache().compile_all([variant(name="a"), variant(name="b")], jobs=2)
    assert sorted(artifacts) == ["a", "b"]


def test_one_job_compiles_one_after_the_other(open_cache, variant, toolchain):
    open_cache().compile_all([variant(name=name) for name in "cab"], jobs=1)
    assert toolchain.compiled == ["c", "a", "b"]


def test_progress(open_cache, variant):
    cache, steps = open_cache(), []
    cache.compile_and_cache(variant(name="a"))
    programs = [variant(name="a"), variant(name="b"), variant(name="c", text="bad")]
    with pytest.raises(CompileError, match="program 'c' was not compiled"):
        cache.compile_all(programs, jobs=1, progress=steps.append)
    assert [(step.program, step.stage, step.done, step.total) for step in steps] == [
        ("a", Stage.REUSED, 1, 3),
        ("b", Stage.COMPILING, 1, 3),
        ("b", Stage.COMPILED, 2, 3),
        ("c", Stage.COMPILING, 2, 3),
        ("c", Stage.FAILED, 2, 3),
    ]
    assert "unknown op 'bad'" in steps[-1].detail
    assert steps[2].seconds > 0


def test_a_failure_cancels_what_has_not_started(open_cache, variant, toolchain):
    programs = [variant(name="a", text="bad"), *(variant(name=f"p{i}") for i in range(50))]
    with pytest.raises(CompileError):
        open_cache().compile_all(programs, jobs=1)
    assert len(toolchain.compiled) < 50
