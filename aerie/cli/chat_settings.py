"""The settings of a chat that /set changes: those of the sampler, how long an answer may be, and whether the
model thinks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from aerie.common.cli_parser import did_you_mean
from aerie.common.errors import UserError
from aerie.engine.sampler import Sampler

N_TOKENS: Final = "n-tokens"
THINK: Final = "think"
NONE: Final = "none"
SWITCH: Final[Mapping[str, bool | None]] = {"on": True, "off": False, NONE: None}


class ChatSettings(NamedTuple):
    """How answers are drawn, how many tokens one may have, and whether the model thinks before it; None
    leaves that to the chat template."""

    sampler: Sampler
    max_new_tokens: int
    think: bool | None = None

    @property
    def template_arguments(self) -> Mapping[str, bool]:
        """Further arguments for the chat template."""
        return {} if self.think is None else {"enable_thinking": self.think}

    def value(self, name: str) -> object:
        if name == THINK:
            return next(text for text, value in SWITCH.items() if value is self.think)
        return self.max_new_tokens if name == N_TOKENS else getattr(self.sampler, _field(name))

    def __str__(self) -> str:
        """One setting a line, as /set takes them."""
        width = max(map(len, SETTINGS))
        values = {name: self.value(name) for name in SETTINGS}
        return "\n".join(
            f"{name:{width}}  {NONE if value is None else value}" for name, value in values.items()
        )


def change(settings: ChatSettings, name: str, text: str) -> ChatSettings:
    """The settings with another value. Raises UserError for an unknown name, or a value out of range."""
    name = name.replace("_", "-")
    if name not in SETTINGS:
        hint = did_you_mean(name, SETTINGS) or f"; there are {', '.join(SETTINGS)}"
        raise UserError(f"There is no setting {name}{hint}")
    value: Any = SETTINGS[name](name, text)
    if name == THINK:
        return settings._replace(think=value)
    if name == N_TOKENS:
        if not isinstance(value, int) or value < 1:
            raise UserError(f"{name} is {text}; it must be a whole number of 1 or more")
        return settings._replace(max_new_tokens=value)
    return settings._replace(sampler=replace(settings.sampler, **{_field(name): value}))


def _field(name: str) -> str:
    return name.replace("-", "_")


def _whole(name: str, text: str) -> int:
    if not text.isdecimal():
        raise UserError(f"{name} is {text!r}; it must be a whole number of 0 or more")
    return int(text)


def _whole_or_none(name: str, text: str) -> int | None:
    return None if text == NONE else _whole(name, text)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{name} is {text!r}; it must be a number")
    return value


def _switch(name: str, text: str) -> bool | None:
    if text not in SWITCH:
        raise UserError(
            f"{name} is {text!r}; it must be {', '.join(SWITCH)}, which leaves it to the template"
        )
    return SWITCH[text]


SETTINGS: Final[Mapping[str, Callable[[str, str], int | float | None]]] = {
    "temperature": _number,
    "top-k": _whole,
    "top-p": _number,
    "min-p": _number,
    "seed": _whole_or_none,
    "repetition-penalty": _number,
    "presence-penalty": _number,
    "frequency-penalty": _number,
    N_TOKENS: _whole,
    THINK: _switch,
}
"""What reads the value of each, by its name as a flag."""
