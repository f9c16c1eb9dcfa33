"""`aerie export`: what it writes, that it runs, what it refuses; its program under the gate's rule."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.cli.command_line import main
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.families import FAMILIES
from aerie.engine.numerics import widen
from aerie.engine.reporter import Reporter
from aerie.engine.static_form import (
    StaticWeights,
    empty_cache,
    inputs,
    results,
    static_weights,
    step,
    weight_sources,
)
from aerie.llama32_1b.synthetic.shape import TINY, in_family
from aerie.llama32_1b.synthetic.writer import write_checkpoint
from aerie.multi_launch_builder.builder import read_program
from aerie.multi_launch_builder.static_step import STATIC_STEP_KIND, StaticSizes
from aerie.runtime import KernelCache, select_backend
from aerie.verify.bounds import EXACT, compare, judge
from aerie.verify.reference import Reference

MAX_LEN, BLOCK, TOKENS = 256, 4, 24


def written(folder, layers, **changes):
    config = replace(in_family(TINY, FAMILIES["sdar"]), num_hidden_layers=layers, **changes)
    write_checkpoint(config, folder, 1, Reporter())
    return folder


@pytest.fixture(scope="module")
def sdar(tmp_path_factory):
    """A random SDAR of one layer."""
    return written(tmp_path_factory.mktemp("sdar") / "model", 1)


@pytest.fixture(scope="module")
def exported(sdar):
    """Its step in a folder."""
    out = sdar.with_name("step")
    assert main(["export", "--model", str(sdar), "--max-len", str(MAX_LEN), "--out", str(out)]) == 0
    return out


class Air:
    """A program written by `aerie export`, on the virtual NPU, with the cache that it has made so far."""

    def __init__(self, folder, cache):
        self.table = json.loads((folder / f"{STATIC_STEP_KIND}.args.json").read_text())
        self.sizes, self.program = StaticSizes(**self.table["sizes"]), read_program(folder, STATIC_STEP_KIND)
        self.checkpoint, self.cache = open_checkpoint(Path(self.table["model"])), cache
        cache.compile_and_cache(self.program)
        cache.preload(self.program, **static_weights(self.checkpoint.weights, self.program))
        self.kv_cache = empty_cache(self.sizes)

    def __call__(self, ids, start, commit, **changed):
        """Logits of a block, (block, vocab_size), and the updated cache; changed: other inputs."""
        given = inputs(self.checkpoint, self.program, self.sizes, ids[None], [start], self.kv_cache, commit)
        made = self.cache.run(self.program, **{**given, **changed})
        logits, updated = results(self.program, self.sizes, self.checkpoint.config.vocab_size, made)
        return logits[0], updated

    def answer(self, ids, keep=True, shown=None):
        """Logits of all blocks, each iterated, then committed unless `keep` is false; shown: other inputs."""
        logits, self.kv_cache = [], empty_cache(self.sizes)
        for start in range(0, len(ids), self.sizes.block):
            block = ids[start : start + self.sizes.block]
            changed = shown(self, start) if shown else {}
            made, updated = self(block, start, False, **changed)
            assert np.array_equal(widen(updated), widen(self.kv_cache))  # where -0 equals 0
            again, updated = self(block, start, True, **changed)
            assert np.array_equal(made, again)
            logits.append(made)
            if keep:
                rest = np.ones(self.sizes.max_len, bool)
                rest[start : start + self.sizes.block] = False
                assert np.array_equal(widen(updated)[..., rest, :], widen(self.kv_cache)[..., rest, :])
                assert widen(updated)[..., ~rest, :].any(axis=-1).all()
                self.kv_cache = updated
        return np.concatenate(logits)


def tokens():
    return np.random.default_rng(5).integers(0, 700, TOKENS)


def expected(folder, ids):
    """transformers under the staircase mask: in bf16, and how far float32 is from it."""
    of = np.arange(TOKENS) // BLOCK
    asked = ids.tolist(), list(range(TOKENS)), of[:, None] >= of[None], TOKENS
    reference = Reference.open(folder)
    theirs = reference.masked(*asked)
    return theirs, compare(theirs, reference.exact.masked(*asked))


def shifted_mask(air, start):
    """A staircase that is a block too low."""
    mask = inputs(
        air.checkpoint, air.program, air.sizes, np.zeros((1, BLOCK), int), [max(0, start - BLOCK)],
        air.kv_cache, False,
    )["attention_mask"]  # fmt: skip
    return {"attention_mask": mask}


def causal_mask(air, start):
    """Causal inside the block."""
    mask = inputs(
        air.checkpoint, air.program, air.sizes, np.zeros((1, BLOCK), int), [start], air.kv_cache, False
    )["attention_mask"].copy()
    mask[..., air.sizes.max_len :] = np.triu(np.full((BLOCK, BLOCK), -10000.0), 1)
    return {"attention_mask": mask}


def judged(folder, exported, cache):
    """The program's logits under the gate's rule, healthy and with faults; and its distance from float32."""
    ids = tokens()
    theirs, rounding = expected(folder, ids)
    air = Air(exported, cache)
    ours = compare(theirs, air.answer(ids))
    assert not [*judge("static form", "24 tokens", ours, rounding, EXACT)]
    for fault in ({"keep": False}, {"shown": shifted_mask}, {"shown": causal_mask}):
        wrong = compare(theirs, air.answer(ids, **fault))
        assert [*judge("static form", "24 tokens", wrong, rounding, EXACT)], fault
    return ours.total_rms / rounding.total_rms


def test_the_program_is_within_the_bounds_of_the_gate(sdar, exported):
    with KernelCache(default_cache_dir(), select_backend("virtual")) as cache:
        share = judged(sdar, exported, cache)
    assert 0 < share < 1.5  # docs/reference/static-form.md tells it


def test_the_float32_form_on_the_same_weights(sdar, exported):
    """The program's own inputs, widened: its logits are the float32 form's up to bf16."""
    with KernelCache(default_cache_dir(), select_backend("virtual")) as cache:
        air, ids = Air(exported, cache), tokens()[:BLOCK]
        logits, updated = air(ids, 0, True)
        given = inputs(air.checkpoint, air.program, air.sizes, ids[None], [0], air.kv_cache, True)
    wide = {name: widen(array) for name, array in given.items()}
    wide |= {name: wide[name][None, :BLOCK] for name in ("embeddings", "rope_rows")}
    weights = StaticWeights.from_weights(air.checkpoint.weights, 1)
    exact, cache32 = step(air.checkpoint.config, weights, **wide)
    assert np.abs(logits - exact[0]).max() < 0.02 * np.abs(exact).max()
    assert np.abs(widen(updated) - cache32).max() < 0.02 * np.abs(cache32).max()


@pytest.mark.slow
def test_more_layers(tmp_path, monkeypatch):
    """Cache and masks of each are found by offset: three layers have a first, a last and one between. A layer
    more compiles for seconds more."""
    monkeypatch.setenv("VNPU_OPT", "0")
    folder, out = written(tmp_path / "model", 3), tmp_path / "step"
    assert main(["export", "--model", str(folder), "--max-len", "64", "--out", str(out)]) == 0
    with KernelCache(tmp_path / "programs", select_backend("virtual")) as cache:
        judged(folder, out, cache)


def test_what_is_written(sdar, exported, capsys):
    assert sorted(file.name for file in exported.iterdir()) == [
        "example.py",
        f"{STATIC_STEP_KIND}.args.json",
        f"{STATIC_STEP_KIND}.mlir",
    ]
    table = json.loads((exported / f"{STATIC_STEP_KIND}.args.json").read_text())
    program, checkpoint = read_program(exported, STATIC_STEP_KIND), open_checkpoint(sdar)
    assert [a["name"] for a in table["arguments"]] == list(program.arguments.names)
    assert table["kv_cache_bytes"] == program.arguments["kv_cache"].nbytes == 2 * 2 * 256 * 64 * 2
    weights = {a.name for a in program.arguments if a.role.value == "weight"}
    assert weights == set(table["weights"]) == set(static_weights(checkpoint.weights, program))
    assert weight_sources(checkpoint.config, program)["lm_head_1"].first_row == 256
    again = exported.with_name("again")
    assert main(["export", "--model", str(sdar), "--max-len", str(MAX_LEN), "--out", str(again)]) == 0
    assert (again / f"{STATIC_STEP_KIND}.mlir").read_text() == (
        exported / f"{STATIC_STEP_KIND}.mlir"
    ).read_text()
    output = capsys.readouterr().err
    assert "static_step.mlir of 27 launches, its 51 arguments in static_step.args.json" in output
    assert (
        "kv_cache and updated_cache take 128.0 KiB each: 1 layers x 2 (keys and values) x 1 sequences x 2 "
        "heads x 256 positions x 64 elements x 2 bytes" in output
    )


@pytest.mark.slow
def test_the_example_shifts_logits_where_the_model_does(tmp_path, capsys):
    """Fast-dLLM v2, whose blocks have 32 tokens: the first token of a block is predicted by the block before
    it."""
    config = replace(in_family(TINY, FAMILIES["Fast_dLLM_Qwen"]), num_hidden_layers=1)
    folder, out = tmp_path / "model", tmp_path / "step"
    write_checkpoint(config, folder, 1, Reporter())
    assert main(["export", "--model", str(folder), "--max-len", "64", "--out", str(out)]) == 0
    text = "a" * 31  # no two of which make a token
    count = len(open_checkpoint(folder).tokenizer.encode(text))
    runpy.run_path(str(out / "example.py"))["main"](text)
    passes, made, _ = capsys.readouterr().out.splitlines()
    blocks = count // 32 + 1
    assert passes.startswith(f"{blocks + blocks * 32 - count} passes of 28 launches")
    assert made.startswith(f"{blocks * 32 - count} tokens: [")


def test_the_example_runs(exported, capsys):
    runpy.run_path(str(exported / "example.py"))["main"]("The capital of France is")
    passes, made, text = capsys.readouterr().out.splitlines()
    assert passes == "8 passes of 27 launches; a cache of 131072 bytes"
    assert made.startswith("3 tokens: [")
    assert text.startswith("The capital of France is")


def test_another_block_and_fewer_layers_are_noted(tmp_path, capsys):
    folder = written(tmp_path / "model", 2)
    words = [
        "--layers",
        "1",
        "--block",
        "8",
        "--other-block",
        "--max-len",
        "64",
        "--out",
        str(tmp_path / "o"),
    ]
    assert main(["export", "--model", str(folder), *words]) == 0
    output = capsys.readouterr().err
    assert (
        "warning: blocks of 8 tokens, where the checkpoint was trained with 4: its answers may be poor"
        in output
    )
    assert (
        "note: 1 of 2 layers, with the model's own head after them: the logits are not the model's" in output
    )


REFUSED = [
    (
        ["--block", "8"],
        "--block 8 is not the 4 tokens that the checkpoint was trained with, and its answers would be poor; "
        "leave --block out, or add --other-block to have it all the same",
    ),
    (
        ["--layers", "2"],
        "--layers 2 of a model that has 1; give that or fewer, or leave --layers out",
    ),
    (
        ["--max-len", "1024"],
        "--max-len 1024 is more than the 512 positions of the model (max_position_embeddings); give 512 or "
        "less",
    ),
    (
        ["--max-len", "66"],
        "--max-len 66 is not a multiple of the block of 4 tokens, so that the last block would not fit the "
        "cache; give 64",
    ),
    (
        ["--batch", "16"],
        "batch=16 blocks of 4 tokens are 64 rows, and the LM head has programs of at most 32; legal is a "
        "batch of at most 8",
    ),
    (
        ["--max-len", "320"],
        "program static_step, launch layer_0_attention: block_attention: max_len=320 is no positive multiple "
        "of 256 (a K/V tile for each row of cores); use 256 or 512",
    ),
    (
        ["--block", "64", "--other-block"],
        "batch=1 blocks of 64 tokens are 64 rows, and the LM head has programs of at most 32",
    ),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_sizes_that_are_refused(words, message, sdar, tmp_path, capsys):
    assert main(["export", "--model", str(sdar), "--out", str(tmp_path / "out"), *words]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {message}"
    assert not (tmp_path / "out").exists()


def test_a_model_without_blocks_is_refused(tmp_path, capsys):
    assert main(["export", "--model", str(DEMO_FOLDER), "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"error: --model {DEMO_FOLDER} is of the family llama, which makes one token after another and has "
        "no blocks; the static form is of block diffusion: give a model of one of the families "
    )
    assert line.endswith(", sdar")


def test_a_folder_that_is_there_stays_as_it_is(sdar, tmp_path, capsys):
    kept = tmp_path / "notes.txt"
    kept.write_text("mine")
    assert main(["export", "--model", str(sdar), "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"error: --out {tmp_path} is there already and is not overwritten; remove it, or name another\n"
    )
    assert [*tmp_path.iterdir()] == [kept]


def test_a_folder_that_cannot_be_made(sdar, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "out"
    assert main(["export", "--model", str(sdar), "--max-len", "64", "--out", str(out)]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"error: cannot write --out {out} (Not a directory); nothing is left of it: name another"
    )
