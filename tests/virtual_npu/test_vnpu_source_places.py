"""Errors name the line of the source that the text's own locations name, beside the line of the text."""

from __future__ import annotations

import numpy as np
import pytest

from aerie import virtual_npu

TEXT = """\
#loc = loc("kernel.py":12:7)
func.func @main(%a: memref<4xf32>, %n: index) {
  %x = BODY loc("x"(#loc))
  return
}
"""


def failure(body: str) -> str:
    program = virtual_npu.Program.from_text(TEXT.replace("BODY", body), "a.mlir")
    with pytest.raises(virtual_npu.ProgramError) as caught:
        program.run(np.zeros(4, np.float32), np.array(9))
    return str(caught.value)


@pytest.mark.parametrize(
    ("body", "begin"),
    [
        ("memref.load %a[%n] : memref<4xf32>", "main: line 3: memref.load: "),
        ("bufferization.to_tensor %a : memref<4xf32> to tensor<4xf32>", "line 3: bufferization.to_tensor: "),
        ("memref.load %a[%n, %n] : memref<4xf32>", "a.mlir:3:3: error: "),
    ],
)
def test_an_error_ends_with_the_place_in_the_source(body, begin):
    message = failure(body)
    assert message.startswith(begin)
    assert message.endswith("; line 3 is kernel.py:12:7")
    assert message.count("kernel.py") == 1


def test_a_text_that_does_not_parse_has_no_places():
    assert "kernel.py" not in failure("oops")
