"""Prints what `run --stop-at LINE --show BUFFER` saw, and writes it to a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from aerie.virtual_npu.arrays import write_output_file
from aerie.virtual_npu.console import print_table
from aerie.virtual_npu.stops import Stop, StoppedBuffer


def show(buffers: Sequence[StoppedBuffer], *, as_list: bool) -> None:
    """Print the buffers on standard output: each with its elements, or one row each."""
    if as_list:
        header = ("buffer", "memory", "place", "type", "line", "written", "min", "max", "NaN", "infinite")
        print_table("buffers", header, [_row(buffer) for buffer in buffers], "<<<<>>>>>>", sys.stdout)
        return
    for buffer in buffers:
        print(f"{_title(buffer)}:", _elements(buffer), sep="\n")


def _elements(buffer: StoppedBuffer) -> str:
    """The elements as numpy prints them; `--` for those that nothing has written."""
    values, mask = buffer.numbers.data.ravel(), np.ma.getmaskarray(buffer.numbers).ravel()

    def text(number: int) -> str:
        return f"{'--' if mask[number] else format(values[number].item(), '.6g'):>11}"

    numbers = np.arange(values.size).reshape(buffer.data.shape)
    return np.array2string(numbers, formatter=cast(Any, {"int_kind": text}), max_line_width=100)


def fields(stop: Stop) -> dict[str, Any]:
    """The stop as JSON has it."""
    return {"line": stop.point.line, "message": stop.message, "buffers": [_facts(b) for b in stop.buffers]}


def write(path: Path, buffers: Sequence[StoppedBuffer]) -> None:
    """Write the elements of each buffer to a .npz file, by its name; bf16 as bits in uint16.

    The second of a name and those after it have their number added. Raises VnpuArgumentError.
    """
    named: dict[str, Any] = {}
    for buffer in buffers:
        name = buffer.name.lstrip("%@") or f"line{buffer.line}"
        count = sum(key == name or key.startswith(f"{name}.") for key in named)
        named[f"{name}.{count + 1}" if count else name] = buffer.data
    write_output_file(path, lambda file: np.savez(file, **named))


def _title(buffer: StoppedBuffer) -> str:
    shape = "x".join(map(str, buffer.data.shape)) or "scalar"
    where = f"{buffer.place}, allocated" if buffer.place else buffer.how
    unwritten = (
        "" if buffer.written is None else f", {int(buffer.written.sum())} of {buffer.data.size} written"
    )
    name = buffer.name or "a buffer"
    return f"{name}: {buffer.dtype} {shape} of {buffer.memory} ({where} at line {buffer.line}{unwritten})"


def _facts(buffer: StoppedBuffer) -> dict[str, Any]:
    numbers = buffer.numbers.compressed()
    finite = numbers[np.isfinite(numbers)]
    nan, infinite = int(np.isnan(numbers).sum()), int(np.isinf(numbers).sum())
    low, high = (finite.min().item(), finite.max().item()) if finite.size else (None, None)
    counts = {"written": int(numbers.size), "min": low, "max": high, "nan": nan, "infinite": infinite}
    place = {"memory": buffer.memory, "place": buffer.place or buffer.how, "line": buffer.line}
    shape = {"type": buffer.type, "dtype": buffer.dtype, "shape": list(buffer.data.shape)}
    return {"name": buffer.name, **place, **shape, **counts}


def _row(buffer: StoppedBuffer) -> list[str]:
    facts = _facts(buffer)
    written = f"{facts['written']} of {buffer.data.size}"
    numbers = ["" if facts[name] is None else f"{facts[name]:.6g}" for name in ("min", "max")]
    texts = [buffer.name, buffer.memory, facts["place"], buffer.type, str(buffer.line), written, *numbers]
    return [*texts, str(facts["nan"]), str(facts["infinite"])]
