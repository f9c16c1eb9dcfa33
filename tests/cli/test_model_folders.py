"""Models in the folders of Ollama and LM Studio, which are trees made here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aerie.cli.checkpoints import find_checkpoint
from aerie.cli.model_folders import lm_studio_models, ollama_models
from aerie.engine.errors import CheckpointError

BLOB = "sha256:" + "ab" * 32
HOST = "registry.ollama.ai"
LAYER = "application/vnd.ollama.image."


def manifest(*layers: tuple[str, str]) -> str:
    return json.dumps(
        {
            "schemaVersion": 2,
            "layers": [{"mediaType": LAYER + kind, "digest": digest} for kind, digest in layers],
        }
    )


@pytest.fixture
def ollama(tmp_path, monkeypatch):
    """ollama(path below manifests, text): adds one; a blob is there."""
    folder = tmp_path / "of ollama"
    monkeypatch.setenv("OLLAMA_MODELS", str(folder))
    (folder / "blobs").mkdir(parents=True)
    (folder / "manifests").mkdir()
    (folder / "blobs" / BLOB.replace(":", "-")).write_bytes(b"GGUF")

    def add(path: str, text: str = manifest(("model", BLOB), ("template", BLOB))) -> Path:
        file = folder / "manifests" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return folder

    return add


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("smollm2:135m", f"{HOST}/library/smollm2/135m"),
        ("smollm2", f"{HOST}/library/smollm2/latest"),
        ("someone/model:q4_0", f"{HOST}/someone/model/q4_0"),
        ("hf.co/owner/Model-GGUF:Q4_K_M", "hf.co/owner/Model-GGUF/Q4_K_M"),
        ("localhost:5000/owner/model:1", "localhost:5000/owner/model/1"),
    ],
)
def test_ollamas_names(ollama, name, path):
    folder = ollama(path)
    assert find_checkpoint(f"ollama:{name}") == folder / "blobs" / BLOB.replace(":", "-")
    listed = [found.name for found in ollama_models()]
    assert listed == [name if ":" in name else f"{name}:latest"]


@pytest.mark.parametrize(
    "name",
    [
        "",
        ":",
        "../x",
        "x/../y",
        "a/b/c/d",
        "x:../../y",
        "/etc/passwd",
        "x:",
        "a b",
        "x:y/z",
        "..:x",
        "x\0y",
        "h!/u/m",
    ],
)
def test_names_lead_out_of_no_folder(ollama, name):
    ollama(f"{HOST}/library/x/y")
    with pytest.raises(CheckpointError, match="names no model of Ollama's; give it as `ollama list` does"):
        find_checkpoint(f"ollama:{name}")


def test_what_ollama_does_not_have(ollama):
    for number in range(8):
        ollama(f"{HOST}/library/m{number}/latest")
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint("ollama:qwen3:0.6b")
    assert str(caught.value) == (
        "Ollama has no qwen3:0.6b on this machine; it has m0:latest, m1:latest, m2:latest, m3:latest, "
        "m4:latest, m5:latest and 2 more: `ollama pull qwen3:0.6b` fetches it"
    )


def test_without_ollama(monkeypatch, tmp_path):
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    with pytest.raises(CheckpointError, match="there is no folder of Ollama's on this machine that you"):
        find_checkpoint("ollama:smollm2")
    assert not [*ollama_models()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (manifest(("model", BLOB), ("adapter", BLOB)), "ollama:x: it is a LoRA adapter over a model"),
        (manifest(("tensor", BLOB), ("json", BLOB)), "ollama:x: it has no model in GGUF, but json, tensor"),
        (manifest(), "ollama:x: it has no model in GGUF, but nothing"),
        (manifest(("model", "sha256:" + "0" * 64)), "is missing; `ollama pull x` fetches it"),
        (
            manifest(("model", "sha256:../../../etc/passwd")),
            "which is no SHA-256; `ollama pull x` fetches it anew",
        ),
        ('{"layers": 3}', "is no manifest of Ollama's; `ollama pull x` fetches it anew"),
        ('{"layers": [3]}', "is no manifest of Ollama's"),
        ('{"layers": [{"mediaType": 3, "digest": []}]}', "it has no model in GGUF, but"),
        ("{", "cannot read"),
        (" " * (1 << 21), "no more than 1048576 are read of such a file"),
    ],
)
def test_manifests_that_are_none(ollama, text, message):
    ollama(f"{HOST}/library/x/latest", text)
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint("ollama:x")
    assert message in str(caught.value)
    assert all(found.problem() for found in ollama_models())


@pytest.fixture
def lm_studio(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".lmstudio" / "models"
    for name in (
        "one/A-GGUF/A-Q4_0.gguf",
        "one/A-GGUF/mmproj-A.gguf",
        "one/A-GGUF/notes.txt",
        "two/B/B-Q8_0.gguf",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF")
    for number in (1, 2):
        (folder / "two" / "B" / f"C-0000{number}-of-00002.gguf").write_bytes(b"GGUF")
    return folder


def test_lm_studios_names(lm_studio):
    assert [name for name, _ in lm_studio_models()] == [
        "one/A-GGUF/A-Q4_0.gguf",
        "two/B/B-Q8_0.gguf",
        "two/B/C-00001-of-00002.gguf",
    ]
    for name, path in lm_studio_models():
        assert find_checkpoint(f"lmstudio:{name}") == path
    assert find_checkpoint("lmstudio:one/A-GGUF") == lm_studio / "one" / "A-GGUF"


def test_lm_studios_folder_is_in_its_settings(lm_studio, tmp_path):
    other = tmp_path / "elsewhere"
    (other / "p" / "m").mkdir(parents=True)
    (other / "p" / "m" / "x.gguf").touch()
    settings = lm_studio.parent / "settings.json"
    for content, name in (
        (json.dumps({"downloadsFolder": str(other)}), "p/m/x.gguf"),
        ("{", "one/A-GGUF/A-Q4_0.gguf"),
        (json.dumps({"downloadsFolder": "relative"}), "one/A-GGUF/A-Q4_0.gguf"),
        (json.dumps({"downloadsFolder": 3}), "one/A-GGUF/A-Q4_0.gguf"),
    ):
        settings.write_text(content)
        assert next(lm_studio_models())[0] == name


@pytest.mark.parametrize(
    "name", ["", "a", "../a", "a/..", "a/b/../../c", "a//b", "a/b/c/d", "a/b\\c", "a/\0"]
)
def test_lm_studios_names_lead_out_of_no_folder(lm_studio, name):
    with pytest.raises(
        CheckpointError, match="names no model of LM Studio's; give it as lmstudio:PUBLISHER/NAME"
    ):
        find_checkpoint(f"lmstudio:{name}")


def test_what_lm_studio_does_not_have(lm_studio):
    with pytest.raises(
        CheckpointError, match="LM Studio has no three/C on this machine; it has one/A-GGUF/A-Q4_0"
    ):
        find_checkpoint("lmstudio:three/C")
