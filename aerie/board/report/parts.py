"""What goes into a report, part by part. A part that cannot be had says why, and the report goes on."""

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

from aerie.board.report.scrubbing import PROJECT
from aerie.runtime.npu import versions
from aerie.runtime.npu.tools import installed_version
from aerie.version import VERSION

ASK_S = 60.0
"""Seconds that a tool may take to answer; the doctor has limits of its own, and is given longer."""
DOCTOR_S = 300.0
TAIL_BYTES = 256 << 10
"""Of a log; what went wrong is at its end."""
MOST_LOGS = 20
"""The newest ones."""

PACKAGES = (*versions.WHEELS, "numpy", "ml_dtypes", "xdsl", "transformers", "torch", "rich", "filelock")
"""Distributions whose versions can matter, besides the project's own."""

PROMPTS = frozenset({"prompt", "token_ids", "prompt_token_ids", "our_token_ids", "reference_token_ids"})
"""Keys of the gate's and the diagnosis' records under which somebody's words may be found."""

KERNEL_LINES = re.compile(r"xdna|\bnpu|\baccel|iommu.*fault", re.IGNORECASE)
"""Of the kernel's log, what can concern the NPU."""


@dataclass(frozen=True)
class Part:
    """One file of the report. `missing`: why there is none; its content is empty then."""

    name: str
    what: str
    content: str = ""
    missing: str = ""


@dataclass(frozen=True)
class Source:
    """Where parts come from: the project's folder of builds, and whether prompts may go in."""

    build: Path
    with_prompts: bool = False


def all_parts(source: Source) -> Iterator[Part]:
    """Everything that can be had, in the order of the index."""
    yield Part(
        "versions.json",
        "versions of Aerie and of what it uses, as found and as wanted",
        _json(found_versions()),
    )
    yield doctor()
    yield from _files(source, "board", "*.json", "the comparison with the virtual NPU, kernel by kernel")
    yield from _logs(source.build / "board" / "logs", "board-logs", "what an item of the comparison printed")
    yield from _files(source, "board", "*.xml", "results of the board tests")
    yield from _logs(source.build / "programs" / "npu", "compile-logs", "aircc and Peano on one program")
    yield from _files(source, "verify", "*.json", "a record of the gate (make verify)")
    yield from _files(source, ".", "diagnosis.json", "the record of make diagnosis")
    yield from system()


def found_versions() -> dict[str, Any]:
    """Of the project, Python, the system and packages; and what aerie/runtime/npu/versions.py wants."""
    wanted = (value for value in vars(versions).values() if isinstance(value, versions.Wanted))
    return {
        "aerie": VERSION,
        "commit": commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "distribution": _distribution(),
        "packages": {name: _version(name) for name in PACKAGES},
        "wanted": {item.name: item.version for item in wanted},
    }


def commit() -> str:
    """The commit that is checked out, and whether files differ from it."""
    head = ask(["git", "-C", str(PROJECT), "rev-parse", "HEAD"])
    if head.missing:
        return f"unknown: {head.missing}"
    changed = ask(["git", "-C", str(PROJECT), "status", "--porcelain", "--untracked-files=no"])
    count = len(changed.content.splitlines())
    return head.content.strip() + (f", and {count} changed files" if count else "")


def doctor() -> Part:
    """The doctor's record, from a process of its own: a driver's crash must not end the report."""
    answer = ask([sys.executable, "-m", "aerie.board", "doctor", "--json"], DOCTOR_S)
    return Part("doctor.json", "what make doctor found", answer.content, answer.missing)


def system() -> Iterator[Part]:
    """What the system says of the NPU."""
    asked: Sequence[tuple[str, str, list[str], Callable[[str], str]]] = (
        ("xrt-smi.txt", "xrt-smi examine", ["xrt-smi", "examine"], str),
        ("kernel-log.txt", "the kernel's lines on the NPU", ["dmesg"], _about_npu),
        ("modules.txt", "the NPU's driver among loaded modules", ["lsmod"], _about_npu),
    )
    for name, what, command, keep in asked:
        answer = ask(command)
        content = keep(answer.content)
        yield Part(
            name, what, content, answer.missing or ("" if content.strip() else "nothing on an NPU in it")
        )


def ask(command: Sequence[str], limit_s: float = ASK_S) -> Part:
    """What a tool prints on standard output; why it could not be asked, where it could not."""
    tool = shutil.which(command[0])
    if tool is None:
        return Part("", "", missing=f"{command[0]} is not on this machine")
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
        return Part("", "", missing=f"{command[0]} did not answer ({error})")
    if done.stdout.strip():
        return Part("", "", done.stdout)
    said = " ".join(done.stderr.split()[-30:])
    return Part(
        "", "", missing="" if done.returncode == 0 else f"{command[0]} exit code {done.returncode}: {said}"
    )


def without_prompts(record: Any) -> Any:
    """A record without anybody's words: what stood there is counted."""
    if isinstance(record, list):
        return [without_prompts(inner) for inner in record]
    if not isinstance(record, dict):
        return record
    return {
        key: _counted(value) if key in PROMPTS else without_prompts(value) for key, value in record.items()
    }


def _counted(value: Any) -> Any:
    return f"left out: {len(value)} {'letters' if isinstance(value, str) else 'tokens'}" if value else value


def _files(source: Source, folder: str, pattern: str, what: str) -> Iterator[Part]:
    """Small files that are kept whole; prompts are taken out of records."""
    found = sorted((source.build / folder).glob(pattern))
    if not found:
        yield Part(f"{folder}/{pattern}".removeprefix("./"), what, missing="there is none yet")
    for path in found:
        name = path.name if folder == "." else f"{folder}/{path.name}"
        yield Part(name, what, *_read_record(path, source.with_prompts))


def _read_record(path: Path, with_prompts: bool) -> tuple[str, str]:
    try:
        text = path.read_text(errors="replace")
        if path.suffix != ".json" or with_prompts:
            return text, ""
        return _json(without_prompts(json.loads(text))), ""
    except OSError as error:
        return "", f"it cannot be read ({error.strerror})"
    except ValueError:
        return "", "it is no whole JSON, so prompts could not be taken out"


def _logs(folder: Path, name: str, what: str) -> Iterator[Part]:
    """The ends of the newest logs."""
    logs = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime, reverse=True)
    if not logs:
        yield Part(f"{name}/*.log", what, missing="there is none yet")
    for log in logs[:MOST_LOGS]:
        yield Part(f"{name}/{log.name}", what, *_read_tail(log))


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


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"


def _json(record: Any) -> str:
    return json.dumps(record, indent=1) + "\n"
