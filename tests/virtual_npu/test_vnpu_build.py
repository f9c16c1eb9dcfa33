# ruff: noqa: E501 - MLIR has long lines
"""Building: external kernels, what is refused and how, atomicity."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from aerie import virtual_npu
from tests.virtual_npu.air_texts import with_constants

KERNEL = """
#include <cstdint>
#ifndef STEP
#define STEP 1
#endif
extern "C" void NAME(float *x, int32_t n, float by) {
  for (int i = 0; i < n; ++i) x[i] += by * STEP;
}
"""

TILE = """
module {{
  func.func private @{symbol}(memref<16xf32, 2>, i32, f32) attributes {{{attributes}}}
  func.func @main(%x: memref<16xf32>) {{
    air.launch () in () args(%a=%x) : memref<16xf32> {{
      air.segment @s args(%b=%a) : memref<16xf32> {{
        air.herd @h tile (%tx, %ty) in (%sx=%c1, %sy=%c1) args(%c=%b) : memref<16xf32> {{
          %n = arith.constant 16 : i32
          %by = arith.constant 2.5 : f32
          %t = memref.alloc() : memref<16xf32, 2>
          air.dma_memcpy_nd (%t[] [] [], %c[] [] []) : (memref<16xf32, 2>, memref<16xf32>)
          func.call @{symbol}(%t, %n, %by) : (memref<16xf32, 2>, i32, f32) -> ()
          air.dma_memcpy_nd (%c[] [] [], %t[] [] []) : (memref<16xf32>, memref<16xf32, 2>)
        }}
      }}
    }}
    return
  }}
}}
"""

COPY = """
func.func @copy(%x: memref<4xf32>, %y: memref<4xf32>) {
  memref.copy %x, %y : memref<4xf32> to memref<4xf32>
  return
}
"""


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "shift.cc").write_text(KERNEL.replace("NAME", "shift"))
    (folder / "many.cc").write_text(KERNEL)
    (folder / "broken.cc").write_text("this is no C++\n")
    return folder


def tile(symbol: str, attributes: str) -> str:
    return TILE.format(symbol=symbol, attributes=attributes)


@pytest.mark.parametrize(
    ("symbol", "attributes", "added"),
    [
        ("shift", 'link_with = "shift.o"', 2.5),
        ("wide", 'link_with = "w.o", link_source = "many.cc", link_defines = "NAME=wide STEP=4"', 10),
        (
            '"0c5_by"',
            'link_with = "b.o", link_source = "many.cc", link_defines = "NAME=kernel_0c5_by STEP=2"',
            5,
        ),
    ],
)
def test_external_kernel_with_source_and_defines(program, run, kernels, symbol, attributes, added):
    library = program(tile(symbol, attributes), kernel_dirs=(kernels,))
    assert list(library.entries) == ["main"]
    np.testing.assert_array_equal(run(library, "main", np.zeros(16, np.float32))[0], np.full(16, added))


def build(text: str, folder: Path, *kernel_dirs: Path) -> None:
    virtual_npu.build(with_constants(text), folder / "p.so", kernel_dirs=kernel_dirs)


def test_a_missing_kernel_source_lists_the_folders(tmp_path, kernels):
    message = r"line \d+: @shift links with gone.o, but gone.cc is in none of: .*kernels, .*kernels_cc. Put it there"
    with pytest.raises(virtual_npu.KernelSourceError, match=message):
        build(tile("shift", 'link_with = "gone.o"'), tmp_path, kernels)


NAMES_NO_FUNCTION = "a function in C.. has a name of letters, digits and _, of 250 characters at most, which"
NAMES_NO_FILE = "does not name a file below a kernel folder: give a relative path without .., and the folder"
NO_MACRO = "give NAME, NAME=INTEGER or NAME=IDENTIFIER, of names that do not begin with _, vnpu_"


@pytest.mark.parametrize(
    ("symbol", "attributes", "message"),
    [
        ('"f(), puts((const char[]){0})"', 'link_with = "k.o"', NAMES_NO_FUNCTION),
        ('"x\\0A.globl y"', 'link_with = "k.o"', NAMES_NO_FUNCTION),
        ("vnpu_take_steps", 'link_with = "shift.o"', NAMES_NO_FUNCTION),
        ("__libc_start_main", 'link_with = "shift.o"', NAMES_NO_FUNCTION),
        ("a" * 4000, 'link_with = "shift.o"', NAMES_NO_FUNCTION),
        ("shift", 'link_with = "/etc/passwd"', f"link_with = ./etc/passwd. {NAMES_NO_FILE}"),
        ("shift", 'link_with = "../shift.o"', f"link_with = .../shift.o. {NAMES_NO_FILE}"),
        ("shift", 'link_with = "s.o", link_source = "a/../../shift.cc"', NAMES_NO_FILE),
        ("shift", 'link_with = "s.o", link_source = ""', NAMES_NO_FILE),
        ("shift", 'link_with = "s.o", link_source = "shift\\00.cc"', NAMES_NO_FILE),
        (
            "shift",
            'link_with = "s.o", link_source = "shift"',
            "is no C.. file: name one that ends in .cc, .cpp",
        ),
        ("shift", 'link_with = "shift.o", link_defines = "STEP=(puts(0),4)"', NO_MACRO),
        ("shift", 'link_with = "shift.o", link_defines = "f(x)=4"', NO_MACRO),
        ("shift", 'link_with = "shift.o", link_defines = "STEP=4\\22"', NO_MACRO),
        ("shift", 'link_with = "shift.o", link_defines = "VNPU_CHECKS=0"', NO_MACRO),
        (
            "shift",
            'link_with = "shift.o", link_defines = "work=system"',
            "system is a function of the system",
        ),
        ("system", 'link_with = "shift.o"', 'shift.cc does not define extern "C" system'),
        ('"0c5_by"', 'link_with = "shift.o"', 'shift.cc does not define extern "C" kernel_0c5_by'),
        ("free", 'link_with = "shift.o"', 'shift.cc does not define extern "C" free'),
    ],
)
def test_a_program_names_functions_of_the_kernel_folders_and_nothing_else(
    tmp_path, kernels, symbol, attributes, message
):
    with pytest.raises(virtual_npu.KernelSourceError, match=rf"line \d+: @.*{message}") as caught:
        build(tile(symbol, attributes), tmp_path, kernels)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_kernel_that_takes_another_number_of_arguments(tmp_path, kernels):
    (kernels / "less.cc").write_text('extern "C" void less(float *x, int n) { x[n] = 0; }')
    message = (
        r"line \d+: @less is called with 3 arguments, and less.cc defines it with 2 parameters: declare it as"
    )
    with pytest.raises(virtual_npu.KernelSourceError, match=message):
        build(tile("less", 'link_with = "less.o"'), tmp_path, kernels)


@pytest.mark.parametrize(
    ("type_", "message"),
    [
        ("memref<1152921504606846976xf32>", "takes 4611686018427387904 bytes: 70368744177664 are the most"),
        ("memref<4294967296x4294967296xf32>", "bytes: 70368744177664 are the most"),
        ("memref<99999999999999999999999999xf32>", "bytes: 70368744177664 are the most"),
        ("vector<1073741824xf32>", "has 1073741824 elements: 65536 are the most"),
    ],
)
def test_types_that_nothing_holds(type_, message):
    with pytest.raises(virtual_npu.UnsupportedOpError, match=f"line 1: func.func: .*{message}"):
        virtual_npu.emit(f"func.func @f(%a: {type_}) {{ return }}")


def test_declaration_without_link_with(tmp_path):
    with pytest.raises(
        virtual_npu.UnsupportedOpError, match=r"line 12: func.call: @shift has no body and no link_with"
    ):
        build(tile("shift", "llvm.emit_c_interface"), tmp_path)


def test_one_object_from_two_sources(tmp_path, kernels):
    text = tile("a", 'link_with = "k.o", link_source = "many.cc", link_defines = "NAME=a"')
    other = 'link_with = "k.o", link_source = "many.cc", link_defines = "NAME=b"'
    declared = f"func.func private @b(memref<16xf32, 2>, i32, f32) attributes {{{other}}}\n  func.func @main"
    call = "func.call @b(%t, %n, %by) : (memref<16xf32, 2>, i32, f32) -> ()\n          func.call @a"
    text = text.replace("func.func @main", declared).replace("func.call @a", call)
    with pytest.raises(
        virtual_npu.KernelSourceError, match=r"@b and @a both link with k.o, but name different"
    ):
        build(text, tmp_path, kernels)


def test_the_compilers_own_words_are_shown(tmp_path, kernels):
    text = tile("shift", 'link_with = "broken.o"')
    with pytest.raises(
        virtual_npu.ToolchainError, match=r"compiling broken.cc failed; .* says:\n.*broken.cc:1"
    ):
        build(text, tmp_path, kernels)
    assert not (tmp_path / "p.so").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["kernels"]


def test_output_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        virtual_npu.ToolchainError,
        match=r"cannot build .*p\.so: .*Free space, or choose another folder: AERIE_CACHE names",
    ):
        build(COPY, tmp_path / "file")


def test_a_full_disk_at_link_time_has_the_linkers_message(tmp_path, monkeypatch):
    folder = tmp_path / "out"
    folder.mkdir()
    wrapper = tmp_path / "c++"
    # Linkers remove what they could not finish.
    wrapper.write_text(
        """#!/bin/sh
        case "$*" in *-shared*)
            while [ "$1" != -o ]; do shift; done
            rm -f "$2"; echo "ld: final link failed: No space left on device" >&2; exit 1
        esac
        exec c++ "$@"
        """
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("VNPU_CXX", str(wrapper))
    monkeypatch.setenv("VNPU_CACHE", str(tmp_path / "cache"))  # empty, so that it is linked
    monkeypatch.setenv("VNPU_OPT", "0")
    with pytest.raises(virtual_npu.ToolchainError, match=r"linking failed; .*\n.*No space left on device"):
        build(COPY, folder)
    assert list(folder.iterdir()) == []


def test_undefined_symbol_is_refused_when_linking(tmp_path, kernels):
    text = tile("nowhere", 'link_with = "shift.o"')
    message = r'@nowhere links with shift.o, but shift.cc does not define extern "C" nowhere: define it there'
    with pytest.raises(virtual_npu.KernelSourceError, match=message):
        build(text, tmp_path, kernels)
    assert [path.name for path in tmp_path.iterdir()] == ["kernels"]


def test_missing_compiler_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setenv("VNPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("VNPU_CXX", "no-such-compiler")
    message = r"no C\+\+ compiler: looked for no-such-compiler. Install one \(Debian, Ubuntu: apt install g\+\+; Fedora: dnf"
    with pytest.raises(virtual_npu.ToolchainError, match=message):
        build(COPY, tmp_path)
    monkeypatch.delenv("VNPU_CXX")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(virtual_npu.ToolchainError, match=r"looked for c\+\+, g\+\+, clang\+\+"):
        build(COPY, tmp_path)


def refused(text: str, message: str) -> None:
    with pytest.raises(virtual_npu.ProgramError, match=message):
        virtual_npu.emit(text)


def test_unsupported_operations_name_themselves_and_their_line():
    refused(
        """func.func @f(%x: memref<4xf32>) {
             %t = tensor.empty() : tensor<4xf32>
             return
           }""",
        r"line 2: tensor.empty: tensors are not supported: bufferize the module to memrefs first",
    )
    refused(
        """func.func @f(%x: memref<4xf32>) {
             air.launch () in () args(%a=%x) : memref<4xf32> {
               air.herd @h tile (%i, %j) in (%n=%one, %m=%one) { }
             }
             return
           }""",
        "error: ",
    )


def test_forms_that_are_not_supported():
    refused(
        "func.func @f(%x: memref<?xf32>) { return }", r"line 1: func.func: argument 0 has type memref<\?xf32>"
    )
    refused("func.func private @f(%x: memref<4xf32>) { return }", r"no public func\.func with a body")
    refused("func.func @f(%x: memref<4xi24>) { return }", r"type i24 is not supported: use f32")


def test_generated_code_carries_source_lines_and_can_be_kept(tmp_path, monkeypatch):
    generated = virtual_npu.emit(COPY)
    assert "// 3: memref.copy %x, %y" in generated.text
    monkeypatch.setenv("VNPU_KEEP", str(tmp_path / "keep"))
    build(COPY, tmp_path)
    assert (tmp_path / "keep" / "p.cc").read_text() == generated.text
    assert os.access(tmp_path / "p.so", os.X_OK)


def test_library_refuses_a_file_that_is_no_program(tmp_path):
    path = tmp_path / "x.so"
    path.write_bytes(b"not an object")
    with pytest.raises(virtual_npu.ProgramError, match=r"x\.so is not a program of the virtual NPU"):
        virtual_npu.Library(path)
    build(COPY, tmp_path)
    library = virtual_npu.Library(tmp_path / "p.so")
    with pytest.raises(virtual_npu.VnpuArgumentError, match=r"no entry gone in p\.so: it has copy"):
        library.run("gone", [])
    with pytest.raises(virtual_npu.VnpuArgumentError, match="copy takes 2 arguments, 1 given"):
        library.run("copy", [0])


def test_a_call_is_made_any_number_of_times(tmp_path):
    build(COPY, tmp_path)
    library = virtual_npu.Library(tmp_path / "p.so")
    source, target = np.zeros(4, np.float32), np.zeros(4, np.float32)
    call = library.call("copy", [source.ctypes.data, target.ctypes.data])
    for value in (1, 2):
        source[:] = value
        before = virtual_npu.Library.seconds
        call()
        np.testing.assert_array_equal(target, source)
        assert virtual_npu.Library.seconds > before


def test_a_program_that_replaces_another_is_the_one_that_runs(run, program, tmp_path):
    path, arrays = tmp_path / "air.so", (np.full(4, 2, np.float32), np.zeros(4, np.float32))
    for text, last in ((COPY, 2), (COPY.replace("%x, %y :", "%y, %x :"), 0), (COPY, 2)):
        (draft := tmp_path / "draft").write_bytes(program(text).path.read_bytes())
        draft.replace(path)
        assert run(virtual_npu.Library(path), "copy", *arrays)[1][0] == last
