"""Artifacts on disk: found by content, whole or rebuilt, shared by processes, safe on a full disk."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aerie.common.errors import KnobError
from aerie.runtime import AerieRuntimeError, CompileError, DiskFullError
from aerie.runtime.artifacts import UNKNOWN, ArtifactInputs, ArtifactStore


def files(cache):
    return sorted(path.name for path in (cache.cache_dir / "virtual").iterdir())


def test_the_layout_is_the_documented_one(open_cache, program):
    cache = open_cache()
    artifact = cache.compile_and_cache(program)
    stem = f"scale-{artifact.key}"
    assert artifact.path == cache.cache_dir / "virtual" / f"{stem}.elf"
    assert files(cache) == [f"{stem}.elf", f"{stem}.log", f"{stem}.mlir"]
    assert artifact.path.with_suffix(".mlir").read_text() == program.text
    assert artifact.path.with_suffix(".log").read_text() == "compiling scale\n"
    kept = sorted(path.name for path in cache.cache_dir.iterdir())
    assert kept == ["locks", "manifest.json", "unfinished", "virtual"]
    assert [path.name for path in (cache.cache_dir / "locks").iterdir()] == ["pruned"]
    assert not list((cache.cache_dir / "unfinished").iterdir())


def test_the_manifest_has_the_inputs_of_an_artifact(open_cache, program):
    artifact = open_cache().compile_and_cache(program)
    document = json.loads((artifact.path.parent.parent / "manifest.json").read_text())
    entry = document["artifacts"][f"scale-{artifact.key}"]
    assert document["format"] == 1
    assert entry["name"] == "scale"
    assert entry["backend"] == "virtual"
    assert entry["file"] == f"virtual/{artifact.path.name}"
    assert entry["nbytes"] == artifact.path.stat().st_size
    assert set(entry["made_from"]) == {"program text", "flags"}
    assert entry["made_from"]["flags"] == "-O2"


def test_a_second_cache_compiles_nothing(open_cache, program, toolchain):
    first = open_cache().compile_and_cache(program)
    second = open_cache().compile_and_cache(program)
    assert toolchain.compiled == ["scale"]
    assert (first.reused, second.reused) == (False, True)
    assert first.path == second.path


def test_any_ingredient_makes_another_artifact(open_cache, program, variant, toolchain):
    cache = open_cache()
    first = cache.compile_and_cache(program)
    other_text = cache.compile_and_cache(variant(text="scale 2"))
    toolchain.flags = "-O3"
    other_flags = cache.compile_and_cache(program)
    assert len({first.key, other_text.key, other_flags.key}) == 3
    toolchain.flags = "-O2"
    assert cache.compile_and_cache(program).reused


def test_where_an_ingredient_is_unknown_the_newest_that_fits_is_found(
    open_cache, program, variant, toolchain, reports
):
    made = {}
    for flags, created in (("-O3", "2026-01-02T00:00:00Z"), ("-O2", "2026-01-01T00:00:00Z")):
        toolchain.flags = flags
        made[flags] = open_cache().compile_and_cache(program)
        manifest = made[flags].path.parents[1] / "manifest.json"
        document = json.loads(manifest.read_text())
        document["artifacts"][f"scale-{made[flags].key}"]["created"] = created
        manifest.write_text(json.dumps(document))
    toolchain.flags = UNKNOWN
    found = open_cache().compile_and_cache(program)
    assert (found.path, found.key, found.reused) == (made["-O3"].path, made["-O3"].key, True)
    made["-O3"].path.write_text("damaged")
    assert open_cache().compile_and_cache(program).path == made["-O2"].path
    assert not open_cache().compile_and_cache(variant(text="scale 2")).reused
    made["-O2"].path.unlink()
    reports.clear()
    reasons = []
    open_cache().compile_all([program], progress=lambda event: reasons.append(event.detail))
    assert [reason for reason in reasons if reason] == ["its artifact is missing or damaged"]
    assert len(reports) == 2


def test_why_a_program_is_compiled(open_cache, program, variant, toolchain):
    cache, reasons = open_cache(), []
    tell = lambda progress: reasons.append(progress.detail)  # noqa: E731
    cache.compile_all([program], progress=tell)
    toolchain.flags = "-O3"
    artifact = cache.compile_all([program], progress=tell)["scale"]
    artifact.path.unlink()
    cache.compile_all([program], progress=tell)
    cache.compile_all([variant(text="scale 2")], progress=tell)
    toolchain.flags = "-O1"
    cache.compile_all([program], progress=tell)
    assert [reason for reason in reasons if reason] == [
        "not compiled before",
        "changed: flags",
        "its artifact is missing or damaged",
        "new text: another shape, or an edited kernel",
        "changed: flags",
    ]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), r"artifact scale-\w+.elf is damaged \(the file is missing\); compil"),
        (lambda path: path.write_text("{"), r"is damaged \(1 bytes instead of \d+\)"),
        (
            lambda path: path.write_text(path.read_text().replace("4", "5")),
            r"is damaged \(its content changed\)",
        ),
    ],
)
def test_a_damaged_artifact_is_rebuilt_with_a_note(open_cache, program, toolchain, reports, damage, message):
    cache = open_cache()
    damage(cache.compile_and_cache(program).path)
    cache.compile_and_cache(program)
    assert toolchain.compiled == ["scale", "scale"]
    assert len(reports) == 1
    assert re.search(message, reports[0])


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 2}', '{"format": 1, "artifacts": {"a": {}}}', "\xff"]
)
def test_a_corrupt_manifest_is_replaced_with_a_note(
    open_cache, program, variant, toolchain, reports, content
):
    cache = open_cache()
    cache.compile_and_cache(program)
    manifest = cache.cache_dir / "manifest.json"
    manifest.write_text(content, encoding="latin-1")
    again = open_cache()
    again.compile_and_cache(program)
    again.compile_and_cache(variant(name="other"))
    assert toolchain.compiled == ["scale", "scale", "other"]
    assert len(reports) == 1
    assert "manifest.json is corrupt (" in reports[0]
    assert reports[0].endswith("starting a new one, programs are compiled again")
    assert len(json.loads(manifest.read_text())["artifacts"]) == 2


def test_a_failed_compilation_keeps_its_log_and_text_and_nothing_else(open_cache, variant):
    cache = open_cache()
    with pytest.raises(
        CompileError, match="program 'scale' was not compiled: line 3: unknown op 'bad'; full log: "
    ) as caught:
        cache.compile_and_cache(variant(text="bad"))
    assert caught.value.log
    assert caught.value.log.read_text() == "compiling scale\n"
    text = caught.value.log.with_suffix(".mlir")
    assert text.read_text() == "bad"
    assert files(cache) == [caught.value.log.name, text.name]
    assert not list((cache.cache_dir / "unfinished").iterdir())


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
        CompileError("scale", "cc1plus: fatal error: write: No space left on device"),
    ],
)
def test_a_full_disk_leaves_the_cache_usable(open_cache, program, variant, toolchain, failure):
    cache = open_cache()
    cache.compile_and_cache(program)
    toolchain.fail = failure
    with pytest.raises(
        DiskFullError,
        match=r"no space left while compiling 'more' \(.* \d+ bytes free at .*; compiled pr.* AERIE_CACHE=/",
    ):
        cache.compile_and_cache(variant(name="more"))
    assert not list((cache.cache_dir / "unfinished").iterdir())
    assert cache.compile_and_cache(program).reused
    toolchain.fail = None
    assert not cache.compile_and_cache(variant(name="more")).reused


def test_a_disk_that_fills_while_the_manifest_is_written(open_cache, program, variant, monkeypatch):
    cache = open_cache()
    cache.compile_and_cache(program)
    before = (cache.cache_dir / "manifest.json").read_bytes()
    real = os.replace

    def full(made, place):
        if Path(place).name == "manifest.json":  # written, and not in its place yet
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(made, place)

    monkeypatch.setattr("aerie.common.store.os.replace", full)
    with pytest.raises(DiskFullError):
        cache.compile_and_cache(variant(name="more"))
    assert (cache.cache_dir / "manifest.json").read_bytes() == before
    assert not list((cache.cache_dir / "unfinished").iterdir())
    assert open_cache().compile_and_cache(program).reused


@pytest.mark.parametrize("name", ["virtual", "unfinished", "manifest.json"])
def test_a_part_of_the_cache_that_cannot_be_used(open_cache, program, name):
    cache = open_cache()
    place = cache.cache_dir / name
    place.mkdir() if name == "manifest.json" else place.write_text("a file")
    wanted = (
        rf"the cache directory .*cache cannot be used \(.*{name}.*\): name one that can .* AERIE_CACHE=/path"
    )
    with pytest.raises(AerieRuntimeError, match=wanted):
        cache.compile_and_cache(program)


def test_what_a_killed_process_left_is_cleared(open_cache, program):
    cache = open_cache()
    cache.compile_and_cache(program).path.unlink()
    for left in (f"virtual-scale-{'0' * 16}.elf", "manifest.json"):
        (cache.cache_dir / "unfinished" / left).mkdir()
        (cache.cache_dir / "unfinished" / left / "half").write_text("x")
    cache.compile_and_cache(program)
    assert not list((cache.cache_dir / "unfinished").iterdir())


def test_a_cache_directory_that_cannot_be_used(tmp_path, open_cache):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(
        AerieRuntimeError,
        match=r"the cache directory .*cache cannot be used \(.*\): name one .* AERIE_CACHE=/",
    ):
        open_cache()


BUILD = """
import sys, time
from pathlib import Path
from aerie.runtime.artifacts import ArtifactInputs, ArtifactStore

directory, name = Path(sys.argv[1]), sys.argv[2]

def compile_in(work):
    with open(directory / "compiled", "a") as log:
        log.write(name + "\\n")
    (directory / ("started-" + name)).touch()
    time.sleep(0.5)
    made = work / "made"
    made.write_text(name)
    return made

store = ArtifactStore(directory, print)
artifact = store.build(ArtifactInputs(name, "virtual", "text", {"text": name}), compile_in)
print("reused" if artifact.reused else "built")
"""


def start(tmp_path, name):
    command = [sys.executable, "-c", BUILD, str(tmp_path), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


def test_two_processes_share_a_cache(tmp_path):
    both = [start(tmp_path, "same"), start(tmp_path, "same"), start(tmp_path, "other")]
    output = [process.communicate(timeout=60)[0].splitlines() for process in both]
    assert sorted(lines[-1] for lines in output) == ["built", "built", "reused"]
    assert sorted((tmp_path / "compiled").read_text().split()) == ["other", "same"]
    assert len(json.loads((tmp_path / "manifest.json").read_text())["artifacts"]) == 2


def test_a_read_only_cache_that_has_the_program(open_cache, program, variant, monkeypatch):
    """As in a container's image: what is there is run, and only what is not needs a place."""
    made = open_cache().compile_and_cache(program)

    def read_only(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "a lock")

    monkeypatch.setattr("aerie.common.store._try_lock", read_only)
    cache = open_cache()
    found = cache.compile_and_cache(program)
    assert (found.path, found.reused) == (made.path, True)
    with pytest.raises(AerieRuntimeError, match=r"cannot be used \(.*Read-only file system: 'a lock'\)"):
        cache.compile_and_cache(variant(name="more"))


def test_waiting_for_another_process_is_printed(tmp_path):
    other = start(tmp_path, "same")
    while not (tmp_path / "started-same").exists():
        assert other.poll() is None
    reports: list[str] = []
    recipe = ArtifactInputs("same", "virtual", "text", {"text": "same"})
    artifact = ArtifactStore(tmp_path, reports.append).build(recipe, lambda work: pytest.fail("built twice"))
    other.communicate(timeout=60)
    assert artifact.reused
    assert reports == ["another process is compiling same; waiting for it"]


def test_a_key_is_of_name_backend_and_ingredients():
    recipe = ArtifactInputs("same", "virtual", "text", {"text": "same"})
    others = [("other", "virtual", "same"), ("same", "npu", "same"), ("same", "virtual", "other")]
    keys = [ArtifactInputs(name, backend, "text", {"text": text}).key for name, backend, text in others]
    assert len({recipe.key, *keys}) == 4
    assert ArtifactInputs("same", "virtual", "text", {"text": "same"}).key == recipe.key


@pytest.mark.parametrize("inner", ["", "virtual"])
def test_a_cache_that_others_can_write_to_is_not_loaded_from(open_cache, program, inner):
    cache = open_cache()
    cache.compile_and_cache(program)
    folder = cache.cache_dir / inner
    folder.chmod(0o777)
    with pytest.raises(
        KnobError, match=f"{folder} is not used: everybody can write to {folder}, so that oth"
    ):
        open_cache()


def test_an_artifact_that_others_can_write_is_compiled_again(open_cache, program, toolchain, reports):
    artifact = open_cache().compile_and_cache(program)
    artifact.path.chmod(0o666)
    assert not open_cache().compile_and_cache(program).reused
    assert reports == [f"artifact {artifact.path.name} is damaged (others can write it); compiling it again"]
    assert toolchain.compiled == ["scale", "scale"]


@pytest.mark.parametrize("file", ["../../elsewhere.elf", "/elsewhere.elf", "virtual/other.elf", 7, None])
def test_a_manifest_names_artifacts_in_its_folder_alone(open_cache, program, reports, file):
    artifact = open_cache().compile_and_cache(program)
    manifest = artifact.path.parents[1] / "manifest.json"
    document = json.loads(manifest.read_text())
    document["artifacts"][artifact.path.stem]["file"] = file
    manifest.write_text(json.dumps(document))
    assert not open_cache().compile_and_cache(program).reused
    assert "is corrupt (a file that is not called as its artifact)" in reports[0]
