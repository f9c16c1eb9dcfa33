"""Drafts by a smaller model with the same vocabulary: its own programs, its own KV cache.

It is greedy for any settings of the answer: a deterministic draft changes neither tokens nor distribution
(speculative.py). After a rejected draft its cache is truncated to the common tokens, so it computes only new
tokens. A model whose config.json has a `pard_token` makes all drafts in one pass.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from aerie.common.errors import UserError
from aerie.engine.config import ModelConfig
from aerie.engine.forward import decode_step, next_logits_row, prefill
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array
from aerie.engine.page_pool import KVCache
from aerie.engine.strategies.drafters import DraftSource
from aerie.engine.strategies.speculative import MAX_DRAFTS
from aerie.engine.tokenizer import Tokenizer


class DraftModelDrafter:
    """Drafts tokens with a model. Each answer has its own drafter; those of a session share `lock`.

    vocab_size: of the target model. Padded checkpoints of one tokenizer differ in size: no token is drafted
    that the target does not have, and nothing is drafted after a token that the draft model does not have. A
    call raises what prefill and decode raise.
    """

    def __init__(
        self, model: Callable[[], LoadedModel], lock: threading.Lock, vocab_size: int | None = None
    ) -> None:
        self._model, self._lock, self._vocab_size = model, lock, vocab_size
        self._cache: KVCache | None = None

    def __call__(self, tokens: Sequence[int], max_drafts: int) -> Sequence[int]:
        """Empty if the draft model's context has no space for the tokens, or if it lacks one of them."""
        max_drafts = min(max_drafts, self._model().positions - len(tokens))
        if max_drafts < 1 or max(tokens) >= self._model().config.vocab_size:
            return ()
        with self._lock:
            model = self._model()
            cache = self._cache = self._cache or model.new_cache(len(tokens))
            cache.length = _common_prefix(cache.token_ids, tokens[:-1])
            if model.config.draft_mask_id is None:
                return [*itertools.islice(_generate(model, cache, tokens, self._vocab_size), max_drafts)]
            return _generate_in_one_pass(model, cache, tokens, max_drafts, self._vocab_size)

    def close(self) -> None:
        """Drop the KV cache."""
        self._cache = None


def _generate(
    model: LoadedModel, cache: KVCache, tokens: Sequence[int], vocab_size: int | None
) -> Iterator[int]:
    """Greedy tokens after these, without end; one pass for each."""
    row = prefill(model, tokens[cache.length :], cache, last_only=True)[-1]
    while True:
        yield (token := _likeliest(model, row, vocab_size))
        row = decode_step(model, token, cache)


def _generate_in_one_pass(
    model: LoadedModel, cache: KVCache, tokens: Sequence[int], count: int, vocab_size: int | None
) -> list[int]:
    """Greedy tokens in one pass, of a model trained for it (PARD, arXiv 2504.18583; AMD-AGI/PARD): the text
    is followed by one mask token less than there are drafts, and each predicts the next token."""
    masks = [model.config.draft_mask_id or 0] * (count - 1)
    rows = prefill(model, [*tokens[cache.length :], *masks], cache)[-count:]
    cache.length = len(tokens)
    return [_likeliest(model, row, vocab_size) for row in rows]


def _likeliest(model: LoadedModel, row: BF16Array, vocab_size: int | None) -> int:
    """The most likely token of those that both models have."""
    return int(np.argmax(next_logits_row(model, row)[:vocab_size].astype(np.float32)))


def _common_prefix(held: Sequence[object], tokens: Sequence[int]) -> int:
    """Number of first tokens that are equal in both."""
    return sum(
        1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(held, tokens, strict=False))
    )


def draft_model_source(
    model: Callable[[], LoadedModel], lock: threading.Lock, target: ModelConfig
) -> DraftSource:
    """Drafts by this model, which `model` returns at each call, for answers of the target."""
    config = model().config
    cost, cost_is_total = _weights(config) / _weights(target), config.draft_mask_id is not None

    def ensure_programs(prompt: int, more: int) -> None:
        with lock:
            model().ensure_programs(_programs_for(model(), prompt, more))

    return DraftSource(
        partial(DraftModelDrafter, model, lock, target.vocab_size), cost, cost_is_total, ensure_programs
    )


def _programs_for(model: LoadedModel, prompt: int, more: int) -> Iterator[str]:
    """The programs of an answer: those that compute its prompt, and, in every context up to its end, those
    that compute the tokens since the last draft."""
    masks = 0 if model.config.draft_mask_id is None else MAX_DRAFTS - 1
    end, max_tokens = min(prompt + more, model.positions), 1 + MAX_DRAFTS + masks
    prefills = [(prompt + 1 + masks, 0)]
    for past in (
        prompt,
        *(context for context in model.variant_set.contexts if prompt < context),
        end - max_tokens,
    ):
        prefills += [(tokens, max(past, 0)) for tokens in range(1, max_tokens + 1)]
    for tokens, past in dict.fromkeys((min(tokens, end - past), past) for tokens, past in prefills):
        if tokens > 0:
            yield from model.variant_set.programs_for_calls(model.plan(tokens, past), last_only=not masks)


def _weights(config: ModelConfig) -> int:
    """Weight elements that a pass reads."""
    return config.layers_parameters + config.vocab_size * config.hidden_size


def check_drafter(
    target: tuple[ModelConfig, Tokenizer], drafter: tuple[ModelConfig, Tokenizer], name: str
) -> None:
    """Raises UserError for a model that cannot draft for another: its vocabulary differs, or it is one of
    block diffusion."""
    (_, target_tokenizer), (draft_config, draft_tokenizer) = target, drafter
    if draft_config.diffusion:
        raise UserError(
            f"draft {name} is a model of block diffusion, and a draft model must be autoregressive; name "
            "another"
        )
    if not target_tokenizer.has_same_vocabulary(draft_tokenizer):
        raise UserError(
            f"draft {name} has another vocabulary: its token ids differ from the model's, so its drafts "
            "would be wrong tokens; name a draft model that was made for this model"
        )
