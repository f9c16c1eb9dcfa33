"""The synthetic checkpoint: whole or absent, the same for a seed, and the same in transformers and ours."""

from __future__ import annotations

import functools
import json
import logging
import re
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.config import load_config
from aerie.engine.forward import decode_step, next_token_logits, prefill
from aerie.engine.weights import Weights
from aerie.llama32_1b.synthetic import writer
from aerie.llama32_1b.synthetic.__main__ import build_parser, chosen_config, main
from aerie.llama32_1b.synthetic.shape import LLAMA_3_2_1B, SHAPES, TINY, config_json, tensors
from aerie.llama32_1b.synthetic.tokenizer import MIN_VOCABULARY, make_tokenizer

PROMPT = "What is the capital of France?"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("synthetic") / "tiny"
    assert main([str(folder), "--shape", "tiny"]) == 0
    return folder


def test_it_opens(tiny):
    checkpoint = open_checkpoint(tiny)
    assert checkpoint.config == TINY
    assert checkpoint.tokenizer.has_chat_template
    assert list(tiny.parent.iterdir()) == [tiny]


@pytest.mark.parametrize("name", SHAPES)
def test_every_config_is_read_as_it_was_meant(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config_json(SHAPES[name])))
    assert load_config(tmp_path) == SHAPES[name]


def test_the_large_one_is_llama_3_2_1b():
    assert writer.weight_bytes(LLAMA_3_2_1B) == 2_471_628_800  # as the released file, without its header
    assert LLAMA_3_2_1B.eos_token_ids == (128001, 128008, 128009)


def test_transformers_computes_the_same(tiny, numpy_model):
    """Logits of the prompt and of decoded tokens: as near to float32 as transformers' own bf16 is."""
    torch = pytest.importorskip("torch")
    from transformers import AutoTokenizer, LlamaForCausalLM

    ids = open_checkpoint(tiny).tokenizer.encode(PROMPT)
    assert AutoTokenizer.from_pretrained(tiny).encode(PROMPT) == ids
    fed = [300, 5, 77]
    model = numpy_model(tiny)
    cache = model.new_cache(len(ids) + len(fed))
    rows = [next_token_logits(model, prefill(model, ids, cache)[-1])]
    rows += [next_token_logits(model, decode_step(model, token, cache)) for token in fed]
    with torch.inference_mode():
        exact, theirs = (
            LlamaForCausalLM.from_pretrained(tiny, dtype=dtype)(torch.tensor([ids + fed]))
            .logits[0, len(ids) - 1 :]
            .float()
            .numpy()
            for dtype in (torch.float32, torch.bfloat16)
        )
    ours = np.stack(rows)
    assert 0.3 < exact.std() < 5
    assert np.abs(ours - exact).mean() < 1.3 * np.abs(theirs - exact).mean() < 0.05 * exact.std()


def test_activations_keep_their_range_over_16_layers(tmp_path, numpy_model):
    """The residual stream grows like the square root of the layers, not like a power of their number."""
    assert main([str(tmp_path / "deep"), "--shape", "tiny", "--layers", "16"]) == 0
    model = numpy_model(tmp_path / "deep")
    rows = prefill(model, [0, 17, 300, 41, 9], model.new_cache(8)).astype(np.float32)
    assert 0.2 < rows.std() < 3
    assert np.abs(rows).max() < 20


def test_a_seed_gives_the_same_bytes_and_another_gives_others(tiny, tmp_path):
    for name, seed in (("again", "0"), ("other", "1")):
        assert main([str(tmp_path / name), "--shape", "tiny", "--seed", seed]) == 0
    first, again, other = (
        (folder / "model.safetensors").read_bytes()
        for folder in (tiny, tmp_path / "again", tmp_path / "other")
    )
    assert first == again != other


def test_pieces_make_up_the_tensor(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "PIECE", 1000)
    assert main([str(tmp_path / "cut"), "--shape", "tiny"]) == 0
    whole, cut = (load_file(folder / "model.safetensors") for folder in (tiny, tmp_path / "cut"))
    for tensor in tensors(TINY):
        drawn = cut[tensor.name].astype(np.float32)
        assert whole[tensor.name].shape == drawn.shape
        assert abs(drawn.mean() - tensor.mean) < 0.1 * max(tensor.std, 0.5)
        assert 0.9 < drawn.std() / tensor.std < 1.1


def test_sizes_by_flags(tmp_path):
    arguments = [str(tmp_path / "odd"), "--shape", "tiny", "--layers", "3", "--vocab-size", "600"]
    assert main(arguments) == 0
    config = load_config(tmp_path / "odd")
    assert (config.num_hidden_layers, config.vocab_size) == (3, 600)
    Weights(tmp_path / "odd", config)
    assert chosen_config(build_parser().parse_args([str(tmp_path)])) == LLAMA_3_2_1B


@pytest.mark.parametrize("vocab_size", [MIN_VOCABULARY, 1024, 20_000, 128256])
def test_every_token_has_a_text_of_its_own(vocab_size):
    vocabulary = make_tokenizer(vocab_size).get_vocab()
    assert sorted(vocabulary.values()) == list(range(vocab_size))


def test_special_tokens_stand_where_llama_has_them():
    vocabulary = large_tokenizer().get_vocab()
    named = {"<|begin_of_text|>": 128000, "<|end_of_text|>": 128001, "<|start_header_id|>": 128006}
    named |= {"<|end_header_id|>": 128007, "<|eom_id|>": 128008, "<|eot_id|>": 128009}
    assert {token: vocabulary[token] for token in named} == named


@functools.cache
def large_tokenizer():
    """For the vocabulary of Llama-3.2-1B."""
    return make_tokenizer(128256)


@given(st.text(max_size=60))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_any_text_survives(text):
    tokenizer = large_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def refused(capsys, *arguments):
    """The one line that a refusal says."""
    assert main([str(argument) for argument in arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_nothing_is_overwritten(tmp_path, capsys):
    assert refused(capsys, tmp_path, "--shape", "tiny") == (
        f"error: {tmp_path} is there already and is not overwritten; remove it, or name another folder"
    )


def test_a_full_disk_is_reported_before_anything_is_written(tmp_path, capsys, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(
        shutil, "disk_usage", lambda folder: usage(4_000_000_000, 3_000_000_000, 1_000_000_000)
    )
    assert refused(capsys, tmp_path / "large") == (
        f"error: the checkpoint takes 2.3 GiB and {tmp_path} has 953 MiB free; free some space, name a "
        "folder on another disk, or ask for fewer --layers"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_leaves_nothing(tmp_path, capsys, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer, "_write_weights", full)
    assert refused(capsys, tmp_path / "tiny", "--shape", "tiny") == (
        f"error: cannot write {tmp_path / 'tiny'} (No space left on device); nothing is left of it: name "
        "another folder"
    )
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_nothing(tmp_path, capsys, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "pieces", interrupted)
    assert main([str(tmp_path / "tiny"), "--shape", "tiny"]) == 130
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_left_is_cleared_away(tmp_path):
    left = tmp_path / ".tiny.unfinished"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    assert main([str(tmp_path / "tiny"), "--shape", "tiny"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_two_writers_at_once(tmp_path, capsys):
    with FileLock(tmp_path / ".tiny.lock"):
        line = refused(capsys, tmp_path / "tiny", "--shape", "tiny")
    target = re.escape(str(tmp_path / "tiny"))
    assert re.fullmatch(
        f"error: another process is writing {target}; wait for it, or name another folder", line
    )


@pytest.mark.parametrize("asked", [511, 600_001])
def test_a_vocabulary_that_cannot_be_had(asked, capsys, tmp_path: Path):
    assert refused(capsys, tmp_path / "odd", "--vocab-size", asked) == (
        f"error: --vocab-size {asked} cannot be had: the tokenizer has 256 bytes and 256 special tokens, and "
        "no more than 600000 tokens; ask for 512 to 600000"
    )


def test_layers_that_no_config_may_have(capsys, tmp_path):
    assert refused(capsys, tmp_path / "deep", "--layers", 10**9) == (
        "error: --layers 1000000000 cannot be had; ask for at most 1000"
    )


def test_the_size_is_printed(capsys, tmp_path):
    assert main([str(tmp_path / "tiny"), "--shape", "tiny"]) == 0
    assert f"{tmp_path / 'tiny'}: 2 MiB of random weights, " in capsys.readouterr().err


def test_transformers_finds_nothing_to_warn_of(tmp_path, caplog):
    """It has doubts about large vocabularies that it does not know."""
    folder = tmp_path / "wide"
    assert main([str(folder), "--shape", "tiny", "--layers", "1", "--vocab-size", "128256"]) == 0
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        open_checkpoint(folder)
    finally:
        logger.removeHandler(caplog.handler)
    assert caplog.messages == []
