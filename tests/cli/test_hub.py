"""Files of Hugging Face by their names, and what is said of addresses. The hub is a stand-in."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

from aerie.cli.checkpoints import checkpoint_here, find_checkpoint
from aerie.cli.hub import cached_file
from aerie.engine.errors import CheckpointError


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """hub.files: what it has; hub.cached: what is in the local cache; hub.fetched: what was taken from it."""
    import huggingface_hub

    state = types.SimpleNamespace(files={}, cached=set(), fetched=[], error=None)

    def download(name, file, local_files_only=False):
        if (name, file) not in state.cached:
            if local_files_only:
                raise huggingface_hub.errors.LocalEntryNotFoundError("not here")
            if state.error:
                raise state.error
            state.fetched.append((name, file))
            state.cached.add((name, file))
        path = tmp_path / name.replace("/", "--") / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF")
        return str(path)

    def about(url):
        return types.SimpleNamespace(size=state.files.get(url))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub, "hf_hub_url", lambda name, file: f"{name}/{file}")
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", about)
    return state


def test_a_file_is_fetched_once_and_its_size_printed_before(hub, tmp_path, capsys):
    hub.files["owner/A-GGUF/A-Q4_0.gguf"] = 3 << 30
    path = find_checkpoint("hf:owner/A-GGUF:A-Q4_0.gguf")
    assert path == tmp_path / "owner--A-GGUF" / "A-Q4_0.gguf"
    assert capsys.readouterr().err == (
        "fetching A-Q4_0.gguf of owner/A-GGUF from Hugging Face, 3.0 GiB; later runs need no network\n"
    )
    hub.error = AssertionError("the hub was asked")
    assert find_checkpoint("hf:owner/A-GGUF:A-Q4_0.gguf") == path
    assert capsys.readouterr().err == ""


def test_all_parts_are_fetched(hub, capsys):
    name = "big/A-00001-of-00003.gguf"
    assert find_checkpoint(f"hf:owner/A:{name}").name == "A-00001-of-00003.gguf"
    assert hub.fetched == [("owner/A", f"big/A-0000{number}-of-00003.gguf") for number in (1, 2, 3)]
    assert "of owner/A from Hugging Face; later" in capsys.readouterr().err
    hub.cached.remove(hub.fetched[1])
    assert cached_file("owner/A", name) is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        "owner",
        "owner/a:",
        "owner/a:x.bin",
        "owner/a:../x.gguf",
        "owner/a:/x.gguf",
        "owner/a:b//x.gguf",
        "../a:x.gguf",
    ],
)
def test_names_that_are_none(hub, name, monkeypatch):
    if name == "owner/a:":
        monkeypatch.setattr("aerie.cli.hub.fetch_checkpoint", Path)
        assert find_checkpoint(f"hf:{name}") == Path("owner/a")
        return
    with pytest.raises(
        CheckpointError, match="is no model of Hugging Face: give hf:OWNER/NAME, or hf:OWNER/NAME:"
    ):
        find_checkpoint(f"hf:{name}")
    assert not hub.fetched


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ConnectionError("no route"),
            "hf:owner/a:x.gguf is not on this machine, and fetching it from Hugging Face failed",
        ),
        (
            "RemoteEntryNotFoundError",
            "https://huggingface.co/owner/a has no such file: take a name from its list",
        ),
        ("GatedRepoError", "and it is gated: ask for access at https://huggingface.co/owner/a, then log in"),
    ],
)
def test_what_does_not_come(hub, error, message):
    from huggingface_hub import errors

    response = types.SimpleNamespace(headers={}, request=None)
    hub.error = getattr(errors, error)("404", response=response) if isinstance(error, str) else error
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint("hf:owner/a:x.gguf")
    assert message in str(caught.value)


def test_offline(hub, monkeypatch, capsys):
    hub.error = ConnectionError("offline")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE is set, so it is not fetched"):
        find_checkpoint("hf:owner/a:x.gguf")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("https://huggingface.co/owner/A-GGUF/blob/main/A-Q4_0.gguf", "give hf:owner/A-GGUF:A-Q4_0.gguf"),
        ("https://hf.co/owner/A-GGUF/resolve/main/q/A.gguf?download=true", "give hf:owner/A-GGUF:q/A.gguf"),
        ("https://huggingface.co/owner/A/blob/main/config.json", "give hf:owner/A"),
        ("https://huggingface.co/owner/A", "give hf:owner/A"),
        (
            "https://ollama.com/library/smollm2:135m",
            "`ollama pull smollm2:135m`, then give ollama:smollm2:135m",
        ),
        ("https://ollama.com/someone/model", "`ollama pull someone/model`, then give ollama:someone/model"),
        ("https://example.org/A.gguf", "fetch the file yourself, and give its path"),
        ("s3://bucket/A.gguf", "fetch the file yourself, and give its path"),
        ("https://huggingface.co/../..", "fetch the file yourself, and give its path"),
    ],
)
def test_addresses_are_not_fetched(hub, address, advice):
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(address)
    assert str(caught.value) == f"--model {address} is an address, which is not fetched: {advice}"


@pytest.mark.parametrize("name", ["a" * 300, "~nobody-of-this-name/x", "a\0b", "/" + "b/" * 3000])
def test_names_that_no_path_can_be(name):
    for find in (find_checkpoint, checkpoint_here):
        with pytest.raises(CheckpointError, match="is neither a folder, nor a GGUF file"):
            find(name)
