"""What all tests share."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from runtime.npu.device import missing_device
from runtime.npu.tools import missing_compile_tools
from virtual_npu.pyxrt.batch import Batch


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Programs that tests build are kept as long as they run, and apart from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VNPU_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs a board is skipped without one, with all that is missing as the reason."""
    wanting = [item for item in items if item.get_closest_marker("board")]
    missing = [*missing_device(), *missing_compile_tools()] if wanting else []
    for item in wanting if missing else []:
        item.add_marker(pytest.mark.skip(reason=f"no board: {'; '.join(missing)}"))


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """Every batch as often as it is executed."""
    executed: list[Batch] = []
    real = Batch.execute

    def execute(batch: Batch) -> None:
        executed.append(batch)
        real(batch)

    monkeypatch.setattr(Batch, "execute", execute)
    return executed


def load_stand_in(name: str) -> ModuleType:
    """A module of tests/stand_ins: tests are no package, so it cannot be imported by name."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / "stand_ins" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def npu_stand_ins() -> ModuleType:
    """The module with Tools, stand-ins for the NPU's compilers: they prove plumbing and compile nothing."""
    return load_stand_in("npu_tools")


@pytest.fixture(scope="session")
def pyxrt_stand_in() -> ModuleType:
    """The module with PyxrtStandIn, which proves plumbing and is no NPU."""
    return load_stand_in("pyxrt_stand_in")
