"""What quantising costs: perplexity and KL divergence of a model's weights against those of its original.

Both run in transformers in float32, so that no kernel and no rounding of activations is measured with them.
As llama.cpp does (tools/perplexity), the text is cut into windows, and the second half of each is scored.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from aerie.common.errors import UserError
from aerie.engine.numerics import F32Array, widen
from aerie.engine.reporter import OnProgress
from aerie.engine.weights import Weights
from aerie.verify.reference import Reference, import_torch

WINDOW = 512
MIN_TOKENS = 4000
"""Of a text, as fewer say little."""
LARGE = 0.99
"""The share of positions with a smaller divergence than the one that is named."""


@dataclass(frozen=True)
class Quality:
    """tokens: of the text. scored: positions whose next token counts. perplexity, original_perplexity: exp of
    the mean loss in nats. kl: mean divergence of the next token's distribution from the original's, in nats;
    kl_large: that which a share LARGE of positions does not exceed. same_top: share of positions with the
    same likeliest token."""

    tokens: int
    scored: int
    perplexity: float
    original_perplexity: float
    kl: float
    kl_large: float
    same_top: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def with_weights(reference: Reference, weights: Weights) -> Reference:
    """A copy of a reference in float32 that has these weights."""
    torch = import_torch()
    model = copy.deepcopy(reference.model)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in weights.named():
            if name in parameters:  # a tied head is none of its own
                parameters[name].copy_(torch.from_numpy(widen(tensor.read())))
    return Reference(model, reference.folder)


def measure_quality(
    original: Reference, quantised: Reference, token_ids: Sequence[int], step: OnProgress
) -> Quality:
    """Compare two references in float32 on a text. step: called after each window. Raises UserError for a
    text of less than MIN_TOKENS."""
    if len(token_ids) < MIN_TOKENS:
        raise UserError(
            f"the text has {len(token_ids)} tokens, and less than {MIN_TOKENS} say little; give a longer "
            "one with --text"
        )
    losses, others, divergences, same = [], [], [], []
    for done, (window, start) in enumerate(windows(token_ids), 1):
        theirs, ours = (_log_probabilities(each.logits(window, start)[:-1]) for each in (original, quantised))
        following = np.array(window[start + 1 :])
        rows = np.arange(len(following))
        losses.append(-ours[rows, following])
        others.append(-theirs[rows, following])
        divergences.append((np.exp(theirs) * (theirs - ours)).sum(axis=1))
        same.append(ours.argmax(axis=1) == theirs.argmax(axis=1))
        step("", done)
    kl = np.concatenate(divergences)
    return Quality(
        len(token_ids),
        len(kl),
        float(np.exp(np.concatenate(losses).mean())),
        float(np.exp(np.concatenate(others).mean())),
        float(kl.mean()),
        float(np.quantile(kl, LARGE)),
        float(np.concatenate(same).mean()),
    )


def windows(token_ids: Sequence[int]) -> Iterator[tuple[list[int], int]]:
    """The windows of a text, and the first position of each whose next token is scored. A rest that does not
    fill one is left out."""
    for first in range(0, len(token_ids) - WINDOW + 1, WINDOW):
        yield list(token_ids[first : first + WINDOW]), WINDOW // 2


def _log_probabilities(logits: F32Array) -> np.ndarray[Any, np.dtype[np.float64]]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide
