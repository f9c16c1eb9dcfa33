"""`run --sanitize`: what an external kernel does wrong is named with its source line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerie.virtual_npu import ToolchainError, child_process
from tests.virtual_npu.air_texts import with_constants

PROGRAM = with_constants("""
module {
  func.func private @change(memref<4xf32, 2>) attributes {link_with = "change.o"}
  func.func @f(%x: memref<4xf32>) {
    air.launch () in () args(%a=%x) : memref<4xf32> {
      air.segment @s args(%b=%a) : memref<4xf32> {
        air.herd @h tile(%tx, %ty) in (%sx=%c1, %sy=%c1) args(%c=%b) : memref<4xf32> {
          %l = memref.alloc() : memref<4xf32, 2>
          %m = memref.alloc() : memref<4xf32, 2>
          air.dma_memcpy_nd (%l[] [] [], %c[] [] []) : (memref<4xf32, 2>, memref<4xf32>)
          func.call @change(%l) : (memref<4xf32, 2>) -> ()
          air.dma_memcpy_nd (%c[] [] [], %l[] [] []) : (memref<4xf32>, memref<4xf32, 2>)
          memref.dealloc %l : memref<4xf32, 2>
          memref.dealloc %m : memref<4xf32, 2>
        }
      }
    }
    return
  }
}
""")
KERNEL = """
#include <stdint.h>
static float table[4] = {{1, 2, 3, 4}};
extern "C" void change(float *x) {{
  volatile int n = 4;
  for (int i = 0; i < 4; ++i) x[i] += table[i];
  {fault}
}}
"""
LINE = KERNEL[: KERNEL.index("{fault}")].count("\n") + 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "p.mlir").write_text(PROGRAM)
    return tmp_path


@pytest.fixture
def sanitized(folder: Path, command_line: Callable[..., Any]) -> Callable[..., Any]:
    """sanitized(fault, *words): what `run --sanitize` of a kernel with this statement in it left."""

    def run(fault: str, *words: str) -> Any:
        (folder / "change.cc").write_text(KERNEL.format(fault=fault))
        command = ["run", "p.mlir", "--kernel-dir", ".", "--zeros", "--sanitize", *words]
        return command_line("virtual_npu", command, cwd=folder, VNPU_OPT="0")

    return run


def test_a_sound_kernel_runs_as_ever(sanitized):
    done = sanitized("")
    assert (done.status, done.err) == (0, "")
    assert "arg0      4      f32      1   2.5    4" in done.out


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("x[n] = 1;", r"in change: (heap-buffer-overflow|use-after-poison), WRITE of size 4"),
        ("x[0] = table[n];", r"undefined behaviour: index 4 out of bounds for type 'float \[4\]'"),
        ("x[0] = float(1 << (n + 36));", "undefined behaviour: shift exponent 40 is too large"),
    ],
)
def test_faults_of_kernels(sanitized, fault, message):
    done = sanitized(fault)
    assert (done.status, done.out) == (1, "")
    first, *report = done.err.splitlines()
    assert first.startswith(f"error: change.cc:{LINE}: ")
    assert re.search(message, first)
    assert any(f"change.cc:{LINE}" in line for line in report)
    assert not any("Shadow bytes" in line or "_PyEval" in line for line in report)


def test_without_checks_too(sanitized):
    error = json.loads(sanitized("x[n] = 1;", "--no-checks", "--json").out)["error"]
    assert error["kind"] == "sanitizer"
    assert error["message"].startswith(f"change.cc:{LINE}: in change: heap-buffer-overflow, WRITE of size 4")


def test_other_failures_come_through(sanitized):
    done = sanitized("", "--entry", "g")
    assert (done.status, done.err) == (2, "error: no public function @g: the program has f\n")


def test_a_kernel_that_crashes(folder):
    """Without the sanitizers there is still a message. It is the parent's, so that this is a real process."""
    (folder / "change.cc").write_text(KERNEL.format(fault="*(volatile int *)(n + 4L) = 1;"))
    command = [sys.executable, "-m", "aerie.virtual_npu", "run", "p.mlir", "--kernel-dir", ".", "--zeros"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "VNPU_OPT": "0"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: the program crashed (SIGSEGV): an external kernel may have left its buffers; run it with "
        "--sanitize to see where\n"
    )


def test_a_compiler_without_the_runtime(tmp_path, monkeypatch):
    fake = tmp_path / "cxx"
    fake.write_text("#!/bin/sh\necho libasan.so\n")
    fake.chmod(0o755)
    monkeypatch.setenv("VNPU_CXX", str(fake))
    with pytest.raises(ToolchainError, match=r"cxx has no AddressSanitizer runtime .*install it"):
        child_process.asan_runtime()


def test_a_report_without_a_place_keeps_its_kind():
    assert child_process.summarize_report("==1==ERROR: AddressSanitizer: SEGV on unknown address") == "SEGV"
    assert child_process.summarize_report("nothing known") == "the sanitizer stopped the run"
