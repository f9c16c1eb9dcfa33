"""Estimates the memory of a session, from the programs' argument tables, and checks that it is available."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from aerie.engine.admission import MAX_RUNNING_REQUESTS
from aerie.engine.config import ModelConfig
from aerie.engine.errors import TooLittleMemoryError
from aerie.engine.numerics import bf16
from aerie.engine.page_manager import PAGE_SIZE
from aerie.engine.page_pool import kv_page_bytes, pages_for, pool_bytes
from aerie.engine.program_library import (
    RuntimeOptions,
    all_program_names,
    first_program_names,
    names_with_kinds,
    programs_of,
)
from aerie.engine.programs import (
    CACHE,
    HEADS,
    WITHOUT_LAYERS,
    SharedBufferNames,
    buffer_set,
    is_for_layer,
)
from aerie.engine.variant_set import VariantSet
from aerie.engine.variants import gathered_contexts, window_contexts
from aerie.kernel_builder.arguments import ArgumentTable
from aerie.multi_launch_builder import program_store, round_up_seq_len
from aerie.multi_launch_builder.program import ProgramPlan
from aerie.multi_launch_builder.shapes import SEQ_LEN_STEP
from aerie.runtime.knobs import CHECK_MEMORY
from aerie.runtime.memory import (
    BufferBytes,
    available_bytes,
    buffer_bytes,
    format_bytes,
    memory_advice,
    resident_bytes,
)

ANSWER_TOKENS = 128
"""Tokens of an answer after the longest prompt; a longer answer takes more KV cache."""
WORKING_BYTES = 112 << 20
"""Bytes of the interpreter with its libraries, of the programs as objects, and of temporary data."""
TOKEN_BYTES = 1 << 10
"""Bytes of the tokenizer, for each token of the vocabulary."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of a session's memory: weights, tables and activations in buffer objects; pages and gathered
    cache of the longest prompt with an answer, and its state; the RoPE table on the host; Python's own
    memory; and, if kv_pool is set, the whole page pool with swap space, all gathered caches and the states of
    as many sequences as run at once."""

    weights: int
    activations: int
    kv_cache: int
    rope_table: int
    working: int
    kv_pool: int = 0

    @property
    def total(self) -> int:
        kv_and_rope = self.kv_cache + self.kv_pool + self.rope_table
        return self.weights + self.activations + kv_and_rope + self.working

    @property
    def already_allocated(self) -> int:
        """Bytes of it that this process has already: the interpreter, its libraries, the tokenizer."""
        return min(self.working, resident_bytes())

    @property
    def additional(self) -> int:
        """Bytes of it for a process that has the interpreter and its libraries already."""
        return self.total - WORKING_BYTES

    def __str__(self) -> str:
        parts = {
            "weights": self.weights,
            "activations": self.activations,
            "KV cache": self.kv_cache,
            **({"KV pool": self.kv_pool} if self.kv_pool else {}),
            "all else": self.rope_table + self.working,
        }
        return ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in parts.items())


@dataclass(frozen=True)
class SessionNeeds:
    """What a session must hold.

    seq_len: the prompt length of the six programs, 0 with variants. names: the programs in use. positions: of
    the KV cache. keys_before_rope: whether the cache stores keys before RoPE too.
    """

    seq_len: int
    names: tuple[str, ...]
    positions: int
    keys_before_rope: bool = False

    def __str__(self) -> str:
        return f"prompts of up to {self.seq_len} tokens" if self.seq_len else f"{self.positions} positions"

    def plans(self, config: ModelConfig) -> Sequence[ProgramPlan]:
        """The plans of its programs."""
        if self.seq_len:
            names = names_with_kinds(config, programs_of(config))
            return [*program_store.plan_six(config.shape, self.seq_len, names).values()]
        return program_store.load_plans_by_name(config.shape, names_with_kinds(config, self.names))


def footprint(config: ModelConfig, needs: SessionNeeds, copies: int = 1, devices: int = 1) -> MemoryEstimate:
    """The memory of a session.

    copies: number of copies that the device has of a buffer (DeviceAccess.copies_per_buffer). devices: number
    of devices of this process with a part of this config each; only the first has the LM head. Raises
    UnsupportedShapeError.
    """
    plans, layers = needs.plans(config), len(config.layers_with_attention)
    buffers = _buffers(plans, config, copies)
    without_head = _buffers([plan for plan in plans if plan.kind not in HEADS], config, copies)
    kinds = (3 if needs.keys_before_rope else 2) + (
        0 if needs.seq_len else 2
    )  # in pages, and in the window on them
    position_bytes = kinds * config.num_key_value_heads * config.head_dim * bf16.itemsize
    rope_rows = max(needs.seq_len, config.max_position_embeddings)
    return MemoryEstimate(
        weights=buffers.weights + (devices - 1) * without_head.weights,
        activations=buffers.activations + (devices - 1) * without_head.activations,
        kv_cache=devices
        * int(
            needs.positions * (layers * position_bytes + config.states.nbytes) + config.states.per_sequence
        ),
        rope_table=rope_rows * config.rotary_dim * bf16.itemsize,
        working=WORKING_BYTES + TOKEN_BYTES * config.vocab_size,
    )


def _buffers(plans: Sequence[ProgramPlan], config: ModelConfig, copies: int) -> BufferBytes:
    layers = config.num_hidden_layers
    sets = [
        (buffer_set(plan, layer), _without_cache(plan))
        for plan in plans
        for layer in range(1 if plan.kind in WITHOUT_LAYERS else layers)
        if is_for_layer(config, plan, layer)
    ]
    return buffer_bytes(sets, SharedBufferNames(plans, config.rope_of_layer), copies)


def _without_cache(plan: ProgramPlan) -> ArgumentTable:
    return ArgumentTable(argument for argument in plan.arguments if argument.name not in CACHE)


def session_needs(config: ModelConfig, options: RuntimeOptions) -> SessionNeeds:
    """The needs of a session with these options, for the known prompt and an answer; with variants named in
    the options, for all of these."""
    blocks, keys_before_rope = options.variant_set(config), options.context_end_policy(config).drops
    if options.variants:
        return replace(needs_for_variants(config, blocks), keys_before_rope=keys_before_rope)
    return replace(needs_for_prompt(config, blocks, options.prompt_tokens), keys_before_rope=keys_before_rope)


def needs_for_prompt(config: ModelConfig, blocks: VariantSet, tokens: int) -> SessionNeeds:
    """The needs for a prompt of this number of tokens, or of `seq_len`, and an answer."""
    positions = min((blocks.seq_len or tokens) + ANSWER_TOKENS, config.context)
    if blocks.seq_len:
        return SessionNeeds(blocks.seq_len, (), positions)
    context = next((one for one in blocks.contexts if one >= positions), blocks.contexts[-1])
    return SessionNeeds(0, tuple(first_program_names(blocks, tokens)), context)


def needs_for_variants(config: ModelConfig, blocks: VariantSet) -> SessionNeeds:
    """The needs if all variants are used."""
    return SessionNeeds(0, tuple(all_program_names(config, blocks)), blocks.largest_context or 0)


def estimate_all_variants(config: ModelConfig, options: RuntimeOptions) -> MemoryEstimate:
    """The memory of a session with these options, if all variants are used. Raises UnsupportedShapeError."""
    needs = replace(
        needs_for_variants(config, options.variant_set(config)),
        keys_before_rope=options.context_end_policy(config).drops,
    )
    return _footprint(config, options, needs, options.backend.access.copies_per_buffer)


def check_memory(config: ModelConfig, options: RuntimeOptions) -> None:
    """Raises TooLittleMemoryError if a session takes more memory than this process can get."""
    copies, needs = options.backend.access.copies_per_buffer, session_needs(config, options)
    needed = _footprint(config, options, needs, copies)
    pool_advice = ["give a smaller kv_pool"] if options.kv_pool else []
    remedies = [
        *pool_advice,
        *_smaller(config, options, copies),
        *memory_advice(copies),
        "take a smaller model",
    ]
    require(
        needed.total,
        f"the model with {needs}",
        remedies,
        f" ({needed})",
        min(needed.already_allocated, resident_bytes()),
    )


def _footprint(
    config: ModelConfig, options: RuntimeOptions, needs: SessionNeeds, copies: int
) -> MemoryEstimate:
    """The memory of a session with these options in this process."""
    part, devices = options.part_config(config), max(1, len(options.devices))
    estimate = footprint(part, needs, copies, devices)
    contexts = options.variant_set(config).contexts
    if options.kv_pool is None or not contexts:
        return estimate
    kv_config = part.with_repeated_layers(devices)
    pages = pages_for(kv_config, options.kv_pool, 0, None)
    beside = (min(MAX_RUNNING_REQUESTS, pages) - 1) * kv_config.states.per_sequence  # one is in kv_cache
    gathered = gathered_bytes(kv_config, contexts)
    return replace(estimate, kv_pool=pool_bytes(kv_config, pages) + gathered + beside)


def gathered_bytes(config: ModelConfig, contexts: Sequence[int]) -> int:
    """Maximum bytes of the gathered caches of many requests, each context once."""
    all_contexts = window_contexts if config.layers_with_window else gathered_contexts
    return sum(all_contexts(contexts)) * kv_page_bytes(config) // PAGE_SIZE


def require(
    needed: int, purpose: str, remedies: Sequence[str], parts: str = "", already_allocated: int = 0
) -> None:
    """Raises TooLittleMemoryError if this process cannot get `needed` bytes for `purpose`.

    remedies: what the user can do, beside ending other programs. already_allocated: bytes of `needed` that
    the process has.
    """
    available = _with_held(already_allocated)
    if available is None or needed <= available or CHECK_MEMORY.get() == "0":
        return
    raise TooLittleMemoryError(
        f"{purpose} takes about {format_bytes(needed)} of memory{parts} and {format_bytes(available)} are "
        f"available, so the system would end it on the way: {', '.join([*remedies, 'end other programs'])}, "
        f"or try it all the same with {CHECK_MEMORY.name}=0"
    )


def _with_held(held: int) -> int | None:
    available = available_bytes()
    return None if available is None else available + held


def _smaller(config: ModelConfig, options: RuntimeOptions, copies: int) -> Sequence[str]:
    """Advice for the largest smaller setting that fits and holds the prompt."""
    for less, advice in _less(config, options):
        needed = _footprint(config, options, less, copies)
        if needed.total <= (_with_held(needed.already_allocated) or 0):
            return [advice]
    return ["shorten the prompt"] if options.prompt_tokens else []


def _less(config: ModelConfig, options: RuntimeOptions) -> Iterator[tuple[SessionNeeds, str]]:
    """Smaller settings: half the prompt length; or fewer variants, without the largest context first, and
    without its most rows."""
    blocks, min_tokens = options.variant_set(config), max(1, options.prompt_tokens)
    length = blocks.seq_len
    while length > SEQ_LEN_STEP and round_up_seq_len(length // 2) >= min_tokens:
        length = round_up_seq_len(length // 2)
        positions = min(length + ANSWER_TOKENS, config.context)
        yield (
            SessionNeeds(length, (), positions),
            f"compile for at most {length} tokens with --seq-len (SEQ_LEN)",
        )
    variants = sorted(blocks.variants, key=lambda one: (one.context, one.rows)) if options.variants else []
    while len(variants) > 1 and variants[-2].context >= min_tokens:
        variants.pop()
        names = " ".join(f"{one.rows}x{one.context}" for one in variants)
        fewer = replace(blocks, variants=tuple(variants))
        yield needs_for_variants(config, fewer), f"take --variants '{names}' (VARIANTS)"
