"""Files of sequences that nobody saves so, with a checksum that is right."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from aerie.engine.saved_sequence import CHECKSUM, TOKENS, _checksum

Arrays = dict[str, Any]


def read(path: Path) -> tuple[Arrays, dict[str, str]]:
    """The arrays and the metadata of a file."""
    with safe_open(path, "np") as file:
        return {name: file.get_tensor(name).copy() for name in file.keys()}, file.metadata()  # noqa: SIM118


def write(path: Path, arrays: Arrays, about: Mapping[str, str]) -> None:
    """With the checksum of what is given."""
    about = {name: value for name, value in about.items() if name != CHECKSUM}
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(arrays, path, {**about, CHECKSUM: _checksum(arrays, about)})


def _to(change: Callable[[Any], Any]) -> Callable[[random.Random, Arrays, dict[str, str]], None]:
    """Changes an array."""

    def change_one(drawn: random.Random, arrays: Arrays, _: dict[str, str]) -> None:
        name = drawn.choice([TOKENS, *arrays])
        arrays[name] = change(arrays[name])

    return change_one


def _without(drawn: random.Random, arrays: Arrays, _: dict[str, str]) -> None:
    del arrays[drawn.choice([TOKENS, *arrays])]


def _renamed(drawn: random.Random, arrays: Arrays, _: dict[str, str]) -> None:
    name = drawn.choice([*arrays])
    arrays[drawn.choice(["", "keys", "keys.-1", "keys.x", f"{name} "])] = arrays.pop(name)


def _counted(drawn: random.Random, _: Arrays, about: dict[str, str]) -> None:
    wrong = ["", "-1", "x", "1e3", "²", "9" * 5000, str(2**40), "None", " 1"]
    about[drawn.choice(["in_blocks", "dropped"])] = drawn.choice(wrong)


def _uncounted(drawn: random.Random, _: Arrays, about: dict[str, str]) -> None:
    del about[drawn.choice(["in_blocks", "dropped"])]


def _below_none(drawn: random.Random, arrays: Arrays, _: dict[str, str]) -> None:
    arrays[TOKENS][drawn.randrange(len(arrays[TOKENS]))] = -drawn.choice([1, 2**63])


DAMAGES: tuple[Callable[[random.Random, Arrays, dict[str, str]], None], ...] = (
    *(_to(methodcaller("astype", kind)) for kind in ("float32", "int8", "uint64", "bool")),
    _to(lambda array: array.astype("int64" if array.dtype == "uint16" else "uint16")),
    _to(lambda array: array[..., None]),
    _to(lambda array: array.reshape(-1)[:-1]),
    _to(lambda array: array[:0]),
    _to(lambda array: np.zeros((), array.dtype)),
    _to(lambda array: np.concatenate([array, array])),
    _to(lambda array: np.moveaxis(array, -1, 0)[..., :-1]),
    _without,
    _renamed,
    _counted,
    _uncounted,
    _below_none,
)
"""Each changes a file's arrays and metadata, in a way that is drawn."""
