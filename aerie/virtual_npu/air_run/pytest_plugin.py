"""For pytest: `pytest -p aerie.virtual_npu.air_run.pytest_plugin` lets tests import mlir-air's package `air`.

`XRTRunner` and `XRTBackend` then build and run on the virtual NPU, as with `aerie air-run`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from aerie.common.errors import ProgramError
from aerie.virtual_npu.air_run import bindings, checkouts, environment
from aerie.virtual_npu.air_run.knobs import CHECKOUT

DEVICES = ("npu2", "npu1")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("aerie", "mlir-air on the virtual NPU")
    group.addoption("--mlir-air", metavar="DIR", help=f"the checkout of mlir-air (default: {CHECKOUT.name})")
    group.addoption("--air-device", choices=DEVICES, default=DEVICES[0], help="default: npu2")


def pytest_configure(config: pytest.Config) -> None:
    """Make `air` and `pyxrt` importable, here and in the processes that a test starts."""
    try:
        named = config.getoption("--mlir-air")
        checkout = checkouts.find_checkout(Path(named) if named else config.rootpath)
        variables = environment.environment(checkout, config.getoption("--air-device"))
        for name, value in variables.items():
            os.environ[name] = value
        sys.path.insert(0, str(environment.stand_in_folder() / "python"))
        bindings.check_installed()
    except ProgramError as error:
        raise pytest.UsageError(str(error)) from error
