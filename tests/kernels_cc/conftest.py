"""Building C++ sources against the host AIE API, and calling them with numpy arrays."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie.common.knobs import MARCH
from tests.kernels_cc.host_compiler import KERNELS, fingerprint, run_compiler

OWN_WARNINGS = ("-Wno-uninitialized", "-Wno-maybe-uninitialized")
"""What g++ 12 says of its own headers of AVX512 intrinsics."""


@pytest.fixture(scope="session")
def compile_cc() -> Callable[..., subprocess.CompletedProcess[str]]:
    """compile_cc(source, output, *flags), against the host AIE API."""
    return run_compiler


@pytest.fixture(scope="session")
def kernels_folder() -> Path:
    return KERNELS


class Functions:
    """The functions of a shared object.

    Integers are passed as they are. Of an array the function sees a copy at a multiple of 64 bytes, as
    buffers of a core lie, whose contents come back into the array.
    """

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))

    def __getattr__(self, name: str) -> Callable[..., int]:
        function = getattr(self._library, name)

        def call(*arguments: Any) -> int:
            copies = [_aligned(a) if isinstance(a, np.ndarray) else a for a in arguments]
            pointers = [ctypes.c_void_p(c.ctypes.data) if isinstance(c, np.ndarray) else c for c in copies]
            result: int = function(*pointers)
            for array, copy in zip(arguments, copies, strict=True):
                if isinstance(array, np.ndarray):
                    array[...] = copy
            return result

        return call


def _aligned(source: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    raw = np.zeros(source.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    out = raw[start : start + source.nbytes].view(source.dtype).reshape(source.shape)
    out[...] = source
    return out


@pytest.fixture(scope="session")
def build_cc(own_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Functions]:
    """build_cc(source, defines, march): its functions, compiled once per such set, with alignment checks,
    and kept in the cache of built programs.

    march: as VNPU_MARCH, which it takes the place of.
    """
    built: dict[tuple[Any, ...], Functions] = {}
    folder = own_cache / "kernels_cc"
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = tmp_path_factory.mktemp("kernels_cc", numbered=True)

    def build(
        source: Path, defines: Mapping[str, object] | None = None, march: str = MARCH.default
    ) -> Functions:
        key = (source, march, *sorted((defines or {}).items()))
        if key not in built:
            macros = [f"-D{name}={value}" for name, value in (defines or {}).items()]
            flags = ("-fPIC", "-shared", "-Werror", *OWN_WARNINGS, "-DAIE_HOST_CHECK_ALIGNMENT")
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(MARCH.name, march)
                output = folder / f"{source.stem}_{fingerprint(source, *flags, *macros)}.so"
                if not output.exists():
                    made = unfinished / output.name
                    done = run_compiler(source, made, *flags, *macros)
                    assert done.returncode == 0, done.stderr
                    shutil.copy2(made, folder / f"{output.name}.{os.getpid()}")
                    os.replace(folder / f"{output.name}.{os.getpid()}", output)
            built[key] = Functions(output)
        return built[key]

    return build
