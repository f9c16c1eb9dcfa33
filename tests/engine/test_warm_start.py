"""A second start builds nothing and needs no compiler: it loads no IR, no kernel, no code generator, none of
transformers."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aerie.multi_launch_builder import (
    Program,
    UnsupportedShapeError,
    Variant,
    build_programs,
    build_variant_programs,
    builder,
    program_store,
)
from aerie.multi_launch_builder.shapes import DEMO
from aerie.rooms import AT_THE_TOP

ROOT = Path(__file__).parents[2]

RUN = """
import sys
from aerie.cli.command_line import main
code = main(["run", "--prompt", "What is the capital of France?", "--cache-dir", sys.argv[1]])
print(code, *sys.modules, file=sys.stderr)
"""


def run(cache_dir: Path, **environment: str) -> tuple[str, str, set[str]]:
    """Return the answer, the line about programs, and the modules that are loaded at the end."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(cache_dir)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    *lines, modules = done.stderr.splitlines()
    code, *loaded = modules.split()
    assert code == "0"
    return done.stdout, next(line for line in lines if line.startswith("programs: ")), set(loaded)


def test_a_second_start_loads_nothing_that_builds(tmp_path):
    answer, programs_line, _ = run(tmp_path)
    no_compiler = {"PATH": str(tmp_path), "CXX": "", "VNPU_CXX": ""}
    again, told_again, loaded = run(tmp_path, **no_compiler)
    assert answer == again == "The capital of France is Paris.\n"
    assert re.fullmatch(r"programs: \d compiled, \d from the cache, \d+\.\d s", programs_line)
    assert told_again.startswith("programs: 0 compiled, 6 from the cache, ")
    rooms = {name.partition(".")[0] for name in loaded}
    assert not rooms & {"xdsl", "transformers", "huggingface_hub", "torch", "rich", "filelock"}
    assert {name for name in loaded if name.startswith(("aerie.kernel_builder.", "aerie.air_dialect."))} == {
        "aerie.kernel_builder.activations",
        "aerie.kernel_builder.arguments",
        "aerie.kernel_builder.delta_rows",
        "aerie.kernel_builder.weight_blocks",
    }
    builders = ("builder", "shape_limits", "stitcher", "wiring", "submodule")
    assert not loaded & {f"aerie.multi_launch_builder.{name}" for name in builders}
    light = {"aerie.device", "aerie.device.errors", "aerie.device.external_kernels"}
    heavy = {name for name in loaded if name.startswith(("aerie.virtual_npu.codegen", "aerie.device"))}
    assert heavy <= light


@pytest.fixture
def own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("VNPU_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def never_built(monkeypatch):
    def never(*_):
        pytest.fail("built again")

    monkeypatch.setattr("aerie.multi_launch_builder.builder.build_program", never)


def fields(programs: dict[str, Program]) -> dict[str, dict[str, object]]:
    """Everything that programs say, comparable: not the modules that texts were made of."""
    return {
        name: {**vars(program), "arguments": list(program.arguments), "built_from": None}
        for name, program in programs.items()
    }


@pytest.fixture(scope="module")
def built():
    """built(seq_len): the fields of the demo's programs, as they are built."""
    return functools.cache(lambda seq_len: fields(build_programs(DEMO, seq_len)))


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A store with the demo's programs of 64 tokens."""
    folder = tmp_path_factory.mktemp("filled") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VNPU_CACHE", str(folder))
        program_store.load_programs(DEMO, 64)
    return folder


def test_programs_from_the_store_are_those_that_are_built(own_store, built, request):
    want = built(64)
    assert fields(program_store.load_programs(DEMO, 64)) == want
    request.getfixturevalue("never_built")
    assert fields(program_store.load_programs(DEMO, 64)) == want


@pytest.mark.parametrize("changed", ["shape", "length", "sources", "damage"])
def test_what_they_are_made_of_makes_them_others(own_store, filled, built, monkeypatch, changed):
    shutil.copytree(filled, own_store)
    before = built(64)
    assert len(list(own_store.glob("text-*"))) == len(before)
    shape, seq_len = DEMO, 64
    if changed == "shape":
        shape = DEMO.__class__(**{**vars(DEMO), "rms_norm_eps": 1e-6})
    elif changed == "length":
        seq_len = 128
    elif changed == "sources":
        monkeypatch.setattr(program_store, "_sources", lambda: {"kernel_builder": "edited"})
    else:
        next(own_store.glob("text-*")).write_text("{")
    want = built(seq_len) if shape is DEMO else fields(build_programs(shape, seq_len))
    assert fields(program_store.load_programs(shape, seq_len)) == want
    new = {"shape": 4, "length": 3, "sources": 6, "damage": 0}[
        changed
    ]  # decode has no length, attention no eps
    assert len(list(own_store.glob("text-*"))) == len(before) + new


def test_another_set_of_variants_builds_what_is_new_in_it(own_store, monkeypatch):
    some, more = [Variant(8, 512)], [Variant(8, 512), Variant(8, 1024)]
    kept = fields(program_store.load_variant_programs(DEMO, some))
    real, built = builder.build_program, []

    def noted(plan, *rest):
        built.append(plan.name)
        return real(plan, *rest)

    monkeypatch.setattr(builder, "build_program", noted)
    again = fields(program_store.load_variant_programs(DEMO, more))
    assert built == ["cached_attn_ar8_cl1024"]
    assert again.items() >= kept.items()
    assert again == fields(build_variant_programs(DEMO, more))


def test_every_source_that_builds_counts():
    """Of ours, what building loads is in the folders whose sources are hashed."""
    script = """
import sys
from aerie.multi_launch_builder import build_programs
from aerie.multi_launch_builder.shapes import DEMO
build_programs(DEMO, 64)
print(*(module.__file__ for module in sys.modules.values() if getattr(module, "__file__", None)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    ours = [Path(file).relative_to(ROOT) for file in done.stdout.split() if file.startswith(str(ROOT))]
    inside = {path.parts[1] for path in ours if path.parts[0] == "aerie" and len(path.parts) > 2}
    folders = inside | {path.parts[0] for path in ours if path.parts[0] in AT_THE_TOP}
    assert folders == set(program_store.SOURCES)
    assert set(program_store._sources()) == {*program_store.SOURCES, "xdsl"}


def test_a_shape_is_refused_each_time(own_store):
    wrong = DEMO.__class__(**{**vars(DEMO), "n_kv_heads": 3})
    for _ in range(2):
        with pytest.raises(UnsupportedShapeError, match="n_kv_heads=3 does not divide n_heads=4"):
            program_store.check_shape(wrong)
    program_store.check_shape(DEMO)
    assert len(list(own_store.glob("shape-*"))) == 1


@pytest.mark.parametrize("place", ["off", "/proc/nothing"])
def test_without_a_store_they_are_built(built, monkeypatch, place):
    monkeypatch.setenv("VNPU_CACHE", place)
    assert fields(program_store.load_programs(DEMO, 64)) == built(64)


def test_a_full_disk_does_not_matter_yet(own_store, built, monkeypatch):
    real = os.replace

    def full(made, target):
        if Path(target).name.startswith("text-"):
            raise OSError(28, "No space left on device")
        real(made, target)

    monkeypatch.setattr("aerie.common.store.os.replace", full)
    assert fields(program_store.load_programs(DEMO, 64)) == built(64)
    assert not list(own_store.glob("text-*"))
