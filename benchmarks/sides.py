"""The two sides of the comparison, each in its own process: Aerie, and transformers in bf16."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from aerie import Model
from aerie.common import cpu, knobs
from aerie.common.errors import UserError
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.config import load_config
from aerie.engine.forward import decode_step, next_logits_row, prefill
from aerie.engine.model import LoadedModel, with_decode_path
from aerie.engine.native import native_attention
from aerie.engine.numerics import rms_norm
from aerie.engine.open_session import prepare_runtime
from aerie.engine.page_pool import KVCache, pages_for
from aerie.engine.program_library import RuntimeOptions, compile_programs
from aerie.engine.programs import buffer_set
from aerie.engine.reporter import Reporter
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler
from aerie.engine.scheduler import MAX_RUNNING_REQUESTS, Scheduler
from aerie.engine.session import Session
from aerie.engine.variant_set import GUIDE, ROWS
from aerie.multi_launch_builder import Variant
from aerie.multi_launch_builder.variants import program_name
from aerie.runtime import select_backend
from aerie.runtime.calls import BETWEEN_PROGRAMS
from aerie.runtime.memory import available_bytes
from aerie.virtual_npu import Library
from aerie.virtual_npu.pyxrt.batch import RunBatch
from benchmarks.client import Client
from benchmarks.drafts import measure, texts
from benchmarks.figures import BATCH_SIZES, COMPARED_BATCH, FEW_ROWS
from benchmarks.machine import peak_bytes
from benchmarks.peaks import measure_peaks
from benchmarks.program_times import overhead_of_load_and_run, program_work, time_flash_attention

WARM_UP = 2
"""Tokens decoded before the clock runs."""

Answer = dict[str, Any]


def prompt(length: int, vocab_size: int) -> list[int]:
    """Random token ids, the same for both sides."""
    return [int(token) for token in np.random.default_rng(0).integers(0, vocab_size, length)]


def native_seconds() -> float:
    """Seconds so far in compiled code of Aerie: programs, decode attention, writes of the KV cache."""
    attention = native_attention()
    return Library.seconds + RunBatch.host_seconds + (attention.seconds if attention else 0.0)


class AerieSide:
    """Aerie on the virtual NPU as `make run` runs it: the model's default variants, compiled into
    `cache_dir`. The decode path is `guide` unless another is named. weights: as in open_checkpoint."""

    def __init__(self, folder: str, cache_dir: str, weights: str = "auto") -> None:
        self._folder, self._weights = Path(folder), weights
        self._options = RuntimeOptions(None, select_backend("virtual"), Path(cache_dir))
        self._session: Session | None = None
        self._rows_models: dict[int, LoadedModel] = {}
        self._cache: KVCache | None = None
        self._changes = 0

    @property
    def session(self) -> Session:
        assert self._session is not None, "load comes first"
        return self._session

    def compile(self) -> Answer:
        """Compile every program of the default set, as `make compile` does."""
        started = time.perf_counter()
        compile_programs(load_config(self._folder), self._options, Reporter(), all_variants=True)
        return {"seconds": time.perf_counter() - started}

    def load(self) -> Answer:
        """Load everything up to the first prompt, with compiled programs."""
        started = time.perf_counter()
        self._session = prepare_runtime(
            open_checkpoint(self._folder, self._weights), self._options, Reporter()
        )
        return {"seconds": time.perf_counter() - started}

    def first_token(self, length: int, shared: int = 0) -> Answer:
        """Run a prompt of `length` tokens and sample the next token.

        shared: how many of the tokens the conversation before has, which was such a prompt; 0 means no
        conversation. `computed` in the answer: tokens not taken from it.
        """
        session, vocab_size = self.session, self.session.model.config.vocab_size
        ids = prompt(length, vocab_size)
        if shared:
            self._changes += 1
            ids[shared:] = [(token + self._changes) % vocab_size for token in ids[shared:]]
        else:
            session.requests.clear_prefix_cache()
        started = time.perf_counter()
        generation = session.generate(ids, 1, Sampler())
        (token,) = generation
        spent = time.perf_counter() - started
        return {"seconds": spent, "token": token, "computed": length - generation.cached_tokens}

    def decode(self, context: int, tokens: int, family: str = GUIDE) -> Answer:
        """Decode `tokens` tokens after the last prompt, the last one attending to `context` positions.
        Returns medians.

        programs_seconds: in programs. attention_seconds: decode attention and writes of the KV cache. In
        `rows`, `seconds` alone.
        """
        model, cache, sampler = self._model(family), self._read(context - tokens - WARM_UP), Sampler()

        def step() -> tuple[float, ...]:
            calls = self._call_totals()
            started, in_code_before, in_programs = time.perf_counter(), native_seconds(), Library.seconds
            sampler(next_logits_row(model, decode_step(model, 1, cache)))
            spent = time.perf_counter() - started
            called = self._call_totals()
            programs, code = Library.seconds - in_programs, native_seconds() - in_code_before
            overhead = (called[1] - calls[1]) - programs
            return spent, spent - code, overhead / (called[0] - calls[0]), programs, code - programs

        parts = ("python", "call_overhead", "programs", "attention")
        names = ("seconds", *(f"{part}_seconds" for part in parts))
        by_name = dict(zip(names, _medians(step, tokens), strict=True))
        return by_name if family == GUIDE else {"seconds": by_name["seconds"]}

    def time_few_rows(self, context: int, times: int) -> Answer:
        """Median seconds of a pass of 1, 8 and 16 rows with logits of each, by the number of rows as text.

        `times` passes of each, in turn; the last row attends to `context` positions. One row is a decoded
        token in `guide`.
        """
        ids, cache = prompt(context, self.session.model.config.vocab_size), self._read(context)

        def timed(rows: int) -> float:
            cache.length = context - rows
            started = time.perf_counter()
            self._pass(ids[-rows:], cache)
            return time.perf_counter() - started

        numbers = (1, *FEW_ROWS)
        medians = _medians(lambda: tuple(timed(rows) for rows in numbers), times)
        return dict(zip(map(str, numbers), medians, strict=True))

    def _read(self, length: int) -> KVCache:
        """A KV cache with the first `length` tokens of a prompt; the same cache each time."""
        if self._cache is None:
            self._cache = self.session.model.new_cache(length)
        cache, ids = self._cache, prompt(length, self.session.model.config.vocab_size)
        cache.length = cache.common_prefix([*ids, 0])
        if cache.length < length:
            prefill(self.session.model, ids[cache.length :], cache, last_only=True)
        return cache

    def _pass(self, ids: Sequence[int], cache: KVCache) -> None:
        """Run tokens through all layers and the LM head, in one pass."""
        if len(ids) == 1:
            model = self.session.model
            next_logits_row(model, decode_step(model, ids[0], cache))
            return
        model = self._model(ROWS, len(ids))
        head = model.program(program_name("lm_head", len(ids)))
        x = rms_norm(prefill(model, ids, cache), model.final_norm, model.config.rms_norm_eps)
        model.runner.run(head, bo_key=buffer_set(head, 0), on_device=(), copy=False, x=x)

    def _model(self, family: str, rows: int = 0) -> LoadedModel:
        """The model in this decode path; with variants of `rows` rows only, unless 0."""
        model = self.session.model
        if family == GUIDE:
            return model
        if rows not in self._rows_models:
            variants = tuple(Variant(rows, context) for context in model.variant_set.contexts if rows)
            blocks = replace(
                model.variant_set, decode_path=family, variants=variants or model.variant_set.variants
            )
            model.ensure_programs([blocks.lm_head(rows or 1)])
            self._rows_models[rows] = replace(model, variant_set=blocks)
        return self._rows_models[rows]

    @cached_property
    def _scheduler(self) -> Scheduler:
        """A scheduler whose requests have no EOS, so that all generate the requested number of tokens."""
        model = with_decode_path(self.session.model, ROWS)
        model = replace(model, config=replace(model.config, eos_token_ids=()))
        pages = pages_for(model.kv_config, None, MAX_RUNNING_REQUESTS, available_bytes())
        return Scheduler(model, model.new_pool(pages))

    def time_batch(self, context: int, tokens: int) -> dict[str, float]:
        """Median seconds of an engine step of 1, 8 and 16 requests in `rows`, by their number as text. The
        last token attends to `context` positions."""
        scheduler, seconds = self._scheduler, dict[str, float]()
        for number in BATCH_SIZES:
            length = context - 2 * tokens - WARM_UP  # the first to have read its prompt goes on meanwhile
            requests = [self._submit(self._new_prompt(length), 2 * tokens + WARM_UP) for _ in range(number)]
            while not all(request.token_ids for request in requests):
                scheduler.step()
            seconds[str(number)] = _medians(lambda: (_timed(scheduler.step),), tokens)[0]
            for request in requests:
                request.stop()
        return seconds

    def first_token_of_pool(self, length: int, shared: int) -> Answer:
        """Seconds to the first token of a prompt of `length` tokens that the pool lacks, and then of one that
        shares its first `shared` tokens."""
        ids, vocab_size = self._new_prompt(length), self.session.model.config.vocab_size
        other = ids[:shared] + [(token + 1) % vocab_size for token in ids[shared:]]
        seconds, cached = [], []
        for prompt_ids in (ids, other):
            request = self._submit(prompt_ids, 1)
            seconds.append(_timed(partial(list, request.steps())))
            cached.append(request.cached_tokens)
        return {"new": seconds[0], "shared": seconds[1], "cached": cached}

    def time_pages(self, context: int, tokens: int) -> dict[str, float]:
        """Median seconds per token in `rows`, from pages by the scheduler and from a separate KV cache, in
        turn. The last token attends to `context` positions."""
        scheduler, length = self._scheduler, context - tokens - WARM_UP - 1
        model, cache, sampler = self._model(ROWS), self._read(length), Sampler()
        request = self._submit(prompt(length, model.config.vocab_size), tokens + WARM_UP + 2)
        while not request.token_ids:
            scheduler.step()

        def both() -> tuple[float, ...]:
            return (
                _timed(scheduler.step),
                _timed(lambda: sampler(next_logits_row(model, decode_step(model, 1, cache)))),
            )

        medians = _medians(both, tokens)
        request.stop()
        return dict(zip(("pages", "own"), medians, strict=True))

    def time_drafts(self, text: str, tokens: int) -> dict[str, float]:
        """Measure the first `tokens` tokens of a text; see drafts.DraftFigures."""
        by_name = {each.name: each for each in texts()}
        return measure(self.session, by_name[text], tokens)._asdict()

    @cached_property
    def _model_of_api(self) -> Model:
        return Model(self.session)

    def time_answers(self, prompts: Sequence[str], tokens: int) -> Answer:
        """Answer several prompts at once by the Python API. Returns total seconds and texts. Raises UserError
        if an output has another length."""
        started = time.perf_counter()
        results = self._model_of_api.generate_batch(prompts, tokens)
        spent = time.perf_counter() - started
        if wrong := [result for result in results if result.error or len(result.token_ids) != tokens]:
            raise UserError(
                f"an answer of the engine has {len(wrong[0].token_ids)} tokens, and {tokens} were asked for; "
                + (wrong[0].error or wrong[0].finish_reason.value)
            )
        return {"seconds": spent, "texts": [result.text for result in results]}

    def _new_prompt(self, length: int) -> list[int]:
        """A prompt that differs from all before."""
        self._changes += 1
        vocab_size = self.session.model.config.vocab_size
        return [(token + self._changes) % vocab_size for token in prompt(length, vocab_size)]

    def _submit(self, ids: Sequence[int], tokens: int) -> Request:
        return self._scheduler.add_request(ids, tokens, Sampler())

    def programs(self) -> dict[str, Answer]:
        """For each program: calls so far, seconds of one, and the work of one in operations and bytes."""
        return program_work(self.session.cache.profiler)

    def reset(self) -> None:
        """Reset what `programs` counts."""
        self.session.cache.profiler.reset()

    def memory(self) -> Answer:
        return {"peak_bytes": peak_bytes()}

    def load_and_run(self) -> Answer:
        """Overhead of load_and_run alone."""
        folder, backend = self._options.cache_dir, self._options.backend
        return {"seconds": overhead_of_load_and_run(folder, backend)}

    def flash_attention(self, length: int) -> dict[str, Answer]:
        """As `programs`, of flash_attn alone, for a prompt of `length` tokens."""
        folder, backend = self._options.cache_dir, self._options.backend
        return program_work(time_flash_attention(folder, backend, self.session.model.config.shape, length))

    def _call_totals(self) -> tuple[int, float]:
        """Calls of programs so far, and the seconds in them and between replayed ones."""
        profiler = self.session.cache.profiler
        programs, between = profiler.programs.values(), profiler.spans.get(BETWEEN_PROGRAMS)
        seconds = sum(times.total for times in programs) + (between.total if between else 0.0)
        return sum(times.calls for times in programs), seconds


class TransformersSide:
    """transformers in bf16 on the CPU, with its default attention."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._model: Any = None
        self._cache: Any = None

    def load(self) -> Answer:
        """Load everything up to the first prompt."""
        started = time.perf_counter()
        from aerie.verify.reference import Reference, import_torch

        self._torch = import_torch()
        self._torch.set_num_threads(knobs.thread_count())
        self._model = Reference.open(self._folder).model
        return {"seconds": time.perf_counter() - started}

    def instructions(self) -> Answer:
        """Which instructions it uses: torch's report, oneDNN's line, and the kernel of its products.

        The latter two are empty if torch does not use oneDNN for bf16 products.
        """
        from aerie.verify.reference import import_torch

        torch = import_torch()
        mkldnn = torch.backends.mkldnn

        def multiply() -> None:
            ones = torch.ones(PROBE, PROBE, dtype=torch.bfloat16)
            with mkldnn.verbose(mkldnn.VERBOSE_ON), torch.inference_mode():
                torch.nn.functional.linear(ones, ones)

        output = captured_stdout(multiply)
        isa = re.search(r"cpu,isa:(.*)", output)
        product = re.search(r"exec,cpu,(?:matmul|inner_product),([^,]*)", output)
        return {
            "torch": torch.backends.cpu.get_cpu_capability(),
            "onednn": isa[1] if isa else "",
            "product": product[1] if product else "",
        }

    def first_token(self, length: int) -> Answer:
        """As AerieSide.first_token, without a conversation before."""
        ids = prompt(length, self._model.config.vocab_size)
        started = time.perf_counter()
        token, self._cache = self._forward(ids, None)
        return {"seconds": time.perf_counter() - started, "token": token}

    def decode(self, context: int, tokens: int) -> Answer:
        """As AerieSide.decode."""
        if surplus := self._cache.get_seq_length() - (context - tokens - WARM_UP):
            self._cache.crop(-surplus)

        def step() -> tuple[float]:
            started = time.perf_counter()
            self._forward([1], self._cache)
            return (time.perf_counter() - started,)

        return {"seconds": _medians(step, tokens)[0]}

    def time_batch(self, context: int, tokens: int) -> dict[str, float]:
        """As AerieSide.time_batch, for COMPARED_BATCH alone: a batch of prompts of one length."""
        length = context - tokens - WARM_UP
        ids = [prompt(length, self._model.config.vocab_size)] * COMPARED_BATCH
        with self._torch.inference_mode():
            cache = self._model(self._torch.tensor(ids), use_cache=True, logits_to_keep=1).past_key_values

            def step() -> None:
                out = self._model(
                    self._torch.tensor([[1]] * COMPARED_BATCH),
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                )
                out.logits[:, -1].argmax(-1)

            return {str(COMPARED_BATCH): _medians(lambda: (_timed(step),), tokens)[0]}

    def memory(self) -> Answer:
        return {"peak_bytes": peak_bytes()}

    def _forward(self, ids: Sequence[int], cache: Any) -> tuple[int, Any]:
        with self._torch.inference_mode():
            out = self._model(
                self._torch.tensor([list(ids)]), past_key_values=cache, use_cache=True, logits_to_keep=1
            )
            return int(out.logits[0, -1].argmax()), out.past_key_values


def _timed(call: Callable[[], object]) -> float:
    """Seconds of the call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _medians(step: Callable[[], tuple[float, ...]], times: int) -> list[float]:
    """Medians of each number that `step` returns, over `times` calls after a warm-up."""
    for _ in range(WARM_UP):
        step()
    return [median(each) for each in zip(*(step() for _ in range(times)), strict=True)]


PROBE = 256
"""Rows and columns of a product large enough for oneDNN."""


def captured_stdout(call: Callable[[], object]) -> str:
    """What C and C++ print on standard output during a call."""
    with tempfile.TemporaryFile() as file:
        saved = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            call()
        finally:
            os.dup2(saved, 1)
            os.close(saved)
        file.seek(0)
        return file.read().decode(errors="replace")


class Machine:
    """The machine, limited like a side."""

    def peaks(self) -> Mapping[str, list[float]]:
        """The peaks of the machine."""
        return measure_peaks()

    def features(self) -> list[str]:
        """CPU features that programs are compiled for."""
        return cpu.cpu_identity().split()[1:]


SIDES: dict[str, type[AerieSide] | type[TransformersSide] | type[Machine] | type[Client]] = {
    "ours": AerieSide,
    "theirs": TransformersSide,
    "machine": Machine,
    "client": Client,
}
