"""What a model keeps in files: of its last sequence, and of chunks; tokens, keys and values, and what these
were made by.

Such a file is one of safetensors, written in one step. Its metadata say what made it, and have a checksum of
all that is in it. It goes on only with what made it: the same weights, programs, numerics and family of
decode, for else no bit of an answer could be relied on.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from aerie.common.errors import UserError
from aerie.common.store import write_atomic
from aerie.engine.chunks import chunk_id
from aerie.engine.embeddings import ids_among
from aerie.engine.grammar import Grammars
from aerie.engine.kv import KVCache, Layers, Said
from aerie.engine.numerics import bf16
from aerie.engine.sampler import Sampler

FORMAT, ANSWER, GRAMMAR = "aerie sequence 2", "answer", "grammar"
TOKENS, CHECKSUM, COUNTS = "token_ids", "sha256", ("in_blocks", "dropped")
IDS, ARRAYS, KINDS = ".json", ".safetensors", ("unturned", "values")

Arrays: TypeAlias = "dict[str, NDArray[Any]]"
Lazy: TypeAlias = "Mapping[str, NDArray[Any]]"
"""Arrays by name, which may be made anew whenever they are asked for: see OnDemand."""
MadeBy: TypeAlias = "Mapping[str, str]"
"""By what it is, as "numerics", a word for it that is equal where the bits of an answer are."""
TORN = (OSError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError, StopIteration)
"""What comes of reading JSON that is torn, or that somebody else wrote."""
DTYPES = {"int64": "I64", "uint16": "U16"}
"""What arrays of ours have, in the words of safetensors."""


class OnDemand(Mapping[str, NDArray[Any]]):
    """Arrays by name, of which each is there only while it is used: files may be as large as the memory."""

    def __init__(self, names: Iterable[str], made: Callable[[str], NDArray[Any]]) -> None:
        self._names, self._made = dict.fromkeys(names), made

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._made(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Stored(OnDemand):
    """Those of a file, which are known by their shapes before they are read."""

    def __init__(self, file: Any) -> None:
        super().__init__(file.keys(), file.get_tensor)
        self._file = file

    def form(self, name: str) -> tuple[str, tuple[int, ...]]:
        """An array's type, in the words of safetensors, and its shape; none where there is no such array."""
        if name not in set(self):
            return "", ()
        told = self._file.get_slice(name)
        return told.get_dtype(), tuple(told.get_shape())


def save_sequence(cache: KVCache, said: Said | None, path: Path, made_by: MadeBy) -> None:
    """Write what a cache holds, and the answer in it, if there is one. UserError for tokens that were given
    as embeddings, and where the file cannot be written, which leaves what was there."""
    if not all(isinstance(token, int | np.integer) for token in cache.token_ids):
        raise UserError("a sequence with embeddings cannot be saved: it has no token ids by which to go on")
    arrays = _held(cache.layers, cache.unturned, cache.length)
    arrays[TOKENS] = np.array(cache.token_ids, np.int64)
    write_file(path, arrays, made_by, cache.in_blocks, cache.dropped, _answer(said) if said else {})


def write_file(
    path: Path, arrays: Lazy, made_by: MadeBy, in_blocks: int, dropped: int, answer: Mapping[str, Any]
) -> None:
    """The file of a sequence. UserError where it cannot be written."""
    counts = dict(zip(COUNTS, (str(in_blocks), str(dropped)), strict=True))
    _write(path, arrays, {**made_by, **counts, ANSWER: json.dumps(answer)})


def _answer(said: Said) -> dict[str, Any]:
    """As what JSON has."""
    bias = {str(token): value for token, value in said.sampler.logit_bias.items()}
    grammar = said.sampler.grammar
    return {
        "prompt": [int(token) for token in ids_among(said.prompt)],
        "tokens": [*said.token_ids],
        "settings": {**said.sampler.settings, "logit_bias": bias, GRAMMAR: grammar.text if grammar else None},
        "state": said.sampler.state(),
    }


def _said(answer: Mapping[str, Any], grammars: Grammars) -> Said:
    """What `_answer` was made of."""
    settings = answer["settings"]
    grammar = grammars.again(settings[GRAMMAR]) if settings.get(GRAMMAR) else None
    bias = {int(token): value for token, value in settings["logit_bias"].items()}
    sampler = Sampler(**{**settings, "logit_bias": bias, GRAMMAR: grammar})
    sampler.restore(answer["state"])
    prompt, tokens = ([operator.index(token) for token in answer[name]] for name in ("prompt", "tokens"))
    return Said(prompt, tokens, sampler)


def restore_sequence(
    new_cache: Callable[[int], KVCache], path: Path, made_by: MadeBy, grammars: Grammars
) -> tuple[KVCache, Said | None]:
    """A new cache with what `save_sequence` wrote, and the answer in it. UserError for another file, a torn
    one, and one that other things made; nothing else is changed then."""
    file = SequenceFile(path, made_by)
    said = file.said(grammars)
    cache = new_cache(len(file.token_ids))
    file.check(_held(cache.layers, cache.unturned, 0))
    cache.reserve(len(file.token_ids))
    for name, to in _held(cache.layers, cache.unturned, len(file.token_ids)).items():
        to[...] = file.arrays[name]
    cache.holds(file.token_ids, file.in_blocks, file.dropped)
    return cache, said


class SequenceFile:
    """The file of a sequence: its arrays, each read when it is asked for, its tokens, and counts of them as a
    KVCache has. UserError as restore_sequence, and for what nobody saves so, whose checksum is right."""

    def __init__(self, path: Path, made_by: MadeBy) -> None:
        self._path = path
        self.arrays, self._about = _opened(path)
        for what, ours in made_by.items():
            if self._about.get(what) != ours:
                raise UserError(
                    f"{path} was made by {what} {self._about.get(what)!r}, and this is {ours!r}; its keys "
                    "and values hold for what made them alone: load that, or give the prompt again"
                )
        dtype, shape = self.arrays.form(TOKENS)
        if dtype != "I64" or len(shape) != 1:
            raise self._wrong(TOKENS, dtype, shape, "I64 of one dimension")
        self.token_ids: list[int] = self.arrays[TOKENS].tolist()
        self.in_blocks, self.dropped = (self._count(name) for name in COUNTS)
        if min(self.token_ids, default=0) < 0 or self.in_blocks > len(self.token_ids):
            raise UserError(
                f"{path} counts {self.in_blocks} of {len(self.token_ids)} tokens, of which none is below 0; "
                "nobody saves so: name a file that was saved"
            )

    def check(self, alike: Lazy) -> None:
        """UserError unless it has all of these arrays, each (kv_heads, positions, head_dim) with as many
        positions as there are tokens."""
        for name, array in alike.items():
            (heads, _, head_dim), (dtype, shape) = array.shape, self.arrays.form(name)
            if (dtype, shape) != ("U16", expected := (heads, len(self.token_ids), head_dim)):
                raise self._wrong(name, dtype, shape, f"U16 {expected}")

    def said(self, grammars: Grammars) -> Said | None:
        """The answer in it, if there is one. UserError for what is none."""
        try:
            answer = json.loads(self._about[ANSWER])
            return _said(answer, grammars) if answer else None
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(
                f"{self._path} has an answer that nobody saves so ({error}); name a file that was saved"
            ) from None

    def _count(self, name: str) -> int:
        told = self._about.get(name, "")
        if not (told.isascii() and told.isdecimal() and len(told) < 12):
            raise UserError(
                f"{self._path} has {told[:40]!r} as {name}, which is no count of tokens; name a file that "
                "was saved"
            )
        return int(told)

    def _wrong(self, name: str, dtype: str, shape: tuple[int, ...], expected: str) -> UserError:
        has = f"{dtype} {shape}" if dtype else "nothing"
        return UserError(
            f"{self._path} has {has} as {name}, and that is {expected} here; name a file that was saved"
        )


class ChunkFolder:
    """Chunks in a folder, by what made them: of each the token ids, and keys before RoPE and values.

    made_by: as for save_sequence; chunks of others are in folders beside. note: is told of files that are
    torn. UserError for a folder that cannot be used.
    """

    def __init__(self, folder: Path, made_by: MadeBy, note: Callable[[str], None]) -> None:
        mark = hashlib.sha256(repr(sorted(made_by.items())).encode()).hexdigest()[:16]
        self._above, self._own, self._made_by, self._note = folder, folder / mark, made_by, note
        try:
            self._own.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot keep chunks in {folder} ({error.strerror}); name another folder"
            ) from None

    def tokens(self) -> dict[str, tuple[int, ...]]:
        """Token ids of every chunk, by its id. A torn file of them is told, and made anew from the chunk's
        other file where that is whole."""
        names = sorted({path.stem for path in self._own.iterdir() if path.suffix in (IDS, ARRAYS)})
        found = ((name, self._token_ids(name)) for name in names)
        return {name: token_ids for name, token_ids in found if token_ids}

    def _token_ids(self, name: str) -> tuple[int, ...]:
        path = self._own / (name + IDS)
        with suppress(*TORN):
            token_ids = tuple(map(operator.index, json.loads(path.read_text())[TOKENS]))
            if chunk_id(token_ids) == name:
                return token_ids
        self._note(f"chunk file {path} is torn; looking for its tokens in the file beside it")
        arrays = self._whole(name)
        if not arrays or chunk_id(arrays[TOKENS].tolist()) != name:
            self._note(f"chunk {name} is lost: register its text anew")
            return ()
        self._write_ids(name, arrays[TOKENS].tolist())
        return tuple(arrays[TOKENS].tolist())

    def read(self, name: str) -> Layers | None:
        """Keys before RoPE and values of each layer, (kv_heads, tokens, head_dim); None where there is no
        whole file of this chunk, which is told unless there is none at all."""
        if not (self._own / (name + ARRAYS)).exists() or (arrays := self._whole(name)) is None:
            return None
        count = sum(key.startswith("values.") for key in arrays)
        bits = ((arrays[f"unturned.{layer}"], arrays[f"values.{layer}"]) for layer in range(count))
        return [(keys.view(bf16), values.view(bf16)) for keys, values in bits]

    def write(self, name: str, token_ids: Sequence[int], layers: Layers) -> None:
        """Keep a chunk. UserError where that cannot be written."""
        arrays: Arrays = {TOKENS: np.array(token_ids, np.int64)}
        for layer, pair in enumerate(layers):
            for kind, array in zip(KINDS, pair, strict=True):
                arrays[f"{kind}.{layer}"] = np.ascontiguousarray(array).view(np.uint16)
        self._write_ids(name, token_ids)
        _write(self._own / (name + ARRAYS), arrays, self._made_by)

    def _write_ids(self, name: str, token_ids: Sequence[int]) -> None:
        content = json.dumps({TOKENS: [*token_ids], "made_by": dict(self._made_by)}).encode()
        path = self._own / (name + IDS)
        try:
            write_atomic(path, lambda file: file.write(content), mode=0o600)
        except OSError as error:
            raise UserError(f"cannot write {path} ({error.strerror}); name another folder") from None

    def delete(self, name: str) -> None:
        """Forget a chunk."""
        for kind in (IDS, ARRAYS):
            (self._own / (name + kind)).unlink(missing_ok=True)

    def maker(self, name: str) -> str | None:
        """What other model made a chunk with this id, in a word that is not ours; None where none did."""
        others = (path for path in self._above.glob(f"*/{name}{IDS}") if path.parent != self._own)
        for path in others:
            with suppress(*TORN):
                made_by = json.loads(path.read_text())["made_by"]
                return next(
                    f"{what} {made_by[what]}" for what, ours in self._made_by.items() if made_by[what] != ours
                )
        return None

    def _whole(self, name: str) -> Lazy | None:
        """The arrays of a chunk's file; None, and told, where it is not whole and ours."""
        path = self._own / (name + ARRAYS)
        try:
            arrays, about = _opened(path)
        except UserError as error:
            self._note(f"{error}; the chunk is read anew")
            return None
        if {what: about.get(what) for what in self._made_by} == dict(self._made_by):
            return arrays
        self._note(f"{path} was made by another model; the chunk is read anew")
        return None


def _held(layers: Iterable[tuple[Any, Any]], unturned: Sequence[Any], length: int) -> Arrays:
    """Views on what is held, as bits, by name."""
    kinds = {"keys": [keys for keys, _ in layers], "values": [values for _, values in layers]}
    found = {**kinds, "unturned": unturned}
    return {
        f"{kind}.{layer}": array[:, :length].view(np.uint16)
        for kind, arrays in found.items()
        for layer, array in enumerate(arrays)
    }


def _write(path: Path, arrays: Lazy, about: MadeBy) -> None:
    """UserError where that is not possible; what was there stays then."""
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


def _header(arrays: Lazy, about: MadeBy) -> bytes:
    """How a file begins: https://huggingface.co/docs/safetensors, "Format". The library wants all bytes of
    all arrays at once."""
    told: dict[str, Any] = {"__metadata__": about}
    first = 0
    for name in _order(arrays):
        array = arrays[name]
        end = first + array.nbytes
        told[name] = {"dtype": DTYPES[array.dtype.name], "shape": array.shape, "data_offsets": [first, end]}
        first = end
    text = json.dumps(told).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _order(arrays: Lazy) -> list[str]:
    """Of arrays in a file: the wide numbers first, so that each is aligned."""
    return sorted(arrays, key=lambda name: (name != TOKENS, name))


def _opened(path: Path) -> tuple[Stored, dict[str, str]]:
    """The arrays, each read when it is asked for, and the metadata. UserError for what is no whole file of
    ours."""
    try:
        file: Any = safe_open(path, "np")
        about, arrays = file.metadata() or {}, Stored(file)
        known = all(arrays.form(name)[0] in DTYPES.values() for name in arrays)
    except OSError as error:
        raise UserError(
            f"cannot read {path} ({error.strerror or error}); name a file that was saved"
        ) from None
    except SafetensorError as error:
        raise UserError(f"{path} is torn, or no sequence ({error}); name a file that was saved") from None
    if about.get("format") != FORMAT or not known:
        raise UserError(f"{path} is no sequence that was saved by this version; name one that is")
    if about.pop(CHECKSUM, "") != _checksum(arrays, about):
        raise UserError(f"{path} is damaged: its checksum is another; nothing was restored")
    return arrays, about


def _checksum(arrays: Lazy, about: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(sorted(about.items())).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
