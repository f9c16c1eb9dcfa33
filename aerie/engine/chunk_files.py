"""Chunks in files: token ids as JSON; keys before RoPE and values in the format of saved_sequence.py."""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from aerie.common.errors import UserError
from aerie.common.store import write_atomic
from aerie.engine.chunks import chunk_id
from aerie.engine.kv_cache import Layers
from aerie.engine.numerics import bf16
from aerie.engine.saved_sequence import TOKENS, Arrays, ArraysByName, Provenance, open_arrays, write_arrays

IDS, ARRAYS, KINDS = ".json", ".safetensors", ("unturned", "values")
MALFORMED_FILE_ERRORS = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    RecursionError,
    StopIteration,
)
"""Exceptions from reading JSON that is damaged or has another form."""


class ChunkFolder:
    """Chunks in a folder: token ids, keys before RoPE and values of each.

    provenance: as for save_sequence; chunks of other models are in other subfolders. note: called with a line
    about each damaged file. Raises UserError if the folder cannot be used.
    """

    def __init__(self, folder: Path, provenance: Provenance, note: Callable[[str], None]) -> None:
        fingerprint = hashlib.sha256(repr(sorted(provenance.items())).encode()).hexdigest()[:16]
        self._above, self._own, self._provenance, self._note = folder, folder / fingerprint, provenance, note
        try:
            self._own.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot keep chunks in {folder} ({error.strerror}); name another folder"
            ) from None

    def tokens(self) -> dict[str, tuple[int, ...]]:
        """Token ids of every chunk, by its id. A damaged file of ids is reported, and written again from the
        chunk's other file if that is complete."""
        names = sorted({path.stem for path in self._own.iterdir() if path.suffix in (IDS, ARRAYS)})
        token_ids_by_name = ((name, self._token_ids(name)) for name in names)
        return {name: token_ids for name, token_ids in token_ids_by_name if token_ids}

    def _token_ids(self, name: str) -> tuple[int, ...]:
        path = self._own / (name + IDS)
        with suppress(*MALFORMED_FILE_ERRORS):
            token_ids = tuple(map(operator.index, json.loads(path.read_text())[TOKENS]))
            if chunk_id(token_ids) == name:
                return token_ids
        self._note(f"chunk file {path} is torn; looking for its tokens in the file beside it")
        arrays = self._load_arrays(name)
        if not arrays or chunk_id(arrays[TOKENS].tolist()) != name:
            self._note(f"chunk {name} is lost: register its text anew")
            return ()
        self._write_ids(name, arrays[TOKENS].tolist())
        return tuple(arrays[TOKENS].tolist())

    def read(self, name: str) -> Layers | None:
        """Keys before RoPE and values of each layer, (kv_heads, tokens, head_dim). None if there is no
        complete file; a damaged file is reported."""
        if not (self._own / (name + ARRAYS)).exists() or (arrays := self._load_arrays(name)) is None:
            return None
        count = sum(key.startswith("values.") for key in arrays)
        bits = ((arrays[f"unturned.{layer}"], arrays[f"values.{layer}"]) for layer in range(count))
        return [(keys.view(bf16), values.view(bf16)) for keys, values in bits]

    def write(self, name: str, token_ids: Sequence[int], layers: Layers) -> None:
        """Store a chunk. Raises UserError if it cannot be written."""
        arrays: Arrays = {TOKENS: np.array(token_ids, np.int64)}
        for layer, pair in enumerate(layers):
            for kind, array in zip(KINDS, pair, strict=True):
                arrays[f"{kind}.{layer}"] = np.ascontiguousarray(array).view(np.uint16)
        self._write_ids(name, token_ids)
        write_arrays(self._own / (name + ARRAYS), arrays, self._provenance)

    def _write_ids(self, name: str, token_ids: Sequence[int]) -> None:
        content = json.dumps({TOKENS: [*token_ids], "made_by": dict(self._provenance)}).encode()
        path = self._own / (name + IDS)
        try:
            write_atomic(path, lambda file: file.write(content), mode=0o600)
        except OSError as error:
            raise UserError(f"cannot write {path} ({error.strerror}); name another folder") from None

    def delete(self, name: str) -> None:
        """Delete a chunk's files."""
        for kind in (IDS, ARRAYS):
            (self._own / (name + kind)).unlink(missing_ok=True)

    def other_model(self, name: str) -> str | None:
        """What differs about the other model that made a chunk with this id; None if no other did."""
        others = (path for path in self._above.glob(f"*/{name}{IDS}") if path.parent != self._own)
        for path in others:
            with suppress(*MALFORMED_FILE_ERRORS):
                made_by = json.loads(path.read_text())["made_by"]
                return next(
                    f"{what} {made_by[what]}"
                    for what, ours in self._provenance.items()
                    if made_by[what] != ours
                )
        return None

    def _load_arrays(self, name: str) -> ArraysByName | None:
        """The arrays of a chunk's file. None if it is damaged or another model's, which is reported."""
        path = self._own / (name + ARRAYS)
        try:
            arrays, about = open_arrays(path)
        except UserError as error:
            self._note(f"{error}; the chunk is read anew")
            return None
        if {what: about.get(what) for what in self._provenance} == dict(self._provenance):
            return arrays
        self._note(f"{path} was made by another model; the chunk is read anew")
        return None
