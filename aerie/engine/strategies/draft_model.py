"""Guesses by a smaller model that says the same tokens: its own programs, its own KV cache.

It is greedy, whatever the answer's settings: a guess that is certain keeps both tokens and distribution
(speculative.py). What it holds of an answer goes back with every guess that was wrong, so it reads new tokens
alone. A model whose config.json has a `pard_token` makes all its guesses in one pass.
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
    """See Drafter. One for each answer; those of a session take turns, by `turn`.

    vocab_size: of the model that it guesses for. Sizes of one tokenizer differ where checkpoints are padded:
    no token is guessed that the other does not have, and nothing after one that this model does not have. A
    call raises what reading a prompt and decoding raise.
    """

    def __init__(
        self, model: Callable[[], LoadedModel], lock: threading.Lock, vocab_size: int | None = None
    ) -> None:
        self._model, self._lock, self._vocab_size = model, lock, vocab_size
        self._cache: KVCache | None = None

    def __call__(self, tokens: Sequence[int], max_drafts: int) -> Sequence[int]:
        """See Drafter. None where its own context has no room for the tokens, or it does not have one."""
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
        """See Drafter."""
        self._cache = None


def _generate(
    model: LoadedModel, cache: KVCache, tokens: Sequence[int], vocab_size: int | None
) -> Iterator[int]:
    """What it would say after these, without end; one pass for each that is asked for."""
    row = prefill(model, tokens[cache.length :], cache, last_only=True)[-1]
    while True:
        yield (token := _likeliest(model, row, vocab_size))
        row = decode_step(model, token, cache)


def _generate_in_one_pass(
    model: LoadedModel, cache: KVCache, tokens: Sequence[int], count: int, vocab_size: int | None
) -> list[int]:
    """The same in one pass, of a model that was trained to (PARD, arXiv 2504.18583; AMD-AGI/PARD): behind the
    text stands one mask token less than there are guesses, and each says the next one."""
    masks = [model.config.draft_mask_id or 0] * (count - 1)
    rows = prefill(model, [*tokens[cache.length :], *masks], cache)[-count:]
    cache.length = len(tokens)
    return [_likeliest(model, row, vocab_size) for row in rows]


def _likeliest(model: LoadedModel, row: BF16Array, vocab_size: int | None) -> int:
    """Of the tokens that both models have."""
    return int(np.argmax(next_logits_row(model, row)[:vocab_size].astype(np.float32)))


def _common_prefix(held: Sequence[object], tokens: Sequence[int]) -> int:
    """How many of both, from the first on, are the same."""
    return sum(
        1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(held, tokens, strict=False))
    )


def draft_model_source(
    model: Callable[[], LoadedModel], lock: threading.Lock, target: ModelConfig
) -> DraftSource:
    """Guesses of this model, which is asked for anew for every guess, for answers of the target."""
    config = model().config
    cost, at_once = _weights(config) / _weights(target), config.draft_mask_id is not None

    def make_room(prompt: int, more: int) -> None:
        with lock:
            model().ensure_programs(_programs_for(model(), prompt, more))

    return DraftSource(partial(DraftModelDrafter, model, lock, target.vocab_size), cost, at_once, make_room)


def _programs_for(model: LoadedModel, prompt: int, more: int) -> Iterator[str]:
    """The programs of an answer of so many tokens: those that read its prompt, and, in every context up to
    its end, those that read what is new since a guess."""
    masks = 0 if model.config.draft_mask_id is None else MAX_DRAFTS - 1
    end, longest = min(prompt + more, model.positions), 1 + MAX_DRAFTS + masks
    reads = [(prompt + 1 + masks, 0)]
    for past in (prompt, *(one for one in model.variant_set.contexts if prompt < one), end - longest):
        reads += [(tokens, max(past, 0)) for tokens in range(1, longest + 1)]
    for tokens, past in dict.fromkeys((min(tokens, end - past), past) for tokens, past in reads):
        if tokens > 0:
            yield from model.variant_set.programs_for_calls(model.plan(tokens, past), last_only=not masks)


def _weights(config: ModelConfig) -> int:
    """Elements that a pass reads."""
    return config.num_hidden_layers * config.layer_parameters + config.vocab_size * config.hidden_size


def check_drafter(
    target: tuple[ModelConfig, Tokenizer], drafter: tuple[ModelConfig, Tokenizer], name: str
) -> None:
    """UserError for a model that cannot guess for another: whose tokens are others, or that fills blocks
    in."""
    (_, our_tokens), (theirs, their_tokens) = target, drafter
    if theirs.diffusion:
        raise UserError(
            f"draft {name} fills in blocks, and guesses come from a model that says one token after the "
            "other; name another"
        )
    if not our_tokens.has_same_vocabulary(their_tokens):
        raise UserError(
            f"draft {name} has another vocabulary: its tokenizer's ids are not those of the model's, and a "
            "guess of the one would be another word of the other; name a draft model that was made for this "
            "one"
        )
