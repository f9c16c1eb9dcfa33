"""The reference: Hugging Face transformers on the CPU, loaded from the same checkpoint's facts and weights.

bf16 with transformers' default attention (`sdpa`): what a user of the checkpoint gets who asks for nothing
else. The same model in float32 stands for exact arithmetic; how far bf16 is from it is the yardstick for
how far ours may be.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.common.errors import UserError
from aerie.engine.config import ModelConfig, load_config
from aerie.engine.errors import CheckpointError
from aerie.engine.memory_estimate import SessionNeeds, footprint, require
from aerie.engine.numerics import F32Array
from aerie.engine.weights import expected_shapes
from aerie.runtime.memory import format_bytes
from aerie.verify.bounds import LogitsDistance, compare
from aerie.verify.gate_prompts import Prompt
from aerie.verify.reference_folder import facts_and_weights

Note = Callable[[str], None]
"""Takes a line that says what is going on."""


WORKING_BYTES = 1 << 30
"""Of torch, and of what a forward pass takes beside the parameters; a prompt of 2048 tokens took less."""


def silent(line: str) -> None:
    """Notes for nobody."""


@dataclass(frozen=True)
class Answer:
    """What the reference says: `token_ids`, and the logits that each was taken from, (steps, vocab_size)."""

    token_ids: list[int]
    logits: F32Array


@dataclass(frozen=True)
class Expected:
    """What a prompt should give: the answer, and where it is asked for the logits after every position of the
    prompt. `rounding` tells for both how far float32 is from them."""

    answer: Answer
    rounding: LogitsDistance
    positions: F32Array | None
    positions_rounding: LogitsDistance | None


class Reference:
    """A model of transformers, such as its LlamaForCausalLM, loaded from `folder`."""

    def __init__(self, model: Any, folder: Path) -> None:
        self.model = model
        self.folder = folder
        self._expected: dict[tuple[Prompt, int], Expected] = {}

    @cached_property
    def exact(self) -> Reference:
        """The same model in float32, which stands for exact arithmetic; loaded when it is first asked for."""
        return Reference.open(self.folder, "float32")

    @classmethod
    def open(cls, folder: Path, dtype: str = "bfloat16") -> Reference:
        """Load the checkpoint in `folder` as `dtype` (a name of torch's).

        Raises UserError where torch is missing, CheckpointError where transformers cannot load the folder.
        """
        torch = import_torch()
        import transformers
        from transformers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_error()
        kind = getattr(transformers, load_config(folder).architecture)
        try:
            with facts_and_weights(folder, kind.config_class) as shown:
                model = kind.from_pretrained(
                    shown,
                    dtype=getattr(torch, dtype),
                    trust_remote_code=False,
                    use_safetensors=True,
                    local_files_only=True,
                )
        except CheckpointError:
            raise
        except Exception as error:  # transformers, safetensors and torch raise many unrelated types
            reason = " ".join(str(error).split()) or type(error).__name__
            raise CheckpointError(f"transformers cannot load {folder}: {reason}; fetch it again") from error
        return cls(model.eval(), folder)

    def logits(self, token_ids: Sequence[int], start: int = 0) -> F32Array:
        """Logits after the positions from `start` on, from one forward pass: (positions, vocab_size)."""
        torch = import_torch()
        keep = len(token_ids) - start
        with torch.inference_mode():
            out = self.model(torch.tensor([list(token_ids)]), use_cache=False, logits_to_keep=keep)
        return _float32(out.logits[0])

    def masked(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int],
        seen: NDArray[np.bool_],
        count: int,
    ) -> F32Array:
        """Logits after the last `count` tokens, (count, vocab_size), of which each has a position and sees
        what `seen`, (tokens, tokens), says."""
        torch = import_torch()
        kind = self.model.dtype
        mask = torch.where(torch.from_numpy(seen), 0.0, torch.finfo(kind).min).to(kind)[None, None]
        with torch.inference_mode():
            out = self.model(
                torch.tensor([list(token_ids)]),
                attention_mask=mask,
                position_ids=torch.tensor([list(positions)]),
                use_cache=False,
                logits_to_keep=count,
            )
        return _float32(out.logits[0])

    def greedy(self, token_ids: Sequence[int], steps: int) -> Answer:
        """`steps` tokens that continue `token_ids`, each the likeliest, step by step with a KV cache.

        An end-of-sequence token is a token like any other here. Equal logits: the lowest id, as Sampler.
        """
        torch = import_torch()
        rows, answer = [], []
        fed, cache = list(token_ids), None
        with torch.inference_mode():
            for _ in range(steps):
                out = self.model(torch.tensor([fed]), past_key_values=cache, use_cache=True, logits_to_keep=1)
                rows.append(_float32(out.logits[0, -1]))
                answer.append(int(np.argmax(rows[-1])))
                fed, cache = answer[-1:], out.past_key_values
        return Answer(answer, np.stack(rows))

    def expect(self, wanted: Sequence[tuple[Prompt, int]], note: Note = silent) -> list[Expected]:
        """What each prompt should give over so many steps. What was asked before is remembered."""
        new = [pair for pair in wanted if pair not in self._expected]
        answers = []
        for prompt, steps in new:
            note(f"reference: {prompt.name}")
            positions = self.logits(prompt.token_ids) if prompt.every_position else None
            answers.append((self.greedy(prompt.token_ids, steps), positions))
        if new:
            note("reference: the same in float32")
            for pair, (answer, positions) in zip(new, answers, strict=True):
                self._expected[pair] = _expected(self.exact, pair[0], answer, positions)
        return [self._expected[pair] for pair in wanted]


def _expected(exact: Reference, prompt: Prompt, answer: Answer, positions: F32Array | None) -> Expected:
    ids, length = [*prompt.token_ids, *answer.token_ids[:-1]], len(prompt.token_ids)
    logits = exact.logits(ids, 0 if prompt.every_position else length - 1)
    rounding = compare(answer.logits, logits[-len(answer.token_ids) :])
    if positions is None:
        return Expected(answer, rounding, None, None)
    return Expected(answer, rounding, positions, compare(positions, logits[:length]))


def penalised(logits: F32Array, token_ids: Sequence[int], penalty: float) -> F32Array:
    """Logits, (vocab_size,), after transformers' repetition penalty of all tokens so far."""
    torch = import_torch()
    from transformers import RepetitionPenaltyLogitsProcessor

    scores = torch.from_numpy(logits.copy())[None]
    changed: F32Array = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([list(token_ids)]), scores)[
        0
    ].numpy()
    return changed


def reference_bytes(config: ModelConfig, *parameter_bytes: int) -> int:
    """What references take of memory together, of which one has parameters of so many bytes each."""
    parameters = sum(math.prod(shape) for shape in expected_shapes(config).values())
    return WORKING_BYTES + sum(parameter_bytes) * parameters


def check_memory_beside(config: ModelConfig, needs: SessionNeeds, copies: int) -> None:
    """Raises TooLittleMemoryError where a session with its references, in bf16 and float32, takes too much.

    Arguments as of engine.footprint.footprint.
    """
    ours, theirs = footprint(config, needs, copies), reference_bytes(config, 2, 4)
    parts = (
        f" (ours {format_bytes(ours.total)}, that of transformers in bf16 and float32 {format_bytes(theirs)})"
    )
    needed = ours.total + theirs
    require(needed, "the model beside its reference", ["take a smaller model"], parts, ours.already_allocated)


def import_torch() -> Any:
    """The module torch; UserError where it is not installed."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # else its idle threads take cores from ours
    try:
        import torch
    except ImportError:
        raise UserError(
            "the reference needs torch, which is not installed; `make verify` installs it, as does "
            "pip install -e '.[test]'"
        ) from None
    return torch


def _float32(tensor: Any) -> F32Array:
    values: F32Array = tensor.float().numpy()
    if not np.isfinite(values).all():
        raise CheckpointError(
            "transformers gives logits for this checkpoint that are not finite: there is nothing to compare "
            "with, and its weights are damaged: fetch it again"
        )
    return values
