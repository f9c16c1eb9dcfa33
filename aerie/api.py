"""The Python API: a model, opened once, that answers prompts.

    from aerie import load

    with load("demo") as model:
        print(model.generate("What is the capital of France?"))

docs/how-to/python.md shows all of it.
"""

from __future__ import annotations

import reprlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from aerie.answer_options import GenerateOptions, parse_options
from aerie.answers import OnEvent, Result, SessionState, Stream, collect_results
from aerie.argument_types import ANSWER_ARGUMENTS, check_callable, check_types
from aerie.async_answers import AsyncStream
from aerie.batch_api import KV, Numbers, check_kvs, make_samplers, sample_tokens, split_tokens, token_logprobs
from aerie.common.errors import UserError
from aerie.engine.embeddings import EmbeddedToken, Token, embed, embedded_tokens
from aerie.engine.errors import PromptError
from aerie.engine.forward import all_logits, check_prompt, prefill
from aerie.engine.kpis import Kpis
from aerie.engine.numerics import BF16Array, F32Array
from aerie.engine.scheduler import Rows, Scheduler
from aerie.engine.session import Session
from aerie.engine.tokenizer import check_text, note_missing_template
from aerie.engine.tool_calls import Message, Tools, read_tools
from aerie.runtime import Profiler
from aerie.text_vectors import TextVectors

Prompt: TypeAlias = "str | Sequence[Message] | Sequence[int] | NDArray[Any]"
"""A user's message; a conversation, each message with "role" (system, user, assistant, tool) and "content";
token ids, which are taken as they are; or embeddings, (tokens, hidden_size) bfloat16 or float32."""

BatchItem: TypeAlias = "Mapping[str, Any]"
"""One of several prompts, `prompt`, with its own options."""
MAX_TOKENS = 128
"""Default limit of tokens of an answer."""


def _item(prompt: Prompt | BatchItem) -> Mapping[str, Any]:
    """The options of one request of a batch."""
    is_item = isinstance(prompt, Mapping) and "prompt" in prompt
    return cast(Mapping[str, Any], prompt) if is_item else {"prompt": prompt}


def _is_message(value: Mapping[Any, Any]) -> bool:
    return "role" in value and ("content" in value or "tool_calls" in value)


def _parts(prompt: Prompt) -> tuple[list[Message], list[int]]:
    """The messages or the token ids of a prompt; the other list is empty. Raises PromptError if it is
    neither."""
    parts: list[object] = list(prompt) if isinstance(prompt, Iterable) else [None]
    ids = [int(part) for part in parts if isinstance(part, Integral)]
    messages = [part for part in parts if isinstance(part, Mapping) and _is_message(part)]
    if len(parts) not in (len(ids), len(messages)):
        raise PromptError(
            "a prompt is a text, a list of messages, each a dict with role and content, a list of token ids, "
            f"or an array of embeddings, and not {reprlib.repr(prompt)}"
        )
    return messages, ids


class Model(TextVectors):
    """An opened model; `load` makes one. Close it, or use it in a `with` block.

    Answers are independent: a conversation is the messages that you pass. Several answers may run at once,
    also from several threads: they take turns, a token or a step of a prompt each.
    """

    def __init__(self, session: Session, name: str = "") -> None:
        """name: what the caller opened, for `repr`."""
        self._session: Session | None = session
        self._name = name
        self._lock = threading.Lock()
        self.kpis = Kpis()
        """Figures of all finished answers."""
        self.session_state = SessionState(self._open, self._lock, self.kpis)
        """The session for streams and aerie.ChunkedLLM."""

    def stream(
        self,
        prompt: Prompt,
        max_tokens: int = MAX_TOKENS,
        *,
        on_event: OnEvent | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Stream:
        """The answer to a prompt, piece by piece.

        options: those of a Sampler, such as `temperature` and `seed`. `stop`: texts and token ids that
        end the answer, together with the model's own; they are not part of its text. `raw`: continue `prompt`
        unchanged, without the chat template. `json_schema`: a schema that the answer must match. `tools`,
        `tool_choice`, `parallel_tool_calls`: functions that may be called, and whether, as in OpenAI's API.
        `chat_template_kwargs`: more variables of the chat template, such as {"enable_thinking": False}.
        `thinking_budget`: the tokens of thinking after which the answer begins. The thinking is in `thinking`
        of the stream and of the result, not in `text`; a schema is for the text. `num_beams`: only 1.
        `use_block_cache`: only False. on_event: called with each event; it stops the answer by returning
        False.

        Raises PromptError if the prompt cannot be run, UserError if a value is out of range, before
        anything is computed; pulling pieces raises RunError where a device fails.
        """
        session = self._open()
        check_types(ANSWER_ARGUMENTS, {"max_tokens": max_tokens, **options})
        check_callable("on_event", on_event)
        parsed = parse_options(options, session)
        tokens = self._tokens(prompt, parsed.raw, parsed.tools, parsed.template_arguments)
        start = parsed.thinking_start(session, tokens)
        sampler = parsed.thinking_sampler(session, start)
        with self._lock:
            request = session.generate(tokens, max_tokens, sampler, decode_config=parsed.decode_config)
        return Stream(self.session_state, request, parsed.stops, on_event, parsed.tool_calls, start)

    def generate(
        self,
        prompt: Prompt,
        max_tokens: int = MAX_TOKENS,
        *,
        on_event: OnEvent | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Result:
        """Generate the whole answer; see stream."""
        return self.stream(prompt, max_tokens, on_event=on_event, **options).result()

    def astream(
        self,
        prompt: Prompt,
        max_tokens: int = MAX_TOKENS,
        *,
        on_event: OnEvent | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncStream:
        """The answer to a prompt, piece by piece, for `async for`; see stream. It is made in a worker thread,
        where on_event is called too. What stream raises comes with the first piece."""
        return AsyncStream(lambda: self.stream(prompt, max_tokens, on_event=on_event, **options))

    async def agenerate(
        self,
        prompt: Prompt,
        max_tokens: int = MAX_TOKENS,
        *,
        on_event: OnEvent | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Result:
        """Generate the whole answer in a worker thread; see astream."""
        return await self.astream(prompt, max_tokens, on_event=on_event, **options).result()

    def continue_answer(self, max_tokens: int = MAX_TOKENS, *, on_event: OnEvent | None = None) -> Stream:
        """Continue the last answer, or the one that `restore` loaded, with its own sampling settings.

        The tokens are those that the answer would have had without its end. `prompt_token_ids` of the result
        are the prompt and the tokens before. If the thinking was cut, the rest of it is text. An answer that
        the model ended stays ended. Raises UserError if there is no answer, or if its KV cache is gone, as
        after another prompt.
        """
        session = self._open()
        with self._lock:
            generation = session.continue_answer(max_tokens)
        return Stream(self.session_state, generation, (), on_event)

    def generate_batch(
        self,
        prompts: Iterable[Prompt | BatchItem],
        max_tokens: int = MAX_TOKENS,
        **options: Unpack[GenerateOptions],
    ) -> list[Result]:
        """Answer several prompts together, and return the results in their order.

        Each prompt is a prompt, or a dict with `prompt` and its own `max_tokens`, options and `priority` (a
        higher one runs first). Batches use the decode path "rows" if the model has variants; each answer has
        the bits that it has alone in that path. With seq_len it has the bits that it has alone. An error in
        one of them is in its `error`, and changes no other.
        """
        scheduler = self._open().scheduler
        options_of_all: dict[str, Any] = {"max_tokens": max_tokens, **options}
        with self._lock:
            streams = [self._submit(scheduler, {**options_of_all, **_item(prompt)}) for prompt in prompts]
        return collect_results(streams)

    def _submit(self, scheduler: Scheduler, item: dict[str, Any]) -> Stream | UserError:
        """The stream of a request, or its error."""
        try:
            prompt, max_tokens, priority = item.pop("prompt"), item.pop("max_tokens"), item.pop("priority", 0)
            check_types(ANSWER_ARGUMENTS, {"max_tokens": max_tokens, "priority": priority, **item})
            parsed = parse_options(item, self._open())
            tokens = self._tokens(prompt, parsed.raw, parsed.tools, parsed.template_arguments)
            start = parsed.thinking_start(self._open(), tokens)
            sampler = parsed.thinking_sampler(self._open(), start)
            maker = parsed.decode_config.strategy_factory(scheduler.model.config, sampler)
            request = scheduler.add_request(tokens, max_tokens, sampler, priority, maker)
            return Stream(self.session_state, request, parsed.stops, calls=parsed.tool_calls, thinking=start)
        except TypeError as error:
            return UserError(
                f"a request has a setting that cannot be taken ({error}); see Model.generate_batch"
            )
        except UserError as error:
            return error

    def new_kv(self, seed: int | None = None) -> KV:
        """An empty KV for infer_batch and forward_batch. The caller closes it.

        seed: of the sampling in infer_batch. Raises as generate_batch.
        """
        scheduler = self._open().scheduler
        with self._lock:
            return KV(scheduler.new_sequence(), self._lock, seed)

    def infer_batch(
        self,
        tokens: Numbers,
        lengths: Numbers,
        positions: Numbers,
        kvs: Sequence[KV],
        temperature: float | Sequence[float] = 0.0,
        top_k: int | Sequence[int] = 0,
        top_p: float | Sequence[float] = 1.0,
    ) -> list[int]:
        """The next token of each request, computed in shared forward passes with the bits that it has alone.

        tokens: those of all requests, one after the other. lengths: number of tokens of each request.
        positions: where each request begins; positions of its KV from there on are dropped. kvs: one for each
        request. Afterwards it holds the request's tokens, without the one that is returned. temperature,
        top_k, top_p: one for all requests, or one for each.

        Raises UserError for arguments that do not fit together or are out of range and PromptError for a
        request that cannot be run, before anything changes; PoolFullError if pages run out. After that, and
        after any other error, the KVs hold what is before their requests.
        """
        self._open().check_autoregressive("the next token of each request was asked for")
        settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        prompts = split_tokens(tokens, lengths)
        chosen = make_samplers(len(prompts), settings)
        with self._lock:
            return sample_tokens(kvs, positions, chosen, self._forward(prompts, positions, kvs))

    def forward_batch(
        self,
        tokens: Numbers,
        lengths: Numbers,
        positions: Numbers | None = None,
        kvs: Sequence[KV] | None = None,
        every: bool = False,
    ) -> list[F32Array]:
        """The logits after the last token of each request, (1, vocab_size) float32 each; with `every`, after
        each of its tokens, (tokens, vocab_size).

        Takes and raises what infer_batch does, and samples nothing. Without `kvs`, every request begins at
        position 0, and no keys and values are kept.
        """
        prompts = split_tokens(tokens, lengths)
        with self._lock:
            logits = self._forward(prompts, positions, kvs, every)
        return [np.array([np.asarray(row, np.float32) for row in rows]) for rows in logits]

    def _forward(
        self,
        prompts: Sequence[Sequence[int]],
        positions: Numbers | None,
        kvs: Sequence[KV] | None,
        every: bool = False,
    ) -> list[Rows]:
        """Logits from shared forward passes. The KVs then hold the prompts."""
        scheduler, logits_counts = self._open().scheduler, [len(prompt) if every else 1 for prompt in prompts]
        if kvs is None and positions is None:
            return scheduler.forward(prompts, logits_counts)
        given_kvs, firsts = kvs or (), [0] * len(prompts) if positions is None else positions
        check_kvs(given_kvs, firsts, len(prompts), scheduler.pool)
        sequences = [(kv.sequence, int(first)) for kv, first in zip(given_kvs, firsts, strict=True)]
        return scheduler.forward(prompts, logits_counts, sequences)

    def log_likelihoods(self, prompts: Iterable[Prompt], raw: bool = True) -> list[F32Array]:
        """The logprob of each token of a prompt but the first, given those before it, (tokens - 1,) float32,
        from shared forward passes. Raises as generate_batch, and PromptError."""
        self._open().check_autoregressive("likelihoods of one token after the other were asked for")
        texts = [self._tokens(prompt, raw) for prompt in prompts]
        if any(isinstance(token, EmbeddedToken) for text in texts for token in text):
            raise PromptError("embeddings have no likelihood, as they are no tokens; give text or token ids")
        with self._lock:
            logits = self._open().scheduler.forward(texts, [len(text) for text in texts])
        return [token_logprobs(rows[:-1], text[1:]) for rows, text in zip(logits, texts, strict=True)]

    def logits(self, prompt: Prompt, raw: bool = False) -> F32Array:
        """The logits after each token of a prompt, (tokens, vocab_size) float32. A model of block diffusion
        whose logits are not shifted gives those of the tokens themselves.

        Nothing is sampled. Raises as stream.
        """
        session, tokens = self._open(), self._tokens(prompt, raw)
        with self._lock:
            session.model.config.roles.check_answers()
            session.ensure_programs(tokens)
            model = session.model
            if model.config.diffusion:
                (rows,) = session.scheduler.forward([tokens], [len(tokens)])
                return np.array([np.asarray(row, np.float32) for row in rows])
            return all_logits(model, prefill(model, tokens, model.new_cache(len(tokens))))

    def embed_tokens(self, prompt: Prompt, raw: bool = False) -> BF16Array:
        """The embeddings of a prompt's tokens, (tokens, hidden_size) bfloat16, which are a prompt too. Raises
        as stream."""
        model, tokens = self._open().model, self._tokens(prompt, raw)
        check_prompt(tokens, model.config)
        return embed(model.embed_table, tokens)

    def _tokens(
        self,
        prompt: Prompt,
        raw: bool,
        tools: Tools | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Sequence[Token]:
        if isinstance(prompt, np.ndarray) and prompt.ndim != 1:
            return embedded_tokens(prompt, self._open().model.config.hidden_size)
        return self._encoded(prompt, raw, tools, arguments)

    def encode(
        self,
        prompt: Prompt,
        raw: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The token ids of a prompt, in the chat template unless `raw` or there is none. tools: those that
        the template describes. chat_template_kwargs: further values for the template.

        Control tokens that a text spells out are text. Raises PromptError for what is no prompt.
        """
        return self._encoded(prompt, raw, read_tools(tools), chat_template_kwargs)

    def _encoded(
        self, prompt: Prompt, raw: bool, tools: Tools | None, arguments: Mapping[str, Any] | None
    ) -> list[int]:
        session = self._open()
        if isinstance(prompt, str):
            check_text(prompt, "the prompt")
            if raw:
                return session.tokenizer.encode(prompt)
            prompt = [{"role": "user", "content": prompt}]
        messages, ids = _parts(prompt)
        if not messages:
            return ids
        note_missing_template(session.tokenizer, session.note)
        return session.tokenizer.encode_chat(messages, tools, arguments)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special tokens left out."""
        return self._open().tokenizer.decode(token_ids)

    def save(self, path: str | Path) -> None:
        """Write what the model keeps of the last answer and its prompt to a file: tokens, keys and values.

        After `restore`, in any process, a prompt that begins so goes on from there, with the same bits.
        Raises UserError where there is nothing to save, or the file cannot be written.
        """
        with self._lock:
            self._open().save(Path(path))

    def restore(self, path: str | Path) -> int:
        """Load what `save` wrote. Returns the number of tokens. Raises UserError for a damaged file, for one
        that Aerie did not write, and for one of other weights, programs, numerics or another decode path.
        The last answer stays then."""
        with self._lock:
            return self._open().restore(Path(path))

    def save_pages(self, prompt: Prompt, path: str | Path, raw: bool = False) -> int:
        """Write the pages that the pool of generate_batch has of a prompt's first tokens to a file. Returns
        the number of tokens, a multiple of 64. Pages that others needed are missing.

        After `restore_pages`, in any process, or in a server's slot (docs/how-to/serve.md), prompts with the
        same first tokens find them, with the same bits. Raises UserError if there is none, or the file cannot
        be written.
        """
        tokens = self._tokens(prompt, raw)
        with self._lock:
            return self._open().save_pages(tokens, Path(path))

    def restore_pages(self, path: str | Path) -> int:
        """Load what `save_pages` wrote, or `save` of a model with decode="rows", into the pool of
        generate_batch. Returns the number of tokens. Raises as restore, and PoolFullError."""
        with self._lock:
            return self._open().restore_pages(Path(path))

    @property
    def backend(self) -> str:
        """Where programs run: "virtual" or "npu"; "npu, then virtual" after a fallback."""
        return self._open().backend

    @property
    def profiler(self) -> Profiler:
        """Times since the model was loaded, or since `reset()` of the profiler."""
        return self._open().cache.profiler

    def close(self) -> None:
        """Free the device, the buffers and the weights."""
        if self._session:
            self._session.close()
        self._session = None

    def __repr__(self) -> str:
        """The model, its family, the variants and the backend."""
        if self._session is None:
            return f"<aerie.Model {self._name!r}, closed>"
        config, variants = self._session.model.config, self._session.model.variant_set
        programs = ", ".join(map(str, variants.variants)) or f"seq_len {variants.seq_len}"
        return (
            f"<aerie.Model {self._name!r}, family {config.family.model_type}, {programs}, decode "
            f"{variants.decode_path}, backend {self._session.backend}>"
        )

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> Session:
        if self._session is None:
            raise UserError("this model is closed; load it again")
        return self._session
