"""Preparing the runtime: the lines about compiling, the work of a program, the output of a Reporter."""

import dataclasses
import io
from pathlib import Path

import pytest

from aerie.common.errors import UserError
from aerie.engine import program_library
from aerie.engine.config import load_config
from aerie.engine.program_library import RuntimeOptions, choose_seq_len, compile_programs
from aerie.engine.programs import program_flops
from aerie.engine.reporter import Reporter
from aerie.multi_launch_builder import program_store
from aerie.runtime import CompileStage, Progress, select_backend

VIRTUAL = RuntimeOptions(128, select_backend("virtual"), Path("unused"))


def reporter(terminal):
    file = io.StringIO()
    return Reporter(file, terminal), file


class FakeCache:
    """Finds every program but two, which it compiles side by side."""

    def __init__(self, cache_dir, backend, profiler, report, sharing):
        self.backend = backend
        self.profiler = profiler

    def compile_all(self, programs, progress):
        first, second, *rest = [program.name for program in programs]
        progress(Progress(first, CompileStage.COMPILING, 0, 6, detail="not compiled yet"))
        progress(Progress(second, CompileStage.COMPILING, 0, 6, detail="the kernel sources changed"))
        progress(Progress(second, CompileStage.COMPILED, 1, 6, 2.5))
        progress(Progress(first, CompileStage.COMPILED, 2, 6, 3.25))
        for done, name in enumerate(rest, start=3):
            progress(Progress(name, CompileStage.REUSED, done, 6))


@pytest.fixture
def config(make_checkpoint, monkeypatch, programs_without_text):
    """The small model's, where building and compiling cost nothing."""
    monkeypatch.setattr(program_store, "load_programs", programs_without_text)
    monkeypatch.setattr(program_library, "KernelCache", FakeCache)
    return load_config(make_checkpoint())


def test_compiling_is_reported_in_lines_where_there_is_no_terminal(config):
    report, written = reporter(terminal=False)
    programs = compile_programs(config, VIRTUAL, report).by_name
    first, second = list(programs)[:2]
    lines = written.getvalue().splitlines()
    assert lines[:5] == [
        "backend virtual: requested",
        f"compiling {first} (not compiled yet)",
        f"compiling {second} (the kernel sources changed)",
        f"compiled {second} in 2.5 s",
        f"compiled {first} in 3.2 s",
    ]
    assert lines[5].startswith("programs: 2 compiled, 4 from the cache, ")
    assert len(lines) == 6


def test_compiling_moves_a_bar_on_a_terminal(config):
    report, written = reporter(terminal=True)
    compile_programs(config, VIRTUAL, report)
    shown = written.getvalue()
    assert "compiling" in shown
    assert "6/6" in shown
    assert "compiled" in shown
    assert "(not compiled yet)" not in shown


def test_work_is_declared(config):
    made = compile_programs(config, VIRTUAL, reporter(False)[0])
    for program in made.by_name.values():
        made.cache.profiler.record(program.name, 0.0, 1.0, 0.0)
        assert made.cache.profiler.programs[program.name].flops == program_flops(program) > 0


def test_flops(config, programs_without_text):
    """hidden 256, FFN 512, 4 query heads and 2 KV heads of 64, vocabulary 512; 128 rows."""
    flops = {
        name: program_flops(program) for name, program in programs_without_text(config.shape, 128).items()
    }
    attention_in, rest = 256 * (256 + 128 + 128), 256 * 256 + 3 * 256 * 512
    assert flops["rms_gemms_rope"] == 2 * 128 * attention_in
    assert flops["rms_gemv_rope"] == 2 * attention_in
    assert flops["o_ffn"] == 2 * 128 * rest
    assert flops["o_gemv_ffn"] == 2 * rest
    assert flops["flash_attn"] == 2 * (2 * 256) * (128 * 129 / 2)
    assert flops["lm_head_gemv"] >= 2 * 256 * 512


def test_prefill_length(config):
    assert choose_seq_len(config, None) == 128
    assert choose_seq_len(config, 256) == 256
    with pytest.raises(
        UserError, match=r"--seq-len 512 \(SEQ_LEN\) is more than the model's 256 positions .* at most 256"
    ):
        choose_seq_len(config, 512)


def test_prefill_length_of_a_model_of_few_positions(config):
    """Programs are compiled in steps of 64; the rest is padding."""
    few = dataclasses.replace(config, max_position_embeddings=100)
    assert choose_seq_len(few, None) == 128
    assert choose_seq_len(few, 128) == 128
    with pytest.raises(UserError, match=r"model's 100 positions .* ask for at most 128"):
        choose_seq_len(few, 192)


def test_notes_are_not_marked_up():
    """Brackets and numbers in a note are text, not styles."""
    report, written = reporter(terminal=False)
    report.note("[cut] [bold] 12 " + "x" * 200)
    assert written.getvalue() == "[cut] [bold] 12 " + "x" * 200 + "\n"


def test_reporter_writes_to_stderr(capsys):
    Reporter().note("here")
    assert tuple(capsys.readouterr()) == ("", "here\n")
