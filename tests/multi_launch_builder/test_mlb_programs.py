"""The six programs: their tables, their launches, and what they compute on the virtual NPU."""

from __future__ import annotations

import dataclasses
import functools
import re
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from aerie.air_dialect import parse
from aerie.air_dialect.ops import LaunchOp
from aerie.air_dialect.parser_printer import ONE_AT_A_TIME
from aerie.device import check
from aerie.device.lowering import find_rule, forms_of
from aerie.device.lowering.air import AIR_TABLE, air_forms_of, find_air
from aerie.device.npu2 import NPU2
from aerie.device.rules.lowering import core_operations
from aerie.kernel_builder.arguments import ArgumentTable, Role
from aerie.kernel_builder.kernels import all_kernels
from aerie.multi_launch_builder import (
    ModelShape,
    UnsupportedShapeError,
    build_programs,
    builder,
    round_up_seq_len,
)
from aerie.multi_launch_builder.builder import build_program
from aerie.multi_launch_builder.program import LaunchPlan, ProgramPlan
from aerie.multi_launch_builder.programs import PLANS, plan_programs
from aerie.multi_launch_builder.shape_limits import check_shape
from aerie.multi_launch_builder.shapes import DEMO, DEMO_SEQ_LEN, LLAMA_3_2_1B
from aerie.multi_launch_builder.variants import Variant, plan_variant_programs
from aerie.virtual_npu import BuildOptions, cache

LAUNCHES = {
    "rms_gemms_rope": 6,
    "flash_attn": 1,
    "o_ffn": 8,
    "rms_gemv_rope": 6,
    "o_gemv_ffn": 8,
    "lm_head_gemv": 8,
}
NARROW = ModelShape(
    emb_dim=64, n_heads=2, n_kv_heads=1, head_dim=32, hidden_dim=192, vocab_size=500, rms_norm_eps=1e-6
)
"""One KV head for all, an odd FFN width, a vocabulary that needs padding."""
WIDE_HEADS = ModelShape(
    emb_dim=192, n_heads=4, n_kv_heads=4, head_dim=128, hidden_dim=320, vocab_size=1024, rms_norm_eps=1e-5
)
"""No grouping, heads wider than the model (n_heads * head_dim is not emb_dim)."""
RUN = {"demo": (DEMO, DEMO_SEQ_LEN), "narrow": (NARROW, 64), "wide_heads": (WIDE_HEADS, 192)}
MODELS = {**RUN, "Llama-3.2-1B": (LLAMA_3_2_1B, 2048)}


@pytest.fixture(scope="module")
def built():
    """built(model, name): a program of the model, and its module."""

    @functools.cache
    def build(model, name):
        program = build_program(PLANS[name](*MODELS[model]))
        return program, parse(program.text)

    return build


@pytest.fixture(scope="module")
def demo_programs(built):
    return {name: built("demo", name)[0] for name in PLANS}


@pytest.mark.parametrize("model", ["demo", "Llama-3.2-1B"])
@pytest.mark.parametrize("name", LAUNCHES)
def test_a_program_has_its_launches_fits_the_device_and_lowers(built, name, model):
    program, module = built(model, name)
    launches = [str(op.sym_name) for op in module.walk() if isinstance(op, LaunchOp)]
    assert tuple(launches) == program.launches == tuple(s.label for s in PLANS[name](*MODELS[model]).launches)
    assert len(launches) == LAUNCHES[name]
    assert f"func.func @{name}(" in program.text
    assert all(re.fullmatch(r"[a-z_]+[0-9]?", label) for label in launches), "no bare numbers"
    check(module, NPU2).raise_faults()
    assert without_evidence(module) == []


def test_the_tables_of_programs_need_no_compiler():
    """Whoever runs programs reads their arguments, and does not wait for xDSL and the kernels."""
    code = """
import sys
from aerie.multi_launch_builder import ModelShape, Program, UnsupportedShapeError, round_up_seq_len
from aerie.multi_launch_builder.programs import plan_programs
from aerie.multi_launch_builder.shapes import DEMO
plan_programs(DEMO, round_up_seq_len(100))
heavy = ("xdsl", "aerie.kernel_builder.kernels")
print([name for name in sys.modules if name in heavy])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def signature(program, role):
    return {a.name: a.shape for a in program.arguments if a.role is role}


def test_the_argument_table_of_rms_gemms_rope(demo_programs):
    program = demo_programs["rms_gemms_rope"]
    assert signature(program, Role.INPUT) == {"x": (128, 256)}
    assert signature(program, Role.WEIGHT) == {
        "attn_norm": (256,),
        "wq": (256, 256),
        "wk": (128, 256),
        "wv": (128, 256),
    }
    assert signature(program, Role.LUT) == {"rope_lut": (128, 64)}
    assert signature(program, Role.OUTPUT) == {"v": (128, 128), "q_roped": (128, 256), "k_roped": (128, 128)}


def test_the_argument_table_of_o_ffn(demo_programs):
    program = demo_programs["o_ffn"]
    assert signature(program, Role.INPUT) == {"attn_out": (128, 256), "x": (128, 256)}
    assert signature(program, Role.WEIGHT) == {
        "wo": (256, 256),
        "ffn_norm": (256,),
        "w_gate": (768, 256),
        "w_up": (768, 256),
        "w_down": (256, 768),
    }
    assert signature(program, Role.OUTPUT) == {"x_next": (128, 256)}


@pytest.mark.parametrize("pair", [("rms_gemms_rope", "rms_gemv_rope"), ("o_ffn", "o_gemv_ffn")])
def test_prefill_and_decode_read_the_same_weights(demo_programs, pair):
    """By name and shape, so that one copy serves both."""
    prefill, decode = (signature(demo_programs[name], Role.WEIGHT) for name in pair)
    assert prefill == decode


def test_decode_takes_vectors_and_hugging_face_weights(demo_programs):
    before, after = demo_programs["rms_gemv_rope"], demo_programs["o_gemv_ffn"]
    assert signature(before, Role.INPUT) == {"x": (256,), "rope_row": (64,)}
    assert signature(before, Role.WEIGHT)["wk"] == (128, 256)
    assert signature(before, Role.OUTPUT) == {"v": (128,), "q_roped": (256,), "k_roped": (128,)}
    assert signature(after, Role.WEIGHT)["w_down"] == (256, 768)
    assert signature(after, Role.OUTPUT) == {"x_next": (256,)}


def test_the_lm_head_is_padded_to_eight_partitions():
    program = build_programs(NARROW, 64, only=["lm_head_gemv"])["lm_head_gemv"]
    assert signature(program, Role.WEIGHT) == {f"lm_head_{i}": (256, 64) for i in range(8)}
    assert signature(program, Role.OUTPUT) == {f"logits_{i}": (256,) for i in range(8)}


def test_the_down_projection_has_an_object_of_its_own(demo_programs):
    objects = {o.name: o for o in demo_programs["o_gemv_ffn"].objects}
    gemv = [o for o in objects.values() if o.source == "mv.cc"]
    assert len(gemv) == 2
    assert not set(gemv[0].symbols) & set(gemv[1].symbols)
    assert gemv[0].defines != gemv[1].defines


def test_every_option_has_its_reason(demo_programs):
    for program in demo_programs.values():
        assert all(option.flag.startswith("--") and option.reason for option in program.options)
        assert program.flags == tuple(option.flag for option in program.options)


def test_only_what_was_asked_for_is_built():
    assert list(build_programs(DEMO, 128, only={"o_ffn"})) == ["o_ffn"]


def test_parameters_that_a_kernel_refuses_name_program_and_launch():
    step = LaunchPlan("q_gemm", "gemm", {"m": 7, "k": 64, "n": 64}, {})
    with pytest.raises(
        UnsupportedShapeError, match="program p, launch q_gemm: gemm: m=7 is no positive multiple"
    ):
        build_program(ProgramPlan("p", ArgumentTable([]), (step,)))


def fill(plan, rng):
    """Arrays for every argument: what the kernel's own test inputs are, else normal numbers; results NaN."""
    arrays = {a.name: np.full(a.shape, np.nan, a.dtype.numpy) for a in plan.arguments}
    for step in reversed(plan.launches):
        special = all_kernels()[step.kernel].random_inputs
        drawn = special(step.parameters, rng) if special else {}
        for inner, name in step.wiring.items():
            if plan.arguments[name].role in (Role.INPUT, Role.WEIGHT, Role.LUT):
                shape = plan.arguments[name].shape
                normal = rng.standard_normal(shape) / (shape[-1] ** 0.5 if len(shape) > 1 else 1)
                arrays[name] = np.asarray(drawn.get(inner, normal)).astype(plan.arguments[name].dtype.numpy)
    return arrays


def run(program, given):
    """The arrays of every argument after one run on the virtual NPU; it is built where it was not before."""
    library = cache.load(cache.ProgramSource(program.text, program.name, (), BuildOptions.from_knobs()))
    found = {a.name: np.ascontiguousarray(given[a.name]).copy() for a in program.arguments}
    library.run(program.name, [found[a.name].ctypes.data for a in program.arguments])
    return found


@pytest.fixture(scope="module")
def runs(built):
    """runs(model, name): the plan, its arrays before and its arrays after one run on the virtual NPU."""

    @functools.cache
    def run_model(model, name):
        shape, seq_len = MODELS[model]
        plan = plan_programs(shape, seq_len)[name]
        given = fill(plan, np.random.default_rng(7))
        return plan, given, run(built(model, name)[0], given)

    return run_model


def test_threads_that_build_programs_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models may be opened at a time, and what xDSL swaps meanwhile it swaps for all threads."""
    free, real = [], builder.build_kernel

    def build(*arguments: Any) -> Any:
        other = threading.Thread(target=lambda: free.append(ONE_AT_A_TIME.acquire(blocking=False)))
        other.start()
        other.join()
        return real(*arguments)

    monkeypatch.setattr(builder, "build_kernel", build)
    build_program(PLANS["flash_attn"](DEMO, DEMO_SEQ_LEN))
    assert free == [False]


@pytest.mark.parametrize("name", LAUNCHES)
@pytest.mark.parametrize("model", RUN)
def test_every_launch_computes_its_reference_from_what_it_was_given(runs, model, name):
    """Intermediates stay in their buffers, so each launch is compared on the very numbers it read."""
    plan, _, found = runs(model, name)
    for step in plan.launches:
        kernel = all_kernels()[step.kernel]
        read = {inner: found[outer] for inner, outer in step.wiring.items()}
        for inner, want in kernel.reference(step.parameters, read).items():
            got = found[step.wiring[inner]]
            assert np.isfinite(got.astype(np.float32)).all(), step.label
            assert kernel.tolerance.excess(got, want) <= 1, step.label


def compose(plan, arrays):
    """The program in numpy: the references of its launches, one after the other."""
    arrays = dict(arrays)
    for step in plan.launches:
        read = {inner: arrays[outer] for inner, outer in step.wiring.items()}
        for inner, value in all_kernels()[step.kernel].reference(step.parameters, read).items():
            arrays[step.wiring[inner]] = value
    return arrays


@pytest.mark.parametrize("name", LAUNCHES)
@pytest.mark.parametrize("model", RUN)
def test_a_program_computes_its_references_one_after_the_other_and_leaves_what_it_only_reads(
    runs, model, name
):
    """Mean difference over mean size: errors of bf16 roundings add up over the launches, to below 1 %."""
    plan, given, found = runs(model, name)
    want = compose(plan, given)
    for output in signature(plan, Role.OUTPUT):
        left, right = (arrays[output].astype(np.float64) for arrays in (found, want))
        assert np.abs(left - right).sum() <= 1e-2 * np.abs(right).sum(), output
    for argument in plan.arguments:
        if argument.role in (Role.INPUT, Role.WEIGHT, Role.LUT):
            assert np.array_equal(given[argument.name], found[argument.name]), argument.name


@pytest.mark.parametrize("name", ["rms_gemms_rope", "flash_attn", "o_ffn"])
def test_rows_do_not_depend_on_the_length_they_are_padded_to(runs, name):
    """The 64 rows of the short program come out of a longer one bit for bit, whatever stands below them."""
    plan, given, short = runs("narrow", name)
    longer = build_programs(NARROW, 192, only=[name])[name]
    padded = {}
    for argument in longer.arguments:
        rows = given[argument.name]
        below = np.full((argument.shape[0] - len(rows), *argument.shape[1:]), 3.5, rows.dtype)
        padded[argument.name] = np.concatenate([rows, below])
    found = run(longer, padded)
    for output in signature(plan, Role.OUTPUT):
        assert short[output].tobytes() == found[output][:64].tobytes(), output


def random_shape(rng):
    """Any shape that check_shape lets pass, within the limits."""
    while True:
        head_dim, n_kv_heads = 32 * int(rng.integers(1, 6)), int(rng.integers(1, 9))
        shape = ModelShape(
            emb_dim=64 * int(rng.integers(1, 168)),
            n_heads=n_kv_heads * int(rng.integers(1, 9)),
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            hidden_dim=64 * int(rng.integers(1, 499)),
            vocab_size=int(rng.integers(1, 200000)),
            rms_norm_eps=1e-5,
        )
        try:
            check_shape(shape)
        except UnsupportedShapeError:
            continue
        return shape


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_shape_that_passes_the_check_builds_and_fits(seed):
    rng = np.random.default_rng(seed)
    shape, seq_len = random_shape(rng), round_up_seq_len(int(rng.integers(1, 4097)))
    programs = build_programs(shape, seq_len)
    assert list(programs) == list(PLANS)
    for program in programs.values():
        check(parse(program.text), NPU2).raise_faults()


def test_programs_are_built_for_the_device_that_they_are_given(built):
    """Half the columns of NPU2, as mlir-aie's npu2_4col has; what is built for all of them does not fit."""
    half = dataclasses.replace(NPU2, columns=4, program_stack_bytes=4096)
    for name, program in build_programs(DEMO, 64, device=half).items():
        check(parse(program.text), half).raise_faults()
        assert "--stack-size=4096" in program.flags
        assert not check(built("demo", name)[1], half).ok


def test_what_mlir_air_resets_has_the_stack_of_its_copies():
    """Other kernels have more: tests/virtual_npu/aie/test_aie_kept_programs.py shows what would go wrong."""
    plans = plan_variant_programs(DEMO, [Variant(8, 512)])
    flags = {name: build_program(plan).flags[0] for name, plan in plans.items()}
    assert flags.pop("cached_attn_ar8_cl512") == "--stack-size=1024"
    assert set(flags.values()) == {"--stack-size=2048"}


# ---- every form of our kernels and programs is one that upstream lowers ----


def without_evidence(module):
    """The forms on the cores and of AIR that have no row in aerie/device/lowering, or no.

    Find what upstream makes of such a form and write that down with the file that says so, or write the
    kernel otherwise.
    """
    on_core = {form: find_rule(form, "aie2p") for op in core_operations(module) for form in forms_of(op)}
    of_air = {form: find_air(form, "aie2p") for op in module.walk() for form in air_forms_of(op)}
    assert on_core, "nothing runs on the cores"
    assert of_air, "nothing moves"
    rows = [*on_core.items(), *of_air.items()]
    return sorted(str(form) for form, row in rows if row is None or not row.verdict.lowers)


@pytest.mark.parametrize("name", all_kernels())
def test_every_form_of_a_kernel_lowers(name):
    spec = all_kernels()[name]
    for case in spec.cases:
        found = set(without_evidence(spec.build(**case).module))
        if found != set(spec.unproven_forms):
            pytest.fail(
                f"kernel {name}: nothing tells that the board's compilers take {', '.join(sorted(found))}; "
                "write it otherwise, or give the form a row in aerie/device/lowering with the "
                "file of upstream that shows it, or say "
                f"`without_evidence={tuple(sorted(found))}` in its KernelSpec",
                pytrace=False,
            )


def test_no_program_has_a_kernel_without_evidence():
    steps = {step.kernel for plan in PLANS.values() for step in plan(DEMO, DEMO_SEQ_LEN).launches}
    assert {name for name in steps if all_kernels()[name].unproven_forms} == set()


VECTOR_24 = [
    f"{op} vector<24xbf16>" for op in ("arith.addf", "vector.transfer_read", "vector.transfer_write")
]


@pytest.mark.parametrize(
    ("kernel", "change", "forms"),
    [
        ("eltwise_add", ("vector<16xbf16>", "vector<24xbf16>"), VECTOR_24),
        ("eltwise_add", ("arith.addf", "arith.divf"), ["arith.divf vector<16xbf16>"]),
        ("flash_attention", ("npu_dma_stream", "npu_dma_packet", 1), ["air.channel npu_dma_packet"]),
    ],
)
def test_a_form_that_nobody_reported_is_found(kernel, change, forms):
    text = all_kernels()[kernel].build(**all_kernels()[kernel].cases[0]).text
    assert without_evidence(parse(text.replace(*change))) == forms


def test_rows_of_air_have_evidence():
    assert all(row.evidence and all("mlir-air" in source for source in row.evidence) for row in AIR_TABLE)
