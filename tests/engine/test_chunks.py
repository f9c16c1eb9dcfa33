"""Chunks: read once, laid anywhere, and what they give held to transformers with the mode's mask."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie import load
from aerie.cli.arguments import default_cache_dir
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.common.errors import UserError
from aerie.engine import chunks as chunks_module
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.chunk_files import ChunkFolder
from aerie.engine.chunks import ChunkRegistry, chunk_id
from aerie.engine.composed_prompt import ChunkMode, ComposedPrompt, parse_chunk_mode
from aerie.engine.errors import PromptError
from aerie.engine.families import FAMILIES
from aerie.engine.gathered_cache import gathered_cache_for
from aerie.engine.model import with_decode_path
from aerie.engine.numerics import apply_rope
from aerie.engine.open_session import prepare_runtime
from aerie.engine.page_manager import PAGE_SIZE, PoolFullError
from aerie.engine.page_pool import PagePool
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.rope import LinearScaling, Llama3Scaling
from aerie.engine.sampler import Sampler
from aerie.engine.scheduler import Scheduler, generate_alone
from aerie.engine.session import Session
from aerie.llama32_1b.synthetic.shape import in_family
from aerie.runtime import select_backend
from aerie.verify.bit_identity import with_threads
from aerie.verify.chunk_check import MODES, masked_sequence, try_modes
from aerie.verify.random_model import (
    random_checkpoint,
    random_model_config,
    with_longer_context,
)
from aerie.verify.reference import Reference
from tests.engine.scheduling import finish

RULES = {"plain": None, "linear": LinearScaling(4.0), "llama3": Llama3Scaling(8.0, 1.0, 4.0, 256)}
KINDS = ("llama", "qwen3", "smollm3")


def session_of(checkpoint: Any) -> Session:
    options = RuntimeOptions(
        None, select_backend("virtual"), default_cache_dir(), variants="8,32x512", decode="rows"
    )
    return prepare_runtime(checkpoint, options, Reporter())


def random_model(family: str, rule: str) -> Any:
    config = with_longer_context(random_model_config(open_checkpoint(DEMO_FOLDER).config))
    config = in_family(config, FAMILIES[family])
    return random_checkpoint(replace(config, rope_scaling=RULES[rule]), Reporter())


@pytest.fixture(scope="module", params=KINDS)
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    with random_model(request.param, "llama3") as checkpoint:
        yield session_of(checkpoint)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Session, Reference]]:
    with random_model("llama", "linear") as checkpoint:
        yield session_of(checkpoint), Reference.open(checkpoint.folder)


def drawn(*counts: int, seed: int = 1) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [[int(token) for token in rng.integers(3, 1500, count)] for count in counts]


TEXTS = drawn(70, 30, 130, 33)


class NotedRegistry(ChunkRegistry):
    notes: list[str]


def registry_on(session: Session, pages: int, folder: Path | None = None) -> tuple[Scheduler, NotedRegistry]:
    """A pool of its own."""
    model, notes = session.model, list[str]()
    pool = PagePool(model.config, pages, b"this model")
    files = ChunkFolder(folder, session.provenance(session.model), notes.append) if folder else None
    registry = NotedRegistry(pool, model.rope, session.prefill_alone, files)
    registry.notes = notes
    return Scheduler(model, pool, gathered_cache_for, session.recover), registry


def composed(registry: ChunkRegistry, texts: list[list[int]], mode: str) -> ComposedPrompt:
    return ComposedPrompt([registry.chunk(registry.register(text)) for text in texts], parse_chunk_mode(mode))


def bits_of(scheduler: Scheduler, composition: ComposedPrompt) -> bytes:
    """Of the logits after every token of the last chunk."""
    rows = scheduler.forward([composition], [len(TEXTS[-1])])[0]
    return np.array(rows).tobytes()


def answered(scheduler: Scheduler, prompt: Any, count: int = 4) -> tuple[list[int], int]:
    request = scheduler.add_request(prompt, count, Sampler(temperature=1.0, seed=3))
    return [token for token in request.steps() if token is not None], request.cached_tokens


# What a mode means


@pytest.mark.parametrize(
    ("family", "rule"), [("llama", "plain"), ("llama", "llama3"), ("qwen3", "linear"), ("smollm3", "plain")]
)
def test_every_mode_is_what_transformers_computes_with_its_mask(family: str, rule: str) -> None:
    with random_model(family, rule) as checkpoint:
        found = [*try_modes(family, session_of(checkpoint), Reference.open(checkpoint.folder))]
    assert [one.failures for one in found] == [[]] * len(MODES)
    assert [one.laid for one in found] == [1, 3, 3]
    prefix, block, link = (one.from_causal for one in found)
    assert prefix == 0
    assert block > link > 1e-3, "chunks that do not see each other give the answer of one text"


def test_every_mode_over_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each keeps its own heads of a chunk."""
    monkeypatch.setenv("VNPU_DEVICES", "2")
    with load("demo", decode="rows", devices=[0, 1], variants="8,32x512") as model:
        found = [*try_modes("demo", model.session_state.session(), Reference.open(DEMO_FOLDER))]
    assert [(one.laid, one.failures) for one in found] == [(1, []), (3, []), (3, [])]


def test_a_layout_says_who_sees_whom() -> None:
    found = masked_sequence([[1, 2], [3, 4], [5]], ChunkMode(True, 1))
    assert found.token_ids == [1, 2, 3, 3, 4, 5]
    assert found.positions == [0, 1, 2, 2, 3, 4]
    assert [[int(each) for each in row] for row in found.visible] == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],  # the link: all before it
        [0, 0, 0, 1, 0, 0],  # itself, as its own chunk sees it
        [0, 0, 0, 1, 1, 0],
        [1, 1, 1, 0, 1, 1],
    ]


def wrong_sign(patch: pytest.MonkeyPatch) -> None:
    """Keys are turned backwards."""

    def backwards(keys: Any, rows: Any) -> Any:
        half = rows.shape[-1] // 2
        return apply_rope(keys, np.concatenate([rows[..., :half], -rows[..., half:]], axis=-1))

    patch.setattr(chunks_module, "apply_rope", backwards)


def where_it_was_read(patch: pytest.MonkeyPatch) -> None:
    """A chunk keeps the positions that it had when it was read."""
    patch.setattr(
        chunks_module, "apply_rope", lambda keys, rows: apply_rope(keys, ROPE[0].layer(0)[: len(rows)])
    )


def not_turned(patch: pytest.MonkeyPatch) -> None:
    """Keys as they were before RoPE."""
    patch.setattr(chunks_module, "apply_rope", lambda keys, rows: keys)


def one_too_early(patch: pytest.MonkeyPatch) -> None:
    """Chunks but the first stand one token before their place."""
    own = ChunkRegistry.insert

    def insert(self: Any, chunk: Any, sequence: Any, first: int, end: int) -> None:
        tables = tuple(np.roll(table, 1 if first else 0, axis=0) for table in self._rope.tables)
        patch.setattr(self, "_rope", replace(self._rope, tables=tables))
        own(self, chunk, sequence, first, end)
        self._rope = ROPE[0]

    patch.setattr(ChunkRegistry, "insert", insert)


def links_are_laid(patch: pytest.MonkeyPatch) -> None:
    """No token of a chunk is run in full context."""
    own = ComposedPrompt.__init__
    patch.setattr(
        ComposedPrompt, "__init__", lambda self, parts, mode: own(self, parts, ChunkMode(mode.isolated))
    )


def last_chunk_laid_short(patch: pytest.MonkeyPatch) -> None:
    """The last page of a chunk is another's."""
    own = ChunkRegistry._read_pages

    def of_pages(self: Any, pages: Any, count: int) -> Any:
        return own(self, [*pages[:-1], (pages[-1] + 1) % self._pool.manager.page_count], count)

    patch.setattr(ChunkRegistry, "_read_pages", of_pages)


ROPE: list[Any] = []


@pytest.mark.parametrize(
    "fault", [wrong_sign, where_it_was_read, not_turned, one_too_early, links_are_laid, last_chunk_laid_short]
)
def test_the_gate_finds_chunks_inserted_wrongly(
    one: tuple[Session, Reference], fault: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, reference = one
    ROPE[:] = [session.model.rope]
    fault(monkeypatch)
    failed = [found.mode for found in try_modes("model", session, reference) if found.failures]
    assert failed, "no mode fails"
    assert "block+link-8" in failed


# One answer


def test_prefix_mode_is_one_text_to_the_bit(session: Session) -> None:
    """Against a KV cache of its own, which knows no pages and no chunks."""
    scheduler, registry = registry_on(session, 40)
    whole = [token for text in TEXTS for token in text]
    alone = list(generate_alone(session.model, whole, 4, Sampler(temperature=1.0, seed=3)))
    for least in (len(TEXTS[0]), len(whole) // PAGE_SIZE * PAGE_SIZE):  # laid, then found
        tokens, cached = answered(scheduler, composed(registry, TEXTS, "prefix"))
        assert (tokens, cached) == (alone, least)


@pytest.mark.parametrize("mode", MODES)
def test_no_bit_depends_on_how_a_composition_came_about(session: Session, mode: str, tmp_path: Path) -> None:
    scheduler, registry = registry_on(session, 40, tmp_path)
    wanted = bits_of(scheduler, composed(registry, TEXTS, mode))
    tokens, _ = answered(scheduler, composed(registry, TEXTS, mode))

    again, cached = answered(scheduler, composed(registry, TEXTS, mode))
    assert (again, cached >= 3 * PAGE_SIZE) == (tokens, True), "found by its pages"

    later, found = registry_on(session, 40, tmp_path)
    assert bits_of(later, composed(found, TEXTS, mode)) == wanted, "from files, in a later process"
    assert all(info.reads == 0 for info in found.chunks())

    small, kept = registry_on(session, 6)  # chunks do not stay in it
    assert bits_of(small, composed(kept, TEXTS, mode)) == wanted
    assert sum(info.reads for info in kept.chunks()) > len(TEXTS), "nothing was read anew"


def test_compositions_beside_each_other_have_the_answers_that_they_have_alone(session: Session) -> None:
    scheduler, registry = registry_on(session, 11)
    lists = [TEXTS, TEXTS[::-1], [TEXTS[1], TEXTS[2], TEXTS[1]], [TEXTS[3]]]
    wishes = [(texts, mode) for texts in lists for mode in MODES]
    alone = []
    for texts, mode in wishes:
        fresh, its = registry_on(session, 40)
        alone.append(answered(fresh, composed(its, texts, mode), 8)[0])
    asked = [
        scheduler.add_request(composed(registry, texts, mode), 8, Sampler(temperature=1.0, seed=3))
        for texts, mode in wishes
    ]
    finish(scheduler, asked)
    assert [request.token_ids for request in asked] == alone
    counts = scheduler.stats
    assert (counts.preemptions > 0, counts.inserted_tokens > 0, counts.rows / counts.steps > 4) == (True,) * 3


def test_attention_on_the_host_and_in_programs_agree_over_pages(one: tuple[Session, Reference]) -> None:
    """Decoded after a composition whose pages lie apart: in C++ over the pages, and in programs over what was
    gathered. Each has the same bits on any number of threads."""
    session, bits, rows = one[0], [], {}
    for decode in ("guide", "rows"):
        for threads in (1, 2):
            with with_threads(threads):
                rows[decode] = decoded_logits(session, decode)
            bits.append(rows[decode].tobytes())
    assert (bits[0], bits[2]) == (bits[1], bits[3])
    assert bits[0] != bits[2], "both went one way"
    apart = np.abs(rows["guide"] - rows["rows"])
    assert apart.max() < 0.05 * rows["rows"].std(), "further apart than bf16 rounds"


def decoded_logits(session: Session, decode: str) -> Any:
    """After three tokens that are fed, whatever the model would say, (3, vocab_size)."""
    model = with_decode_path(session.model, decode)
    pool = PagePool(model.config, 40, b"this model")
    pool.manager.retain(held := pool.manager.allocate(3))
    scheduler = Scheduler(model, pool, gathered_cache_for, session.recover)
    registry = ChunkRegistry(pool, model.rope, session.prefill_alone)
    pool.manager.release([held[1], held[1]])  # so that pages are no run
    forced = Forced((7, 8, 9))
    request = scheduler.add_request(composed(registry, TEXTS, "block"), 4, forced)
    assert len([*filter(None, request.steps())]) == 4
    return np.array(forced.__dict__["heard"][1:])


class Forced(Sampler):
    """Says these tokens, and keeps the logits."""

    def __init__(self, output_ids: tuple[int, ...]) -> None:
        super().__init__()
        self.__dict__.update(output_ids=[*output_ids, 10], heard=[])

    def __call__(self, logits: Any, prompt_ids: Any = (), token_ids: Any = ()) -> int:
        self.__dict__["heard"].append(np.asarray(logits, np.float32))
        return int(self.__dict__["output_ids"][len(token_ids)])


def test_a_hit_crosses_no_mode(one: tuple[Session, Reference], monkeypatch: pytest.MonkeyPatch) -> None:
    """And would be seen if it did."""

    def answers() -> list[list[int]]:
        scheduler, registry = registry_on(one[0], 40)
        bits = []
        for mode in MODES:
            request = scheduler.add_request(composed(registry, TEXTS, mode), 1, Heard())
            assert [*request.steps()][-1] is not None
            sampler: Any = request._sampler
            bits.append(sampler.heard)
        return bits

    wanted = answers()
    monkeypatch.setattr(ComposedPrompt, "key", None)
    assert len({tuple(each) for each in wanted}) == len(MODES)
    assert answers() != wanted


class Heard(Sampler):
    """Keeps the logits' bits."""

    def __call__(self, logits: Any, prompt_ids: Any = (), token_ids: Any = ()) -> int:
        self.__dict__["heard"] = [np.asarray(logits).tobytes()]
        return super().__call__(logits, prompt_ids, token_ids)


# The registry


def test_the_same_content_is_there_once_and_read_once(session: Session) -> None:
    scheduler, registry = registry_on(session, 40)
    name = registry.register(TEXTS[0])
    assert name == registry.register(tuple(TEXTS[0])) == chunk_id(TEXTS[0])
    assert name == hashlib.sha256(np.array(TEXTS[0], "<i8").tobytes()).hexdigest()
    for mode in MODES:
        answered(scheduler, composed(registry, [TEXTS[0], TEXTS[1]], mode), 1)
    first, second = registry.chunks()
    assert (first.id, first.tokens, first.reads, first.resident, first.pinned) == (name, 70, 1, True, False)
    assert (second.reads, second.uses) == (1, 0)
    assert first.uses > 0
    assert scheduler.pool.manager.free_count == 40, "a chunk that nobody reads is free"


def test_pinned_chunks_stay_and_others_go_and_come_back(session: Session) -> None:
    _, registry = registry_on(session, 6)
    kept = registry.register(TEXTS[0], pinned=True)  # 2 pages
    for text in drawn(150, 140, 150, seed=9):  # 3 pages each
        registry.register(text)
    assert [info.resident for info in registry.chunks()] == [True, False, False, True]
    with pytest.raises(PoolFullError, match="needed"):
        registry.register(drawn(300, seed=10)[0], pinned=True)
    assert len(registry.chunks()) == 4, "what found no room is not registered"
    registry.pin(kept, pinned=False)
    for text in drawn(190, 180, seed=11):
        registry.register(text)
    assert not registry.chunks()[0].resident
    assert registry._pool.manager.free_count == 6


def test_an_evicted_chunk_is_forgotten_and_answers_under_way_go_on(session: Session, tmp_path: Path) -> None:
    scheduler, registry = registry_on(session, 40, tmp_path)
    wanted, _ = answered(scheduler, composed(registry, TEXTS, "block"))
    request = scheduler.add_request(composed(registry, TEXTS, "block"), 4, Sampler(temperature=1.0, seed=3))
    for info in registry.chunks():
        registry.evict(info.id)
    assert registry.chunks() == []
    assert [*tmp_path.glob("*/*")] == []
    assert [token for token in request.steps() if token is not None] == wanted
    with pytest.raises(UserError, match="never registered, or evicted"):
        registry.chunk(chunk_id(TEXTS[0]))
    registry.register(TEXTS[0])
    assert [info.reads for info in registry.chunks()] == [1], "what the pool had of it is found no more"


def test_torn_files_are_reported_and_made_anew(one: tuple[Session, Reference], tmp_path: Path) -> None:
    _, registry = registry_on(one[0], 40, tmp_path)
    names = [registry.register(text) for text in TEXTS]
    (folder,) = tmp_path.iterdir()
    torn, damaged, no_ids, lost = (folder / name for name in names)
    whole = torn.with_suffix(".safetensors").read_bytes()
    torn.with_suffix(".safetensors").write_bytes(whole[:-9])
    bits = bytearray(damaged.with_suffix(".safetensors").read_bytes())
    bits[-20] ^= 1
    damaged.with_suffix(".safetensors").write_bytes(bits)
    no_ids.with_suffix(".json").write_text('{"token_ids": [1, 2')
    for suffix in (".json", ".safetensors"):
        lost.with_suffix(suffix).write_text("{}")

    scheduler, later = registry_on(one[0], 40, tmp_path)
    assert [info.id for info in later.chunks()] == sorted(names[:3])
    answered(scheduler, composed(later, TEXTS, "block"))
    notes = "\n".join(later.notes)
    for expected in (
        f"{torn}.safetensors is torn, or no sequence",
        f"{damaged}.safetensors is damaged: its checksum is another",
        f"chunk file {no_ids}.json is torn; looking for its tokens in the file beside it",
        f"chunk {lost.name} is lost: register its text anew",
    ):
        assert expected in notes
    assert {info.id: info.reads for info in later.chunks()} == dict(zip(names, (1, 1, 0, 1), strict=True))
    _, mended = registry_on(one[0], 40, tmp_path)
    for name in names:
        mended.pin(name)
    assert {info.reads for info in mended.chunks()} == {0}, "what was torn is whole again"


def test_a_chunk_of_another_model_is_refused(one: tuple[Session, Reference], tmp_path: Path) -> None:
    _, ours = registry_on(one[0], 40, tmp_path)
    name = ours.register(TEXTS[1])
    pool = PagePool(one[0].model.config, 40, b"other")
    other = {**one[0].provenance(one[0].model), "weights": "0123"}
    notes: list[str] = []
    theirs = ChunkRegistry(
        pool, one[0].model.rope, one[0].prefill_alone, ChunkFolder(tmp_path, other, notes.append)
    )
    assert theirs.chunks() == []
    with pytest.raises(UserError, match=r"made by another model \(weights .*register its text here"):
        theirs.chunk(name)


@pytest.mark.parametrize("mixed_up", [False, True])
def test_files_without_their_model_would_be_seen(
    one: tuple[Session, Reference], mixed_up: bool, tmp_path: Path, monkeypatch: Any
) -> None:
    """Two models of one size keep chunks in one folder. Without the fingerprint of the model, logits would be
    neither's."""
    with random_model("llama", "plain") as checkpoint:
        other = session_of(checkpoint)
        wanted = bits_of(*with_composition(other, None))
        if mixed_up:
            monkeypatch.setattr(Session, "provenance", lambda self, model: {"weights": "any"})
        bits_of(*with_composition(one[0], tmp_path))
        assert (bits_of(*with_composition(other, tmp_path)) != wanted) == mixed_up


def with_composition(session: Session, folder: Path | None) -> tuple[Scheduler, ComposedPrompt]:
    scheduler, registry = registry_on(session, 40, folder)
    return scheduler, composed(registry, TEXTS, "block")


def test_chunks_that_cannot_be_registered_or_composed(session: Session, tmp_path: Path) -> None:
    scheduler, registry = registry_on(session, 40)
    with pytest.raises(PromptError, match="a chunk is empty"):
        registry.register([])
    with pytest.raises(PromptError, match="vocabulary ends"):
        registry.register([10**6])
    with pytest.raises(PromptError, match="1200 tokens long and the model has 1024 positions"):
        scheduler.add_request(composed(registry, drawn(400, 400, 400, seed=2), "block"), 4, Sampler())
    for mode in ("blocks", "block+link-0", "block+link-", "block+link-x", "", "block+link--1"):
        with pytest.raises(UserError, match="see all before them"):
            parse_chunk_mode(mode)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot keep chunks in"):
        ChunkFolder(tmp_path / "file", {}, print)
    assert [str(parse_chunk_mode(mode)) for mode in MODES] == list(MODES)
