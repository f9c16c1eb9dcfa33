"""Weights from safetensors: one file or several with an index, read tensor by tensor when asked for.

Shapes are checked against the config before anything is read, so a wrong checkpoint is refused at once.
Tensors come out in bf16 and in Hugging Face's (out, in) layout, read straight into the memory that they are
wanted in, whole or by rows: nothing is kept here, no file stays mapped, and a model takes little more than
its buffers.
"""

from __future__ import annotations

import json
import math
import os
import threading
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from aerie.engine.config import ModelConfig
from aerie.engine.errors import WeightsError
from aerie.engine.facts import MODELS_THAT_RUN
from aerie.engine.numerics import BF16Array, bf16

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

MODEL_PARTS = ("model.", "lm_head.")
"""What the tensors of the model itself begin with; others, such as a value head's, are for training."""
COMPUTED_ANYWAY = ".rotary_emb.inv_freq"
"""A table in older checkpoints that follows from config.json."""

EMBED = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"


LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "wq": "self_attn.q_proj",
    "wk": "self_attn.k_proj",
    "wv": "self_attn.v_proj",
    "wo": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "w_gate": "mlp.gate_proj",
    "w_up": "mlp.up_proj",
    "w_down": "mlp.down_proj",
}
"""A layer's tensors by the names that the programs' arguments have, in the checkpoint's words."""

DTYPES = {"BF16": bf16, "F16": np.dtype(np.float16), "F32": np.dtype(np.float32)}
"""What is read, by safetensors' names; all but bf16 is rounded to bf16."""
CHUNK_BYTES = 4 << 20
"""Read at a time by one thread, and converted at a time where there is something to convert."""
READERS = 2
"""Threads that read a tensor: one copies while another waits for the disk, or for new pages of memory."""


def layer_tensor(layer: int, field: str) -> str:
    """The checkpoint's name for one of LAYER_TENSORS."""
    return f"model.layers.{layer}.{LAYER_TENSORS[field]}.weight"


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the model needs, by name, with the shape the config implies."""
    hidden, ffn = config.hidden_size, config.intermediate_size
    query = config.num_attention_heads * config.head_dim
    key_value = config.num_key_value_heads * config.head_dim
    of_layer = {
        "attn_norm": (hidden,),
        "wq": (query, hidden),
        "wk": (key_value, hidden),
        "wv": (key_value, hidden),
        "wo": (hidden, query),
        "ffn_norm": (hidden,),
        "w_gate": (ffn, hidden),
        "w_up": (ffn, hidden),
        "w_down": (hidden, ffn),
    }
    shapes: dict[str, tuple[int, ...]] = {EMBED: (config.vocab_size, hidden), FINAL_NORM: (hidden,)}
    if not config.tie_word_embeddings:
        shapes[LM_HEAD] = (config.vocab_size, hidden)
    for layer in range(config.num_hidden_layers):
        shapes.update({layer_tensor(layer, field): shape for field, shape in of_layer.items()})
    return shapes


class Weights:
    """A checkpoint's tensors, read when they are asked for."""

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        """Check all; WeightsError for a file or tensor that is missing, damaged, unfit or left over."""
        found, expected = _tensors(folder), expected_shapes(config)
        if LM_HEAD in found:  # counts though config.json ties it, as it does for transformers
            expected[LM_HEAD] = (config.vocab_size, config.hidden_size)
        _check_nothing_left(found, expected)
        self._tensors = {name: _checked(found, name, shape) for name, shape in expected.items()}

    def layer(self, layer: int) -> dict[str, Tensor]:
        """The tensors of block `layer`, by the names of LAYER_TENSORS."""
        return {field: self._tensors[layer_tensor(layer, field)] for field in LAYER_TENSORS}

    @property
    def embed_table(self) -> Rows:
        """Token embeddings, (vocab_size, hidden_size)."""
        return Rows(self._tensors[EMBED])

    @property
    def final_norm(self) -> Tensor:
        """The weight of the last RMSNorm, (hidden_size,)."""
        return self._tensors[FINAL_NORM]

    @property
    def lm_head(self) -> Tensor:
        """Output projection, (vocab_size, hidden_size): the embeddings where the files have no other."""
        return self._tensors.get(LM_HEAD, self._tensors[EMBED])

    @property
    def files(self) -> list[Path]:
        """Those that hold its tensors."""
        return sorted({tensor.path for tensor in self._tensors.values()})

    def reading_ahead(self) -> AbstractContextManager[None]:
        """While this is open, the files come from the disk into the system's cache."""
        return reading_ahead(self.files)


@dataclass(frozen=True)
class Tensor:
    """A tensor in the file `path`, row by row from byte `start` on; `dtype` in safetensors' words."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in the file, of one element where it is a vector."""
        return math.prod(self.shape[1:]) * int(DTYPES[self.dtype].itemsize)

    def __call__(self, out: BF16Array) -> None:
        """Read all of it into `out`, which is bf16, contiguous and of this shape. Raises WeightsError."""
        self.rows_into(out, 0)

    def read(self) -> BF16Array:
        """All of it, in an array of its own."""
        out = np.empty(self.shape, bf16)
        self(out)
        return out

    def rows_into(self, out: BF16Array, first: int) -> None:
        """Read as many rows as `out` has, from row `first` on, into it. Raises WeightsError."""
        with _File(self) as file, ThreadPoolExecutor(READERS) as readers:
            rows = max(1, CHUNK_BYTES // self.row_bytes)
            starts = range(0, len(out), rows)
            parts = (out[start : start + rows] for start in starts)
            list(readers.map(file.read_rows, parts, (first + start for start in starts)))


class Rows:
    """A table in a file, of which single rows are read: `rows[3]`, `rows[[3, 1, 3]]`."""

    def __init__(self, table: Tensor) -> None:
        self.table, self._file = table, _File(table)

    def __getitem__(self, ids: int | Sequence[int]) -> BF16Array:
        """One row, (width,), or as many as there are ids, (ids, width). Raises WeightsError."""
        if isinstance(ids, int | np.integer):
            out = np.empty((1, self.table.shape[1]), bf16)
            self._file.read_rows(out, int(ids))
            return out[0]  # type: ignore[no-any-return]
        once = {token: self[token] for token in set(ids)}  # a prompt is mostly padding
        return np.stack([once[token] for token in ids])


@contextmanager
def reading_ahead(paths: Sequence[Path]) -> Iterator[None]:
    """While this is open, a thread reads the files, so that the system has them in its cache when wanted.

    What cannot be read is left for who wants it to find. The thread has the lowest priority: at that of the
    compilers beside it they took twice as long (2 cores, 2.5 GB from a disk of 280 MB/s). Advice to the
    system alone would fetch one request's worth of a file (Linux mm/readahead.c, force_page_cache_ra).
    """
    ended = threading.Event()
    thread = threading.Thread(target=_read_through, args=(paths, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _read_through(paths: Sequence[Path], ended: threading.Event) -> None:
    chunk = bytearray(CHUNK_BYTES)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # of this thread alone
        for path in paths:
            with path.open("rb", buffering=0) as file:
                while not ended.is_set() and file.readinto(chunk):
                    pass


class _File:
    """The open file of a tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._dtype = tensor, DTYPES[tensor.dtype]
        try:
            self._number = os.open(tensor.path, os.O_RDONLY)
        except OSError as error:
            raise self._unreadable(error.strerror) from None
        self._close = weakref.finalize(self, os.close, self._number)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def read_rows(self, out: BF16Array, first: int) -> None:
        """Rows from `first` on, as many as `out` has; bf16 straight into it."""
        raw = out if self._dtype == bf16 else np.empty(out.shape, self._dtype)
        self._read(memoryview(raw.reshape(-1).view(np.uint8).data), first)
        if raw is not out:
            out[...] = raw.astype(bf16)

    def _read(self, into: memoryview, first: int) -> None:
        at = self._tensor.start + first * self._tensor.row_bytes
        while into:
            try:
                got = os.preadv(self._number, [into], at)
            except OSError as error:
                raise self._unreadable(error.strerror) from None
            if not got:
                raise self._unreadable(f"it ends at byte {at}")
            into, at = into[got:], at + got

    def _unreadable(self, reason: str | None) -> WeightsError:
        tensor = self._tensor
        return WeightsError(f"cannot read tensor {tensor.name} from {tensor.path}: {reason}; fetch it again")


def _check_nothing_left(found: Mapping[str, Tensor], expected: Collection[str]) -> None:
    """Refuse a tensor of the model that is not computed with: a bias, a norm of queries, one layer more."""
    left = [name for name in found if name.startswith(MODEL_PARTS) and name not in expected]
    other = next((name for name in left if not name.endswith(COMPUTED_ANYWAY)), None)
    if other:
        raise WeightsError(
            f"tensor {other} in {found[other].path} is none that config.json asks for: answers would be made "
            f"without it, and be wrong; the model is none of those supported ({MODELS_THAT_RUN}), or the "
            "files and the config do not belong together"
        )


def _checked(found: Mapping[str, Tensor], name: str, expected: tuple[int, ...]) -> Tensor:
    if name not in found:
        raise WeightsError(
            f"tensor {name} is missing from the checkpoint; config.json asks for it with shape "
            f"{_shape(expected)}: the files and the config do not belong together"
        )
    tensor = found[name]
    if tensor.shape != expected:
        raise WeightsError(
            f"tensor {name} in {tensor.path} has shape {_shape(tensor.shape)}; config.json implies "
            f"{_shape(expected)}: the files and the config do not belong together"
        )
    if tensor.dtype not in DTYPES:
        raise WeightsError(
            f"tensor {name} of shape {_shape(tensor.shape)} in {tensor.path} has dtype {tensor.dtype}; only "
            f"{', '.join(DTYPES)} are read: convert the checkpoint to BF16"
        )
    return tensor


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _tensors(folder: Path) -> dict[str, Tensor]:
    """Where each tensor of a checkpoint is, by name."""
    index = folder / INDEX_FILE
    if not index.is_file():
        return _tensors_in(folder / SINGLE_FILE)
    where = _read_index(index)
    held = {file: _tensors_in(folder / file) for file in sorted(set(where.values()))}
    return {name: held[file][name] for name, file in where.items() if name in held[file]}


def _read_index(path: Path) -> Mapping[str, str]:
    try:
        where = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        return {str(tensor): str(file) for tensor, file in where.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{path} is not a safetensors index ({error!r}); fetch it again") from None


def _tensors_in(path: Path) -> dict[str, Tensor]:
    """The tensors of one file: the length of a JSON header in 8 bytes, the header, the bytes of all tensors.

    That all of it is there and in order is for the safetensors library to check, which maps it meanwhile.
    """
    if path.exists() and not path.is_file():
        raise WeightsError(f"{path} is no file; fetch the checkpoint again")
    try:
        with safe_open(path, framework="np"), path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
    except FileNotFoundError:
        raise WeightsError(
            f"there is no {path}; a checkpoint needs {SINGLE_FILE}, or {INDEX_FILE} and every file it names"
        ) from None
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} is truncated or damaged ({error}); fetch it again") from None
    header.pop("__metadata__", None)
    return {
        name: Tensor(path, name, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
        for name, entry in header.items()
    }
