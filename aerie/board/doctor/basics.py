"""What every run needs, with or without an NPU: Python, a C++ compiler, memory, disk, a checkpoint."""

from __future__ import annotations

import platform
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from aerie.board.doctor.machine import Finding, Machine, Status
from aerie.cli.cache_command import cache_sections, format_bytes
from aerie.cli.checkpoints import DEMO, cached_checkpoint, find_checkpoint, hub_id, login_advice
from aerie.common import cpu, folders
from aerie.common.compiler import known_compilers
from aerie.common.errors import ProgramError, UserError
from aerie.engine.compiling import blocks_of_variants, check_shape
from aerie.engine.config import ModelConfig, load_config
from aerie.engine.footprint import footprint, needs_of_prompt
from aerie.engine.weights import Weights
from aerie.runtime.memory import GIB, available_bytes, size
from aerie.runtime.npu import versions

MEMORY_BYTES = 4 * GIB
"""For a C++ compiler per CPU and the tests' models; a checkpoint's own needs are its own check."""
DISK_BYTES = 5 * GIB
"""For upstream's wheels, which unpack to several GiB, and compiled programs (25 MiB for the demo model)."""
OLDEST_CLANG = (14,)
"""The first clang with all of C++20 that generated code uses; g++ has its own number in versions.py."""


def python(_: Machine, version: tuple[int, ...] = tuple(sys.version_info[:3])) -> Finding:
    """The interpreter that runs this; upstream's wheels ask for more than the rest of the project."""
    found, wheels = ".".join(map(str, version)), versions.PYTHON.version
    oldest, newest = versions.OLDEST_WHEEL_PYTHON, versions.NEWEST_WHEEL_PYTHON
    wanted = f"{'.'.join(map(str, versions.OLDEST_PYTHON))} or newer; for upstream's wheels {wheels}"
    fix = "make distclean setup PYTHON=python3.12"
    if version < versions.OLDEST_PYTHON:
        return Finding(Status.FAILED, found, wanted, fix)
    if not oldest <= version[:2] <= newest:
        return Finding(Status.WARNING, f"{found}, for which upstream builds no wheels", wanted, fix)
    return Finding(Status.OK, found, wanted)


def system(machine: Machine, platform_name: str = sys.platform, libc: str | None = None) -> Finding:
    """The operating system: the kernel decides about the driver, glibc about upstream's wheels."""
    wanted = f"Linux {versions.KERNEL.version} or newer and glibc {versions.GLIBC.version} for the NPU"
    release = machine.read("/proc/sys/kernel/osrelease") or platform.release()
    glibc = libc if libc is not None else " ".join(platform.libc_ver())
    found = f"{_distribution(machine)}, Linux {release}, {glibc or 'no glibc'}"
    if not platform_name.startswith("linux"):
        fix = "run it on Linux; docs/how-to/install.md says what is known of WSL and Windows"
        return Finding(Status.FAILED, f"{platform_name} {release}", wanted, fix)
    old_kernel = versions.numbers(release) < versions.numbers(versions.KERNEL.version)
    old_glibc = versions.numbers(glibc.removeprefix("glibc ")) < versions.numbers(versions.GLIBC.version)
    if old_kernel or old_glibc:
        fix = f"for the NPU: Ubuntu {versions.UBUNTU.version} with its newest kernel (docs/how-to/install.md)"
        return Finding(Status.WARNING, found, wanted, fix)
    return Finding(Status.OK, found, wanted)


def _distribution(machine: Machine) -> str:
    named = re.search(r'^PRETTY_NAME="?([^"\n]+)', machine.read("/etc/os-release") or "", re.MULTILINE)
    return named.group(1) if named else "unknown distribution"


def instructions(_: Machine) -> Finding:
    """The CPU's instruction sets, which decide how fast the virtual NPU is."""
    wanted = "AVX2 or NEON, better more; the virtual NPU is as fast as the last of them"
    found = ", ".join(each.title for each in cpu.instruction_sets())
    if found:
        return Finding(Status.OK, found, wanted)
    fix = "nothing is wrong, but a CPU with AVX2 or NEON is many times faster"
    return Finding(Status.WARNING, f"none that is known, on {platform.machine()}", wanted, fix)


def compiler(machine: Machine) -> Finding:
    """The C++ compiler of the virtual NPU."""
    wanted = f"g++ {versions.GCC.version} or newer, or clang {OLDEST_CLANG[0]} or newer"
    try:
        (found, *_) = known_compilers()
    except ProgramError as error:
        return Finding(Status.FAILED, "none that can be used", wanted, str(error))
    if not found.command:
        said = f"none; what {found.version} compiled runs, and nothing else can be compiled"
        return Finding(Status.WARNING, said, wanted, "install one (Debian, Ubuntu: apt install g++)")
    answer, path = machine.ask([*found.command, "--version"]), shlex.join(found.command)
    fix = "install a newer one (Debian, Ubuntu: apt install g++), or name it with VNPU_CXX"
    if answer.trouble:
        return Finding(Status.FAILED, f"{path}, but {answer.trouble}", wanted, fix)
    number = re.search(r"(\d+)\.\d+(\.\d+)?", answer.first_line)
    if number is None:
        return Finding(Status.UNKNOWN, f"{path}, which says: {answer.first_line}", wanted, fix)
    oldest = OLDEST_CLANG if "clang" in answer.first_line else versions.numbers(versions.GCC.version)
    status = Status.OK if (int(number.group(1)),) >= oldest else Status.FAILED
    return Finding(status, answer.first_line, wanted, "" if status is Status.OK else fix)


def memory(machine: Machine) -> Finding:
    """Memory that could be had now, without pushing others out."""
    wanted = f"{size(MEMORY_BYTES)} free"
    available = available_bytes(machine.root)
    if available is None:
        return Finding(Status.UNKNOWN, "/proc/meminfo does not say", wanted)
    found = f"{size(available)} free"
    if available < MEMORY_BYTES:
        return Finding(Status.WARNING, found, wanted, "close other programs; compiling may be slow or fail")
    return Finding(Status.OK, found, wanted)


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def disk(machine: Machine, free_bytes: Callable[[Path], int] = _free) -> Finding:
    """Room where compiled programs are kept."""
    folder = _existing(machine.cache_dir)
    wanted = f"{size(DISK_BYTES)} free"
    try:
        free = free_bytes(folder)
    except OSError as error:
        return Finding(Status.UNKNOWN, f"{folder} cannot be asked ({error.strerror})", wanted)
    found = f"{size(free)} free at {folder}"
    if free < DISK_BYTES:
        return Finding(
            Status.WARNING, found, wanted, "make room, or name a folder on another disk with AERIE_CACHE"
        )
    return Finding(Status.OK, found, wanted)


def cache(machine: Machine) -> Finding:
    """The folder of all that is kept: which it is, what lies in it, and whether more can."""
    folder, found = machine.cache_dir, cache_sections(machine.cache_dir)
    held = f"{folder}, {format_bytes(sum(part.nbytes for part in found))} of ours"
    wanted = "a folder that can be written, for compiled programs"
    try:
        folders.check_private(folder)
    except ProgramError as error:
        return Finding(Status.FAILED, str(error), wanted, folders.ADVICE)
    if folders.is_usable(folder):
        return Finding(Status.OK, f"{held}, can be written", wanted)
    # What is compiled already runs from a folder that cannot be written.
    status = Status.WARNING if any(part.files for part in found) else Status.FAILED
    return Finding(status, f"{held}, cannot be written", wanted, folders.ADVICE)


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    return next((place for place in (folder, *folder.parents) if place.is_dir()), folder)


WANTED = "a checkpoint that is supported and fits in memory"
USUAL_PROMPT = 128
"""Tokens of the prompt for which memory is told; a longer one takes more."""


def checkpoint(machine: Machine) -> Finding:
    """Config and tensors of the checkpoint. Nothing is fetched: an id is looked for in the local cache."""
    try:
        folder = _folder(machine.model)
        if folder is None:
            fix = f"the first run fetches it; for a gated model, first {login_advice()}"
            return Finding(Status.WARNING, f"{machine.model} is not on this machine yet", WANTED, fix)
        config = load_config(folder)
        Weights(folder, config)  # which checks every tensor
        return _fits(machine, config)
    except UserError as error:
        return Finding(Status.FAILED, str(error), WANTED, "name another with MODEL=... (--model)")


def _folder(model: str) -> Path | None:
    """The checkpoint's folder; None for an id of the hub that the local cache lacks."""
    name = hub_id(model)
    if model == DEMO or name is None or Path(model).expanduser().exists():
        return find_checkpoint(model)
    return cached_checkpoint(name)


def _fits(machine: Machine, config: ModelConfig) -> Finding:
    check_shape(config)
    tokens = min(USUAL_PROMPT, config.context)
    needs = needs_of_prompt(config, blocks_of_variants(config), tokens)
    needed, available = footprint(config, needs), available_bytes(machine.root)
    layers = config.num_hidden_layers
    found = (
        f"{machine.model}, {layers} layers, {size(needed.total)} of memory for a prompt of {tokens} tokens"
    )
    if available is not None and needed.total > available:
        fix = f"close other programs, or take a smaller model: {size(available)} are free"
        return Finding(Status.FAILED, f"{found} ({needed})", WANTED, fix)
    return Finding(Status.OK, found, WANTED)
