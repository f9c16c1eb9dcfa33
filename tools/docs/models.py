"""The pages of models: families, sizes that fit, and the programs of a model with their arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from md_text import code, page, section, table

from aerie.engine import unsupported_models
from aerie.engine.decode_paths import DECODE_PATHS, FEATURES
from aerie.engine.families import FAMILIES
from aerie.multi_launch_builder.programs import plan_programs
from aerie.multi_launch_builder.shape_limits import rules
from aerie.multi_launch_builder.shapes import LLAMA_3_2_1B
from aerie.multi_launch_builder.variants import Variant, plan_variant_programs

SEQ_LEN = 2048
VARIANT = Variant(8, 512)


def models_page() -> str:
    families = [
        (code(family.model_type), code(family.name), _has(family), family.published_sizes)
        for family in sorted(FAMILIES.values(), key=lambda each: each.model_type)
    ]
    limits = [(code(rule.name), rule.step, rule.max, rule.why_max) for rule in rules()]
    facts = [
        (
            ", ".join(map(code, fact.names)),
            " or ".join(code(repr(value)) for value in fact.values) or "none",
            fact.reason,
        )
        for fact in unsupported_models.REQUIRED_ENTRIES
    ]
    return page(
        "Models",
        section(
            "Families",
            "The entry `architectures` of `config.json` names one of these.",
            table(
                ("model_type", "architecture", "beside RMSNorm, GQA, RoPE and SwiGLU", "published sizes"),
                families,
            ),
        ),
        section(
            "Sizes that the kernels take",
            "`num_key_value_heads` divides `num_attention_heads`. Any vocabulary and up to 1000 layers "
            "will do.",
            table(("size", "multiple of", "at most", "why the limit"), limits),
        ),
        section(
            "Entries of config.json that are refused",
            "An entry that is absent or null is no obstacle. With another value than these the model is "
            "refused, with the reason.",
            table(("entry", "taken values", "reason"), facts),
        ),
    )


def families_table() -> str:
    """The table of the README."""
    rows = [
        (
            code(family.model_type),
            family.published_sizes,
            _has(family) or "-",
            family.run_with or "random weights",
        )
        for family in sorted(FAMILIES.values(), key=lambda each: each.model_type.lower())
    ]
    return table(("`model_type`", "published sizes", "beside a Llama's layers", "was run with"), rows)


def _has(family: Any) -> str:
    parts = ["biases of queries, keys and values"] * family.qkv_bias
    parts += [f"norms of queries and keys{', over all heads' * family.qk_norm_spans_heads}"] * family.qk_norm
    parts += ["norms after attention and FFN"] * family.norm_after
    parts += ["no norms before them"] * (not family.norm_before)
    parts += [f"no RoPE in every layer of {family.no_rope_interval}"] * bool(family.no_rope_interval)
    parts += ["RoPE on a part of each head"] * family.has_partial_rotary
    parts += ["fused tensors"] * family.is_fused
    parts += ["factors of embeddings, scores, residuals and logits"] * family.has_multipliers
    parts += ["a sliding window"] * (family.sliding_window is not None)
    other = "linear attention" if family.has_delta else "short convolutions"
    parts += [f"{other} in place of attention in most layers"] * bool(family.conv_tensors)
    parts += ["a gate on attention"] * family.attention_gate
    parts += ["own RoPE in layers with a window"] * (family.local_rope_theta is not None)
    parts += ["norms with 1 + weight"] * bool(family.norm_weight_offset)
    parts += ["GeGLU"] * (family.activation != "silu")
    parts += ["scaled embeddings"] * family.scales_embeddings
    parts += ["block diffusion"] * (family.diffusion is not None)
    return ", ".join(parts)


def programs_page() -> str:
    return page(
        "Programs",
        "A program is MLIR text and this table of its arguments. The numbers are those of Llama-3.2-1B. All "
        "arguments are bf16, but for a mask of i32. `aerie mlir` writes the text and the same table as JSON.",
        table(
            ("role", "written by the host", "read back"),
            (
                ("input", "before every call", "no"),
                ("weight, lut", "once per buffer object", "no"),
                ("intermediate", "never; the program overwrites it", "no"),
                ("output", "never", "when asked for"),
            ),
        ),
        section(
            "What each decode path can do",
            "`seq_len` is the path `guide` with six programs for one length of prompts. Draft tokens, "
            "diffusion blocks and batches of a model with variants use `rows`.",
            table(("", *map(code, DECODE_PATHS)), map(_supported, FEATURES)),
        ),
        section(
            f"The six programs of the decode path guide, for prompts of {SEQ_LEN} tokens",
            *_programs(plan_programs(LLAMA_3_2_1B, SEQ_LEN)),
        ),
        section(
            f"The programs of the variant {VARIANT}",
            *_programs(plan_variant_programs(LLAMA_3_2_1B, [VARIANT])),
        ),
    )


def _supported(feature: str) -> list[str]:
    """A row: the feature, and of each decode path "yes" or the reason against it."""
    reasons = [path.reason_against(feature) for path in DECODE_PATHS.values()]
    return [FEATURES[feature], *(f"no: {reason}" if reason else "yes" for reason in reasons)]


def _programs(plans: dict[str, Any]) -> Iterator[str]:
    for name, plan in plans.items():
        launches = ", ".join(launch.label for launch in plan.launches)
        rows = [(code(each.name), "x".join(map(str, each.shape)), each.role.value) for each in plan.arguments]
        yield section(
            code(name),
            f"{len(plan.launches)} launches: {launches}.",
            table(("argument", "shape", "role"), rows),
            level=3,
        )
