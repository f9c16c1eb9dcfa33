"""How much memory a session takes, from the programs' argument tables, and whether there is that much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aerie.engine.config import ModelConfig
from aerie.engine.errors import TooLittleMemoryError
from aerie.engine.numerics import bf16
from aerie.engine.programs import LAYER_PROGRAMS, PROGRAMS, buffer_set, sharing
from aerie.multi_launch_builder import legal_seq_len
from aerie.multi_launch_builder.programs import plan_programs
from aerie.runtime.knobs import CHECK_MEMORY
from aerie.runtime.memory import available_bytes, buffer_bytes, resident_bytes, size, ways_to_save

ANSWER_TOKENS = 128
"""Of an answer after the longest prompt; a longer one takes more for its KV cache."""
WORKING_BYTES = 112 << 20
"""The interpreter with its libraries, the programs as objects, and what they work with."""
TOKEN_BYTES = 1 << 10
"""Of the tokenizer, for each token of the vocabulary."""


@dataclass(frozen=True)
class Footprint:
    """Bytes of a session's memory: weights and tables, and activations of a pass, in buffer objects; the KV
    cache of the longest prompt with an answer; the RoPE table on the host; and what Python works with."""

    weights: int
    activations: int
    kv_cache: int
    rope_table: int
    working: int

    @property
    def total(self) -> int:
        return self.weights + self.activations + self.kv_cache + self.rope_table + self.working

    @property
    def held(self) -> int:
        """What of it this process has already: the interpreter, its libraries, the tokenizer."""
        return min(self.working, resident_bytes())

    def __str__(self) -> str:
        parts = {
            "weights": self.weights,
            "activations": self.activations,
            "KV cache": self.kv_cache,
            "all else": self.rope_table + self.working,
        }
        return ", ".join(f"{name} {size(nbytes)}" for name, nbytes in parts.items())


def footprint(config: ModelConfig, seq_len: int, copies: int = 1) -> Footprint:
    """What a session takes whose programs are compiled for prompts of `seq_len` tokens.

    copies: how often the device keeps a buffer (DeviceAccess.copies). Raises UnsupportedShapeError.
    """
    plans = plan_programs(config.shape, seq_len)
    layers = config.num_hidden_layers
    sets = [
        (buffer_set(name, layer), plans[name].arguments)
        for name in PROGRAMS
        for layer in range(layers if name in LAYER_PROGRAMS else 1)
    ]
    buffers = buffer_bytes(sets, sharing(plans, layers), copies)
    positions = min(seq_len + ANSWER_TOKENS, config.context)
    of_position = 2 * config.num_key_value_heads * config.head_dim * bf16.itemsize
    rope_rows = max(seq_len, config.max_position_embeddings)
    return Footprint(
        weights=buffers.weights,
        activations=buffers.activations,
        kv_cache=layers * positions * of_position,
        rope_table=rope_rows * config.head_dim * bf16.itemsize,
        working=WORKING_BYTES + TOKEN_BYTES * config.vocab_size,
    )


def check_memory(
    config: ModelConfig, seq_len: int, copies: int = 1, prompt_tokens: int = 0, replaced: int = 0
) -> None:
    """Raises TooLittleMemoryError where a session takes more than this process could be given.

    prompt_tokens: how many it has to take at least. replaced: the compiled length of the session that gives
    way to this one, with all its memory; 0: there is none.
    """
    needed = footprint(config, seq_len, copies)
    ways = [*_shorter(config, seq_len, copies, prompt_tokens), *ways_to_save(copies), "take a smaller model"]
    what = f"the model with prompts of up to {seq_len} tokens"
    before = footprint(config, replaced, copies).total - needed.working if replaced else 0
    require(needed.total, what, ways, f" ({needed})", min(needed.held + before, resident_bytes()))


def require(needed: int, what: str, ways: Sequence[str], parts: str = "", held: int = 0) -> None:
    """Raises TooLittleMemoryError where this process could not be given `needed` bytes for `what`.

    ways: what could be done about it, beside ending other programs. held: bytes of `needed` that it has.
    """
    available = _with_held(held)
    if available is None or needed <= available or CHECK_MEMORY.get() == "0":
        return
    raise TooLittleMemoryError(
        f"{what} takes about {size(needed)} of memory{parts} and {size(available)} are available, so the "
        f"system would end it on the way: {', '.join([*ways, 'end other programs'])}, or try it all the same "
        f"with {CHECK_MEMORY.name}=0"
    )


def _with_held(held: int) -> int | None:
    available = available_bytes()
    return None if available is None else available + held


def _shorter(config: ModelConfig, seq_len: int, copies: int, least: int) -> Sequence[str]:
    """The longest of seq_len's halves that fits, and holds `least` tokens, as an advice."""
    half = seq_len // 2
    while half and least <= (length := legal_seq_len(half)) < seq_len:
        needed = footprint(config, length, copies)
        if needed.total <= (_with_held(needed.held) or 0):
            return [f"compile for at most {length} tokens with --seq-len (SEQ_LEN)"]
        half //= 2
    return ["shorten the prompt"] if least else []
