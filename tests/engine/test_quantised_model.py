"""A model in blocks has the bits of the same model with the weights that the blocks stand for in bf16."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.cli.checkpoints import BUILT_IN_MODELS, DEMO_FOLDER
from aerie.engine.checkpoint import Checkpoint, open_checkpoint
from aerie.engine.forward import decode_step, next_token_logits, prefill
from aerie.engine.numerics import bf16
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions, names_with_kinds
from aerie.engine.quantised import QuantisedTensor, quantised
from aerie.engine.reporter import Reporter
from aerie.engine.sampler import Sampler
from aerie.engine.session import Session
from aerie.engine.strategies.decode_config import DecodeConfig
from aerie.engine.tensor_parallel import part_config
from aerie.engine.tensors import Tensor
from aerie.multi_launch_builder.weight_kinds import WeightKinds
from aerie.runtime import select_backend

FIELDS = ("wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down")


class InBF16(Tensor):
    """The weights that a quantised tensor stands for, as a tensor of bf16."""

    values: Any  # no field: `replace` keeps none of it

    @staticmethod
    def of(tensor: QuantisedTensor) -> InBF16:
        made = InBF16(**{name: getattr(tensor, name) for name in Tensor.__dataclass_fields__})
        object.__setattr__(made, "values", tensor.to_bf16())
        return made

    def part(self, first: int, rows: int) -> Tensor:
        return self._cut(self.values[first : first + rows])

    def columns(self, first: int, count: int) -> Tensor:
        return self._cut(self.values[:, first : first + count])

    def _cut(self, values: Any) -> Tensor:
        made = replace(self, shape=values.shape)
        object.__setattr__(made, "values", values)
        return made

    def rows_into(self, out: Any, first: int) -> None:
        out[...] = self.values[first : first + len(out)]

    def opened(self) -> Any:
        return self

    def row(self, out: Any, number: int) -> None:
        out[...] = self.values[number]


def in_blocks(folder: Path, seed: int | None) -> Checkpoint:
    """A checkpoint whose matrices are q4, or of kinds that are drawn: one layer's `w_down` is another."""
    made, rng = open_checkpoint(folder, "bf16"), np.random.default_rng(seed)
    drawn = {name: "q4" if seed is None else str(rng.choice(["bf16", "q4", "q8"])) for name in FIELDS}
    tensors, names = made.weights._tensors, made.config.family.tensors
    for layer in range(made.config.num_hidden_layers):
        for field, kind in drawn.items():
            kind = "q8" if (layer, field, seed is None) == (1, "w_down", False) else kind
            name = f"model.layers.{layer}.{names[field]}"
            if kind != "bf16":
                tensors[name] = quantised(tensors[name], kind)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in tensors:
            tensors[name] = quantised(tensors[name], "q8")
    return replace(made, config=replace(made.config, weight_kinds=made.weights.kinds))


def in_bf16(checkpoint: Checkpoint) -> Checkpoint:
    made = open_checkpoint(checkpoint.folder, "bf16")
    for name, tensor in checkpoint.weights._tensors.items():
        if isinstance(tensor, QuantisedTensor):
            made.weights._tensors[name] = InBF16.of(tensor)
    return made


def open_session(checkpoint: Checkpoint, **options: Any) -> Session:
    seq_len = options.pop("seq_len", None)
    made = RuntimeOptions(seq_len, select_backend("virtual"), default_cache_dir(), **options)
    return prepare_runtime(checkpoint, made, Reporter(quiet=True))


def passes(session: Session) -> list[bytes]:
    """The last layer's rows of a prompt, and the logits of it and of tokens after it."""
    model = session.model
    prompt = [int(token) for token in np.random.default_rng(1).integers(3, 400, 41)]
    cache = model.new_cache(60)
    made = [prefill(model, prompt, cache)]
    made += [next_token_logits(model, decode_step(model, token, cache)) for token in (5, 77, 300)]
    return [np.asarray(array).tobytes() for array in made]


def answers(session: Session, prompts: Sequence[Sequence[int]], draft: str | None = None) -> list[list[int]]:
    """Of requests that run together, in one batch."""
    config = DecodeConfig(draft=draft) if draft else None
    made = [session.generate(prompt, 12, Sampler(), decode_config=config) for prompt in prompts]
    return [[*request] for request in made]


@pytest.mark.parametrize("seed", [None, pytest.param(3, marks=pytest.mark.slow)])
def test_variants_give_the_bits_of_bf16(seed: int | None) -> None:
    """A prompt in blocks of 8 rows, tokens by GEMVs, the LM head of one row."""
    checkpoint = in_blocks(DEMO_FOLDER, seed)
    found = open_session(checkpoint, variants="8x512")
    assert any("_q" in name for name in found.model.programs)
    assert passes(found) == passes(open_session(in_bf16(checkpoint), variants="8x512"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"seq_len": 64},
        {"variants": "8x512 64x512"},
        {"variants": "8x512", "decode": "rows"},
        {"variants": "8x512", "decode": "rows", "devices": (0, 1)},
    ],
    ids=["the six programs", "64 rows", "decode in rows", "two devices"],
)
def test_every_family_gives_the_bits_of_bf16(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VNPU_DEVICES", "2")
    checkpoint = in_blocks(DEMO_FOLDER, None)
    found, plain = (open_session(each, **options) for each in (checkpoint, in_bf16(checkpoint)))
    assert passes(found) == passes(plain)


@pytest.mark.slow
def test_batches_and_drafts_give_the_tokens_of_bf16() -> None:
    checkpoint = in_blocks(DEMO_FOLDER, None)
    found, plain = (
        open_session(each, variants="8x512", decode="rows") for each in (checkpoint, in_bf16(checkpoint))
    )
    prompts = [[5, 6, 7, 8] * 5, [*range(20, 47)], [9]]
    assert answers(found, prompts) == answers(plain, prompts)
    assert answers(found, prompts[:1], "lookup") == answers(plain, prompts[:1])


@pytest.mark.slow
def test_blocks_of_diffusion_give_the_tokens_of_bf16() -> None:
    checkpoint = in_blocks(BUILT_IN_MODELS["demo-diffusion"], None)
    found, plain = (open_session(each, variants="32x512") for each in (checkpoint, in_bf16(checkpoint)))
    prompt = [[*range(20, 60)]]
    assert answers(found, prompt) == answers(plain, prompt)


def test_a_cut_within_a_group_leaves_a_part_in_bf16() -> None:
    """Of 768 columns a device of 16 has 48."""
    config = open_checkpoint(DEMO_FOLDER, "q4").config
    parts = part_config(replace(config, intermediate_size=64 * 3), 1).weight_kinds
    assert parts == config.weight_kinds
    odd = replace(config, intermediate_size=2 * 80)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aerie.engine.tensor_parallel.program_store.check_shape", lambda shape: None)
        kinds = dict(part_config(odd, 2).weight_kinds.layers[0])
    assert "w_down" not in kinds
    assert kinds["w_gate"] == "q4"


def test_names_of_programs_have_the_kinds_of_layers() -> None:
    config = open_checkpoint(DEMO_FOLDER, "q4").config
    assert names_with_kinds(config, ["lm_head_gemv", "o_ffn_ar8"]) == ["lm_head_gemv_q8", "o_ffn_ar8_q4"]
    assert open_checkpoint(DEMO_FOLDER, "bf16").config.weight_kinds == WeightKinds()


def test_embeddings_are_looked_up_in_the_quantised_table() -> None:
    tensor = quantised(
        open_checkpoint(DEMO_FOLDER, "bf16").weights._tensors["model.embed_tokens.weight"], "q8"
    )
    whole, row = tensor.to_bf16(), np.empty(tensor.shape[1], bf16)
    tensor.opened().row(row, 7)
    assert row.tobytes() == whole[7].tobytes()


def test_embeddings_are_rows_of_the_quantised_table() -> None:
    """Looked up one by one in the file, so that no table of bf16 is in memory."""
    weights = open_checkpoint(DEMO_FOLDER, "q4").weights
    table = weights.quantised["model.embed_tokens.weight"]
    assert (table.kind, weights.embed_table.table) == ("q8", table)
    rows = weights.embed_table[[3, 70, 3]]
    assert rows.tobytes() == table.to_bf16()[[3, 70, 3]].tobytes()
    assert table.source
    read, whole = [], table.source.groups(70, 1)

    def groups(_: Any, first: int, rows: int) -> Any:
        read.append((first, rows))
        return whole

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QuantisedTensor, "groups", groups)
        assert len(weights.embed_table[70]) == table.shape[1]
    assert read == [(70, 1)]
