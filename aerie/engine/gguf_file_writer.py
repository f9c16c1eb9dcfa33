"""Writes a checkpoint as a GGUF file, quantised or in bf16, with the gguf package.

Keys and names are those of llama.cpp's converter. Matrices are quantised by the package, whose results are
those of llama.cpp's own quantiser; vectors stay float32. As there (llama-quant.cpp), the LM head is kept
finer than 4 bits, also if it is the embeddings, and a matrix whose width no block divides is not quantised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerie.engine.checkpoint import Checkpoint
from aerie.engine.config import ModelConfig
from aerie.engine.errors import CheckpointError, WeightsError
from aerie.engine.gguf.architectures import ARCHITECTURES, ROPE_FREQS, Architecture
from aerie.engine.gguf.block_types import QUANTISATION_VERSION, READ, BlockType
from aerie.engine.gguf.linear_attention import as_in_file
from aerie.engine.gguf.named_tensors import PERMUTED, name_in_file
from aerie.engine.gguf_tokenizer_writer import tokenizer_keys
from aerie.engine.layer_states import DeltaHeads
from aerie.engine.model_family import DELTA
from aerie.engine.numerics import F32Array, widen
from aerie.engine.pooling import SCORE_ROWS
from aerie.engine.quantised import ComputedTensor
from aerie.engine.reporter import OnProgress
from aerie.engine.rope import LinearScaling, Llama3Scaling
from aerie.engine.tensors import Tensor
from aerie.engine.text_roles import GGUF_POOLING
from aerie.engine.weights import EMBED, LM_HEAD, fused_tensors


class FileFormat(NamedTuple):
    """The types of a file's matrices and of its LM head, and the file's number (general.file_type)."""

    matrices: str
    head: str
    number: int


FORMATS = {
    "q4_0": FileFormat("Q4_0", "Q8_0", 2),
    "q4_1": FileFormat("Q4_1", "Q8_0", 3),
    "q8_0": FileFormat("Q8_0", "Q8_0", 7),
    "bf16": FileFormat("BF16", "BF16", 32),
}
"""By what a user asks for."""
ROWS_AT_ONCE = 1024

TYPES = {kind.name: kind for kind in READ.values()}


class PlannedTensor(NamedTuple):
    """A tensor to be written: one, or several of which one lies below the other. heads: in which its rows are
    permuted; 0 for none. added: to each of its values. delta: of linear attention, whose tensors lie in
    another order."""

    name: str
    parts: Sequence[Tensor]
    kind: BlockType
    heads: int = 0
    added: float = 0.0
    delta: DeltaHeads | None = None

    def in_file(self, values: F32Array) -> F32Array:
        """All values as the file has them."""
        values = values + self.added if self.added else values
        part = self.name.split(".")[2:3]
        return as_in_file(part[0], values, self.delta) if self.delta and part else values

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, columns), or (elements,)."""
        rows = sum(part.shape[0] for part in self.parts)
        return (rows, *self.parts[0].shape[1:][-1:])

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) // self.kind.values * self.kind.size


def plan_tensors(checkpoint: Checkpoint, form: str) -> list[PlannedTensor]:
    """Every tensor of the file, in its order. form: one of FORMATS. Raises CheckpointError for a checkpoint
    that is quantised already."""
    config, architecture = checkpoint.config, _architecture(checkpoint.config)
    planned = []
    for name, parts in _stored(checkpoint):
        heads = _heads(name, config) if architecture.permutes_qk else 0
        head = LM_HEAD if not config.tie_word_embeddings else EMBED
        kind = _kind(name, parts[0], FORMATS[form].head if name == head else FORMATS[form].matrices)
        added, in_file = architecture.added_to(name), name_in_file(name, architecture)
        delta = config.delta if "linear_attn." in name else None
        planned.append(PlannedTensor(in_file, parts, kind, heads, added, delta))
    return planned


def _stored(checkpoint: Checkpoint) -> Iterator[tuple[str, Sequence[Tensor]]]:
    """The tensors by the names that a checkpoint has for them, each with its parts. Raises
    CheckpointError."""
    whole_of = {part: name for name, parts in fused_tensors(checkpoint.config).items() for part in parts}
    stored: dict[str, list[Tensor]] = {}
    for name, tensor in checkpoint.weights.named():
        if isinstance(tensor, ComputedTensor):
            raise CheckpointError(
                f"tensor {tensor.name} in {tensor.path} is quantised already ({tensor.dtype}); quantising it "
                "again would lose more: take the unquantised checkpoint"
            )
        stored.setdefault(whole_of.get(name, name), []).append(tensor)
    yield from stored.items()


def write_gguf(path: Path, checkpoint: Checkpoint, form: str, step: OnProgress) -> None:
    """Write a checkpoint to a file that is not there yet. step: called after each tensor. Raises
    CheckpointError for a model that GGUF cannot say, and OSError."""
    import gguf

    planned, keys = plan_tensors(checkpoint, form), _keys(checkpoint, form)
    extra = _divisors(checkpoint.config)
    with closing(gguf.GGUFWriter(path, _name(checkpoint.config))) as writer:
        for key, value in keys.items():
            _add(writer, key, value)
        for name, values in extra.items():
            writer.add_tensor_info(name, values.shape, values.dtype, values.nbytes)
        for each in planned:
            _add_info(writer, each)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for values in extra.values():
            writer.write_tensor_data(values)
        for done, each in enumerate(planned, 1):
            writer.write_tensor_data(np.concatenate([*_data(each)]))
            step(each.name, done)


def _architecture(config: ModelConfig) -> Architecture:
    return ARCHITECTURES[_name(config)]


def _name(config: ModelConfig) -> str:
    """GGUF's name of the architecture. Raises CheckpointError."""
    kind = {"MistralForCausalLM": "llama", "Qwen3_5ForCausalLM": "qwen35"}.get(config.architecture)
    kind = kind or config.architecture.removesuffix("ForCausalLM").lower()
    written = [name for name, each in ARCHITECTURES.items() if each.is_written]
    if kind not in written or config.diffusion is not None:
        raise CheckpointError(
            f"a model of the kind {config.family.name} is not written as GGUF; {', '.join(written)} are"
        )
    interval = config.family.no_rope_interval
    if interval and config.layers_without_rope != frozenset(
        range(interval - 1, config.num_hidden_layers, interval)
    ):
        raise CheckpointError(
            f"layers {sorted(config.layers_without_rope)} of {config.num_hidden_layers} have no RoPE, and a "
            f"GGUF file of the kind {kind} has none in every layer of {interval}: it would answer otherwise"
        )
    if config.delta and (attending := config.layers_with_attention) != tuple(
        range(attending[0], config.num_hidden_layers, attending[0] + 1)
    ):
        raise CheckpointError(
            f"layers {[*attending]} of {config.num_hidden_layers} have attention, and a GGUF file of the "
            f"kind {kind} has it in layers at one interval: it would answer otherwise"
        )
    if len(config.masks.windows) > 1:
        raise CheckpointError(
            f"layers {sorted(config.layers_with_window)} of {config.num_hidden_layers} have a "
            "sliding_window, and a GGUF file has one for all layers: it would answer otherwise"
        )
    return kind


def _kind(name: str, tensor: Tensor, wanted: str) -> BlockType:
    if len(tensor.shape) != 2:  # a vector, or the taps of a convolution
        return TYPES["F32"]
    kind = TYPES[wanted]
    if name.endswith((DELTA["w_a"], DELTA["w_b"])):  # small, and each error counts at every later position
        return TYPES["BF16"]
    return TYPES["BF16"] if tensor.shape[1] % kind.values else kind


def _heads(name: str, config: ModelConfig) -> int:
    """Heads in which rows of a tensor are permuted; 0 where they are not."""
    counts = zip(PERMUTED, (config.num_attention_heads, config.num_key_value_heads), strict=True)
    return next((count for stem, count in counts if f"{stem[-1]}_proj" in name), 0)


def _keys(checkpoint: Checkpoint, form: str) -> dict[str, Any]:
    config = checkpoint.config
    of_model = {
        "vocab_size": config.vocab_size,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": _kv_heads(config),
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.dimension_count": config.rotary_dim,
        "rope.freq_base": float(config.rope_theta),
        **_scaling(config),
        **_factors(config),
        **_of_states(config),
        **({"attention.sliding_window": config.sliding_window} if config.sliding_window else {}),
        **_pooling(config),
    }
    about = {
        "general.type": "model",
        "general.name": checkpoint.folder.name,
        "general.file_type": FORMATS[form].number,
        "general.quantization_version": QUANTISATION_VERSION,
    }
    named = {f"{_name(config)}.{key}": value for key, value in of_model.items()}
    return about | named | tokenizer_keys(checkpoint.tokenizer, config)


def _kv_heads(config: ModelConfig) -> int | list[int]:
    """One number for all layers; where some have a short convolution, one for each layer, 0 for those."""
    heads, conv = config.num_key_value_heads, config.layers_with_conv
    if not conv or config.delta:
        return heads
    return [heads * (layer not in conv) for layer in range(config.num_hidden_layers)]


def _of_states(config: ModelConfig) -> dict[str, Any]:
    """The keys of layers without attention (llama.cpp, conversion/qwen.py and lfm2.py).
    rope.dimension_sections share the pairs of a head out among time, height and width of images, which of
    text are one position."""
    if config.delta is None:
        return {"shortconv.l_cache": config.conv_taps} if config.layers_with_conv else {}
    heads, pairs = config.delta, config.rotary_dim // 2
    return {
        "ssm.conv_kernel": config.conv_taps,
        "ssm.state_size": heads.key_dim,
        "ssm.group_count": heads.keys,
        "ssm.time_step_rank": heads.values,
        "ssm.inner_size": heads.values * heads.value_dim,
        "full_attention_interval": config.layers_with_attention[0] + 1,
        "rope.dimension_sections": [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0],
    }


def _scaling(config: ModelConfig) -> dict[str, Any]:
    """Keys of the RoPE rule; that of Llama 3 is a tensor. Raises CheckpointError."""
    rule = config.rope_scaling
    if rule is None or isinstance(rule, Llama3Scaling):
        return {}
    if isinstance(rule, LinearScaling):
        return {"rope.scaling.type": "linear", "rope.scaling.factor": float(rule.factor)}
    raise CheckpointError(f"the RoPE rule {rule.name} is not written as GGUF; linear and llama3 are")


def _pooling(config: ModelConfig) -> dict[str, int]:
    """The key of an embedding model. Raises CheckpointError for a reranker whose head only scores."""
    pooling, scoring = config.roles
    if scoring and scoring.tensor == SCORE_ROWS:
        raise CheckpointError(
            f"{scoring.source} says that the head only scores, and it is not written as GGUF; take the "
            "Qwen3-Reranker that it was made from, which has an LM head"
        )
    numbers = {name: number for number, name in GGUF_POOLING.items()}
    return {"pooling_type": numbers[pooling.pooling]} if pooling else {}


def _factors(config: ModelConfig) -> dict[str, float]:
    """The keys of a family with factors."""
    factors = config.multipliers
    if not config.family.has_multipliers:
        return {}
    return {
        "attention.scale": factors.attention or config.head_dim**-0.5,
        "embedding_scale": factors.embedding,
        "residual_scale": factors.residual,
        "logit_scale": factors.logits_divisor,
    }


def _divisors(config: ModelConfig) -> dict[str, F32Array]:
    """The tensor that says the rule of Llama 3: what each frequency is divided by (llama.cpp,
    conversion/llama.py)."""
    rule = config.rope_scaling
    if not isinstance(rule, Llama3Scaling):
        return {}
    powers = np.float64(config.rope_theta) ** (np.arange(0, config.head_dim, 2) / config.head_dim)
    turns = rule.original_max_position_embeddings / (2 * np.pi * powers)
    kept = np.clip((turns - rule.low_freq_factor) / (rule.high_freq_factor - rule.low_freq_factor), 0, 1)
    return {ROPE_FREQS: (1 / ((1 - kept) / rule.factor + kept)).astype(np.float32)}


def _add(writer: Any, key: str, value: Any) -> None:
    """Add a key by the type that llama.cpp reads it as."""
    adders = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    adders.get(type(value), writer.add_array)(key, value)


def _add_info(writer: Any, planned: PlannedTensor) -> None:
    import gguf

    kind, shape = planned.kind, planned.shape
    if kind.name == "F32":
        writer.add_tensor_info(planned.name, shape, np.dtype(np.float32), planned.nbytes)
        return
    in_bytes = (*shape[:-1], shape[-1] // kind.values * kind.size)
    raw = gguf.GGMLQuantizationType(kind.number)
    writer.add_tensor_info(planned.name, in_bytes, np.dtype(np.uint8), planned.nbytes, raw_dtype=raw)


def _data(planned: PlannedTensor) -> Iterator[NDArray[Any]]:
    """The bytes of a tensor, some rows at a time: (rows, bytes), or float32 of a vector."""
    import gguf

    kind = planned.kind
    if kind.name == "F32":
        yield planned.in_file(widen(planned.parts[0].read()).reshape(planned.shape))
        return
    unit = planned.shape[0] // planned.heads if planned.heads else 1
    at_once = max(1, ROWS_AT_ONCE // unit) * unit
    if planned.delta:  # whose rows may come from anywhere
        at_once = planned.shape[0]
    for tensor, first in ((part, row) for part in planned.parts for row in range(0, part.shape[0], at_once)):
        values = widen(tensor.part(first, min(at_once, tensor.shape[0] - first)).read())
        if not np.isfinite(values).all():
            raise WeightsError(
                f"tensor {tensor.name} in {tensor.path} holds values that are no finite numbers, in rows "
                f"from {first} on, and cannot be quantised: the file is damaged, fetch it again"
            )
        if planned.heads:
            halves = values.reshape(-1, 2, unit // 2, values.shape[1])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        values = planned.in_file(values)
        with np.errstate(all="ignore"):
            yield gguf.quants.quantize(values, gguf.GGMLQuantizationType(kind.number)).view(np.uint8)
