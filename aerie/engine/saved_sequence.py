"""Saved sequences: tokens, keys and values of a conversation or of cached pages, with their provenance.

A file has the format safetensors and is written atomically. Its metadata has the provenance and a checksum of
everything. A file can be restored only with the same weights, programs, numerics and decode path, because
otherwise the bits of an answer would differ.

Full pages with a reference are never written again. So they can be saved while the model runs: only taking
and releasing the references needs the model's thread. A file is restored into pages without keys, which get
their keys when everything is written.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from aerie.common.errors import UserError
from aerie.common.store import write_atomic
from aerie.engine.embeddings import Token, ids_only
from aerie.engine.grammar import GrammarCompiler
from aerie.engine.page_manager import PAGE_SIZE
from aerie.engine.page_pool import PagedSequence, PagePool
from aerie.engine.requests import AnswerState
from aerie.engine.sampler import Sampler
from aerie.engine.thinking_plan import ThinkingPlan

FORMAT, ANSWER, GRAMMAR, THINKING = "aerie sequence 2", "answer", "grammar", "thinking"
TOKENS, CHECKSUM, COUNTS = "token_ids", "sha256", ("in_blocks", "dropped")
BEHIND = "behind_window"
"""How many first positions have zeros for keys and values, because no layer sees them any more."""

Arrays: TypeAlias = "dict[str, NDArray[Any]]"
ArraysByName: TypeAlias = "Mapping[str, NDArray[Any]]"
"""Arrays by name. Each access may read or make the array again: see LazyArrays."""
Provenance: TypeAlias = "Mapping[str, str]"
"""What the bits depend on: names, such as "numerics", with a value that is equal if the bits are."""
DTYPES = {"int64": "I64", "uint16": "U16"}
"""The dtypes of our arrays, as safetensors names them."""


class LazyArrays(Mapping[str, NDArray[Any]]):
    """Arrays by name, each in memory only while it is used: files can be as large as the memory."""

    def __init__(self, names: Iterable[str], load: Callable[[str], NDArray[Any]]) -> None:
        self._names, self._load = dict.fromkeys(names), load

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class FileArrays(LazyArrays):
    """The arrays of a file. Their dtypes and shapes are known before they are read."""

    def __init__(self, file: Any) -> None:
        super().__init__(file.keys(), file.get_tensor)
        self._file = file

    def dtype_and_shape(self, name: str) -> tuple[str, tuple[int, ...]]:
        """An array's dtype, as safetensors names it, and its shape; ("", ()) if there is no such array."""
        if name not in set(self):
            return "", ()
        info = self._file.get_slice(name)
        return info.get_dtype(), tuple(info.get_shape())


def save_sequence(
    sequence: PagedSequence, answer: AnswerState | None, path: Path, provenance: Provenance
) -> None:
    """Write a sequence, and its answer if there is one. Any thread may call it while no other code writes to
    the sequence's pages. Raises UserError for tokens that are embeddings, and if the file cannot be written,
    which leaves the old file."""
    if not all(isinstance(token, int | np.integer) for token in sequence.token_ids):
        raise UserError("a sequence with embeddings cannot be saved: it has no token ids by which to go on")
    first, arrays = sequence.first_held, _bits(sequence.pool)
    positions = sequence.pool_positions(first, sequence.length - first)

    def load(name: str) -> NDArray[Any]:
        if name == TOKENS:
            return np.array(sequence.token_ids, np.int64)
        array = arrays[name]
        return np.pad(array[:, _rows(array, sequence.pool, positions)], ((0, 0), (first, 0), (0, 0)))

    counts = dict(zip(COUNTS, (str(sequence.reusable_length), str(sequence.dropped_tokens)), strict=True))
    counts |= {BEHIND: str(first)} if first else {}
    metadata = {**provenance, **counts, ANSWER: json.dumps(_answer_json(answer) if answer else {})}
    write_arrays(path, LazyArrays([TOKENS, *arrays], load), metadata)


def cached_sequence(pool: PagePool, tokens: Sequence[Token]) -> PagedSequence:
    """A sequence with the cached pages of these tokens, from the first on. Model thread only. Release it with
    `release`, or with the pool's `release_later` from any thread. Raises UserError if no page is cached."""
    sequence = PagedSequence(pool)
    if not sequence.match_prefix((*tokens, 0)):  # the last token is none that is looked for
        raise UserError(
            f"the KV pool has no cached page of these {len(tokens)} tokens: it caches full pages of "
            f"{PAGE_SIZE} tokens, and evicts them when it is full; request the answer again, then save"
        )
    return sequence


def _answer_json(answer: AnswerState) -> dict[str, Any]:
    """The answer as JSON."""
    bias = {str(token): value for token, value in answer.sampler.logit_bias.items()}
    grammar, thinking = answer.sampler.grammar, answer.sampler.thinking
    return {
        "prompt": [int(token) for token in ids_only(answer.prompt)],
        "tokens": [*answer.token_ids],
        "settings": {
            **answer.sampler.settings,
            "logit_bias": bias,
            GRAMMAR: grammar.text if grammar else None,
            THINKING: thinking.to_json() if thinking else None,
        },
        "state": answer.sampler.state(),
    }


def _parse_answer(answer: Mapping[str, Any], grammars: GrammarCompiler) -> AnswerState:
    """The answer from `_answer_json`."""
    settings = answer["settings"]
    grammar = grammars.recompile(settings[GRAMMAR]) if settings.get(GRAMMAR) else None
    plan = settings.get(THINKING)
    thinking = ThinkingPlan.from_json(plan, grammars.tokenizer, grammars.vocab_size) if plan else None
    bias = {int(token): value for token, value in settings["logit_bias"].items()}
    sampler = Sampler(**{**settings, "logit_bias": bias, GRAMMAR: grammar, THINKING: thinking})
    sampler.restore(answer["state"])
    prompt, tokens = ([operator.index(token) for token in answer[name]] for name in ("prompt", "tokens"))
    return AnswerState(prompt, tokens, sampler)


def restore_sequence(
    pool: PagePool, path: Path, provenance: Provenance, grammars: GrammarCompiler
) -> tuple[PagedSequence, AnswerState | None]:
    """Read a sequence that `save_sequence` wrote, and its answer. Raises UserError for another format, a
    damaged file and another provenance, and PoolFullError; nothing else changes then."""
    file = SequenceFile(path, provenance)
    answer = file.answer(grammars)
    file.check(_bits(pool))
    file.check_window(pool.window)
    sequence = PagedSequence(pool)
    sequence.start_behind_window(file.token_ids, file.first_held, file.reusable_length)
    sequence.reserve(len(file.token_ids) - file.first_held)
    try:
        file.fill(sequence, len(file.token_ids))
    except BaseException:
        sequence.release()
        raise
    sequence.advance(file.token_ids[sequence.length : file.reusable_length])
    sequence.advance(file.token_ids[sequence.length :], reusable=False)
    sequence.dropped_tokens = file.dropped_tokens
    return sequence, answer


class SequenceFile:
    """A file of a sequence: its arrays, each read at its first use, its tokens, and its counts of them.
    Raises UserError as restore_sequence, and for malformed content with a right checksum."""

    def __init__(self, path: Path, provenance: Provenance) -> None:
        self._path = path
        self.arrays, self._about = open_arrays(path)
        for what, ours in provenance.items():
            if self._about.get(what) != ours:
                raise UserError(
                    f"{path} was made by {what} {self._about.get(what)!r}, and this is {ours!r}; its keys "
                    "and values hold for what made them alone: load that, or give the prompt again"
                )
        dtype, shape = self.arrays.dtype_and_shape(TOKENS)
        if dtype != "I64" or len(shape) != 1:
            raise self._wrong(TOKENS, dtype, shape, "I64 of one dimension")
        self.token_ids: list[int] = self.arrays[TOKENS].tolist()
        self.reusable_length, self.dropped_tokens = (self._count(name) for name in COUNTS)
        self.first_held = self._count(BEHIND) if BEHIND in self._about else 0
        is_cut = self.first_held % PAGE_SIZE or self.first_held > len(self.token_ids)
        if min(self.token_ids, default=0) < 0 or self.reusable_length > len(self.token_ids) or is_cut:
            raise UserError(
                f"{path} counts {self.reusable_length} of {len(self.token_ids)} tokens, of which none may "
                "be below 0; "
                "it is malformed: name a file that was saved"
            )

    def check(self, names: ArraysByName) -> None:
        """Raises UserError unless the file has all of these arrays of a pool, each (heads, rows, elements)
        with one row for each token, or for each full page."""
        capacity = max((array.shape[1] for array in names.values()), default=0)
        for name, array in names.items():
            (heads, rows, head_dim), (dtype, shape) = array.shape, self.arrays.dtype_and_shape(name)
            count = len(self.token_ids) // (capacity // rows)
            if (dtype, shape) != ("U16", expected := (heads, count, head_dim)):
                raise self._wrong(name, dtype, shape, f"U16 {expected}")

    def check_window(self, window: int | None) -> None:
        """Raises UserError unless a token after all of these sees positions with keys and values only, where
        no layer sees farther back than `window`."""
        if self.first_held > (0 if window is None else max(0, len(self.token_ids) - window + 1)):
            raise UserError(
                f"{self._path} has no keys and values of its first {self.first_held} tokens, and this model "
                "attends to some of them; it is malformed: name a file that was saved"
            )

    def answer(self, grammars: GrammarCompiler) -> AnswerState | None:
        """The answer in the file, or None. Raises UserError if it is malformed."""
        try:
            answer = json.loads(self._about[ANSWER])
            return _parse_answer(answer, grammars) if answer else None
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(
                f"{self._path} has a malformed answer ({error}); name a file that was saved"
            ) from None

    def fill(self, sequence: PagedSequence, count: int) -> None:
        """Write the first `count` positions into a sequence's pages, which may hold the first of them
        already."""
        first = sequence.length
        positions = sequence.pool_positions(first, count - first)
        for name, array in _bits(sequence.pool).items():
            rows = _rows(array, sequence.pool, positions)
            stop = count // sequence.pool.positions_of_row(array)
            array[:, rows] = self.arrays[name][:, stop - len(rows) : stop]

    def _count(self, name: str) -> int:
        text = self._about.get(name, "")
        if not (text.isascii() and text.isdecimal() and len(text) < 12):
            raise UserError(
                f"{self._path} has {text[:40]!r} as {name}, which is not a number of tokens; name a file "
                "that was saved"
            )
        return int(text)

    def _wrong(self, name: str, dtype: str, shape: tuple[int, ...], expected: str) -> UserError:
        has = f"{dtype} {shape}" if dtype else "nothing"
        return UserError(
            f"{self._path} has {has} as {name}, and that is {expected} here; name a file that was saved"
        )


class PagesFile:
    """A file whose full reusable pages are restored into a pool. Raises UserError, as SequenceFile, for
    another format, a damaged file, and another provenance."""

    def __init__(self, path: Path, provenance: Provenance) -> None:
        self._file = SequenceFile(path, provenance)
        count = 0 if self._file.dropped_tokens else self._file.reusable_length // PAGE_SIZE * PAGE_SIZE
        if self._file.first_held:
            raise UserError(
                f"{path} has no keys and values of its first {self._file.first_held} tokens, which no layer "
                "saw any more when it was saved, so no prompt can share its pages; give the prompt again"
            )
        if not count:
            raise UserError(f"{path} has no whole page of {PAGE_SIZE} tokens; give the prompt again")
        self.token_ids = self._file.token_ids[:count]

    def allocate(self, pool: PagePool) -> PagedSequence:
        """A sequence with the pages that the pool has already, and new pages for the rest. Model thread only.
        Raises PoolFullError if too few are free, and UserError if the file's arrays do not fit the pool;
        nothing changes then."""
        self._file.check(_bits(pool))
        sequence = PagedSequence(pool)
        cached = sequence.match_prefix((*self.token_ids, 0))
        try:
            sequence.reserve(len(self.token_ids) - cached)
        except UserError:
            sequence.release()
            raise
        return sequence

    def fill(self, sequence: PagedSequence) -> None:
        """Write the rest into these pages. Any thread may call it."""
        self._file.fill(sequence, len(self.token_ids))

    def publish(self, sequence: PagedSequence) -> None:
        """Give the pages their keys, so that prompts find them. Model thread only."""
        sequence.advance(self.token_ids[sequence.length :])
        sequence.release()


def _bits(pool: PagePool) -> Arrays:
    """All arrays of a pool, (heads, positions, elements) each, by their names in files: as uint16, which
    numpy copies without the GIL."""
    kinds = {"keys": [keys for keys, _ in pool.layers], "values": [values for _, values in pool.layers]}
    arrays_by_kind = {**kinds, "unturned": pool.keys_before_rope, "states": pool.states}
    return {
        f"{kind}.{layer}": array.view(np.uint16)
        for kind, arrays in arrays_by_kind.items()
        for layer, array in enumerate(arrays)
    }


def _rows(array: NDArray[Any], pool: PagePool, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows of an array that these positions in the pool have, of a sequence from the start of a page on:
    one for each, or for the last of each full page."""
    every = pool.positions_of_row(array)
    return positions[every - 1 :: every] // every


def write_arrays(path: Path, arrays: ArraysByName, about: Provenance) -> None:
    """Write a file of arrays and metadata. Raises UserError if that is not possible; the old file stays
    then."""
    about = {**about, "format": FORMAT}
    header = _header(arrays, {**about, CHECKSUM: _checksum(arrays, about)})

    def fill(file: BinaryIO) -> None:
        file.write(header)
        for name in _order(arrays):
            file.write(np.ascontiguousarray(arrays[name]).data)

    try:
        write_atomic(path, fill, mode=0o600)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); name another file") from None


def _header(arrays: ArraysByName, about: Provenance) -> bytes:
    """The start of a file: https://huggingface.co/docs/safetensors, "Format". The library would need all
    arrays in memory at the same time."""
    header: dict[str, Any] = {"__metadata__": about}
    first = 0
    for name in _order(arrays):
        array = arrays[name]
        end = first + array.nbytes
        header[name] = {"dtype": DTYPES[array.dtype.name], "shape": array.shape, "data_offsets": [first, end]}
        first = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _order(arrays: ArraysByName) -> list[str]:
    """The order of arrays in a file: int64 first, so that each is aligned."""
    return sorted(arrays, key=lambda name: (name != TOKENS, name))


def open_arrays(path: Path) -> tuple[FileArrays, dict[str, str]]:
    """The arrays, each read at its first use, and the metadata. Raises UserError for a file that is
    incomplete or not ours."""
    try:
        file: Any = safe_open(path, "np")
        about, arrays = file.metadata() or {}, FileArrays(file)
        is_known = all(arrays.dtype_and_shape(name)[0] in DTYPES.values() for name in arrays)
    except OSError as error:
        raise UserError(
            f"cannot read {path} ({error.strerror or error}); name a file that was saved"
        ) from None
    except SafetensorError as error:
        raise UserError(f"{path} is torn, or no sequence ({error}); name a file that was saved") from None
    if about.get("format") != FORMAT or not is_known:
        raise UserError(f"{path} is no sequence that was saved by this version; name one that is")
    if about.pop(CHECKSUM, "") != _checksum(arrays, about):
        raise UserError(f"{path} is damaged: its checksum is another; nothing was restored")
    return arrays, about


def _checksum(arrays: ArraysByName, about: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(sorted(about.items())).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
