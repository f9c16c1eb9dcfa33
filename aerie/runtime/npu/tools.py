"""Finds the tools that compile for the NPU. None of this needs a device.

Each tool is found as upstream does it: mlir-air prefers the `aircc` in its own wheel's `bin` (mlir-air
python/air/tools.py, `resolve_tool`), Peano is PEANO_INSTALL_DIR or the llvm-aie wheel (mlir-air
python/air/backend/xrt.py, `_find_peano_install_dir`), and `aie_api` is in mlir-aie's `include` (mlir-air
programming_examples/llms/shared/infra/external_kernels.py). Wheels of the running environment are used
although their `bin` is not on PATH.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aerie.runtime.errors import BackendError

XRT_FOLDERS = ("/opt/xilinx/xrt", "/opt/xilinx/aiebu")
"""Where XRT's packages install if its setup.sh was not sourced; mlir-aie's aiecc.py has the second."""


@dataclass(frozen=True)
class NpuTools:
    """The tools of one machine. peano: the folder with bin/clang++. include: the folder with aie_api/."""

    aircc: Path
    aiecc: Path
    aiebu_asm: Path
    peano: Path
    include: Path

    @property
    def clang(self) -> Path:
        """Peano's compiler."""
        return self.peano / "bin" / "clang++"

    def search_path(self, inherited: str) -> str:
        """PATH for aircc, which finds `aiecc` there, and for `aiecc`, which finds `aiebu-asm`: their folders
        come first.
        """
        folders = dict.fromkeys(str(tool.parent) for tool in (self.aiecc, self.aiebu_asm))
        return os.pathsep.join([*folders, *filter(None, [inherited])])


def aircc() -> Path | None:
    """mlir-air's compiler driver: the installed wheel's, or on PATH."""
    return _executable(_wheel_folder("mlir_air"), "aircc") or _on_path("aircc")


def aiecc() -> Path | None:
    """mlir-aie's compiler driver, which aircc calls: on PATH, as aircc finds it, or the installed wheel's."""
    return _on_path("aiecc") or _executable(_wheel_folder("mlir_aie"), "aiecc")


def air_opt() -> Path | None:
    """mlir-air's passes one by one: the installed wheel's, or on PATH, as aircc."""
    return _executable(_wheel_folder("mlir_air"), "air-opt") or _on_path("air-opt")


def aie_opt() -> Path | None:
    """mlir-aie's passes one by one: on PATH, or the installed wheel's, as aiecc."""
    return _on_path("aie-opt") or _executable(_wheel_folder("mlir_aie"), "aie-opt")


def aie_translate() -> Path | None:
    """mlir-aie's translations, to LLVM IR and instruction words: on PATH, or the installed wheel's."""
    return _on_path("aie-translate") or _executable(_wheel_folder("mlir_aie"), "aie-translate")


def aiebu_asm() -> Path | None:
    """XRT's assembler, which writes the ELF: on PATH, or in XRT's own folder."""
    folders = [os.environ.get("XILINX_XRT", ""), *XRT_FOLDERS]
    in_xrt = (_executable(Path(folder), "aiebu-asm") for folder in folders if folder)
    return _on_path("aiebu-asm") or next((found for found in in_xrt if found), None)


def peano_root() -> Path | None:
    """The folder with Peano's bin/clang++: PEANO_INSTALL_DIR or the llvm-aie wheel's; None without either."""
    installed = os.environ.get("PEANO_INSTALL_DIR")
    candidates = [Path(installed) if installed else None, _wheel_folder("llvm-aie")]
    return next((root for root in candidates if _executable(root, "clang++")), None)


def aie_api_include() -> Path | None:
    """The folder with aie_api/aie.hpp: by aie-opt or aiecc, MLIR_AIE_INSTALL_DIR's, or the wheel's."""
    installed = os.environ.get("MLIR_AIE_INSTALL_DIR")
    installs = [tool.resolve().parent.parent for name in ("aie-opt", "aiecc") if (tool := _on_path(name))]
    roots = [*installs, Path(installed) if installed else None, _wheel_folder("mlir_aie")]
    folders = (root / "include" for root in roots if root)
    return next((folder for folder in folders if (folder / "aie_api" / "aie.hpp").is_file()), None)


def installed_version(distribution: str) -> str | None:
    """The version of an installed Python distribution; None where there is none."""
    import importlib.metadata  # here and below, since most starts do not need it

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


FINDERS = {
    "aircc": (aircc, "aircc is missing: it comes with mlir-air; install its wheel or put it on PATH"),
    "aiecc": (aiecc, "aiecc is missing: it comes with mlir-aie; install its wheel or put it on PATH"),
    "aiebu-asm": (
        aiebu_asm,
        "aiebu-asm is missing: XRT has it, and it writes the ELF; source XRT's setup.sh",
    ),
    "Peano": (
        peano_root,
        "Peano is missing: set PEANO_INSTALL_DIR to the folder with bin/clang++, or install llvm-aie",
    ),
    "aie_api": (
        aie_api_include,
        "aie_api/aie.hpp is missing: it comes with mlir-aie; install its wheel, put its aie-opt on PATH or "
        "set MLIR_AIE_INSTALL_DIR",
    ),
}
"""Every part of the toolchain: the function that finds it, and the text for when it is missing."""


STAGE_FINDERS = {
    "air-opt": (air_opt, "air-opt is missing: it comes with mlir-air; install its wheel or put it on PATH"),
    "aircc": FINDERS["aircc"],
    "aie-opt": (aie_opt, "aie-opt is missing: it comes with mlir-aie; install its wheel or put it on PATH"),
    "aie-translate": (
        aie_translate,
        "aie-translate is missing: it comes with mlir-aie; install its wheel or put it on PATH",
    ),
}
"""The tools that take a program through its stages without Peano and without an NPU (stages.py)."""


VARIABLES = {"PEANO_INSTALL_DIR": "bin/clang++", "MLIR_AIE_INSTALL_DIR": "include/aie_api/aie.hpp"}
"""Variables that name a tool's folder, and a file that the folder must have."""


def ignored_variable_note(variable: str, environ: Mapping[str, str] = os.environ) -> str:
    """A line that says that one of VARIABLES is ignored because its folder lacks the tool; "" if
    it is used.
    """
    folder, required = environ.get(variable, ""), VARIABLES[variable]
    if not folder or (Path(folder) / required).is_file():
        return ""
    return f"{variable}='{folder}' holds no {required} and is passed over"


def missing_compile_tools() -> list[str]:
    """What the NPU toolchain lacks on this machine, one line each; empty if programs can be compiled."""
    missing = [advice for find, advice in FINDERS.values() if find() is None]
    return [*missing, *filter(None, map(ignored_variable_note, VARIABLES))] if missing else []


def missing_list(refusal: str, missing: Sequence[str]) -> str:
    """A refusal, then what is missing, one line each."""
    return "\n  - ".join(
        (f"{refusal}. What is missing, and where it comes from (docs/how-to/install.md):", *missing)
    )


def find_tools() -> NpuTools:
    """The tools of this machine. Raises BackendError, which names all missing parts."""
    paths = [find() for find, _ in FINDERS.values()]
    present = [tool for tool in paths if tool is not None]
    if len(present) < len(paths):
        raise BackendError(missing_list("cannot compile for the NPU", missing_compile_tools()))
    return NpuTools(*present)


def _on_path(name: str) -> Path | None:
    path = shutil.which(name)
    return Path(path) if path else None


def _executable(root: Path | None, name: str) -> Path | None:
    """The program `name` in `root`'s bin folder."""
    tool = root / "bin" / name if root else None
    return tool if tool and os.access(tool, os.X_OK) and tool.is_file() else None


def _wheel_folder(name: str) -> Path | None:
    """The folder of data that a wheel of this name installed beside Python's packages."""
    import importlib.metadata

    try:
        folder = Path(str(importlib.metadata.distribution(name).locate_file(name)))
    except importlib.metadata.PackageNotFoundError:
        return None
    return folder if folder.is_dir() else None
