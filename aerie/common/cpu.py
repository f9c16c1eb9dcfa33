"""What this CPU has, and the compiler's flags for it: read from the system, not guessed by a compiler.

A compiler's -march=native knows the CPUs that are older than itself: g++ 12 takes a Sapphire Rapids without
AMX's tiles for an Ice Lake, and drops AVX512-BF16 with them; clang prefers vectors of 256 bits on most. So
each feature that the C++ of programs, runtime and micro-kernels looks at is named to the compiler by itself,
and two CPUs with the same features share what is built, where `defines` says the same. Sources: Linux,
arch/x86/include/asm/cpufeatures.h and Documentation/arch/arm64/elf_hwcaps.rst; macOS, `sysctl hw.optional`;
the x86-64 psABI for its levels.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from aerie.common import knobs
from aerie.common.errors import KnobError

CPUINFO = Path("/proc/cpuinfo")

NATIVE, NONE = "native", "none"


@dataclass(frozen=True)
class Feature:
    """A set of instructions: its name to compilers, what systems call it, and the macro of a program that may
    use it."""

    name: str
    linux: str
    macos: str
    macro: str


def _x86(words: str) -> tuple[Feature, ...]:
    """`name` or `name:linux` or `name:linux:macos`; a system that has no word of its own spells it with _."""
    features = []
    for word in words.split():
        name, *others = word.split(":")
        plain = name.replace("-", "_").replace(".", "_")
        linux, macos = (*others, *[plain] * 2)[:2] if others else (plain, plain)
        features.append(Feature(name, linux, macos, f"__{plain.upper()}__"))
    return tuple(features)


_V2 = _x86("sse3:pni:sse3 ssse3:ssse3:supplementalsse3 sse4.1 sse4.2 popcnt")
_V3 = _x86("movbe lzcnt:abm bmi:bmi1:bmi1 bmi2 f16c avx:avx:avx1_0 avx2:avx2:avx2_0 fma")
_V4 = _x86("avx512f avx512cd avx512bw avx512dq avx512vl")
_MORE = _x86("avx512vbmi avx512vbmi2:avx512_vbmi2 avx512bf16:avx512_bf16 amx-tile amx-bf16")

X86 = (*_V2, *_V3, *_V4, *_MORE)
"""All features of x86-64 beyond its first level that any C++ of ours, or a loop that a compiler makes of it,
can gain from. The place to add one to."""

ARM = (
    Feature("fp16", "asimdhp", "arm.FEAT_FP16", "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC"),
    Feature("dotprod", "asimddp", "arm.FEAT_DotProd", "__ARM_FEATURE_DOTPROD"),
    Feature("i8mm", "i8mm", "arm.FEAT_I8MM", "__ARM_FEATURE_MATMUL_INT8"),
    Feature("bf16", "bf16", "arm.FEAT_BF16", "__ARM_FEATURE_BF16_VECTOR_ARITHMETIC"),
)
"""The same of AArch64 beyond Armv8.0, which has NEON; each of them is of Armv8.2 at least."""

LEVELS = {"x86-64": (), "x86-64-v2": _V2, "x86-64-v3": (*_V2, *_V3), "x86-64-v4": (*_V2, *_V3, *_V4)}
"""The levels of x86-64 that VNPU_MARCH limits programs to, with what they have; features behind one, as in
x86-64-v4+avx512bf16, are in it too."""

_AMX = {"amx-tile", "amx-bf16"}


@dataclass(frozen=True)
class InstructionSet:
    """What products, GEMVs and attention are made fast for, by its short name and the one that people read.

    needs: names of features. also: of such as belong to it where a CPU has them.
    """

    name: str
    title: str
    needs: tuple[str, ...]
    also: tuple[str, ...] = ()


def _names(features: Iterable[Feature]) -> tuple[str, ...]:
    return tuple(each.name for each in features)


_BYTES = ("avx512vbmi", "avx512vbmi2")

X86_SETS = (
    InstructionSet("avx2", "AVX2", _names(LEVELS["x86-64-v3"])),
    InstructionSet("avx512", "AVX-512", _names(LEVELS["x86-64-v4"])),
    InstructionSet("avx512_bf16", "AVX512-BF16", (*_names(LEVELS["x86-64-v4"]), "avx512bf16"), _BYTES),
    InstructionSet("amx", "AMX-BF16", (*_names(LEVELS["x86-64-v4"]), "avx512bf16", *sorted(_AMX)), _BYTES),
)
ARM_SETS = (
    InstructionSet("neon", "NEON", ()),
    InstructionSet("neon_bf16", "NEON with BF16", ("bf16",), ("fp16", "dotprod", "i8mm")),
)
"""Each holds the ones before it."""


def instruction_sets() -> tuple[InstructionSet, ...]:
    """Those that this CPU has, the best one last."""
    sets = {X86: X86_SETS, ARM: ARM_SETS}.get(table(), ())
    return tuple(each for each in sets if {*each.needs} <= {*features()})


def table() -> tuple[Feature, ...]:
    """The features that a machine of this type may have; none of a type that we do not know."""
    types = {"x86_64": X86, "AMD64": X86, "aarch64": ARM, "arm64": ARM}
    return types.get(platform.machine(), ())


@functools.cache
def features() -> tuple[str, ...]:
    """The names of the features that this CPU has and the system lets programs use, in the order of `table`.

    None where the system does not say: then the compiler's default holds.
    """
    on_mac = sys.platform == "darwin"
    words = _of_sysctl() if on_mac else _of_cpuinfo()
    found = tuple(each.name for each in table() if (each.macos if on_mac else each.linux) in words)
    if _AMX.isdisjoint(found) or _tiles_granted():
        return found
    return tuple(name for name in found if name not in _AMX)


def _of_cpuinfo(*names: str) -> set[str]:
    """The words of the first CPU behind one of these names; by default `flags` of x86, `Features` of ARM."""
    try:
        with CPUINFO.open(errors="replace") as lines:
            found = next((line for line in lines if line.startswith(names or ("flags", "Features"))), "")
    except OSError:
        return set()
    return set(found.partition(":")[2].split())


def _of_sysctl() -> set[str]:
    """The names below hw.optional with the value 1."""
    try:
        said = subprocess.run(
            ["sysctl", "hw.optional"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return set()
    pairs = (line.partition(": ") for line in said.splitlines())
    return {name.removeprefix("hw.optional.") for name, _, value in pairs if value.strip() == "1"}


def _tiles_granted() -> bool:
    """Whether Linux lets this process use AMX's tiles: arch_prctl(ARCH_REQ_XCOMP_PERM) asks for all its
    threads, once for ever (Documentation/arch/x86/xstate.rst).

    Where they are denied, programs are built without, for their sums have other bits with tiles. A program
    that was built with tiles asks again in its own process (include/vnpu/tiles.h).
    """
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    failed: int = ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data)
    return failed == 0


@functools.cache
def defines() -> tuple[str, ...]:
    """What C++ is told of this CPU beside its features: VNPU_L2_ASKS where a core has more lines of memory
    under way in L2 than in L1 (include/vnpu/ahead.h); VNPU_SLOW_PAIRS where products of pairs of bf16 take
    longer than each by itself, so that they are summed in the order of those (include/vnpu/dots.h).

    Intel's have 16 fill buffers in L1 and 48 entries in L2's queue (its optimization reference manual, Golden
    Cove). Pairs are half as fast there as f32: 92 and 185 GFLOP/s on a core of Emerald Rapids.
    """
    return ("-DVNPU_L2_ASKS", "-DVNPU_SLOW_PAIRS") if "GenuineIntel" in _of_cpuinfo("vendor_id") else ()


def flags() -> tuple[str, ...]:
    """The compiler's flags for the CPU that programs are built for; a compiler may not know each yet.

    Raises KnobError for a level in VNPU_MARCH that this CPU does not reach.
    """
    march, chosen = knobs.MARCH.get(), _chosen()
    if march == NONE or not (named() or chosen):
        return ()
    if named():
        return (f"-march={march}",)
    if table() == ARM:
        return ("-march=armv8.2-a" + "".join(f"+{name}" for name in chosen),)
    return tuple(f"-m{name}" for name in chosen)


def identity() -> str:
    """The type of the machine and the features that programs may use: a part of the key of all that is built.

    Raises KnobError for a level in VNPU_MARCH that this CPU does not reach.
    """
    return " ".join((platform.machine(), *(_chosen() or [platform.processor()])))


def named() -> str:
    """The CPU that VNPU_MARCH names in the compiler's own words; empty where it is none of those."""
    march = knobs.MARCH.get()
    return "" if march in (NATIVE, NONE) or _level(march) is not None else march


def check_macros(macros: str) -> None:
    """Raises KnobError where this CPU lacks what a compiler may use for the one that VNPU_MARCH names.

    macros: what it defines then, as `-dM -E` prints it. clang 14 writes __AMXTILE__ for __AMX_TILE__.
    """
    defined = {words[1].replace("_", "") for words in map(str.split, macros.splitlines()) if len(words) > 1}
    _check(each for each in table() if each.macro.replace("_", "") in defined)


def _level(march: str) -> tuple[Feature, ...] | None:
    """The features of a level of x86-64 with those behind it, in the order of X86; None for other words."""
    level, *more = march.split("+")
    if table() != X86 or level not in LEVELS or not {*more} <= {*_names(X86)}:
        return None
    return tuple(each for each in X86 if each in LEVELS[level] or each.name in more)


def _chosen() -> tuple[str, ...]:
    """The names of the features that programs may use: all of them, or a level's."""
    level = _level(knobs.MARCH.get())
    if level is None:
        return features()
    _check(level)
    return _names(level)


def _check(wanted: Iterable[Feature]) -> None:
    missing = [each.name for each in wanted if each.name not in features()]
    if missing and features():
        levels = LEVELS if table() == X86 else {}
        reached = [name for name, level in levels.items() if {*_names(level)} <= {*features()}]
        raise KnobError(
            f"{knobs.MARCH.name}='{knobs.MARCH.get()}' cannot be used: this CPU has no {', '.join(missing)}, "
            "and what is built for it would end with an illegal instruction; give one that the CPU has, such "
            f"as {(reached or [NONE])[-1]}, or unset it for all that it has ({NATIVE})"
        )
