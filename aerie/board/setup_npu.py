"""`aerie setup-npu`: upstream's wheels of the NPU compilers, as aerie/runtime/npu/versions.py names them.

They go into the environment of the Python that runs this. pip fetches all before it installs any, and is held
to the versions that Aerie itself asks for, so that a failure leaves the environment as it was.
"""

from __future__ import annotations

import argparse
import http.client
import importlib.metadata
import platform
import shlex
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from aerie.common import folders
from aerie.common.errors import UserError
from aerie.engine.progress import Reporter
from aerie.runtime.npu import versions
from aerie.runtime.npu.tools import installed_version
from aerie.version import DISTRIBUTION

DONE = 0
REACH_S = 15
"""How long a wheel page may take to answer, in seconds."""
PIP = (sys.executable, "-m", "pip")

Version = Callable[[str], "str | None"]
"""The installed version of a distribution; None where there is none."""


def add_setup_npu(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wheels",
        type=Path,
        metavar="FOLDER",
        help="install from the wheels in this folder, and from nowhere else (default: upstream's pages)",
    )


def setup_npu(arguments: argparse.Namespace) -> int:
    """Install the wheels of mlir-air, mlir-aie and Peano; what is there already costs nothing."""
    report = Reporter()
    install(report.note, arguments.wheels, folders.home() / "setup-npu.log")
    return DONE


def install(
    note: Callable[[str], None],
    wheels: Path | None,
    log: Path,
    pip: Sequence[str] = PIP,
    version: Version = installed_version,
    pages: Sequence[str] = versions.WHEEL_PAGES,
) -> None:
    """Install what is missing with `pip`, whose output goes to `log`. Raises UserError saying why not."""
    if not missing(version):
        note(f"there already: {_listed(version)}")
        return
    check_platform()
    if wheels is None:
        check_reachable(pages)
    elif not list(wheels.glob("*.whl")):
        raise UserError(f"{wheels} holds no wheels (*.whl); {FETCH}")
    note(f"installing {', '.join(versions.requirements())}: some GiB, for minutes; pip's output: {log}")
    _run_pip(pip, wheels, log)
    if lacking := missing(version):
        raise UserError(f"pip ended well, but {'; '.join(lacking)}; full log: {log}")
    note(f"installed: {_listed(version)}. Next: make doctor")


FETCH = (
    "on a machine that reaches GitHub, with the same Python version: "
    f"pip download --dest wheels {shlex.join(versions.pip_arguments())}; "
    "then here: make setup-npu WHEELS=<that folder>"
)


ELSEWHERE = (
    "They ask for other versions of packages than Aerie does: install them in an environment of their own, "
    "and name it as docs/how-to/install.md says under 'Not from wheels'"
)


def _listed(version: Version) -> str:
    return ", ".join(f"{wheel} {version(wheel)}" for wheel in versions.WHEELS)


def missing(version: Version) -> list[str]:
    """What is not as wanted, one line each: a wheel that is not there, or another Peano than the pinned."""
    lines = [f"{wheel} is not installed" for wheel in versions.WHEELS if version(wheel) is None]
    peano = version(versions.PEANO.name)
    if peano not in (None, versions.PEANO.version):
        lines.append(f"{versions.PEANO.name} is {peano} instead of {versions.PEANO.version}")
    return lines


def check_platform(
    machine: str = platform.machine(),
    system: str = sys.platform,
    python: tuple[int, ...] = tuple(sys.version_info[:2]),
    libc: tuple[str, str] = platform.libc_ver(),
) -> None:
    """Raises UserError where upstream builds no wheels for this machine."""
    here = f"{system} {machine}, Python {'.'.join(map(str, python))}, {' '.join(libc).strip() or 'no glibc'}"
    oldest, newest = versions.OLDEST_WHEEL_PYTHON, versions.NEWEST_WHEEL_PYTHON
    fits = system == "linux" and machine == "x86_64" and libc[0] == "glibc"
    new_enough = versions.numbers(libc[1]) >= versions.numbers(versions.GLIBC.version)
    if not (fits and new_enough and oldest <= python <= newest):
        raise UserError(
            f"upstream builds no wheels for this machine ({here}); they are for Linux x86_64 with glibc "
            f"{versions.GLIBC.version} or newer and Python {versions.PYTHON.version}: take another Python "
            "(make distclean setup-npu PYTHON=python3.12) or a newer system. The virtual NPU needs none of it"
        )


def check_reachable(pages: Sequence[str]) -> None:
    """Raises UserError for a page that does not answer: pip would try for minutes, and say little."""
    for page in pages:
        try:
            urllib.request.urlopen(page, timeout=REACH_S).close()
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise UserError(
                f"upstream's wheels cannot be fetched: {page} does not answer ({reason}). Nothing was "
                f"changed, and the virtual NPU needs none of it. Behind a proxy, set https_proxy; {FETCH}"
            ) from None


def pip_command(pip: Sequence[str], wheels: Path | None, constraints: Path) -> list[str]:
    """pip's whole command line."""
    common = [*pip, "install", "--disable-pip-version-check", "--constraint", str(constraints)]
    if wheels is None:
        return [*common, *versions.pip_arguments()]
    return [*common, "--no-index", "--find-links", str(wheels), *versions.requirements()]


def _run_pip(pip: Sequence[str], wheels: Path | None, log: Path) -> None:
    _make_folder_of(log)
    with tempfile.TemporaryDirectory(prefix="aerie-setup-") as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text("\n".join(own_requirements()))
        command = pip_command(pip, wheels, constraints)
        with log.open("w") as output:
            output.write(f"$ {shlex.join(command)}\n")
            output.flush()
            code = subprocess.run(command, stdout=output, stderr=output, check=False).returncode
    if code:
        said = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("ERROR")]
        reason = (said[0] if said else f"pip ended with exit code {code}").removeprefix("ERROR: ")
        advice = ELSEWHERE if any("ResolutionImpossible" in line for line in said) else FETCH
        raise UserError(f"upstream's wheels were not installed: {reason}; full log: {log}. {advice}")


def _make_folder_of(log: Path) -> None:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
    except OSError as error:
        raise UserError(f"cannot write {log} ({error.strerror}): {folders.ADVICE}") from None


def own_requirements() -> list[str]:
    """What Aerie itself asks of other packages: pip must not change that for upstream's wheels."""
    asked = importlib.metadata.requires(DISTRIBUTION) or []
    return [requirement for requirement in asked if ";" not in requirement]
