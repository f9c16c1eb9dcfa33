"""Graph variants: which there are, which programs they need, and that no bit depends on the variant."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from xdsl.dialects import func, scf
from xdsl.ir import SSAValue

from aerie.air_dialect import parse
from aerie.air_dialect.index_constants import constant_int
from aerie.air_dialect.ops import HierarchyOp
from aerie.air_dialect.values import root_value
from aerie.device import check
from aerie.device.transfers import extents, transfer_sides
from aerie.kernel_builder.arguments import WRITTEN_ROLES, Argument, ArgumentTable, Role, bf16, pack_bits
from aerie.kernel_builder.kernels import all_kernels
from aerie.multi_launch_builder import (
    GraphType,
    ModelShape,
    UnsupportedShapeError,
    Variant,
    build_variant_programs,
    graph_type,
    plan_variant_programs,
)
from aerie.multi_launch_builder.builder import build_program
from aerie.multi_launch_builder.program import ProgramPlan
from aerie.multi_launch_builder.programs import PLANS, plan_programs
from aerie.multi_launch_builder.shapes import DEMO, LLAMA_3_2_1B
from aerie.multi_launch_builder.variants import CONTEXTS, ROWS, plan_by_name
from aerie.virtual_npu import BuildOptions, cache

NARROW = ModelShape(
    emb_dim=64, n_heads=2, n_kv_heads=1, head_dim=32, hidden_dim=192, vocab_size=500, rms_norm_eps=1e-6
)
"""One KV head for all, an odd FFN width, a vocabulary that needs padding."""
WIDE_HEADS = ModelShape(
    emb_dim=192, n_heads=4, n_kv_heads=4, head_dim=128, hidden_dim=320, vocab_size=1024, rms_norm_eps=1e-5
)
"""No grouping, heads wider than the model."""
SHAPES = {"narrow": NARROW, "wide_heads": WIDE_HEADS, "demo": DEMO}


# ---- which there are ----


def test_a_variant_is_written_and_read_alike():
    assert str(Variant(8, 512)) == "AR-8xCL-512"
    assert {Variant.parse(text) for text in ("AR-8xCL-512", "ar-8_cl-512", " AR-8CL-512")} == {
        Variant(8, 512)
    }
    assert sorted([Variant(32, 512), Variant(8, 2048), Variant(8, 512)])[1] == Variant(8, 2048)


@pytest.mark.parametrize(
    ("rows", "context", "message"),
    [
        (
            12,
            512,
            "AR-12xCL-512: there are no programs for rows (AR)=12, only for 1, 8, 16, 32, 64, 128, 256, ",
        ),
        (12, 512, "the nearest legal value is 8"),
        (0, 512, "the nearest legal value is 1"),
        (4096, 4096, "rows (AR)=4096, only for .*; the nearest legal value is 2048"),
        (
            8,
            100,
            "there are no programs for context (CL)=100, only for 512, 1024, 2048, 4096, 8192, 16384, 32768",
        ),
        (8, 3000, "context (CL)=3000, only for .*; the nearest legal value is 2048"),
        (2048, 1024, "AR-2048xCL-1024: the 2048 tokens of a call do not fit its cache of 1024 positions; "),
        (2048, 1024, "the nearest legal one is AR-2048xCL-2048"),
    ],
)
def test_a_variant_that_there_is_not(rows, context, message):
    with pytest.raises(UnsupportedShapeError, match=re.escape(message).replace(r"\.\*", ".*")):
        Variant(rows, context)


def test_words_that_are_no_variant():
    with pytest.raises(
        UnsupportedShapeError, match=r"'AR8' is no variant: .*; write AR-8xCL-512 for 8 and 512"
    ):
        Variant.parse("AR8")


def test_programs_of_a_set_of_variants_are_there_once():
    plans = plan_variant_programs(
        DEMO, [Variant(8, 512), Variant(8, 2048), Variant(16, 512), Variant(64, 512)]
    )
    assert list(plans) == [
        *(
            "rms_gemms_rope_ar8",
            "cached_attn_ar8_cl512",
            "o_ffn_ar8",
            "lm_head_ar8",
            "cached_attn_ar8_cl2048",
        ),
        *("rms_gemms_rope_ar16", "cached_attn_ar16_cl512", "o_ffn_ar16", "lm_head_ar16"),
        *("rms_gemms_rope_ar64", "cached_attn_ar64_cl512", "o_ffn_ar64"),
    ]
    assert all(plan.name == name for name, plan in plans.items())
    facts = {name: (plan.kind, plan.rows, plan.context) for name, plan in plans.items()}
    assert facts["rms_gemms_rope_ar64"] == ("rms_gemms_rope", 64, 0)
    assert facts["cached_attn_ar8_cl2048"] == ("cached_attn", 8, 2048)
    assert facts["lm_head_ar16"] == ("lm_head", 16, 0)


def test_the_variant_of_one_row_is_decode():
    assert list(plan_variant_programs(DEMO, [Variant(1, 512)])) == [
        "rms_gemv_rope",
        "o_gemv_ffn",
        "lm_head_gemv",
    ]


def test_the_six_programs_tell_what_they_are():
    facts = {name: (plan.kind, plan.rows, plan.context) for name, plan in plan_programs(DEMO, 128).items()}
    assert facts["rms_gemms_rope"] == ("rms_gemms_rope", 128, 0)
    assert facts["flash_attn"] == ("flash_attn", 128, 0)
    assert facts["o_gemv_ffn"] == ("o_gemv_ffn", 1, 0)
    assert facts["lm_head_gemv"] == ("lm_head_gemv", 1, 0)


def found_plan(shape: ModelShape, name: str) -> ProgramPlan:
    plan = plan_by_name(shape, name)
    assert plan
    return plan


@pytest.mark.parametrize("name", plan_variant_programs(DEMO, [Variant(8, 512), Variant(2048, 32768)]))
def test_a_plan_is_found_by_its_name(name):
    plan = found_plan(DEMO, name)
    assert (plan.name, plan.kind) == (name, name.partition("_ar")[0])


@pytest.mark.parametrize(
    "name", ["o_ffn", "o_ffn_ar8_cl512", "cached_attn_ar8", "flash_attn_ar8", "o_ffn_arx"]
)
def test_a_name_that_no_program_of_variants_has(name):
    assert plan_by_name(DEMO, name) is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "lm_head_ar64",
            "lm_head_ar64: lm_head has programs of 8, 16, 32 rows alone; .* one is lm_head_ar32",
        ),
        ("o_ffn_ar1", "o_ffn has programs of 8, .*, 2048 rows alone; the nearest legal one is o_ffn_ar8"),
        ("o_ffn_ar9", "no programs for rows .AR.=9, .* the nearest legal value is 8"),
        ("cached_attn_ar8_cl500", "no programs for context .CL.=500, .* the nearest legal value is 512"),
    ],
)
def test_a_name_of_a_program_that_there_is_not(name, message):
    with pytest.raises(UnsupportedShapeError, match=message):
        plan_by_name(DEMO, name)


def test_a_shape_that_a_kernel_refuses_names_program_and_launch():
    with pytest.raises(
        UnsupportedShapeError,
        match=r"program cached_attn_ar8_cl32768, launch cached_attention: cached_attention: m=32768 makes "
        r"256 tiles of 32 keys .* use an m of at most 32640",
    ):
        build_variant_programs(WIDE_HEADS, [Variant(8, 32768)])
    with pytest.raises(UnsupportedShapeError, match="emb_dim=100 is not a positive multiple of 64"):
        build_variant_programs(ModelShape(100, 2, 1, 32, 192, 500, 1e-5), [Variant(8, 512)])


# ---- their tables ----


def signature(plan, role):
    return {a.name: a.shape for a in plan.arguments if a.role is role}


def test_one_copy_of_weights_serves_all():
    several = plan_variant_programs(LLAMA_3_2_1B, [Variant(n, 2048) for n in ROWS])
    six = plan_programs(LLAMA_3_2_1B, 2048)
    decode = {
        name: signature(six[name], Role.WEIGHT) for name in ("rms_gemv_rope", "o_gemv_ffn", "lm_head_gemv")
    }
    of_kind = {"rms_gemms_rope": "rms_gemv_rope", "o_ffn": "o_gemv_ffn", "lm_head": "lm_head_gemv"}
    for plan in several.values():
        wanted = {} if plan.kind == "cached_attn" else decode[of_kind.get(plan.kind, plan.kind)]
        assert signature(plan, Role.WEIGHT) == wanted
        assert signature(plan, Role.LUT) == {}


def test_what_varies_is_an_input():
    plans = plan_variant_programs(DEMO, [Variant(8, 1024)])
    assert signature(plans["rms_gemms_rope_ar8"], Role.INPUT) == {"x": (8, 256), "rope_rows": (8, 64)}
    attention = plans["cached_attn_ar8_cl1024"]
    cache = {"keys": (2, 1024, 64), "values": (2, 1024, 64)}
    assert signature(attention, Role.INPUT) == {"q_roped": (8, 256), **cache, "mask": (8, 32)}
    assert attention.arguments["mask"].dtype.name == "i32"
    assert signature(attention, Role.OUTPUT) == {"attn_out": (8, 256)}
    assert signature(plans["lm_head_ar8"], Role.OUTPUT) == {f"logits_{i}": (8, 256) for i in range(8)}


@pytest.mark.parametrize(
    ("rows", "product"), [(8, "gemm_rows"), (32, "gemm_rows"), (64, "gemm"), (2048, "gemm")]
)
def test_few_rows_are_multiplied_in_blocks_that_read_a_weight_once(rows, product):
    plans = plan_variant_programs(DEMO, [Variant(rows, 2048)])
    steps = [step for plan in plans.values() if plan.rows == rows for step in plan.launches]
    assert {step.kernel for step in steps if "k" in step.parameters} == {product}


def test_tables_of_rows_that_six_programs_have_are_theirs():
    """But for the rows of RoPE, which are an input."""
    for name, kind in (("rms_gemms_rope_ar128", "rms_gemms_rope"), ("o_ffn_ar128", "o_ffn")):
        plan, six = found_plan(DEMO, name), PLANS[kind](DEMO, 128)
        assert [step.label for step in plan.launches] == [step.label for step in six.launches]
        assert [step.parameters for step in plan.launches] == [step.parameters for step in six.launches]
        assert plan.options == six.options


# ---- what they compute ----


@functools.cache
def built(shape, name):
    plan = plan_by_name(shape, name) or plan_programs(shape, 64)[name]
    return build_program(plan)


def run(program, given):
    """The arrays of what a program makes of these, on the virtual NPU; what it overwrites begins as NaN."""
    library = cache.load(cache.ProgramSource(program.text, program.name, (), BuildOptions.from_knobs()))
    found = {
        a.name: np.full(a.shape, np.nan, a.dtype.numpy)
        if a.role in WRITTEN_ROLES
        else np.array(given[a.name], a.dtype.numpy, order="C")
        for a in program.arguments
    }
    library.run(program.name, [found[a.name].ctypes.data for a in program.arguments])
    return {a.name: found[a.name] for a in program.arguments if a.role is Role.OUTPUT}


def drawn(plan, seed=3):
    """Normal numbers for what is read, weights scaled so that sums keep their size."""
    rng = np.random.default_rng(seed)
    read = [a for a in plan.arguments if a.role not in WRITTEN_ROLES]
    scale = {a.name: a.shape[-1] ** -0.5 if a.role is Role.WEIGHT and len(a.shape) > 1 else 1 for a in read}
    return {a.name: (scale[a.name] * rng.standard_normal(a.shape)).astype(a.dtype.numpy) for a in read}


def rows_of(given, first, count, plan):
    """The same for `count` rows from `first` on: what has a row for each token is cut."""
    tokens = {a.name for a in plan.arguments if a.role not in (Role.WEIGHT,)}
    return {name: array[first : first + count] if name in tokens else array for name, array in given.items()}


def random_shape(seed):
    rng = np.random.default_rng(seed)
    head_dim, n_kv_heads = int(rng.choice([32, 64, 96, 128])), int(rng.integers(1, 4))
    return ModelShape(
        emb_dim=64 * int(rng.integers(1, 7)),
        n_heads=n_kv_heads * 2 * int(rng.integers(1, 4)),
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        hidden_dim=64 * int(rng.integers(1, 9)),
        vocab_size=int(rng.integers(1, 3000)),
        rms_norm_eps=1e-5,
    )


def some(first, *others):
    """The first in every run of the tests, the others in a long one."""
    return [first, *(pytest.param(each, marks=pytest.mark.slow) for each in others)]


@pytest.mark.parametrize("shape", some(NARROW, WIDE_HEADS, random_shape(1)), ids=str)
@pytest.mark.parametrize("kind", ["rms_gemms_rope", "o_ffn"])
def test_a_row_has_the_bits_of_the_program_of_a_prompt(kind, shape):
    """Wherever it stands, and however many come with it."""
    whole = built(shape, kind)
    given = drawn(whole)
    want = run(whole, given)
    if kind == "rms_gemms_rope":
        given["rope_rows"] = given.pop("rope_lut")
    for rows, first in ((8, 8), (32, 32), (64, 0)):
        program = built(shape, f"{kind}_ar{rows}")
        found = run(program, rows_of(given, first, rows, program))
        for name, array in want.items():
            assert found[name].tobytes() == array[first : first + rows].tobytes(), (rows, name)


def test_a_row_of_logits_does_not_depend_on_its_company():
    thirty_two = built(NARROW, "lm_head_ar32")
    given = drawn(thirty_two)
    want = run(thirty_two, given)
    program = built(NARROW, "lm_head_ar8")
    found = run(program, rows_of(given, 3, 8, program))
    assert all(found[name].tobytes() == want[name][3:11].tobytes() for name in want)
    one = run(built(NARROW, "lm_head_gemv"), {**given, "x": given["x"][3]})
    for name, logits in one.items():
        np.testing.assert_allclose(want[name][3].astype(np.float32), logits.astype(np.float32), 2**-7, 1e-2)


def causal(first, rows, positions):
    return pack_bits(np.arange(positions)[None, :] <= first + np.arange(rows)[:, None])


@pytest.mark.parametrize("shape", some(DEMO, NARROW, random_shape(3)), ids=str)
def test_chunks_of_a_prompt_have_the_bits_of_flash_attn(shape):
    """192 tokens at once, and in chunks, the last one padded, against a cache that is NaN beyond them."""
    tokens, context = 192, 512
    whole = build_program(plan_programs(shape, tokens)["flash_attn"])
    given = drawn(whole)
    want = run(whole, given)["attn_out"]
    found = np.zeros_like(want)
    keys, values = (np.full((shape.n_kv_heads, context, shape.head_dim), np.nan, bf16.numpy) for _ in "kv")
    for rows, first, wanted in ((64, 0, 64), (64, 64, 64), (8, 128, 8), (16, 136, 16), (64, 152, 40)):
        taken = slice(first, first + wanted)
        for into, name in ((keys, "k_roped"), (values, "v")):
            heads = given[name][taken].reshape(wanted, shape.n_kv_heads, shape.head_dim)
            into[:, taken] = heads.swapaxes(0, 1)
        queries = np.full((rows, shape.q_dim), 7, bf16.numpy)
        queries[:wanted] = given["q_roped"][taken]
        inputs = {"q_roped": queries, "keys": keys, "values": values}
        mask = causal(first, rows, context) * (np.arange(rows)[:, None] < wanted)
        program = built(shape, f"cached_attn_ar{rows}_cl{context}")
        found[taken] = run(program, {**inputs, "mask": mask})["attn_out"][:wanted]
    assert found.tobytes() == want.tobytes()


@pytest.mark.slow
def test_a_cache_of_layers_with_a_window_has_the_bits_of_a_larger_one():
    """With 768 positions the rows of cores have three tiles each, and one less than with 1024."""
    want = None
    for context in (1024, 768):
        program = built(NARROW, f"cached_attn_ar8_cl{context}")
        given = drawn(built(NARROW, "cached_attn_ar8_cl1024"))
        given |= {name: np.ascontiguousarray(given[name][:, :context]) for name in ("keys", "values")}
        found = run(program, {**given, "mask": causal(700, 8, context)})["attn_out"].tobytes()
        assert found == (want or found)
        want = found


@pytest.mark.parametrize("rows", some(8, 16, 64))
def test_every_launch_computes_its_reference(rows):
    for plan in plan_variant_programs(NARROW, [Variant(rows, 512)]).values():
        special = all_kernels()[plan.launches[0].kernel].random_inputs
        own = special(plan.launches[0].parameters, np.random.default_rng(4)) if special else {}
        arrays = drawn(plan) | {plan.launches[0].wiring[name]: array for name, array in own.items()}
        found = run(built(NARROW, plan.name), arrays)
        for step in plan.launches:
            read = {inner: arrays[outer] for inner, outer in step.wiring.items() if outer in arrays}
            made = all_kernels()[step.kernel].reference(step.parameters, read)
            arrays |= {step.wiring[inner]: array for inner, array in made.items()}
        for name, got in found.items():
            left, right = got.astype(np.float64), arrays[name].astype(np.float64)
            assert np.abs(left - right).sum() <= 1e-2 * np.abs(right).sum(), (plan.name, name)


@pytest.mark.parametrize(
    "variant",
    some(Variant(8, 512), Variant(32, 16384), Variant(64, 512), Variant(2048, CONTEXTS[-1])),
    ids=str,
)
def test_variants_of_a_published_model_fit_the_device(variant):
    for plan in plan_variant_programs(LLAMA_3_2_1B, [variant]).values():
        program = build_program(plan)
        assert (program.kind, program.rows, program.context) == (plan.kind, plan.rows, plan.context)
        check(parse(program.text)).raise_faults()


# ---- what a table is for ----


def test_what_our_programs_are_for():
    plans = plan_programs(DEMO, 128) | plan_variant_programs(DEMO, [Variant(8, 512)])
    kinds = {name: graph_type(plan.arguments) for name, plan in plans.items()}
    decoders = {"rms_gemms_rope", "rms_gemv_rope", "rms_gemms_rope_ar8"}
    heads = {"lm_head_gemv", "lm_head_ar8"}
    assert {name for name, kind in kinds.items() if kind is GraphType.DECODER} == decoders
    assert {name for name, kind in kinds.items() if kind is GraphType.LMHEAD} == heads
    rest = {kinds[name] for name in kinds.keys() - decoders - heads}
    assert rest == {GraphType.DEFAULT}


@pytest.mark.parametrize(
    ("inputs", "outputs", "kind"),
    [
        ("input_ids", "hidden_states", GraphType.LUT),
        ("hidden_states past_key_0 past_value_0", "present_key_0 present_value_0", GraphType.DECODER_PREFILL),
        ("x rope_rows", "k_roped v", GraphType.DECODER_PREFILL),
        ("hidden_states past_key_0", "hidden_states past_key_0_out past_value_0_out", GraphType.DECODER),
        ("hidden_states", "logits", GraphType.LMHEAD),
        ("input_ids past_key_0", "logits past_key_0_out", GraphType.DEFAULT),
        ("x", "x_next", GraphType.DEFAULT),
    ],
)
def test_what_other_tables_are_for(inputs, outputs, kind):
    assert graph_type(names_table(inputs, outputs)) is kind


def names_table(inputs, outputs):
    """Arguments of these names; a name that is both input and output has its output."""
    taken, made = inputs.split(), outputs.split()
    arguments = [Argument(name, (1,), bf16, Role.INPUT) for name in taken if name not in made]
    return ArgumentTable([*arguments, *(Argument(name, (1,), bf16, Role.OUTPUT) for name in made)])


@pytest.mark.parametrize(("inputs", "outputs"), [("pixel_values", "x"), ("x", "image_features")])
def test_an_encoder_of_images_is_refused(inputs, outputs):
    with pytest.raises(
        UnsupportedShapeError, match=r"IMAGE_ENCODER: a program with an argument '\w+' encodes"
    ):
        graph_type(names_table(inputs, outputs))


# ---- what is read from memory ----


def known(number: int | None) -> int:
    assert number is not None
    return number


def trips(*bounds: SSAValue) -> int:
    """Of a loop with a first value, an end and a step that are constants."""
    return len(range(*(known(constant_int(bound)) for bound in bounds)))


def repeats(op):
    """How often an operation is done in a call of its program, by loops, launches, segments and herds."""
    times = 1
    while (op := op.parent_op()) is not None:
        if isinstance(op, scf.ForOp):
            times *= trips(op.lb, op.ub, op.step)
        elif isinstance(op, scf.ParallelOp):
            bounds = zip(op.lowerBound, op.upperBound, op.step, strict=True)
            times *= math.prod([trips(*three) for three in bounds])
        elif isinstance(op, HierarchyOp):
            times *= math.prod(extents(op))
    return times


def reads(program):
    """How many elements a call reads of each argument, by what its text moves from memory."""
    found = Counter[str]()
    for op in parse(program.text).walk():
        for side in transfer_sides(op):
            argument: Any = root_value(side.memref)
            if side.reads and side.space == 0 and isinstance(argument.owner.parent_op(), func.FuncOp):
                found[program.arguments[argument.index].name] += math.prod(map(known, side.sizes)) * repeats(
                    op
                )
    return found


@pytest.mark.parametrize(("shape", "rows"), [(DEMO, 16), (LLAMA_3_2_1B, 8), (LLAMA_3_2_1B, 32)], ids=str)
def test_few_rows_read_each_weight_once(shape, rows):
    """In bytes of one call: those of the weights, for 8 rows as for 32."""
    for kind in ("rms_gemms_rope", "o_ffn", "lm_head"):
        program = build_program(found_plan(shape, f"{kind}_ar{rows}"))
        weights = [one for one in program.arguments if one.role is Role.WEIGHT and len(one.shape) == 2]
        counted = reads(program)
        assert len(weights) in (3, 4, 8)
        assert {one.name: counted[one.name] for one in weights} == {
            one.name: math.prod(one.shape) for one in weights
        }


def test_many_rows_read_weights_again():
    """For each block of rows that the cores hold: so the count above sees a second reading."""
    program = build_program(found_plan(LLAMA_3_2_1B, "o_ffn_ar2048"))
    assert reads(program)["w_down"] > 2 * math.prod(program.arguments["w_down"].shape)
