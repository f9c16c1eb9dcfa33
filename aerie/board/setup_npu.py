"""`aerie setup-npu`: installs upstream's wheels of the NPU compilers, as aerie/runtime/npu/versions.py names
them.

They are installed for the Python that runs this. pip downloads all of them before it installs any, with
constraints from Aerie's own requirements, so that a failure leaves the environment as it was.
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
from aerie.engine.reporter import Reporter
from aerie.runtime.npu import versions
from aerie.runtime.npu.tools import installed_version
from aerie.version import DISTRIBUTION

OK = 0
PAGE_TIMEOUT_S = 15
"""Time limit for the answer of a wheel page, in seconds."""
PIP = (sys.executable, "-m", "pip")

Version = Callable[[str], "str | None"]
"""Returns the installed version of a distribution; None if it is not installed."""


def add_setup_npu(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wheels",
        type=Path,
        metavar="FOLDER",
        help="install from the wheels in this folder, and from nowhere else (default: upstream's pages)",
    )


def setup_npu(arguments: argparse.Namespace) -> int:
    """Install the wheels of mlir-air, mlir-aie and Peano. Installed ones are not downloaded again."""
    report = Reporter()
    install(report.note, arguments.wheels, folders.cache_folder() / "setup-npu.log")
    return OK


def install(
    note: Callable[[str], None],
    wheels: Path | None,
    log: Path,
    pip: Sequence[str] = PIP,
    version: Version = installed_version,
    pages: Sequence[str] = versions.WHEEL_PAGES,
) -> None:
    """Install what is missing with `pip`, whose output goes to `log`. Raises UserError with the reason of a
    failure.
    """
    if not missing_wheels(version):
        note(f"there already: {_listed(version)}")
        return
    check_platform()
    if wheels is None:
        check_reachable(pages)
    elif not list(wheels.glob("*.whl")):
        raise UserError(f"{wheels} holds no wheels (*.whl); {OFFLINE_ADVICE}")
    note(f"installing {', '.join(versions.requirements())}: some GiB, for minutes; pip's output: {log}")
    _run_pip(pip, wheels, log)
    if lacking := missing_wheels(version):
        raise UserError(f"pip ended well, but {'; '.join(lacking)}; full log: {log}")
    note(f"installed: {_listed(version)}. Next: make doctor")


OFFLINE_ADVICE = (
    "on a machine that reaches GitHub, with the same Python version: "
    f"pip download --dest wheels {shlex.join(versions.pip_arguments())}; "
    "then here: make setup-npu WHEELS=<that folder>"
)


VERSION_ADVICE = (
    "They ask for other versions of packages than Aerie does: install them in an environment of their own, "
    "and name it as docs/how-to/install.md says under 'Not from wheels'"
)


def _listed(version: Version) -> str:
    return ", ".join(f"{wheel} {version(wheel)}" for wheel in versions.WHEELS)


def missing_wheels(version: Version) -> list[str]:
    """The wheels that are missing, and Peano in another version than the pinned one; one line each."""
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
    """Raise UserError if upstream builds no wheels for this machine."""
    here = f"{system} {machine}, Python {'.'.join(map(str, python))}, {' '.join(libc).strip() or 'no glibc'}"
    oldest, newest = versions.OLDEST_WHEEL_PYTHON, versions.NEWEST_WHEEL_PYTHON
    fits = system == "linux" and machine == "x86_64" and libc[0] == "glibc"
    new_enough = versions.version_numbers(libc[1]) >= versions.version_numbers(versions.GLIBC.version)
    if not (fits and new_enough and oldest <= python <= newest):
        raise UserError(
            f"upstream builds no wheels for this machine ({here}); they are for Linux x86_64 with glibc "
            f"{versions.GLIBC.version} or newer and Python {versions.PYTHON.version}: take another Python "
            "(make distclean setup-npu PYTHON=python3.12) or a newer system. The virtual NPU needs none of it"
        )


def check_reachable(urls: Sequence[str]) -> None:
    """Raise UserError if a page does not answer: pip would retry for minutes, with no clear message."""
    for page in urls:
        try:
            urllib.request.urlopen(page, timeout=PAGE_TIMEOUT_S).close()
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise UserError(
                f"upstream's wheels cannot be fetched: {page} does not answer ({reason}). Nothing was "
                f"changed, and the virtual NPU needs none of it. Behind a proxy, set https_proxy; "
                f"{OFFLINE_ADVICE}"
            ) from None


def pip_command(pip: Sequence[str], wheels: Path | None, constraints: Path) -> list[str]:
    """The whole command line of pip."""
    common = [*pip, "install", "--disable-pip-version-check", "--constraint", str(constraints)]
    if wheels is None:
        return [*common, *versions.pip_arguments()]
    return [*common, "--no-index", "--find-links", str(wheels), *versions.requirements()]


def _run_pip(pip: Sequence[str], wheels: Path | None, log: Path) -> None:
    _make_parent(log)
    with tempfile.TemporaryDirectory(prefix="aerie-setup-") as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text("\n".join(own_requirements()))
        command = pip_command(pip, wheels, constraints)
        with log.open("w") as output:
            output.write(f"$ {shlex.join(command)}\n")
            output.flush()
            code = subprocess.run(command, stdout=output, stderr=output, check=False).returncode
    if code:
        errors = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("ERROR")]
        reason = (errors[0] if errors else f"pip ended with exit code {code}").removeprefix("ERROR: ")
        advice = VERSION_ADVICE if any("ResolutionImpossible" in line for line in errors) else OFFLINE_ADVICE
        raise UserError(f"upstream's wheels were not installed: {reason}; full log: {log}. {advice}")


def _make_parent(log: Path) -> None:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
    except OSError as error:
        raise UserError(f"cannot write {log} ({error.strerror}): {folders.ADVICE}") from None


def own_requirements() -> list[str]:
    """Aerie's own requirements, which pip must not change for upstream's wheels."""
    requirements = importlib.metadata.requires(DISTRIBUTION) or []
    return [requirement for requirement in requirements if ";" not in requirement]
