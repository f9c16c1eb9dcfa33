"""What a built program is made from, apart from its text and its external kernels."""

from __future__ import annotations

import functools
import importlib.metadata

from virtual_npu.compiler import OWN_KERNELS, PACKAGE, find_compiler
from virtual_npu.fingerprint import cpu_identity, tool_version, tree_digest
from virtual_npu.options import BuildOptions

_NOT_BUILT_IN = ("pyxrt", "static", "commands", "__main__.py", "host_code.py")
"""What of this package has no part in a built program."""


def ingredients(options: BuildOptions) -> dict[str, str]:
    """Everything of ours and of the machine that shapes a program, by name, as hashes or short texts.

    Raises ToolchainError when there is no compiler.
    """
    compiler = find_compiler(options)
    flags = (flag for flag in compiler.flags if flag not in options.defines)
    identity = f"{tool_version(compiler.path)} {' '.join(flags)}"
    chosen = {"numerics": options.numerics, "rounding": options.rounding, "fast": str(options.fast)}
    return {**_own(), "compiler": identity, **chosen}


@functools.cache
def _own() -> dict[str, str]:
    return {
        "air_dialect": tree_digest(PACKAGE.parent / "air_dialect"),
        "virtual_npu": tree_digest(PACKAGE, skip=_NOT_BUILT_IN),
        "AIE API for the host": tree_digest(OWN_KERNELS / "host"),
        "xdsl": importlib.metadata.version("xdsl"),
        "CPU": cpu_identity(),
    }
