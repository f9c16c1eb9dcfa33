# ruff: noqa: E501 - MLIR has long lines
"""What functions in C++ declare to overwrite (`// overwrites:`), they write alike whatever memory held and in any rounding mode."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from ml_dtypes import bfloat16

from aerie.device.external_kernels import (
    OWN_KERNELS,
    ExternalKernel,
    Overwrite,
    constant_parameters,
    overwritten_arguments,
)

Argument = int | tuple[int, str]
"""A number, or the elements and the type of a buffer."""
BLOCK = {4: 5120, 8: 8704}
"""Bytes of a block of weights, by the bits of its codes."""


@dataclass(frozen=True)
class Call:
    """A call of a function in C++."""

    source: str
    function: str
    arguments: Sequence[Argument]
    defines: tuple[str, ...] = ()

    @property
    def kernel(self) -> ExternalKernel:
        return ExternalKernel(
            self.function, f"{self.function}.o", self.source, self.defines, 1, len(self.arguments)
        )

    @property
    def text(self) -> str:
        """A program that calls it once, and before that rounds to nearest even from then on if `mode` is 1.

        Each buffer is an argument of the program. It comes to the core before the call and goes back after it.
        """
        buffers = [given for given in self.arguments if not isinstance(given, int)]
        types = [f"memref<{count}x{kind}" for count, kind in buffers]
        names, local = [f"%b{i}" for i in range(len(types))], [f"%l{i}" for i in range(len(types))]
        outer, captured = [f"{type_}>" for type_ in types], [f"%h{i}" for i in range(len(types))]
        lines = [
            f"{one} = memref.alloc() : {type_}, 2>" for one, type_ in zip(local, types, strict=True)
        ]  # fmt: skip
        moves = list(zip(local, captured, types, strict=True))
        lines += [f"air.dma_memcpy_nd ({a}[] [] [], {b}[] [] []) : ({t}, 2>, {t}>)" for a, b, t in moves]
        lines += ["%even = arith.cmpi eq, %mode, %one : i32", "scf.if %even {"]
        lines += ["func.call @round_to_even(%l0) : (" + types[0] + ", 2>) -> ()", "}"]
        waiting, given, passed = iter(zip(local, types, strict=True)), [], []
        for i, argument in enumerate(self.arguments):
            if isinstance(argument, int):
                lines.append(f"%n{i} = arith.constant {argument} : i32")
                given.append(f"%n{i}")
                passed.append("i32")
            else:
                buffer, type_ = next(waiting)
                given.append(buffer)
                passed.append(f"{type_}, 2>")
        lines.append(f"func.call @{self.function}({', '.join(given)}) : ({', '.join(passed)}) -> ()")
        lines += [f"air.dma_memcpy_nd ({b}[] [] [], {a}[] [] []) : ({t}>, {t}, 2>)" for a, b, t in moves]
        lines += [f"memref.dealloc {one} : {type_}, 2>" for one, type_ in zip(local, types, strict=True)]
        defines = f', link_defines = "{" ".join(self.defines)}"' if self.defines else ""
        arguments = ", ".join(f"{a}: {b}" for a, b in zip(names, outer, strict=True))
        binds = ", ".join(f"{a}={b}" for a, b in zip([*captured, "%mode"], [*names, "%mode_0"], strict=True))
        return f"""
func.func private @round_to_even({types[0]}, 2>) attributes {{link_with = "even.o", link_source = "round_to_even.cc"}}
func.func private @{self.function}({", ".join(passed)}) attributes {{link_with = "{self.function}.o", link_source = "{self.source}"{defines}}}
func.func @f({arguments}, %mode_0: i32) {{
  air.herd @h tile (%x, %y) in (%sx=%c1, %sy=%c1) args({binds}) : {", ".join(outer)}, i32 {{
    %one = arith.constant 1 : i32
    {chr(10).join(lines)}
  }}
  return
}}"""


CALLS = {
    "a row": Call("mv.cc", "matvec_vectorized_bf16_bf16", [4, 128, 8, (512, "bf16"), (128, "bf16"), (16, "bf16")]),
    "a piece": Call("mv_pieces.cc", "matvec_piece_bf16_f32", [64, 0, (64, "bf16"), (64, "bf16"), (64, "f32")]),
    "a sum": Call("mv_pieces.cc", "matvec_row_f32_bf16", [3, (64, "f32"), (8, "bf16")]),
    **{
        f"blocks of {bits} bits": Call(
            "weight_blocks.cc",
            "matvec_blocks_f32",
            [1, 0, 256, (BLOCK[bits], "i8"), (256, "bf16"), (2048, "f32")],
            (f"WEIGHT_BITS={bits}",),
        )
        for bits in BLOCK
    },
    "rows of blocks": Call("weight_blocks.cc", "matvec_block_rows_bf16", [(2048, "f32"), (32, "bf16")]),
    "swiglu": Call("silu_and_mul.cc", "silu_and_mul_bf16", [(64, "bf16"), (64, "bf16"), (80, "bf16"), 64]),
    "gates": Call("silu_and_mul.cc", "silu_and_mul_bf16", [(64, "bf16"), (64, "bf16"), (80, "bf16"), 64], ("NO_ACTIVATION=1",)),
    "sigmoid": Call("silu_and_mul.cc", "silu_and_mul_bf16", [(64, "bf16"), (64, "bf16"), (80, "bf16"), 64], ("SIGMOID=1",)),
    "convolution": Call("short_conv.cc", "short_conv_bf16", [(96, "bf16"), (48, "bf16"), (48, "bf16"), 2, 16]),
    "rope": Call("rope_halfsplit.cc", "rope", [(128, "bf16"), (64, "bf16"), (160, "bf16"), 2, 64]),
}  # fmt: skip
DTYPES = {"bf16": np.dtype(bfloat16), "f32": np.dtype(np.float32), "i8": np.dtype(np.int8)}


def contents(kind: str, count: int) -> np.ndarray:
    """Small numbers; of bytes, such as are a small scale in pairs."""
    rng = np.random.default_rng(count)
    if kind == "i8":
        return rng.integers(1, 60, count).astype(np.int8)
    return rng.standard_normal(count).astype(DTYPES[kind])


def part_of(overwrite: Overwrite, call: Call) -> slice:
    """The elements that a call overwrites."""
    given = call.arguments[overwrite.position]
    assert not isinstance(given, int)
    if not overwrite.end:
        return slice(0, given[0])
    numbers = {
        name: n for name, n in zip(overwrite.parameters, call.arguments, strict=True) if isinstance(n, int)
    }
    return slice(*(eval(text, {}, numbers) for text in (overwrite.begin, overwrite.end)))


def check(call: Call, library, folders: Sequence[Path] = ()) -> None:
    """Asserts that a function does what it declares, on memory of two contents, in two modes."""
    declared = {part.position: part_of(part, call) for part in overwritten_arguments(call.kernel, folders)}
    constant = constant_parameters(call.kernel, folders)
    assert declared
    results: list[Mapping[int, bytes]] = []
    for poison in (0x5A, 0xFF):
        for mode in (0, 1):
            given = {i: a for i, a in enumerate(call.arguments) if not isinstance(a, int)}
            arrays = {i: contents(kind, count) for i, (count, kind) in given.items()}
            for i, part in declared.items():
                arrays[i].view(np.uint8)[:] = poison
                assert 0 <= part.start < part.stop <= len(arrays[i])
            before = {i: array.copy() for i, array in arrays.items()}
            flag = np.array([mode], np.int32)
            library.run("f", [array.ctypes.data for array in (*arrays.values(), flag)])
            for i, array in arrays.items():
                rest = np.delete(array.view(f"V{array.itemsize}"), declared.get(i, slice(0, 0)))
                unchanged = np.delete(before[i].view(f"V{array.itemsize}"), declared.get(i, slice(0, 0)))
                if i in declared or i in constant:
                    assert rest.tobytes() == unchanged.tobytes()
            results.append({i: arrays[i][part].tobytes() for i, part in declared.items()})
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("name", CALLS)
def test_our_functions_overwrite_what_they_declare(name, program):
    check(CALLS[name], program(CALLS[name].text))


def test_every_declaration_is_tested():
    sources = {path.name: path.read_text() for path in OWN_KERNELS.glob("*.cc")}
    declared = {
        (name, function)
        for name, source in sources.items()
        for function in re.findall(r"// overwrites:.*\n(?:\s*//.*\n)*void (\w+)\(", source)
    }
    assert declared == {(call.source, call.function) for call in CALLS.values()}


@pytest.mark.parametrize(
    "body",
    [
        "out[0] = in[0], out[1] = in[1] + out[1];",
        "out[0] = in[0];",
        "out[0] = in[0], out[1] = out[2] = in[1];",
        "aie::accum<accfloat, 16> sum(aie::broadcast<float, 16>(1.005f)); out[0] = out[1] = sum.to_vector<bfloat16>().get(0);",
    ],
    ids=["reads", "writes less", "writes more", "depends on the mode"],
)
def test_a_declaration_that_is_wrong_is_found(body, program, tmp_path):
    source = "#include <aie_api/aie.hpp>\n// overwrites: out[0 : 2]\n"
    source += f'extern "C" void wrong(const bfloat16 *in, bfloat16 *out) {{ {body} }}\n'
    (tmp_path / "wrong.cc").write_text(source)
    call = Call("wrong.cc", "wrong", [(16, "bf16"), (16, "bf16")])
    with pytest.raises(AssertionError):
        check(call, program(call.text, (tmp_path,)), (tmp_path,))
