"""The command `aircc`: takes mlir-air's command line, and builds for the virtual NPU.

The output, an .elf or an .xclbin, is the shared object that the virtual NPU's pyxrt loads. Checks are on; the
environment variable AERIE_AIR_CHECKS=0 leaves them out.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from aerie.common.errors import ProgramError
from aerie.virtual_npu.air_run.knobs import CHECKS

OUTPUTS = ("o", "elf-name", "pdi-name")
WITH_VALUE = {
    *OUTPUTS, "i", "tmpdir", "device", "target", "host-target", "output-format", "row-offset", "col-offset",
    "num-rows", "num-cols", "trace-size", "trace-offset", "stack-size", "cc", "sysroot", "peano", "gpu-arch",
    "gpu-runtime", "lower-linalg-to-func", "placed-ir-verifiers", "xclbin-kernel-name", "xclbin-kernel-id",
    "xclbin-instance-name", "xclbin-input",
}  # fmt: skip
"""The options of tools/aircc/aircc.cpp whose value may be a word of its own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the program that the command line names. Returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options, files = _split(words)
    outputs = [options[name] for name in OUTPUTS if name in options]
    if len(files) != 1 or not outputs:
        print("error: aircc takes one file, and the output by -o or --elf-name", file=sys.stderr)
        return 2
    try:
        _build(Path(files[0]), Path(outputs[0]))
    except ProgramError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if "i" in options:
        Path(options["i"]).write_bytes(
            bytes(4)
        )  # pyxrt's xclbin flow wants instructions, and none are needed
    return 0


def _split(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The options with their values, by their names without dashes, and the other words."""
    options, files = {}, []
    rest = iter(words)
    for word in rest:
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-"):
            files.append(word)
        else:
            options[name] = next(rest, "") if name in WITH_VALUE and not equals else value
    return options, files


def _build(source: Path, output: Path) -> None:
    from aerie.virtual_npu import toolchain
    from aerie.virtual_npu.console import read_text
    from aerie.virtual_npu.options import BuildOptions
    from aerie.virtual_npu.source_places import naming_places, places_in

    options = dataclasses.replace(BuildOptions.from_knobs(), checks=CHECKS.get() == "1")
    text = read_text(source)
    with naming_places(lambda: places_in(text)):
        toolchain.build(text, output, kernel_dirs=[source.parent], filename=str(source), options=options)


if __name__ == "__main__":
    sys.exit(main())
