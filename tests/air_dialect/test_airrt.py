"""airrt, between two compiler passes: read and printed, and not run."""

from __future__ import annotations

import numpy as np
import pytest

from aerie import vnpu
from aerie.air_dialect.parser_printer import parse, print_module
from aerie.air_dialect.verification import AirParseError
from aerie.common.errors import ProgramError

TEXT = """\
builtin.module {
  airrt.module_metadata {
    airrt.segment_metadata attributes {sym_name = "forward"} {
      airrt.herd_metadata {size_x = 4 : i64, sym_name = "tile"}
    }
  }
  func.func @forward(%x: memref<64xi32>) {
    %c0 = arith.constant 0 : i64
    %c2 = arith.constant 2 : i32
    %p = airrt.segment_load "forward" : i64
    %h, %e = airrt.herd_load "tile" (%c2) {segment_name = "forward"} : (i32) -> (i64, !airrt.event)
    %g = airrt.herd_load "tile" () : () -> i64
    %m = airrt.alloc : memref<64xi32, 1>
    %t = airrt.dma_memcpy_nd(%c2, %c0, %c0, %x[0, 0, 0, %c0], [1, 1, 1, 64], [0, 0, 0, %c0]) {metadata = @a} : (i32, i64, i64, memref<64xi32>) : !airrt.event
    airrt.dma_memcpy_nd(%c2, %c0, %c0, %x[0, 0, 0, 0], [1, 1, 1, 64], [0, 0, 0, 1]) : (i32, i64, i64, memref<64xi32>)
    airrt.memcpy_nd(%m, %x, [%c0, %c0, %c0, %c0], [%c0, %c0, %c0, %c0], [%c0, %c0, %c0, %c0]) : (memref<64xi32, 1>, memref<64xi32>, [i64, i64, i64, i64], [i64, i64, i64, i64], [i64, i64, i64, i64])
    %u = airrt.wait_all %t, %e : !airrt.event
    %v = airrt.wait_all : !airrt.event
    airrt.wait_all %u, %v {air.launch_end}
    airrt.dealloc %m : memref<64xi32, 1>
    func.return
  }
}
"""  # noqa: E501 - MLIR has long lines


def test_it_is_printed_as_it_was_read():
    assert print_module(parse(TEXT)) == TEXT


def test_a_transfer_has_four_dimensions():
    with pytest.raises(AirParseError, match=r"airrt.dma_memcpy_nd has 3 lengths: give 4"):
        parse(TEXT.replace("[1, 1, 1, 64]", "[1, 1, 64]"))
    with pytest.raises(AirParseError, match=r"airrt.memcpy_nd has a list of 3: give 4"):
        parse(TEXT.replace("%x, [%c0, ", "%x, ["))


def test_it_is_refused_before_a_run():
    with pytest.raises(ProgramError, match=r"line 10: airrt.segment_load: the virtual NPU does not execute"):
        vnpu.run(TEXT, np.zeros(64, np.int32))
