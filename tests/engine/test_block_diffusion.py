"""Blocks that are filled in: each pass has the logits of one over all that it sees, whatever is beside it.

Random models of three kinds: blocks of 4, blocks of 32 with a bias, and shifted logits with parts. What the
masks are is checked against PyTorch in tests/verify.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from aerie import ChunkedLLM, load
from aerie.cli.arguments import default_cache_dir
from aerie.cli.checkpoints import BUILT_IN_MODELS, DEMO_FOLDER
from aerie.cli.command_line import main
from aerie.common.errors import UserError
from aerie.engine.checkpoint import open_checkpoint, with_block_size
from aerie.engine.config import ModelConfig
from aerie.engine.errors import PromptError
from aerie.engine.families import FAMILIES
from aerie.engine.gathered_cache import gathered_cache_for
from aerie.engine.generate import FinishReason
from aerie.engine.open_session import prepare_runtime
from aerie.engine.page_pool import PagePool
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler
from aerie.engine.scheduler import Scheduler
from aerie.engine.session import Session
from aerie.engine.strategies.block_diffusion import BlockDiffusionStrategy, Choose
from aerie.engine.strategies.decode_config import DecodeConfig
from aerie.engine.strategies.unmasking import UnmaskedTokens, Unmasker, UnmaskingRule
from aerie.llama32_1b.synthetic.shape import in_family
from aerie.runtime import select_backend
from aerie.verify.random_model import random_checkpoint, random_model_config, with_longer_context
from tests.engine.scheduling import finish, scheduler_of, session_of

NEW = 22
SIZES = {"sdar": 4, "a2d-qwen2": 32, "Fast_dLLM_Qwen": 16}
"""Tokens of a block, by the family of the model."""


class Pass(NamedTuple):
    """What a choice was made from: bits of the logits, the positions in the block."""

    bits: tuple[bytes, ...]
    positions: tuple[int, ...]
    chosen: UnmaskedTokens


class RecordingChooser:
    """A chooser that remembers what it was given."""

    def __init__(self, choose: Choose) -> None:
        self.passes: list[Pass] = []
        self._choose = choose

    def __call__(self, logits: Sequence[Any], masked: Sequence[int], *more: Any) -> UnmaskedTokens:
        chosen = self._choose(logits, masked, *more)
        bits = tuple(np.asarray(row).tobytes() for row in logits)
        self.passes.append(Pass(bits, tuple(masked), chosen))
        return chosen


def config_of(family: str) -> ModelConfig:
    config = with_longer_context(random_model_config(open_checkpoint(DEMO_FOLDER).config))
    made = in_family(replace(config, rope_scaling=None), FAMILIES[family])
    assert made.diffusion
    part = made.diffusion.sub_block and 8
    return replace(made, diffusion=replace(made.diffusion, block_size=SIZES[family], sub_block=part))


@pytest.fixture(scope="module", params=SIZES)
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    with random_checkpoint(config_of(request.param), Reporter()) as checkpoint:
        yield session_of(checkpoint)


def recording_chooser(session: Session, sampler: Sampler, **rule: Any) -> RecordingChooser:
    blocks = session.model.config.diffusion
    assert blocks
    size = blocks.sub_block or blocks.block_size
    return RecordingChooser(Unmasker(UnmaskingRule(**rule), size, sampler, blocks.mask_token_id))


def ask(
    scheduler: Scheduler,
    session: Session,
    prompt: Sequence[int],
    chooser: RecordingChooser,
    sampler: Sampler,
    count: int = NEW,
) -> Request:
    blocks = session.model.config.diffusion
    assert blocks
    maker = partial(BlockDiffusionStrategy, diffusion=blocks, choose=chooser)
    return scheduler.add_request(prompt, count, sampler, strategy=maker)


def drawn(session: Session) -> Sampler:
    going_on = dict.fromkeys(session.model.config.eos_token_ids, -100.0)
    return Sampler(temperature=1.1, top_k=50, seed=3, logit_bias=going_on)


def prompt_of(count: int, seed: int = 5) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(3, 1400, count)]


def alone(session: Session, prompt: Sequence[int], **rule: Any) -> tuple[Request, RecordingChooser]:
    sampler = drawn(session)
    chooser, scheduler = recording_chooser(session, sampler, **rule), scheduler_of(session)
    request = ask(scheduler, session, prompt, chooser, sampler)
    finish(scheduler, [request])
    return request, chooser


def made_anew(
    session: Session, prompt: Sequence[int], request: Request, chooser: RecordingChooser
) -> list[tuple[bytes, ...]]:
    """The logits of every pass, by one pass over all tokens before the block, and the block as it was."""
    blocks, scheduler = session.model.config.diffusion, scheduler_of(session)
    assert blocks
    assert isinstance(request.strategy, BlockDiffusionStrategy)
    size, found = blocks.block_size, list[tuple[bytes, ...]]()
    final = [*prompt]
    by_position = {one.position: one.token for one in request.strategy.trajectory}
    block: dict[int, int] = {}
    for one in chooser.passes:
        if not block:
            start = len(final) // size * size
            block = dict(enumerate(final[start:], start))
            if blocks.shifted and start == len(final):
                block[start] = by_position[start]
        ids = [*final[:start], *(block.get(start + at, blocks.mask_token_id) for at in range(size))]
        (rows,) = scheduler.forward([ids], [size])
        found.append(tuple(np.asarray(rows[at - blocks.shifted]).tobytes() for at in one.positions))
        block |= {start + at: token for at, token in zip(*one.chosen[:2], strict=True)}
        if len(block) == size:
            final, block = [*final[:start], *(block[at] for at in range(start, start + size))], {}
    return found


@pytest.mark.parametrize("count", [1, 30, 64, 131])
@pytest.mark.parametrize("rule", ["low_confidence_static", "low_confidence_dynamic"])
def test_every_pass_has_the_logits_of_one_pass_over_all_it_sees(
    session: Session, count: int, rule: str
) -> None:
    prompt = prompt_of(count)
    request, chooser = alone(session, prompt, name=rule, threshold=0.002)
    assert (len(request.token_ids), request.finish_reason) == (NEW, FinishReason.LENGTH)
    assert [one.bits for one in chooser.passes] == made_anew(session, prompt, request, chooser)
    blocks = session.model.config.diffusion
    assert blocks
    assert blocks.mask_token_id not in request.token_ids
    if rule == "low_confidence_dynamic":
        assert request.pass_counts.passes < alone(session, prompt)[0].pass_counts.passes


def test_no_answer_depends_on_its_company(session: Session) -> None:
    """Beside others, in a pool too small for all, with pages put aside, found and read anew."""
    prompts = [prompt_of(count, seed) for seed, count in enumerate((1, 50, 55, 60, 120, 58))]
    prompts.append([*prompts[4][:100], *prompts[1]])
    wanted = [alone(session, prompt, threshold=0.002) for prompt in prompts]
    for pages, spare in ((6, 0), (7, 3), (24, 0)):
        scheduler, samplers = scheduler_of(session, pages, spare), [drawn(session) for _ in prompts]
        choosers = [recording_chooser(session, each, threshold=0.002) for each in samplers]
        asked = zip(prompts, choosers, samplers, strict=True)
        requests = [ask(scheduler, session, *each) for each in asked]
        for _ in range(3):
            scheduler.step()
        urgent = scheduler.add_request(prompt_of(60, 9), 4, Sampler(), priority=1)
        finish(scheduler, [*requests, urgent])
        assert [one.token_ids for one in requests] == [one.token_ids for one, _ in wanted]
        assert [one.passes for one in choosers] == [chooser.passes for _, chooser in wanted]
        assert bool(scheduler.stats.preemptions) == (pages < 24)


def test_a_pass_that_is_broken_off_leaves_the_block_as_it_was(session: Session, monkeypatch: Any) -> None:
    prompt = prompt_of(30)
    wanted, chooser = alone(session, prompt)
    for place in ("executor.logits_rows", "requests.Request.update", "sampler.Sampler.__call__"):
        sampler, scheduler = drawn(session), scheduler_of(session)
        again, broken = recording_chooser(session, sampler), 0
        request = ask(scheduler, session, prompt, again, sampler)
        for _ in range(4):
            scheduler.step()

            def interrupt(*_: Any, **__: Any) -> None:
                nonlocal broken
                broken += 1
                raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr(f"aerie.engine.{place}", interrupt)
                with suppress(KeyboardInterrupt):
                    scheduler.step()
        finish(scheduler, [request])
        assert broken > 1, place
        assert request.token_ids == wanted.token_ids, place
        assert again.passes == chooser.passes, place


def test_positions_of_a_block_see_each_other_and_none_after_it(session: Session) -> None:
    blocks, scheduler = session.model.config.diffusion, scheduler_of(session)
    assert blocks
    size = blocks.block_size
    ids = prompt_of(3 * size)
    (rows,) = scheduler.forward([ids], [len(ids)])
    other = [*ids[: 2 * size - 1], 7, *ids[2 * size :]]
    (changed,) = scheduler.forward([other], [len(ids)])
    same = [np.array_equal(a, b) for a, b in zip(rows, changed, strict=True)]
    assert same == [True] * size + [False] * 2 * size


def test_an_answer_ends_inside_a_finished_block(session: Session) -> None:
    """At the first token that ends it, which is looked at when the block has no mask left."""
    request, _ = alone(session, prompt_of(33))
    end = request.token_ids[NEW // 2]
    model = replace(session.model, config=replace(session.model.config, eos_token_ids=(end,)))
    scheduler, sampler = (
        Scheduler(model, PagePool(model.config, 9, b"this model"), gathered_cache_for),
        drawn(session),
    )
    again = ask(scheduler, session, prompt_of(33), recording_chooser(session, sampler), sampler)
    finish(scheduler, [again])
    assert again.finish_reason is FinishReason.STOP
    assert again.token_ids == request.token_ids[: request.token_ids.index(end) + 1]


def test_a_block_beyond_the_context_ends_the_answer(session: Session) -> None:
    config, size = session.model.config, SIZES[session.model.config.family.model_type]
    model = replace(session.model, config=replace(config, max_position_embeddings=2 * size + 3))
    scheduler, sampler = (
        Scheduler(model, PagePool(config, 9, b"this model"), gathered_cache_for),
        drawn(session),
    )
    request = ask(scheduler, session, [5] * (size + 1), recording_chooser(session, sampler), sampler, 60)
    finish(scheduler, [request])
    assert (request.finish_reason, len(request.token_ids)) == (FinishReason.CONTEXT, size - 1)
    with pytest.raises(PromptError, match=f"the block of {size} that is filled after it ends at position"):
        ask(scheduler, session, [5] * 2 * size, recording_chooser(session, sampler), sampler)


def test_prompts_go_on_from_whole_blocks_alone(session: Session) -> None:
    scheduler, size = scheduler_of(session), SIZES[session.model.config.family.model_type]
    sequence = scheduler.new_sequence()
    scheduler.forward([[5] * size], sequences=[(sequence, 0)])
    with pytest.raises(UserError, match=f"position {size - 1} is within a block of {size} tokens"):
        scheduler.forward([[5]], sequences=[(sequence, size - 1)])
    sequence.release()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with random_checkpoint(config_of("sdar"), Reporter()) as checkpoint:
        yield checkpoint.weights.files[0].parent


def test_from_python_in_every_way_of_asking(folder: Any) -> None:
    with load(folder, kv_pool=1024) as model:
        whole = model.generate("Hello", 12)
        assert whole.token_ids == model.generate("Hello", 12, strategy="block_diffusion").token_ids
        assert model.generate_batch(["Hello"], 12)[0].token_ids == whole.token_ids
        assert model.stream("Hello", 12).result().token_ids == whole.token_ids
        assert whole.kpis.tps.tokenAcceptance > 0
        for rule in ("sequential", "low_confidence_static", "entropy_bounded"):
            steps = None if rule == "entropy_bounded" else 2
            assert len(model.generate("Hello", 12, rule=rule, steps=steps).token_ids) == 12
        assert model.logits("Hello").shape[1] == model._open().model.config.vocab_size
        with pytest.raises(UserError, match="strategy is 'autoregressive', and this model is one of block"):
            model.generate("Hello", strategy="autoregressive")
        with pytest.raises(UserError, match="draft is 'lookup', which is for autoregressive models"):
            model.generate("Hello", draft="lookup")
        with pytest.raises(UserError, match="use_block_cache is True: every pass sees a block as it is"):
            model.generate("Hello", use_block_cache=True)
        assert model.generate("Hello", 12, use_block_cache=False).token_ids == whole.token_ids
        with pytest.raises(UserError, match="needs an autoregressive model, and"):
            model.generate("Hello", json_schema={"type": "object"})
        with pytest.raises(UserError, match="steps is 9, and each fills in a token or more of 4"):
            model.generate("Hello", steps=9)
        with pytest.raises(UserError, match="chunks are texts of which no token sees one after it"):
            ChunkedLLM(model)
        with pytest.raises(UserError, match="an answer goes on after its last token, and this model"):
            model.continue_answer()
        with pytest.raises(UserError, match="the next token of each request was asked for, and this model"):
            model.infer_batch([5], [1], [0], [])
        with pytest.raises(UserError, match="likelihoods of one token after the other"):
            model.log_likelihoods(["Hello"])
        with pytest.raises(UserError, match="block diffusion cannot be used with decode='guide'"):
            model._open().scheduler.add_request([5], 1, Sampler(), decode_path="guide")


def test_what_cannot_fill_in_blocks_is_refused(folder: Any) -> None:
    options = RuntimeOptions(None, select_backend("virtual"), default_cache_dir())
    checkpoint = open_checkpoint(folder)
    diffusion = config_of("sdar").diffusion
    assert diffusion
    large = replace(config_of("a2d-qwen2"), diffusion=replace(diffusion, block_size=64))
    for change, message in (
        ({"seq_len": 128}, "in this model's blocks positions see each other: leave it out"),
        ({"context_end": "shift"}, "which drops tokens one by one, and this model fills in blocks"),
    ):
        with pytest.raises(UserError, match=message):
            prepare_runtime(checkpoint, replace(options, **change), Reporter())
    with pytest.raises(UserError, match="has 64 tokens, and the largest variant takes 32"):
        replace(options, variants="8,32x512").variant_set(large)


def test_a_block_that_takes_all_rows_is_committed_in_a_pass_of_its_own() -> None:
    """Where the largest variant has 32; and no token is another for it."""
    checkpoint = with_block_size(open_checkpoint(BUILT_IN_MODELS["demo-diffusion"]), 32, lambda note: None)
    options = RuntimeOptions(None, select_backend("virtual"), default_cache_dir(), variants="64x512")
    made = []
    for session in (session_of(checkpoint), prepare_runtime(checkpoint, options, Reporter())):
        going_on = Sampler(logit_bias=dict.fromkeys(checkpoint.config.eos_token_ids, -100.0))
        request = session.generate([*range(20, 60)], 70, going_on)
        made.append(list(request))
        done = request.pass_counts
        assert done is not None
        assert done.committed > 1
        assert done.commits == (done.committed if len(made) == 1 else 0)
    assert made[0] == made[1]


def test_blocks_of_another_size_are_warned_of(folder: Any) -> None:
    checkpoint, notes = open_checkpoint(folder), list[str]()
    assert with_block_size(checkpoint, None, notes.append) is checkpoint
    same, other = (with_block_size(checkpoint, size, notes.append).config.diffusion for size in (4, 16))
    assert [each and each.block_size for each in (same, other)] == [4, 16]
    assert notes == ["note: blocks have 16 tokens, and this model was trained with 4: expect worse answers"]
    for size in (0, 6, 128):
        with pytest.raises(UserError, match=f"is {size}; a block must be a divisor of 64 tokens"):
            with_block_size(checkpoint, size, notes.append)
    parts = replace(checkpoint, config=config_of("Fast_dLLM_Qwen"))
    with pytest.raises(UserError, match="and a multiple of this model's parts of 8: this model was trained"):
        with_block_size(parts, 4, notes.append)
    with pytest.raises(UserError, match="is 8, and this model says one token after the other; leave it out"):
        with_block_size(open_checkpoint(DEMO_FOLDER), 8, notes.append)
    with load(folder, block_size=8, progress=notes.append) as model:
        assert len(model.generate("Hello", 12).token_ids) == 12
    assert sum("blocks have 8 tokens" in note for note in notes) == 1


def test_from_the_command_line(folder: Any, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["run", "--model", str(folder), "--prompt", "Hello", "--n-tokens", "8", "--rule", "sequential"]
    assert main([*asked, "--steps", "2", "--json"]) == 0
    output = capsys.readouterr()
    record = json.loads(output.out)
    assert (len(record["token_ids"]), record["finish_reason"]) == (8, "length")
    assert record["passes"]["blocks"] == record["passes"]["committed"] + 1
    assert (
        f"tokens a pass ({record['passes']['passes']} passes, {record['passes']['blocks']} blocks)"
        in output.err
    )
    for flags, message in (
        (["--rule", "loudest"], "rule is 'loudest'; give one of sequential, low_confidence_static"),
        (["--draft", "lookup"], "draft is 'lookup', which is for autoregressive models"),
        (["--draft", "demo-drafter"], "draft is 'demo-drafter', which is for autoregressive models"),
        (["--threshold", "0.5"], "threshold is 0.5, which the rule sequential does not use; leave it out"),
        (["--block-size", "5"], "block_size (BLOCK_SIZE) is 5; a block must be a divisor of 64 tokens"),
        (["--seq-len", "64"], "in this model's blocks positions see each other: leave it out"),
    ):
        assert main([*asked, *flags]) == 2
        output = capsys.readouterr()
        assert message in output.err
        assert (output.out, output.err.count("\n")) == ("", 1)


def test_manners_of_a_model_of_blocks() -> None:
    config = config_of("Fast_dLLM_Qwen")
    with pytest.raises(UserError, match="steps is 9, and each fills in a token or more of 8"):
        DecodeConfig(steps=9).strategy_factory(config, Sampler())  # of a part
    assert DecodeConfig(steps=8, rule="sequential").strategy_factory(config, Sampler()) is not None


@pytest.mark.parametrize(
    ("rule", "setting", "rules"),
    [
        ("entropy_bounded", {"steps": 2}, "sequential, low_confidence_static, low_confidence_dynamic"),
        ("entropy_bounded", {"threshold": 0.5}, "low_confidence_dynamic"),
        ("low_confidence_static", {"threshold": 0.5}, "low_confidence_dynamic"),
        ("sequential", {"entropy": 0.5}, "entropy_bounded"),
        (None, {"entropy": 0.5}, "entropy_bounded"),
    ],
)
def test_a_setting_that_the_rule_does_not_go_by(rule: str | None, setting: Any, rules: str) -> None:
    ((name, given),) = setting.items()
    message = f"{name} is {given}, which the rule {rule or 'low_confidence_dynamic'} does not use; leave"
    with pytest.raises(UserError, match=f"{message} it out, or take a rule that does: {rules}$"):
        DecodeConfig(rule=rule, **setting).strategy_factory(config_of("sdar"), Sampler())


def test_the_rate_is_of_what_came_after_the_first_block() -> None:
    """Whose tokens come all at once, and would make any rate."""
    with load("demo-diffusion") as model:
        whole_blocks = [*range(20, 28)]
        one = model.generate(whole_blocks, 4)
        assert (one.kpis.tps.n_generate, one.kpis.tps.generate) == (4, 0)
        going_on = dict.fromkeys(model._open().model.config.eos_token_ids, -100.0)
        more = model.generate(whole_blocks, 12, logit_bias=going_on)
        tps, seconds = more.kpis.tps, more.kpis.generate.last / 1e6
        assert tps.n_generate == len(more.token_ids)
        assert tps.generate == pytest.approx((tps.n_generate - 4) / seconds, rel=0.01)
