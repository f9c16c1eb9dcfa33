"""A checkpoint's tensors by the names that the programs' arguments have.

Shapes are checked against the config before anything is read, so a wrong checkpoint is refused at once. Where
fused tensors lie in the files (queries, keys and values in one; gate and up in one) their parts are found in
them. A checkpoint whose matrices are all transposed, (in, out), is recognised by their shapes. One that was
saved without its head has no `model.` before its names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerie.engine.config import ModelConfig
from aerie.engine.config_reader import MODELS_THAT_RUN
from aerie.engine.errors import WeightsError
from aerie.engine.layer_states import DeltaHeads
from aerie.engine.model_family import DELTA, FUSED, GATE_UP
from aerie.engine.numerics import BF16Array, bf16
from aerie.engine.pooling import SCORE_ROWS
from aerie.engine.quantised import PackedBlocks, QuantisedTensor, as_kind
from aerie.engine.tensors import DTYPES, Rounding, Rows, Tensor, reading_ahead
from aerie.engine.text_part import text_tensors
from aerie.engine.weight_files import WeightFiles, find_tensors
from aerie.kernel_builder.weight_blocks import BF16, BLOCK_ROWS, Bytes
from aerie.multi_launch_builder.weight_kinds import OF_SOME, WeightKinds
from aerie.runtime.memory import format_bytes, format_file_bytes

MODEL_PARTS = ("model.", "lm_head.")
"""What the tensors of the model itself begin with; others, such as a value head's, are for training."""
BARE = re.compile(r"(embed_tokens|layers|norm|embedding_norm)\.")
"""What those names begin with that lack `model.`, as transformers adds it."""
COMPUTED_ANYWAY = ".rotary_emb."
"""Tables in older checkpoints that follow from config.json: inv_freq, cos_cached, sin_cached."""

EMBED = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"


WHOLE_QUERY = "wqg"
"""Queries and their gates in one; programs take them apart (`wq` and `wg`)."""
CONV_PROJECTIONS = ("w_conv_b", "w_conv_c", "w_conv_x")
"""The projections of a short convolution, which files always have as one."""

Shapes = dict[str, tuple[int, ...]]
"""Of tensors in (out, in) layout, by the checkpoint's names."""


def in_layer(layer: int, tensor: str) -> str:
    """The checkpoint's name for a tensor of a layer."""
    return f"model.layers.{layer}.{tensor}"


def layer_shapes(config: ModelConfig, layer: int = 0) -> Shapes:
    """What a layer of this model has, by the names of the programs' arguments."""
    hidden, ffn = config.hidden_size, config.intermediate_size
    query = config.num_attention_heads * config.head_dim
    conv = query if config.all_heads[0] else hidden  # of one of several devices, as wide as its heads
    mixed = conv if layer in config.layers_with_conv else query
    key_value = config.num_key_value_heads * config.head_dim
    spans_heads = config.family.qk_norm_spans_heads
    shapes: Shapes = {
        "attn_norm": (hidden,),
        "wq": (query, hidden),
        "wqg": (2 * query, hidden),
        "bq": (query,),
        "wk": (key_value, hidden),
        "bk": (key_value,),
        "wv": (key_value, hidden),
        "bv": (key_value,),
        "q_norm": ((config.all_heads[0] * config.head_dim or query) if spans_heads else config.head_dim,),
        "k_norm": ((config.all_heads[1] * config.head_dim or key_value) if spans_heads else config.head_dim,),
        "wo": (hidden, mixed),
        "attn_post_norm": (hidden,),
        "ffn_norm": (hidden,),
        "w_gate": (ffn, hidden),
        "w_up": (ffn, hidden),
        "w_down": (hidden, ffn),
        "ffn_post_norm": (hidden,),
        **dict.fromkeys(CONV_PROJECTIONS, (conv, hidden)),
        "w_conv": (conv, 1, config.conv_taps),
        **(_delta_shapes(config, config.delta) if config.delta and layer in config.layers_with_conv else {}),
    }
    return {field: shapes[field] for field in config.layer_tensors(layer)}


def _delta_shapes(config: ModelConfig, heads: DeltaHeads) -> Shapes:
    """What a layer with linear attention has, but for what all have."""
    hidden, values = config.hidden_size, heads.values * heads.value_dim
    return {
        "w_qkv": (heads.mixed_width, hidden),
        "w_z": (values, hidden),
        "w_a": (heads.values, hidden),
        "w_b": (heads.values, hidden),
        "w_conv": (heads.mixed_width, 1, config.conv_taps),
        "a_log": (heads.values,),
        "dt_bias": (heads.values,),
        "delta_norm": (heads.value_dim,),
        "wo": (hidden, values),
    }


def expected_shapes(config: ModelConfig) -> Shapes:
    """Every tensor the model needs, by name, with the shape the config implies."""
    shapes: Shapes = {
        EMBED: (config.vocab_size, config.hidden_size),
        config.family.final_norm: (config.hidden_size,),
    }
    if not config.tie_word_embeddings:
        shapes[LM_HEAD] = (config.vocab_size, config.hidden_size)
    for layer in range(config.num_hidden_layers):
        of_layer = layer_shapes(config, layer)
        for field, tensor in config.layer_tensors(layer).items():
            shapes[in_layer(layer, tensor)] = of_layer[field]
    return shapes


def stored_shapes(config: ModelConfig) -> Shapes:
    """The same as a checkpoint of transformers' has them, where a family's tensors are fused."""
    return _as_stored(expected_shapes(config), fused_tensors(config))


def fused_tensors(config: ModelConfig) -> dict[str, list[str]]:
    """The tensors that a checkpoint of transformers' has for several of the expected ones, with their
    names."""
    fused = {}
    for layer in range(config.num_hidden_layers):
        tensors = config.layer_tensors(layer)
        for fields, names in FUSED.items():
            own = config.family.fused_ffn if fields == GATE_UP else ""
            is_fused = own or config.family.is_fused or fields == CONV_PROJECTIONS
            if is_fused and all(field in tensors for field in fields):
                whole = in_layer(layer, own or names[0])
                fused[whole] = [in_layer(layer, tensors[field]) for field in fields]
    return fused


class Weights:
    """A checkpoint's tensors, read when they are asked for. `rounding` says what was lost so far where they
    are not in bf16, `notes` which files count where that might be doubted."""

    def __init__(self, folder: Path, config: ModelConfig, kind: str = "auto") -> None:
        """Check all; WeightsError for a file or tensor that is missing, damaged, mismatch or left over.

        kind: what they are on the device, one of quantised.KINDS. As llama.cpp does it (llama-quant.cpp), the
        LM head is q8 where other matrices are quantised to q4, also if it is the embeddings.
        """
        self.rounding, self._config, self.kind = Rounding(), config, kind
        files, expected = find_tensors(folder), expected_shapes(config)
        text, left_out = text_tensors(files.tensors)
        found = _as_named(text)
        if LM_HEAD in found:  # counts though config.json ties it, as it does for transformers
            expected[LM_HEAD] = (config.vocab_size, config.hidden_size)
        fused = dict(_fused(found, config))
        stored = _as_stored(expected, fused)
        _check_nothing_left(found, stored, files)
        turned = files.may_be_transposed and _lie_transposed(found, stored)
        _check_all_there(found, stored, files)
        checked = {name: _checked(found[name], name, shape, turned, files) for name, shape in stored.items()}
        tensors = {**checked, **_parts(checked, expected, fused)}
        self.score_head = _score_head(found, config, files)
        """The head of a model that scores in place of answering, (labels, hidden_size); else None."""
        head = LM_HEAD if LM_HEAD in expected else EMBED
        self._tensors = {
            name: as_kind(
                replace(tensors[name], rounding=self.rounding),
                _wanted(name, kind, head),
            )
            for name in expected
        }
        sized = files.is_quantised or self.quantised
        sizes = (_size_note(folder, self._tensors.values()),) if sized else ()
        self.notes = (*files.notes, *left_out, *sizes)

    def layer(self, layer: int) -> dict[str, Tensor]:
        """The tensors of block `layer`, by the names of the programs' arguments."""
        names = self._config.layer_tensors(layer)
        found = {field: self._tensors[in_layer(layer, tensor)] for field, tensor in names.items()}
        return found | self._made_of(found)

    def _made_of(self, found: Mapping[str, Tensor]) -> dict[str, Any]:
        """Weights that are made of several tensors, of a part of each head, or turned."""
        config = self._config
        taps = {"w_conv": TapsFirst(found["w_conv"])} if "w_conv" in found else {}
        if WHOLE_QUERY in found:
            query, gate = (HeadRows(found[WHOLE_QUERY], config.head_dim, number, 2) for number in range(2))
            return {"wq": query, "wg": gate}
        if "w_a" in found:
            gates = StackedRows((found["w_a"], found["w_b"]), config.shape.delta_gates_width)
            return taps | {"w_ab": gates}
        return taps

    @property
    def delta_gates(self) -> dict[int, tuple[BF16Array, BF16Array]]:
        """A_log and dt_bias of each layer with linear attention, (value heads,) each."""
        if not self._config.delta:
            return {}
        layers = {layer: self.layer(layer) for layer in self._config.layers_with_conv}
        return {layer: (found["a_log"].read(), found["dt_bias"].read()) for layer, found in layers.items()}

    @property
    def kinds(self) -> WeightKinds:
        """What its matrices are on the device."""
        layers = [self.layer(layer) for layer in range(self._config.num_hidden_layers)]
        is_bf16 = all(tensor.kind == BF16 for tensors in layers for tensor in tensors.values())
        kinds = () if is_bf16 else tuple(map(_kinds_of, layers))
        return WeightKinds(kinds, self.lm_head.kind)

    @property
    def embed_table(self) -> Rows:
        """Token embeddings, (vocab_size, hidden_size), as they go into the first layer."""
        return Rows(self._tensors[EMBED], self._config.multipliers.embedding)

    @property
    def final_norm(self) -> Tensor:
        """The weight of the last RMSNorm, (hidden_size,)."""
        return self._tensors[self._config.family.final_norm]

    @property
    def lm_head(self) -> Tensor:
        """Output projection, (vocab_size, hidden_size): the embeddings where the files have no other."""
        return self._tensors.get(LM_HEAD, self._tensors[EMBED])

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors, by transformers' names."""
        yield from self._tensors.items()

    @property
    def quantised(self) -> dict[str, QuantisedTensor]:
        """The tensors that are quantised on the device, by transformers' names."""
        return {name: each for name, each in self._tensors.items() if isinstance(each, QuantisedTensor)}

    def use_packed(self, blocks: Mapping[str, PackedBlocks]) -> None:
        """From now on read the blocks of these tensors where they were packed before."""
        for name, tensor in self.quantised.items():
            self._tensors[name] = replace(tensor, blocks=blocks[name])

    def check_scales(self) -> None:
        """Raises WeightsError if a scale of quantised weights is not a finite number. Reads all scales."""
        for tensor in self._tensors.values():
            tensor.check_scales()

    @property
    def files(self) -> list[Path]:
        """Those that hold its tensors."""
        return sorted({tensor.path for tensor in self._tensors.values()})

    def reading_ahead(self) -> AbstractContextManager[None]:
        """While this is open, the files come from the disk into the system's cache."""
        return reading_ahead(self.files)


def _wanted(name: str, kind: str, head: str) -> str:
    """The kind of a tensor where `kind` is asked for: an LM head has 8 bits rather than 4. What decays and
    rates are made of is small, and stays bf16: an error there counts at every later position."""
    if name.endswith((DELTA["w_a"], DELTA["w_b"])):
        return BF16
    return "q8" if (name, kind) == (head, "q4") else kind


def _kinds_of(layer: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The kinds of a layer's matrices, as WeightKinds has them."""
    kinds = {field: tensor.kind for field, tensor in layer.items() if field != WHOLE_QUERY}
    return tuple((field, kind) for field, kind in kinds.items() if kind != BF16 or field in OF_SOME)


class HeadRows(NamedTuple):
    """Rows of each head of a matrix whose heads have several parts: part `number` of `parts`, of `size` rows.
    Fills an array of all heads' rows, or of their blocks."""

    tensor: Tensor
    size: int
    number: int
    parts: int

    @property
    def kind(self) -> str:
        """That of the whole matrix."""
        return self.tensor.kind

    def part(self, first: int, count: int) -> HeadRows:
        """`count` of its rows from `first` on, both of whole heads."""
        return self._replace(tensor=self.tensor.part(first * self.parts, count * self.parts))

    def read(self) -> BF16Array:
        """All of it, in an array of its own."""
        rows, *more = self.tensor.shape
        out = np.empty((rows // self.parts, *more), bf16)
        self(out)
        return out

    def __call__(self, out: BF16Array) -> None:
        for part, rows in self._parts(out):
            part(rows)

    def pack_into(self, out: Bytes) -> None:
        """Fill `out`, uint8 (block rows, block columns, bytes), with these rows in blocks. `size` is a
        multiple of BLOCK_ROWS."""
        for part, rows in self._parts(out):
            assert isinstance(part, QuantisedTensor)
            part.pack_into(rows)

    def _parts(self, out: NDArray[Any]) -> Iterator[tuple[Tensor, NDArray[Any]]]:
        """The rows of each head, and their place in `out`."""
        for head, rows in enumerate(np.split(out, self.tensor.shape[0] // self.parts // self.size)):
            yield self.tensor.part((head * self.parts + self.number) * self.size, self.size), rows


class TapsFirst(NamedTuple):
    """The taps of a convolution, (columns, 1, taps) in the file, as (taps, columns)."""

    tensor: Tensor | StackedRows
    kind: str = BF16

    @property
    def name(self) -> str:
        """That of the tensor."""
        return self.tensor.name

    def columns(self, first: int, count: int) -> TapsFirst:
        """`count` of its columns from `first` on."""
        assert not isinstance(self.tensor, StackedRows)
        return self._replace(tensor=self.tensor.part(first, count))

    def read(self) -> BF16Array:
        """All of it, in an array of its own."""
        return np.ascontiguousarray(self.tensor.read()[:, 0].T)

    def __call__(self, out: BF16Array) -> None:
        out[...] = self.tensor.read()[:, 0].T


class StackedRows(NamedTuple):
    """Matrices one below the other, with rows of zeros up to `rows`. kind: of all of them; each has whole
    blocks of rows if it is not bf16."""

    tensors: tuple[Tensor, ...]
    rows: int
    kind: str = BF16

    @property
    def name(self) -> str:
        """That of the first tensor."""
        return self.tensors[0].name

    def read(self) -> BF16Array:
        """All of it, in an array of its own."""
        out = np.empty((self.rows, *self.tensors[0].shape[1:]), bf16)
        self(out)
        return out

    def __call__(self, out: BF16Array) -> None:
        first = 0
        for tensor in self.tensors:
            tensor(out[first : first + tensor.shape[0]])
            first += tensor.shape[0]
        out[first:] = 0

    def pack_into(self, out: Bytes) -> None:
        """Fill `out`, uint8 (block rows, block columns, bytes), with these rows in blocks."""
        first = 0
        for tensor in self.tensors:
            assert isinstance(tensor, QuantisedTensor)
            blocks = tensor.shape[0] // BLOCK_ROWS
            tensor.pack_into(out[first : first + blocks])
            first += blocks


def _size_note(folder: Path, tensors: Iterable[Tensor]) -> str:
    """How large the weights are in the files and on the device, by their types, the largest first."""
    stored, kept = Counter[str](), Counter[str]()
    for tensor in tensors:
        stored[tensor.dtype] += tensor.stored_bytes
        kept[tensor.kind] += tensor.device_bytes
    types = " and ".join(name for name, _ in stored.most_common())
    memory = f"{format_bytes(kept.total())} of memory as bf16, which is computed with"
    if len(kept) > 1:
        parts = (f"{kind} {format_file_bytes(nbytes)}" for kind, nbytes in kept.most_common())
        memory = f"{format_file_bytes(kept.total())} on the device ({', '.join(parts)})"
    return (
        f"note: the tensors of {folder.name} take {format_file_bytes(stored.total())} in the file ({types}), "
        f"and {memory}"
    )


def _as_named(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by the names that a model with a head has. Raises WeightsError for two of one name."""
    found: dict[str, Tensor] = {}
    for given, tensor in tensors.items():
        name = f"model.{given}" if BARE.match(given) else given
        name = LM_HEAD if name == f"model.{LM_HEAD}" else name
        if name in found:
            raise WeightsError(
                f"tensors {given} and {found[name].name} are both {name}: which of them the model has is not "
                "known; fetch the checkpoint again"
            )
        found[name] = tensor
    return found


def _fused(found: Collection[str], config: ModelConfig) -> Iterator[tuple[str, list[str]]]:
    """Tensors in the files that are several of the expected ones, one below the other, with their names."""
    for layer in range(config.num_hidden_layers):
        tensors = config.layer_tensors(layer)
        for fields, names in FUSED.items():
            parts = [in_layer(layer, tensors[field]) for field in fields if field in tensors]
            whole = next((in_layer(layer, name) for name in names if in_layer(layer, name) in found), None)
            if whole and parts and not any(part in found for part in parts):
                yield whole, parts


def _as_stored(expected: Shapes, fused: Mapping[str, list[str]]) -> Shapes:
    """The expected tensors, with fused ones in place of their parts."""
    apart = {part for parts in fused.values() for part in parts}
    shapes = {name: shape for name, shape in expected.items() if name not in apart}
    for name, parts in fused.items():
        rows = sum(expected[part][0] for part in parts)
        shapes[name] = (rows, *expected[parts[0]][1:])
    return shapes


def _parts(
    checked: Mapping[str, Tensor], expected: Shapes, fused: Mapping[str, list[str]]
) -> dict[str, Tensor]:
    """The parts of fused tensors, by the names that they would have alone."""
    found = {}
    for whole, parts in fused.items():
        first = 0
        for part in parts:
            rows = expected[part][0]
            found[part] = checked[whole].part(first, rows)
            first += rows
    return found


def _is_linear(name: str, shape: tuple[int, ...]) -> bool:
    """Whether it is what a row is multiplied with; the embeddings are looked up."""
    return len(shape) == 2 and name != EMBED


def _lie_transposed(found: Mapping[str, Tensor], stored: Shapes) -> bool:
    """Whether the first matrix that is not square lies (in, out) in the files."""
    matrices = (name for name, shape in stored.items() if _is_linear(name, shape) and shape[0] != shape[1])
    first = next((name for name in matrices if name in found), None)
    return first is not None and found[first].shape == stored[first][::-1]


def _check_nothing_left(found: Mapping[str, Tensor], expected: Collection[str], files: WeightFiles) -> None:
    """Refuse a tensor of the model that is not computed with: a bias, a norm of queries, one layer more."""
    left = [name for name in found if name.startswith(MODEL_PARTS) and name not in expected]
    other = next((name for name in left if not _changes_nothing(name, found[name])), None)
    if other:
        raise WeightsError(
            f"tensor {files.stored_name(other)} in {found[other].path} is none that {files.config} asks for: "
            "answers would be made without it, and be wrong; the model is none of those supported "
            f"({MODELS_THAT_RUN}), or {files.mismatch}"
        )


def _changes_nothing(name: str, tensor: Tensor) -> bool:
    """Whether answers are the same without it: a table of RoPE, a bias of zeros."""
    if COMPUTED_ANYWAY in name:
        return True
    is_bias = name.endswith(".bias") and len(tensor.shape) == 1 and tensor.dtype in DTYPES
    return is_bias and not tensor.read().any()


def _check_all_there(found: Collection[str], stored: Shapes, files: WeightFiles) -> None:
    lacking = next((name for name in stored if name not in found), None)
    if lacking is None:
        return
    why = files.elsewhere(lacking) or files.mismatch
    if lacking == LM_HEAD and any(map(BARE.match, files.tensors)):
        why = "it was saved without its head, to make embeddings alone, and can say nothing"
    raise WeightsError(
        f"tensor {files.stored_name(lacking)} is missing from the checkpoint; {files.config} asks for it "
        f"with shape {_shape(stored[lacking])}: {why}"
    )


def _checked(
    tensor: Tensor, name: str, expected: tuple[int, ...], turned: bool, files: WeightFiles
) -> Tensor:
    """The tensor `name` in (out, in) layout; turned: matrices of the checkpoint lie the other way round."""
    is_turned = turned and _is_linear(name, expected)
    implied = expected[::-1] if is_turned else expected
    if tensor.shape != implied:
        raise WeightsError(
            f"tensor {files.stored_name(name)} in {tensor.path} has shape {_shape(tensor.shape)}; "
            f"{files.config} implies {_shape(implied)}{', transposed as others are' if is_turned else ''}: "
            f"{files.mismatch}"
        )
    if not tensor.is_supported:
        raise WeightsError(
            f"tensor {name} of shape {_shape(tensor.shape)} in {tensor.path} has dtype {tensor.dtype}; only "
            f"{', '.join(DTYPES)} are read: convert the checkpoint to BF16"
        )
    return tensor.transposed() if is_turned else tensor


def _score_head(found: Mapping[str, Tensor], config: ModelConfig, files: WeightFiles) -> Tensor | None:
    scoring = config.roles.scoring
    if scoring is None or scoring.tensor != SCORE_ROWS:
        return None
    stored: Shapes = {SCORE_ROWS: (1 if scoring.no is None else 2, config.hidden_size)}
    _check_all_there(found, stored, files)
    return _checked(found[SCORE_ROWS], SCORE_ROWS, stored[SCORE_ROWS], False, files)


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
