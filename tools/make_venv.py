"""`python tools/make_venv.py run|test|docs`: makes .venv, or completes it, with what running, testing or the
documentation needs.

The Makefile calls it with the Python that .venv is to have. Nothing is installed yet, so it uses the
standard library alone. pyproject.toml says what is wanted, constraints.txt which version of it. uv installs
it where it is on PATH and works, else pip. Only wheels are taken: to build numpy is many silent minutes.

PyTorch is installed by itself, since its size depends on who fetches it: uv can be asked for the build for
the CPU, pip takes what its index has under that name.
"""

from __future__ import annotations

import csv
import fcntl
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path

NEWEST = (3, 14)
"""The newest Python that every pinned package has wheels for."""
MEGABYTES = {"run": 57, "test": 35, "docs": 14}
"""What is to be fetched, in MB: for running, and for testing or the documentation on top, but for PyTorch."""
PURPOSES = {"run": "running", "test": "testing", "docs": "the documentation"}
TORCH_CPU = "PyTorch's build for the CPU: about 200 MB"
TORCH_CUDA = (
    "PyTorch with CUDA, which Aerie does not use: about 3 GB. uv would fetch the build for the CPU, about "
    "200 MB: press Ctrl-C, install uv, and give the same command again"
)
HOW = ("--only-binary", ":all:", "--constraint", "constraints.txt")
"""Options of both installers."""
PIP = (".venv/bin/python", "-m", "pip")
FETCHED = re.compile(r" *Downloading (?:\S*/)?([^\s/-]+)-([^\s-]+)-\S+\.whl \(([^)]+)\)")
"""How pip says which wheel it fetches, and how large it is."""
AGAIN = "The same command goes on from there"


class SetupError(Exception):
    """What keeps .venv from being made, in words for the user."""


def main(words: Sequence[str]) -> int:
    (kind,) = words
    project = Path.cwd()
    started = time.perf_counter()
    try:
        with alone(project):
            make(project, kind)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\ninterrupted: .venv is not complete. {AGAIN}", file=sys.stderr)
        return 1
    print(f"set up in {time.perf_counter() - started:.0f} s", file=sys.stderr)
    return 0


@contextmanager
def alone(project: Path) -> Iterator[None]:
    """Hold the lock of the folder, so that two commands do not install into one .venv at once."""
    folder = os.open(project, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another command sets up .venv here; waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def make(project: Path, kind: str) -> None:
    """.venv of `project` as `kind`, one of PURPOSES, needs it. Raises SetupError."""
    check_writable(project)
    wanted, torch = requirements(project, kind)
    uv = shutil.which("uv")
    venv = project / ".venv"
    print(announcement(kind, venv, "uv" if uv else "pip"), file=sys.stderr, flush=True)
    create(venv, uv)
    unfinished = venv / ".unfinished"
    if unfinished.exists():
        forget_halves(venv)
    unfinished.touch()
    install(project, uv, wanted)
    if torch and not list(distributions(name="torch", path=[str(packages(venv))])):
        install_torch(project, uv, torch)
    editable(project, uv)
    unfinished.unlink()


def check_writable(project: Path) -> None:
    """Raises SetupError where .venv cannot be written."""
    for folder in (project / ".venv", project):
        if folder.exists():
            if os.access(folder, os.W_OK):
                return
            raise SetupError(
                f"{folder} cannot be written by you, so Aerie's environment, .venv, cannot be made there; "
                f"nothing was installed. Make the folder yours (sudo chown -R $USER '{project}'), or clone "
                "Aerie into one that is"
            )


def requirements(project: Path, kind: str) -> tuple[list[str], list[str]]:
    """What pyproject.toml asks for, with what builds Aerie itself; and what of it is PyTorch."""
    declared = tomllib.loads((project / "pyproject.toml").read_text())
    wanted = [*declared["build-system"]["requires"], *declared["project"]["dependencies"]]
    if kind != "run":
        wanted += declared["project"]["optional-dependencies"][kind]
    torch = [requirement for requirement in wanted if requirement.startswith("torch")]
    return [requirement for requirement in wanted if requirement not in torch], torch


def announcement(kind: str, venv: Path, installer: str) -> str:
    """What will be done, and how much will be fetched at most."""
    there = any((venv / f".stamp-{each}").exists() for each in PURPOSES)
    size = sum(MEGABYTES[part] for part in {"run", kind} if part == kind or not there)
    purpose = PURPOSES[kind]
    beside = ", and PyTorch, whose size is printed below" if kind == "test" else ""
    return (
        f"setting up .venv for {purpose} with {installer}: about {size} MB to fetch if none is cached{beside}"
    )


def create(venv: Path, uv: str | None) -> None:
    """An environment with a Python that runs and with pip, which `make setup-npu` uses. Raises SetupError."""
    python = venv / "bin" / "python"
    if runs(python, "-c", "import pip") or (uv and runs(python, "-c", "")):
        return
    if (venv / ".unfinished").exists() or (python.is_symlink() and not python.exists()):
        shutil.rmtree(venv)  # begun by us and never finished, or its Python is gone
    if uv and runs(uv, "venv", "--quiet", "--seed", "--allow-existing", "--python", sys.executable, venv):
        return
    if importlib.util.find_spec("ensurepip") is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise SetupError(
            f"{sys.executable} lacks the module ensurepip, so it cannot make .venv. On Ubuntu and Debian: "
            f"sudo apt install python{version}-venv; elsewhere: install uv, or name another (PYTHON=...)"
        )
    made = subprocess.run([sys.executable, "-m", "venv", venv], capture_output=True, text=True, check=False)
    if made.returncode:
        lines = (made.stdout + made.stderr).strip().splitlines() or ["it gave no reason"]
        raise SetupError(f"{sys.executable} -m venv {venv} failed: {lines[-1]}")


def runs(*command: str | Path) -> bool:
    """Whether a command is there and ends well; it is not heard."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def packages(venv: Path) -> Path:
    """Where the environment's packages are."""
    return next(venv.glob("lib/python3*/site-packages"))


def forget_halves(venv: Path) -> None:
    """Take an installation that was cut off for none, or else its package would count as there."""
    for folder in packages(venv).glob("*.dist-info"):
        if not is_whole(folder):
            shutil.rmtree(folder)


def is_whole(info: Path) -> bool:
    """Whether every file of a package's list is there in its length; installers enter INSTALLER last of all.

    importlib.metadata does not tell: since Python 3.12 it leaves out of the list what is missing.
    """
    record = info / "RECORD"
    rows = list(csv.reader(record.read_text().splitlines())) if record.is_file() else []
    sizes = {info.parent / name: size for name, _, size in rows if not name.endswith(".pyc")}
    return info / "INSTALLER" in sizes and all(
        path.is_file() and size in ("", str(path.stat().st_size)) for path, size in sizes.items()
    )


def install(project: Path, uv: str | None, wanted: Sequence[str], torch: bool = False) -> None:
    """Install requirements as wheels, in the pinned versions. Raises SetupError."""
    if uv:
        backend = ("--torch-backend", "cpu") if torch else ()
        if call(project, uv, "pip", "install", "--python", ".venv", *HOW, *backend, *wanted):
            return
        print("note: uv could not do it (above); pip is tried", file=sys.stderr, flush=True)
        give_pip(project / ".venv")
    command = [*PIP, "install", *HOW, *wanted]
    if call(project, *command) if torch else call_in_brief(project, *command):
        return
    here = ".".join(map(str, sys.version_info[:2]))
    if sys.version_info[:2] > NEWEST:
        newest = ".".join(map(str, NEWEST))
        raise SetupError(
            f".venv is not complete: Python {here} is newer than {newest}, and not every package has a wheel "
            "for it; nothing is built from source. Take an older one: make distclean, then make "
            f"PYTHON=python{newest} ..."
        )
    raise SetupError(
        ".venv is not complete; the reason is above. Where no version is found, either the package index "
        f"cannot be reached (behind a proxy, set https_proxy), or it has no wheel for Python {here} on this "
        f"machine; nothing is built from source. {AGAIN}"
    )


def install_torch(project: Path, uv: str | None, torch: Sequence[str]) -> None:
    """PyTorch, and before it, how much that is. Raises SetupError."""
    cuda = not uv and would_fetch_cuda(project, torch)
    print(f"fetching {TORCH_CUDA if cuda else TORCH_CPU}", file=sys.stderr, flush=True)
    install(project, uv, torch, torch=True)


def would_fetch_cuda(project: Path, torch: Sequence[str]) -> bool:
    """Whether pip would take a build of PyTorch that brings CUDA along; it looks, and fetches nothing."""
    command = [*PIP, "install", *HOW, "--quiet", "--dry-run", "--report", "-", *torch]
    planned = subprocess.run(
        command, cwd=project, env=environment(), capture_output=True, text=True, check=False
    )
    if planned.returncode:
        return False  # then the installation itself says why
    names = [entry["metadata"]["name"] for entry in json.loads(planned.stdout)["install"]]
    return any(name.startswith("nvidia") for name in names)


def editable(project: Path, uv: str | None) -> None:
    """Aerie itself, as it stands in this folder. Raises SetupError."""
    how = ("--quiet", "--no-deps", "--no-build-isolation", "--editable", ".")
    if uv and call(project, uv, "pip", "install", "--python", ".venv", *how):
        return
    give_pip(project / ".venv")
    if not call(project, *PIP, "install", *how):
        raise SetupError(f"Aerie itself could not be installed in .venv; the reason is above. {AGAIN}")


def give_pip(venv: Path) -> None:
    """pip, for an environment that was made without."""
    if not runs(venv / "bin" / "python", "-c", "import pip"):
        runs(venv / "bin" / "python", "-m", "ensurepip")


def call(project: Path, *command: str) -> bool:
    """Whether an installer ends well. What it says goes to standard error, on a terminal with its bars."""
    done = subprocess.run(command, cwd=project, env=environment(), stdout=sys.stderr, check=False)
    return done.returncode == 0


def call_in_brief(project: Path, *command: str) -> bool:
    """Run pip for many packages: print a line for each fetched one, and its whole output if it fails."""
    lines = []
    out, err = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(command, cwd=project, env=environment(), stdout=out, stderr=err, text=True) as pip:
        for line in pip.stdout or ():
            lines.append(line)
            if short := brief(line):
                print(f"  {short}", file=sys.stderr, flush=True)
    if pip.returncode:
        print(*lines, sep="", file=sys.stderr)
    return pip.returncode == 0


def brief(line: str) -> str:
    """What a line of pip's says is being done, or nothing."""
    if line.startswith("Installing collected packages: "):
        return f"installing {line.count(',') + 1} packages"
    fetched = FETCHED.match(line)
    return f"fetching {fetched[1]} {fetched[2]}, {fetched[3]}" if fetched else ""


def environment() -> dict[str, str]:
    """The user's settings, but for one that no virtual environment can follow."""
    return {**os.environ, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
