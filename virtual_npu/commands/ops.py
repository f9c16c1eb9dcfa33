"""`ops`: the operations that are executed."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser("ops", help="list the operations that are executed")
    parser.set_defaults(command=_ops)


def _ops(_: argparse.Namespace) -> int:
    from virtual_npu.codegen import module  # noqa: F401 - the emitters register
    from virtual_npu.codegen.body import supported_operations

    print("\n".join(supported_operations()))
    return 0
