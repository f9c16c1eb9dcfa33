"""Modules parsed and verified by mlir-air's own Python bindings, where they are installed.

They run in a process of their own: they load MLIR's libraries, which must not meet those of anything else
here, and a crash of theirs is then a message. Without them our own verifiers stand alone.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from runtime.npu import versions
from runtime.npu.tools import installed_version

SECONDS = 120
"""Parsing one program takes a fraction of a second; importing the bindings, a few."""

_VERIFY = """
import pathlib, sys
from air.ir import Context, Location, Module
with Context(), Location.unknown():
    module = Module.parse(pathlib.Path(sys.argv[1]).read_text())
    sys.exit(0 if module.operation.verify() else "air.ir: the module does not verify")
"""
"""`air.ir` registers the AIR dialect by itself (mlir-air python/air/_mlir_libs/_site_initialize_0.py)."""


def installed() -> bool:
    """Whether this Python finds the bindings; they are not loaded."""
    try:
        return importlib.util.find_spec("air.ir") is not None
    except (ImportError, ValueError):
        return False


def bindings_status() -> str:
    """In one line: the bindings and their version, or what stands in for them."""
    if not installed():
        return "air.ir is not installed: modules are verified by Aerie's own dialect alone"
    version = installed_version(versions.MLIR_AIR.name) or "not from a wheel"
    return f"air.ir ({version}) parses and verifies every module before aircc sees it"


def objection(text: Path) -> str:
    """What `air.ir` says against the module in this file; nothing where it verifies."""
    command = [sys.executable, "-c", _VERIFY, str(text)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"air.ir did not end within {SECONDS} s"
    if done.returncode == 0:
        return ""
    said = (done.stderr or done.stdout).strip()
    return said or f"the process that loads air.ir ended with exit code {done.returncode} and no word"
