"""With drafts an answer has the tokens, the logits' bits and the draws that it has without any."""

from __future__ import annotations

import functools
import itertools
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from aerie import ChunkedLLM, load
from aerie.cli.checkpoints import BUILT_IN_MODELS, DEMO_FOLDER
from aerie.common.errors import UserError
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.gathered_cache import gathered_cache_for
from aerie.engine.generate import FinishReason
from aerie.engine.page_pool import PagePool
from aerie.engine.reporter import Reporter
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler
from aerie.engine.scheduler import Scheduler, generate_alone
from aerie.engine.session import Session
from aerie.engine.strategies.decode_config import DecodeConfig
from aerie.engine.strategies.draft_length import AdaptiveDraftLength, allocate_drafts
from aerie.engine.strategies.draft_model import DraftModelDrafter, check_drafter
from aerie.engine.strategies.drafters import Drafter, PromptLookupDrafter
from aerie.engine.strategies.speculative import SpeculativeStrategy
from aerie.engine.strategies.strategy import NO_DRAFTS, DraftEstimate, PassInput, RequestState
from aerie.engine.weights import EMBED
from aerie.verify.random_model import (
    in_another_family,
    random_checkpoint,
    random_model_config,
    with_longer_context,
)
from tests.engine.scheduling import Listening, finish, session_of

NEW = 40
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"seed": 4},
    "drawn": {"temperature": 1.2, "seed": 5},
    "filtered": {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "seed": 6},
    "penalties": {"temperature": 1.0, "seed": 7, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
}


class Knowing:
    """Proposes the known answer, with every `wrong`-th token wrong (0: no token)."""

    def __init__(self, prompt: int, answer: Sequence[int], wrong: int) -> None:
        self._prompt, self._answer, self._wrong = prompt, answer, wrong
        self.is_closed, self.asked = False, 0

    def __call__(self, tokens: Sequence[int], max_drafts: int) -> Sequence[int]:
        first, self.asked = len(tokens) - self._prompt, self.asked + max_drafts
        guesses = self._answer[first : first + max_drafts]
        wrong = self._wrong
        return [g ^ 1 if wrong and (first + n) % wrong == 0 else g for n, g in enumerate(guesses)]

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(scope="module", params=["demo", "qwen3"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    if request.param == "demo":
        yield session_of(open_checkpoint(DEMO_FOLDER))
        return
    config = in_another_family(with_longer_context(random_model_config(open_checkpoint(DEMO_FOLDER).config)))
    with random_checkpoint(config, Reporter()) as checkpoint:
        yield session_of(checkpoint)


def scheduler_of(session: Session, pages: int = 12) -> Scheduler:
    model = session.model
    return Scheduler(model, PagePool(model.config, pages, b"this model"), gathered_cache_for)


def sampler(session: Session, kind: str) -> Listening:
    going_on = dict.fromkeys(session.model.config.eos_token_ids, -100.0)
    return Listening(**KINDS[kind], logit_bias=going_on)


def always(most: int) -> AdaptiveDraftLength:
    """As many draft tokens as are allowed, whatever comes of them."""
    length = AdaptiveDraftLength(most)
    length.length = lambda: most  # type: ignore[method-assign]
    return length


def ask(
    scheduler: Scheduler, prompt: Sequence[int], listening: Listening, drafter: Drafter, most: int = 15
) -> Request:
    return scheduler.add_request(
        prompt, NEW, listening, strategy=lambda making: SpeculativeStrategy(making, drafter, always(most))
    )


def made_alone(session: Session, prompt: Sequence[int], kind: str) -> tuple[list[int], Listening]:
    listening = sampler(session, kind)
    return list(generate_alone(session.model, prompt, NEW, listening)), listening


def prompt_of(session: Session, count: int = 50) -> list[int]:
    return [
        int(t)
        for t in np.random.default_rng(2).integers(3, min(session.model.config.vocab_size, 1500), count)
    ]


@pytest.fixture(scope="module")
def alone(session: Session) -> Callable[[str], tuple[list[int], Listening]]:
    """alone(kind): what `made_alone` gives for `prompt_of`, made once for all drafts."""
    return functools.cache(lambda kind: made_alone(session, prompt_of(session), kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("wrong", "most"), [(0, 7), (3, 7), (1, 15), (5, 15)])
def test_drafts_change_no_bit(session: Session, alone: Any, kind: str, wrong: int, most: int) -> None:
    prompt = prompt_of(session)
    tokens, plain = alone(kind)
    listening, drafter = sampler(session, kind), Knowing(len(prompt), tokens, wrong)
    scheduler = scheduler_of(session)
    request = ask(scheduler, prompt, listening, drafter, most)
    finish(scheduler, [request])
    assert (request.token_ids, listening.bits) == (tokens, plain.bits)
    assert listening.state() == plain.state()
    assert request.finish_reason is FinishReason.LENGTH
    assert drafter.is_closed
    done = request.pass_counts
    assert done.accepted == NEW - done.passes
    if not wrong:
        assert (done.passes, done.drafted) == (1 + -(-(NEW - 1) // (most + 1)), done.accepted)
    elif wrong == 1:
        assert done.accepted == 0


def test_beside_others_and_where_pages_run_out(session: Session) -> None:
    """Drafts of several, of which one gives way to an urgent one, and plain answers beside them."""
    prompts = [prompt_of(session, count) for count in (60, 100, 20)]
    plain_runs = [made_alone(session, prompt, "drawn") for prompt in prompts]
    scheduler = scheduler_of(session, pages=5)
    heard = [sampler(session, "drawn") for _ in prompts]
    drafters = [Knowing(len(p), tokens, 4) for p, (tokens, _) in zip(prompts, plain_runs, strict=True)]
    requests = [ask(scheduler, p, h, d) for p, h, d in zip(prompts, heard, drafters, strict=True)]
    requests.append(scheduler.add_request([9] * 30, 5, Listening(), priority=1))
    finish(scheduler, requests)
    assert [one.token_ids for one in requests[:3]] == [tokens for tokens, _ in plain_runs]
    assert [one.bits for one in heard] == [plain.bits for _, plain in plain_runs]
    assert scheduler.stats.preemptions


def test_drafts_that_stay_wrongly_would_be_seen(monkeypatch: Any) -> None:
    """Rows after a wrong draft are drawn from as if it had been right."""
    session = session_of(open_checkpoint(DEMO_FOLDER))
    prompt = prompt_of(session)
    tokens, _ = made_alone(session, prompt, "drawn")
    listening = sampler(session, "drawn")

    def say(self: SpeculativeStrategy, drafts: Sequence[int], rows: Sequence[Any]) -> int:
        kept = itertools.takewhile(
            bool, (self._request.append_token(self._request.sample(row)) for row in rows)
        )
        return min(len(drafts), sum(1 for _ in kept))

    monkeypatch.setattr(SpeculativeStrategy, "_accept_drafts", say)
    scheduler = scheduler_of(session)
    request = ask(scheduler, prompt, listening, Knowing(len(prompt), tokens, 3))
    finish(scheduler, [request])
    assert request.token_ids != tokens


def test_an_answer_ends_where_it_ends_without_drafts() -> None:
    """At its own end token, in the middle of drafts that are right."""
    session = session_of(open_checkpoint(DEMO_FOLDER))
    prompt = session.tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    tokens = list(generate_alone(session.model, prompt, NEW, Listening()))
    scheduler = scheduler_of(session)
    request = ask(scheduler, prompt, Listening(), Knowing(len(prompt), [*tokens, 7, 7, 7, 7], 0))
    finish(scheduler, [request])
    assert (request.token_ids, request.finish_reason) == (tokens, FinishReason.STOP)
    assert len(tokens) < NEW


def test_lookup_from_python_in_every_way_of_asking() -> None:
    with load("demo", decode="rows", kv_pool=1024) as model:
        text = "List the capitals of France, France, France and France."
        plain, drafted = model.generate(text, 30), model.generate(text, 30, draft="lookup")
        assert drafted.token_ids == plain.token_ids
        assert model.generate_batch([text], 30, draft="lookup")[0].token_ids == plain.token_ids
        assert model.stream(text, 30, draft="lookup").result().token_ids == plain.token_ids
        repeated = model.generate([5, 6, 7, 8] * 12, 30, draft="lookup", logit_bias={9: 100.0})
        assert set(repeated.token_ids) == {9}
        tps = repeated.kpis.tps
        assert tps.n_accepted > 15
        assert tps.tokenAcceptance == pytest.approx(29 / (29 - tps.n_accepted))
        with pytest.raises(UserError, match="draft is 'crystal'; give 'lookup', a model"):
            model.generate(text, 5, draft="crystal")
        with pytest.raises(
            UserError, match="strategy is 'block_diffusion', and this model is autoregressive"
        ):
            model.generate(text, 5, strategy="block_diffusion")
        with pytest.raises(UserError, match="strategy is 'beam', and there is no such strategy"):
            model.generate(text, 5, strategy="beam")
        with pytest.raises(UserError, match="steps is 4, which is for models of block diffusion"):
            model.generate(text, 5, steps=4)
        with pytest.raises(UserError, match="there is no option 'warmth'"):
            model.stream(text, 5, warmth=3)  # type: ignore[call-arg]
        with pytest.raises(UserError, match="temperature is 'hot', of the type str; give a number"):
            model.stream(text, 5, temperature="hot")  # type: ignore[arg-type]
        guide = ChunkedLLM(model, decode="guide")
        asked = guide.register("What is the capital of France?")
        with pytest.raises(UserError, match=r"drafts cannot be used with decode='guide' \(DECODE\)"):
            guide.generate_from_chunks([asked], draft="lookup")
        with pytest.raises(UserError, match="num_beams is 4: beam search is not built"):
            guide.generate_from_chunks([asked], num_beams=4)
        chunked = ChunkedLLM(model)
        asked = chunked.register([5, 6, 7, 8] * 12)
        made = chunked.generate_from_chunks([asked], max_tokens=30, draft="lookup", logit_bias={9: 100.0})
        assert made.token_ids == repeated.token_ids


def test_a_model_that_drafts_changes_no_token(session: Session) -> None:
    """The target itself in another session, whose drafts are all right; and random weights, which mostly
    are not."""
    prompt = prompt_of(session)
    tokens, plain = made_alone(session, prompt, "drawn")
    greedy, _ = made_alone(session, prompt, "greedy")
    lock = threading.Lock()
    for kind, wanted in (("greedy", greedy), ("drawn", tokens)):
        listening, drafter = sampler(session, kind), DraftModelDrafter(lambda: session.model, lock)
        scheduler = scheduler_of(session)
        request = ask(scheduler, prompt, listening, drafter, 4)
        finish(scheduler, [request])
        assert request.token_ids == wanted
        assert drafter._cache is None
        if kind == "drawn":
            assert listening.bits == plain.bits
            assert 0 < request.pass_counts.accepted < request.pass_counts.drafted
    assert list(DraftModelDrafter(lambda: session.model, lock)(prompt[:1] * session.model.positions, 4)) == []


def test_a_model_that_makes_its_guesses_at_once(session: Session) -> None:
    """Each of them is what the model says at a mask token behind the text; and no token changes."""
    model = replace(session.model, config=replace(session.model.config, draft_mask_id=7))
    prompt, scheduler = prompt_of(session), scheduler_of(session)
    drafter = DraftModelDrafter(lambda: model, threading.Lock())
    for text in (prompt, [*prompt, 9, 8]):
        (rows,) = scheduler.forward([[*text, 7, 7, 7]], [4])
        assert list(drafter(text, 4)) == [int(np.argmax(row.astype(np.float32))) for row in rows]
    assert drafter._cache
    assert drafter._cache.token_ids == [*prompt, 9, 8]
    assert len(drafter(prompt, 1)) == 1
    tokens, plain = made_alone(session, prompt, "drawn")
    listening = sampler(session, "drawn")
    request = ask(scheduler, prompt, listening, DraftModelDrafter(lambda: model, threading.Lock()), 7)
    finish(scheduler, [request])
    assert (request.token_ids, listening.bits) == (tokens, plain.bits)


def test_a_draft_model_is_right_where_it_says_the_same() -> None:
    """Greedy, by the decode path guide in both: all draft tokens are those that the model itself makes."""
    with load("demo", decode="rows") as model, load("demo", decode="rows") as twin:
        question = "What is the capital of France?"
        plain, drafted = model.generate(question), model.generate(question, draft=twin)
        assert drafted.token_ids == plain.token_ids
        tps = drafted.kpis.tps
        assert 0 < tps.n_accepted == tps.n_drafted
        batch = model.generate_batch([question, question], draft=twin)
        assert [one.token_ids for one in batch] == [plain.token_ids] * 2
        with pytest.raises(UserError, match="draft is the model itself"):
            model.generate(question, draft=model)
        with pytest.raises(UserError, match="draft is 3; give 'lookup', a model that drafts, or None"):
            model.generate(question, draft=3)  # type: ignore[arg-type]
    with (
        load("demo") as model,
        load("demo-diffusion") as blocks,
        pytest.raises(UserError, match="draft model is a model of block diffusion, and a draft model must"),
    ):
        model.generate(question, draft=blocks)


def test_a_drafter_with_other_tokens_is_refused() -> None:
    ours = open_checkpoint(DEMO_FOLDER)
    pair = ours.config, ours.tokenizer
    for vocab_size in (1400, ours.config.vocab_size, 2000):
        check_drafter(pair, (replace(ours.config, vocab_size=vocab_size), ours.tokenizer), "padded")
    theirs = open_checkpoint(BUILT_IN_MODELS["demo-diffusion"]).tokenizer
    with pytest.raises(UserError, match="draft other has another vocabulary"):
        check_drafter(pair, (ours.config, theirs), "other")


@pytest.mark.parametrize(("rows", "at_once"), [(1400, False), (1536, False), (1536, True)])
def test_a_drafter_of_another_number_of_rows_changes_no_token(
    rows: int, at_once: bool, tmp_path: Path
) -> None:
    """The demo's has 1500. Rows that only a drafter has would always be the likeliest; a prompt has tokens
    that it does not have."""
    folder = tmp_path / "drafter"
    shutil.copytree(BUILT_IN_MODELS["demo-drafter"], folder)
    tensors = load_file(folder / "model.safetensors")
    table = tensors[EMBED]
    more = np.full((max(0, rows - len(table)), table.shape[1]), 9.0, table.dtype)
    tensors[EMBED] = np.concatenate([table[:rows], more])
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config |= {"vocab_size": rows, "eos_token_id": 1}
    (folder / "generation_config.json").unlink(missing_ok=True)
    if at_once:
        config["pard_token"] = 7
    (folder / "config.json").write_text(json.dumps(config))
    with load("demo", decode="rows") as model, load(folder) as drafter:
        asked: Any = {"max_tokens": 24, "temperature": 1.0, "seed": 3, "raw": True}
        for prompt in ("The capital of France is", [1, 700, 1499, 5, 6]):
            plain = model.generate(prompt, **asked)
            drafted = model.generate(prompt, draft=drafter, **asked)
            assert drafted.token_ids == plain.token_ids
        going_on = dict.fromkeys(range(1490, 1500), -100.0)
        guessed = model.generate([20, 21, 22], 24, draft=drafter, logit_bias=going_on).kpis.tps
        assert guessed.n_drafted > 0


def test_lookup_guesses_what_followed_the_longest_n_gram() -> None:
    look = PromptLookupDrafter()
    assert list(look([1, 2, 3, 4, 9, 2, 3], 3)) == [4, 9, 2]
    assert list(PromptLookupDrafter()([1, 2, 3, 8, 2, 3, 5, 1, 2, 3], 2)) == [
        8,
        2,
    ]  # 1 2 3 before the later 2 3
    assert list(PromptLookupDrafter()([4, 5, 6, 4, 5, 6, 4, 5], 7)) == [
        6,
        4,
        5,
        6,
        4,
        5,
        6,
    ]  # over its own guesses
    assert list(PromptLookupDrafter()([1, 2, 3], 4)) == []
    assert list(PromptLookupDrafter()([1], 4)) == []


def test_lookup_learns_what_is_new_alone_and_knows_the_same() -> None:
    text = [int(t) for t in np.random.default_rng(0).integers(0, 6, 300)]
    growing = PromptLookupDrafter()
    for end in range(1, len(text)):
        assert list(growing(text[:end], 5)) == list(PromptLookupDrafter()(text[:end], 5))


@pytest.mark.parametrize("answers", [2, 6, 8, 12])
def test_no_guess_that_costs_is_made_in_vain(answers: int, session: Session) -> None:
    """Many share a pass, and only so many are guessed as are tried; no answer is another for it."""
    prompt = prompt_of(session)
    tokens, plain = made_alone(session, prompt, "greedy")
    scheduler, drafters = scheduler_of(session, 24), list[Knowing]()

    def costly(making: RequestState) -> SpeculativeStrategy:
        drafters.append(Knowing(len(prompt), tokens, 9))
        return SpeculativeStrategy(making, drafters[-1], AdaptiveDraftLength(draft_cost=0.02))

    listening = [sampler(session, "greedy") for _ in range(answers)]
    requests = [scheduler.add_request(prompt, NEW, one, strategy=costly) for one in listening]
    finish(scheduler, requests)
    for request, drafter, heard in zip(requests, drafters, listening, strict=True):
        assert (request.token_ids, heard.bits) == (tokens, plain.bits)
        assert request.pass_counts.drafted == drafter.asked
    assert sum(one.pass_counts.drafted for one in requests) > 0


def test_they_are_refused_where_tokens_are_decoded_by_themselves() -> None:
    """In the decode path guide, whose tokens go one by one."""
    session = session_of(open_checkpoint(DEMO_FOLDER), decode="guide")
    costly = partial(
        SpeculativeStrategy, drafter=Knowing(3, [5] * NEW, 0), length=AdaptiveDraftLength(draft_cost=0.02)
    )
    with pytest.raises(UserError, match=r"drafts cannot be used with decode='guide' \(DECODE\)"):
        scheduler_of(session).add_request([5, 6, 7], NEW, sampler(session, "greedy"), strategy=costly)


def test_guesses_are_shared_out_by_what_they_bring() -> None:
    sure, unsure, costly = DraftEstimate(15, 0.97), DraftEstimate(15, 0.2), DraftEstimate(15, 0.97, 0.5)
    assert allocate_drafts(1, [unsure]) == [15], "one by itself knows best"
    assert allocate_drafts(6, [unsure, *[NO_DRAFTS] * 5]) == [2, 0, 0, 0, 0, 0], "rows that cost nothing"
    assert allocate_drafts(6, [sure, unsure, *[NO_DRAFTS] * 4]) == [10, 0, 0, 0, 0, 0], "the likelier first"
    assert allocate_drafts(8, [unsure] * 8) == [0] * 8
    assert allocate_drafts(8, [sure] * 8) == [1] * 8, "to the next larger program"
    assert allocate_drafts(6, [costly] * 6) == [0] * 6
    assert allocate_drafts(6, [costly, *[NO_DRAFTS] * 5]) == [0] * 6
    assert allocate_drafts(6, [costly._replace(cost_is_total=True), *[NO_DRAFTS] * 5]) == [10, 0, 0, 0, 0, 0]
    assert allocate_drafts(32, [sure] * 32) == [0] * 32, "no rows are left"


def test_guesses_follow_what_was_right() -> None:
    length = AdaptiveDraftLength()
    assert length.length() == 7
    for _ in range(10):
        length.update(7, 7)
    assert length.length() == 15
    for _ in range(30):
        length.update(length.length(), 0)
    assert length.length() < 15
    assert (
        AdaptiveDraftLength(draft_cost=0.3).length()
        < AdaptiveDraftLength(draft_cost=0.3, cost_is_total=True).length()
        == 7
    )
    costly = AdaptiveDraftLength(7, draft_cost=0.5)
    lengths = []
    for _ in range(200):
        lengths.append(costly.length())
        costly.update(lengths[-1], 0)
    assert sum(map(bool, lengths)) < 12
    assert lengths[-1] == 0
    assert any(lengths[60:]), "it is tried again"


def test_an_invalid_decode_configuration_is_refused() -> None:
    config = open_checkpoint(DEMO_FOLDER).config
    assert DecodeConfig().strategy_factory(config, Listening()) is None
    assert DecodeConfig(strategy="autoregressive").strategy_factory(config, Listening()) is None


class Drawn:
    """An answer under way, of which the rows are given: see RequestState."""

    def __init__(self, sampler: Sampler) -> None:
        self.prompt_ids: tuple[int, ...] = (0,)
        self.positions = self.free_positions = self.remaining_tokens = 99
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._sampler = sampler

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt_ids, *self.token_ids]

    def tokens_after(self, length: int) -> list[int]:
        return self.tokens[length:]

    def sample(self, logits: Any) -> int:
        return self._sampler(logits)

    def append_token(self, token: int) -> bool:
        self.token_ids.append(token)
        return True

    def finish(self, reason: FinishReason) -> None:
        self.finish_reason = reason


ROUNDS, FAR = 60_000, 30.0
"""Rounds, in which more than 100,000 tokens are drawn; a chi-square of 5 degrees of freedom that is above FAR
in one run of 60,000."""
LOGITS = np.array(
    [[0.5, 1.2, 2.0, -0.3, 0.1, -1.0], [0.3, 0.0, -0.4, 0.9, 2.5, 0.2], [0.0, 1.0, 0.5, 0.2, 0.1, 0]]
)
DRAFTS = (2, 4)


def answers_of(strategy: type[SpeculativeStrategy]) -> list[list[int]]:
    """What each of many answers says in one pass with the same two drafts."""
    sampler, answers = Sampler(temperature=1.0, seed=11), list[list[int]]()
    due = PassInput((0, *DRAFTS), 3, 1, is_decode=True)
    for _ in range(ROUNDS):
        making = Drawn(sampler)
        strategy(making, PromptLookupDrafter(), AdaptiveDraftLength()).update(
            due, list(LOGITS.astype(np.float32))
        )
        answers.append(making.token_ids)
    return answers


def farthest(answers: list[list[int]]) -> float:
    """The largest chi-square of the tokens at each place, from what the model's logits there say."""
    found = []
    for place, logits in enumerate(LOGITS[: max(map(len, answers))]):
        counts = np.bincount([one[place] for one in answers if len(one) > place], minlength=len(logits))
        wanted = np.exp(logits) / np.exp(logits).sum() * counts.sum()
        found.append(float(np.sum((counts - wanted) ** 2 / wanted)))
    return max(found)


class DrawnTwice(SpeculativeStrategy):
    """Draws anew where a draft is not taken, and may well draw it then."""

    def _accept_drafts(self, drafts: Sequence[Any], rows: Sequence[Any]) -> int:
        for number, (draft, row) in enumerate(zip(drafts, rows, strict=False)):
            token = self._request.sample(row)
            self._request.append_token(token if token == draft else self._request.sample(row))
            if token != draft:
                return number
        return len(drafts)


@pytest.mark.slow
def test_the_distribution_is_the_models() -> None:
    """Of the first token; of the second, where the first draft stayed; and of the third."""
    answers = answers_of(SpeculativeStrategy)
    assert sum(map(len, answers)) > 100_000
    assert farthest(answers) < FAR
    assert farthest(answers_of(DrawnTwice)) > 10 * FAR
