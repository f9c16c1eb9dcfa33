"""Arguments of an entry as numpy arrays: read and written as .npz, and compared. bf16 is uint16 bits."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from aerie.common import store
from aerie.common.shown_names import display_name
from aerie.virtual_npu.element_types import NUMPY_NAMES, numbers_of
from aerie.virtual_npu.errors import VnpuArgumentError
from aerie.virtual_npu.library import ArgumentType, EntryPoint, Library, RunResult
from aerie.virtual_npu.options import IN_ORDER, RunOptions

Array = NDArray[Any]

ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
"""The first bytes of an .npz file, with and without arrays in it; numpy takes all else for a pickle."""


def read_npz(path: Path, entry: EntryPoint) -> list[Array]:
    """The arrays `arg0`, `arg1`, ... of a .npz file, checked against an entry.

    Raises VnpuArgumentError naming what is missing, or both shapes or dtypes where they differ.
    """
    return check_arrays(_read_archive(path), entry)


def sizes(path: Path) -> list[int]:
    """How many elements the arrays `arg0`, `arg1`, ... of a .npz file have. Raises VnpuArgumentError."""
    found = _read_archive(path)
    named = (found.get(f"arg{number}") for number in range(len(found)))
    return [0 if array is None else array.size for array in named]


def _read_archive(path: Path) -> dict[str, Array]:
    try:
        with path.open("rb") as file:
            if file.read(4) not in ZIP_STARTS or not zipfile.is_zipfile(file):
                raise VnpuArgumentError(f"{path} is not a whole .npz file; write it with numpy.savez")
        with np.load(path, allow_pickle=False) as archive:
            return {name: _member(path, archive, name) for name in archive.files}
    except FileNotFoundError as error:
        raise VnpuArgumentError(f"{path} does not exist: give an .npz file with arg0, arg1, ...") from error
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "it is damaged"
        raise VnpuArgumentError(f"cannot read {path}: {reason}; write it again with numpy.savez") from error


def read_expected(path: Path, entry: EntryPoint) -> dict[int, Array]:
    """By number, those arrays `arg0`, `arg1`, ... that a .npz file has, checked against an entry.

    Raises VnpuArgumentError as `read_npz` does, and for a file that has none.
    """
    found = _read_archive(path)
    names = {f"arg{number}": number for number in range(len(entry.arguments))}
    if not found or not names.keys() >= found.keys():
        raise VnpuArgumentError(
            f"{path} has {', '.join(found) or 'no arrays'}: name what is expected after the run "
            f"{_argument_list(list(names))}"
        )
    return {names[name]: _checked_array(name, array, entry, names[name]) for name, array in found.items()}


def _member(path: Path, archive: Mapping[str, Any], name: str) -> Array:
    try:
        array = archive[name]
    except ValueError as error:  # numpy's own words advise to allow pickled objects
        raise VnpuArgumentError(
            f"{name} in {path} does not hold plain numbers; save it as an array of numbers"
        ) from error
    if not isinstance(array, np.ndarray):
        raise VnpuArgumentError(f"{name} in {path} is not a numpy array; write the file with numpy.savez")
    return array


def check_arrays(arrays: Mapping[str, Array], entry: EntryPoint) -> list[Array]:
    """Contiguous copies of an entry's arrays `arg0`, `arg1`, ..., in order.

    Raises VnpuArgumentError if an array is missing, unknown, or of another shape or dtype.
    """
    names = [f"arg{i}" for i in range(len(entry.arguments))]
    missing = [name for name in names if name not in arrays]
    extra = [name for name in arrays if name not in names]
    if missing or extra:
        problems = [*_problem(missing, "missing"), *_problem(extra, "not taken")]
        raise VnpuArgumentError(f"{entry.name} takes {_argument_list(names)}: {'; '.join(problems)}")
    return [_checked_array(name, arrays[name], entry, i) for i, name in enumerate(names)]


def _argument_list(names: Sequence[str]) -> str:
    if len(names) < 2:
        return f"one argument, {names[0]}" if names else "no arguments"
    return f"{len(names)} arguments, {names[0]} {'to' if len(names) > 2 else 'and'} {names[-1]}"


def _problem(names: Sequence[str], what: str) -> list[str]:
    """`arg1, arg2 are missing` as a list of one item; [] without names."""
    return [f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {what}"] if names else []


def _checked_array(name: str, array: Array, entry: EntryPoint, index: int) -> Array:
    expected = entry.arguments[index]
    dtype = np.dtype(NUMPY_NAMES[expected.dtype])
    if expected.dtype == "bf16" and _is_bfloat16(array):
        array = array.view(dtype)
    if dtype.kind == "i" and expected.dtype != "index" and array.dtype == np.dtype(f"u{dtype.name}"):
        array = array.view(dtype)  # signless: the bits are what counts
    if array.dtype != dtype:
        held = f"{expected.dtype}, held as {dtype}" if expected.dtype != dtype.name else expected.dtype
        raise VnpuArgumentError(f"{name} of {entry.name} is {held}; the array is {array.dtype}")
    if array.shape != expected.shape:
        raise VnpuArgumentError(
            f"{name} of {entry.name} has shape {expected.shape}; the array has shape {array.shape}"
        )
    return np.array(array, order="C")


def _is_bfloat16(array: Array) -> bool:
    """Whether an array is ml_dtypes' bfloat16, which numpy.load returns as two raw bytes."""
    return array.dtype.name == "bfloat16" or array.dtype == np.dtype("V2")


def run_entry(
    library: Library, entry: EntryPoint, arrays: Sequence[Array], options: RunOptions = IN_ORDER
) -> RunResult:
    """Run an entry on arrays that `check_arrays` passed; outputs are written in place."""
    return library.run(entry.name, [array.ctypes.data for array in arrays], options)


def zero_arrays(entry: EntryPoint) -> list[Array]:
    """An array of zeros for each argument of an entry."""
    _check_memory(entry)
    return [np.zeros(argument.shape, NUMPY_NAMES[argument.dtype]) for argument in entry.arguments]


def _check_memory(entry: EntryPoint) -> None:
    """Raises VnpuArgumentError where an entry takes more than half of this machine's memory: a run has its
    arguments twice."""
    total = sum(math.prod(a.shape) * np.dtype(NUMPY_NAMES[a.dtype]).itemsize for a in entry.arguments)
    limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    if total > limit:
        raise VnpuArgumentError(
            f"the arguments of {display_name(entry.name)} take {total} bytes; {limit} are the most here, "
            "half of this machine's memory: run it on smaller ones"
        )


def random_arrays(entry: EntryPoint, seed: int) -> list[Array]:
    """A random array for each argument of an entry, the same for the same seed: floats from the standard
    normal distribution, integers from -7 (unsigned ones from 0) to 7."""
    _check_memory(entry)
    random = np.random.default_rng(seed)
    return [_random_array(random, argument) for argument in entry.arguments]


def _random_array(random: np.random.Generator, argument: ArgumentType) -> Array:
    dtype = np.dtype(NUMPY_NAMES[argument.dtype])
    if argument.dtype == "bf16" or dtype.kind == "f":
        return array_from_numbers(random.standard_normal(argument.shape, np.float32), argument)
    low, high = (0, 2) if dtype.kind == "b" else (0, 8) if dtype.kind == "u" else (-7, 8)
    return np.asarray(random.integers(low, high, argument.shape)).astype(dtype)


def array_from_numbers(numbers: Array, argument: ArgumentType) -> Array:
    """Numbers as an array of the argument's dtype, rounded to nearest, ties to even; bf16 as uint16 bits."""
    if argument.dtype != "bf16":
        return np.asarray(numbers).astype(NUMPY_NAMES[argument.dtype])
    import ml_dtypes

    return np.asarray(numbers).astype(ml_dtypes.bfloat16).view(np.uint16)


def array_numbers(array: Array, argument: ArgumentType) -> Array:
    """The numbers of an argument's array: bf16 bits widened to float32, other dtypes unchanged."""
    return numbers_of(array, argument.dtype)


def write_npz(path: Path, arrays: Sequence[Array]) -> None:
    """Write arrays as `arg0`, `arg1`, ... to a .npz file, atomically. Raises VnpuArgumentError on failure."""
    named: dict[str, Any] = {f"arg{i}": array for i, array in enumerate(arrays)}
    write_output_file(path, lambda file: np.savez(file, **named))


def write_output_file(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Write a file atomically; `fill` writes the content to an open file.

    Raises VnpuArgumentError if the file cannot be written.
    """
    folder = path.resolve().parent
    if not folder.is_dir():
        raise VnpuArgumentError(f"cannot write {path}: the folder {folder} does not exist")
    try:
        store.write_atomic(path, fill)
    except OSError as error:
        raise VnpuArgumentError(f"cannot write {path}: {error.strerror}") from error


@dataclass(frozen=True)
class ArrayDifference:
    """The first difference of an argument, in row-major order."""

    argument: int
    index: tuple[int, ...]
    expected: float | int
    found: float | int
    count: int
    """How many elements of the argument differ."""
    size: int
    """How many there are."""

    def __str__(self) -> str:
        place = ", ".join(map(str, self.index))
        return (
            f"arg{self.argument}[{place}] is {self.found!r} instead of {self.expected!r} "
            f"({self.count} of {self.size} elements differ)"
        )

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values; NaN and infinities, which JSON lacks, are texts."""
        plain = {"expected": _plain(self.expected), "found": _plain(self.found)}
        place = {"argument": f"arg{self.argument}", "index": list(self.index)}
        return {**place, **plain, "count": self.count, "size": self.size}


def _plain(value: float | int) -> float | int | str:
    return value if np.isfinite(value) else str(value)


def first_difference(
    arguments: Sequence[ArgumentType],
    expected: Sequence[Array],
    actual: Sequence[Array],
    tolerance: float = 0,
) -> ArrayDifference | None:
    """The first argument that differs: in any bit, or by more than tolerance * (1 + |expected|)."""
    for number, (argument, before, after) in enumerate(zip(arguments, expected, actual, strict=True)):
        differs = _differs(array_numbers(before, argument), array_numbers(after, argument), tolerance)
        count = int(np.count_nonzero(differs))
        if count:
            index = tuple(int(i) for i in np.argwhere(differs)[0])
            was, now = (array_numbers(side, argument)[index].item() for side in (before, after))
            return ArrayDifference(number, index, was, now, count, differs.size)
    return None


def _differs(expected: Array, actual: Array, tolerance: float) -> Array:
    if not tolerance or expected.dtype.kind != "f":
        return np.asarray(_bits(expected) != _bits(actual))
    with np.errstate(invalid="ignore"):
        far = np.abs(actual - expected) > tolerance * (1 + np.abs(expected))
    unlike = np.isfinite(expected) != np.isfinite(actual)
    special = ~np.isfinite(expected) & (_bits(expected) != _bits(actual))
    return np.asarray(far | unlike | special)


def _bits(array: Array) -> Array:
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "f" else array
