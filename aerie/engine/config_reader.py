"""Reads config.json, with a check of each entry's type."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aerie.engine.errors import ConfigError
from aerie.engine.folder import other_formats, read_object

MAX_SHOWN = 500
MODELS_THAT_RUN = "README.md, Models that run"


MIN_NUMBER, MAX_NUMBER = 1e-15, 1e15
"""Products of two are numbers in float32 still."""


class ConfigReader:
    """A JSON object whose entries are read by type. Errors name the file, the entry and the value."""

    def __init__(self, path: Path, entries: Mapping[str, Any]) -> None:
        self.path = path
        self.entries = entries

    def get(self, name: str, default: Any = None) -> Any:
        """The entry, or `default` if it is absent or null."""
        value = self.entries.get(name)
        return default if value is None else value

    def positive_int(
        self, name: str, default: int | None = None, most: int | None = None, least: int = 1
    ) -> int:
        """An integer from `least` to `most`. Raises ConfigError, as all methods that check a type."""
        value = self._required(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(
                f"{self.path}: {name} is {short(value)}; it must be a whole number, {least} or more"
            )
        if most is not None and value > most:
            raise ConfigError(f"{self.path}: {name} is {short(value)}; no more than {most} are supported")
        return value

    def positive_int_or_none(self, name: str, if_absent: int | None) -> int | None:
        """An integer from 1 on; None if the entry is null. An absent entry has the value `if_absent`."""
        value = self.entries.get(name, if_absent)
        return None if value is None else self.positive_int(name, if_absent)

    def number(self, name: str, default: float | None = None) -> float:
        value = self._required(name, default)
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if not real or not 0 < value <= sys.float_info.max:
            raise ConfigError(f"{self.path}: {name} is {short(value)}; it must be a finite number above 0")
        if not MIN_NUMBER <= value <= MAX_NUMBER:
            raise ConfigError(
                f"{self.path}: {name} is {short(value)}; only numbers from {MIN_NUMBER:g} to {MAX_NUMBER:g} "
                "are supported, as others are lost in float32: the file is damaged, fetch it again"
            )
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.path}: {name} is {short(value)}; it must be true or false")
        return value

    def child(self, name: str) -> ConfigReader:
        value = self.get(name, {})
        if not isinstance(value, dict):
            raise ConfigError(f"{self.path}: {name} is {short(value)}; it must be an object")
        return ConfigReader(self.path, value)

    def items(self, name: str) -> list[Any]:
        value = self.get(name, [])
        if not isinstance(value, list):
            raise ConfigError(f"{self.path}: {name} is {short(value)}; it must be a list")
        return value

    def _required(self, name: str, default: Any) -> Any:
        value = self.get(name, default)
        if value is None:
            raise ConfigError(f"{self.path}: there is no {name}; the checkpoint is incomplete")
        return value


def short(value: Any) -> str:
    """The value as text for a message, cut if it is long."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} ..."


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint. Raises ConfigError if there is none."""
    try:
        return read_object(path, ConfigError)
    except FileNotFoundError:
        others = other_formats(path.parent) or "give --model a Hugging Face checkpoint folder"
        raise ConfigError(f"there is no {path}; {others}") from None
