"""The content store: entries appear whole, once, and go when nobody uses them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from aerie.common.store import Store, interrupt_lock_waits, write_atomic

KEY = "0123456789abcdef"
NAME = f"{KEY}.o"
DAY = 24 * 60 * 60


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path, inner=("inner", "virtual"))


def made_of(content: bytes):
    def make(work: Path) -> Path:
        made = work / "made"
        made.write_bytes(content)
        return made

    return make


def never(work: Path) -> Path:
    pytest.fail("made again")


def left_of(store: Store) -> list[str]:
    """What is in the store beside entries."""
    folders = (store.folder / "locks", store.folder / "unfinished")
    return sorted(path.name for folder in folders for path in folder.iterdir() if path.name != "pruned")


def test_an_entry_is_made_once(store):
    assert store.find(NAME) is None
    path = store.get_or_make(NAME, made_of(b"content"))
    assert path == store.folder / NAME
    assert store.get_or_make(NAME, never) == path
    assert store.read(NAME) == b"content"
    assert path.read_bytes()[:-32] == b"content"
    assert store.get_or_make(f"inner/x-{KEY}.o", made_of(b"other")) == store.folder / "inner" / f"x-{KEY}.o"
    assert left_of(store) == []


@pytest.mark.parametrize("damage", [b"", b"\0" * 100, None])
def test_a_damaged_entry_counts_as_missing(store, damage):
    path = store.get_or_make(NAME, made_of(b"content"))
    path.write_bytes(path.read_bytes()[:-9] if damage is None else damage)
    assert store.find(NAME) is None
    assert store.get_or_make(NAME, made_of(b"again")).read_bytes()[:-32] == b"again"


def test_what_fails_leaves_nothing(store):
    def fail(work: Path) -> Path:
        (work / "half").write_text("x")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.get_or_make(NAME, fail)
    assert (store.find(NAME), left_of(store)) == (None, [])


def test_a_second_thread_waits_with_a_note_and_finds_the_entry(store):
    started, waits, found = threading.Event(), threading.Event(), []

    def make(work: Path) -> Path:
        started.set()
        assert waits.wait(120)
        return made_of(b"first")(work)

    first = threading.Thread(target=store.get_or_make, args=(NAME, make))
    second = threading.Thread(target=lambda: found.append(store.get_or_make(NAME, never, waits.set)))
    first.start()
    assert started.wait(120)
    second.start()
    first.join()
    second.join()
    assert found == [store.folder / NAME]
    assert left_of(store) == []


def test_waiting_can_be_stopped(store):
    """As by Ctrl-C, which only the main thread gets."""
    waits, ended = threading.Event(), []

    def wait() -> None:
        try:
            store.get_or_make(NAME, never, waits.set)
        except InterruptedError as error:
            ended.append(str(error))

    with store.locked_work_folder(NAME):
        waiter = threading.Thread(target=wait)
        waiter.start()
        assert waits.wait(120)
        while waiter.is_alive():
            interrupt_lock_waits()
            waiter.join(0.02)
    assert len(ended) == 1
    assert "stopped while another process makes it" in ended[0]
    assert store.get_or_make(NAME, made_of(b"x"))


def test_the_lock_is_one_however_many_want_it(store):
    """Lock files are removed and made again all the time: never do two hold the lock."""
    inside, most, count = 0, 0, 0

    def work() -> None:
        nonlocal inside, most, count
        for _ in range(25):
            with store.locked_work_folder(NAME):
                inside += 1
                most, count = max(most, inside), count + 1
                time.sleep(0.0005)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, count) == (1, 100)


MAKE_AND_HANG = """
import sys, time
from pathlib import Path
from aerie.common.store import Store
with Store(Path(sys.argv[1])).locked_work_folder(sys.argv[2]) as work:
    (work / "half").write_text("x")
    print("made", flush=True)
    time.sleep(60)
"""


def test_what_a_killed_process_left_is_removed_by_the_next(store):
    command = [sys.executable, "-c", MAKE_AND_HANG, str(store.folder)]
    both = [
        subprocess.Popen([*command, name], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
        for name in (NAME, "alive.o")
    ]
    for process in both:
        assert process.stdout
        process.stdout.readline()
    both[0].kill()
    both[0].communicate()
    assert left_of(store) == [NAME, NAME, "alive.o", "alive.o"]
    store.get_or_make(f"other-{KEY}.o", made_of(b"x"))
    assert left_of(store) == ["alive.o", "alive.o"]
    both[1].kill()
    both[1].communicate()


def entry(store: Store, name: str, days: float, nbytes: int = 100) -> None:
    path = store.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x" * nbytes)
    os.utime(path, (time.time() - days * DAY,) * 2)


def test_pruning_removes_what_was_not_used_for_long(store):
    for name, days in {
        f"old-{KEY}.so": 40,
        f"virtual/old-{KEY}.elf": 40,
        f"virtual/old-{KEY}.mlir": 41,
        f"virtual/used-{KEY}.elf": 29,
        f"virtual/used-{KEY}.mlir": 40,
        "mine.txt": 99,
        "virtual/mine.elf": 99,
        "manifest.json": 99,
    }.items():
        entry(store, name, days)
    store.prune()
    kept = sorted(path.name for path in store.folder.glob("**/*") if path.is_file())
    assert kept == ["manifest.json", "mine.elf", "mine.txt", f"used-{KEY}.elf", f"used-{KEY}.mlir"]


def test_pruning_removes_the_least_recently_used_until_the_rest_is_small(store):
    for name, days in (("now", 0.5), ("fresh", 2), ("large", 3), ("last", 4)):
        entry(store, f"{name}-{KEY}.so", days, 200 if name == "large" else 100)
    store.prune(max_bytes=300)
    assert sorted(path.stem.partition("-")[0] for path in store.folder.iterdir()) == ["fresh", "last", "now"]
    store.prune(max_bytes=0)
    assert [path.stem.partition("-")[0] for path in store.folder.iterdir()] == ["now"]


def test_reading_counts_as_a_use_and_making_prunes(store):
    store.get_or_make(NAME, made_of(b"content"))
    os.utime(store.folder / NAME, (time.time() - 40 * DAY,) * 2)
    entry(store, f"old-{KEY}.so", 40)
    assert store.find(NAME)
    assert time.time() - (store.folder / NAME).stat().st_mtime < 60
    store.get_or_make(f"more-{KEY}.o", made_of(b"x"))
    assert (store.folder / f"old-{KEY}.so").exists(), "pruned within the hour"
    os.utime(store.folder / "locks" / "pruned", (time.time() - 2 * 60 * 60,) * 2)
    store.get_or_make(f"last-{KEY}.o", made_of(b"x"))
    assert sorted(path.name for path in store.folder.glob("*.*")) == [NAME, f"last-{KEY}.o", f"more-{KEY}.o"]


def test_a_file_is_complete_or_missing(tmp_path):
    write_atomic(tmp_path / "a", lambda file: file.write(b"1"))

    def fail(file) -> None:
        file.write(b"2")
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write_atomic(tmp_path / "a", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"1"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644
