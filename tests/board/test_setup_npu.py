"""make setup-npu: the call of pip, the message if it fails, and wheels that are really installed.

The wheels here are made up and hold nothing: they stand in for upstream's, which this never fetches.
"""

from __future__ import annotations

import sys
import venv
import zipfile
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from aerie.board import setup_npu
from aerie.board.setup_npu import (
    check_platform,
    check_reachable,
    install,
    missing_wheels,
    own_requirements,
    pip_command,
)
from aerie.common.errors import UserError
from aerie.runtime.npu import versions
from tests.board.made_up_machine import tool

AIR = "0.0.1.2026082304+e972f29"
WANTED = {"mlir_air": AIR, "mlir_aie": versions.MLIR_AIE.version, "llvm-aie": versions.PEANO.version}


def make_wheel(folder: Path, name: str, version: str, *requires: str) -> None:
    """A wheel without any code."""
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    if name == "mlir_air":
        metadata.append("Provides-Extra: aie")
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        info = f"{stem}.dist-info"
        wheel.writestr(f"{info}/METADATA", "\n".join(metadata) + "\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def make_wheels(folder: Path, *air_requires: str) -> Path:
    aie = [f'mlir_aie=={versions.MLIR_AIE.version}; extra == "aie"', 'llvm-aie; extra == "aie"']
    make_wheel(folder, "mlir_air", AIR, *aie, *air_requires)
    make_wheel(folder, "mlir_aie", versions.MLIR_AIE.version)
    make_wheel(folder, "llvm-aie", versions.PEANO.version)
    make_wheel(folder, "llvm-aie", versions.PEANO_KNOWN_BAD[0].version)  # newer, and must not be taken
    return folder


class Environment:
    """An environment of its own, into which this one's pip installs."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False)
        self.pip = (sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"))
        (self.site,) = (folder / "lib").glob("python*/site-packages")

    def version(self, distribution: str) -> str | None:
        found = list(self.site.glob(f"{distribution.replace('-', '_')}-*.dist-info"))
        return found[0].name.removesuffix(".dist-info").partition("-")[2] if found else None


def test_wheels_are_installed_and_a_second_time_costs_nothing(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    notes: list[str] = []
    wheels, log = make_wheels(tmp_path / "wheels"), tmp_path / "build" / "log"
    install(notes.append, wheels, log, environment.pip, environment.version)
    assert {name: environment.version(name) for name in WANTED} == WANTED
    assert notes[-1].endswith("Next: make doctor")
    assert log.read_text().startswith("$ ")

    log.unlink()
    install(notes.append, None, log, ("no-such-pip",), environment.version)
    assert notes[-1].startswith("there already: mlir_air 0.0.1")
    assert not log.exists()


def test_a_bad_peano_is_replaced(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    wheels = make_wheels(tmp_path / "wheels")
    bad = tmp_path / "bad"
    make_wheel(bad, "mlir_air", AIR)
    make_wheel(bad, "mlir_aie", versions.MLIR_AIE.version)
    make_wheel(bad, "llvm-aie", versions.PEANO_KNOWN_BAD[0].version)
    for wheel in bad.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(environment.site)
    assert missing_wheels(environment.version) == [
        f"llvm-aie is {versions.PEANO_KNOWN_BAD[0].version} instead of {versions.PEANO.version}"
    ]
    install(print, wheels, tmp_path / "log", environment.pip, environment.version)
    assert environment.version("llvm-aie") == versions.PEANO.version


def test_requirements_of_aerie_are_not_changed(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    wheels = make_wheels(tmp_path / "wheels", "numpy==1.26.4")
    make_wheel(wheels, "numpy", "1.26.4")
    with pytest.raises(UserError, match=r"^upstream's wheels were not installed: .*environment of their own"):
        install(print, wheels, tmp_path / "log", environment.pip, environment.version)
    assert environment.version("mlir_air") is None
    (own,) = (text for text in own_requirements() if text.startswith("numpy"))
    assert f"(constraint) {own}" in (tmp_path / "log").read_text()


def test_upstreams_filelock_fits_ours() -> None:
    (own,) = (text for text in own_requirements() if text.startswith("filelock"))
    specifier = pytest.importorskip("packaging.requirements").Requirement(own).specifier
    assert specifier.contains("3.13.1")  # mlir-air utils/mlir_air_wheels/requirements.txt


def test_the_command_line() -> None:
    command = pip_command(("pip",), None, Path("constraints.txt"))
    assert command == [
        *("pip", "install", "--disable-pip-version-check", "--constraint", "constraints.txt"),
        *("mlir_air[aie]", "llvm-aie==21.0.0.2026080601+f4a72c27"),
        *("--find-links", "https://github.com/Xilinx/mlir-air/releases/expanded_assets/latest-air-wheels"),
        *("--find-links", "https://github.com/Xilinx/mlir-aie/releases/expanded_assets/latest-wheels-4"),
        *("--find-links", "https://github.com/Xilinx/llvm-aie/releases/expanded_assets/nightly"),
    ]


def test_no_network(tmp_path: Path) -> None:
    pip = tool(tmp_path / "pip", f"touch {tmp_path}/was-run")
    with pytest.raises(UserError) as refused:
        install(print, None, tmp_path / "log", (str(pip),), lambda _: None, ["http://localhost:9/wheels"])
    message = str(refused.value)
    assert "http://localhost:9/wheels does not answer" in message
    assert "Nothing was changed" in message
    assert "make setup-npu WHEELS=" in message
    assert "\n" not in message
    assert not (tmp_path / "was-run").exists()


@pytest.fixture
def page() -> Iterator[str]:
    """A wheel page of its own, which answers 404 for all but /there."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/there" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("localhost", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_reachable(page: str) -> None:
    check_reachable([f"{page}/there"])
    with pytest.raises(UserError, match=r"/gone does not answer \(Not Found\)"):
        check_reachable([f"{page}/there", f"{page}/gone"])
    with pytest.raises(UserError, match="does not answer"):
        check_reachable(["no address"])


def test_a_folder_without_wheels(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no wheels"):
        install(print, tmp_path, tmp_path / "log", version=lambda _: None)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["echo 'ERROR: No space left on device' >&2", "exit 1"], "No space left on device"),
        (["exit 3"], "pip ended with exit code 3"),
    ],
)
def test_pip_that_fails(tmp_path: Path, lines: list[str], message: str) -> None:
    wheels = make_wheels(tmp_path / "wheels")
    pip = tool(tmp_path / "pip", *lines)
    with pytest.raises(UserError, match=f"were not installed: {message}; full log: {tmp_path}/log"):
        install(print, wheels, tmp_path / "log", (str(pip),), lambda _: None)


def test_pip_claims_success_but_installed_nothing(tmp_path: Path) -> None:
    wheels = make_wheels(tmp_path / "wheels")
    with pytest.raises(UserError, match="pip ended well, but mlir_air is not installed; mlir_aie is not"):
        install(print, wheels, tmp_path / "log", (str(tool(tmp_path / "pip", "exit 0")),), lambda _: None)


HERE: Mapping[str, Any] = {
    "machine": "x86_64",
    "system": "linux",
    "python": (3, 12),
    "libc": ("glibc", "2.39"),
}


def test_a_machine_that_upstream_builds_for() -> None:
    check_platform(**HERE)


@pytest.mark.parametrize(
    "other",
    [
        {"machine": "aarch64"},
        {"system": "darwin"},
        {"python": (3, 10)},
        {"python": (3, 15)},
        {"libc": ("glibc", "2.31")},
        {"libc": ("musl", "1.2")},
        {"libc": ("", "")},
    ],
    ids=str,
)
def test_a_machine_that_upstream_does_not_build_for(other: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="upstream builds no wheels for this machine"):
        check_platform(**{**HERE, **other})


def test_the_pages_are_upstreams() -> None:
    assert all(page.startswith("https://github.com/Xilinx/") for page in versions.WHEEL_PAGES)
    assert setup_npu.OFFLINE_ADVICE.count("--find-links") == len(versions.WHEEL_PAGES)
