"""Checks of what every run needs, with or without an NPU: Python, a C++ compiler, memory, disk, a
checkpoint.
"""

from __future__ import annotations

import platform
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from aerie.board.doctor.machine import CheckResult, CheckStatus, ExaminedMachine
from aerie.board.linux import distribution_name
from aerie.cli.cache_command import cache_sections
from aerie.cli.checkpoints import checkpoint_here
from aerie.cli.hub import login_advice
from aerie.common import cpu, folders
from aerie.common.compiler import known_compilers
from aerie.common.errors import ProgramError, UserError
from aerie.engine.config import ModelConfig, load_config
from aerie.engine.gguf.model_files import find_gguf
from aerie.engine.memory_estimate import footprint, needs_for_prompt
from aerie.engine.program_library import check_shape, variant_set_for
from aerie.engine.weights import Weights
from aerie.runtime.memory import GIB, available_bytes, format_bytes, format_file_bytes
from aerie.runtime.npu import versions

MEMORY_BYTES = 4 * GIB
"""For one C++ compiler per CPU and the tests' models. The checkpoint's own needs are another check."""
DISK_BYTES = 5 * GIB
"""For upstream's wheels, which unpack to several GiB, and compiled programs (25 MiB for the demo model)."""
OLDEST_CLANG = (14,)
"""The first clang with all of C++20 that generated code uses. The minimum of g++ is in versions.py."""


def python(_: ExaminedMachine, version: tuple[int, ...] = tuple(sys.version_info[:3])) -> CheckResult:
    """The interpreter that runs this. Upstream's wheels need a newer one than the rest of the project."""
    actual, wheels = ".".join(map(str, version)), versions.PYTHON.version
    oldest, newest = versions.OLDEST_WHEEL_PYTHON, versions.NEWEST_WHEEL_PYTHON
    required = f"{'.'.join(map(str, versions.MIN_PYTHON))} or newer; for upstream's wheels {wheels}"
    fix = "make distclean setup PYTHON=python3.12"
    if version < versions.MIN_PYTHON:
        return CheckResult(CheckStatus.FAILED, actual, required, fix)
    if not oldest <= version[:2] <= newest:
        return CheckResult(
            CheckStatus.WARNING, f"{actual}, for which upstream builds no wheels", required, fix
        )
    return CheckResult(CheckStatus.OK, actual, required)


def system(
    machine: ExaminedMachine, platform_name: str = sys.platform, libc: str | None = None
) -> CheckResult:
    """The operating system: the driver depends on the kernel, upstream's wheels on glibc."""
    required = f"Linux {versions.KERNEL.version} or newer and glibc {versions.GLIBC.version} for the NPU"
    release = machine.read("/proc/sys/kernel/osrelease") or platform.release()
    glibc = libc if libc is not None else " ".join(platform.libc_ver())
    actual = f"{distribution_name(machine.root)}, Linux {release}, {glibc or 'no glibc'}"
    if not platform_name.startswith("linux"):
        fix = "run it on Linux; docs/how-to/install.md has notes on WSL and Windows"
        return CheckResult(CheckStatus.FAILED, f"{platform_name} {release}", required, fix)
    old_kernel = versions.version_numbers(release) < versions.version_numbers(versions.KERNEL.version)
    old_glibc = versions.version_numbers(glibc.removeprefix("glibc ")) < versions.version_numbers(
        versions.GLIBC.version
    )
    if old_kernel or old_glibc:
        fix = f"for the NPU: Ubuntu {versions.UBUNTU.version} with its newest kernel (docs/how-to/install.md)"
        return CheckResult(CheckStatus.WARNING, actual, required, fix)
    return CheckResult(CheckStatus.OK, actual, required)


def instructions(_: ExaminedMachine) -> CheckResult:
    """The CPU's instruction sets, which decide how fast the virtual NPU is."""
    required = "AVX2 or NEON, better more; the virtual NPU is as fast as the last of them"
    actual = ", ".join(each.title for each in cpu.instruction_sets())
    if actual:
        return CheckResult(CheckStatus.OK, actual, required)
    fix = "nothing is wrong, but a CPU with AVX2 or NEON is many times faster"
    return CheckResult(CheckStatus.WARNING, f"none known, on {platform.machine()}", required, fix)


def compiler(machine: ExaminedMachine) -> CheckResult:
    """The C++ compiler of the virtual NPU."""
    required = f"g++ {versions.GCC.version} or newer, or clang {OLDEST_CLANG[0]} or newer"
    try:
        (known_compiler, *_) = known_compilers()
    except ProgramError as error:
        return CheckResult(CheckStatus.FAILED, "no usable compiler", required, str(error))
    if not known_compiler.command:
        actual = f"none; what {known_compiler.version} compiled runs, and nothing else can be compiled"
        return CheckResult(
            CheckStatus.WARNING, actual, required, "install one (Debian, Ubuntu: apt install g++)"
        )
    answer = machine.run_tool([*known_compiler.command, "--version"])
    path = shlex.join(known_compiler.command)
    fix = "install a newer one (Debian, Ubuntu: apt install g++), or name it with VNPU_CXX"
    if answer.problem:
        return CheckResult(CheckStatus.FAILED, f"{path}, but {answer.problem}", required, fix)
    number = re.search(r"(\d+)\.\d+(\.\d+)?", answer.first_line)
    if number is None:
        return CheckResult(CheckStatus.UNKNOWN, f"{path}, which says: {answer.first_line}", required, fix)
    oldest = OLDEST_CLANG if "clang" in answer.first_line else versions.version_numbers(versions.GCC.version)
    status = CheckStatus.OK if (int(number.group(1)),) >= oldest else CheckStatus.FAILED
    return CheckResult(status, answer.first_line, required, "" if status is CheckStatus.OK else fix)


def memory(machine: ExaminedMachine) -> CheckResult:
    """Memory that is available now without swapping."""
    required = f"{format_bytes(MEMORY_BYTES)} free"
    available = available_bytes(machine.root)
    if available is None:
        return CheckResult(CheckStatus.UNKNOWN, "unknown: /proc/meminfo has no usable number", required)
    actual = f"{format_bytes(available)} free"
    if available < MEMORY_BYTES:
        return CheckResult(
            CheckStatus.WARNING, actual, required, "close other programs; compiling may be slow or fail"
        )
    return CheckResult(CheckStatus.OK, actual, required)


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def disk(machine: ExaminedMachine, free_bytes: Callable[[Path], int] = _free) -> CheckResult:
    """Free space in the folder of compiled programs."""
    folder = _existing(machine.cache_dir)
    required = f"{format_bytes(DISK_BYTES)} free"
    try:
        free = free_bytes(folder)
    except OSError as error:
        return CheckResult(CheckStatus.UNKNOWN, f"{folder} cannot be asked ({error.strerror})", required)
    actual = f"{format_bytes(free)} free at {folder}"
    if free < DISK_BYTES:
        return CheckResult(
            CheckStatus.WARNING,
            actual,
            required,
            "make room, or name a folder on another disk with AERIE_CACHE",
        )
    return CheckResult(CheckStatus.OK, actual, required)


def cache(machine: ExaminedMachine) -> CheckResult:
    """The cache folder: its path, its content, and whether it can be written."""
    folder, entries = machine.cache_dir, cache_sections(machine.cache_dir)
    actual = f"{folder}, {format_file_bytes(sum(part.nbytes for part in entries))} of ours"
    required = "a folder that can be written, for compiled programs"
    try:
        folders.check_private(folder)
    except ProgramError as error:
        return CheckResult(CheckStatus.FAILED, str(error), required, folders.ADVICE)
    if folders.is_usable(folder):
        return CheckResult(CheckStatus.OK, f"{actual}, can be written", required)
    # What is compiled already runs from a folder that cannot be written.
    status = CheckStatus.WARNING if any(part.files for part in entries) else CheckStatus.FAILED
    return CheckResult(status, f"{actual}, cannot be written", required, folders.ADVICE)


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    return next((place for place in (folder, *folder.parents) if place.is_dir()), folder)


WANTED = "a checkpoint that is supported and fits in memory"
USUAL_PROMPT = 128
"""Prompt length in tokens for which the memory need is given. A longer prompt needs more."""


def checkpoint(machine: ExaminedMachine) -> CheckResult:
    """Config and tensors of the checkpoint. Nothing is downloaded: an id is looked up in the local cache."""
    try:
        folder = checkpoint_here(machine.model)
        if folder is None:
            fix = f"the first run fetches it; for a gated model, first {login_advice()}"
            return CheckResult(
                CheckStatus.WARNING, f"{machine.model} is not on this machine yet", WANTED, fix
            )
        config = load_config(folder)
        Weights(folder, config)  # which checks every tensor
        model = find_gguf(folder)
        return _fits(machine, config, [*model.stored_bytes] if model else [])
    except UserError as error:
        return CheckResult(CheckStatus.FAILED, str(error), WANTED, "name another with MODEL=... (--model)")


def _fits(machine: ExaminedMachine, config: ModelConfig, types: Sequence[str]) -> CheckResult:
    """types: of the tensors, where it is a GGUF file."""
    check_shape(config)
    tokens = min(USUAL_PROMPT, config.context)
    needs = needs_for_prompt(config, variant_set_for(config), tokens)
    needed, available = footprint(config, needs), available_bytes(machine.root)
    parts = [machine.model, *types, f"{config.num_hidden_layers} layers"]
    actual = f"{', '.join(parts)}, {format_bytes(needed.total)} of memory for a prompt of {tokens} tokens"
    if available is not None and needed.total > available:
        fix = f"close other programs, or take a smaller model: {format_bytes(available)} are free"
        return CheckResult(CheckStatus.FAILED, f"{actual} ({needed})", WANTED, fix)
    return CheckResult(CheckStatus.OK, actual, WANTED)
