"""A program that does not end can be stopped, and leaves nothing running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FOREVER = """
func.func @f(%x: memref<4xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = arith.constant 1000000000000 : index
  %v = arith.constant 1.0 : f32
  scf.for %i = %c0 to %n step %c1 {
    %a = memref.load %x[%c0] : memref<4xf32>
    %b = arith.addf %a, %v : f32
    memref.store %b, %x[%c0] : memref<4xf32>
  }
  return
}
"""


def children(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def is_running(process: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def until(condition) -> None:
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize(
    ("number", "status", "said"),
    [(signal.SIGINT, 130, "stopped\n"), (signal.SIGTERM, 143, "stopped\n"), (signal.SIGKILL, -9, "")],
)
def test_signals(tmp_path, monkeypatch, number, status, said):
    monkeypatch.setenv("VNPU_OPT", "0")
    (tmp_path / "p.mlir").write_text(FOREVER)
    words = ["run", "p.mlir", "--zeros", "--no-checks"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-m", "aerie.virtual_npu", *words],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: children(process.pid))
        (child,) = children(process.pid)
        # Once the shared object is mapped, the program runs or is about to.
        until(lambda: os.environ["VNPU_CACHE"] in Path(f"/proc/{child}/maps").read_text())
        time.sleep(0.2)
        process.send_signal(number)
        _, printed = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, printed) == (status, said)
    until(lambda: not is_running(child))
