"""Built programs are found again, and only those that everything would make the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from aerie import virtual_npu
from aerie.common.compiler import Compiler, find_compiler
from aerie.virtual_npu import BuildOptions, KernelSourceError, Program, ToolchainError, cache
from aerie.virtual_npu.codegen.module import RUNTIME
from aerie.virtual_npu.objects import INCLUDE, TranslationUnit
from tests import remembering

DOUBLE = """
func.func private @change(memref<4xf32>) attributes {link_with = "change.o"}
func.func @f(%x: memref<4xf32>) {
  func.call @change(%x) : (memref<4xf32>) -> ()
  return
}
"""
EXACT = BuildOptions()


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    return remembering.compiler(tmp_path_factory.mktemp("compiler"))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, compiler):
    monkeypatch.setenv("VNPU_CXX", str(compiler))
    monkeypatch.setenv("VNPU_OPT", "0")
    monkeypatch.setenv("VNPU_CACHE", str(tmp_path / "cache"))
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "factor.h").write_text("constexpr float factor = 2;")
    (tmp_path / "kernels" / "change.cc").write_text(
        '#include "factor.h"\n'
        'extern "C" void change(float *x) { for (int i = 0; i < 4; ++i) x[i] *= factor; }'
    )
    return tmp_path


def program(folder: Path, text: str = DOUBLE, options: BuildOptions = EXACT, **more) -> Program:
    return Program.from_text(text, kernel_dirs=[folder / "kernels"], options=options, **more)


def run(folder: Path, **more) -> list[float]:
    return list(program(folder, **more).run(np.ones(4, np.float32)).outputs[0])


def built(folder: Path) -> set[str]:
    return {path.name for path in (folder / "cache").glob("*.so")}


def never(*_arguments, **_options):
    pytest.fail("built again")


def test_a_program_is_built_once(folder, monkeypatch):
    assert run(folder) == [2.0] * 4
    monkeypatch.setattr(cache.ProgramSource, "cpp", never)
    assert run(folder) == [2.0] * 4
    assert len(built(folder)) == 1


def test_a_found_program_needs_no_parser(folder):
    run(folder)
    script = (
        "import sys, numpy; from aerie.virtual_npu import Program, BuildOptions\n"
        "p = Program.from_text(open('p.mlir').read(), kernel_dirs=['kernels'], options=BuildOptions())\n"
        "print(p.run(numpy.ones(4, numpy.float32)).outputs[0][0], 'xdsl' in sys.modules)"
    )
    (folder / "p.mlir").write_text(DOUBLE)
    project = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": project},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "2.0 False\n"


def test_whatever_makes_it_makes_it_another(folder, monkeypatch):
    run(folder)
    run(folder, text=DOUBLE.replace("@f", "@g"))
    run(folder, options=BuildOptions(numerics="bfp16"))
    monkeypatch.setenv("VNPU_OPT", "1")
    run(folder)
    assert len(built(folder)) == 4


@pytest.fixture
def compiled(monkeypatch):
    """The names of the sources that are compiled, in any order, without headers that are precompiled."""
    names: list[str] = []
    real = Compiler.compile

    def compile_one(compiler, source, *rest):
        if source.suffix != ".h":
            names.append(source.name)
        real(compiler, source, *rest)

    monkeypatch.setattr(Compiler, "compile", compile_one)
    return names


def test_python_that_generates_the_same_cpp_compiles_nothing(folder, compiled, monkeypatch):
    run(folder)
    assert sorted(compiled) == sorted(["change.cc", "program.cc", *RUNTIME])
    compiled.clear()
    monkeypatch.setattr(cache, "_own_digests", lambda: {"virtual_npu": "edited"})
    assert run(folder) == [2.0] * 4
    assert run(folder, text=DOUBLE + "// more") == [2.0] * 4
    assert compiled == []
    (folder / "kernels" / "factor.h").write_text("constexpr float factor = 3;")
    assert run(folder) == [3.0] * 4
    assert compiled == ["change.cc"]


def test_numerics_share_the_runtime(folder, compiled):
    """What mentions no macro of theirs is compiled once for all; a kernel of others is not looked into."""
    run(folder)
    compiled.clear()
    others = [BuildOptions(numerics="bfp16"), BuildOptions(fast=False)]
    assert [run(folder, options=each) for each in others] == [[2.0] * 4] * 2
    assert sorted(compiled) == ["change.cc", "change.cc", "program.cc", "program.cc"]
    floor = find_compiler(BuildOptions(rounding="floor").compiler_flags)
    assert "-DVNPU_ROUND_FLOOR=1" in TranslationUnit(INCLUDE / "vnpu" / "copies.cc").compiler_for(floor).flags


def test_built_objects_share_what_was_compiled(folder, compiled):
    run(folder)
    compiled.clear()
    virtual_npu.build(DOUBLE, folder / "p.so", kernel_dirs=[folder / "kernels"], options=EXACT)
    assert compiled == []
    x = np.ones(4, np.float32)
    virtual_npu.Library(folder / "p.so").run("f", [x.ctypes.data])
    assert list(x) == [2.0] * 4
    virtual_npu.build(DOUBLE, folder / "p.so", kernel_dirs=[folder / "kernels"], use_cache=False)
    assert sorted(compiled) == sorted(["change.cc", "p.cc", *RUNTIME])


def test_two_checkouts_of_one_content_share_their_entries(folder, compiled):
    run(folder)
    compiled.clear()
    plans = list((folder / "cache").glob("*.json"))
    (folder / "kernels").rename(folder / "elsewhere")
    found = Program.from_text(DOUBLE, kernel_dirs=[folder / "elsewhere"], options=EXACT)
    assert list(found.run(np.ones(4, np.float32)).outputs[0]) == [2.0] * 4
    assert (compiled, list((folder / "cache").glob("*.json"))) == ([], plans)


def test_a_source_that_is_edited_while_it_is_compiled(folder, monkeypatch):
    real = Compiler.compile

    def edited(compiler, source, *rest):
        real(compiler, source, *rest)
        if source.name == "change.cc":
            (folder / "kernels" / "factor.h").write_text("constexpr float factor = 3;")

    monkeypatch.setattr(Compiler, "compile", edited)
    with pytest.raises(ToolchainError, match=r"change\.cc, or what it includes, changed while it was compil"):
        run(folder)
    assert run(folder) == [3.0] * 4


def test_sources_of_kernels_and_their_headers_count(folder):
    run(folder)
    (folder / "kernels" / "factor.h").write_text("constexpr float factor = 3;")
    assert run(folder) == [3.0] * 4
    other = folder / "other"
    other.mkdir()
    (other / "change.cc").write_text('extern "C" void change(float *x) { x[0] = 9; }')
    found = Program.from_text(DOUBLE, kernel_dirs=[other, folder / "kernels"], options=EXACT)
    assert list(found.run(np.ones(4, np.float32)).outputs[0]) == [9, 1, 1, 1]
    (folder / "kernels" / "change.cc").unlink()
    with pytest.raises(KernelSourceError, match=r"change\.cc is in none of"):
        run(folder)


@pytest.mark.parametrize("damage", [b"", b"\0" * 100, None])
@pytest.mark.parametrize("suffix", ["so", "json", "o"])
def test_damaged_files_are_made_again(folder, damage, suffix):
    run(folder)
    for path in (folder / "cache").glob(f"*.{suffix}"):
        content = path.read_bytes()[:-9] if damage is None else damage
        path.unlink()  # a program that this process has loaded must not change under it
        path.write_bytes(content)
    if suffix == "o":
        for path in (folder / "cache").glob("*.so"):
            path.unlink()
    assert run(folder) == [2.0] * 4


def test_two_processes_build_it_once(folder):
    (folder / "p.mlir").write_text(DOUBLE)
    words = ["-m", "aerie.virtual_npu", "run", "p.mlir", "--kernel-dir", "kernels", "--zeros", "--no-checks"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    both = [
        subprocess.Popen(
            [sys.executable, *words], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    first, second = (process.communicate(timeout=120)[0] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert first == second
    assert len(built(folder)) == 1


def test_it_can_be_left_out(folder, monkeypatch):
    assert run(folder, use_cache=False) == [2.0] * 4
    assert not built(folder)
    monkeypatch.setenv("VNPU_CACHE", "off")
    assert run(folder) == [2.0] * 4
    assert not (folder / "off").exists()


def test_a_folder_that_cannot_be_written_is_done_without(folder, monkeypatch):
    monkeypatch.setenv("VNPU_CACHE", "/proc/nothing")
    assert run(folder) == [2.0] * 4


def test_the_generated_code_is_copied_to_the_requested_folder(folder):
    run(folder)
    run(folder, keep=folder / "kept", filename="dir/double.mlir")
    text = (folder / "kept" / "double.cc").read_text()
    assert "func_f(float *v_x)" in text
    assert "// 4: func.call @change(%x)" in text
