"""A GGUF file as a user names it: the run command answers from it, or one line says what it is."""

import json

from tests import gguf_files
from tests.gguf_files import Source


def test_a_file_that_is_no_gguf_or_is_not_there(tmp_path, run):
    path = tmp_path / "x.gguf"
    code, _, err = run("--prompt", "hi", model=path)
    assert (code, f"cannot read {path}: No such file" in err) == (2, True)
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1\n")
    code, _, err = run("--prompt", "hi", model=path)
    assert (code, f"{path} is a Git LFS pointer, not the file: run `git lfs pull`" in err) == (2, True)
    path.write_bytes(b"")
    code, _, err = run("--prompt", "hi", model=path)
    assert (code, "x.gguf: the magic number takes 4 bytes, and 0 are left" in err) == (2, True)


def test_the_run_command_answers_from_a_file(make_checkpoint, tmp_path, run):
    llama = Source(make_checkpoint())
    path = gguf_files.write(tmp_path / "x.gguf", llama)
    flags = ("--prompt", "the tile", "--n-tokens", "8", "--json")
    (code, ours, _), (_, theirs, _) = (run(*flags, model=model) for model in (path, llama.folder))
    assert code == 0
    assert json.loads(ours)["token_ids"] == json.loads(theirs)["token_ids"]
