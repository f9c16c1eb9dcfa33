"""What the host's sequence of instructions can be: parameters of cores, copies, strides of loops."""

from __future__ import annotations

import pytest

from tests.virtual_npu.static_texts import assert_clean, assert_fault, assert_warning, program

L3 = {"a": "memref<64x64xbf16>", "n": "index"}
NEAR = "%b = memref.alloc() : memref<64xbf16, 2>\n"
BOTH = "(memref<64xbf16, 2>, memref<64x64xbf16>)"
IN = f"air.dma_memcpy_nd (%b[] [] [], %a[%at, %c0] [%c1, %c64] [%c64, %c1]) : {BOTH}\n"
USED = (
    "%w = memref.alloc() : memref<4xi32, 2>\n%v = arith.index_cast %n : index to i32\n"
    "memref.store %v, %w[%c0] : memref<4xi32, 2>\n"
)
TRIPS = "(%tx, %ty) in (%tsx=%c4, %tsy=%c2)"


def launched(herd: str, trips: str = TRIPS, given: str = "%c5", type_: str = "index") -> str:
    """A program whose herd is given %n, which is a constant of the function."""
    text = program(NEAR + "%at = arith.constant 0 : index\n" + IN + herd, trips=trips, args=L3)
    head, _, rest = text.partition("air.launch")
    inner = rest.replace("%n=%n", f"%n={given}", 1) if given else rest
    return (head + "air.launch" + inner).replace(", %n: index)", ")" if given else f", %n: {type_})")


def test_a_parameter_of_a_launch_of_one_point() -> None:
    assert_clean(launched(USED, trips=""), loop_tiling=())


@pytest.mark.parametrize(
    ("tiling", "left"), [((), 8), ((1,), 2), ((2, 2), 4), ((3, 1), 2), ((4, 4), 8)], ids=str
)
def test_a_parameter_in_a_loop_of_the_host(tiling: tuple[int, ...], left: int) -> None:
    message = rf"the herd gets %n, and {left} points of the launch are a loop of the host: mlir-aie finds"
    assert_fault(launched(USED), "parameter", message, loop_tiling=tiling)


def test_a_launch_that_is_unrolled() -> None:
    assert_clean(launched(USED), loop_tiling=(1, 1))


def test_how_it_is_compiled_may_not_be_known() -> None:
    assert_warning(launched(USED), "parameter", "a loop of the host, unless the launch is unrolled: mlir-aie")


def test_a_scalar_that_only_a_dma_needs_stays_with_the_host() -> None:
    text = launched("").replace("%at = arith.constant 0 : index", "%at = arith.addi %n, %c1 : index")
    assert_clean(text, loop_tiling=())


def test_a_parameter_of_the_caller() -> None:
    message = "the herd gets %n, which the caller chooses: a sequence of instructions has constants only"
    assert_fault(launched(USED, trips="", given=""), "parameter", message, loop_tiling=())


def test_a_transfer_that_the_caller_changes() -> None:
    text = launched("", trips="", given="").replace(
        "arith.constant 0 : index\nair.dma", "arith.addi %n, %c1 : index\nair.dma"
    )
    assert_fault(
        text, "parameter", "a transfer of L3 that a scalar argument of the function changes", loop_tiling=()
    )


def test_a_float_is_never_written() -> None:
    store = "memref.store %n, %b[%c0] : memref<64xbf16, 2>\n"
    text = launched(store, trips="", given="%half").replace(
        ": memref<64x64xbf16>, index", ": memref<64x64xbf16>, bf16"
    )
    text = text.replace("air.launch", "%half = arith.constant 5.0e-01 : bf16\nair.launch", 1)
    assert_warning(
        text, "parameter", "a float: its cores read a run-time parameter that the host never writes"
    )


def test_nothing_that_reaches_the_host() -> None:
    herd = (
        "%c = memref.alloc() : memref<64xbf16, 2>\n"
        + NEAR
        + "air.channel.put @c[] (%b[] [] []) : (memref<64xbf16, 2>)\n"
        + "air.channel.get @c[] (%c[] [] []) : (memref<64xbf16, 2>)\n"
    )
    assert_fault(
        program(herd, module="air.channel @c []"), "traffic", "nothing moves between L3 and the array"
    )


@pytest.mark.parametrize(("end", "other"), [("put", "get"), ("get", "put")])
def test_one_end_of_a_channel(end: str, other: str) -> None:
    herd = NEAR + f"air.channel.{end} @c[] (%b[] [] []) : (memref<64xbf16, 2>)\n"
    text = program(herd, module="air.channel @c []")
    assert_fault(
        text, "unpaired", f"@c has a {end} and no {other}, so the {end} waits for ever; write both ends"
    )


HERD_ALONE = """
func.func @f(%a: memref<64xbf16>, %out: memref<64xbf16>) {{
  %c1 = arith.constant 1 : index
  {before}air.herd @h tile (%x, %y) in (%sx=%c1, %sy=%c1) args(%b=%a) : memref<64xbf16> {{
    %n = memref.alloc() : memref<64xbf16, 2>
    air.dma_memcpy_nd (%n[] [] [], %b[] [] []) : (memref<64xbf16, 2>, memref<64xbf16>)
  }}{after}
  memref.copy %a, %out : memref<64xbf16> to memref<64xbf16>
  return
}}
"""


def test_a_copy_beside_a_herd() -> None:
    text = HERD_ALONE.format(before="", after="")
    assert_fault(text, "host-copy", "a copy in L3 beside a herd without a launch")


def test_a_copy_beside_a_launch_is_the_functions() -> None:
    text = HERD_ALONE.format(
        before="air.launch () in () args(%a=%a) : memref<64xbf16> {\n%c1 = arith.constant 1 : index\n",
        after="\n}",
    )
    assert_clean(text)


WRITES = """
func.func @f(%a: memref<64x64xbf16>) {{
  %c2 = arith.constant 2 : index
  %c4 = arith.constant 4 : index
  air.launch (%x, %y) in (%sx=%c4, %sy=%c2) args(%b=%a) : memref<64x64xbf16> {{
    air.segment @s args(%d=%b, %p=%x, %q=%y) : memref<64x64xbf16>, index, index {{
      %one = arith.constant 1 : index
      %both = arith.addi %p, %q : index
      air.herd @h tile (%i, %j) in (%hx=%one, %hy=%one) args(%e=%d, %at={row}) : memref<64x64xbf16>, index {{
        %c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %c64 = arith.constant 64 : index
        %n = memref.alloc() : memref<64xbf16, 2>
        {transfer}
      }}
    }}
  }}
  return
}}
"""
OUT = (
    "air.dma_memcpy_nd (%e[%at, %c0] [%c1, %c64] [%c64, %c1], %n[] [] []) : "
    "(memref<64x64xbf16>, memref<64xbf16, 2>)"
)
VIEW = (
    "%v = memref.subview %e[%at, 0] [1, 64] [1, 1] : memref<64x64xbf16> to "
    "memref<1x64xbf16, strided<[64, 1], offset: ?>>\nair.dma_memcpy_nd (%v[] [] [], %n[] [] []) : "
    "(memref<1x64xbf16, strided<[64, 1], offset: ?>>, memref<64xbf16, 2>)"
)


@pytest.mark.parametrize(("row", "points", "axis"), [("%p", 2, 1), ("%q", 4, 0)])
def test_points_of_a_launch_that_write_one_place(row: str, points: int, axis: int) -> None:
    message = (
        f"all {points} points of the launch along dimension {axis} write the same place of L3, which air"
    )
    assert_fault(WRITES.format(row=row, transfer=OUT), "shared-write", message)


@pytest.mark.parametrize(("row", "transfer"), [("%both", OUT), ("%p", VIEW)], ids=["both", "a view"])
def test_points_of_a_launch_that_may_write_apart(row: str, transfer: str) -> None:
    assert_clean(WRITES.format(row=row, transfer=transfer), loop_tiling=(1, 1))


FAR = """
func.func @f(%a: memref<2048x8192xbf16>) {{
  %c{points} = arith.constant {points} : index
  %one = arith.constant 1 : index
  air.launch (%x, %y) in (%sx=%c{points}, %sy=%one) args(%b=%a) : memref<2048x8192xbf16> {{
    air.segment @s args(%d=%b, %p=%x) : memref<2048x8192xbf16>, index {{
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c32 = arith.constant 32 : index
      %rows = arith.constant {rows} : index
      %c2048 = arith.constant 2048 : index
      %c8192 = arith.constant 8192 : index
      %at = arith.muli %p, %c32 : index
      %m = memref.alloc() : memref<{rows}x32xbf16, 1>
      scf.for %i = %c0 to %c2048 step %rows {{
        air.dma_memcpy_nd (%m[] [] [], %d[%i, %at] [%rows, %c32] [%c8192, %c1])
          : (memref<{rows}x32xbf16, 1>, memref<2048x8192xbf16>)
      }}
    }}
  }}
  return
}}
"""


def test_a_loop_whose_stride_no_descriptor_holds() -> None:
    message = (
        "a loop moves this transfer of L3 by 8388608 bytes a trip, .* a descriptor's stride holds 4194304"
    )
    assert_fault(FAR.format(points=2, rows=512), "stride", message, loop_tiling=())


@pytest.mark.parametrize(("points", "rows"), [(1, 512), (2, 256)], ids=["nothing around it", "near enough"])
def test_loops_that_a_descriptor_walks(points: int, rows: int) -> None:
    assert_clean(FAR.format(points=points, rows=rows), loop_tiling=())
