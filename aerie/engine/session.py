"""A session: programs compiled, weights loaded, ready to answer; and what happens when a device fails.

After a failure one engine step is run again: a part of a prompt, or a token with its logits. A step reads
tokens and the counted positions of the pool's pages, and nothing else. So what a failed step wrote is
overwritten, and no token is lost or generated twice. What the first device computed stays in the pages.

Programs are compiled when a prompt first needs them. Padding and splitting are exact, so an answer does not
depend on which programs were compiled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from aerie.common.errors import UserError
from aerie.engine.admission import LastSequence
from aerie.engine.chunk_files import ChunkFolder
from aerie.engine.chunks import ChunkRegistry
from aerie.engine.compile_ahead import CompileAhead
from aerie.engine.decode_paths import check_feature
from aerie.engine.embeddings import Token
from aerie.engine.error_scope import isolate_request_errors
from aerie.engine.forward import check_prompt, prefill, prefill_call_count
from aerie.engine.generate import FinishReason, never_interrupted
from aerie.engine.grammar import GrammarCompiler
from aerie.engine.layer_states import check_no_states
from aerie.engine.memory_estimate import gathered_bytes
from aerie.engine.model import (
    LoadedModel,
    with_decode_path,
)
from aerie.engine.page_manager import PAGE_SIZE
from aerie.engine.page_pool import PAGES_PER_SWAP_PAGE, KVCache, pages_for
from aerie.engine.program_library import (
    all_program_names,
    names_with_kinds,
)
from aerie.engine.reporter import Bar, no_bar
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler
from aerie.engine.saved_sequence import PagesFile, cached_sequence, restore_sequence, save_sequence
from aerie.engine.scheduler import MAX_RUNNING_REQUESTS, Scheduler
from aerie.engine.strategies.decode_config import DEFAULT_DECODE_CONFIG, DecodeConfig
from aerie.engine.tokenizer import Tokenizer
from aerie.engine.variant_set import ROWS
from aerie.runtime import KernelCache, RunError, RunStopped
from aerie.runtime.memory import available_bytes, format_bytes

OpenFallback = Callable[[], tuple[KernelCache, LoadedModel]]


@dataclass
class Session:
    """A loaded model with its tokenizer and the cache that runs its programs.

    note: called with one line for the user, for example when a failed device is replaced. fallback: returns
    another cache and the model on it, with all weights loaded; called once, when the first cache has failed.
    backend: where programs ran: "virtual", "npu", or "npu, then virtual" after a fallback. bar: shows the
    progress of a prompt. fingerprint: returns a hash of the weights. kv_pool: positions of the page pool of
    `requests`; None means as many as memory suggests. decode_config: the default of `generate`. other_caches:
    the caches of further devices that share the model. compile_ahead: compiles programs in the background,
    if that is on.
    """

    model: LoadedModel
    tokenizer: Tokenizer
    cache: KernelCache
    note: Callable[[str], None]
    fallback: OpenFallback | None = None
    backend: str = ""
    bar: Bar = no_bar
    fingerprint: Callable[[], str] = str
    kv_pool: int | None = None
    decode_config: DecodeConfig = DEFAULT_DECODE_CONFIG
    other_caches: Sequence[KernelCache] = ()
    compile_ahead: CompileAhead | None = None
    _is_pool_noted: bool = field(default=False, init=False)

    @cached_property
    def grammar_compiler(self) -> GrammarCompiler:
        """Compiles grammars for structured output."""
        return GrammarCompiler(self.tokenizer, self.model.config)

    def __post_init__(self) -> None:
        self.backend = self.backend or self.cache.backend.name

    def ensure_programs(self, prompt_ids: Sequence[Token]) -> None:
        """Compile the programs that this prompt needs and that are missing, with a progress bar.

        Raises PromptError, and what prepare_runtime raises.
        """
        model = self.model
        check_prompt(prompt_ids, model.config, model.seq_len, past_context_allowed=model.context_end.drops)
        if model.config.diffusion is None:
            model.ensure_programs(
                model.variant_set.programs_for_calls(model.plan(len(prompt_ids), 0), last_only=True)
            )

    def load_all_programs(self) -> None:
        """Compile and load all programs of all variants and, with decode in rows, of every step of
        `scheduler`. Nothing is compiled afterwards. Raises what compiling raises."""
        blocks = self.model.variant_set
        if blocks.variants:
            self.model.ensure_programs(all_program_names(self.model.config, blocks))
            self.model.ensure_programs(blocks.batch_programs if blocks.decode_path == ROWS else ())

    def generate(
        self,
        prompt_ids: Sequence[Token],
        max_new_tokens: int,
        sampler: Sampler,
        interrupted: Callable[[], bool] = never_interrupted,
        decode_config: DecodeConfig | None = None,
    ) -> Request:
        """A request that continues `prompt_ids`. It is idle while no caller asks for its next token. Drafts
        and diffusion blocks use the decode path `rows`; else the model's is used. Raises as ensure_programs
        and DecodeConfig.strategy_factory."""
        decode_config, scheduler, model = decode_config or self.decode_config, self.requests, self.model
        factory = decode_config.strategy_factory(model.config, sampler)
        request = scheduler.add_request(
            prompt_ids,
            max_new_tokens,
            sampler,
            strategy=factory,
            decode_path=ROWS if factory else model.variant_set.decode_path,
            is_conversation=True,
        )
        request.interrupted, request.bar = interrupted, self.bar
        try:
            if factory:
                scheduler.ensure_programs(len(prompt_ids), max_new_tokens)
                decode_config.ensure_programs(len(prompt_ids), max_new_tokens)
            else:
                self.ensure_programs(prompt_ids)
        except BaseException:
            request.stop()
            raise
        return request

    def continue_answer(
        self, max_new_tokens: int, interrupted: Callable[[], bool] = never_interrupted
    ) -> Request:
        """A request for more tokens of the last answer, sampled as if they had been requested at first.
        Raises UserError if no answer is kept."""
        self.check_autoregressive("an answer goes on after its last token")
        last = self._last_sequence()
        if not last or not last.answer:
            raise UserError(
                "there is no answer to continue: none was generated yet, one is running, or the programs are "
                "those of seq_len, which keep none; ask for one"
            )
        answer = last.answer
        request = self.requests.add_request(
            (*answer.prompt, *answer.token_ids),
            max_new_tokens,
            answer.sampler,
            decode_path=self.model.variant_set.decode_path,
            is_conversation=True,
            resumes=answer,
        )
        request.interrupted, request.bar = interrupted, self.bar
        return request

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler `requests`, for many requests. Notes the size of its pool at the first use. A request
        without a decode path uses `rows`, if the model has variants."""
        if note := self._pool_note():
            self.note(note)
        self._is_pool_noted = True
        return self.requests

    @cached_property
    def requests(self) -> Scheduler:
        """The scheduler of all requests to the model. Its page pool is allocated at the first use."""
        model = self._for_requests()
        pages = pages_for(model.kv_config, self.kv_pool, MAX_RUNNING_REQUESTS, available_bytes())
        pool = model.new_pool(pages, self._first_key(), pages // PAGES_PER_SWAP_PAGE)
        return Scheduler(model, pool, recover=self._recovered)

    def _last_sequence(self) -> LastSequence | None:
        """The last conversation's sequence, after finished requests were removed."""
        self.requests.remove_finished()
        return self.requests.last_sequence

    def _pool_note(self) -> str:
        if self._is_pool_noted or not self.model.variant_set.variants:
            return ""
        model, pool = self.requests.model, self.requests.pool
        return (
            f"KV pool: {pool.manager.page_count} pages of {PAGE_SIZE} positions and {pool.swap.page_count} "
            f"for swap space, {format_bytes(pool.nbytes)}, and gathered caches of up to "
            f"{format_bytes(gathered_bytes(model.kv_config, model.variant_set.contexts))}"
        )

    def _for_requests(self) -> LoadedModel:
        blocks = self.model.variant_set
        return (
            replace(self.model, variant_set=replace(blocks, decode_path=ROWS))
            if blocks.variants
            else self.model
        )

    def _recovered(self, error: RunError, where: str) -> LoadedModel:
        self.recover(error, where)
        return self._for_requests()

    def chunk_registry(self, folder: Path | None = None, decode: str = ROWS) -> ChunkRegistry:
        """Chunks on the scheduler's pool; stored in `folder` too, if given. Raises UserError for a model of
        block diffusion, for programs or a context end policy that do not support chunks, and for a folder
        that cannot be used."""
        self.check_autoregressive("chunks are texts of which no token sees one after it")
        check_feature("chunks", self.model.variant_set, decode)
        check_no_states(self.model.config.states, "chunks", "chunks are computed each alone")
        if self.model.context_end.drops:
            raise UserError(
                f"chunks stand in sequences of which nothing is dropped, and this model was loaded with "
                f"context_end={self.model.context_end}; load it without that"
            )
        pool, provenance = self.scheduler.pool, self.provenance(with_decode_path(self.model, decode))
        files = ChunkFolder(folder, provenance, self.note) if folder else None
        return ChunkRegistry(pool, self.model.rope, self.prefill_alone, files)

    def prefill_alone(self, token_ids: Sequence[int]) -> KVCache:
        """A cache with these tokens only, and their keys before RoPE. Raises as ensure_programs, and
        RunError."""
        self.ensure_programs(token_ids)
        prefill_tokens = partial(_prefill_alone, token_ids=token_ids, bar=self.bar)
        try:
            return prefill_tokens(self.model)
        except RunStopped:
            raise
        except RunError as error:
            return prefill_tokens(self.recover(error, "while a chunk was read"))

    def check_autoregressive(self, what: str) -> None:
        """Raises UserError, which names `what`, if the model is one of block diffusion."""
        if blocks := self.model.config.diffusion:
            raise UserError(
                f"{what}, and this model fills in blocks of {blocks.block_size} tokens that see each other: "
                "ask for whole answers (generate, stream, generate_batch)"
            )

    def _first_key(self) -> bytes:
        """Hash of what the bits in the pool depend on beside the tokens and the weights, which are the
        session's."""
        if not self.model.variant_set.variants:
            return b""
        parts = (
            self.cache.backend.name,
            _shared_by(self.model),
            *sorted(self._common_provenance(self.model).items()),
        )
        return hashlib.sha256(repr(parts).encode()).digest()

    def save(self, path: Path) -> None:
        """Write the last sequence, with its answer, to a file. Raises UserError if there is none, and as
        save_sequence."""
        last = self._last_sequence()
        if not last:
            raise UserError(
                "there is no sequence to save: no answer was generated yet, one is running, or the "
                "programs are those of --seq-len (SEQ_LEN), which keep none"
            )
        save_sequence(last.sequence, last.answer, path, self.provenance(self.model))

    def restore(self, path: Path) -> int:
        """Load a sequence from a file, for a prompt that starts with its tokens. Returns its length. Raises
        as restore_sequence."""
        pool = self.requests.pool
        sequence, answer = restore_sequence(pool, path, self.provenance(self.model), self.grammar_compiler)
        self.requests.set_last_sequence(sequence, answer)
        return sequence.length

    def save_pages(self, prompt_ids: Sequence[Token], path: Path) -> int:
        """Write the cached pages of a prompt to a file. Returns the number of tokens. Raises as
        cached_sequence and save_sequence."""
        provenance = self.pages_provenance(self.scheduler)
        sequence = cached_sequence(self.scheduler.pool, prompt_ids)
        try:
            save_sequence(sequence, None, path, provenance)
            return sequence.length
        finally:
            sequence.release()

    def restore_pages(self, path: Path) -> int:
        """Load pages from a file into the pool of `scheduler`. Returns the number of tokens. Raises as
        PagesFile, and PoolFullError."""
        file = PagesFile(path, self.pages_provenance(self.scheduler))
        sequence = file.allocate(self.scheduler.pool)
        try:
            file.fill(sequence)
        except BaseException:
            sequence.release()
            raise
        file.publish(sequence)
        return len(file.token_ids)

    def pages_provenance(self, scheduler: Scheduler) -> dict[str, str]:
        """What the bits in a scheduler's pool depend on. Raises UserError if two backends computed them."""
        if self._first_key() != scheduler.pool.first_key:
            raise UserError(
                "the KV pool has what two backends made, as one failed and another goes on; nothing of it is "
                "saved, and nothing restored: load the model again"
            )
        return self.provenance(with_decode_path(scheduler.model, ROWS))

    def provenance(self, model: LoadedModel) -> dict[str, str]:
        """What the bits of keys and values depend on, most readable first. Raises UserError if the weight
        files were changed since they were loaded."""
        return {"weights": self.fingerprint(), **self._run_provenance(model)}

    def _run_provenance(self, model: LoadedModel) -> dict[str, str]:
        blocks, common = model.variant_set, self._common_provenance(model)
        names = names_with_kinds(model.config, blocks.decode_programs)
        keys = (self.cache.artifact(name).key for name in names if name in model.programs)
        return {
            "model": common.pop("model"),
            "decode": f"{blocks.decode_path}{_shared_by(model)}",
            **common,
            "programs": " ".join(keys),
        }

    def _common_provenance(self, model: LoadedModel) -> dict[str, str]:
        """The part of `provenance` that does not depend on the decode path."""
        return {
            "model": hashlib.sha256(repr(model.config).encode()).hexdigest()[:16],
            "context-end": str(model.context_end),
            "numerics": self.cache.backend.numerics,
        }

    def close(self) -> None:
        """Release devices and buffers."""
        if self.compile_ahead:
            self.compile_ahead.stop()
        if self.model.devices:
            self.model.devices.close()
        for cache in (self.cache, *self.other_caches):
            cache.close()

    def recover(self, error: RunError, where: str) -> LoadedModel:
        """Replace the model by the one on the fallback's cache, and return it. Raises `error` without a
        fallback.

        The failed cache is closed first: its device is then free, and views of its buffers are invalid.
        """
        if self.fallback is None:
            raise error
        fallback, self.fallback = self.fallback, None
        failed = self.cache.backend.name
        self.note(f"\n{error}\nbackend {failed} is given up {where}; preparing another for the rest")
        self.cache.close()
        self.cache, self.model = fallback()
        if "requests" in vars(self):
            self.requests.switch_model(self._for_requests())
        self.backend = f"{failed}, then {self.cache.backend.name}"
        self.note(f"going on {where} on backend {self.cache.backend.name}")
        return self.model

    def text(self, answer: Request, tokens: Iterable[int | None] | None = None) -> Generator[str, None, None]:
        """The text of an answer as it is generated, without the end token, with the tags of its thinking.
        tokens: the answer's, if the caller iterates them elsewhere."""
        tokens = answer if tokens is None else tokens
        yield from filter(None, self._detokenize(answer.prompt_ids, tokens, self.tokenizer.thinking_shown))

    def pieces(
        self, request: Request, stop: Collection[int] = (), shown: Collection[int] = ()
    ) -> Generator[str, None, None]:
        """The text of tokens that a request has so far, one piece per token, "" if a token completes no text.
        A token of `stop` ends it too, and is not part of it. Runs no step. shown: special tokens that are
        shown as text."""
        yield from self._detokenize(request.prompt_ids, _until(request, stop), shown)

    def _detokenize(
        self, before: Sequence[int], tokens: Iterable[int | None], shown: Collection[int] = ()
    ) -> Iterator[str]:
        stream = self.tokenizer.incremental_detokenizer(before, shown)
        for token in tokens:
            if token is None or token in self.model.config.eos_token_ids:
                yield ""
                continue
            with self.model.host_timer("detokenization"), isolate_request_errors():
                piece = stream.feed(token)
            yield piece
        with isolate_request_errors():
            rest = stream.flush()
        if rest:
            yield rest


def _shared_by(model: LoadedModel) -> str:
    """A text that says how many devices share the model, and which of them are here; "" for one device."""
    if model.variant_set.devices == 1:
        return ""
    here = f"rank {model.group.rank}" if model.group.world_size > 1 else "all"
    return f", {here} of {model.variant_set.devices} devices"


def _prefill_alone(model: LoadedModel, token_ids: Sequence[int], bar: Bar) -> KVCache:
    cache = model.new_cache(len(token_ids), with_keys_before_rope=True)
    with bar(prefill_call_count(model, len(token_ids))) as step:
        prefill(model, token_ids, cache, step, last_only=True)
    return cache


def _until(request: Request, stop: Collection[int]) -> Iterator[int | None]:
    while True:
        for token in request.new_tokens():
            if token in stop:
                request.finish_reason = FinishReason.STOP
                return
            yield token
        if request.is_finished:
            return
        yield None
