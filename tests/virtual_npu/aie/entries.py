"""Runs one entry of a module of designs."""

from __future__ import annotations

import numpy as np

from aerie.virtual_npu.program import Program, Result


def run_entry(program: Program, entry: str, *sizes: int) -> Result:
    """Run an entry; its first argument counts from 1, the others are zero."""
    first, *others = sizes
    arrays = [np.arange(1, first + 1, dtype=np.int32), *(np.zeros(size, np.int32) for size in others)]
    return program.run(*arrays, entry=entry)
