"""The reference: Hugging Face transformers on the CPU, loaded from the same checkpoint.

It runs in bf16 with transformers' default attention (`sdpa`), which is what a user gets without options. The
same model in float32 stands for exact arithmetic: how far bf16 is from float32 decides how far ours may be.
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
from aerie.engine.text_part import text_names
from aerie.engine.weights import Weights, expected_shapes
from aerie.runtime.memory import format_bytes
from aerie.verify.bounds import LogitsDistance, compare
from aerie.verify.gate_prompts import Prompt
from aerie.verify.reading_check import check_reading
from aerie.verify.reference_folder import ReferenceFolder

Note = Callable[[str], None]
"""A callable that takes one line about the progress."""


WORKING_BYTES = 1 << 30
"""Memory of torch and of a forward pass without the parameters. A prompt of 2048 tokens took less."""


def no_note(line: str) -> None:
    """Ignore a note."""


@dataclass(frozen=True)
class ReferenceAnswer:
    """The reference's greedy answer. logits: (steps, vocab_size), those that each token was chosen from."""

    token_ids: list[int]
    logits: F32Array


@dataclass(frozen=True)
class ExpectedAnswer:
    """The expected result of a prompt.

    positions: logits after every position of the prompt, if the prompt requests them. rounding,
    positions_rounding: how far the float32 reference is from the answer's logits and from `positions`.
    """

    answer: ReferenceAnswer
    rounding: LogitsDistance
    positions: F32Array | None
    positions_rounding: LogitsDistance | None


class Reference:
    """A model of transformers, such as its LlamaForCausalLM, loaded from `folder`.

    files: the folder that transformers reads, until both models are loaded: making one of a GGUF file takes
    longer than loading it. weights: what they are on the device, one of quantised.KINDS.
    """

    def __init__(
        self, model: Any, folder: Path, files: ReferenceFolder | None = None, weights: str = "auto"
    ) -> None:
        self.model = model
        self.folder = folder
        self.weights = weights
        self._files = files
        self._expected: dict[tuple[Prompt, int], ExpectedAnswer] = {}

    @cached_property
    def exact(self) -> Reference:
        """The same model in float32, which stands for exact arithmetic. Loaded on first use."""
        files, self._files = self._files, None
        return Reference._open(self.folder, "float32", files, self.weights)

    @classmethod
    def open(
        cls, folder: Path, dtype: str = "bfloat16", ours: Weights | None = None, is_long: bool = False
    ) -> Reference:
        """Load the checkpoint in `folder` as `dtype` (a name of torch's). ours: its weights as the engine
        reads them; with these the reference has the weights that blocks on the device stand for. is_long:
        whether it turns texts of any length by longrope's frequencies of long ones.

        Raises UserError if torch is missing, CheckpointError if transformers cannot load the folder,
        ReadingError where `ours` are others than those that a second reading finds.
        """
        if ours is None:
            return cls._open(folder, dtype, None, "auto")
        files = ReferenceFolder(folder, _class_of(folder).config_class, ours.kind, is_long)
        if ours.quantised:
            check_reading(ours, files.path)
        return cls._open(folder, dtype, files, ours.kind)

    @classmethod
    def _open(cls, folder: Path, dtype: str, files: ReferenceFolder | None, weights: str) -> Reference:
        torch = import_torch()
        from transformers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_error()
        kind = _class_of(folder)
        try:
            files = files or ReferenceFolder(folder, kind.config_class, weights)
            model = kind.from_pretrained(
                files.path,
                dtype=getattr(torch, dtype),
                key_mapping=text_names(folder),
                trust_remote_code=False,
                use_safetensors=True,
                local_files_only=True,
            )
        except CheckpointError:
            raise
        except Exception as error:  # transformers, safetensors and torch raise many unrelated types
            reason = " ".join(str(error).split()) or type(error).__name__
            raise CheckpointError(f"transformers cannot load {folder}: {reason}; fetch it again") from error
        return cls(model.eval(), folder, files if dtype == "bfloat16" else None, weights)

    def logits(self, token_ids: Sequence[int], start: int = 0) -> F32Array:
        """Return the logits after each position from `start` on, from one forward pass: (positions,
        vocab_size).
        """
        return self.logits_at(token_ids, range(start, len(token_ids)))

    def logits_at(self, token_ids: Sequence[int], positions: Sequence[int]) -> F32Array:
        """Return the logits after each of `positions`, from one forward pass: (positions, vocab_size)."""
        torch = import_torch()
        keep = torch.tensor(list(positions))
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
        """Return the logits after the last `count` tokens, (count, vocab_size).

        positions: of each token. seen: (tokens, tokens) bool, which tokens each token attends to.
        """
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

    def greedy(self, token_ids: Sequence[int], steps: int) -> ReferenceAnswer:
        """Continue `token_ids` by `steps` tokens, each the likeliest, with a KV cache.

        An end-of-sequence token does not stop it. Of equal logits the lowest id wins, as in Sampler.
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
        return ReferenceAnswer(answer, np.stack(rows))

    def expected_answers(
        self, prompts: Sequence[tuple[Prompt, int]], note: Note = no_note
    ) -> list[ExpectedAnswer]:
        """Return the expected result of each (prompt, steps) pair. Results are cached."""
        new = [pair for pair in prompts if pair not in self._expected]
        answers = []
        for prompt, steps in new:
            note(f"reference: {prompt.name}")
            positions = self.logits(prompt.token_ids) if prompt.every_position else None
            answers.append((self.greedy(prompt.token_ids, steps), positions))
        if new:
            note("reference: the same in float32")
            for pair, (answer, positions) in zip(new, answers, strict=True):
                self._expected[pair] = _expected(self.exact, pair[0], answer, positions)
        return [self._expected[pair] for pair in prompts]


def _class_of(folder: Path) -> Any:
    """The class of transformers that runs a checkpoint."""
    import_torch()
    import transformers

    return getattr(transformers, load_config(folder).architecture)


def _expected(
    exact: Reference, prompt: Prompt, answer: ReferenceAnswer, positions: F32Array | None
) -> ExpectedAnswer:
    ids, length = [*prompt.token_ids, *answer.token_ids[:-1]], len(prompt.token_ids)
    logits = exact.logits(ids, 0 if prompt.every_position else length - 1)
    rounding = compare(answer.logits, logits[-len(answer.token_ids) :])
    if positions is None:
        return ExpectedAnswer(answer, rounding, None, None)
    return ExpectedAnswer(answer, rounding, positions, compare(positions, logits[:length]))


def apply_repetition_penalty(logits: F32Array, token_ids: Sequence[int], penalty: float) -> F32Array:
    """Apply transformers' repetition penalty for `token_ids` to logits, (vocab_size,)."""
    torch = import_torch()
    from transformers import RepetitionPenaltyLogitsProcessor

    scores = torch.from_numpy(logits.copy())[None]
    changed: F32Array = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([list(token_ids)]), scores)[
        0
    ].numpy()
    return changed


def reference_bytes(config: ModelConfig, *parameter_bytes: int) -> int:
    """Total memory in bytes of one reference for each of `parameter_bytes`: the bytes of one parameter."""
    parameters = sum(math.prod(shape) for shape in expected_shapes(config).values())
    return WORKING_BYTES + sum(parameter_bytes) * parameters


def check_memory_with_reference(config: ModelConfig, needs: SessionNeeds, copies: int) -> None:
    """Check that memory suffices for a session and its references in bf16 and float32.

    Takes the arguments of engine.footprint.footprint. Raises TooLittleMemoryError.
    """
    ours, theirs = footprint(config, needs, copies), reference_bytes(config, 2, 4)
    parts = (
        f" (ours {format_bytes(ours.total)}, that of transformers in bf16 and float32 {format_bytes(theirs)})"
    )
    needed = ours.total + theirs
    require(needed, "the model with its reference", ["take a smaller model"], parts, ours.already_allocated)


def import_torch() -> Any:
    """Return the module torch. Raises UserError if it is not installed."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # otherwise torch's idle threads take cores from ours
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
            "transformers computes logits that are not finite for this checkpoint, so there is nothing to "
            "compare with; its weights are damaged: fetch it again"
        )
    return values
