"""The features of this CPU, and the compiler's flags for them: read from the system, not from a compiler.

A compiler's -march=native knows only CPUs older than itself: g++ 12 takes a Sapphire Rapids without AMX's
tiles for an Ice Lake, and drops AVX512-BF16 with them; clang prefers vectors of 256 bits on most. So each
feature that the C++ of programs, runtime and micro-kernels tests is passed to the compiler by itself. Two
CPUs with the same features and `cpu_defines` share artifacts. Sources: Linux,
arch/x86/include/asm/cpufeatures.h and Documentation/arch/arm64/elf_hwcaps.rst; macOS, `sysctl hw.optional`;
the x86-64 psABI for its levels.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from aerie.common import knobs
from aerie.common.errors import KnobError

CPUINFO = Path("/proc/cpuinfo")
L1_SIZE = Path("/sys/devices/system/cpu/cpu0/cache/index0/size")
"""What Linux says of the size of the data cache nearest to a core, such as `32K`."""
SMALL_L1_KIB = 32

NATIVE, NONE = "native", "none"


@dataclass(frozen=True)
class CpuFeature:
    """A set of instructions: its name to compilers, to Linux and to macOS, and the macro that it defines."""

    name: str
    linux: str
    macos: str
    macro: str


def _x86(words: str) -> tuple[CpuFeature, ...]:
    """Features from `name`, `name:linux` or `name:linux:macos`; the default is the name with _."""
    features = []
    for word in words.split():
        name, *others = word.split(":")
        plain = name.replace("-", "_").replace(".", "_")
        linux, macos = (*others, *[plain] * 2)[:2] if others else (plain, plain)
        features.append(CpuFeature(name, linux, macos, f"__{plain.upper()}__"))
    return tuple(features)


_V2 = _x86("sse3:pni:sse3 ssse3:ssse3:supplementalsse3 sse4.1 sse4.2 popcnt")
_V3 = _x86("movbe lzcnt:abm bmi:bmi1:bmi1 bmi2 f16c avx:avx:avx1_0 avx2:avx2:avx2_0 fma")
_V4 = _x86("avx512f avx512cd avx512bw avx512dq avx512vl")
_MORE = _x86("avx512vbmi avx512vbmi2:avx512_vbmi2 avx512bf16:avx512_bf16 amx-tile amx-bf16")

X86 = (*_V2, *_V3, *_V4, *_MORE)
"""All features of x86-64 beyond its first level that any C++ of ours, or a loop that a compiler makes of it,
can gain from. The place to add one to."""

ARM = (
    CpuFeature("fp16", "asimdhp", "arm.FEAT_FP16", "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC"),
    CpuFeature("dotprod", "asimddp", "arm.FEAT_DotProd", "__ARM_FEATURE_DOTPROD"),
    CpuFeature("i8mm", "i8mm", "arm.FEAT_I8MM", "__ARM_FEATURE_MATMUL_INT8"),
    CpuFeature("bf16", "bf16", "arm.FEAT_BF16", "__ARM_FEATURE_BF16_VECTOR_ARITHMETIC"),
)
"""All features of AArch64 beyond Armv8.0 (which has NEON) that our C++ uses; each needs Armv8.2."""

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
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()


def _names(features: Iterable[CpuFeature]) -> tuple[str, ...]:
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
"""Each set contains the ones before it."""


def instruction_sets() -> tuple[InstructionSet, ...]:
    """The instruction sets of this CPU, the best one last."""
    sets = {X86: X86_SETS, ARM: ARM_SETS}.get(feature_table(), ())
    return tuple(each for each in sets if {*each.required} <= {*cpu_features()})


def feature_table() -> tuple[CpuFeature, ...]:
    """The features that a machine of this type may have; () for an unknown type."""
    types = {"x86_64": X86, "AMD64": X86, "aarch64": ARM, "arm64": ARM}
    return types.get(platform.machine(), ())


@functools.cache
def cpu_features() -> tuple[str, ...]:
    """Names of the features that this CPU has and the system lets programs use, in `feature_table`'s order.

    Empty if the system does not list features: then the compiler's default holds.
    """
    on_mac = sys.platform == "darwin"
    words = _sysctl_names() if on_mac else _cpuinfo_words()
    found = tuple(each.name for each in feature_table() if (each.macos if on_mac else each.linux) in words)
    if _AMX.isdisjoint(found) or _tiles_granted():
        return found
    return tuple(name for name in found if name not in _AMX)


def _cpuinfo_words(*names: str) -> set[str]:
    """Words of the first CPU after one of these names; default: `flags` (x86) and `Features` (ARM)."""
    try:
        with CPUINFO.open(errors="replace") as lines:
            line_of_cpu = next(
                (line for line in lines if line.startswith(names or ("flags", "Features"))), ""
            )
    except OSError:
        return set()
    return set(line_of_cpu.partition(":")[2].split())


def _sysctl_names() -> set[str]:
    """The names below hw.optional with the value 1."""
    try:
        output = subprocess.run(
            ["sysctl", "hw.optional"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return set()
    pairs = (line.partition(": ") for line in output.splitlines())
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
def cpu_defines() -> tuple[str, ...]:
    """Macros for C++ beside the CPU's features.

    VNPU_L2_PREFETCH: a core has more outstanding lines of memory in L2 than in L1 (include/vnpu/prefetch.h).
    VNPU_SMALL_L1: L1 has SMALL_L1_KIB or less: too little for what is in use and prefetched (the same).
    VNPU_SLOW_PAIRS: products of pairs of bf16 take longer than single products, so sums use the order of the
    single ones (include/vnpu/dots.h).

    Intel's have 16 fill buffers in L1 and 48 entries in L2's queue (its optimization reference manual, Golden
    Cove). Pairs are half as fast there as f32: 92 and 185 GFLOP/s on a core of Emerald Rapids.
    """
    is_intel = "GenuineIntel" in _cpuinfo_words("vendor_id")
    vendor = ("-DVNPU_L2_PREFETCH", "-DVNPU_SLOW_PAIRS") if is_intel else ()
    return (*vendor, *(("-DVNPU_SMALL_L1",) if _has_small_l1() else ()))


def _has_small_l1() -> bool:
    """Whether L1 is known to be small."""
    try:
        size = re.fullmatch(r"(\d+)K\s*", L1_SIZE.read_text(errors="replace"))
    except OSError:
        return False
    return size is not None and int(size[1]) <= SMALL_L1_KIB


def cpu_flags() -> tuple[str, ...]:
    """The compiler's flags for the CPU that programs are built for; an old compiler may not know all.

    Raises KnobError for a level in VNPU_MARCH that this CPU does not reach.
    """
    march, chosen = knobs.MARCH.get(), _chosen_features()
    if march == NONE or not (named_cpu() or chosen):
        return ()
    if named_cpu():
        return (f"-march={march}",)
    if feature_table() == ARM:
        return ("-march=armv8.2-a" + "".join(f"+{name}" for name in chosen),)
    return tuple(f"-m{name}" for name in chosen)


def cpu_identity() -> str:
    """The type of the machine and the features that programs may use: part of the key of every artifact.

    Raises KnobError for a level in VNPU_MARCH that this CPU does not reach.
    """
    return " ".join((platform.machine(), *(_chosen_features() or [platform.processor()])))


def named_cpu() -> str:
    """The CPU in VNPU_MARCH if it is a compiler's -march name, else empty."""
    march = knobs.MARCH.get()
    return "" if march in (NATIVE, NONE) or _level(march) is not None else march


def check_macros(macros: str) -> None:
    """Raises KnobError if this CPU lacks a feature that the compiler uses for the CPU in VNPU_MARCH.

    macros: the output of `-dM -E` for that CPU. clang 14 writes __AMXTILE__ for __AMX_TILE__.
    """
    defined = {words[1].replace("_", "") for words in map(str.split, macros.splitlines()) if len(words) > 1}
    _check_features(each for each in feature_table() if each.macro.replace("_", "") in defined)


def _level(march: str) -> tuple[CpuFeature, ...] | None:
    """The features of a level such as x86-64-v4+amx-bf16, in the order of X86; None for other values."""
    level, *more = march.split("+")
    if feature_table() != X86 or level not in LEVELS or not {*more} <= {*_names(X86)}:
        return None
    return tuple(each for each in X86 if each in LEVELS[level] or each.name in more)


def _chosen_features() -> tuple[str, ...]:
    """The names of the features that programs may use: all of them, or a level's."""
    level = _level(knobs.MARCH.get())
    if level is None:
        return cpu_features()
    _check_features(level)
    return _names(level)


def _check_features(required: Iterable[CpuFeature]) -> None:
    missing = [each.name for each in required if each.name not in cpu_features()]
    if missing and cpu_features():
        levels = LEVELS if feature_table() == X86 else {}
        reached = [name for name, level in levels.items() if {*_names(level)} <= {*cpu_features()}]
        raise KnobError(
            f"{knobs.MARCH.name}='{knobs.MARCH.get()}' cannot be used: this CPU has no {', '.join(missing)}, "
            "and what is built for it would end with an illegal instruction; give one that the CPU has, such "
            f"as {(reached or [NONE])[-1]}, or unset it for all that it has ({NATIVE})"
        )
