"""The module that a program was printed from is, to the toolchain, what a parser makes of the text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aerie.air_dialect import parse, print_as_source, print_module
from aerie.common.store import Store
from aerie.multi_launch_builder.builder import KernelUse, build_program, kernel_uses
from aerie.multi_launch_builder.programs import plan_programs
from aerie.multi_launch_builder.shapes import DEMO, DEMO_SEQ_LEN
from aerie.runtime.toolchain import KERNEL_SOURCES, VirtualToolchain
from aerie.virtual_npu.options import BuildOptions
from aerie.virtual_npu.toolchain import generate_cpp

USES = kernel_uses(DEMO, DEMO_SEQ_LEN)
QUICK = ("gemm_rows", "cache_update")


def values(op):
    return [*op.results, *(argument for region in op.regions for b in region.blocks for argument in b.args)]


@pytest.mark.parametrize("name", QUICK)
def test_places_and_names_are_those_of_the_parsed_text(name):
    module = USES[name].build().module
    before = print_module(module)
    text = print_as_source(module)
    parsed = parse(text)
    assert text == before
    for built, read in zip(module.walk(), parsed.walk(), strict=True):
        assert (built.name, built.location, built.properties) == (read.name, read.location, read.properties)
        assert [v.name_hint for v in values(built)] == [v.name_hint for v in values(read)]


def assert_same_cpp(use: KernelUse, checks: bool) -> None:
    program = use.program("program")
    options = BuildOptions(checks=checks)
    read = generate_cpp(program.text, "program", options, (KERNEL_SOURCES,))
    built = generate_cpp(program.text, "program", options, (KERNEL_SOURCES,), module=program.module)
    assert built.units[0].text == read.units[0].text
    assert program.module
    assert print_module(program.module) == program.text  # as it was


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("checks", [False, True], ids=["fast", "checks"])
def test_the_cpp_of_the_module_is_that_of_the_text(name, checks):
    assert_same_cpp(USES[name], checks)


@pytest.mark.slow
@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("checks", [False, True], ids=["fast", "checks"])
def test_the_cpp_of_the_module_of_every_kernel_is_that_of_the_text(name, checks):
    assert_same_cpp(USES[name], checks)


def test_a_toolchain_that_is_given_the_module_does_not_read_the_text(tmp_path, monkeypatch):
    program = build_program(plan_programs(DEMO, DEMO_SEQ_LEN, ["lm_head_gemv"])["lm_head_gemv"])
    given = []
    monkeypatch.setattr("aerie.virtual_npu.build", lambda *_, module, **__: given.append(module))
    VirtualToolchain().compile(program, tmp_path, Store(tmp_path))
    assert given == [program.module]
    assert program.module is not None
    assert replace(program, text="another").module is None


def test_equal_kernels_of_a_program_are_built_once(monkeypatch):
    from aerie.multi_launch_builder import builder

    built, build_kernel = [], builder.build_kernel

    def build(step, *more):
        built.append(step.label)
        return build_kernel(step, *more)

    monkeypatch.setattr(builder, "build_kernel", build)
    program = build_program(plan_programs(DEMO, DEMO_SEQ_LEN, ["lm_head_gemv"])["lm_head_gemv"])
    assert len(program.launches) == 8
    assert built == ["partition_0"]
