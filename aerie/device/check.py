"""The entry of the static check: runs every rule on the program and on each array configuration."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from aerie.air_dialect import AirParseError, parse
from aerie.device.errors import ParseError
from aerie.device.npu2 import NPU2, DeviceModel
from aerie.device.report import CheckReport
from aerie.device.rules import CONFIGURATION_RULES, PROGRAM_RULES
from aerie.device.scopes import CheckedProgram, CheckOptions


def check(
    module_or_text: ModuleOp | str,
    device: DeviceModel = NPU2,
    *,
    omit_ping_pong: str = "",
    stack_bytes: int | None = None,
    kernel_dirs: Sequence[str | PathLike[str]] = (),
    bf16_emulation: bool = False,
    omit_auto_broadcast: bool = False,
    loop_tiling: Sequence[int] | None = None,
    filename: str = "<string>",
) -> CheckReport:
    """Count what a program takes of `device`, and find what cannot be built.

    omit_ping_pong: what aircc does not double-buffer (`--omit-ping-pong-transform`): `L1`, `L2`, `all`, or
    nothing. stack_bytes: stack of a core (aircc `--stack-size`), None for the
    device's default. kernel_dirs: folders with the sources of external kernels, looked at before kernels_cc.
    bf16_emulation, omit_auto_broadcast: whether aircc gets `--bf16-emulation`, `--omit-auto-broadcast`.
    loop_tiling: the values of `--air-runtime-loop-tiling-sizes`, empty for none; None where it is not known
    how the program will be compiled. filename names a text in messages. Raises ParseError for text that does
    not parse.
    """
    module = _parsed(module_or_text, filename) if isinstance(module_or_text, str) else module_or_text
    folders = tuple(map(Path, kernel_dirs))
    tiling = None if loop_tiling is None else tuple(loop_tiling)
    options = CheckOptions(omit_ping_pong, stack_bytes, folders, bf16_emulation, omit_auto_broadcast, tiling)
    program = CheckedProgram(module, device, options)
    findings = [finding for rule in PROGRAM_RULES for finding in rule(program)]
    for scope in program.scopes:
        findings += [finding for rule in CONFIGURATION_RULES for finding in rule(scope)]
    return CheckReport(device, tuple(findings))


def _parsed(text: str, filename: str) -> ModuleOp:
    try:
        return parse(text, filename, check_loops=True)
    except AirParseError as error:
        raise ParseError(str(error)) from error
