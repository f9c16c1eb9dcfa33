"""What decides the features of the lit suite."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

SUPPORT = Path(__file__).parents[1] / "lit" / "support"


@pytest.fixture
def features(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SUPPORT))
    return importlib.import_module("features")


@pytest.fixture
def board(features: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a device node, pyxrt, and an xrt-smi that says what is in the file `name`."""
    (tmp_path / "accel0").touch()
    (tmp_path / "name").write_text("NPU Strix")
    (tmp_path / "pyxrt.py").touch()
    tool = tmp_path / "xrt-smi"
    tool.write_text(f'#!/bin/sh\necho "|[0000:c5:00.1] |$(cat {tmp_path}/name) |"\n')
    tool.chmod(0o755)
    monkeypatch.setattr(features, "DEVICES", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return tmp_path


def test_a_machine_with_an_npu2(features: ModuleType, board: Path) -> None:
    assert "ryzen_ai_npu2" in features.available({})


@pytest.mark.parametrize("name", ["NPU Phoenix", "NPU Hawk Point", ""])
def test_a_first_generation_npu_is_none(features: ModuleType, board: Path, name: str) -> None:
    (board / "name").write_text(name)
    assert "ryzen_ai_npu2" not in features.available({})


@pytest.mark.parametrize("part", ["accel0", "pyxrt.py", "xrt-smi"])
def test_every_part_of_it_is_needed(features: ModuleType, board: Path, part: str) -> None:
    (board / part).unlink()
    assert "ryzen_ai_npu2" not in features.available({})


def test_a_tool_that_cannot_be_started_names_nothing(features: ModuleType, board: Path) -> None:
    (board / "xrt-smi").write_text("#!/no/such/interpreter\n")
    assert "ryzen_ai_npu2" not in features.available({})


def test_a_runner_may_say_so_itself(
    features: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(features, "DEVICES", tmp_path)
    assert "ryzen_ai_npu2" in features.available({"AERIE_NPU2": "1"})
    assert "ryzen_ai_npu2" not in features.available({"AERIE_NPU2": "0"})


def test_peano_is_a_folder_with_its_compiler(
    features: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PEANO_INSTALL_DIR", str(tmp_path))
    assert "peano" not in features.available({})
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "clang++").touch()
    assert "peano" in features.available({})


def test_a_virtual_npu_is_a_compiler(features: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "virtual_npu" in features.available({})
    monkeypatch.setenv("VNPU_CXX", "no-such-compiler")
    assert "virtual_npu" not in features.available({})


def test_the_rest_is_what_the_caller_says(features: ModuleType) -> None:
    assert "hf_token" in features.available({"HF_TOKEN": "x"})
    assert "hf_token" not in features.available({"HF_TOKEN": ""})
    assert "long" in features.available({}, long=True)
    assert "long" not in features.available({})


def test_what_is_missing_is_said(features: ModuleType) -> None:
    assert features.summary({"peano", "virtual_npu", "ryzen_ai_npu2", "long"}) == (
        "features: long, peano, ryzen_ai_npu2, virtual_npu; missing: hf_token (needs HF_TOKEN)"
    )
    assert features.summary(set(features.FEATURES)).endswith("; missing: none")
    assert features.available({"AERIE_NPU2": "1", "HF_TOKEN": "x"}, long=True) <= set(features.FEATURES)


def test_tests_see_what_is_forwarded_and_nothing_else(features: ModuleType) -> None:
    assert features.forwarded({"HF_TOKEN": "x", "VNPU_THREADS": "1"}) == {"HF_TOKEN": "x"}
