"""Which compiler, in how many words, and what is done where there is none any more."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from aerie import virtual_npu
from aerie.common import compiler, compiler_records
from aerie.common.compiler import find_compiler
from aerie.virtual_npu import BuildOptions, Program, ToolchainError
from aerie.virtual_npu.codegen.module import RUNTIME
from aerie.virtual_npu.objects import load_host_code
from tests import remembering

TEXT = """
func.func @f(%x: memref<1xf32>) {
  %c0 = arith.constant 0 : index
  %v = arith.constant 2.0 : f32
  memref.store %v, %x[%c0] : memref<1xf32>
  return
}
"""
HOST_CODE = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n'


def script(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return path


class Tool:
    """A compiler on a PATH of its own: one that remembers, says another version and writes down its calls."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "calls"

    def put(self, version: str) -> None:
        version_case = f'case "$*" in *--version) echo "{version}"; exit;; esac'
        path = f'PATH="{os.environ["PATH_BEFORE"]}"'
        real = remembering.lines(Path(os.environ["KEPT_OBJECTS"]))
        script(self.folder / "g++", f'echo "$*" >> {self.log}', version_case, path, *real)

    def remove(self) -> None:
        (self.folder / "g++").unlink()

    def calls(self) -> list[str]:
        """What it was asked for since this was asked last."""
        calls = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return calls


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """A cache of its own, and nothing known from earlier, as in a new process."""
    for name in ("VNPU_CXX", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VNPU_OPT", "0")
    monkeypatch.setenv("VNPU_CACHE", str(tmp_path / "cache"))
    forget()
    yield
    forget()


def forget() -> None:
    compiler_records._version.cache_clear()
    compiler._LINKS_CPP.clear()


@pytest.fixture(scope="module")
def kept_objects(tmp_path_factory):
    return tmp_path_factory.mktemp("objects")


@pytest.fixture
def tool(tmp_path, monkeypatch, kept_objects):
    monkeypatch.setenv("KEPT_OBJECTS", str(kept_objects))
    monkeypatch.setenv("PATH_BEFORE", os.environ["PATH"])
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    made = Tool(tmp_path / "bin")
    made.put("g++ 1.0")
    return made


def run(text: str = TEXT) -> float:
    x = np.ones(1, np.float32)
    return float(Program.from_text(text, options=BuildOptions()).run(x).outputs[0][0])


def run_all(folder: Path) -> tuple[float, int]:
    """A program, and host code: all that a start takes from the store."""
    (folder / "host.cc").write_text(HOST_CODE)
    forget()
    return run(), load_host_code(folder / "host.cc").answer()


def test_what_is_built_is_found_without_running_a_compiler(tool, tmp_path):
    assert run_all(tmp_path) == (2.0, 42)
    assert any("-c" in call for call in tool.calls())
    assert run_all(tmp_path) == (2.0, 42)
    assert tool.calls() == []


def test_and_without_there_being_one(tool, tmp_path):
    run_all(tmp_path)
    tool.remove()
    assert run_all(tmp_path) == (2.0, 42)
    with pytest.raises(ToolchainError, match=r"no C\+\+ compiler: looked for c\+\+, g\+\+, clang\+\+\. Ins"):
        run(TEXT.replace("2.0", "3.0"))


def test_a_compiler_that_changed_builds_again(tool, tmp_path):
    run_all(tmp_path)
    tool.put("g++ 1.1, another one")
    tool.calls()
    run_all(tmp_path)
    calls = tool.calls()
    assert calls[0] == "--version"
    assert sum("-c" in call for call in calls) == len(["program", *RUNTIME, "host code"])
    kept = json.loads((tmp_path / "cache" / "compilers.json").read_text())
    assert [each["version"] for each in kept] == ["g++ 1.1, another one", "g++ 1.0"]


def test_a_reinstalled_compiler_is_queried_and_builds_nothing(tool, tmp_path):
    run_all(tmp_path)
    os.utime(tool.folder / "g++", (1, 1))
    tool.calls()
    run_all(tmp_path)
    assert tool.calls() == ["--version"]


def test_what_an_earlier_compiler_built_is_found_too(tool, tmp_path):
    """Of several that are gone, each counts, the last one first."""
    run_all(tmp_path)
    tool.put("g++ 1.1, another one")
    forget()
    run(TEXT.replace("2.0", "3.0"))
    tool.remove()
    assert run_all(tmp_path) == (2.0, 42)
    assert run(TEXT.replace("2.0", "3.0")) == 3.0


def test_flags_count_without_a_compiler(tool, tmp_path, monkeypatch):
    run_all(tmp_path)
    tool.remove()
    monkeypatch.setenv("VNPU_OPT", "1")
    with pytest.raises(ToolchainError, match=r"no C\+\+ compiler"):
        run_all(tmp_path)


def test_one_that_our_own_variable_names_must_be_there(tool, tmp_path, monkeypatch):
    run_all(tmp_path)
    monkeypatch.setenv("CXX", "g++-99")  # somebody else's variable: what is built runs
    tool.remove()
    assert run_all(tmp_path) == (2.0, 42)
    monkeypatch.setenv("VNPU_CXX", "g++-98")
    with pytest.raises(ToolchainError, match=r"looked for g\+\+-98\. Install"):
        run_all(tmp_path)


def test_what_is_built_without_a_program_of_its_own(tool, tmp_path):
    """A program that was never built under this key, whose C++ was: as after an edit of our Python."""
    virtual_npu.build(TEXT, tmp_path / "p.so", options=BuildOptions())
    tool.remove()
    forget()
    virtual_npu.build(TEXT + "// more", tmp_path / "p.so", options=BuildOptions())


@pytest.mark.parametrize("content", ["", "{", "[1]", '[{"files": 1}]'])
def test_damaged_compiler_records_are_ignored(tool, tmp_path, content):
    run_all(tmp_path)
    (tmp_path / "cache" / "compilers.json").write_text(content)
    tool.calls()
    assert run_all(tmp_path) == (2.0, 42)
    assert tool.calls() == ["--version"]


@pytest.mark.parametrize(
    ("platform", "wanted"), [("linux", "-Wl,--no-undefined"), ("darwin", "-Wl,-undefined,dynamic_lookup")]
)
def test_what_the_linker_makes_of_undefined_symbols(tool, monkeypatch, platform, wanted):
    """On macOS only as written here: nobody linked a program there."""
    script(tool.folder / "g++", f'echo "$*" >> {tool.log}')
    monkeypatch.setattr(sys, "platform", platform)
    find_compiler().link([Path("a.o")], Path("a.so"))
    (line,) = tool.calls()
    assert wanted in line.split()


@pytest.mark.parametrize("variable", ["CXX", "VNPU_CXX"])
def test_a_compiler_in_several_words(tool, tmp_path, monkeypatch, variable):
    launched = script(tool.folder / "launcher", f'echo "launched" >> {tool.log}', 'exec "$@"')
    monkeypatch.setenv(variable, "launcher g++ -DMORE=1")
    assert find_compiler().command == (str(launched), "g++", "-DMORE=1")
    assert run_all(tmp_path) == (2.0, 42)
    calls = tool.calls()
    assert calls.count("launched") * 2 == len(calls)
    assert all(call.startswith("-DMORE=1 ") for call in calls if call != "launched")
    assert find_compiler().version == "g++ 1.0 -DMORE=1"


def test_a_path_with_a_blank_in_it_is_one_word(tmp_path, monkeypatch):
    path = script(tmp_path / "my tools" / "g++", f'exec {remembering.REAL} "$@"')
    monkeypatch.setenv("VNPU_CXX", str(path))
    assert find_compiler().command == (str(path),)
    monkeypatch.setenv("VNPU_CXX", f"'{path}' -m64")
    assert find_compiler().command == (str(path), "-m64")


@pytest.mark.parametrize("variable", ["CXX", "VNPU_CXX"])
def test_words_that_no_shell_would_take(monkeypatch, variable):
    monkeypatch.setenv(variable, "ccache 'g++")
    message = rf"^{variable}=\"ccache 'g\+\+\" cannot be read \(No closing quotation\): quote it as a shell"
    with pytest.raises(ToolchainError, match=message):
        find_compiler()


@pytest.mark.parametrize(
    ("named", "better"),
    [
        ("gcc", "g++"),
        ("gcc-13", "g++-13"),
        ("ccache x86_64-linux-gnu-gcc-13", "ccache x86_64-linux-gnu-g++-13"),
        ("clang", "clang++"),
        ("clang-18", "clang++-18"),
        ("cc", "c++"),
        ("my-compiler", "g++"),
    ],
)
def test_a_compiler_of_c_is_refused_with_the_one_to_take(tmp_path, monkeypatch, named, better):
    """Before anything is compiled with it."""
    line = '"-shared" "-lc" "-lgcc"' if "clang" in named else "collect2 -shared x.o -lgcc -lc crtn.o"
    says = f"case \"$*\" in *-###*) echo ' {line}' >&2; exit;; *--version) echo 'C 1';; *) exit 7;; esac"
    for word in named.split():
        script(tmp_path / "bin" / word, 'exec "$@"' if word == "ccache" else says)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("CXX", named)
    with pytest.raises(ToolchainError) as refused:
        run()
    assert str(refused.value) == (
        f"CXX='{named}' is a compiler of C: it does not link the library of C++. Name the one of C++ "
        f"(g++ for gcc, clang++ for clang): CXX='{better}'"
    )


@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")
def test_the_real_gcc(monkeypatch):
    monkeypatch.setenv("VNPU_CXX", "gcc")
    with pytest.raises(ToolchainError, match=r"^VNPU_CXX='gcc' is a compiler of C: .*: VNPU_CXX='g\+\+'$"):
        run()
