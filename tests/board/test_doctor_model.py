"""The doctor on the checkpoint: nothing is fetched, everything is read, and it must fit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from made_up_machine import machine, put

from board.doctor import basics
from board.doctor.machine import Status
from llama32_1b.checkpoint import DEMO_FOLDER


def free(root: Path, kib: int) -> None:
    put(root, "/proc/meminfo", f"MemAvailable: {kib} kB\n")


def test_the_demo(tmp_path: Path) -> None:
    free(tmp_path, 8 << 20)
    finding = basics.checkpoint(machine(tmp_path))
    assert finding.status is Status.OK
    assert finding.found.startswith("demo, 6 layers, ")


def test_too_large(tmp_path: Path) -> None:
    free(tmp_path, 1024)
    finding = basics.checkpoint(machine(tmp_path))
    assert finding.status is Status.FAILED
    assert "(weights 9 MiB, activations 1 MiB, " in finding.found
    assert "a shorter SEQ_LEN or a smaller model: 1 MiB are free" in finding.fix


def test_memory_that_cannot_be_told_refuses_nothing(tmp_path: Path) -> None:
    assert basics.checkpoint(machine(tmp_path)).status is Status.OK


@pytest.mark.parametrize(
    ("name", "said"),
    [("no such/thing here", "is neither a folder"), ("no-such-folder", "is neither a folder")],
)
def test_no_checkpoint(tmp_path: Path, name: str, said: str) -> None:
    finding = basics.checkpoint(machine(tmp_path, model=name))
    assert finding.status is Status.FAILED
    assert said in finding.found


@pytest.mark.parametrize(
    ("broken", "said"), [("config.json", "cannot read"), ("model.safetensors", "model.safetensors")]
)
def test_broken_checkpoint(tmp_path: Path, broken: str, said: str) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(DEMO_FOLDER, folder)
    (folder / broken).write_text("garbage")
    finding = basics.checkpoint(machine(tmp_path, model=str(folder)))
    assert finding.status is Status.FAILED
    assert said in finding.found


def test_an_id_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    finding = basics.checkpoint(machine(tmp_path, model="nobody/such-a-model"))
    assert finding.status is Status.WARNING
    assert finding.found == "nobody/such-a-model is not on this machine yet"
