# ruff: noqa: E501 - MLIR has long lines
"""Loops of tiles whose trips threads share (virtual_npu.codegen.passes.divide_tiles), and those that must not be shared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie import virtual_npu
from aerie.device.errors import KernelSourceError
from aerie.kernel_builder.kernels import all_kernels
from aerie.virtual_npu import BuildOptions, cache, thread_team
from tests.virtual_npu.air_texts import with_constants

SHARED = "vnpu::parallel_trips("

# Four tiles of 64 trips; each takes 16 KiB of x, calls a function in C++, and sends what that wrote.
TEMPLATE = """
func.func private @step(i32, memref<4096xi32, 2>, memref<4xi32, 2>) attributes {link_with = "step.o", link_source = "step.cc"}
func.func @f(%x: memref<256x4096xi32>, %y: memref<256x4xi32>) {
  air.launch () in () args(%a=%x, %b=%y) : memref<256x4096xi32>, memref<256x4xi32> {
    air.segment @s args(%sa=%a, %sb=%b) : memref<256x4096xi32>, memref<256x4xi32> {
      air.herd @h tile (%tx, %ty) in (%sx=%c<tiles>, %sy=%c1) args(%ha=%sa, %hb=%sb) : memref<256x4096xi32>, memref<256x4xi32> {
        %in = memref.alloc() : memref<4096xi32, 2>
        %out = memref.alloc() : memref<4xi32, 2>
        %zero = arith.constant 0 : i32
        <first>
        scf.for %i = %c0 to %c64 step %c1 {
          %at = affine.apply affine_map<(d0, d1) -> (d0 * 64 + d1)>(%tx, %i)
          %row = arith.index_cast %at : index to i32
          air.dma_memcpy_nd (%in[] [] [], %ha[<from>, %c0] [%c1, %c4096] [%c4096, %c1]) : (memref<4096xi32, 2>, memref<256x4096xi32>)
          <before>
          <call>
          air.dma_memcpy_nd (%hb[<to>, %c0] [%c1, %c4] [%c4, %c1], %out[] [] []) : (memref<256x4xi32>, memref<4xi32, 2>)
          <after>
        }
        <last>
        memref.dealloc %in : memref<4096xi32, 2>
        memref.dealloc %out : memref<4xi32, 2>
      }
    }
  }
  return
}"""
CALL = "func.call @step(%row, %in, %out) : (i32, memref<4096xi32, 2>, memref<4xi32, 2>) -> ()"
HALVES = """scf.for %h = %c0 to %c4 step %c2 {
            %from = arith.index_cast %h : index to i32
            func.call @step(%from, %in, %out) : (i32, memref<4096xi32, 2>, memref<4xi32, 2>) -> ()
          }"""
ADD = "  for (int i = 0; i < 4; ++i) out[i] = in[i] + in[i + 4];\n"


def text(**parts: str) -> str:
    source = TEMPLATE
    given = {"tiles": "4", "from": "%at", "to": "%at", "call": CALL, **parts}
    for name in ("tiles", "first", "from", "before", "call", "to", "after", "last"):
        source = source.replace(f"<{name}>", given.get(name, ""))
    return source


def step(declared: str = "// overwrites: out[0 : 4]", body: str = ADD, above: str = "") -> str:
    """C++ of the function."""
    head = 'extern "C" void step(int row, const int *in, int *out) {\n'
    return f"#include <cstdint>\n{above}\n// Comments may be longer.\n{declared}\n{head}{body}}}\n"


def emitted(source: str, folder: Path, kernel: str | None = None, options: BuildOptions | None = None) -> str:
    (folder / "step.cc").write_text(kernel or step())
    options = options or BuildOptions()
    return virtual_npu.emit(with_constants(source), options=options, kernel_dirs=[folder]).text


# ---- what is shared ----


def test_independent_trips_are_shared(tmp_path):
    assert f"{SHARED}{{4, 64, 1}}" in emitted(text(), tmp_path)


PARTS = step("// overwrites: out[row : row + 2]")
ONLY_FROM_0 = step("// overwrites: out if row == 0")
STORE = "memref.store %zero, %out[%c0] : memref<4xi32, 2>"
ZEROS = """scf.for %z = %c0 to %c4 step %c1 {
            memref.store %zero, %out[%z] : memref<4xi32, 2>
          }"""
LOAD = "%old = memref.load %out[%c0] : memref<4xi32, 2>"


@pytest.mark.parametrize(
    ("parts", "kernel"),
    [
        ({"call": HALVES}, PARTS),
        ({"call": HALVES}, ONLY_FROM_0),
        ({"before": ZEROS + LOAD}, step()),
        ({"first": STORE}, step()),
        ({"before": ZEROS, "call": HALVES}, step("// overwrites: out[row : row + 1]")),
    ],
    ids=["in parts", "from 0 on", "stored", "written before", "stored, then changed"],
)
def test_what_a_trip_overwrites_before_it_reads_it(tmp_path, parts, kernel):
    assert SHARED in emitted(text(**parts), tmp_path, kernel)


@pytest.mark.parametrize("options", [BuildOptions(fast=False), BuildOptions(checks=True)])
def test_tiles_of_slow_or_checked_builds_stay_whole(tmp_path, options):
    assert SHARED not in emitted(text(), tmp_path, options=options)


CARRIED = (
    "%more = memref.load %out[%c0] : memref<4xi32, 2>\nmemref.store %more, %in[%c0] : memref<4096xi32, 2>"
)
BRANCH = "%yes = arith.cmpi eq, %at, %c0 : index\nscf.if %yes {\n%old = memref.load %out[%c0] : memref<4xi32, 2>\n}"
AGAIN = "air.dma_memcpy_nd (%hb[%at, %c0] [%c1, %c4] [%c4, %c1], %out[] [] []) : (memref<256x4xi32>, memref<4xi32, 2>)"
BACK = "air.dma_memcpy_nd (%out[] [] [], %hb[%at, %c0] [%c1, %c4] [%c4, %c1]) : (memref<4xi32, 2>, memref<256x4xi32>)"


@pytest.mark.parametrize(
    ("parts", "kernel"),
    [
        ({}, step("")),
        ({}, step("// overwrites: out[0 : 3]")),
        ({}, step("// overwrites: out if row == 0")),
        ({}, step("// overwrites: out[row : row + 4]")),
        ({}, step("// overwrites: out[row * row : 4]")),
        ({"call": HALVES}, step("// overwrites: out[row : row + 1]")),
        ({"call": HALVES.replace("%c2", "%c3")}, step("// overwrites: out[row : row + 1]")),
        ({}, step("// overwrites: out[0 : row + 4]")),
        ({"before": ZEROS}, step("")),
        ({"before": CARRIED}, step()),
        ({"before": BRANCH}, step()),
        ({"to": "%c0"}, step()),
        ({"after": AGAIN}, step()),
        ({"before": BACK}, step()),
        ({"first": BACK.replace("%at", "%tx")}, step()),
        ({"first": AGAIN.replace("%at", "%tx")}, step()),
        ({"last": AGAIN.replace("%at", "%tx")}, step()),
    ],
    ids=[
        *["not declared", "declared in part", "for another row", "elsewhere", "at a square", "half of each half"],
        *["with a gap", "up to a row", "after zeros"],
        *["carried", "in a branch", "one place", "twice", "read back", "read before", "sent before", "sent after"],
    ],
)  # fmt: skip
def test_tiles_of_dependent_trips_stay_whole(tmp_path, parts, kernel):
    assert SHARED not in emitted(text(**parts), tmp_path, kernel)


@pytest.mark.parametrize(
    "declared",
    [
        "// overwrites: result",
        "// overwrites: out[0]",
        "// overwrites: out if line == 0",
        "// overwrites: *out",
    ],
)
def test_a_declaration_that_cannot_be_read(tmp_path, declared):
    with pytest.raises(
        KernelSourceError, match=r"line 16: @step: step\.cc has .*overwrites: .*, which cannot be read: write"
    ):
        emitted(text(), tmp_path, step(declared))


def test_memrefs_that_overlap_keep_the_order_of_trips(program, tmp_path, monkeypatch):
    """y is x from row 1 on: each trip reads what the trip before has written."""
    source = text(tiles="1").replace("memref<256x4xi32>", "memref<256x4096xi32>")
    source = source.replace("[%c1, %c4] [%c4, %c1], %out", "[%c1, %c4] [%c4096, %c1], %out")
    assert SHARED in emitted(source, tmp_path)
    library = program(source, (tmp_path,))
    results = []
    for threads in (1, 16):
        monkeypatch.setenv("VNPU_THREADS", str(threads))
        x = np.ones((257, 4096), np.int32)
        library.run("f", [x.ctypes.data, x[1:].ctypes.data])
        results.append(x)
    assert results[0][64, 0] == 65
    np.testing.assert_array_equal(results[0], results[1])


# ---- who takes how much ----

# Each thread waits in its first trip until as many have begun as `in` says; the caller, until the others have done 248 of the
# 256 trips. It takes 8 trips at most at first: 256 / (2 * 16).
COUNTED = step(
    above="#include <atomic>\n#include <unistd.h>\nstatic std::atomic<int> begun{0}, done{0};\nstatic thread_local int own = 0;",
    body="""
  const bool is_caller = getpid() == gettid();
  if (!own) own = ++begun;
  for (int i = 0; begun < in[1] && i < 100000; ++i) usleep(100);
  for (int i = 0; is_caller && done < 248 && i < 100000; ++i) usleep(100);
  usleep(is_caller ? 0 : 300);
  if (!is_caller) ++done;
  out[0] = own, out[1] = is_caller, out[2] = out[3] = 0;
""",
)  # fmt: skip


def test_sixteen_threads_share_four_tiles_and_a_slow_one_takes_less(program, tmp_path, monkeypatch):
    (tmp_path / "step.cc").write_text(COUNTED)
    library = program(text(), (tmp_path,))
    monkeypatch.setenv("VNPU_THREADS", "16")
    x, y = np.full((256, 4096), 16, np.int32), np.zeros((256, 4), np.int32)
    library.run("f", [x.ctypes.data, y.ctypes.data])
    numbers, counts = np.unique(y[:, 0], return_counts=True)
    assert list(numbers) == list(range(1, 17))
    assert 1 <= y[:, 1].sum() <= 8 < np.median(counts)
    thread_team.limit_threads(2)
    try:
        library.run("f", [x.ctypes.data, y.ctypes.data])
    finally:
        thread_team.limit_threads(64)
    assert len(np.unique(y[:, 0])) <= 2


# ---- our kernels ----

GEMVS: dict[str, dict[str, Any]] = {
    "rows": {"m": 512, "k": 1024},
    "pieces": {"m": 1024, "k": 576, "k_piece": 192},
    "q4": {"m": 2048, "k": 576, "weight": "q4"},
    "q8": {"m": 1024, "k": 896, "weight": "q8"},
}


@pytest.mark.parametrize("form", GEMVS)
def test_gemvs_have_the_same_bits_on_any_number_of_threads(form, monkeypatch):
    spec = all_kernels()["gemv"]
    assert spec.random_inputs
    kernel, arrays = spec.build(**GEMVS[form]), spec.random_inputs(GEMVS[form], np.random.default_rng(0))
    results = []
    for fast in (True, False):
        options = BuildOptions(fast=fast)
        assert (SHARED in virtual_npu.emit(kernel.text, options=options).text) == fast
        library = cache.load(cache.ProgramSource(kernel.text, "<string>", (), options))
        for threads in (1, 2, 3, 16):
            monkeypatch.setenv("VNPU_THREADS", str(threads))
            out = np.zeros(GEMVS[form]["m"], arrays["x"].dtype)
            library.run("gemv", [arrays["weight"].ctypes.data, arrays["x"].ctypes.data, out.ctypes.data])
            results.append(out.tobytes())
    assert len(set(results)) == 1
