"""The one table of what operations do to memory, and that every room goes by it."""

from __future__ import annotations

from typing import Any

import pytest
from xdsl.dialects.builtin import MemRefType, f32
from xdsl.ir import Operation
from xdsl.irdl import IRDLOperation
from xdsl.irdl.constraints import VerificationContext
from xdsl.utils.exceptions import VerifyException

import aerie.virtual_npu.codegen.module  # noqa: F401  registers every emitter
from aerie.air_dialect import AirParseError, parse
from aerie.air_dialect.effects import (
    ACCESSES,
    ALLOCATIONS,
    FORWARDING,
    FREE,
    NONE,
    OPERANDS,
    PASS,
    READ,
    SCATTERED,
    UNKNOWN,
    VIEW,
    VIEWS,
    WRITE,
    Effect,
    accesses,
    memory_effects,
    only_reads,
)
from aerie.air_dialect.parser_printer import make_context
from aerie.air_dialect.values import root_value
from aerie.multi_launch_builder.buffer_access import argument_accesses
from aerie.multi_launch_builder.submodule import read_submodule
from aerie.virtual_npu.codegen.body import supported_operations

ON_VALUES = ("arith.", "math.", "index.", "ub.", "cf.")
"""Dialects whose operations take values of any type, and no memrefs but for arith.select."""
AIE_LEVEL = ("aie.", "aiex.", "aievec.")
"""Dialects of what the compiler makes of AIR, whose effects nobody asks for."""
OF_ANY_ELEMENT = {
    "vector.broadcast", "vector.contract", "vector.from_elements", "vector.insertelement",
    "vector.outerproduct", "vector.multi_reduction", "vector.reduction", "vector.splat",
}  # fmt: skip
"""Operations on elements of any type; a vector has no memrefs for elements."""


def takes_memrefs(name: str) -> bool:
    """Whether an operand of an operation may be a memref, by its definition."""
    cls = make_context().get_optional_op(name)
    assert cls is not None
    assert issubclass(cls, IRDLOperation)
    return any(allows(operand.constr) for _, operand in cls.get_irdl_definition().operands)


def allows(constraint: Any) -> bool:
    try:
        constraint.verify((MemRefType(f32, [4]),), VerificationContext())
    except VerifyException:
        return False
    return True


def test_the_effects_of_everything_that_can_run_are_known() -> None:
    names = [
        name
        for name in supported_operations()
        if takes_memrefs(name) and not name.startswith((*ON_VALUES, *AIE_LEVEL))
    ]
    ruled = ("linalg.", "func.call", *FORWARDING)
    unknown = [name for name in names if name not in OPERANDS and not name.startswith(ruled)]
    assert set(unknown) == OF_ANY_ELEMENT
    assert len(names) > len(OF_ANY_ELEMENT) + 100


def test_the_table_names_operations_that_there_are() -> None:
    known = {*OPERANDS, *VIEWS, *ALLOCATIONS, *ACCESSES, *SCATTERED}
    assert [name for name in known if make_context().get_optional_op(name) is None] == []


PROGRAM = """
func.func private @outside(memref<8xf32>)
func.func @f(%m: memref<8xf32>, %o: memref<8xf32>, %s: memref<1xindex>, %p: i1) {
  %c0 = arith.constant 0 : index
  %x = arith.constant 1.0 : f32
  %mask = arith.constant dense<true> : vector<4xi1>
  %v = vector.transfer_read %m[%c0], %x : memref<8xf32>, vector<4xf32>
  vector.maskedstore %o[%c0], %mask, %v : memref<8xf32>, vector<4xi1>, vector<4xf32>
  %old = memref.atomic_rmw addf %x, %m[%c0] : (f32, memref<8xf32>) -> f32
  memref.copy %m, %o : memref<8xf32> to memref<8xf32>
  %r = memref.reshape %m(%s) : (memref<8xf32>, memref<1xindex>) -> memref<8xf32>
  %n = memref.dim %m, %c0 : memref<8xf32>
  %w = arith.select %p, %m, %o : memref<8xf32>
  func.call @outside(%m) : (memref<8xf32>) -> ()
  linalg.fill ins(%x : f32) outs(%m : memref<8xf32>)
  linalg.add ins(%m, %m : memref<8xf32>, memref<8xf32>) outs(%o : memref<8xf32>)
  linalg.generic {indexing_maps = [affine_map<(d) -> (d)>, affine_map<(d) -> (d)>],
      iterator_types = ["parallel"]} ins(%m : memref<8xf32>) outs(%o : memref<8xf32>) {
    ^bb0(%i: f32, %t: f32):
      %sum = arith.addf %i, %t : f32
      linalg.yield %sum : f32
  }
  %token, %got = air.execute -> (memref<8xf32>) {
    %a = memref.alloc() : memref<8xf32>
    air.execute_terminator %a : memref<8xf32>
  }
  %half = memref.subview %got[4] [4] [1] : memref<8xf32> to memref<4xf32, strided<[1], offset: 4>>
  memref.dealloc %got : memref<8xf32>
  return
}
"""


def operation(name: str) -> Operation:
    return next(op for op in parse(PROGRAM).walk() if op.name == name)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("vector.transfer_read", [(0, READ)]), ("vector.maskedstore", [(0, WRITE)]),
        ("memref.atomic_rmw", [(1, READ | WRITE)]), ("memref.copy", [(0, READ), (1, WRITE)]),
        ("memref.reshape", [(0, VIEW), (1, READ)]), ("memref.dim", [(0, NONE)]),
        ("arith.select", [(1, UNKNOWN), (2, UNKNOWN)]), ("func.call", [(0, UNKNOWN)]),
        ("linalg.fill", [(1, WRITE)]), ("linalg.add", [(0, READ), (1, READ), (2, WRITE)]),
        ("linalg.generic", [(0, READ), (1, READ | WRITE)]), ("memref.alloc", []),
        ("memref.subview", [(0, VIEW)]), ("air.execute_terminator", [(0, PASS)]),
        ("memref.dealloc", [(0, FREE)]),
    ],
)  # fmt: skip
def test_what_an_operation_does_to_each_memref(name: str, found: list[tuple[int, Effect]]) -> None:
    op = operation(name)
    assert memory_effects(op) == found
    assert [writes for _, writes in accesses(op)] == [
        bool(effect & WRITE) for _, effect in found if effect & (READ | WRITE)
    ]


TRANSFERS = """
air.channel @c [1, 1]
func.func @f(%m: memref<8xf32>, %o: memref<8xf32>, %w: memref<4x8xf32>) {
  air.channel.put @c[] (%m[] [] []) : (memref<8xf32>)
  air.channel.get @c[] (%o[] [] []) : (memref<8xf32>)
  air.dma_memcpy_nd (%o[] [] [], %m[] [] []) : (memref<8xf32>, memref<8xf32>)
  linalg.broadcast ins(%m : memref<8xf32>) outs(%w : memref<4x8xf32>) dimensions = [0]
  return
}
"""


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("air.channel.put", [(0, READ)]),
        ("air.channel.get", [(0, WRITE)]),
        ("air.dma_memcpy_nd", [(0, WRITE), (1, READ)]),
        ("linalg.broadcast", [(0, READ), (1, WRITE)]),
    ],
)
def test_a_transfer_reads_its_source_and_writes_its_destination(
    name: str, found: list[tuple[int, object]]
) -> None:
    assert memory_effects(next(op for op in parse(TRANSFERS).walk() if op.name == name)) == found


def test_a_view_leads_back_to_the_allocation() -> None:
    half = operation("memref.subview").results[0]
    made = root_value(half).owner
    assert isinstance(made, Operation)
    assert made.name == "memref.alloc"


def test_reading_only_is_reading_and_nothing_else() -> None:
    add, update = operation("linalg.add"), operation("memref.atomic_rmw")
    assert only_reads(add, add.operands[0])
    assert not only_reads(add, add.operands[2])
    assert not only_reads(update, update.operands[1])
    assert not only_reads(add, update.operands[0])


@pytest.mark.parametrize(
    "access",
    [
        "%v = affine.vector_load %m[0] : memref<8xf32>, vector<4xf32>",
        "%v = vector.maskedload %m[%c0], %mask, %old "
        ": memref<8xf32>, vector<4xi1>, vector<4xf32> into vector<4xf32>",
        "%v = memref.atomic_rmw addf %x, %m[%c0] : (f32, memref<8xf32>) -> f32",
    ],
)
def test_a_core_reaches_l3_by_no_operation(access: str) -> None:
    """The verifier knew loads and stores only, but for these."""
    text = f"""
    func.func @f(%m: memref<8xf32>) {{
      %c1 = arith.constant 1 : index
      air.herd @h tile (%x0, %y0) in (%sx=%c1, %sy=%c1) args(%m=%m) : memref<8xf32> {{
        %c0 = arith.constant 0 : index
        %x = arith.constant 1.0 : f32
        %mask = arith.constant dense<true> : vector<4xi1>
        %old = arith.constant dense<1.0> : vector<4xf32>
        {access}
      }}
      return
    }}"""
    with pytest.raises(AirParseError, match=r"inside air.herd accesses memref<8xf32> in L3"):
        parse(text)


@pytest.mark.parametrize(
    ("body", "reads", "writes", "reads_first"),
    [
        ("linalg.add ins(%m, %m : $M, $M) outs(%o : $M)", False, True, False),
        ("%v = memref.atomic_rmw addf %x, %o[%c0] : (f32, $M) -> f32", True, True, True),
        ("vector.maskedstore %o[%c0], %mask, %old : $M, vector<4xi1>, vector<4xf32>", False, True, False),
        ("%t, %u = air.execute -> ($M) { air.execute_terminator %o : $M }\n"
         "memref.store %x, %u[%c0] : $M", False, True, False),
        ("%u = scf.if %p -> ($M) { scf.yield %o : $M } else { scf.yield %m : $M }\n"
         "%v = memref.load %u[%c0] : $M", True, False, True),
        ("%u = memref.assume_alignment %o, 16 : $M\nmemref.store %x, %u[%c0] : $M",
         False, True, False),
        ("memref.dealloc %o : $M", False, False, False),
    ],
)  # fmt: skip
def test_the_stitcher_follows_a_buffer_by_the_same_table(
    body: str, reads: bool, writes: bool, reads_first: bool
) -> None:
    text = f"""
    func.func @f(%m: memref<8xf32>, %o: memref<8xf32>) {{
      %c0 = arith.constant 0 : index
      %p = arith.constant true
      %x = arith.constant 1.0 : f32
      %mask = arith.constant dense<true> : vector<4xi1>
      %old = arith.constant dense<1.0> : vector<4xf32>
      {body.replace("$M", "memref<8xf32>")}
      return
    }}"""
    found = argument_accesses(read_submodule(text, "k"))["o"]
    assert (found.may_read, found.may_write, found.must_write, found.reads_before_write) == (
        reads,
        writes,
        writes,
        reads_first,
    )


def test_a_number_that_a_kernel_passes_on_is_read() -> None:
    text = """
    func.func private @outside(i32)
    func.func @f(%n: i32) {
      func.call @outside(%n) : (i32) -> ()
      return
    }"""
    found = argument_accesses(read_submodule(text, "k"))["n"]
    assert (found.may_read, found.may_write, found.reads_before_write) == (True, False, False)
