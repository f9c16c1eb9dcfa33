"""`run --sanitize`: what an external kernel does wrong is named with its source line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from air_texts import with_constants

from aerie.virtual_npu import ToolchainError, child_process

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


def run(folder: Path, fault: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "change.cc").write_text(KERNEL.format(fault=fault))
    (folder / "p.mlir").write_text(PROGRAM)
    command = [sys.executable, "-m", "aerie.virtual_npu", "run", "p.mlir", "--kernel-dir", ".", "--zeros"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "VNPU_OPT": "0"}
    return subprocess.run(
        [*command, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def sanitized(folder: Path, fault: str, *words: str) -> subprocess.CompletedProcess[str]:
    return run(folder, fault, "--sanitize", *words)


@pytest.mark.parametrize("checks", ["--checks", "--no-checks"])
def test_a_sound_kernel_runs_as_ever(tmp_path, checks):
    done = sanitized(tmp_path, "", checks)
    assert (done.returncode, done.stderr) == (0, "")
    assert "arg0      4      f32      1   2.5    4" in done.stdout


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("x[n] = 1;", r"in change: (heap-buffer-overflow|use-after-poison), WRITE of size 4"),
        ("x[0] = table[n];", r"undefined behaviour: index 4 out of bounds for type 'float \[4\]'"),
        ("x[0] = float(1 << (n + 36));", "undefined behaviour: shift exponent 40 is too large"),
    ],
)
def test_faults_of_kernels(tmp_path, fault, said):
    done = sanitized(tmp_path, fault)
    assert done.returncode == 1
    first, *report = done.stderr.splitlines()
    assert first.startswith(f"error: change.cc:{LINE}: ")
    assert re.search(said, first)
    assert any(f"change.cc:{LINE}" in line for line in report)
    assert not any("Shadow bytes" in line or "_PyEval" in line for line in report)
    assert done.stdout == ""


def test_without_checks_too(tmp_path):
    done = sanitized(tmp_path, "x[n] = 1;", "--no-checks", "--json")
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "sanitizer"
    assert error["message"].startswith(f"change.cc:{LINE}: in change: heap-buffer-overflow, WRITE of size 4")


def test_a_kernel_that_crashes(tmp_path):
    """Without the sanitizers there is still a message."""
    done = run(tmp_path, "*(volatile int *)(n + 4L) = 1;")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "error: the program crashed (SIGSEGV): an external kernel may have left its buffers; run it with "
        "--sanitize to see where\n"
    )


def test_other_failures_come_through(tmp_path):
    done = sanitized(tmp_path, "", "--entry", "g")
    assert (done.returncode, done.stderr) == (2, "error: no public function @g: the program has f\n")


def test_a_compiler_without_the_runtime(tmp_path, monkeypatch):
    fake = tmp_path / "cxx"
    fake.write_text("#!/bin/sh\necho libasan.so\n")
    fake.chmod(0o755)
    monkeypatch.setenv("VNPU_CXX", str(fake))
    with pytest.raises(ToolchainError, match=r"cxx has no AddressSanitizer runtime .*install it"):
        child_process.runtime()


def test_a_report_without_a_place_keeps_its_kind():
    assert child_process.summary("==1==ERROR: AddressSanitizer: SEGV on unknown address") == "SEGV"
    assert child_process.summary("nothing known") == "the sanitizer stopped the run"
