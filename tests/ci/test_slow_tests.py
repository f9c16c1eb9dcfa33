"""The table of slow tests: which it marks; a line that names none is an error. CPU seconds. Shards. The
order in which workers import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import cpu_seconds, import_order, shards, slow_tests

NODES = ["room/test_a.py::test_one[x-1]", "room/test_a.py::test_one[y-1]", "room/test_a.py::test_two"]


def marked(tmp_path: Path, text: str, *, is_whole_suite: bool = False) -> list[str]:
    table = tmp_path / "slow.txt"
    table.write_text(text)
    found: list[str] = []

    def item(node: str) -> Any:
        path = slow_tests.TESTS / node.partition("::")[0]
        return SimpleNamespace(path=path, nodeid=f"tests/{node}", add_marker=lambda _: found.append(node))

    slow_tests.mark([item(node) for node in NODES], is_whole_suite=is_whole_suite, table=table)
    return found


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("room/test_a.py", NODES),
        ("room/test_a.py::test_one", NODES[:2]),
        ("room/test_a.py::test_one[y-1]  # 5 CPU seconds", NODES[1:2]),
        ("room/test_a.py::test_one[x*", NODES[:1]),
        ("room/*[*-1]", NODES[:2]),
        ("room/test_a.py::test", []),
        ("# room/test_a.py", []),
    ],
)
def test_a_line_names_a_file_a_test_or_one_with_parameters(
    tmp_path: Path, line: str, wanted: list[str]
) -> None:
    assert marked(tmp_path, line) == wanted


def test_a_line_that_names_no_test_is_an_error_of_the_whole_suite(tmp_path: Path) -> None:
    text = "room/test_a.py::test_two\nroom/test_a.py::test_gone\nroom/test_b*\n"
    assert marked(tmp_path, text) == NODES[2:]
    message = "names what is no test: room/test_a.py::test_gone, room/test_b\\*; it was renamed or is gone"
    with pytest.raises(pytest.UsageError, match=message):
        marked(tmp_path, text, is_whole_suite=True)


def test_cpu_seconds_are_printed_for_all_and_for_the_slowest_tests() -> None:
    def report(name: str, *seconds: float) -> Any:
        return SimpleNamespace(nodeid=name, user_properties=[(cpu_seconds.NAME, each) for each in seconds])

    reports = [report("a", 0.5, 0.25), report("b", 1.0, 6.0), report("c", 2.0)]
    assert cpu_seconds.table(reports, 2) == [
        "10 CPU seconds in 3 tests, 2 of them above 1",
        "     7.0 b",
        "     2.0 c",
    ]


def test_the_compilers_of_a_test_are_counted() -> None:
    before = cpu_seconds.spent()
    subprocess.run([sys.executable, "-c", "sum(range(4_000_000))"], check=True)
    assert cpu_seconds.spent() - before > 0.02


def test_every_file_is_in_one_shard_and_none_is_empty() -> None:
    files = [str(path.relative_to(slow_tests.TESTS)) for path in slow_tests.TESTS.rglob("test_*.py")]
    found = [[file for file in files if shards.is_in(file, f"{number}/4")] for number in (1, 2, 3, 4)]
    assert sorted(file for each in found for file in each) == sorted(files)
    assert min(map(len, found)) > len(files) / 8


@pytest.mark.parametrize("shard", ["0/4", "5/4", "4", "1/0", "one"])
def test_an_invalid_shard_is_refused(shard: str) -> None:
    with pytest.raises(
        pytest.UsageError, match=f"--shard '{shard}' is no part of the tests: give one such as 1/4"
    ):
        shards.is_in("tests/test_a.py", shard)


@pytest.mark.parametrize(
    ("worker", "arguments", "turned"),
    [
        ({}, ["tests"], False),
        ({"workerid": "gw0"}, ["tests"], False),
        ({"workerid": "gw1"}, ["tests"], True),
        ({"workerid": "gw1"}, ["tests/ci"], False),
    ],
)
def test_every_second_worker_imports_from_the_last_file_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    worker: dict[str, str],
    arguments: list[str],
    turned: bool,
) -> None:
    for name in ("a/test_1", "b/test_2", "b/helper"):
        file = tmp_path / "tests" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    imported: list[str] = []

    def load(name: str) -> None:
        imported.append(name)
        raise ImportError(name)  # it is reported where the file is collected

    monkeypatch.setattr(import_order, "ROOT", tmp_path)
    monkeypatch.setattr("importlib.import_module", load)
    config = SimpleNamespace(args=arguments, getini=lambda _: ["tests"], workerinput=worker)
    session: Any = SimpleNamespace(config=config)
    import_order.pytest_collection(session)
    assert imported == (["tests.b.test_2", "tests.a.test_1"] if turned else [])
