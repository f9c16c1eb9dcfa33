"""The two sides of the comparison, each in a process of its own: ours, and transformers in bf16."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.compiling import RuntimeOptions, compile_programs
from aerie.engine.config import load_config
from aerie.engine.forward import decode_step, next_token_row, prefill
from aerie.engine.kv import KVCache
from aerie.engine.native import native_attention
from aerie.engine.progress import Reporter
from aerie.engine.sampler import Sampler
from aerie.engine.session import Session, prepare_runtime
from aerie.kernel_builder.kernels import eltwise_add
from aerie.multi_launch_builder import Program
from aerie.runtime import Backend, KernelCache, select_backend
from aerie.runtime.calls import BETWEEN
from aerie.virtual_npu import Library, cpu, knobs
from aerie.virtual_npu.pyxrt.batch import Batch
from benchmarks.machine import peak_bytes
from benchmarks.peaks import measure_peaks

ELEMENTS = 128
CALLS_BEFORE, CALLS = 20, 200
"""Of `load_and_run`: before the clock counts, and those that it counts."""


def overhead_of_load_and_run(cache_dir: Path, backend: Backend) -> float:
    """Seconds, the median of many calls, without the time in the program's own code."""
    module = eltwise_add.build(None, ELEMENTS)
    program = Program.from_module(module.module, module.arguments, module.name)
    arrays = [np.zeros(argument.shape, argument.dtype.numpy) for argument in program.arguments]
    with KernelCache(cache_dir, backend) as cache:
        cache.compile_and_cache(program)

        def call() -> float:
            started, in_code = time.perf_counter(), Library.seconds
            cache.load_and_run(program.name, *arrays)
            return time.perf_counter() - started - (Library.seconds - in_code)

        spent = [call() for _ in range(CALLS_BEFORE + CALLS)]
    return median(spent[CALLS_BEFORE:])


WARM_UP = 2
"""Tokens decoded before the clock runs."""

Answer = dict[str, Any]


def prompt(length: int, vocab_size: int) -> list[int]:
    """Token ids that look like no text in particular; the same for both sides."""
    return [int(token) for token in np.random.default_rng(0).integers(0, vocab_size, length)]


def in_code() -> float:
    """Seconds spent so far in compiled code of ours: programs, decode attention and writing the KV cache."""
    attention = native_attention()
    return Library.seconds + Batch.host_seconds + (attention.seconds if attention else 0.0)


class Ours:
    """Aerie on the virtual NPU. Programs are compiled for prompts of `seq_len` tokens, in `cache_dir`."""

    def __init__(self, folder: str, seq_len: int, cache_dir: str) -> None:
        self._folder = Path(folder)
        self._options = RuntimeOptions(seq_len, select_backend("virtual"), Path(cache_dir))
        self._session: Session | None = None
        self._cache: KVCache | None = None

    @property
    def session(self) -> Session:
        assert self._session is not None, "load comes first"
        return self._session

    def compile(self) -> Answer:
        """Compile the six programs."""
        started = time.perf_counter()
        compile_programs(load_config(self._folder), self._options, Reporter())
        return {"seconds": time.perf_counter() - started}

    def load(self) -> Answer:
        """Everything up to the first prompt, with compiled programs."""
        started = time.perf_counter()
        self._session = prepare_runtime(open_checkpoint(self._folder), self._options, Reporter())
        return {"seconds": time.perf_counter() - started}

    def prefill(self, length: int, room: int) -> Answer:
        """A prompt of `length` tokens up to the choice of the next; `room` more will be decoded."""
        model = self.session.model
        ids = prompt(length, model.config.vocab_size)
        started = time.perf_counter()
        self._cache = model.new_cache(length + room)
        token = Sampler()(next_token_row(model, prefill(model, ids, self._cache)[-1]))
        return {"seconds": time.perf_counter() - started, "token": token}

    def decode(self, context: int, tokens: int) -> Answer:
        """`tokens` tokens after the first `context` of the last prompt: medians over them.

        attention_seconds: of decode attention and of writing the KV cache.
        """
        model, cache, sampler = self.session.model, self._cache, Sampler()
        assert cache is not None, "prefill comes first"
        cache.length = context

        def step() -> tuple[float, ...]:
            calls = self._in_calls()
            started, in_code_before, in_programs = time.perf_counter(), in_code(), Library.seconds
            sampler(next_token_row(model, decode_step(model, 1, cache)))
            spent = time.perf_counter() - started
            called = self._in_calls()
            programs, code = Library.seconds - in_programs, in_code() - in_code_before
            overhead = (called[1] - calls[1]) - programs
            return spent, spent - code, overhead / (called[0] - calls[0]), code - programs

        measured = _repeat(step, tokens)
        names = ("seconds", "python_seconds", "call_overhead_seconds", "attention_seconds")
        return {name: median(times) for name, times in zip(names, zip(*measured, strict=True), strict=True)}

    def programs(self) -> dict[str, Answer]:
        """For each program: calls so far, seconds of one, and the work of one in operations and bytes."""
        return {
            name: {
                "calls": times.calls,
                "seconds": times.run / times.calls,
                "flops": times.flops,
                "nbytes": times.nbytes,
            }
            for name, times in self.session.cache.profiler.programs.items()
        }

    def reset(self) -> None:
        """Forget what `programs` counts."""
        self.session.cache.profiler.reset()

    def memory(self) -> Answer:
        return {"peak_bytes": peak_bytes()}

    def load_and_run(self) -> Answer:
        """What it takes by itself."""
        folder, backend = self._options.cache_dir, self._options.backend
        return {"seconds": overhead_of_load_and_run(folder, backend)}

    def _in_calls(self) -> tuple[int, float]:
        """Calls of programs so far, and the seconds in them and between those that are replayed."""
        profiler = self.session.cache.profiler
        programs, between = profiler.programs.values(), profiler.spans.get(BETWEEN)
        seconds = sum(times.total for times in programs) + (between.total if between else 0.0)
        return sum(times.calls for times in programs), seconds


class Theirs:
    """transformers in bf16 on the CPU, with its default attention."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._model: Any = None
        self._cache: Any = None

    def load(self) -> Answer:
        """Everything up to the first prompt."""
        started = time.perf_counter()
        from aerie.verify.reference import Reference, import_torch

        self._torch = import_torch()
        self._torch.set_num_threads(knobs.threads())
        self._model = Reference.open(self._folder).model
        return {"seconds": time.perf_counter() - started}

    def instructions(self) -> Answer:
        """Which instructions it takes: what torch says, oneDNN's own line, and what that multiplied with.

        These two are empty where torch does not ask oneDNN for products of bf16.
        """
        from aerie.verify.reference import import_torch

        torch = import_torch()
        mkldnn = torch.backends.mkldnn

        def multiply() -> None:
            ones = torch.ones(PROBE, PROBE, dtype=torch.bfloat16)
            with mkldnn.verbose(mkldnn.VERBOSE_ON), torch.inference_mode():
                torch.nn.functional.linear(ones, ones)

        said = printed(multiply)
        isa = re.search(r"cpu,isa:(.*)", said)
        product = re.search(r"exec,cpu,(?:matmul|inner_product),([^,]*)", said)
        return {
            "torch": torch.backends.cpu.get_cpu_capability(),
            "onednn": isa[1] if isa else "",
            "product": product[1] if product else "",
        }

    def prefill(self, length: int, room: int) -> Answer:  # noqa: ARG002 (their cache grows)
        """As Ours.prefill."""
        ids = prompt(length, self._model.config.vocab_size)
        started = time.perf_counter()
        token, self._cache = self._forward(ids, None)
        return {"seconds": time.perf_counter() - started, "token": token}

    def decode(self, context: int, tokens: int) -> Answer:
        """As Ours.decode."""
        if surplus := self._cache.get_seq_length() - context:
            self._cache.crop(-surplus)

        def step() -> tuple[float]:
            started = time.perf_counter()
            self._forward([1], self._cache)
            return (time.perf_counter() - started,)

        return {"seconds": median(seconds for (seconds,) in _repeat(step, tokens))}

    def memory(self) -> Answer:
        return {"peak_bytes": peak_bytes()}

    def _forward(self, ids: Sequence[int], cache: Any) -> tuple[int, Any]:
        with self._torch.inference_mode():
            out = self._model(
                self._torch.tensor([list(ids)]), past_key_values=cache, use_cache=True, logits_to_keep=1
            )
            return int(out.logits[0, -1].argmax()), out.past_key_values


def _repeat(step: Callable[[], tuple[float, ...]], times: int) -> list[tuple[float, ...]]:
    """`step` so many times, after a warm-up."""
    for _ in range(WARM_UP):
        step()
    return [step() for _ in range(times)]


PROBE = 256
"""Rows and columns of a product that is large enough for oneDNN."""


def printed(call: Callable[[], object]) -> str:
    """What C and C++ print on standard output during a call."""
    with tempfile.TemporaryFile() as file:
        kept = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            call()
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        file.seek(0)
        return file.read().decode(errors="replace")


class Machine:
    """The machine, limited as a side is."""

    def peaks(self) -> Mapping[str, list[float]]:
        """What it can do at most."""
        return measure_peaks()

    def features(self) -> list[str]:
        """Those that programs are built for."""
        return cpu.identity().split()[1:]


SIDES: dict[str, type[Ours] | type[Theirs] | type[Machine]] = {
    "ours": Ours,
    "theirs": Theirs,
    "machine": Machine,
}
