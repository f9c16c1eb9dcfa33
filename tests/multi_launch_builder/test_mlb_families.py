"""What families add to a Llama's layer: biases of queries, keys and values, norms of heads, and norms in
other places."""

from __future__ import annotations

import dataclasses
import functools

import ml_dtypes
import numpy as np
import pytest

from aerie.kernel_builder.arguments import WRITTEN_ROLES, IllegalShapeError, Role
from aerie.kernel_builder.kernels import all_kernels, rms_norm
from aerie.kernel_builder.testing import run as run_kernel
from aerie.multi_launch_builder import ModelShape
from aerie.multi_launch_builder.builder import build_program
from aerie.multi_launch_builder.programs import plan_programs
from aerie.multi_launch_builder.shape_limits import check_shape
from aerie.multi_launch_builder.shapes import DEMO, UnsupportedShapeError
from aerie.multi_launch_builder.variants import plan_by_name
from aerie.virtual_npu import BuildOptions, cache

BF16 = ml_dtypes.bfloat16
QWEN2 = ModelShape(192, 3, 1, 64, 64, 300, 1e-6, qkv_bias=True)
QWEN3 = ModelShape(128, 4, 2, 96, 64, 300, 1e-6, qk_norm=True)
BOTH = ModelShape(64, 2, 2, 32, 64, 300, 1e-6, qkv_bias=True, qk_norm=True)
SHAPES = {"qwen2": QWEN2, "qwen3": QWEN3, "both": BOTH}
OLMO2 = ModelShape(
    *(128, 2, 1, 64, 128, 300, 1e-6),
    qk_norm=True,
    qk_norm_spans_heads=True,
    norm_before=False,
    norm_after=True,
    norm_round_once=True,
)
FOUR_NORMS = dataclasses.replace(OLMO2, qk_norm_spans_heads=False, norm_before=True, norm_weight_offset=1)
"""As Gemma 3 has them."""
PLACES = {"olmo2": OLMO2, "four norms": FOUR_NORMS}
RUN = ["both", *(pytest.param(family, marks=pytest.mark.slow) for family in ("qwen2", "qwen3"))]
"""What runs on the virtual NPU."""
PROGRAMS = ("rms_gemms_rope", "rms_gemv_rope", "rms_gemms_rope_ar8")
OF_FAMILIES = {f"{of}_{what}" for of in "qkv" for what in ("product", "norm", "normed")} | {"bq", "bk", "bv"}


def plan_of(shape, name):
    return plan_by_name(shape, name) or plan_programs(shape, 64)[name]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_llama_has_nothing_of_it(name):
    plan = plan_of(DEMO, name)
    assert not OF_FAMILIES & set(plan.arguments.names)
    assert not {step.kernel for step in plan.launches} & {"bias_add"}
    assert len(plan.launches) == 6


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("family", SHAPES)
def test_what_a_family_adds_is_launches_with_weights_of_their_own(family, name):
    shape = SHAPES[family]
    plan, plain = (
        plan_of(shape, name),
        plan_of(dataclasses.replace(shape, qkv_bias=False, qk_norm=False), name),
    )
    weights = {a.name: a.shape for a in plan.arguments if a.role is Role.WEIGHT}
    biases = {"bq": (shape.q_dim,), "bk": (shape.kv_dim,), "bv": (shape.kv_dim,)} if shape.qkv_bias else {}
    norms = dict.fromkeys(("q_norm", "k_norm"), (shape.head_dim,)) if shape.qk_norm else {}
    assert weights == {a.name: a.shape for a in plain.arguments if a.role is Role.WEIGHT} | biases | norms
    assert [(a.name, a.shape) for a in plan.arguments if a.role in (Role.INPUT, Role.LUT, Role.OUTPUT)] == [
        (a.name, a.shape) for a in plain.arguments if a.role in (Role.INPUT, Role.LUT, Role.OUTPUT)
    ]
    added = [step.label for step in plan.launches if step.label not in {o.label for o in plain.launches}]
    assert added == [
        *(["q_bias", "k_bias", "v_bias"] if shape.qkv_bias else []),
        *(["q_norm", "k_norm"] if shape.qk_norm else []),
    ]
    assert [step.label for step in plan.launches][-2:] == ["q_rope", "k_rope"]


@functools.cache
def made(family, name):
    """The plan, and every argument before and after a run on the virtual NPU."""
    plan = plan_of((SHAPES | PLACES)[family], name)
    rng = np.random.default_rng(11)
    program, given = build_program(plan), {}
    for a in plan.arguments:
        numbers = rng.standard_normal(a.shape) / (a.shape[-1] ** 0.5 if a.name.startswith("w") else 1)
        given[a.name] = np.full(a.shape, np.nan, BF16) if a.role in WRITTEN_ROLES else numbers.astype(BF16)
    return plan, given, run(program, given)


def run(program, given):
    library = cache.load(cache.ProgramSource(program.text, program.name, (), BuildOptions.from_knobs()))
    found = {a.name: np.array(given[a.name], order="C") for a in program.arguments}
    library.run(program.name, [found[a.name].ctypes.data for a in program.arguments])
    return found


@pytest.mark.parametrize("name", PROGRAMS[:2])
@pytest.mark.parametrize("family", RUN)
def test_every_launch_computes_its_reference(family, name):
    plan, _, found = made(family, name)
    for step in plan.launches:
        kernel = all_kernels()[step.kernel]
        read = {inner: found[outer] for inner, outer in step.wiring.items()}
        for inner, want in kernel.reference(step.parameters, read).items():
            assert kernel.tolerance.excess(found[step.wiring[inner]], want) <= 1, step.label


NORMS_AND_READERS = {
    ("olmo2", "rms_gemv_rope"): {"q_gemv": "x", "v_gemv": "x", "q_norm": "q", "q_rope": "q_normed"},
    ("olmo2", "o_gemv_ffn"): {
        "attn_post_norm": "proj",
        "attn_add": "attn_normed",
        "gate_gemv": "res1",
        "up_gemv": "res1",
        "ffn_post_norm": "down",
        "ffn_add": "ffn_normed",
    },
    ("four norms", "rms_gemv_rope"): {"rms_norm": "x", "q_gemv": "normed", "k_norm": "k"},
    ("four norms", "o_gemv_ffn"): {
        "attn_post_norm": "proj",
        "attn_add": "attn_normed",
        "ffn_norm": "res1",
        "gate_gemv": "normed",
        "ffn_post_norm": "down",
        "ffn_add": "ffn_normed",
    },
}
"""What launches of a token's programs read."""


@pytest.mark.parametrize(("family", "name"), NORMS_AND_READERS)
def test_where_norms_stand(family, name):
    shape = PLACES[family]
    plan = plan_of(shape, name)
    launches = {step.label: step for step in plan.launches}
    for label, read in NORMS_AND_READERS[family, name].items():
        assert read in launches[label].wiring.values(), label
    norms = [step for step in plan.launches if step.kernel == "rms_norm"]
    offset = {"weight_offset": 1} if family == "four norms" else {}
    assert norms
    for step in norms:
        parts = step.parameters["cols"], step.parameters.get("heads", 1)
        heads = {"q_norm": 2, "k_norm": 1}.get(step.label)
        of_heads = (64 * heads, 1) if family == "olmo2" and heads else (64, heads)
        assert parts == (of_heads if heads else (128, 1)), step.label
        form = {"rows": None, "eps": 1e-6, "round_once": True, **offset}
        assert form.items() <= step.parameters.items(), step.label
        assert plan.arguments[step.wiring["weight"]].shape == (parts[0],)
    assert ("rms_norm" in launches or "ffn_norm" in launches) == shape.norm_before


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("olmo2", "rms_gemv_rope"),
        ("four norms", "o_gemv_ffn"),
        *(
            pytest.param(family, name, marks=pytest.mark.slow)
            for family in PLACES
            for name in ("rms_gemms_rope", "o_ffn", "rms_gemms_rope_ar8", "o_ffn_ar8")
        ),
    ],
)
def test_norms_in_other_places_compute_their_reference(family, name):
    test_every_launch_computes_its_reference(family, name)


@pytest.mark.parametrize(
    ("module", "norm", "form"),
    [
        ("olmo2", "Olmo2RMSNorm", {"round_once": True}),
        ("gemma3", "Gemma3RMSNorm", {"round_once": True, "weight_offset": 1}),
    ],
)
@pytest.mark.parametrize("rows", [16, None])
def test_norms_that_round_once_are_those_of_hugging_face(module, norm, form, rows):
    """Bit for bit, but for the few where the last bit of rsqrt in f32 decides. Weights are near 0, where
    1 + weight in bf16 would lose most of them."""
    torch = pytest.importorskip("torch")
    norms = pytest.importorskip(f"transformers.models.{module}.modeling_{module}")
    rng = np.random.default_rng(13)
    shape = (256,) if rows is None else (rows, 256)
    x, weight = (rng.standard_normal(each).astype(BF16) for each in (shape, 256))
    weight = (weight.astype(np.float32) * 0.01).astype(BF16)
    theirs = getattr(norms, norm)(256, eps=1e-6).to(torch.bfloat16)
    with torch.no_grad():
        theirs.weight.copy_(torch.from_numpy(weight.astype(np.float32)))
        want = theirs(torch.from_numpy(x.astype(np.float32)).bfloat16()).float().numpy().astype(BF16)
    found = run_kernel(rms_norm.build(rows, 256, 1e-6, **form), {"x": x, "weight": weight})["out"]
    assert rms_norm.KERNEL.tolerance.excess(found, want) <= 1
    assert np.mean(found != want) < 0.002


@pytest.mark.parametrize("family", RUN)
def test_a_row_has_the_same_bits_in_eight_and_in_a_prompt(family):
    plan, given, whole = made(family, "rms_gemms_rope")
    given = given | {"rope_rows": given["rope_lut"]}
    eight = build_program(plan_of(SHAPES[family], "rms_gemms_rope_ar8"))
    tokens = {a.name for a in plan.arguments if a.role is not Role.WEIGHT} | {"rope_rows"}
    taken = {name: array[40:48] if name in tokens else array for name, array in given.items()}
    found = run(eight, taken)
    for name in ("q_roped", "k_roped", "v"):
        assert found[name].tobytes() == whole[name][40:48].tobytes(), name


@pytest.mark.parametrize(("heads", "rows"), [(16, 8), (8, None)])
def test_norms_of_heads_are_those_of_hugging_face(heads, rows):
    """With weights as large as K-norms of trained models have them, 96.5."""
    torch = pytest.importorskip("torch")
    norms = pytest.importorskip("transformers.models.qwen3.modeling_qwen3")
    rng = np.random.default_rng(12)
    weight = np.concatenate([rng.uniform(-3, 3, 126), [96.5, -96.5]]).astype(BF16)
    shape = (heads * 128,) if rows is None else (rows, heads * 128)
    x = (rng.standard_normal(shape) * rng.choice([0.1, 1, 10], shape)).astype(BF16)
    theirs = norms.Qwen3RMSNorm(128, eps=1e-6).to(torch.bfloat16)
    with torch.no_grad():
        theirs.weight.copy_(torch.from_numpy(weight.astype(np.float32)))
        want = theirs(torch.from_numpy(x.astype(np.float32)).bfloat16().reshape(-1, 128)).float().numpy()
    found = run_kernel(rms_norm.build(rows, 128, 1e-6, heads=heads), {"x": x, "weight": weight})["out"]
    assert rms_norm.KERNEL.tolerance.excess(found, want.reshape(shape).astype(BF16)) <= 1
    assert np.abs(want).max() > 96.5


def test_an_offset_needs_a_norm_that_rounds_once():
    with pytest.raises(
        IllegalShapeError, match="weight_offset=1 with round_once=False; use 0, or 1 with rou"
    ):
        rms_norm.build(16, 256, weight_offset=1)


def test_all_query_heads_fit_the_norm_that_spans_them():
    wide = dataclasses.replace(OLMO2, n_heads=192, n_kv_heads=1)
    message = (
        r"=12288 is more than \d+ \(the norm of all query heads holds a row three times in L1\); the near"
    )
    with pytest.raises(UnsupportedShapeError, match=message):
        check_shape(wide)
    check_shape(dataclasses.replace(wide, qk_norm_spans_heads=False))
