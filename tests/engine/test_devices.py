"""A model that several devices share, against the same on one device: the same numbers but for the order of
sums, the same bits each time, and what comes of a device that fails. All on virtual NPUs."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.common.errors import UserError
from aerie.engine import forward_passes, tensor_parallel
from aerie.engine.checkpoint import Checkpoint, open_checkpoint
from aerie.engine.communication import (
    PeerError,
    SingleRank,
    all_gather_columns,
    all_reduce_sum,
    thread_group,
)
from aerie.engine.config import ModelConfig
from aerie.engine.devices import Devices
from aerie.engine.families import FAMILIES
from aerie.engine.forward import all_logits, decode_step, next_token_logits, prefill
from aerie.engine.generate import FinishReason
from aerie.engine.layer_states import DeltaHeads
from aerie.engine.memory_estimate import _footprint, footprint, session_needs
from aerie.engine.model import LoadedModel
from aerie.engine.model_family import Multipliers
from aerie.engine.numerics import F32Array
from aerie.engine.open_session import prepare_runtime
from aerie.engine.page_pool import PagePool
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.sampler import Sampler
from aerie.engine.session import Session
from aerie.engine.tensor_parallel import RankWeights, part_config
from aerie.engine.weights import Weights
from aerie.llama32_1b.synthetic.shape import in_family
from aerie.runtime import RunError, select_backend
from aerie.verify.bounds import EXACT, LogitsDistance, compare, judge
from aerie.verify.random_model import (
    random_checkpoint,
    random_model_config,
    with_longer_context,
)
from aerie.verify.reference import Reference
from aerie.virtual_npu import pyxrt

MOST = 4
PROMPT = [int(token) for token in np.random.default_rng(5).integers(3, 1400, 21)]
CONFIG = open_checkpoint(DEMO_FOLDER).config
LINEAR = replace(
    in_family(CONFIG, FAMILIES["qwen3_5_text"]),
    num_attention_heads=12,
    num_key_value_heads=12,
    delta=DeltaHeads(3, 6, 128, 128),
)
"""Linear attention with six heads."""
SHARED = ["demo", "qwen3", "granite", "gemma3_text", "olmo2", "lfm2", "qwen3_5_text"]
FED = 3
"""Tokens after the prompt that are decoded one by one."""


@pytest.fixture(scope="module", autouse=True)
def there_are_four() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VNPU_DEVICES", str(MOST))
        yield


def options(count: int, **other: Any) -> RuntimeOptions:
    given = {"variants": "8x512", "decode": "rows", "devices": tuple(range(count)), **other}
    return RuntimeOptions(None, given.pop("backend", select_backend("virtual")), default_cache_dir(), **given)


def opened(checkpoint: Checkpoint, count: int, **other: Any) -> Session:
    return prepare_runtime(checkpoint, options(count, **other), Reporter(quiet=True))


class Family:
    """A checkpoint, sessions of it by how many devices share it, and what transformers says of the prompt."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint, self._sessions = checkpoint, dict[int, Session]()
        theirs = Reference.open(checkpoint.folder)
        self.exact = theirs.exact.logits(PROMPT)
        self.rounding: LogitsDistance = compare(self.exact, theirs.logits(PROMPT))

    def on(self, count: int) -> Session:
        if count not in self._sessions:
            self._sessions[count] = opened(self.checkpoint, count)
        return self._sessions[count]

    def failures(self, ours: F32Array) -> list[str]:
        """What of our logits is further from exact ones than the gate allows."""
        distance = compare(self.exact, ours)
        return [*map(str, judge("shared", "prompt", distance, self.rounding, EXACT))]

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()


@pytest.fixture(scope="module")
def demo() -> Iterator[Family]:
    family = Family(open_checkpoint(DEMO_FOLDER))
    yield family
    family.close()


@pytest.fixture(scope="module", params=SHARED)
def family(request: pytest.FixtureRequest) -> Iterator[Family]:
    if request.param == "demo":
        yield request.getfixturevalue("demo")
        return
    config = in_family(with_longer_context(random_model_config(CONFIG)), FAMILIES[request.param])
    if request.param == "granite":
        config = replace(config, multipliers=Multipliers(12.0, 0.09, 0.22, 1.7))
    with random_checkpoint(config, Reporter(quiet=True)) as checkpoint:
        family = Family(checkpoint)
        yield family
        family.close()


def logits(model: LoadedModel) -> F32Array:
    """After every token of PROMPT, the last ones decoded by themselves."""
    cache = model.new_cache(len(PROMPT))
    rows = [all_logits(model, prefill(model, PROMPT[:-FED], cache))]
    rows += [next_token_logits(model, decode_step(model, token, cache))[None] for token in PROMPT[-FED:]]
    return np.concatenate(rows)


@pytest.mark.parametrize("count", [2, 4])
def test_a_shared_model_is_held_to_the_bounds_of_one_device(family: Family, count: int) -> None:
    """With four devices both models have fewer key/value heads than devices. Against one device it is as far
    as bf16 is from exact, at most: its sums run in another order."""
    alone, ours = logits(family.on(1).model), logits(family.on(count).model)
    assert family.failures(alone) == []
    assert family.failures(ours) == []
    assert 0 < compare(alone, ours).total_rms < 2 * family.rounding.total_rms


@pytest.mark.parametrize("count", [2, 4])
def test_a_shared_model_gives_the_same_bits_each_time_and_in_company(
    family: Family, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = family.on(count)
    bits = logits(session.model).tobytes()
    real = Devices.run_on_all

    def late(part: LoadedModel, work: Any) -> Any:
        time.sleep(0.002 * ((part.local_rank * 3 + 1) % count))
        return work(part)

    with monkeypatch.context() as patch:
        patch.setenv("VNPU_THREADS", "1")
        patch.setattr(Devices, "run_on_all", lambda self, work: real(self, lambda part: late(part, work)))
        assert logits(session.model).tobytes() == bits
    session.kv_pool = 512
    other = PROMPT[4:9]
    ours, _ = session.scheduler.forward([PROMPT, other], [len(PROMPT), 1])
    assert np.array(ours, np.float32).tobytes() == bits


@pytest.mark.parametrize("apart", [{"VNPU_STRICT": "1"}, {"AERIE_PLAIN": "calls,buffers,host_code"}])
def test_memories_and_buffers_apart_change_no_bit(
    demo: Family, apart: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a device has its own memory: what the host adds up comes from it and goes there."""
    wanted = logits(demo.on(2).model).tobytes()
    for name, value in apart.items():
        monkeypatch.setenv(name, value)
    session = opened(demo.checkpoint, 2)
    assert logits(session.model).tobytes() == wanted
    session.close()


def each_counts_the_residual(patch: pytest.MonkeyPatch) -> None:
    """As many times as there are ranks."""
    real = all_reduce_sum
    counted = lambda group, x, made, *rest: real(group, x, made + x, *rest)  # noqa: E731
    patch.setattr(forward_passes, "all_reduce_sum", counted)


def one_part_is_missing(patch: pytest.MonkeyPatch) -> None:
    real = all_reduce_sum
    patch.setattr(
        forward_passes,
        "all_reduce_sum",
        lambda group, x, made, *rest: real(group, x, made if group.rank else 0 * made, *rest),
    )


def all_have_the_first_heads_keys(patch: pytest.MonkeyPatch) -> None:
    cut, size = tensor_parallel.CUT["wk"]
    patch.setitem(tensor_parallel.CUT, "wk", (cut, lambda weights: (0, size(weights)[1])))


def another_part_of_the_ffn_goes_down(patch: pytest.MonkeyPatch) -> None:
    cut, size = tensor_parallel.CUT["w_down"]
    other = lambda weights: size(replace(weights, rank=1 - weights.rank))  # noqa: E731
    patch.setitem(tensor_parallel.CUT, "w_down", (cut, other))


@pytest.mark.parametrize(
    "fault",
    [
        each_counts_the_residual,
        one_part_is_missing,
        all_have_the_first_heads_keys,
        another_part_of_the_ffn_goes_down,
    ],
)
def test_a_fault_in_sharing_is_found(demo: Family, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    session = opened(demo.checkpoint, 2)
    assert demo.failures(logits(session.model))
    session.close()


def each_norms_its_part(patch: pytest.MonkeyPatch) -> None:
    """In place of the sum of all."""
    real = all_reduce_sum
    of_part = lambda group, x, made, *rest: real(SingleRank() if x is None else group, x, made, *rest)  # noqa: E731
    patch.setattr(forward_passes, "all_reduce_sum", of_part)


def columns_are_gathered_in_the_other_order(patch: pytest.MonkeyPatch) -> None:
    real = all_gather_columns
    other = lambda group, part, firsts, out: real(group, part, firsts[::-1], out)  # noqa: E731
    patch.setattr(forward_passes, "all_gather_columns", other)


def another_part_is_convolved(patch: pytest.MonkeyPatch) -> None:
    cut, size = tensor_parallel.CUT["w_conv"]
    other = lambda weights: size(replace(weights, rank=1 - weights.rank))  # noqa: E731
    patch.setitem(tensor_parallel.CUT, "w_conv", (cut, other))


def another_part_has_the_gate(patch: pytest.MonkeyPatch) -> None:
    """Of linear attention."""
    cut = tensor_parallel.DELTA_CUT["w_z"]
    other = lambda weights, *rest: cut(replace(weights, rank=1 - weights.rank), *rest)  # noqa: E731
    patch.setitem(tensor_parallel.DELTA_CUT, "w_z", other)


FAULTS_OF = {
    "gemma3_text": each_norms_its_part,
    "olmo2": columns_are_gathered_in_the_other_order,
    "lfm2": another_part_is_convolved,
    "qwen3_5_text": another_part_has_the_gate,
}


def test_a_fault_of_a_familys_own_sharing_is_found(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS_OF.get(family.checkpoint.config.family.model_type, one_part_is_missing)
    fault(monkeypatch)
    session = opened(family.checkpoint, 2)
    assert family.failures(logits(session.model))
    session.close()


# what each has


@pytest.mark.parametrize("changes", [{}, {"family": FAMILIES["qwen2"]}])
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_parts_of_all_ranks_are_the_whole(ranks: int, changes: dict[str, Any]) -> None:
    config = replace(random_model_config(CONFIG), **changes)
    with random_checkpoint(config, Reporter(quiet=True)) as checkpoint:
        whole = Weights(checkpoint.folder, config)
        parts = [RankWeights(whole, config, rank, ranks).layer(1) for rank in range(ranks)]
        for name, tensor in whole.layer(1).items():
            held = [part[name].read() for part in parts]
            axis = 1 if name in ("wo", "w_down") else 0
            if name not in tensor_parallel.CUT:
                joined = held[0]
            elif ranks > config.num_key_value_heads and name in ("wk", "bk", "wv", "bv"):
                assert held[0].tobytes() == held[1].tobytes()  # two devices with one head
                joined = np.concatenate(held[:: ranks // config.num_key_value_heads])
            else:
                joined = np.concatenate(held, axis=axis)
            assert joined.tobytes() == tensor.read().tobytes(), name


def test_a_transposed_matrix_is_cut_as_another(demo: Family) -> None:
    tensor = demo.checkpoint.weights.layer(0)["wo"]
    turned = tensor.transposed()
    assert turned.columns(64, 96).read().tobytes() == tensor.part(64, 96).read().T.tobytes()
    assert turned.part(64, 96).read().tobytes() == tensor.columns(64, 96).read().T.tobytes()


@pytest.mark.parametrize(
    ("config", "ranks", "message"),
    [
        (CONFIG, 3, "FFN width 768): 4 query heads do not divide by 3; what works: 1, 2, 4"),
        (
            replace(CONFIG, num_attention_heads=12, num_key_value_heads=3, head_dim=64),
            2,
            "3 key/value heads do not divide by 2, nor 2 by them; what works: 1, 3, 6, 12",
        ),
        (
            replace(CONFIG, intermediate_size=192),
            2,
            "of a part, hidden_dim=96 is not a positive multiple of 64",
        ),
        (
            LINEAR,
            4,
            "6 value heads of linear attention do not divide by 4; what works: 1, 3, 6",
        ),
        (
            LINEAR,
            2,
            "3 key heads of linear attention do not divide by 2, nor 2 by them; what works: 1, 3, 6",
        ),
        (replace(CONFIG, intermediate_size=449), 2, "an FFN width of 449 does not divide by 2"),
    ],
)
def test_counts_that_do_not_fit_are_refused_with_those_that_do(
    config: ModelConfig, ranks: int, message: str
) -> None:
    with pytest.raises(UserError) as raised:
        part_config(config, ranks)
    assert message in str(raised.value)
    assert f"{ranks} devices cannot share this model (" in str(raised.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"decode": "guide"},
            r"several devices that share a model cannot be used with decode='guide' \(DECODE\): its "
            r"attention "
            "is the host's, a token at a time; load the model without that, or with decode='rows'",
        ),
        (
            {"fallback": select_backend("virtual")},
            r"2 devices share a model without a fallback \(FALLBACK\), as what one has of it is of no use "
            "without the others; leave it out, or load the model on one device",
        ),
    ],
)
def test_what_devices_cannot_share_is_refused(demo: Family, given: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        opened(demo.checkpoint, 2, **given)
    with pytest.raises(UserError, match=r"several devices .* with seq_len=128 \(SEQ_LEN\): its"):
        replace(options(2), seq_len=128).variant_set(CONFIG)


def test_devices_take_the_memory_of_one_but_for_what_all_have(demo: Family) -> None:
    """Norms and activations, and, of key/value heads that several have, the cache."""
    needs = session_needs(CONFIG, options(1))
    one = footprint(CONFIG, needs)
    two, four = (footprint(part_config(CONFIG, n), session_needs(CONFIG, options(n)), 1, n) for n in (2, 4))
    assert one.weights < two.weights < 1.01 * one.weights
    assert (two.kv_cache, four.kv_cache) == (one.kv_cache, 2 * one.kv_cache)
    asked = [_footprint(CONFIG, options(n, kv_pool=256), needs, 1).kv_pool for n in (1, 2, 4)]
    assert asked == [asked[0], asked[0], 2 * asked[0]]
    pools = [PagePool(demo.on(n).model.kv_config, 2, b"").nbytes for n in (1, 2, 4)]
    assert pools == [pools[0], pools[0], 2 * pools[0]]


# what goes wrong


class Failing(ModuleType):
    """virtual_npu.pyxrt, where the runs of a program on one device fail, from the given one on, while
    `fails`. A stand-in: it says nothing of an NPU."""

    def __init__(self, device: int, program: str, after: int) -> None:
        super().__init__("failing_pyxrt")
        self.__dict__.update({name: getattr(pyxrt, name) for name in pyxrt.__all__})
        self.fails, self.runs, self.hangs = True, 0, threading.Event()
        self.hangs.set()
        outer = self

        class Numbered(pyxrt.device):
            def __init__(self, index: int = 0) -> None:
                super().__init__(index)
                self.index = index

        class Run(pyxrt.run):
            def __init__(self, kernel: Any) -> None:
                super().__init__(kernel)
                of = kernel.get_context().get_device()
                self.counts = of.index == device and kernel.name.startswith(f"main:{program}")

            def wait2(self) -> None:
                outer.runs += self.counts
                if self.counts and outer.runs > after and outer.fails:
                    outer.hangs.wait(300)
                    raise pyxrt.XrtError("the device has fallen asleep")
                super().wait2()

        self.device, self.run = Numbered, Run


def test_a_device_that_fails_in_the_middle_ends_what_it_does_and_no_more(demo: Family) -> None:
    stand_in = Failing(1, "ffn", after=15)
    backend = replace(select_backend("virtual"), pyxrt=stand_in)
    session, wanted = opened(demo.checkpoint, 2, backend=backend), demo.on(2)
    session.kv_pool = 512
    started = time.perf_counter()
    with pytest.raises(
        RunError, match=r"^device 1 failed: program 'ffn_ar8' on buffers .* has fallen asleep"
    ):
        list(session.generate(PROMPT, 4, Sampler()))
    with pytest.raises(RunError, match=r"^device 1 failed: program 'ffn_ar32' on"):
        session.scheduler.forward([PROMPT])
    assert time.perf_counter() - started < 120
    stand_in.fails = False
    expected = list(wanted.generate(PROMPT, 4, Sampler()))
    assert list(session.generate(PROMPT, 4, Sampler())) == expected
    assert len(session.scheduler.forward([PROMPT])[0]) == 1
    session.close()


def test_a_device_that_does_not_come_back_is_lost_and_named(demo: Family) -> None:
    stand_in = Failing(1, "o_ar", after=2)
    session = opened(demo.checkpoint, 2, backend=replace(select_backend("virtual"), pyxrt=stand_in))
    devices: Any = session.model.devices
    devices._timeout_s = devices.parts[0].group._group.timeout_s = 1.0
    stand_in.hangs.clear()
    started = time.perf_counter()
    for _ in range(2):
        with pytest.raises(RunError, match=r"^device 1 did not come back in 1 s after another device had"):
            list(session.generate(PROMPT, 4, Sampler()))
    assert time.perf_counter() - started < 120
    stand_in.hangs.set()
    session.close()


def test_what_stops_an_answer_stops_all_devices(demo: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a step, which is all that the stopped thread waits for."""
    session, sums = demo.on(2), list[int]()
    generation, real = session.generate(PROMPT, 4, Sampler()), all_reduce_sum

    def add_up(group: Any, *arrays: Any) -> None:
        sums.append(group.rank)
        if sums.count(1) == 3:
            generation.stop()
        real(group, *arrays)

    with monkeypatch.context() as patch:
        patch.setattr(forward_passes, "all_reduce_sum", add_up)
        assert list(generation) == []
    assert generation.finish_reason is FinishReason.INTERRUPTED
    assert sums.count(1) == 3
    assert sums.count(0) <= 3  # it may have ended before
    assert list(session.generate(PROMPT, 4, Sampler())) == list(demo.on(1).generate(PROMPT, 4, Sampler()))


def test_of_several_errors_the_cause_is_raised() -> None:
    """Not that another one did not come."""
    meeting = thread_group(["device 0", "device 1", "device 2"])
    devices = Devices([0, 1, 2], meeting.names, [meeting.member(rank) for rank in range(3)], meeting.reset)

    def work(rank: int) -> Any:
        if rank == 2:
            raise RunError("a fuse is blown", "the second one", lost=True)
        return meeting.member(rank).all_gather(np.zeros(1), len)

    with pytest.raises(RunError) as raised:
        devices.run_on_all(work)
    assert str(raised.value) == "device 2 failed: a fuse is blown\n  the second one"
    assert raised.value.lost
    assert not isinstance(raised.value, PeerError)
    assert devices.run_on_all(lambda rank: meeting.member(rank).all_gather(np.zeros(1), len)) == [3, 3, 3]
    devices.close()


def test_a_device_that_fails_in_one_of_several_processes_is_left_by_it() -> None:
    """So that the others notice (test_processes.py: a connection that is closed)."""

    class Group(SingleRank):
        left = 0

        def abort(self) -> None:
            self.left += 1

    def fail(part: int) -> None:
        raise RunError("no such device") if part else PeerError("rank 0 of 2 is gone")

    for part, message in enumerate(["rank 0 of 2 is gone", "rank 1 of 2 failed: no such device"]):
        group = Group()
        with pytest.raises(RunError, match=f"^{message}$"):
            Devices([part], ["rank 1 of 2"], [group]).run_on_all(fail)
        assert group.left == 1


def test_ctrl_c_ends_what_all_devices_do() -> None:
    """The thread that waits has it, and the others leave each other."""
    meeting = thread_group(["device 0", "device 1"])
    devices = Devices([0, 1], meeting.names, [meeting.member(rank) for rank in range(2)], meeting.reset)
    ended = []

    def work(rank: int) -> None:
        try:
            while True:
                meeting.member(rank).all_gather(np.zeros(1), len)
        finally:
            ended.append(rank)

    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        devices.run_on_all(work)
    assert sorted(ended) == [0, 1]
    assert devices.run_on_all(lambda rank: meeting.member(rank).all_gather(np.zeros(1), len)) == [2, 2]
    devices.close()


def test_threads_end_with_the_devices() -> None:
    """Also of those that nobody closed. (Other tests' threads may end meanwhile.)"""
    names = {number: [f"{number}, device {device}" for device in (0, 1)] for number in ("closed", "dropped")}
    ours = {*names["closed"], *names["dropped"]}

    def alive() -> set[str]:
        return {thread.name for thread in threading.enumerate()} & ours

    closed, dropped = (Devices([0, 1], given, [SingleRank(), SingleRank()]) for given in names.values())
    assert alive() == ours
    assert closed.run_on_all(abs) == dropped.run_on_all(abs) == [0, 1]
    closed.close()
    del dropped
    gc.collect()
    until = time.perf_counter() + 120
    while alive():
        assert time.perf_counter() < until
        time.sleep(0.01)


# what else goes on with it


def test_a_shared_sequence_is_kept_and_saved_for_as_many_devices(demo: Family, tmp_path: Path) -> None:
    session = demo.on(2)
    expected = list(session.generate(PROMPT, 12, Sampler()))
    session.save(tmp_path / "kept")
    with pytest.raises(UserError, match="was made by decode 'rows, all of 2 devices', and this is 'rows'"):
        demo.on(1).restore(tmp_path / "kept")
    assert session.restore(tmp_path / "kept") == len(PROMPT) + len(expected) - 1
    again = session.generate(PROMPT, 12, Sampler())
    assert (list(again), again.cached_tokens) == (expected, len(PROMPT) - 1)


def test_a_shared_model_goes_on_past_its_context(demo: Family) -> None:
    """Keys of every device are turned anew where tokens are dropped."""
    shared, alone = (opened(demo.checkpoint, count, context_end="shift") for count in (2, 1))
    tokens = (PROMPT * 30)[: alone.model.positions - 4]
    rows = [after(session.model, tokens, tokens[:8]) for session in (shared, alone)]
    assert compare(rows[1], rows[0]).total_rms < 2 * demo.rounding.total_rms
    shared.close()
    alone.close()


def after(model: LoadedModel, tokens: list[int], fed: list[int]) -> F32Array:
    """Logits after each of the tokens that are decoded after the others, past the end of the context."""
    cache = model.new_cache(len(tokens))
    prefill(model, tokens, cache, last_only=True)
    rows = [next_token_logits(model, decode_step(model, token, cache)) for token in fed]
    assert cache.dropped_tokens > 0
    return np.array(rows)


def test_the_command_takes_devices(command_line: Any) -> None:
    asked = ["run", "--prompt", "What is the capital of France?", "--variants", "8x512", "--devices"]
    ran = command_line("cli", [*asked, "0,1", "--decode", "rows"], BACKEND="virtual")
    assert (ran.status, ran.out.strip()) == (0, "The capital of France is Paris.")
    assert "layers loaded on 2 devices" in ran.err
    for text, message in (
        ("0,1", "several devices that share a model cannot be used with decode='guide' (DECODE)"),
        ("0;1", "--devices '0;1' (DEVICES) names no devices; give a number, as 0, or several, each once, as"),
        ("1,1", "--devices '1,1' (DEVICES) names no devices"),
    ):
        refused = command_line("cli", [*asked, text])
        assert (refused.status, message in refused.err) == (2, True), refused.err
