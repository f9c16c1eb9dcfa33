"""A session: programs compiled, weights resident, ready to answer, and what goes on when a device fails.

The unit that is run again after a failure is a step: a part of a prompt, or a token with its logits. Each
reads tokens and the counted positions of the pool's pages and nothing else, so what a failed one left behind
is overwritten, and no token is lost or made twice. What the first device computed stays in the pages.

Programs are compiled when a prompt first needs them. Padding and cutting are exact, so an answer does not
depend on which were there.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

from aerie.common.errors import UserError
from aerie.engine.admission import LastSequence
from aerie.engine.blocks import ROWS
from aerie.engine.checkpoint import Checkpoint
from aerie.engine.chunk_files import ChunkFolder
from aerie.engine.chunks import ChunkRegistry
from aerie.engine.communication import in_process
from aerie.engine.compiling import (
    Programs,
    RuntimeOptions,
    compile_into,
    compile_programs,
    every_name,
    of_other_devices,
)
from aerie.engine.decoding import check
from aerie.engine.embeddings import Token
from aerie.engine.faults import of_one_answer
from aerie.engine.fingerprint import Fingerprint
from aerie.engine.footprint import check_memory, window_bytes
from aerie.engine.forward import check_prompt, prefill, prefill_steps
from aerie.engine.generate import FinishReason, never
from aerie.engine.grammar import Grammars
from aerie.engine.model import (
    LayerWeights,
    LoadedModel,
    assemble,
    decoding_in,
    preload,
    preload_steps,
    shared_out,
)
from aerie.engine.pages import PAGE, SPARE, KVCache, pages_for
from aerie.engine.progress import Bar, Reporter, no_bar
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler
from aerie.engine.saved import PagesFile, held, restore_sequence, save_sequence
from aerie.engine.scheduler import MAX_RUNNING_REQUESTS, Scheduler
from aerie.engine.sharding import WeightsOfRank
from aerie.engine.strategies.decode_config import PLAIN, DecodeConfig
from aerie.engine.tokenizer import Tokenizer
from aerie.runtime import Backend, KernelCache, RunError, RunStopped
from aerie.runtime.memory import available_bytes, format_bytes

Fallback = Callable[[], tuple[KernelCache, LoadedModel]]


@dataclass
class Session:
    """A model that is ready, with its tokenizer and the cache that runs its programs.

    `note` is told of a failure that was got over. `fallback` gives another cache and the model on it, every
    weight in place; it is called once, when the first cache has failed. `backend` names what has run the
    programs: virtual or npu; "npu, then virtual" where the one had to give way. `bar` moves while a prompt is
    read. `mark` gives a word for the weights. `kv_pool` is how many positions the pool of `requests` has,
    None for as many as memory suggests. `decode_config` is how answers are made where nobody says. `others`
    are the caches of further devices that share the model.
    """

    model: LoadedModel
    tokenizer: Tokenizer
    cache: KernelCache
    note: Callable[[str], None]
    fallback: Fallback | None = None
    backend: str = ""
    bar: Bar = no_bar
    mark: Callable[[], str] = str
    kv_pool: int | None = None
    decode_config: DecodeConfig = PLAIN
    others: Sequence[KernelCache] = ()
    _is_pool_noted: bool = field(default=False, init=False)

    @cached_property
    def grammars(self) -> Grammars:
        """The forms that answers can be asked for."""
        return Grammars(self.tokenizer, self.model.config)

    def __post_init__(self) -> None:
        self.backend = self.backend or self.cache.backend.name

    def make_room(self, prompt_ids: Sequence[Token]) -> None:
        """Have the programs that this prompt needs: where some are missing, they are compiled, with progress
        told.

        Raises PromptError, and what prepare_runtime raises.
        """
        model = self.model
        check_prompt(prompt_ids, model.config, model.seq_len, endless=model.end.drops)
        if model.config.diffusion is None:
            model.supply(model.blocks.needed(model.plan(len(prompt_ids), 0), last_only=True))

    def warm(self) -> None:
        """Have all programs that anything will be computed by: of every variant, and, where tokens are
        decoded in rows, of every step of `scheduler`. Nothing is compiled after it. Raises what compiling
        raises."""
        blocks = self.model.blocks
        if blocks.variants:
            self.model.supply(every_name(self.model.config, blocks))
            self.model.supply(blocks.of_steps if blocks.decode == ROWS else ())

    def generate(
        self,
        prompt_ids: Sequence[Token],
        max_new_tokens: int,
        sampler: Sampler,
        interrupted: Callable[[], bool] = never,
        decode_config: DecodeConfig | None = None,
    ) -> Request:
        """Tokens that continue `prompt_ids`: a request, which rests while nobody asks for its next token; see
        make_room, and DecodeConfig.maker. Drafts are tried, and blocks filled in, in the family `rows`; else
        it is decoded in the model's."""
        decode_config, scheduler, model = decode_config or self.decode_config, self.requests, self.model
        maker = decode_config.maker(model.config, sampler)
        request = scheduler.submit(
            prompt_ids,
            max_new_tokens,
            sampler,
            strategy=maker,
            decode=ROWS if maker else model.blocks.decode,
            is_conversation=True,
        )
        request.interrupted, request.bar = interrupted, self.bar
        try:
            if maker:
                scheduler.make_room(len(prompt_ids), max_new_tokens)
                decode_config.make_room(len(prompt_ids), max_new_tokens)
            else:
                self.make_room(prompt_ids)
        except BaseException:
            request.stop()
            raise
        return request

    def go_on(self, max_new_tokens: int, interrupted: Callable[[], bool] = never) -> Request:
        """More tokens of the answer that is kept, drawn as they would have been at once. UserError where
        there is none."""
        self.check_says_tokens("an answer goes on after its last token")
        kept = self._last()
        if not kept or not kept.answer:
            raise UserError(
                "there is no answer to go on with: none was made yet, one is under way, or the programs are "
                "those of seq_len, which keep none; ask for one"
            )
        said = kept.answer
        request = self.requests.submit(
            (*said.prompt, *said.token_ids),
            max_new_tokens,
            said.sampler,
            decode=self.model.blocks.decode,
            is_conversation=True,
            resumes=said,
        )
        request.interrupted, request.bar = interrupted, self.bar
        return request

    @property
    def scheduler(self) -> Scheduler:
        """As `requests`, for many at once; what its pool takes is noted. A request that does not say in which
        family it is decoded is decoded in `rows`, where there are variants."""
        if note := self._pool_note():
            self.note(note)
        self._is_pool_noted = True
        return self.requests

    @cached_property
    def requests(self) -> Scheduler:
        """All requests to the model, in a pool of pages that is made when the first one comes."""
        model = self._for_requests()
        pages = pages_for(model.stored, self.kv_pool, MAX_RUNNING_REQUESTS, available_bytes())
        pool = model.new_pool(pages, self._first_key(), pages // SPARE)
        return Scheduler(model, pool, recover=self._recovered)

    def _last(self) -> LastSequence | None:
        """What is kept of the last answer, which may have been stopped just now."""
        self.requests.settle()
        return self.requests.kept

    def _pool_note(self) -> str:
        if self._is_pool_noted or not self.model.blocks.variants:
            return ""
        model, pool = self.requests.model, self.requests.pool
        return (
            f"KV pool: {pool.manager.pages} pages of {PAGE} positions and {pool.spare.pages} for what is put "
            f"aside, {format_bytes(pool.nbytes)}, and windows on them of up to "
            f"{format_bytes(window_bytes(model.stored, model.blocks.contexts))}"
        )

    def _for_requests(self) -> LoadedModel:
        blocks = self.model.blocks
        return replace(self.model, blocks=replace(blocks, decode=ROWS)) if blocks.variants else self.model

    def _recovered(self, error: RunError, where: str) -> LoadedModel:
        self.recover(error, where)
        return self._for_requests()

    def chunk_registry(self, folder: Path | None = None, decode: str = ROWS) -> ChunkRegistry:
        """Chunks on the scheduler's pool; kept in `folder` too, where one is given. UserError for a model of
        block diffusion, where the programs cannot serve it, and for a folder that cannot be used."""
        self.check_says_tokens("chunks are texts of which no token sees one after it")
        check("chunks", self.model.blocks, decode)
        if self.model.end.drops:
            raise UserError(
                f"chunks stand in sequences of which nothing is dropped, and this model was loaded with "
                f"context_end={self.model.end}; load it without that"
            )
        pool, made_by = self.scheduler.pool, self.made_by(decoding_in(self.model, decode))
        files = ChunkFolder(folder, made_by, self.note) if folder else None
        return ChunkRegistry(pool, self.model.rope, self.read_apart, files)

    def read_apart(self, token_ids: Sequence[int]) -> KVCache:
        """A cache of its own with these tokens, which see nothing before them, and their keys before RoPE.
        Raises as make_room, and RunError."""
        self.make_room(token_ids)
        read = partial(_read_apart, token_ids=token_ids, bar=self.bar)
        try:
            return read(self.model)
        except RunStopped:
            raise
        except RunError as error:
            return read(self.recover(error, "while a chunk was read"))

    def check_says_tokens(self, what: str) -> None:
        """UserError, which says `what` was asked for, where the model does not say one token after the
        other."""
        if blocks := self.model.config.diffusion:
            raise UserError(
                f"{what}, and this model fills in blocks of {blocks.block_size} tokens that see each other: "
                "ask for whole answers (generate, stream, generate_batch)"
            )

    def _first_key(self) -> bytes:
        """Of a pool's pages: what the bits of keys and values that blocks make depend on but the tokens, and
        the weights, which are the session's."""
        if not self.model.blocks.variants:
            return b""
        told = self.cache.backend.name, _shared_by(self.model), *sorted(self._of_all(self.model).items())
        return hashlib.sha256(repr(told).encode()).digest()

    def save(self, path: Path) -> None:
        """Write what is kept of the last answer and its prompt. UserError where that is nothing, and as
        save_sequence."""
        kept = self._last()
        if not kept:
            raise UserError(
                "there is no sequence to save: no answer was made yet, one is under way, or the programs are "
                "those of --seq-len (SEQ_LEN), which keep none"
            )
        save_sequence(kept.sequence, kept.answer, path, self.made_by(self.model))

    def restore(self, path: Path) -> int:
        """Keep what a file has, for a prompt that begins so; how many tokens. As restore_sequence."""
        pool = self.requests.pool
        sequence, said = restore_sequence(pool, path, self.made_by(self.model), self.grammars)
        self.requests.keep(sequence, said)
        return sequence.length

    def save_pages(self, prompt_ids: Sequence[Token], path: Path) -> int:
        """Write what the pool of `scheduler` has of a beginning; how many tokens. As held and
        save_sequence."""
        made_by = self.pages_made_by(self.scheduler)
        sequence = held(self.scheduler.pool, prompt_ids)
        try:
            save_sequence(sequence, None, path, made_by)
            return sequence.length
        finally:
            sequence.release()

    def restore_pages(self, path: Path) -> int:
        """Have the pool of `scheduler` hold what a file has; how many tokens. As PagesFile, and
        PoolFullError."""
        file = PagesFile(path, self.pages_made_by(self.scheduler))
        sequence = file.room(self.scheduler.pool)
        try:
            file.fill(sequence)
        except BaseException:
            sequence.release()
            raise
        file.publish(sequence)
        return len(file.token_ids)

    def pages_made_by(self, scheduler: Scheduler) -> dict[str, str]:
        """What the bits in a scheduler's pool depend on. UserError where that is not one thing."""
        if self._first_key() != scheduler.pool.first_key:
            raise UserError(
                "the KV pool has what two backends made, as one failed and another goes on; nothing of it is "
                "saved, and nothing restored: load the model again"
            )
        return self.made_by(decoding_in(scheduler.model, ROWS))

    def made_by(self, model: LoadedModel) -> dict[str, str]:
        """What the bits of keys and values depend on, the plainest first. UserError where the weights' files
        were changed since they were loaded."""
        return {"weights": self.mark(), **self._run_by(model)}

    def _run_by(self, model: LoadedModel) -> dict[str, str]:
        blocks, of_all = model.blocks, self._of_all(model)
        keys = (self.cache.artifact(name).key for name in blocks.of_a_token if name in model.programs)
        return {
            "model": of_all.pop("model"),
            "decode": f"{blocks.decode}{_shared_by(model)}",
            **of_all,
            "programs": " ".join(keys),
        }

    def _of_all(self, model: LoadedModel) -> dict[str, str]:
        """As made_by, whatever the family of decode."""
        return {
            "model": hashlib.sha256(repr(model.config).encode()).hexdigest()[:16],
            "context-end": str(model.end),
            "numerics": self.cache.backend.numerics,
        }

    def close(self) -> None:
        """Give up the devices, the buffers and the weights in them."""
        if self.model.devices:
            self.model.devices.close()
        for cache in (self.cache, *self.others):
            cache.close()

    def recover(self, error: RunError, where: str) -> LoadedModel:
        """The model on the fallback's cache, in place of the one that failed. Raises `error` without one.

        The failed cache is closed first: its device is free, and views on its buffers are dead.
        """
        if self.fallback is None:
            raise error
        fallback, self.fallback = self.fallback, None
        failed = self.cache.backend.name
        self.note(f"\n{error}\nbackend {failed} is given up {where}; preparing another for the rest")
        self.cache.close()
        self.cache, self.model = fallback()
        if "requests" in vars(self):
            self.requests.go_on_with(self._for_requests())
        self.backend = f"{failed}, then {self.cache.backend.name}"
        self.note(f"going on {where} on backend {self.cache.backend.name}")
        return self.model

    def text(self, answer: Request, tokens: Iterable[int | None] | None = None) -> Generator[str, None, None]:
        """The text of an answer as it is made, without the token that ends it. tokens: the answer's, where
        somebody else has them from it."""
        yield from filter(None, self._decoded(answer.prompt_ids, answer if tokens is None else tokens))

    def pieces(
        self, request: Request, stop: Collection[int] = (), shown: Collection[int] = ()
    ) -> Generator[str, None, None]:
        """The text of what has come of a request, which a token of `stop` ends too, without that: a piece for
        each token, "" where there is none yet. It takes no step. shown: special tokens that are told too."""
        yield from self._decoded(request.prompt_ids, _until(request, stop), shown)

    def _decoded(
        self, before: Sequence[int], tokens: Iterable[int | None], shown: Collection[int] = ()
    ) -> Iterator[str]:
        stream = self.tokenizer.stream(before, shown)
        for token in tokens:
            if token is None or token in self.model.config.eos_token_ids:
                yield ""
                continue
            with self.model.host_timer("detokenization"), of_one_answer():
                piece = stream.feed(token)
            yield piece
        with of_one_answer():
            rest = stream.flush()
        if rest:
            yield rest


def _shared_by(model: LoadedModel) -> str:
    """On how many devices, where these are several, and which of them have what is here."""
    if model.blocks.devices == 1:
        return ""
    here = f"rank {model.group.rank}" if model.group.ranks > 1 else "all"
    return f", {here} of {model.blocks.devices} devices"


def _read_apart(model: LoadedModel, token_ids: Sequence[int], bar: Bar) -> KVCache:
    cache = model.new_cache(len(token_ids), with_unturned=True)
    with bar(prefill_steps(model, len(token_ids))) as step:
        prefill(model, token_ids, cache, step, last_only=True)
    return cache


def _until(request: Request, stop: Collection[int]) -> Iterator[int | None]:
    while True:
        for token in request.new_tokens():
            if token in stop:
                request.finish_reason = FinishReason.STOP
                return
            yield token
        if request.is_over:
            return
        yield None


def prepare_runtime(checkpoint: Checkpoint, options: RuntimeOptions, report: Reporter) -> Session:
    """Compile what is needed and not yet compiled, then fill each layer's buffer objects with its weights.

    While programs are compiled, the weights' files come from the disk into the system's cache. After this, a
    call writes activations alone. With `options.fallback`, a device that fails, now or later, gives way to
    that backend, whose programs are compiled only then. Raises TooLittleMemoryError before anything else is
    done, what compile_programs raises, and RunError for a device that fails without one.
    """
    config = checkpoint.config
    options.end(config)  # which may refuse
    check_memory(config, options)
    with checkpoint.weights.reading_ahead():
        programs = compile_programs(config, options, report)
    devices = [programs, *of_other_devices(config, options, programs)]
    model, filled = _assemble(checkpoint, options, devices)

    def fall_back(to: Backend) -> tuple[KernelCache, LoadedModel]:
        programs.cache = programs.open_cache(to, programs.cache.profiler)
        compile_into(programs.cache, [*programs.by_name.values()], report)
        on_other, filled = _assemble(checkpoint, options, [programs])
        _preload(filled, checkpoint, report)
        return programs.cache, on_other

    fallback = partial(fall_back, options.fallback) if options.fallback else None
    bar = partial(report.bar, "reading the prompt")
    mark = Fingerprint(checkpoint.weights.files, options.cache_dir)
    note = report.note
    session = Session(
        model,
        checkpoint.tokenizer,
        programs.cache,
        note,
        fallback,
        bar=bar,
        mark=mark,
        kv_pool=options.kv_pool,
    )
    session.others = [each.cache for each in devices[1:]]
    try:
        _preload(filled, checkpoint, report)
    except RunError as error:
        session.recover(error, "while weights were loaded")
    session.cache.profiler.reset()
    return session


class Filled(NamedTuple):
    """A device's model, or its part of one, and the weights that its buffers are filled with."""

    model: LoadedModel
    weights: LayerWeights


def _assemble(
    checkpoint: Checkpoint, options: RuntimeOptions, devices: Sequence[Programs]
) -> tuple[LoadedModel, Sequence[Filled]]:
    """The model on the programs of these devices, and what each has of it; what it needs later is compiled
    then, and given its weights."""

    def supply(names: Iterable[str]) -> None:
        names = list(names)
        for programs, (model, weights) in zip(devices, filled, strict=True):
            if new := programs.have(names):
                for _ in preload(model, weights, new):
                    pass

    config, first = checkpoint.config, devices[0]
    whole = assemble(
        checkpoint,
        first.by_name,
        first.cache,
        options.blocks(config),
        first.cache.profiler.span,
        places=first.places,
        supply=supply,
        end=options.end(config),
    )
    if options.ranks == 1:
        filled = [Filled(whole, checkpoint.weights)]
        return whole, filled
    shared = _share_out(whole, options, devices)
    parts = shared.devices.parts if shared.devices else ()
    filled = [
        Filled(part, WeightsOfRank(checkpoint.weights, config, part.group.rank, options.ranks))
        for part in parts
    ]
    return shared, filled


def _share_out(whole: LoadedModel, options: RuntimeOptions, devices: Sequence[Programs]) -> LoadedModel:
    """The model on these devices of this process: all that share it, or one of several processes' devices."""
    part, group = options.part(whole.config), options.group
    if group.ranks > 1:
        return shared_out(whole, part, devices, [group], [f"rank {group.rank} of {group.ranks}"])
    names = [f"device {device}" for device in options.devices]
    meeting = in_process(names)
    groups = [meeting.member(rank) for rank in range(len(names))]
    return shared_out(whole, part, devices, groups, names, meeting.begin)


def _preload(filled: Sequence[Filled], checkpoint: Checkpoint, report: Reporter) -> None:
    for line in checkpoint.weights.notes:
        report.note(line)
    started, layers = time.perf_counter(), checkpoint.config.num_hidden_layers
    total = len(filled) * preload_steps(checkpoint.config)
    with report.bar("loading weights", total) as step:
        steps = (what for each in filled for what in preload(*each))
        for done, what in enumerate(steps, start=1):
            step(what, done)
    spent = time.perf_counter() - started
    shared = f" on {len(filled)} devices" if len(filled) > 1 else ""
    report.note(f"weights: {layers} layers loaded{shared}, {spent:.1f} s")
    if rounding := str(checkpoint.weights.rounding):
        report.note(rounding)
