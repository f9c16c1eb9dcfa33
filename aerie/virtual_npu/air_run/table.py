"""Runs the examples of a checkout of mlir-air by their own test files, and writes a table of what passes.

A run is a RUN line of a .lit file below programming_examples that ends in FileCheck. The language models
(llms/) need weights and are left out. A table that exists is read first: with --only, the other rows stay.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from aerie.virtual_npu.air_run import environment

TIME_LIMIT_S = 900
PASS, FINDING, FAIL = "pass", "finding", "fail"
"""Results. A finding: with checks the run ends with an error, and without them it passes."""
HEADER = ("run", "device", "result", "why")


class Run(NamedTuple):
    """A RUN line: its name (`relu/run_makefile_peano:3`), the command, and what FileCheck looks for."""

    name: str
    folder: Path
    device: str
    command: str
    checks: tuple[str, ...]


class Row(NamedTuple):
    """A row of the table."""

    run: str
    device: str
    result: str
    why: str


def find_runs(checkout: Path) -> list[Run]:
    """The runs of the checkout's examples, by name."""
    examples = checkout / "programming_examples"
    files = sorted(file for file in examples.rglob("*.lit") if "llms" not in file.parts)
    return [run for file in files for run in _runs_of(file, examples)]


_RUN = re.compile(r"^//\s*RUN:\s*(.*)$", re.MULTILINE)
_CHECK = re.compile(r"^//\s*([\w-]+?)(?:-NEXT)?:\s*(.*?)\s*$", re.MULTILINE)
_FILE_CHECK = re.compile(r"(2>&1)?\s*\|\s*FileCheck\b(?:.*-check-prefix(?:es)?[ =]([\w,-]+))?.*$")
_UNREACHABLE = re.compile(r"^//\s*(XFAIL:\s*\*|REQUIRES:.*\bfalse\b)", re.MULTILINE)


def _runs_of(file: Path, examples: Path) -> Iterator[Run]:
    text = file.read_text()
    stem = str(file.relative_to(examples).with_suffix(""))
    device = "npu1" if re.search(r"REQUIRES:.*npu1|[/_]npu1", text + stem) else "npu2"
    for number, command in enumerate(_RUN.findall(text)):
        if file_check := _FILE_CHECK.search(command):
            prefixes = (file_check[2] or "CHECK").split(",")
            checks = tuple(line for prefix, line in _CHECK.findall(text) if prefix in prefixes)
            own = _FILE_CHECK.sub("", command).replace("%s", str(file)).replace("%S", str(file.parent))
            yield Run(f"{stem}:{number}", file.parent, device, own, checks)


def write(path: Path, checkout: Path, only: str, jobs: int, expected: Path | None = None) -> int:
    """Run what `only` names, `jobs` at a time, and write the table.

    Returns the exit status: 1 where a run that passes in the table `expected` ran and does not pass.
    """
    rows = {row.run: row for row in read(path)}
    runs = [run for run in find_runs(checkout) if only in run.name]
    with ThreadPoolExecutor(jobs) as pool:
        for row in pool.map(lambda run: _try(run, checkout), runs):
            print(f"{row.result}  {row.run}  {row.why}", file=sys.stderr, flush=True)
            rows[row.run] = row
            _save(path, [rows[name] for name in sorted(rows)])
    passed = sum(row.result == PASS for row in rows.values())
    print(f"{passed} of {len(rows)} runs pass")
    lost = [row.run for row in read(expected) if row.result == PASS and _fails(rows.get(row.run))]
    for name in lost:
        print(f"error: {name} passed, and fails now: {rows[name].why}", file=sys.stderr)
    return 1 if lost else 0


def _fails(row: Row | None) -> bool:
    return row is not None and row.result != PASS


def read(path: Path | None) -> list[Row]:
    """The rows of a table; none where there is no file."""
    if path is None or not path.is_file():
        return []
    return [Row(*line.split("\t")) for line in path.read_text().splitlines()[1:]]


def _save(path: Path, rows: Sequence[Row]) -> None:
    path.write_text("".join("\t".join(row) + "\n" for row in (HEADER, *rows)))


def _try(run: Run, checkout: Path) -> Row:
    """Run with checks, and where that fails without: what passes then has a finding."""
    reason = _failure(run, checkout, checks=True)
    if not reason:
        return Row(run.name, run.device, PASS, "")
    result = FAIL if _failure(run, checkout, checks=False) else FINDING
    return Row(run.name, run.device, result, reason.replace(str(checkout), "CHECKOUT")[:300])


def _failure(run: Run, checkout: Path, *, checks: bool) -> str:
    """Why the run does not pass; empty where it does."""
    variables = {**os.environ, **environment.environment(checkout, run.device, checks=checks)}
    command = _substituted(run.command, variables)
    with tempfile.TemporaryDirectory(prefix="air-run-") as work:
        # XRTRunner takes turns by a lock in the folder of temporary files; here each run has its own device.
        status, output = _output(command, Path(work), {**variables, "TMPDIR": work})
    missing = next((line for line in run.checks if not _is_in(line, output)), None)
    if status == 0 and missing is None:
        return ""
    return _reason(output) or (f"no line '{missing}'" if missing else f"exit status {status}")


def _substituted(command: str, variables: Mapping[str, str]) -> str:
    python = shlex.quote(sys.executable)
    for name, value in {
        "%run_on_npu1%": "",
        "%run_on_npu2%": "",
        "%PEANO_INSTALL_DIR": variables["PEANO_INSTALL_DIR"],
        "%XRT_DIR": variables["XILINX_XRT"],
        "%PYTHON": python,
        "%python": python,
    }.items():
        command = command.replace(name, value)
    return command


def _output(command: str, folder: Path, variables: Mapping[str, str]) -> tuple[int, str]:
    """The exit status and all output of a command; 124 past the time limit."""
    with subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env=dict(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return 124, output + f"\nerror: not done in {TIME_LIMIT_S} s\n"
        return process.returncode, output


def _is_in(check: str, output: str) -> bool:
    """Whether FileCheck would find a line: `{{...}}` is a regular expression, spaces count once."""
    pieces = re.split(r"\{\{(.*?)\}\}", check)  # every second one is a regular expression
    quoted = [re.sub(r"(\\ )+", r"\\s+", re.escape(piece)) for piece in pieces]
    pattern = "".join(pieces[at] if at % 2 else quoted[at] for at in range(len(pieces)))
    return re.search(pattern, output) is not None


def _reason(output: str) -> str:
    """The line that says why: the first error of ours, else the last line that names an error."""
    lines = [line.strip() for line in output.splitlines() if not line.startswith("make")]
    own = [line for line in lines if line.startswith("error:")]
    others = [line for line in lines if re.search(r"Error\b|error:|command not found", line)]
    return (own[:1] or others[-1:] or [""])[0].replace("\t", " ")
