"""Chunks of context in Python: registered once, then composed in any order for any number of answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import numpy as np

from aerie.answer_options import GenerateOptions, parse_options
from aerie.answers import OnEvent, Result, Stream
from aerie.api import MAX_TOKENS, Model
from aerie.common.errors import UserError
from aerie.engine.chunks import ChunkInfo
from aerie.engine.composed_prompt import PREFIX, ComposedPrompt, parse_chunk_mode
from aerie.engine.errors import PromptError
from aerie.engine.logits import log_softmax
from aerie.engine.rope import RopeScaling
from aerie.engine.tokenizer import check_text
from aerie.engine.variant_set import ROWS, check_decode_path


class ChunkedLLM:
    """A model whose prompts are composed of chunks: texts that are read once and stand in many prompts.

        llm = ChunkedLLM(model, folder="chunks")
        paris = llm.register("Paris is the capital of France. ")
        question = llm.register("What is the capital of France?")
        print(llm.generate_from_chunks([paris, question], mode="block", max_tokens=8))

    folder: where chunks are kept, so that a later process finds them; None: they last as long as this object.
    decode: the family that answers are decoded in: "rows", on the pool that batches have, or "guide", by
    GEMVs and attention on the host, on one of its own. Raises UserError for another, and as batches do.
    docs/how-to/chunks.md says what each mode is, and what it is not.
    """

    def __init__(self, model: Model, folder: str | Path | None = None, decode: str = ROWS) -> None:
        check_decode_path(decode)
        self._model, self._decode = model, decode
        with model.session_state.lock:
            self._registry = model.session_state.session().chunk_registry(
                Path(folder) if folder else None, decode
            )

    def register(self, content: str | Sequence[int], *, pinned: bool = False, special: bool = False) -> str:
        """The id of this content, the SHA-256 of its token ids; it is read now, unless it was before.

        content: a text, or token ids, which are taken as they are. special: with the tokens that the
        tokenizer puts around a text, such as the one that begins it, which the first chunk may want. pinned:
        its keys and values stay in the pool, where others go when room is needed, and are read anew.

        Raises PromptError for what cannot be run, UserError for a file that cannot be written.
        """
        token_ids = self._tokens(content, special)
        with self._model.session_state.lock:
            return self._registry.register(token_ids, pinned)

    def stream_from_chunks(
        self,
        ids: Sequence[str],
        mode: str = PREFIX,
        max_tokens: int = MAX_TOKENS,
        *,
        on_event: OnEvent | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Stream:
        """The answer to these chunks, one after the other, piece by piece; the last is the one that asks.

        mode: "prefix", "block" or "block+link-K"; see docs/how-to/chunks.md. options: as those of
        Model.stream. In `usage`, cached_tokens are those of the prompt that were not run for this answer.
        Raises UserError for ids that are not registered, a mode that is none or not for this model, and as
        Model.stream.
        """
        state = self._model.session_state
        parsed = parse_options(options, state.session())  # of which `raw` says nothing: chunks always are
        if parsed.thinking_budget is not None:
            raise UserError(
                "thinking_budget is for answers in the chat template, and chunks are plain text; leave it out"
            )
        composition = self._composition(ids, mode)
        with state.lock:
            scheduler = state.session().scheduler
            maker = parsed.decode_config.strategy_factory(scheduler.model.config, parsed.sampler)
            request = scheduler.add_request(
                composition, max_tokens, parsed.sampler, strategy=maker, decode_path=self._decode
            )
        return Stream(state, request, parsed.stops, on_event)

    def generate_from_chunks(
        self,
        ids: Sequence[str],
        mode: str = PREFIX,
        max_tokens: int = MAX_TOKENS,
        *,
        on_event: OnEvent | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Result:
        """Generate the whole answer; see stream_from_chunks."""
        return self.stream_from_chunks(ids, mode, max_tokens, on_event=on_event, **options).result()

    def divergence(self, ids: Sequence[str], mode: str) -> float:
        """How far a mode is from one text: the Kullback-Leibler divergence, in nats, of what the model says
        of the token after the chunks, from what it says where all see all before them. Raises as
        stream_from_chunks."""
        prompts = [self._composition(ids, each) for each in (PREFIX, mode)]
        with self._model.session_state.lock:
            rows = self._model.session_state.session().scheduler.forward(prompts, decode_path=self._decode)
        causal, other = (log_softmax(row) for (row,) in rows)
        return float(np.sum(np.exp(causal) * (causal - other)))

    def chunks(self) -> list[ChunkInfo]:
        """All registered chunks, in the order of registration."""
        with self._model.session_state.lock:
            return self._registry.chunks()

    def text(self, chunk_id: str) -> str:
        """The text of a chunk. Raises UserError if the id is unknown."""
        return self._model.decode(self._registry.chunk(chunk_id).tokens)

    def pin(self, chunk_id: str, pinned: bool = True) -> None:
        """Keep the keys and values of a chunk in the pool, or stop that. Raises as register, and UserError if
        the id is unknown."""
        with self._model.session_state.lock:
            self._registry.pin(chunk_id, pinned)

    def evict(self, chunk_id: str) -> None:
        """Forget a chunk and its file; running answers that use it continue. Raises UserError if the id is
        unknown."""
        with self._model.session_state.lock:
            self._registry.evict(chunk_id)

    def _tokens(self, content: str | Sequence[int], special: bool) -> list[int]:
        if not isinstance(content, str):
            return self._model.encode(content)
        check_text(content, "the chunk")
        return self._model.session_state.session().tokenizer.encode(content, special=special)

    def _composition(self, ids: Sequence[str], mode: str) -> ComposedPrompt:
        if isinstance(ids, str) or not ids:
            raise PromptError(
                f"chunks are a list of one or more ids, and not {ids!r}; give those of register"
            )
        chosen, session = parse_chunk_mode(mode), self._model.session_state.session()
        if chosen.isolated:
            _check_rope(session.model.config.rope_scaling, mode)
        return ComposedPrompt([self._registry.chunk(name) for name in ids], chosen)


def _check_rope(rule: RopeScaling | None, mode: str) -> None:
    """Raise UserError if the RoPE frequencies depend on the length of the text."""
    if rule and rule.positions is not None:
        raise UserError(
            f"mode {mode} sets a chunk's keys anywhere in a text, and RoPE's rule {rule.name} of this model "
            f"has other frequencies for longer texts; mode {PREFIX} works"
        )
