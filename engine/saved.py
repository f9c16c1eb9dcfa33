"""What a model keeps of its last sequence, in a file: tokens, keys and values, and what they were made by.

The file is one of safetensors, written in one step. Its metadata say what made it, and have a checksum of all
that is in it. It goes on only with what made it: the same weights, programs, numerics and family of decode,
for else no bit of an answer could be relied on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as in_bytes

from aerie.engine.errors import UserError
from aerie.engine.kv import KVCache
from aerie.virtual_npu.store import write_whole

FORMAT = "aerie sequence 1"
TOKENS, CHECKSUM, COUNTS = "token_ids", "sha256", ("in_blocks", "dropped")
SAMPLES, SAMPLE_BYTES = 64, 4096

Arrays: TypeAlias = "dict[str, NDArray[Any]]"
MadeBy: TypeAlias = "Mapping[str, str]"
"""By what it is, as "numerics", a word for it that is equal where the bits of an answer are."""


def weights_mark(files: Iterable[Path]) -> str:
    """A word for the weights in these files: their sizes, and 64 pieces of each of 4 KiB. It takes
    milliseconds, and tells models apart, not files of which a few bytes were changed."""
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            for number in range(SAMPLES):
                file.seek(max(0, size - SAMPLE_BYTES) * number // (SAMPLES - 1))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def save_sequence(cache: KVCache, path: Path, made_by: MadeBy) -> None:
    """Write what a cache holds. UserError for tokens that were given as embeddings, and where the file cannot
    be written, which leaves what was there."""
    if not all(isinstance(token, int | np.integer) for token in cache.token_ids):
        raise UserError("a sequence with embeddings cannot be saved: it has no token ids by which to go on")
    held = _held(cache.layers, cache.unturned, cache.length)
    arrays = {name: np.ascontiguousarray(array) for name, array in held.items()}
    arrays[TOKENS] = np.array(cache.token_ids, np.int64)
    about = {**made_by, "format": FORMAT, **{name: str(getattr(cache, name)) for name in COUNTS}}
    content = in_bytes(arrays, {**about, CHECKSUM: _checksum(arrays, about)})
    try:
        write_whole(path, lambda file: file.write(content), mode=0o600)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); name another file") from None


def restore_sequence(new_cache: Callable[[int], KVCache], path: Path, made_by: MadeBy) -> KVCache:
    """A new cache with what `save_sequence` wrote. UserError for another file, a torn one, and one that other
    things made; nothing else is changed then."""
    arrays, about = _read(path)
    for what, ours in made_by.items():
        if about.get(what) != ours:
            raise UserError(
                f"{path} was made by {what} {about.get(what)!r}, and this is {ours!r}; its keys and values "
                "hold for what made them alone: load that, or give the prompt again"
            )
    tokens = arrays[TOKENS].tolist()
    cache = new_cache(len(tokens))
    cache.reserve(len(tokens))
    for name, to in _held(cache.layers, cache.unturned, len(tokens)).items():
        to[...] = arrays[name]
    cache.holds(tokens, *(int(about[name]) for name in COUNTS))
    return cache


def _held(layers: Iterable[tuple[Any, Any]], unturned: Sequence[Any], length: int) -> Arrays:
    """Views on what is held, as bits, by name."""
    kinds = {"keys": [keys for keys, _ in layers], "values": [values for _, values in layers]}
    found = {**kinds, "unturned": unturned}
    return {
        f"{kind}.{layer}": array[:, :length].view(np.uint16)
        for kind, arrays in found.items()
        for layer, array in enumerate(arrays)
    }


def _read(path: Path) -> tuple[Arrays, dict[str, str]]:
    """The arrays and the metadata. UserError for what is no whole file of ours."""
    try:
        with safe_open(path, "np") as file:
            about = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise UserError(
            f"cannot read {path} ({error.strerror or error}); name a file that was saved"
        ) from None
    except SafetensorError as error:
        raise UserError(f"{path} is torn, or no sequence ({error}); name a file that was saved") from None
    if about.get("format") != FORMAT:
        raise UserError(f"{path} is no sequence that was saved by this version; name one that is")
    if about.pop(CHECKSUM, "") != _checksum(arrays, about):
        raise UserError(f"{path} is damaged: its checksum is another; nothing was restored")
    return arrays, about


def _checksum(arrays: Arrays, about: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(sorted(about.items())).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
