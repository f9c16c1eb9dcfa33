"""The doctor on what every run needs: Python, system, compiler, memory, disk, checkpoint."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from aerie.board.doctor import basics
from aerie.board.doctor.machine import CheckStatus
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.common import cpu
from tests import gguf_files
from tests.board.made_up_machine import machine, put, tool


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ((3, 9, 1), CheckStatus.FAILED),
        ((3, 10, 4), CheckStatus.FAILED),
        ((3, 11, 0), CheckStatus.OK),
        ((3, 14, 2), CheckStatus.OK),
        ((3, 15, 0), CheckStatus.WARNING),
    ],
)
def test_python(tmp_path: Path, version: tuple[int, ...], status: CheckStatus) -> None:
    finding = basics.python(machine(tmp_path), version)
    assert finding.status is status
    assert finding.actual.startswith(".".join(map(str, version)))
    assert ("PYTHON=python3.12" in finding.fix) == (status is not CheckStatus.OK)


@pytest.mark.parametrize(
    ("release", "libc", "status"),
    [
        ("6.14.0-27-generic", "glibc 2.39", CheckStatus.OK),
        ("6.8.0-41-generic", "glibc 2.39", CheckStatus.WARNING),
        ("6.14.0", "glibc 2.31", CheckStatus.WARNING),
        ("garbage", "", CheckStatus.WARNING),
    ],
)
def test_system(tmp_path: Path, release: str, libc: str, status: CheckStatus) -> None:
    put(tmp_path, "/proc/sys/kernel/osrelease", release)
    put(tmp_path, "/etc/os-release", 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n')
    finding = basics.system(machine(tmp_path), "linux", libc)
    assert finding.status is status
    assert finding.actual.startswith(f"Ubuntu 24.04.3 LTS, Linux {release}")


def test_another_system(tmp_path: Path) -> None:
    finding = basics.system(machine(tmp_path), "darwin", "")
    assert finding.status is CheckStatus.FAILED
    assert "docs/how-to/install.md" in finding.fix


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("g++ (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0", CheckStatus.OK),
        ("g++ (GCC) 10.2.1 20210110", CheckStatus.FAILED),
        ("Ubuntu clang version 18.1.3 (1ubuntu1)", CheckStatus.OK),
        ("clang version 12.0.0", CheckStatus.FAILED),
        ("a compiler of my own", CheckStatus.UNKNOWN),
    ],
)
def test_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str, status: CheckStatus) -> None:
    compiler = tool(tmp_path / "cxx", f"echo '{message}'")
    monkeypatch.setenv("VNPU_CXX", str(compiler))
    assert basics.compiler(machine(tmp_path)).status is status


def test_compiler_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VNPU_CXX", str(tool(tmp_path / "cxx", "exit 4")))
    finding = basics.compiler(machine(tmp_path))
    assert finding.status is CheckStatus.FAILED
    assert "it ended with exit code 4" in finding.actual


def test_a_compiled_kernel_runs_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VNPU_CXX", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    known = '[{"files": "0", "version": "g++ (GCC) 13.2.0"}]'
    put(tmp_path, "built/compilers.json", known)
    monkeypatch.setenv("VNPU_CACHE", str(tmp_path / "built"))
    finding = basics.compiler(machine(tmp_path))
    assert finding.status is CheckStatus.WARNING
    assert finding.actual == "none; what g++ (GCC) 13.2.0 compiled runs, and nothing else can be compiled"
    assert "apt install g++" in finding.fix


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VNPU_CXX", "no-such-compiler")
    finding = basics.compiler(machine(tmp_path))
    assert (finding.status, finding.actual) == (CheckStatus.FAILED, "no usable compiler")
    assert "apt install g++" in finding.fix


@pytest.mark.parametrize(
    ("sets", "status", "found"),
    [
        (cpu.X86_SETS[:2], CheckStatus.OK, "AVX2, AVX-512"),
        (cpu.ARM_SETS, CheckStatus.OK, "NEON, NEON with BF16"),
        ((), CheckStatus.WARNING, "none known, on "),
    ],
)
def test_instructions(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sets: tuple[cpu.InstructionSet, ...],
    status: CheckStatus,
    found: str,
) -> None:
    monkeypatch.setattr(cpu, "instruction_sets", lambda: sets)
    finding = basics.instructions(machine(tmp_path))
    assert finding.status is status
    assert finding.actual.startswith(found)


@pytest.mark.parametrize(
    ("meminfo", "status", "found"),
    [
        ("MemTotal: 32000000 kB\nMemAvailable: 16777216 kB\n", CheckStatus.OK, "16.0 GiB free"),
        ("MemAvailable:  524288 kB\n", CheckStatus.WARNING, "512 MiB free"),
        ("garbage", CheckStatus.UNKNOWN, "unknown: /proc/meminfo has no usable number"),
        (None, CheckStatus.UNKNOWN, "unknown: /proc/meminfo has no usable number"),
    ],
)
def test_memory(tmp_path: Path, meminfo: str | None, status: CheckStatus, found: str) -> None:
    if meminfo is not None:
        put(tmp_path, "/proc/meminfo", meminfo)
    finding = basics.memory(machine(tmp_path))
    assert (finding.status, finding.actual) == (status, found)


@pytest.mark.parametrize(("free", "status"), [(6 << 30, CheckStatus.OK), (100 << 20, CheckStatus.WARNING)])
def test_disk(tmp_path: Path, free: int, status: CheckStatus) -> None:
    finding = basics.disk(machine(tmp_path / "not" / "there"), lambda _: free)
    assert finding.status is status
    assert finding.actual.endswith(f"free at {tmp_path}")


def test_disk_that_does_not_answer(tmp_path: Path) -> None:
    def refuse(_: Path) -> int:
        raise PermissionError(13, "Permission denied")

    finding = basics.disk(machine(tmp_path), refuse)
    assert finding.status is CheckStatus.UNKNOWN
    assert "Permission denied" in finding.actual


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = basics.cache(machine(tmp_path))
    assert finding.status is CheckStatus.OK
    assert re.fullmatch(rf"{tmp_path}, .* of ours, can be written", finding.actual)
    monkeypatch.setattr("aerie.common.folders.is_usable", lambda _: False)
    monkeypatch.setenv("VNPU_CACHE", "off")
    finding = basics.cache(machine(tmp_path))
    assert (finding.status, finding.actual) == (
        CheckStatus.FAILED,
        f"{tmp_path}, 0 bytes of ours, cannot be written",
    )
    assert finding.fix == "name one that can be written with AERIE_CACHE=/path/to/folder"
    put(tmp_path, f"programs/virtual/o_ffn-{'0' * 16}.elf", "x")
    assert basics.cache(machine(tmp_path)).status is CheckStatus.WARNING  # what is compiled runs


def free(root: Path, kib: int) -> None:
    put(root, "/proc/meminfo", f"MemAvailable: {kib} kB\n")


def test_the_demo(tmp_path: Path) -> None:
    free(tmp_path, 8 << 20)
    finding = basics.checkpoint(machine(tmp_path))
    assert finding.status is CheckStatus.OK
    assert finding.actual.startswith("demo, 6 layers, ")


def test_a_gguf_file_is_listed_with_the_types_of_its_tensors(tmp_path: Path) -> None:
    free(tmp_path, 8 << 20)
    path = gguf_files.write(tmp_path / "demo.gguf", gguf_files.Source(DEMO_FOLDER))
    finding = basics.checkpoint(replace(machine(tmp_path), model=str(path)))
    assert finding.status is CheckStatus.OK
    assert finding.actual.startswith(f"{path}, BF16, F32, 6 layers, ")


def test_too_large(tmp_path: Path) -> None:
    free(tmp_path, 1024)
    finding = basics.checkpoint(machine(tmp_path))
    assert finding.status is CheckStatus.FAILED
    assert "(weights 10 MiB, activations 1 MiB, " in finding.actual
    assert "take a smaller model: 1 MiB are free" in finding.fix


def test_unknown_memory_refuses_nothing(tmp_path: Path) -> None:
    assert basics.checkpoint(machine(tmp_path)).status is CheckStatus.OK


@pytest.mark.parametrize(
    ("name", "message"),
    [("no such/thing here", "is neither a folder"), ("no-such-folder", "is neither a folder")],
)
def test_no_checkpoint(tmp_path: Path, name: str, message: str) -> None:
    finding = basics.checkpoint(machine(tmp_path, model=name))
    assert finding.status is CheckStatus.FAILED
    assert message in finding.actual


@pytest.mark.parametrize(
    ("broken", "message"), [("config.json", "cannot read"), ("model.safetensors", "model.safetensors")]
)
def test_broken_checkpoint(tmp_path: Path, broken: str, message: str) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(DEMO_FOLDER, folder)
    (folder / broken).write_text("garbage")
    finding = basics.checkpoint(machine(tmp_path, model=str(folder)))
    assert finding.status is CheckStatus.FAILED
    assert message in finding.actual


def test_an_id_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    finding = basics.checkpoint(machine(tmp_path, model="nobody/such-a-model"))
    assert finding.status is CheckStatus.WARNING
    assert finding.actual == "nobody/such-a-model is not on this machine yet"
