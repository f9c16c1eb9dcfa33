"""What this machine has, as the features that tests ask for with REQUIRES."""

from __future__ import annotations

from collections.abc import Mapping

from aerie.common.compiler import find_compiler
from aerie.common.errors import ProgramError
from aerie.runtime.npu.device import missing_device
from aerie.runtime.npu.tools import missing_compile_tools

FEATURES = {
    "virtual_npu": "a C++ compiler, as virtual_npu itself looks for one",
    "ryzen_ai_npu2": "a pyxrt that opens an NPU2, and no -D board=0; make doctor says what lacks",
    "peano": "aircc, aiecc, aiebu-asm, Peano and aie_api; make doctor says what lacks",
    "hf_token": "HF_TOKEN",
    "slow": "-D slow=1, which lets tests take minutes",
}
"""Every feature, and what decides it."""

FORWARDED = (
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


def available(environment: Mapping[str, str], slow: bool = False, board: bool = True) -> set[str]:
    """The features of this machine, for a caller with these environment variables.

    Without `board` the NPU is not even looked for, which would open it.
    """
    found = {
        "virtual_npu": _has_compiler(),
        "ryzen_ai_npu2": board and not missing_device(),
        "peano": not missing_compile_tools(),
        "hf_token": bool(environment.get("HF_TOKEN")),
        "slow": slow,
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
    except ProgramError:
        return False
    return True
