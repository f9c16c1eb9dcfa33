"""The reference: Hugging Face transformers on the CPU, loaded from the same checkpoint folder.

bf16 with transformers' default attention (`sdpa`): what a user of the checkpoint gets who asks for nothing
else. The same model in float32 stands for exact arithmetic; how far bf16 is from it is the yardstick for
how far ours may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llama32_1b.errors import CheckpointError, UserError
from llama32_1b.numerics import F32Array


@dataclass(frozen=True)
class Answer:
    """What the reference says: `token_ids`, and the logits that each was taken from, (steps, vocab_size)."""

    token_ids: list[int]
    logits: F32Array


class Reference:
    """A Llama of transformers. `model` is its LlamaForCausalLM."""

    def __init__(self, model: Any) -> None:
        self.model = model

    @classmethod
    def open(cls, folder: Path, dtype: str = "bfloat16") -> Reference:
        """Load the checkpoint in `folder` as `dtype` (a name of torch's).

        Raises UserError where torch is missing, CheckpointError where transformers cannot load the folder.
        """
        torch = _torch()
        from transformers import LlamaForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_error()
        try:
            model = LlamaForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        except Exception as error:  # transformers, safetensors and torch raise many unrelated types
            reason = " ".join(str(error).split()) or type(error).__name__
            raise CheckpointError(f"transformers cannot load {folder}: {reason}; fetch it again") from error
        return cls(model.eval())

    def logits(self, token_ids: Sequence[int]) -> F32Array:
        """Logits after every position of `token_ids`, from one forward pass: (len(token_ids), vocab_size)."""
        torch = _torch()
        with torch.inference_mode():
            rows = self.model(torch.tensor([list(token_ids)]), use_cache=False).logits[0]
        return _float32(rows)

    def greedy(self, token_ids: Sequence[int], steps: int) -> Answer:
        """`steps` tokens that continue `token_ids`, each the likeliest, step by step with a KV cache.

        An end-of-sequence token is a token like any other here. Equal logits: the lowest id, as Sampler.
        """
        torch = _torch()
        rows, answer = [], []
        fed, cache = list(token_ids), None
        with torch.inference_mode():
            for _ in range(steps):
                out = self.model(torch.tensor([fed]), past_key_values=cache, use_cache=True, logits_to_keep=1)
                rows.append(_float32(out.logits[0, -1]))
                answer.append(int(np.argmax(rows[-1])))
                fed, cache = answer[-1:], out.past_key_values
        return Answer(answer, np.stack(rows))


def _torch() -> Any:
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
    return values
