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


@pytest.mark.parametrize(
    ("feature", "asks"), [("ryzen_ai_npu2", "missing_device"), ("peano", "missing_compile_tools")]
)
def test_the_board_and_its_tools_are_what_the_runtime_finds(
    features: ModuleType, monkeypatch: pytest.MonkeyPatch, feature: str, asks: str
) -> None:
    """One way to ask, for lit, pytest, `make test-npu` and BACKEND=npu."""
    monkeypatch.setattr(features, asks, lambda: [])
    assert feature in features.available({})
    monkeypatch.setattr(features, asks, lambda: ["it is missing"])
    assert feature not in features.available({})


def test_a_board_that_is_to_be_left_alone_is_not_looked_for(
    features: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened() -> list[str]:
        raise AssertionError("the device was opened")

    monkeypatch.setattr(features, "missing_device", opened)
    assert "ryzen_ai_npu2" not in features.available({}, board=False)


def test_a_virtual_npu_is_a_compiler(features: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "virtual_npu" in features.available({})
    monkeypatch.setenv("VNPU_CXX", "no-such-compiler")
    assert "virtual_npu" not in features.available({})


def test_other_features_come_from_the_caller(features: ModuleType) -> None:
    assert "hf_token" in features.available({"HF_TOKEN": "x"})
    assert "hf_token" not in features.available({"HF_TOKEN": ""})
    assert "slow" in features.available({}, slow=True)
    assert "slow" not in features.available({})


def test_missing_features_are_printed(features: ModuleType) -> None:
    assert features.summary({"peano", "virtual_npu", "ryzen_ai_npu2", "slow"}) == (
        "features: peano, ryzen_ai_npu2, slow, virtual_npu; missing: hf_token (needs HF_TOKEN)"
    )
    assert features.summary(set(features.FEATURES)).endswith("; missing: none")
    assert features.available({"HF_TOKEN": "x"}, slow=True) <= set(features.FEATURES)


def test_tests_see_only_forwarded_variables(features: ModuleType) -> None:
    assert features.forwarded({"HF_TOKEN": "x", "VNPU_THREADS": "1"}) == {"HF_TOKEN": "x"}
