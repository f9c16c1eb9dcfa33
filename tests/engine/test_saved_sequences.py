"""A sequence that goes on in another session from a file: the same bits, or one line that says why not."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from aerie import Model, load
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.common.errors import UserError
from aerie.engine.page_manager import PoolFullError
from aerie.engine.page_pool import PagedSequence
from aerie.engine.weights_fingerprint import PIECE_BYTES, Fingerprint, weights_fingerprint
from tests import crafted

FIRST, NEXT = "What is the capital of France?", "And of Egypt?"
VARIANTS = "8,32x512"


def opened(**options: Any) -> Model:
    return load("demo", backend="virtual", variants=VARIANTS, **options)


def goes_on(model: Model, answer: str) -> tuple[tuple[int, ...], int, tuple[Any, ...]]:
    """What a model says next in a dialog, how much of it was known, and the keys and values that it keeps."""
    asked = [("user", FIRST), ("assistant", answer), ("user", NEXT)]
    made = model.generate([{"role": role, "content": content} for role, content in asked], max_tokens=6)
    kept = model._open().scheduler.last_sequence
    assert kept
    return made.token_ids, made.usage.cached_tokens, kept_bits(kept.sequence)


@pytest.mark.parametrize("decode", ["guide", "rows"])
def test_another_process_goes_on_with_the_same_bits(tmp_path: Path, decode: str) -> None:
    with opened(decode=decode) as model:
        answer = model.generate(FIRST)
        model.save(tmp_path / "dialog")
        expected = goes_on(model, answer.text)
    with opened(decode=decode) as other:
        other.generate("Who are you?")
        assert other.restore(str(tmp_path / "dialog")) > len(answer.prompt_token_ids)
        found = goes_on(other, answer.text)
        anew = other.generate("Who are you?").usage.cached_tokens
    assert found == expected
    assert found[1] >= len(answer.prompt_token_ids) > anew


SAMPLING: dict[str, Any] = {
    "temperature": 1.5,
    "seed": 7,
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.5,
    "logit_bias": {1496: -100.0, 1499: -100.0},
}


@pytest.mark.parametrize("decode", ["guide", "rows"])
def test_an_answer_goes_on_with_the_very_tokens_that_it_would_have_had(tmp_path: Path, decode: str) -> None:
    """In the same process and in another, where it was drawn with penalties: by its sampler's own state."""
    with opened(decode=decode) as model:
        whole = model.generate(FIRST, 24, **SAMPLING)
        first = model.generate(FIRST, 9, **SAMPLING)
        model.save(tmp_path / "answer")
        then = model.continue_answer(8).result()
        last = model.continue_answer(7).result()
    assert first.token_ids + then.token_ids + last.token_ids == whole.token_ids
    assert then.prompt_token_ids == first.prompt_token_ids + first.token_ids
    assert then.usage.cached_tokens == len(then.prompt_token_ids) - 1
    with opened(decode=decode) as other:
        other.generate("Who are you?")
        other.restore(tmp_path / "answer")
        found = other.continue_answer(15).result()
        assert first.token_ids + found.token_ids == whole.token_ids
        kpis = found.kpis
    assert (kpis.generate.samples, kpis.prompt.samples) == (1, 1)


def test_an_answer_that_cannot_continue_is_refused(tmp_path: Path) -> None:
    with opened() as model:
        with pytest.raises(UserError, match="there is no answer to continue"):
            model.continue_answer()
        answer = model.generate(FIRST, 40)
        assert answer.finish_reason.value == "stop"
        over = model.continue_answer(5).result()
        assert (over.token_ids, over.finish_reason) == ((), answer.finish_reason)
        model.generate(FIRST, 2)
        late = model.continue_answer(5)
        model.generate("Who are you?", 2)
        with pytest.raises(UserError, match="a newer request replaced its KV cache"):
            late.result()


def kept_bits(sequence: PagedSequence) -> tuple[Any, ...]:
    """All that it holds: counts, tokens, keys, values, keys before RoPE."""
    places, pool = sequence.pool_positions(0, sequence.length), sequence.pool
    arrays = [*(array for layer in pool.layers for array in layer), *pool.keys_before_rope]
    return sequence.dropped_tokens, sequence.token_ids[:], [array[:, places].tobytes() for array in arrays]


def last_sequence(model: Model) -> PagedSequence:
    last = model._open().scheduler.last_sequence
    assert last
    return last.sequence


def test_what_was_dropped_is_saved_too(tmp_path: Path) -> None:
    """A sequence that is past the end of the context, with its keys before RoPE."""
    with opened(decode="rows", context_end="shift") as model:
        model.generate([5, 77, 300] * 200, max_tokens=2)
        kept = last_sequence(model)
        assert kept.dropped_tokens
        before = kept_bits(kept)
        model.save(tmp_path / "dialog")
        model.restore(tmp_path / "dialog")
        again = last_sequence(model)
        assert again is not kept
        assert kept_bits(again) == before


@pytest.fixture(scope="module")
def demo_model() -> Iterator[Model]:
    with opened() as model:
        yield model


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "dialog"
    with opened() as model:
        model.generate(FIRST, max_tokens=2)
        model.save(path)
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"decode": "rows"},
            r"made by decode 'guide', and this is 'rows'; its keys and values hold for what",
        ),
        ({"numerics": "bfp16"}, "made by numerics 'exact', and this is 'bfp16'"),
        ({"context_end": "shift"}, "made by context-end 'Stop.*', and this is 'Shift.*'"),
    ],
)
def test_what_other_things_made_is_refused(saved: Path, options: dict[str, Any], message: str) -> None:
    with opened(**options) as model:
        model.generate(NEXT, max_tokens=1)
        before = model._open().scheduler.last_sequence
        with pytest.raises(UserError, match=message):
            model.restore(saved)
        assert model._open().scheduler.last_sequence is before


def changed(path: Path, to: Path, array: bool = False, **about: str) -> Path:
    """The file with other metadata, or with another number."""
    with safe_open(path, "np") as file:
        arrays = {name: file.get_tensor(name).copy() for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata() | about
    if array:
        arrays["keys.0"][0, 0, 0] += 1
    save_file(arrays, to, metadata)
    return to


def test_other_weights_and_programs_are_refused(saved: Path, tmp_path: Path) -> None:
    with opened() as model:
        session = model._open()
        session.fingerprint = lambda: "others"
        with pytest.raises(UserError, match=r"made by weights '[0-9a-f]{16}', and this is 'others'"):
            model.restore(saved)
        with pytest.raises(UserError, match="is damaged: its checksum is another; nothing was restored"):
            model.restore(changed(saved, tmp_path / "programs", programs="others"))
        with pytest.raises(UserError, match="is damaged: its checksum is another"):
            model.restore(changed(saved, tmp_path / "number", array=True))
        with pytest.raises(UserError, match="is no sequence that was saved by this version"):
            model.restore(changed(saved, tmp_path / "format", format="another"))


CRAFTED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "type": (
        lambda arrays, _: arrays.update({"keys.0": arrays["keys.0"].astype("int64")}),
        r"has I64 \(2, \d+, 64\) as keys.0, and that is U16 \(2, \d+, 64\) here; name a file that was saved",
    ),
    "array": (
        lambda arrays, _: arrays.pop("values.1"),
        r"has nothing as values.1, and that is U16 \(2, \d+, 64\) here; name a file that was saved",
    ),
    "tokens": (
        lambda arrays, _: arrays.update(token_ids=arrays["token_ids"][None]),
        r"has I64 \(1, \d+\) as token_ids, and that is I64 of one dimension here; name a file that was saved",
    ),
    "float": (
        lambda arrays, _: arrays.update(token_ids=arrays["token_ids"].astype("float32")),
        r"is no sequence that was saved by this version; name one that is",
    ),
    "below": (
        lambda arrays, _: arrays["token_ids"].__setitem__(0, -1),
        r"counts \d+ of \d+ tokens, of which none may be below 0; it is malformed: name a file that was "
        r"saved",
    ),
    "counts": (
        lambda _, about: about.update(dropped="-1"),
        r"has '-1' as dropped, which is not a number of tokens; name a file that was saved",
    ),
    "answer": (
        lambda _, about: about.update(answer='{"settings": {"logit_bias": {"x": 1}}}'),
        r"has a malformed answer \(invalid literal .* 'x'\); name a file that was saved",
    ),
    "state": (
        lambda _, about: about.update(answer=about["answer"].replace('"state": "', '"state": "x')),
        r"is no state of a sampler \(.*; give what Sampler.state gave",
    ),
    "prompt": (
        lambda _, about: about.update(answer=re.sub(r'"prompt": \[.*?\]', '"prompt": "x"', about["answer"])),
        r"has a malformed answer \('str' object cannot be interpreted as an integer\); name",
    ),
}
"""Changes to a file whose checksum is right, each with the error."""


@pytest.mark.parametrize("what", CRAFTED)
def test_a_crafted_file(saved: Path, tmp_path: Path, what: str, demo_model: Model) -> None:
    change, message = CRAFTED[what]
    arrays, about = crafted.read(saved)
    change(arrays, about)
    crafted.write(tmp_path / "crafted", arrays, about)
    with pytest.raises(UserError, match=message):
        demo_model.restore(tmp_path / "crafted")


def test_a_file_that_is_none(saved: Path, tmp_path: Path) -> None:
    torn, foreign = tmp_path / "torn", tmp_path / "foreign"
    torn.write_bytes(saved.read_bytes()[:-100])
    foreign.write_text("{}")
    with opened() as model:
        for path in (torn, foreign):
            with pytest.raises(UserError, match=rf"{path} is torn, or no sequence .*; name a file that was"):
                model.restore(path)
        with pytest.raises(UserError, match=r"cannot read .*missing .*; name a file that was saved"):
            model.restore(tmp_path / "missing")


def test_nothing_to_save_and_nowhere_to(tmp_path: Path) -> None:
    with opened() as model:
        with pytest.raises(UserError, match="there is no sequence to save: no answer was generated yet"):
            model.save(tmp_path / "dialog")
        model.generate(FIRST, max_tokens=1)
        with pytest.raises(UserError, match=re.escape("; name another file")):
            model.save(tmp_path / "no" / "folder")
        rows = model.embed_tokens(FIRST)
        model.generate(rows, max_tokens=1)
        with pytest.raises(UserError, match="a sequence with embeddings cannot be saved"):
            model.save(tmp_path / "dialog")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("size", [0, 1, 4096, 100_000, 2 * PIECE_BYTES + 77])
def test_the_mark_of_weights_is_of_every_byte(tmp_path: Path, size: int) -> None:
    rng, path, other = np.random.default_rng(size), tmp_path / "one", tmp_path / "other"
    content = bytearray(rng.bytes(size))
    path.write_bytes(content)
    marks = [weights_fingerprint([path])]
    assert weights_fingerprint([path]) == marks[0]
    for place in sorted({0, size - 1, *(int(n) for n in rng.integers(0, max(1, size), 3))}) if size else ():
        content[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
        marks.append(weights_fingerprint([path]))
    path.write_bytes(content + b"\0")
    other.write_bytes(content)
    marks += [weights_fingerprint([path]), weights_fingerprint([other]), weights_fingerprint([path, other])]
    assert len(set(marks)) == len(marks)


def test_a_fingerprint_is_made_once(tmp_path: Path, monkeypatch: Any) -> None:
    """For files that nobody wrote to since; those written to just now are not relied on."""
    path, store, made = tmp_path / "model.safetensors", tmp_path / "programs", list[Any]()
    path.write_bytes(b"weights")

    def counting(files: Any) -> str:
        made.append(files)
        return weights_fingerprint(files)

    monkeypatch.setattr("aerie.engine.weights_fingerprint.weights_fingerprint", counting)
    young = Fingerprint([path], store)
    assert young() == young() == Fingerprint([path], store)()
    assert len(made) == 2
    monkeypatch.setattr("aerie.engine.weights_fingerprint.COARSE_S", 0.0)
    first = Fingerprint([path], store)()
    assert Fingerprint([path], store)() == first
    assert len(made) == 3
    about = path.stat()
    path.write_bytes(b"Weights")
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert Fingerprint([path], store)() != first
    torn = next(store.glob("weights-*.json"))
    torn.write_bytes(b"{}")
    assert Fingerprint([path])() == Fingerprint([path], store)()
    loaded = Fingerprint([path], tmp_path / "model.safetensors")  # which is no folder
    assert loaded() == Fingerprint([path])()
    path.write_bytes(b"Others")
    for step in (loaded, young):
        with pytest.raises(UserError, match=r"model\.safetensors was changed after the model was loaded"):
            step()
    path.unlink()
    with pytest.raises(UserError, match=r"of the model's weights cannot be read any more \(No such file"):
        loaded()


def test_what_other_weights_computed_is_refused(tmp_path: Path) -> None:
    """Of which a single one is another: a number far from both ends of the file."""
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        shutil.copytree(DEMO_FOLDER, folder)
    weights = folders[1] / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2 + 5001] ^= 0x80
    weights.write_bytes(content)
    text, saved = "The capital of France is Paris. " * 12, [tmp_path / "sequence", tmp_path / "pages"]
    with load(folders[0], backend="virtual", variants=VARIANTS, decode="rows") as model:
        model.generate(text, max_tokens=2)
        model.save(saved[0])
        model.generate_batch([text], max_tokens=2)
        model.save_pages(text, saved[1])
    with load(folders[1], backend="virtual", variants=VARIANTS, decode="rows") as other:
        for restore, path in zip((other.restore, other.restore_pages), saved, strict=True):
            with pytest.raises(UserError, match=r"was made by weights '\w{16}', and this is '\w{16}'"):
                restore(path)
        weights.write_bytes(content)
        with pytest.raises(UserError, match="was changed after the model was loaded"):
            other.save_pages(text, tmp_path / "more")


@pytest.mark.parametrize("by", ["save", "save_pages"])
def test_many_requests_find_what_was_saved(tmp_path: Path, by: str) -> None:
    """By `save` of the decode path rows too, as the bits are the same."""
    prompt, path = [5 + each for each in range(150)], tmp_path / "beginning"
    with opened(decode="rows") as model:
        (expected,) = model.generate_batch([prompt], 6)
        if by == "save":
            model.generate(prompt, 6)
            model.save(path)
        else:
            assert model.save_pages(prompt, path) == 128
    with opened() as other:
        assert other.restore_pages(path) == 128
        (found,) = other.generate_batch([prompt], 6)
        pool = other._open().scheduler.pool
        assert pool.manager.free_count == pool.manager.page_count
    assert (found.token_ids, found.usage.cached_tokens) == (expected.token_ids, 128)


def test_pages_of_other_makers_and_none(tmp_path: Path) -> None:
    with opened() as model:
        with pytest.raises(
            UserError, match="the KV pool has no cached page of these 3 tokens: it caches full pages"
        ):
            model.save_pages([5, 6, 7], tmp_path / "none")
        model.generate([5, 6, 7], 2)
        model.save(tmp_path / "guide")
        with pytest.raises(UserError, match="guide was made by decode 'guide', and this is 'rows'"):
            model.restore_pages(tmp_path / "guide")
    with opened(decode="rows") as model:
        model.generate([5, 6, 7], 2)
        model.save(tmp_path / "short")
        with pytest.raises(UserError, match="short has no whole page of 64 tokens; give the prompt again"):
            model.restore_pages(tmp_path / "short")
    with opened(kv_pool=64) as small:
        prompt = [5 + each for each in range(150)]
        with opened(decode="rows") as model:
            model.generate_batch([prompt], 2)
            model.save_pages(prompt, tmp_path / "long")
        with pytest.raises(
            PoolFullError, match="has 1 of its 1 pages of 64 positions free, and 2 are needed"
        ):
            small.restore_pages(tmp_path / "long")
