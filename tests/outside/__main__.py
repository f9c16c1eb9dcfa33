"""Other projects' tests of servers, run against `aerie serve` with smollm2, and a table of what came.

    python -m tests.outside --llama-cpp tools/server/tests --lemonade test --tester openai-compatible-tester

Their files are neither here nor fetched: who runs this says where they lie. What is passed over is in
suites.py, each with its reason. Exit codes: 0, or 1 where a test failed that is not passed over.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple
from xml.etree import ElementTree

from aerie.cli.checkpoints import find_checkpoint
from tests.outside import suites

HERE = Path(__file__).parent
PASSED, UNREAD, SKIPPED, FAILED = "passed", "passed, text not compared", "skipped", "failed"
OUTCOMES = (PASSED, UNREAD, SKIPPED, FAILED)
PATIENCE_S = 120


class Result(NamedTuple):
    """What came of a test; where it was skipped or failed, why."""

    name: str
    outcome: str
    reason: str = ""


@contextmanager
def serving(flags: Sequence[str]) -> Iterator[int]:
    """A server; its port. SystemExit where it does not start."""
    command = [sys.executable, "-m", "aerie", "serve", "--port", "0", *flags]
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stderr=log) as server:
        try:
            yield _port(server, log)
        finally:
            server.terminate()


def _port(server: subprocess.Popen[bytes], log: IO[str]) -> int:
    """Once its model is loaded."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and server.poll() is None:
        if found := re.search(r" at http://127\.0\.0\.1:(\d+);", _said(log)):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/health", timeout=PATIENCE_S).close()
                return int(found[1])
            except OSError:
                pass  # 503 while the model is loaded
        time.sleep(0.1)
    raise SystemExit(f"the server did not start: {_said(log)}")


def _said(log: IO[str]) -> str:
    return os.pread(log.fileno(), 4096, 0).decode()


def by_pytest(name: str, folder: Path, python: str, runs: Sequence[suites.Run]) -> list[Result]:
    """What came of a suite that pytest runs, by whichever Python has what it imports."""
    made = []
    elsewhere = [f"--deselect={test}" for run in runs for test in run.files if "::" in test]
    for run in runs:
        with tempfile.TemporaryDirectory() as scratch, serving(_flags(run, Path(scratch))) as port:
            left_out = [] if "::" in run.files[0] else elsewhere
            report = Path(scratch, "report.xml")
            command = [python, "-m", "pytest", "-p", "plugin", "-p", "no:cacheprovider", "-q"]
            done = subprocess.run(
                [*command, f"--basetemp={scratch}/tests", f"--junitxml={report}", *left_out, *run.files],
                cwd=folder,
                env={**os.environ, **_environment(name, folder, port)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if done.returncode > 1 or not report.exists():
                raise SystemExit(f"pytest did not run in {folder}: {done.stdout[-2000:]}")
            made += read(report.read_text())
    return made


def _flags(run: suites.Run, scratch: Path) -> Sequence[str]:
    """The flags of a run's server. Where it has a template, the model is smollm2 with this one, in a folder
    that is made in `scratch`."""
    if not run.template:
        return run.flags
    folder = scratch / "model"
    folder.mkdir()
    (folder / "model.gguf").symlink_to(find_checkpoint("smollm2"))
    (folder / "chat_template.jinja").write_text(run.template)
    return ["--model", str(folder), *run.flags]


def _environment(name: str, folder: Path, port: int) -> Mapping[str, str]:
    return {
        "AERIE_OUTSIDE": name,
        "PYTHONPATH": os.pathsep.join([str(folder), str(HERE)]),
        "DEBUG_EXTERNAL": "1",
        "PORT": str(port),
        "LEMONADE_TEST_PORT": str(port),
    }


def read(report: str) -> list[Result]:
    """Results from the JUnit XML that pytest writes."""
    return [_result(case) for case in ElementTree.fromstring(report).iter("testcase")]


def _result(case: ElementTree.Element) -> Result:
    name = f"{case.get('classname', '').rpartition('.')[2]}.py::{case.get('name')}"
    for tag, outcome in (("failure", FAILED), ("error", FAILED), ("skipped", SKIPPED)):
        if (element := case.find(tag)) is not None:
            return Result(name, outcome, " ".join((element.get("message") or "").split())[:200])
    unread = any(each.get("name") == "text not compared" for each in case.iter("property"))
    return Result(name, UNREAD if unread else PASSED)


def by_tester(program: Path, configs: Path) -> list[Result]:
    """What openai-compatible-tester says, by both its layers."""
    with serving(suites.TESTER_FLAGS) as port, tempfile.TemporaryDirectory() as scratch:
        for name, text in suites.TESTER.items():
            Path(scratch, f"{name}.yaml").write_text(text.format(port=port))
        words = [f"--{name}={scratch}/{name}.yaml" for name in suites.TESTER]
        words += [f"--{name}={configs}/{name}.yaml" for name in ("suite", "clients")]
        done = subprocess.run(
            [program, "--no-tui", f"--out-dir={scratch}/out", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        logs = [*Path(scratch).glob("out*/full_log.jsonl")]
        if not logs:
            raise SystemExit(f"{program} made no report: {done.stdout[-2000:]}")
        return results_from_log(logs[0].read_text())


def results_from_log(log: str) -> list[Result]:
    """The results of openai-compatible-tester's log, a line of JSON each: a layer is `compat` or `spec`."""
    return [_judged(one, layer) for one in map(json.loads, log.splitlines()) for layer in ("compat", "spec")]


def _judged(one: Mapping[str, Any], layer: str) -> Result:
    name, status = f"{one['test_id']} ({layer})", one[f"{layer}_status"]
    if status == "pass":
        return Result(name, PASSED)
    if why := suites.reason(suites.TESTER_SKIPS, name):
        return Result(name, SKIPPED, why)
    error, message = one.get(f"{layer}_error_type"), str(one.get(f"{layer}_error_message"))
    evidence = one.get("evidence", {})
    is_of_shape = error == "assert" and any(evidence.get(each) for each in suites.SHAPES)
    is_call = message.startswith(suites.INPUT) and evidence.get(suites.CUSTOM)
    last = one.get("steps", [{}])[-1].get("response", "")
    is_called_again = error == "schema" and one.get(suites.CALLED) and any(map(last.count, suites.CALL))
    if is_of_shape or is_call or is_called_again:
        return Result(name, UNREAD)
    return Result(name, FAILED, f"{status}: {one.get(f'{layer}_error_message')}")


def table(suite: str, results: Sequence[Result]) -> str:
    """A line for each test that did not pass, and the counts."""
    odd = [f"  {each.outcome:8} {each.name}: {each.reason}" for each in results if each.reason]
    counts = Counter(each.outcome for each in results)
    summary = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES)
    return "\n".join([*odd, f"{suite}: {summary}"])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outside", description=__doc__.partition("\n")[0])
    parser.add_argument("--llama-cpp", type=Path, help="llama.cpp's tools/server/tests")
    parser.add_argument("--lemonade", type=Path, help="Lemonade's test")
    parser.add_argument("--python", default=sys.executable, help="has what these import (default: this one)")
    parser.add_argument("--tester", type=Path, help="the program openai-compatible-tester")
    parser.add_argument("--tester-configs", type=Path, help="its folder configs (default: beside it)")
    given = parser.parse_args(argv)
    made = {}
    if given.llama_cpp:
        made["llama.cpp"] = by_pytest("llama.cpp", given.llama_cpp.resolve(), given.python, suites.LLAMA_CPP)
    if given.lemonade:
        made["Lemonade"] = by_pytest("Lemonade", given.lemonade.resolve(), given.python, suites.LEMONADE)
    if given.tester:
        made["openai-compatible-tester"] = by_tester(
            given.tester, given.tester_configs or given.tester.parent / "configs"
        )
    if not made:
        parser.error("there is nothing to run: say where a suite lies")
    for suite, results in made.items():
        print(table(suite, results))
    return int(any(each.outcome == FAILED for results in made.values() for each in results))


if __name__ == "__main__":
    raise SystemExit(main())
