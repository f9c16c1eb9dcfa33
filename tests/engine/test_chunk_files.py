"""Files of chunks that are torn or changed anywhere: what was kept, to the bit, or a line and nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from aerie.engine.chunk_files import ChunkFolder
from aerie.engine.chunks import chunk_id
from aerie.engine.numerics import bf16

TOKENS = (5, 0, 1499, 7)
NAME = chunk_id(TOKENS)
MADE_BY = {"weights": "0123", "numerics": "exact"}
LAYERS = [
    (
        np.random.default_rng(n).standard_normal((2, 4, 8)).astype(bf16),
        np.random.default_rng(n + 1).standard_normal((2, 4, 8)).astype(bf16),
    )
    for n in (0, 2)
]
HOSTILE = (
    *("[" * 99999, "null", "[]", '{"token_ids": null}', '{"token_ids": {}}', '{"token_ids": [[5]]}', "\xff"),
    *(f'{{"token_ids": [{first}, 0, 1499, 7]}}' for first in ("5.0", "5e0", '"5"', "-5", "1" * 30, "NaN")),
    '{"token_ids": [5, false, 1499, 7.0]}',
)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder with one chunk, of which the files are in the folder of its model."""
    ChunkFolder(tmp_path, MADE_BY, print).write(NAME, TOKENS, LAYERS)
    return tmp_path


def damages(content: bytes) -> Iterator[bytes]:
    """Cut, with a bit that is another, with a byte more; at places drawn, and at the ends."""
    drawn = random.Random(content)
    for place in (0, 1, 7, 8, 9, len(content) - 1, *drawn.sample(range(len(content)), 60)):
        yield content[:place]
        yield content[:place] + bytes([content[place] ^ 1 << drawn.randrange(8)]) + content[place + 1 :]
    yield content + b"\0"


def check(folder: Path) -> None:
    """A chunk is as it was saved, or missing with a note."""
    notes: list[str] = []
    files = ChunkFolder(folder, MADE_BY, notes.append)
    found = files.tokens()
    assert found in ({NAME: TOKENS}, {})
    assert all(type(token) is int for token in found.get(NAME, ()))
    assert found or any("is lost: register its text anew" in note for note in notes)
    layers = files.read(NAME)
    if layers is None:
        assert any("the chunk is read anew" in note for note in notes)
    else:
        np.testing.assert_array_equal(np.array(layers).view(np.uint16), np.array(LAYERS).view(np.uint16))
    assert all("\n" not in note for note in notes)
    ChunkFolder(folder, {**MADE_BY, "weights": "other"}, print).other_model(NAME)


@pytest.mark.parametrize("kind", [".json", ".safetensors"])
def test_files_damaged_anywhere(kept: Path, kind: str) -> None:
    (path,) = kept.glob(f"*/*{kind}")
    whole = {file: file.read_bytes() for file in path.parent.iterdir()}
    for content in damages(whole[path]):
        for file, before in whole.items():
            file.write_bytes(content if file == path else before)
        check(kept)


@pytest.mark.parametrize("content", HOSTILE)
def test_tokens_that_nobody_writes(kept: Path, content: str) -> None:
    """They are found in the other file, and are whole numbers."""
    (path,) = kept.glob("*/*.json")
    path.write_bytes(content.encode("latin-1"))
    ChunkFolder(kept, {**MADE_BY, "weights": "other"}, print).other_model(NAME)
    check(kept)
    assert json.loads(path.read_text())["token_ids"] == list(TOKENS), "made anew from the file beside it"


def test_a_folder_in_the_place_of_a_file(kept: Path) -> None:
    for path in [*kept.glob("*/*")]:
        path.unlink()
        path.mkdir()
    check(kept)
