"""Precompiled headers: when they are made and used, and that no object depends on them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from aerie.common.compiler import Compiler, find_compiler
from aerie.common.store import Store
from aerie.device.external_kernels import OWN_KERNELS
from aerie.virtual_npu import precompiled
from aerie.virtual_npu.objects import HEADERS, TranslationUnit
from aerie.virtual_npu.toolchain import emit

API = "#include <aie_api/aie.hpp>\n"
COPY = """
func.func @copy(%x: memref<4xf32>, %y: memref<4xf32>) {
  memref.copy %x, %y : memref<4xf32> to memref<4xf32>
  return
}
"""
KERNEL = OWN_KERNELS / "transpose_blocks.cc"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (API, API),
        ("// A kernel.\n\n#include <cstdint>\n#include <stdint.h>\n\n" + API + "int x;\n", API),
        ('#include "vnpu/entry.h"\n#include "vnpu/aie/core.h"\n#pragma x\n#include "vnpu/made.h"\n',
         '#include "vnpu/entry.h"\n#include "vnpu/aie/core.h"\n'),
        ("#define NOCPP\n" + API, ""),
        ('#include "mine.h"\n' + API, ""),
        ("#include <mine/own.h>\n" + API, ""),
        ("#ifdef X\n" + API + "#endif\n", ""),
        ("/* A kernel. */\n" + API, ""),
        ("", ""),
    ],
)  # fmt: skip
def test_what_a_unit_begins_with(text: str, wanted: str) -> None:
    """Nothing but comments and headers of the library may come before: a macro there could change them."""
    assert precompiled.prelude(text) == wanted


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """A g++, and nothing counted yet."""
    found = find_compiler()
    if "clang" in found.version:
        pytest.skip(f"{found.version} is no g++")
    monkeypatch.setattr(precompiled, "_wanted", Counter())
    monkeypatch.setattr(precompiled, "_checked", set())
    return found


def test_objects_are_the_same_as_without(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte by byte; so are those of a macro that the headers contain, for which g++ reads the headers."""
    commands: list[list[str]] = []
    real = Compiler._run

    def run(self: Compiler, arguments: list[str], what: str, **variables: str) -> None:
        commands.append([*arguments])
        real(self, arguments, what, **variables)

    def compiled(unit: TranslationUnit, store: Store | None) -> bytes:
        work = tmp_path / f"{len(commands)}"
        work.mkdir()
        return unit.compile(compiler, store, work).read_bytes()

    monkeypatch.setattr(Compiler, "_run", run)
    monkeypatch.setattr(precompiled, "UNITS_WITHOUT", {True: 0, False: 0})
    store = Store(tmp_path / "store")
    flags = (("-DTRANSPOSED_BLOCKS=3",), ("-Dtranspose_blocks_bf16=prefetch",))
    generated = TranslationUnit(Path("program.cc"), emit(COPY).text)
    units = [*(TranslationUnit(KERNEL, flags=each) for each in flags), generated]
    for unit in units:
        assert compiled(unit, store) == compiled(unit, None), unit.flags
    made = [command for command in commands if "c++-header" in command]
    used = [command for command in commands if "-include" in command]
    assert (len(made), len(used), len(commands)) == (2, 3, 2 * len(units) + 2)
    assert [entry.suffix for group in store.groups() for entry in group.paths] == [".gch"] * 2


def test_when_it_is_worth_it(compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for the first units in a store, without a store, for clang, sanitizers or a header of others."""
    made: list[str] = []
    monkeypatch.setattr(Store, "get_or_make", lambda _, name, make: made.append(name))

    def flags(compiler: Compiler, prelude: str = API, *, kept: str = "store") -> list[str]:
        work = tmp_path / f"{len([*tmp_path.iterdir()])}"
        work.mkdir()
        store = Store(tmp_path / kept) if kept else None
        return [
            Path(word).name for word in precompiled.prelude_flags(prelude, HEADERS, compiler, store, work)
        ]

    assert [flags(compiler) for _ in range(4)] == [[], [], *2 * [["-include", "prelude.h"]]]
    assert flags(compiler, "") == flags(compiler, kept="") == []
    others = [
        replace(compiler, recorded_version="Debian clang version 14.0.6"),
        replace(compiler, command=(*compiler.command, "-include", "x.h")),
        replace(compiler, flags=(*compiler.flags, "-g1")),
    ]
    assert [flags(other) for other in others for _ in range(4)] == [[]] * 12
    assert flags(replace(compiler, flags=(*compiler.flags, "-DVNPU_BFP16=1"))) == []
    assert [flags(compiler, kept="another store") for _ in range(2)] == [[], []]
    assert len({*made}) == 1
    precompiled._wanted.clear()  # as in another process
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / made[0]).touch()
    assert flags(compiler) == ["-include", "prelude.h"]


def test_headers_that_are_refused_are_the_units_own_error(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler's lines name the unit, not what was to be precompiled."""
    monkeypatch.setattr(precompiled, "UNITS_WITHOUT", {True: 0, False: 0})
    store, old = Store(tmp_path / "store"), replace(compiler, flags=(*compiler.flags, "-std=c++17"))
    with pytest.raises(Exception, match=r"(?s)compiling transpose_blocks.cc failed.*needs C\+\+20"):
        TranslationUnit(KERNEL).compile(old, store, tmp_path)
    assert store.groups() == []
