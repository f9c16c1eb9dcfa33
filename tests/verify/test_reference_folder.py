"""Nothing of a checkpoint is run, and nobody is asked: neither by ours nor by the reference of the gate."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from aerie.board.doctor.basics import checkpoint as doctor_of_checkpoint
from aerie.board.doctor.machine import CheckStatus, ExaminedMachine
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.forward import next_token_logits, prefill
from aerie.verify.reference import Reference

MAPS = ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoTokenizer", "AutoProcessor")
ENTRIES = {
    "auto_map": dict.fromkeys(MAPS, "x.X"),
    "custom_pipelines": {"text-generation": {"impl": "x.X", "pt": ["AutoModelForCausalLM"]}},
    "custom_generate": "x",
    "attn_implementation": "someone/kernels",
    "_attn_implementation": "someone/kernels",
    "_experts_implementation": "someone/kernels",
    "fusion_config": {"x": "x.X"},
    "trust_remote_code": True,
}
JSON_FILES = ("config.json", "generation_config.json", "processor_config.json", "preprocessor_config.json")
CODE_FILES = ("x.py", "modeling_llama.py", "custom_generate/generate.py", "__init__.py", "sitecustomize.py")
PICKLES = ("pytorch_model.bin", "adapter_model.bin", ".metadata", "training_args.bin", "optimizer.pt")


class Marks:
    """Unpickling it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.fixture
def full_of_code(tmp_path, monkeypatch):
    """A copy of the demo with code wherever somebody looks for it; all of it makes the file MARK."""
    folder, mark = shutil.copytree(DEMO_FOLDER, tmp_path / "model"), tmp_path / "MARK"
    for name in JSON_FILES:
        path = folder / name
        content = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**content, **ENTRIES}))
    for name in CODE_FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"open({str(mark)!r}, 'w').close()\nclass X: pass\n")
    for name in PICKLES:
        (folder / name).write_bytes(pickle.dumps(Marks(mark)))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    yield folder
    assert not mark.exists()
    assert not [name for name in sys.modules if name.startswith("transformers_modules")]


def test_code_beside_a_checkpoint_changes_nothing(full_of_code, demo_reference):
    for folder in (full_of_code, Path()):
        theirs = Reference.open(folder)
        np.testing.assert_array_equal(theirs.logits([1, 2, 3]), demo_reference.logits([1, 2, 3]))
    ours, sound = (open_checkpoint(each) for each in (full_of_code, DEMO_FOLDER))
    assert ours.config == sound.config
    np.testing.assert_array_equal(ours.weights.final_norm.read(), sound.weights.final_norm.read())
    machine = ExaminedMachine(model=str(full_of_code), cache_dir=full_of_code / "cache")
    assert doctor_of_checkpoint(machine).status is not CheckStatus.FAILED


def test_the_fixture_would_see_code_that_runs(full_of_code):
    """Each kind of file makes the mark where it is run."""
    mark = full_of_code.parent / "MARK"
    for name in (*CODE_FILES, *PICKLES):
        content = (full_of_code / name).read_bytes()
        exec(content, {}) if name in CODE_FILES else pickle.loads(content)
        mark.unlink()


@pytest.mark.parametrize("shard", ["10GB", "600KB"])
def test_the_reference_sees_facts_and_weights_alone(write_llama, shard):
    """However many files there are; what it opens is gone once both models are open."""
    import torch
    from transformers import LlamaForCausalLM

    folder = write_llama(num_hidden_layers=1, shard=shard)
    theirs = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    ours = Reference.open(folder)
    np.testing.assert_array_equal(ours.logits([1, 2]), Reference(theirs, folder).logits([1, 2]))
    kept = {**ours.model.config.to_dict(), "architectures": ["LlamaForCausalLM"], "_name_or_path": ""}
    assert kept == {**theirs.config.to_dict(), "_name_or_path": ""}
    shown = Path(ours.model.config._name_or_path)
    assert shown.exists()
    assert ours.exact.model.config._name_or_path == str(shown)
    assert not shown.exists()


def test_longrope_of_long_texts(make_checkpoint, numpy_model):
    """Where a session turns all texts by the factors of long ones, so does the reference, short ones too."""
    pairs = 32
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * pairs,
        "long_factor": [1.0 + number for number in range(pairs)],
        "original_max_position_embeddings": 64,
    }
    folder = make_checkpoint(
        family="Phi3", head_dim=64, rope_parameters=rope, original_max_position_embeddings=64, pad_token_id=0
    )
    checkpoint, model = open_checkpoint(folder).limited(512), numpy_model(folder, max_positions=512)
    tokens = list(range(5, 45))
    ours = np.stack([next_token_logits(model, row) for row in prefill(model, tokens, model.new_cache(40))])
    long, short = (
        Reference.open(folder, "float32", ours=checkpoint.weights, is_long=each).logits(tokens)
        for each in (checkpoint.config.is_long, False)
    )
    error, other = (np.abs(ours - theirs).mean() for theirs in (long, short))
    assert error < other / 10
