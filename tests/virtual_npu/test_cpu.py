"""The features of the CPU from the system, the flags for compilers, and the limits of VNPU_MARCH."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aerie.common import compiler, cpu
from aerie.common.compiler import find_compiler
from aerie.common.errors import KnobError
from aerie.virtual_npu import Program
from aerie.virtual_npu.objects import INCLUDE, TranslationUnit

V3 = "fpu sse sse2 pni ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt avx f16c lahf_lm abm bmi1 avx2 bmi2"
V4 = f"{V3} avx512f avx512dq avx512cd avx512bw avx512vl"
BF16 = f"{V4} avx512vbmi avx512_vbmi2 avx512_bf16 amx_bf16 amx_tile amx_int8"
LEVEL_3 = (
    *["sse3", "ssse3", "sse4.1", "sse4.2", "popcnt"],
    *["movbe", "lzcnt", "bmi", "bmi2", "f16c", "avx", "avx2", "fma"],
)
LEVEL_4 = (*LEVEL_3, "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl")

INSTALLED = [
    name
    for name in ("g++", "clang++", *(f"{kind}-{n}" for kind in ("g++", "clang++") for n in range(11, 24)))
    if shutil.which(name)
]

DOES_NOTHING = """
func.func @f(%x: memref<1xf32>) {
  return
}
"""


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv("VNPU_MARCH", raising=False)
    forget()
    yield
    forget()


def forget() -> None:
    cpu.cpu_features.cache_clear()
    cpu.cpu_defines.cache_clear()
    compiler._unsupported_cpu_flags.cache_clear()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """machine(type, words of /proc/cpuinfo): from now on that machine, with Linux, is this one."""

    def become(kind: str, words: str) -> None:
        name = "flags\t\t" if kind == "x86_64" else "Features\t"
        (tmp_path / "cpuinfo").write_text(
            f"processor\t: 0\n{name}: {words}\n\nprocessor\t: 1\n{name}: other\n"
        )
        monkeypatch.setattr(platform, "machine", lambda: kind)
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "cpuinfo")
        monkeypatch.setattr(cpu, "L1_SIZE", tmp_path / "size")
        monkeypatch.setattr(cpu, "_tiles_granted", lambda: True)
        forget()

    return become


@pytest.mark.parametrize(
    ("kind", "words", "found", "flags"),
    [
        ("x86_64", "fpu sse sse2", (), ()),
        ("x86_64", V3, LEVEL_3, tuple(f"-m{name}" for name in LEVEL_3)),
        ("x86_64", V4, LEVEL_4, tuple(f"-m{name}" for name in LEVEL_4)),
        ("aarch64", "fp asimd evtstrm", (), ()),
        ("aarch64", "fp asimd asimdhp asimddp", ("fp16", "dotprod"), ("-march=armv8.2-a+fp16+dotprod",)),
        ("arm64", "asimd i8mm bf16", ("i8mm", "bf16"), ("-march=armv8.2-a+i8mm+bf16",)),
        ("riscv64", V4, (), ()),
    ],
)
def test_features_and_flags_of_a_cpu(machine, kind, words, found, flags):
    machine(kind, words)
    assert cpu.cpu_features() == found
    assert cpu.cpu_flags() == flags
    assert cpu.cpu_identity() == " ".join((kind, *(found or [platform.processor()])))


def test_the_newest_features_are_named_one_by_one(machine):
    machine("x86_64", BF16)
    more = ("avx512vbmi", "avx512vbmi2", "avx512bf16", "amx-tile", "amx-bf16")
    assert cpu.cpu_features() == (*LEVEL_4, *more)
    assert cpu.cpu_flags()[-2:] == ("-mamx-tile", "-mamx-bf16")


@pytest.mark.parametrize(
    ("vendor", "defines"),
    [("GenuineIntel", ("-DVNPU_L2_PREFETCH", "-DVNPU_SLOW_PAIRS")), ("AuthenticAMD", ()), (None, ())],
)
def test_flags_that_depend_on_the_vendor_of_the_cpu(machine, vendor, defines):
    machine("x86_64", V4)
    if vendor:
        cpu.CPUINFO.write_text(f"vendor_id\t: {vendor}\n{cpu.CPUINFO.read_text()}")
    forget()
    assert cpu.cpu_defines() == defines
    possible = ("-DVNPU_L2_PREFETCH", "-DVNPU_SLOW_PAIRS")
    assert tuple(flag for flag in find_compiler().flags if flag in possible) == defines
    assert cpu.cpu_features() == LEVEL_4


@pytest.mark.parametrize(
    ("size", "is_small"), [("32K\n", True), ("16K\n", True), ("48K\n", False), ("1M\n", False), ("", False)]
)
def test_a_small_l1_is_told_to_programs(machine, size, is_small):
    machine("x86_64", V4)
    cpu.L1_SIZE.write_text(size)
    assert cpu.cpu_defines() == (("-DVNPU_SMALL_L1",) if is_small else ())


def test_tiles_count_where_the_system_grants_them(machine, monkeypatch):
    machine("x86_64", BF16)
    monkeypatch.setattr(cpu, "_tiles_granted", lambda: False)
    forget()
    assert cpu.cpu_features()[-1] == "avx512bf16"


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="asks Linux on x86-64")
def test_permission_for_tiles_agrees_with_the_list_of_linux():
    """Linux lists amx_tile where the CPU has it and tile data was not turned off. No filter of system
    calls is in the way of tests."""
    assert cpu._tiles_granted() == ("amx_tile" in cpu._cpuinfo_words())


def test_without_proc_the_default_of_the_compiler_holds(machine, monkeypatch, tmp_path):
    machine("x86_64", V4)
    monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "none")
    forget()
    assert cpu.cpu_features() == cpu.cpu_flags() == ()


SYSCTL = """hw.optional.arm.FEAT_BF16: 1
hw.optional.arm.FEAT_I8MM: 1
hw.optional.arm.FEAT_FP16: 0
hw.optional.avx2_0: 1
hw.optional.supplementalsse3: 1
hw.optional.floatingpoint: 1
"""


@pytest.mark.parametrize(("kind", "found"), [("arm64", ("i8mm", "bf16")), ("x86_64", ("ssse3", "avx2"))])
def test_output_of_macos(monkeypatch, kind, found):
    """As its manual has it (sysctl(3)); nobody ran it there."""
    monkeypatch.setattr(platform, "machine", lambda: kind)
    monkeypatch.setattr(sys, "platform", "darwin")
    completed = subprocess.CompletedProcess([], 0, SYSCTL, "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: completed)
    assert cpu.cpu_features() == found


def test_and_a_macos_without_sysctl(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("PATH", "")
    assert cpu.cpu_features() == ()


@pytest.mark.parametrize(
    ("march", "found"),
    [("x86-64", ()), ("x86-64-v2", LEVEL_3[:5]), ("x86-64-v3", LEVEL_3), ("x86-64-v4", LEVEL_4)],
)
def test_a_level_limits_and_is_what_a_lesser_cpu_has(machine, monkeypatch, march, found):
    """So that such a CPU finds what was built, by the same flags and the same key."""
    machine("x86_64", BF16)
    monkeypatch.setenv("VNPU_MARCH", march)
    limited = cpu.cpu_flags(), cpu.cpu_identity()
    assert limited[0] == tuple(f"-m{name}" for name in found)
    monkeypatch.delenv("VNPU_MARCH")
    machine(
        "x86_64", {0: "fpu", 5: V3[: V3.index("fma")] + "sse4_1 sse4_2 popcnt", 13: V3, 18: V4}[len(found)]
    )
    assert (cpu.cpu_flags(), cpu.cpu_identity()) == limited


def test_features_behind_a_level(machine, monkeypatch):
    """AVX512-BF16 without AMX, which the CPU has; in the order of all features, as where they are found."""
    machine("x86_64", BF16)
    monkeypatch.setenv("VNPU_MARCH", "x86-64-v4+avx512bf16+avx512vbmi")
    limited = cpu.cpu_flags(), cpu.cpu_identity()
    monkeypatch.delenv("VNPU_MARCH")
    machine("x86_64", f"{V4} avx512_bf16 avx512vbmi")
    assert (cpu.cpu_flags(), cpu.cpu_identity()) == limited


def test_features_behind_a_level_that_the_cpu_does_not_have(machine, monkeypatch):
    machine("x86_64", V4)
    monkeypatch.setenv("VNPU_MARCH", "x86-64-v3+avx512bf16")
    with pytest.raises(KnobError, match="this CPU has no avx512bf16, and what is built for it"):
        cpu.cpu_flags()


@pytest.mark.parametrize("march", ["x86-64-v4+sse9", "x86-64-v9+avx2"])
def test_an_unknown_level_is_passed_to_the_compiler(machine, monkeypatch, march):
    machine("x86_64", BF16)
    monkeypatch.setenv("VNPU_MARCH", march)
    assert cpu.cpu_flags() == (f"-march={march}",)


@pytest.mark.parametrize(
    ("kind", "words", "titles"),
    [
        ("x86_64", "fpu sse sse2", []),
        ("x86_64", V3, ["AVX2"]),
        ("x86_64", V4, ["AVX2", "AVX-512"]),
        ("x86_64", f"{V4} avx512_bf16", ["AVX2", "AVX-512", "AVX512-BF16"]),
        ("x86_64", BF16, ["AVX2", "AVX-512", "AVX512-BF16", "AMX-BF16"]),
        ("aarch64", "fp asimd", ["NEON"]),
        ("aarch64", "fp asimd bf16", ["NEON", "NEON with BF16"]),
        ("riscv64", V4, []),
    ],
)
def test_instruction_sets_of_a_cpu(machine, kind, words, titles):
    machine(kind, words)
    assert [each.title for each in cpu.instruction_sets()] == titles


def test_a_level_that_the_cpu_does_not_reach(machine, monkeypatch):
    machine("x86_64", V3)
    monkeypatch.setenv("VNPU_MARCH", "x86-64-v4")
    message = (
        "VNPU_MARCH='x86-64-v4' cannot be used: this CPU has no avx512f, avx512cd, avx512bw, avx512dq, "
        "avx512vl, and what is built for it would end with an illegal instruction; give one that the CPU "
        "has, such as x86-64-v3, or unset it for all that it has (native)"
    )
    for ask in (cpu.cpu_flags, cpu.cpu_identity, find_compiler):
        with pytest.raises(KnobError, match=re.escape(message)):
            ask()


def test_none_leaves_it_to_the_compiler(machine, monkeypatch):
    machine("x86_64", V4)
    monkeypatch.setenv("VNPU_MARCH", "none")
    assert cpu.cpu_flags() == ()
    assert cpu.cpu_identity().endswith("avx512vl")  # the compiler's default may be this very CPU


def test_the_key_of_an_object_holds_the_features(machine, tmp_path):
    """Not the model, the clock, or what nothing looks at."""
    (tmp_path / "x.cc").write_text("int x;\n")
    unit, found = TranslationUnit(tmp_path / "x.cc", folders=()), {}
    for name, words in {"v3": V3, "v4": V4, "v4 and more": f"{V4} sgx la57", "bf16": BF16}.items():
        machine("x86_64", words)
        found[name] = unit.key(find_compiler())
    assert found["v4"] == found["v4 and more"]
    assert len(set(found.values())) == 3


def run() -> None:
    Program.from_text(DOES_NOTHING).run(memoryview(b"\0" * 4).cast("f"))


def fake(path: Path, *refused: str) -> None:
    """A compiler that knows no flag of `refused` and writes down what it compiles."""
    real = shutil.which("c++")
    cases = "".join(
        f'case " $* " in *" {flag} "*) echo "cc1plus: error: unrecognized option {flag}" >&2; exit 1;; esac\n'
        for flag in refused
    )
    log = f'case " $* " in *" -c "*) echo "$*" >> {path}.log;; esac\n'
    path.write_text(f'#!/bin/sh\n{cases}{log}exec {real} "$@"\n')
    path.chmod(0o755)


@pytest.fixture
def tool(tmp_path, monkeypatch):
    monkeypatch.setenv("VNPU_CXX", str(tmp_path / "g++"))
    monkeypatch.setenv("VNPU_CACHE", "off")
    monkeypatch.setenv("VNPU_OPT", "0")
    return tmp_path / "g++"


@pytest.mark.skipif(not cpu.cpu_flags(), reason="nothing is known of this CPU")
def test_a_compiler_older_than_the_cpu_is_given_what_it_knows(tool):
    *others, newest = cpu.cpu_flags()
    fake(tool, newest)
    run()
    (line, *_) = Path(f"{tool}.log").read_text().splitlines()
    assert [flag for flag in line.split() if flag in cpu.cpu_flags()] == others
    assert newest in find_compiler().flags  # the key says what it is for, and the compiler's version the rest


def test_a_cpu_that_the_compiler_does_not_know(tool, monkeypatch):
    fake(tool)
    monkeypatch.setenv("VNPU_MARCH", "znver99")
    message = (
        rf"^VNPU_MARCH='znver99' cannot be used: {re.escape(str(tool))} does not know it \(.*znver99.*\); "
        r"give one word that its -march takes, or unset it for all that this CPU has \(native\)$"
    )
    with pytest.raises(KnobError, match=message):
        run()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names a CPU of x86")
@pytest.mark.skipif("amx-tile" in cpu.cpu_features(), reason="this CPU has all of that one")
def test_a_cpu_that_has_more_than_this_one(monkeypatch):
    monkeypatch.setenv("VNPU_MARCH", "sapphirerapids")
    message = (
        r"^VNPU_MARCH='sapphirerapids' cannot be used: this CPU has no .*amx-tile.*; give one that the CPU"
    )
    with pytest.raises(KnobError, match=message):
        run()


@pytest.mark.parametrize("macros", ["#define __AMX_TILE__ 1", "#define __AMXTILE__ 1\n#define __AMXBF16__ 1"])
def test_what_a_compiler_may_use_by_either_of_its_names(machine, monkeypatch, macros):
    machine("x86_64", V4)
    monkeypatch.setenv("VNPU_MARCH", "sapphirerapids")
    with pytest.raises(KnobError, match=r"this CPU has no amx-tile"):
        cpu.check_macros(macros)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for a CPU of x86")
@pytest.mark.parametrize("name", INSTALLED)
def test_a_compiler_with_flags_for_tiles_multiplies_by_them(machine, name):
    machine("x86_64", BF16)
    macros = subprocess.run(
        [name, *cpu.cpu_flags(), "-std=c++20", "-DVNPU_FAST", "-I", INCLUDE, "-E", "-dM", "-x", "c++", "-"],
        input='#include "vnpu/dots.h"\n',
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "#define VNPU_BF16_TILES 1" in macros.splitlines()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names a CPU of x86")
def test_a_cpu_that_has_less_is_as_good_as_a_level(monkeypatch):
    monkeypatch.setenv("VNPU_MARCH", "nehalem")
    assert cpu.cpu_flags() == ("-march=nehalem",)
    assert find_compiler().supported_flags(["-O1", "-march=nehalem"]) == ["-O1", "-march=nehalem"]


def test_a_compiler_that_cannot_say_is_left_to_fail_by_itself(tmp_path):
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho 'g++: fatal error: cannot execute cc1plus' >&2; exit 1\n")
    broken.chmod(0o755)
    assert compiler._macros([str(broken)], ["-mavx2"]) == (True, "")
    assert compiler._macros([str(tmp_path / "none")], ["-mavx2"]) == (True, "")
