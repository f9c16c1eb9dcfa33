"""The command line where a checkpoint has to come from Hugging Face, and does not."""

import errno
import sys
import types
from pathlib import Path

import pytest

from aerie.cli.checkpoints import find_checkpoint
from aerie.common.errors import own_command
from aerie.engine.errors import CheckpointError
from tests.engine.refusals import check_refused


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """hub(error): Hugging Face answers with it; an empty local cache, and a folder without our hf on PATH."""
    import huggingface_hub

    def answer(error):
        def download(model, allow_patterns, ignore_patterns, local_files_only=False):
            assert "*.safetensors" in allow_patterns
            assert "consolidated*" in ignore_patterns
            raise huggingface_hub.errors.LocalEntryNotFoundError("not here") if local_files_only else error

        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)

    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.chdir(tmp_path)
    return answer


def hub_error(kind):
    from huggingface_hub import errors

    response = types.SimpleNamespace(headers={}, request=None)
    return getattr(errors, kind)("403 Client Error.\nmore", response=response)


LOGIN = f"log in with `{Path(sys.executable).with_name('hf')} auth login`, or set HF_TOKEN"


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (
            "owner/name",
            ConnectionError("no route to the hub.\nmore"),
            "--model owner/name is not on this machine, and fetching it from Hugging Face failed (no route "
            f"to the hub). Without a network, give the folder of a checkpoint; for a gated model, {LOGIN}\n",
        ),
        (
            "instruct",
            ConnectionError("no route"),
            "--model instruct, which is meta-llama/Llama-3.2-1B-Instruct of Hugging Face, is not on",
        ),
        (
            "base",
            hub_error("GatedRepoError"),
            "is not on this machine, and it is gated: ask for access at https://huggingface.co/meta-llama/"
            f"Llama-3.2-1B, then {LOGIN}\n",
        ),
        (
            "owner/name",
            hub_error("RepositoryNotFoundError"),
            "Hugging Face shows none at https://huggingface.co/owner/name: mend the name, or if it is private"
            f", {LOGIN}\n",
        ),
        (
            "owner/name",
            OSError(errno.ENOSPC, "No space left on device"),
            "make room, or set HF_HOME to a folder on another disk\n",
        ),
    ],
)
def test_hub_that_does_not_give_it(run, hub, model, error, message):
    hub(error)
    code, out, err = run("--prompt", "hi", model=model)
    note, refusal = err.splitlines(keepends=True)
    assert note.startswith("fetching ")
    assert note.endswith(" from Hugging Face, which needs a network; later runs do not\n")
    check_refused((code, out, refusal), message)


def test_hub_that_may_not_be_asked(run, hub, monkeypatch):
    hub(ConnectionError("offline"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    check_refused(
        run("--prompt", "hi", model="base"),
        "HF_HUB_OFFLINE is set, so it is not fetched: unset it, or give the folder of a checkpoint",
    )


def test_hf_is_called_as_it_can_be_typed(monkeypatch, tmp_path):
    python = tmp_path / ".venv" / "bin" / "python"
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.chdir(tmp_path)
    assert own_command("hf", "huggingface_hub.cli.hf") == ".venv/bin/python -m huggingface_hub.cli.hf"
    python.parent.mkdir(parents=True)
    python.with_name("hf").touch(mode=0o755)
    assert own_command("hf", "huggingface_hub.cli.hf") == ".venv/bin/hf"
    monkeypatch.setenv("PATH", str(python.parent))
    assert own_command("hf", "huggingface_hub.cli.hf") == "hf"


def test_hub_with_a_network(monkeypatch, tmp_path):
    import huggingface_hub

    asked = []

    def download(model, **_):
        asked.append(model)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    assert find_checkpoint("owner/name") == find_checkpoint("base") == find_checkpoint("instruct") == tmp_path
    assert set(asked) == {"owner/name", "meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B-Instruct"}
    (tmp_path / "base").mkdir()
    assert find_checkpoint("base") == Path("base"), "a folder of the user's comes first"


def test_an_hf_id_like_path_that_exists_is_a_folder(monkeypatch, tmp_path):
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert find_checkpoint("owner/name").is_dir()
    with pytest.raises(CheckpointError, match="neither a folder"):
        find_checkpoint("owner/name/deeper")
