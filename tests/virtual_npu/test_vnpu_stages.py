"""The stages of a program before C++ (`emit --stage`): what the passes put in place, and that it is sound."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import ModuleOp

from aerie import air_dialect
from aerie.kernel_builder.kernels import all_kernels
from aerie.virtual_npu import BuildOptions
from aerie.virtual_npu.codegen.body import supported_operations
from aerie.virtual_npu.codegen.dialect import WrappedOp
from aerie.virtual_npu.codegen.passes.pipeline import advance
from aerie.virtual_npu.options import STAGES
from aerie.virtual_npu.toolchain import ir_at_stage

FAST, CHECKED = BuildOptions(), BuildOptions(checks=True)
GEMM, ATTENTION = "gemm", "flash_attention"


def module_of(kernel: str) -> ModuleOp:
    spec = all_kernels()[kernel]
    return air_dialect.parse(spec.build(**spec.cases[0]).text)


def marked(kernel: str, options: BuildOptions) -> set[str]:
    """The names of the operations that the passes add to a kernel."""
    module = module_of(kernel)
    advance(module, options)
    return {op.name for op in module.walk() if op.name.startswith("vnpu.")} - {"vnpu.yield"}


@pytest.mark.parametrize("options", [FAST, CHECKED], ids=["fast", "checks"])
@pytest.mark.parametrize("kernel", sorted(all_kernels()))
def test_a_rewritten_kernel_is_sound(kernel, options):
    module = module_of(kernel)
    advance(module, options)
    module.verify()
    for op in module.walk():
        if isinstance(op, WrappedOp):
            assert op.original is op.body.block.first_op
            assert [value.type for value in op.original.results] == [value.type for value in op.results]


def test_what_is_recognised_depends_on_what_a_program_is_built_for():
    assert "vnpu.product" in marked(GEMM, FAST)
    assert {"vnpu.borrowed", "vnpu.borrow", "vnpu.lend"} <= marked(ATTENTION, FAST)
    for kernel in (GEMM, ATTENTION):
        assert not marked(kernel, CHECKED) & {"vnpu.product", "vnpu.borrowed", "vnpu.borrow", "vnpu.lend"}
    assert "vnpu.nest" in marked(GEMM, CHECKED)


def test_memory_work_concurrent_with_engines_is_a_task():
    text = """
air.channel @c [1]
func.func @f(%a: memref<4xf32>, %b: memref<4xf32>) {
  %c0 = arith.constant 0 : index
  air.channel.put @c[%c0] (%a[] [] []) : (memref<4xf32>)
  air.channel.get @c[%c0] (%b[] [] []) : (memref<4xf32>)
  %x = memref.load %b[%c0] : memref<4xf32>
  memref.store %x, %a[%c0] : memref<4xf32>
  return
}"""
    found = ir_at_stage(text, "rewritten")
    assert found.count("vnpu.task {") == 2
    assert "} : f32" in found  # what the load gives, the task around it gives


def test_a_stage_before_the_passes_is_a_program_again():
    spec = all_kernels()[GEMM]
    text = spec.build(**spec.cases[0]).text
    for stage in STAGES[:2]:
        again = ir_at_stage(ir_at_stage(text, stage), stage)
        assert again == ir_at_stage(text, stage)
        assert "vnpu." not in again


def test_the_operations_of_the_passes_are_not_operations_of_programs():
    assert not [name for name in supported_operations() if name.startswith("vnpu.")]
