"""What this machine has, as the features that tests ask for with REQUIRES."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from runtime.npu.tools import peano_root
from virtual_npu.compiler import find_compiler
from virtual_npu.errors import VirtualNpuError

DEVICES = Path("/dev/accel")
NPU2_NAMES = re.compile(r"npu[456]|strix|krackan", re.IGNORECASE)
"""What `xrt-smi examine` calls an NPU2: mlir-air's python/air/backend/xrt.py and its lit.cfg.py."""

FEATURES = {
    "virtual_npu": "a C++ compiler, as virtual_npu itself looks for one",
    "ryzen_ai_npu2": "a node under /dev/accel, Python's pyxrt, and xrt-smi naming an NPU2; or AERIE_NPU2=1",
    "peano": "PEANO_INSTALL_DIR, or the llvm-aie wheel, with bin/clang++",
    "hf_token": "HF_TOKEN",
    "long": "-D long=1, which lets tests take minutes",
}
"""Every feature, and what decides it."""

FORWARDED = (
    "AERIE_NPU2",
    "CXX",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "HF_TOKEN",
    "HOME",
    "LD_LIBRARY_PATH",
    "MLIR_AIE_INSTALL_DIR",
    "PEANO_INSTALL_DIR",
    "PYTHONPATH",
    "VNPU_CXX",
    "VNPU_MARCH",
    "XDG_CACHE_HOME",
    "XILINX_XRT",
)
"""Variables of the caller that tests see; lit hides all others."""


def available(environment: Mapping[str, str], long: bool = False) -> set[str]:
    """The features of this machine, for a caller with these environment variables."""
    found = {
        "virtual_npu": _has_compiler(),
        "ryzen_ai_npu2": environment.get("AERIE_NPU2") == "1" or _has_npu2(),
        "peano": peano_root() is not None,
        "hf_token": bool(environment.get("HF_TOKEN")),
        "long": long,
    }
    return {name for name, present in found.items() if present}


def summary(found: set[str]) -> str:
    """One line: the features that there are, and what the others would take."""
    missing = [f"{name} (needs {what})" for name, what in FEATURES.items() if name not in found]
    return f"features: {', '.join(sorted(found)) or 'none'}; missing: {', '.join(missing) or 'none'}"


def forwarded(environment: Mapping[str, str]) -> dict[str, str]:
    """Of the caller's environment, what tests see."""
    return {name: environment[name] for name in FORWARDED if name in environment}


def _has_compiler() -> bool:
    try:
        find_compiler()
    except VirtualNpuError:
        return False
    return True


def _has_npu2() -> bool:
    nodes = list(DEVICES.glob("accel*"))
    return bool(nodes) and importlib.util.find_spec("pyxrt") is not None and _is_npu2(_examined())


def _is_npu2(examined: str) -> bool:
    return NPU2_NAMES.search(examined) is not None


def _examined() -> str:
    """What `xrt-smi examine` prints; nothing where it is missing, fails or hangs."""
    tool = shutil.which("xrt-smi")
    if tool is None:
        return ""
    try:
        done = subprocess.run([tool, "examine"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
