"""`aerie cache`: what is kept, and clearing it without touching what is not ours."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from aerie import rooms
from aerie.cli import cache_command
from aerie.common.store import EntryGroup
from aerie.runtime.memory import format_file_bytes

KEY = "0123456789abcdef"
DAY = 24 * 60 * 60
OURS = {
    f"programs/virtual/o_ffn-{KEY}.elf": 40,
    f"programs/virtual/o_ffn-{KEY}.mlir": 40,
    f"programs/virtual/old-{KEY}.log": 90,
    f"programs/shared/attn-{KEY}.o": 3,
    f"virtual_npu/{KEY}.so": 0,
    f"virtual_npu/texts-{KEY}.json": 40,
    f"bench/programs/virtual/o_ffn-{KEY}.elf": 5,
    f"bench/vnpu/{KEY}.o": 5,
    "bench/compile.log": 5,
    "synthetic/llama-3.2-1b/config.json": 90,
    "synthetic/llama-3.2-1b/model.safetensors": 5,
    "mlir/kernels/gemm.mlir": 1,
    "mlir/programs/o_ffn.args.json": 1,
}
RESULTS = {
    "verify/verify-demo-virtual-exact.json": 50,
    "board/logs/gemm.log": 50,
    "board/aerie-report-20260101-000000.zip": 50,
    "diagnosis.html": 2,
    "bench.json": 2,
    "setup-npu.log": 2,
    "models/smollm2/SmolLM2.gguf": 3,
}
OF_OTHERS = (
    "thesis.txt",
    "notes.json",
    "programs/mine.elf",
    f"programs/virtual/photo-{KEY}.jpg",
    f"Downloads/thing-{KEY}.json",
    "programs/unfinished/draft/chapter.txt",
    "virtual_npu/unfinished/chapter.o",
    "verify/verify.txt",
    "synthetic/other/model.safetensors",
    "bench/results.csv",
    "models/mine.gguf",
)


def put(folder: Path, name: str, days: float = 0) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 1000)
    os.utime(path, (time.time() - days * DAY - 60,) * 2)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder as AERIE_CACHE may name one: what we keep, beside files of somebody's own."""
    folder = tmp_path / "home"
    monkeypatch.setenv("AERIE_CACHE", str(folder))
    monkeypatch.delenv("VNPU_CACHE")
    for name, days in {**OURS, **RESULTS}.items():
        put(folder, name, days)
    for name in OF_OTHERS:
        put(folder, name, 99)
    return folder


def left(home: Path) -> set[str]:
    return {path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file()}


def test_it_shows_what_lies_where_and_since_when(home, command_line):
    done = command_line("cli", "cache")
    first, *rows = done.out.splitlines()
    assert (done.status, done.err) == (0, "")
    assert first == f"{home}: {len(OURS) + len(RESULTS)}000 bytes of ours".replace("20000 bytes", "19.5 KiB")
    kept = "(only clear --all removes it)"
    shown = [re.sub(r"  +", "  ", row).strip() for row in rows]
    assert "3.9 KiB  4 files  3 days ago  compiled programs" in shown
    assert "2.0 KiB  2 files  used today  what the virtual NPU built" in shown
    assert f"1000 bytes  1 file  50 days ago  records of verify {kept}" in shown
    assert shown[-2:] == [
        "to remove it: aerie cache clear [--older-than DAYS] [--all]",
        "another folder: AERIE_CACHE=/path/to/folder",
    ]
    assert left(home) == {*OURS, *RESULTS, *OF_OTHERS}


def test_clearing_leaves_results_and_what_is_not_ours(home, command_line):
    done = command_line("cli", "cache clear")
    assert done.status == 0
    assert "removed 4 files, 3.9 KiB: compiled programs\n" in done.out
    expected = f"12.7 KiB freed in {home}; records and reports stay (--all removes them too)\n"
    assert done.out.endswith(expected)
    assert left(home) == {*RESULTS, *OF_OTHERS}
    assert not (home / "mlir").exists()
    assert (home / "programs" / "unfinished" / "draft").is_dir()


def test_clearing_all_leaves_what_is_not_ours(home, command_line):
    assert command_line("cli", "cache clear --all").out.endswith(f"19.5 KiB freed in {home}\n")
    assert left(home) == set(OF_OTHERS)
    again = command_line("cli", "cache clear --all")
    assert again.out == f"0 bytes freed in {home}\n"
    assert command_line("cli", "cache").out.startswith(f"{home}: 0 bytes of ours\nanother folder: ")


def test_clearing_the_old_goes_by_the_last_use_of_what_belongs_together(home, command_line):
    command_line("cli", "cache clear --older-than 30")
    gone = {name for name in OURS if re.search(r"o_ffn-\w+\.(elf|mlir)|old-|texts-", name)}
    gone -= {f"bench/programs/virtual/o_ffn-{KEY}.elf"}
    assert left(home) == {*OURS, *RESULTS, *OF_OTHERS} - gone


def test_folders_that_are_given_elsewhere(home, tmp_path, command_line):
    put(tmp_path / "programs", f"virtual/o_ffn-{KEY}.elf")
    put(tmp_path / "built", f"{KEY}.so")
    arguments = ["cache", "--cache-dir", tmp_path / "programs"]
    shown = command_line("cli", arguments, VNPU_CACHE=str(tmp_path / "built")).out
    assert f"in {tmp_path / 'programs'}\n" in shown
    assert f"in {tmp_path / 'built'}\n" in shown
    command_line("cli", [*arguments, "clear"], VNPU_CACHE=str(tmp_path / "built"))
    assert (tmp_path / "built").is_dir()
    assert left(tmp_path / "built") == left(tmp_path / "programs") == set()
    off = command_line("cli", "cache", VNPU_CACHE="off").out
    assert "programs of the virtual NPU are not cached (VNPU_CACHE=off)" in off


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("cache --older-than 3", "--all and --older-than are for aerie cache clear"),
        ("cache clear --older-than -1", "'-1' is not a number of days, such as 30"),
        ("cache clear --older-than soon", "'soon' is not a number of days, such as 30"),
        ("cache purge", "invalid choice: 'purge' (choose from"),
    ],
)
def test_what_makes_no_sense_clears_nothing(home, command_line, words, message):
    done = command_line("cli", words)
    assert done.status == 2
    assert message in done.err
    assert left(home) == {*OURS, *RESULTS, *OF_OTHERS}


def test_a_file_that_cannot_be_removed(home, command_line, monkeypatch):
    def refuse(group: EntryGroup) -> None:
        raise PermissionError(13, "Permission denied", str(group.paths[0]))

    monkeypatch.setattr(EntryGroup, "remove", refuse)
    done = command_line("cli", "cache clear")
    assert done.status == 2
    assert re.fullmatch(r"error: cannot remove /.* \(Permission denied\): whose is it\?\n", done.err)


def test_what_a_run_keeps_is_shown_and_cleared(tmp_path, command_line, monkeypatch):
    """With an installed package's rule, from another folder: nothing is written but what is cleared."""
    monkeypatch.setattr(rooms, "CHECKOUT", None)
    monkeypatch.setattr(rooms, "SEARCH_PATH", tmp_path)
    monkeypatch.delenv("VNPU_CACHE")
    environment = {"XDG_CACHE_HOME": str(tmp_path / "user"), "VNPU_OPT": "0"}
    kernel = "func.func @f() {\n  return\n}\n"
    (tmp_path / "k.mlir").write_text(kernel)
    (tmp_path / "here").mkdir()
    done = command_line("virtual_npu", ["run", tmp_path / "k.mlir"], tmp_path / "here", **environment)
    assert done.status == 0
    shown = command_line("cli", "cache", **environment).out
    assert shown.startswith(f"{tmp_path / 'user' / 'aerie'}: ")
    assert "what the virtual NPU built" in shown
    command_line("cli", "cache clear", **environment)
    assert list((tmp_path / "user" / "aerie").iterdir()) == list((tmp_path / "here").iterdir()) == []


def test_every_default_folder_is_a_part(home):
    """What no option names goes below the folder, where `cache` finds it."""
    assert {part.folder.relative_to(home).parts[:1] for part in cache_command.cache_sections(home)} == {
        *(
            (name,)
            for name in (
                "programs",
                "virtual_npu",
                "bench",
                "synthetic",
                "mlir",
                "verify",
                "board",
                "models",
                "packed",
            )
        ),
        (),
    }


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (1023, "1023 bytes"), (1 << 10, "1.0 KiB"), ((1 << 20) - 1, "1024.0 KiB"), (1 << 20, "1.0 MiB"),
        (5 << 19, "2.5 MiB"), (3 << 30, "3.0 GiB"),
    ],
)  # fmt: skip
def test_a_size_in_words(nbytes: int, text: str) -> None:
    assert format_file_bytes(nbytes) == text
