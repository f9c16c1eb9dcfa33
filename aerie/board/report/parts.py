"""The parts of a report. A part that cannot be obtained has the reason instead, and the report continues."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.board.linux import distribution_name
from aerie.board.report.redaction import PROJECT
from aerie.runtime.npu import versions
from aerie.runtime.npu.tools import installed_version
from aerie.version import VERSION

TOOL_TIMEOUT_S = 60.0
"""Time limit for a tool, in seconds. The doctor has limits of its own, and gets more time."""
DOCTOR_S = 300.0
TAIL_BYTES = 256 << 10
"""Bytes from the end of a log, where the failure is."""
MAX_LOGS = 20
"""Only the newest logs are taken."""

PACKAGES = (*versions.WHEELS, "numpy", "ml_dtypes", "xdsl", "transformers", "torch", "rich", "filelock")
"""Distributions whose versions can matter, besides the project's own."""

PROMPTS = frozenset({"prompt", "token_ids", "prompt_token_ids", "our_token_ids", "reference_token_ids"})
"""Keys in the records of the gate and the diagnosis that may hold a user's text."""

KERNEL_LINES = re.compile(r"xdna|\bnpu|\baccel|iommu.*fault", re.IGNORECASE)
"""Lines of the kernel's log that may concern the NPU."""


@dataclass(frozen=True)
class ReportPart:
    """One file of the report. missing: why there is none; its content is then empty."""

    name: str
    description: str
    content: str = ""
    missing: str = ""


@dataclass(frozen=True)
class ReportSource:
    """Where parts come from: the project's build folder, and whether prompts may be included."""

    build: Path
    with_prompts: bool = False


def all_parts(source: ReportSource) -> Iterator[ReportPart]:
    """All parts, in the order of the index."""
    yield ReportPart(
        "versions.json",
        "versions of Aerie and of its dependencies, found and required",
        _json(installed_versions()),
    )
    yield doctor()
    yield from _files(source, "board", "*.json", "the comparison with the virtual NPU, kernel by kernel")
    yield from _logs(source.build / "board" / "logs", "board-logs", "what an item of the comparison printed")
    yield from _files(source, "board", "*.xml", "results of the board tests")
    yield from _logs(source.build / "programs" / "npu", "compile-logs", "aircc and Peano on one program")
    yield from _files(source, "verify", "*.json", "a record of the gate (make verify)")
    yield from _files(source, ".", "diagnosis.json", "the record of make diagnosis")
    yield from system()


def installed_versions() -> dict[str, Any]:
    """Versions of the project, Python, the system and packages; and those that aerie/runtime/npu/versions.py
    needs.
    """
    required = (value for value in vars(versions).values() if isinstance(value, versions.RequiredVersion))
    return {
        "aerie": VERSION,
        "commit": commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "distribution": distribution_name(),
        "packages": {name: _version(name) for name in PACKAGES},
        "wanted": {item.name: item.version for item in required},
    }


def commit() -> str:
    """The commit that is checked out, and whether files differ from it."""
    head = run_tool(["git", "-C", str(PROJECT), "rev-parse", "HEAD"])
    if head.missing:
        return f"unknown: {head.missing}"
    changed = run_tool(["git", "-C", str(PROJECT), "status", "--porcelain", "--untracked-files=no"])
    count = len(changed.content.splitlines())
    return head.content.strip() + (f", and {count} changed files" if count else "")


def doctor() -> ReportPart:
    """The doctor's record, from a child process: a crash of the driver must not end the report."""
    answer = run_tool([sys.executable, "-m", "aerie.board", "doctor", "--json"], DOCTOR_S)
    return ReportPart("doctor.json", "what make doctor found", answer.content, answer.missing)


def system() -> Iterator[ReportPart]:
    """What the system's tools print about the NPU."""
    tools: Sequence[tuple[str, str, list[str], Callable[[str], str]]] = (
        ("xrt-smi.txt", "xrt-smi examine", ["xrt-smi", "examine"], str),
        ("kernel-log.txt", "the kernel's lines on the NPU", ["dmesg"], _about_npu),
        ("modules.txt", "the NPU's driver among loaded modules", ["lsmod"], _about_npu),
    )
    for name, description, command, keep in tools:
        answer = run_tool(command)
        content = keep(answer.content)
        yield ReportPart(
            name,
            description,
            content,
            answer.missing or ("" if content.strip() else "nothing on an NPU in it"),
        )


def run_tool(command: Sequence[str], limit_s: float = TOOL_TIMEOUT_S) -> ReportPart:
    """The standard output of a tool; or why it could not run."""
    tool = shutil.which(command[0])
    if tool is None:
        return ReportPart("", "", missing=f"{command[0]} is not on this machine")
    try:
        done = subprocess.run(
            [tool, *command[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
            cwd=PROJECT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return ReportPart("", "", missing=f"{command[0]} did not answer ({error})")
    if done.stdout.strip():
        return ReportPart("", "", done.stdout)
    error_text = " ".join(done.stderr.split()[-30:])
    return ReportPart(
        "",
        "",
        missing="" if done.returncode == 0 else f"{command[0]} exit code {done.returncode}: {error_text}",
    )


def redact_prompts(record: Any) -> Any:
    """A record without a user's text, which is replaced by its length."""
    if isinstance(record, list):
        return [redact_prompts(inner) for inner in record]
    if not isinstance(record, dict):
        return record
    return {
        key: _counted(value) if key in PROMPTS else redact_prompts(value) for key, value in record.items()
    }


def _counted(value: Any) -> Any:
    return f"left out: {len(value)} {'letters' if isinstance(value, str) else 'tokens'}" if value else value


def _files(source: ReportSource, folder: str, pattern: str, description: str) -> Iterator[ReportPart]:
    """Small files, included whole. Prompts are removed from records."""
    paths = sorted((source.build / folder).glob(pattern))
    if not paths:
        yield ReportPart(f"{folder}/{pattern}".removeprefix("./"), description, missing="there is none yet")
    for path in paths:
        name = path.name if folder == "." else f"{folder}/{path.name}"
        yield ReportPart(name, description, *_read_record(path, source.with_prompts))


def _read_record(path: Path, with_prompts: bool) -> tuple[str, str]:
    try:
        text = path.read_text(errors="replace")
        if path.suffix != ".json" or with_prompts:
            return text, ""
        return _json(redact_prompts(json.loads(text))), ""
    except OSError as error:
        return "", f"it cannot be read ({error.strerror})"
    except ValueError:
        return "", "it is no whole JSON, so prompts could not be taken out"


def _logs(folder: Path, name: str, description: str) -> Iterator[ReportPart]:
    """The ends of the newest logs."""
    logs = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime, reverse=True)
    if not logs:
        yield ReportPart(f"{name}/*.log", description, missing="there is none yet")
    for log in logs[:MAX_LOGS]:
        yield ReportPart(f"{name}/{log.name}", description, *_read_tail(log))


def _read_tail(log: Path) -> tuple[str, str]:
    try:
        with log.open("rb") as file:
            start = max(0, log.stat().st_size - TAIL_BYTES)
            file.seek(start)
            tail = file.read(TAIL_BYTES).decode(errors="replace")
    except OSError as error:
        return "", f"it cannot be read ({error.strerror})"
    return (f"[{start} bytes before this are left out]\n{tail}" if start else tail), ""


def _about_npu(text: str) -> str:
    lines = [line for line in text.splitlines() if KERNEL_LINES.search(line)]
    return "".join(f"{line}\n" for line in lines[-500:])


def _version(distribution: str) -> str:
    return installed_version(distribution) or "not installed"


def _json(record: Any) -> str:
    return json.dumps(record, indent=1) + "\n"
