"""The package `air`, put together at import: MLIR's bindings, the checkout, and what a build would make.

`air.X` is, in this order: a module made here; the file of the checkout's python/air; `mlir.X`, the very same
module under a second name.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from aerie.virtual_npu.air_run import checkouts, operations, passes
from aerie.virtual_npu.errors import OptionError

EXTRA = "air-run"
PACKAGES = "xtc-mlir-python-bindings"
AIR, MLIR = "air", "mlir"
MAX_FRAMES = 1
"""Of a location: the innermost one of the program."""


def check_installed() -> None:
    """Raises OptionError where MLIR's bindings are not installed."""
    if importlib.util.find_spec(MLIR) is None:
        raise OptionError(
            f"MLIR's Python bindings are not installed, so that programs of mlir-air cannot be run: "
            f"pip install '.[{EXTRA}]' in the project's folder (package {PACKAGES})"
        )


def install(package: ModuleType | None = None) -> None:
    """Make `import air` and `import pyxrt` work in this process. package: the module `air`, where it exists.

    Raises OptionError where the bindings or the checkout is missing.
    """
    check_installed()
    if any(isinstance(finder, AirFinder) for finder in sys.meta_path):
        return
    _allow_unregistered()
    ir = importlib.import_module("mlir.ir")
    finder = AirFinder(checkouts.python_folder(), ir)
    sys.meta_path.insert(0, finder)
    passes.extend_bindings(ir)
    _note_places(ir, finder.folder)
    passes.refuse_air_passes(importlib.import_module("mlir.passmanager"))
    package = package or sys.modules.setdefault(AIR, ModuleType(AIR))
    package.__path__ = [str(finder.folder)]
    package.__spec__ = importlib.machinery.ModuleSpec(AIR, None, is_package=True)
    package.__spec__.submodule_search_locations = package.__path__
    sys.modules.setdefault("pyxrt", importlib.import_module("aerie.virtual_npu.pyxrt"))


def _allow_unregistered() -> None:
    """Let every context of MLIR's bindings take operations of a dialect that it does not know."""
    name = "mlir._mlir_libs._site_initialize_0"
    if "mlir._mlir_libs" in sys.modules:
        raise OptionError("MLIR's bindings were imported before the package air: import air first")
    hook = ModuleType(name)

    def context_init_hook(context: Any) -> None:
        context.allow_unregistered_dialects = True

    hook.context_init_hook = context_init_hook  # type: ignore[attr-defined]
    hook.__spec__ = importlib.machinery.ModuleSpec(name, None)
    sys.modules[name] = hook


def _note_places(ir: Any, folder: Path) -> None:
    """Give operations the place in the program as their location, not one in mlir-air's or our own Python."""
    known = importlib.import_module("mlir._mlir_libs._mlir").globals
    for own in (folder, Path(ir.__file__).parent, Path(__file__).parent):
        known.register_traceback_file_exclusion(str(own))
    known.set_loc_tracebacks_frame_limit(MAX_FRAMES)
    known.set_loc_tracebacks_enabled(True)


class AirFinder(importlib.abc.MetaPathFinder):
    """Finds the modules of the package `air`. folder: python/air of the checkout; ir: `mlir.ir`."""

    def __init__(self, folder: Path, ir: Any) -> None:
        self.folder = folder
        self._made = {
            "air.dialects._air_ops_gen": lambda name: operations.operations_module(name, ir),
            "air.dialects._air_enum_gen": operations.enums_module,
            "air.dialects._air_transform_ops_gen": lambda name: passes.transform_module(name, ir),
            "air._mlir_libs._air": lambda name: passes.air_module(name, ir),
            "air._mlir_libs._air.runner": lambda name: passes.runner_module(name),
        }

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  its place follows from its name
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """The place of `air.X`; None for other modules, and for those that do not exist."""
        if not fullname.startswith("air."):
            return None
        if fullname in self._made:
            loader = _MadeLoader(self._made[fullname])
            return importlib.machinery.ModuleSpec(fullname, loader, is_package=True)
        return self._of_checkout(fullname) or _of_mlir(fullname)

    def _of_checkout(self, fullname: str) -> importlib.machinery.ModuleSpec | None:
        place = self.folder.joinpath(*fullname.split(".")[1:])
        for file, is_package in ((place.with_suffix(".py"), False), (place / "__init__.py", True)):
            if file.is_file():
                locations = [str(place)] if is_package else None
                return importlib.util.spec_from_file_location(
                    fullname, file, submodule_search_locations=locations
                )
        if place.is_dir() and fullname != "air._mlir_libs":
            spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [str(place)]
            return spec
        return None


class _MadeLoader(importlib.abc.Loader):
    """Loads a module that a function makes."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module: ModuleType = self._make(spec.name)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing left to do."""


def _of_mlir(fullname: str) -> importlib.machinery.ModuleSpec | None:
    name = MLIR + fullname.removeprefix(AIR)
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is None:
        return None
    is_package = found.submodule_search_locations is not None
    return importlib.machinery.ModuleSpec(fullname, _SecondName(name), is_package=is_package)


class _SecondName(importlib.abc.Loader):
    """Gives a module of MLIR's bindings under its name in `air`, and leaves its own name and spec to it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:  # noqa: ARG002
        self._module = importlib.import_module(self._name)
        self._spec = self._module.__spec__
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Give back the spec that the import system has replaced."""
        module.__spec__ = self._spec
