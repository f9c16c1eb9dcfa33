"""The commands and modules that a program of mlir-air finds in place of a build, and its environment."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from aerie import rooms
from aerie.common.fingerprint import text_digest
from aerie.common.folders import cache_folder, make_folder
from aerie.virtual_npu.air_run.knobs import CHECKOUT, CHECKS, KERNELS
from aerie.virtual_npu.errors import OptionError

COMPILERS = ("clang++", "clang", "xchesscc_wrapper", "xchesscc", "ld.lld")
"""The names under which Makefiles and scripts call the compiler and the linker of kernels."""
HEADERS = Path(__file__).parents[1] / "include"
TEST_LIBRARY = "runtime_lib/x86_64/test_lib"
"""Where an installed mlir-aie has the library of functions that its C++ hosts share."""
_EMPTY_ARCHIVE = "!<arch>\n"
_LIBRARIES = ("xrt/lib/libxrt_coreutil.a", "xrt/lib/libuuid.a")
"""What hosts link: the stand-ins for XRT and for the test library are headers, so nothing is in them."""

_AIR_INIT = """\
import sys

from aerie.virtual_npu.air_run import bindings

bindings.install(sys.modules[__name__])
"""
_PYXRT = "from aerie.virtual_npu.pyxrt import *\n"


def stand_in_folder() -> Path:
    """The folder, made where it does not exist: commands in bin/, `air` and `pyxrt` in python/, XRT's C++
    interface in xrt/."""
    files = _files()
    folder = cache_folder() / "air-run" / text_digest(repr(sorted(files.items())))[:16]
    for name, text in files.items():
        path = folder / name
        if not path.is_file():
            make_folder(path.parent)
            draft = path.with_name(f".{path.name}.{os.getpid()}")
            draft.write_text(text)
            draft.chmod(0o755)
            draft.replace(path)
    _link(folder / "xrt" / "include", HEADERS / "xrt_stand_in")
    return folder


def _link(path: Path, target: Path) -> None:
    """Make a link, where there is none."""
    make_folder(path.parent)
    if not path.exists():
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.symlink_to(target)
        draft.replace(path)


def _files() -> dict[str, str]:
    """The text of each file by its name in the folder."""
    python, own = shlex.quote(sys.executable), Path(__file__).parent
    compiler = f'#!/bin/sh\nexec {python} -I -S {shlex.quote(str(own / "kernel_objects.py"))} "$@"\n'
    module = "aerie.virtual_npu.air_run.compiler"
    return {
        **{f"bin/{name}": compiler for name in COMPILERS},
        "bin/not": '#!/bin/sh\n"$@" && exit 1\nexit 0\n',
        "bin/aircc": f'#!/bin/sh\nexec {python} -m {module} "$@"\n',
        "python/air/__init__.py": _AIR_INIT,
        "python/pyxrt.py": _PYXRT,
        "aie/include/README": "The headers of the AIE API are those of the virtual NPU.\n",
        **dict.fromkeys(_LIBRARIES, _EMPTY_ARCHIVE),
    }


def environment(checkout: Path, device: str, *, checks: bool = True) -> Mapping[str, str]:
    """The variables that differ from those of this process. device: npu1 or npu2."""
    folder = stand_in_folder()
    return {
        CHECKOUT.name: str(checkout),
        CHECKS.name: "1" if checks else "0",
        "AIR_TARGET_DEVICE": device,
        "PYTHON": sys.executable,
        "PYTHONPATH": _joined(folder / "python", *_own_folders(), before="PYTHONPATH"),
        "PATH": _joined(folder / "bin", Path(sys.executable).parent, before="PATH"),
        "PEANO_INSTALL_DIR": str(folder),
        "MLIR_AIE_INSTALL_DIR": str(_mlir_aie_folder(folder)),
        "XILINX_XRT": str(folder / "xrt"),
    }


def _mlir_aie_folder(folder: Path) -> Path:
    """What takes the place of an installed mlir-aie: the kernels of a checkout, where there is one, and the
    library of C++ hosts.

    Raises OptionError where AERIE_MLIR_AIE names none.
    """
    named = KERNELS.get()
    place = _with_kernels(folder, named) if named else folder / "aie"
    library = place / TEST_LIBRARY
    _link(library / "include", HEADERS / "test_utils_stand_in")
    _link(library / "lib" / "libtest_utils.a", folder / _LIBRARIES[0])
    return place


def _with_kernels(folder: Path, named: str) -> Path:
    kernels = Path(named).expanduser().resolve() / "aie_kernels"
    if not kernels.is_dir():
        raise OptionError(
            f"{KERNELS.name}={named} is no checkout of mlir-aie: one has the folder aie_kernels"
        )
    place = folder / f"aie-{text_digest(str(kernels))[:16]}"
    _link(place / "include" / "aie_kernels", kernels)
    return place


def _own_folders() -> list[Path]:
    """Where `aerie` is imported from, so that a script of any folder finds it."""
    return [rooms.CHECKOUT] if rooms.CHECKOUT else []


def _joined(*folders: Path, before: str) -> str:
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get(before)])])
