"""What a session takes of memory, held to what one does take; too little is refused at once."""

import json
import math
import os
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.cli.command_line import main
from aerie.engine import memory_estimate as module
from aerie.engine.config import load_config
from aerie.engine.errors import TooLittleMemoryError
from aerie.engine.memory_estimate import SessionNeeds, check_memory, footprint, require
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.weights import expected_shapes
from aerie.llama32_1b.synthetic.__main__ import main as synthesise
from aerie.llama32_1b.synthetic.shape import LLAMA_3_2_1B
from aerie.runtime import select_backend
from aerie.verify import __main__ as verify_cli
from aerie.verify.reference import reference_bytes

MIB = 1 << 20
OURS = "the model with prompts of up to"


@pytest.fixture
def have(monkeypatch):
    """have(nbytes, held): so much is available, and so much this process has already."""

    def have(nbytes, held=0):
        monkeypatch.setattr(module, "available_bytes", lambda: nbytes)
        monkeypatch.setattr(module, "resident_bytes", lambda: held)

    return have


def whole(seq_len):
    """A session for prompts of so many tokens."""
    return SessionNeeds(seq_len, (), seq_len + 128)


def asked(seq_len=None, copies=1, **options):
    """The options of one."""
    backend = select_backend("virtual")
    backend = replace(backend, access=types.SimpleNamespace(copies_per_buffer=copies))
    return RuntimeOptions(seq_len, backend, Path("unused"), **options)


PADDING = (129024 - 128256) * 2048 * 2
"""Bytes of the rows that make the vocabulary eight whole partitions."""


def test_full_size():
    """One copy of every weight; nothing of it depends on how many layers share the activations."""
    config = LLAMA_3_2_1B
    needed = footprint(config, whole(2048))
    assert needed.weights == pytest.approx(2_471_628_800 + PADDING, rel=0.001)
    assert needed.kv_cache == 16 * (2048 + 128) * 2 * 512 * 2
    fewer = footprint(replace(config, num_hidden_layers=1), whole(2048))
    assert fewer.activations == pytest.approx(needed.activations, rel=0.1)
    assert footprint(config, whole(512)).activations < 0.3 * needed.activations
    assert needed.total < 1.25 * 2_471_628_800


def test_without_sharing_and_in_strict_memory(monkeypatch):
    shared = footprint(LLAMA_3_2_1B, whole(2048))
    assert footprint(LLAMA_3_2_1B, whole(2048), copies=2).weights == 2 * shared.weights
    monkeypatch.setenv("AERIE_PLAIN", "buffers")
    apart = footprint(LLAMA_3_2_1B, whole(2048))
    assert apart.weights > 1.7 * shared.weights
    assert apart.activations > 10 * shared.activations


MEASURE = """
import json, re, sys
from pathlib import Path
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.memory_estimate import footprint, session_needs
from aerie.engine.forward import decode_step
from aerie.engine.forward import next_token_logits
from aerie.engine.forward import prefill
from aerie.engine.reporter import Reporter
from aerie.engine.open_session import prepare_runtime
from aerie.runtime import select_backend
checkpoint, cache = open_checkpoint(Path(sys.argv[1])), Path(sys.argv[2])
backend = select_backend("virtual")
longest = min(checkpoint.config.context, 2048)
options = RuntimeOptions(None, backend, cache, prompt_tokens=longest - 4)
model = prepare_runtime(checkpoint, options, Reporter()).model
kept = model.new_cache(longest)
row = prefill(model, [7] * (longest - 4), kept)[-1]
for token in range(4):
    next_token_logits(model, row)
    row = decode_step(model, token, kept)
peak = re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]
needed = footprint(model.config, session_needs(model.config, options), backend.access.copies_per_buffer)
print(json.dumps([int(peak) * 1024, needed.total, needed.activations]))
"""


def check_measured(folder, cache, **environment):
    """Peak memory of a process that runs the longest prompt and a few tokens, against what was foreseen.

    Without the store it is as at a first start, which loads what builds programs.
    """
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder), str(cache)],
        capture_output=True,
        text=True,
        env={**os.environ, "VNPU_THREADS": "2", "VNPU_CACHE": "off", **environment},
    )
    assert done.returncode == 0, done.stderr
    peak, foreseen, activations = json.loads(done.stdout)
    assert peak <= foreseen <= 1.05 * peak + 48 * MIB, f"{peak / MIB:.0f}, foreseen {foreseen / MIB:.0f}"
    return activations


def test_the_demo_takes_what_was_foreseen():
    check_measured(DEMO_FOLDER, default_cache_dir())


@pytest.mark.slow
def test_a_layer_of_full_width_takes_what_was_foreseen(tmp_path):
    """Weights and activations count here: with buffers shared, and with buffers apart in strict memory."""
    assert synthesise([str(tmp_path / "one"), "--layers", "1", "--vocab-size", "32768"]) == 0
    shared = check_measured(tmp_path / "one", tmp_path / "cache")
    assert shared > 100 * MIB
    apart = {"AERIE_PLAIN": "buffers", "VNPU_STRICT": "1"}
    assert check_measured(tmp_path / "one", tmp_path / "cache", **apart) > 1.15 * shared


def test_enough_memory_is_no_error(have):
    config = load_config(DEMO_FOLDER)
    for available in (footprint(config, whole(128)).total, 1 << 50, None):
        have(available)
        check_memory(config, asked(128))


def test_what_the_process_has_already_is_not_wanted_again(have):
    """The interpreter with its libraries, but not what else a process may hold."""
    needed = footprint(LLAMA_3_2_1B, whole(2048))
    have(needed.total - 60 * MIB, 60 * MIB)
    check_memory(LLAMA_3_2_1B, asked(2048))
    have(needed.total - needed.working - MIB, 9 << 30)
    with pytest.raises(TooLittleMemoryError, match="compile for at most 1024 tokens"):
        check_memory(LLAMA_3_2_1B, asked(2048))


def test_too_little_memory_is_reported_with_what_to_reduce(have):
    have(2800 * MIB)
    with pytest.raises(TooLittleMemoryError) as refused:
        check_memory(LLAMA_3_2_1B, asked(8192))
    message = str(refused.value)
    assert message.startswith(
        f"{OURS} 8192 tokens takes about 3.5 GiB of memory (weights 2.3 GiB, activations "
    )
    assert (
        "KV cache 260 MiB, all else 253 MiB) and 2.7 GiB are available, so the system would end it" in message
    )
    assert message.endswith(
        "on the way: compile for at most 1024 tokens with --seq-len (SEQ_LEN), take a smaller model, end "
        "other programs, or try it all the same with AERIE_CHECK_MEMORY=0"
    )


def test_variants_that_do_not_fit_are_reported_with_the_largest_set_that_does(have):
    have(2950 * MIB)
    chosen = asked(variants="8,2048x2048,8192", prompt_tokens=100)
    with pytest.raises(TooLittleMemoryError) as refused:
        check_memory(LLAMA_3_2_1B, chosen)
    message = str(refused.value)
    assert message.startswith("the model with 8192 positions takes about ")
    assert "take --variants '8x2048 2048x2048' (VARIANTS), take a smaller model" in message
    check_memory(LLAMA_3_2_1B, replace(chosen, variants="8x2048 2048x2048"))


def test_what_a_default_set_takes_is_what_its_prompt_takes(have):
    """Programs that no prompt has asked for take nothing."""
    have(2750 * MIB)
    check_memory(LLAMA_3_2_1B, asked(prompt_tokens=100))
    with pytest.raises(TooLittleMemoryError, match="on the way: shorten the prompt, take a smaller model"):
        check_memory(LLAMA_3_2_1B, asked(prompt_tokens=8000))


def test_no_advice_that_does_not_help(have):
    have(100 * MIB)
    with pytest.raises(TooLittleMemoryError, match=r"on the way: take a smaller model, end other programs"):
        check_memory(LLAMA_3_2_1B, asked(2048))


def test_what_makes_buffers_large_is_named(have, monkeypatch):
    have(3 << 30)
    monkeypatch.setenv("AERIE_PLAIN", "buffers")
    with pytest.raises(TooLittleMemoryError, match="unset AERIE_PLAIN, unset VNPU_STRICT, take a sm"):
        check_memory(LLAMA_3_2_1B, asked(2048, copies=2))


def test_the_check_can_be_turned_off(have, monkeypatch):
    have(1)
    with pytest.raises(
        TooLittleMemoryError, match=r"^it takes about 2 MiB of memory and 0 MiB are available"
    ):
        require(2 * MIB, "it", [])
    monkeypatch.setenv("AERIE_CHECK_MEMORY", "0")
    require(2 * MIB, "it", [])


@pytest.mark.parametrize(
    "command",
    [("run", "--prompt", "Hi"), ("profile", "--prompt", "Hi"), ("chat",)],
    ids=lambda words: words[0],
)
def test_every_command_that_loads_refuses_at_once(command, have, tmp_path, capsys):
    have(50 * MIB)
    cache = tmp_path / "cache"
    assert main([*command, "--backend", "virtual", "--cache-dir", str(cache)]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("error: the model with 512 positions takes about ")
    assert captured.out == ""
    assert not cache.exists()


@pytest.mark.parametrize("command", [("gate",), ("diagnosis", "--prompt", "Hi")], ids=lambda words: words[0])
def test_verifying_counts_the_reference(command, have, tmp_path, capsys):
    config = load_config(DEMO_FOLDER)
    parameters = sum(math.prod(shape) for shape in expected_shapes(config).values())
    assert reference_bytes(config, 2, 4) - reference_bytes(config, 2) == 4 * parameters
    have(footprint(config, whole(128)).total + 50 * MIB)
    cache = tmp_path / "cache"
    arguments = [*command, "--backend", "virtual", "--cache-dir", str(cache), "--out", str(tmp_path / "out")]
    assert verify_cli.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the model with its reference takes about 1.")
    assert not cache.exists()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "memory (without a reason)"),
        (MemoryError("Unable to allocate"), "memory (Unable to allocate)"),
        (RuntimeError("can't start new thread"), "threads (can't start new thread)"),
    ],
)
def test_memory_that_ends_in_spite_of_the_check_is_one_line(error, reason, monkeypatch, capsys):
    def end(*_):
        raise error

    monkeypatch.setattr("aerie.cli.commands.open_checkpoint", end)
    assert main(["run", "--backend", "virtual", "--prompt", "Hi"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: the system gave no more {reason}, with ")
    assert "B available: take a shorter --seq-len (SEQ_LEN) or a smaller model, raise the limit" in line


def test_a_defect_is_no_lack_of_memory(monkeypatch):
    def fail(*_):
        raise RuntimeError("this is a defect")

    monkeypatch.setattr("aerie.cli.commands.open_checkpoint", fail)
    with pytest.raises(RuntimeError, match="a defect"):
        main(["run", "--backend", "virtual", "--prompt", "Hi"])


def test_a_compilation_needs_no_room_for_the_model(have, monkeypatch, tmp_path):
    have(50 * MIB)
    compiled = []
    monkeypatch.setattr("aerie.cli.commands.compile_programs", lambda *given, **_: compiled.append(given))
    assert main(["compile", "--backend", "virtual", "--cache-dir", str(tmp_path)]) == 0
    assert compiled
