"""The types of the Python API's arguments: a wrong one is a UserError that names the argument and the value.

What is in range is checked where the value is used.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any, Final, NamedTuple

from aerie.common.errors import UserError


class ArgumentType(NamedTuple):
    """The types that an argument may have, and how a message says so."""

    kinds: tuple[type, ...]
    description: str
    takes_none: bool = False

    def accepts(self, value: object) -> bool:
        if value is None:
            return self.takes_none
        is_flag_for_number = isinstance(value, bool) and bool not in self.kinds
        return isinstance(value, self.kinds) and not is_flag_for_number


TEXT: Final = ArgumentType((str,), "a text")
TEXT_OR_NONE: Final = ArgumentType((str,), "a text, or None", True)
WHOLE: Final = ArgumentType((Integral,), "a whole number")
WHOLE_OR_NONE: Final = ArgumentType((Integral,), "a whole number, or None", True)
NUMBER: Final = ArgumentType((Real,), "a number")
NUMBER_OR_NONE: Final = ArgumentType((Real,), "a number, or None", True)
FLAG: Final = ArgumentType((bool,), "True or False")
PATH: Final = ArgumentType((str, os.PathLike), "a text or a path")
PATH_OR_NONE: Final = ArgumentType((str, os.PathLike), "a text or a path, or None", True)

ANSWER_ARGUMENTS: Final[Mapping[str, ArgumentType]] = {
    "max_tokens": WHOLE,
    "priority": WHOLE,
    "temperature": NUMBER,
    "top_k": WHOLE,
    "top_p": NUMBER,
    "min_p": NUMBER,
    "seed": WHOLE_OR_NONE,
    "repetition_penalty": NUMBER,
    "presence_penalty": NUMBER,
    "frequency_penalty": NUMBER,
    "logit_bias": ArgumentType((Mapping,), "a dict of token ids and numbers"),
    "strategy": TEXT_OR_NONE,
    "rule": TEXT_OR_NONE,
    "steps": WHOLE_OR_NONE,
    "threshold": NUMBER_OR_NONE,
    "entropy": NUMBER_OR_NONE,
    "raw": FLAG,
    "json_schema": ArgumentType((str, Mapping, bool), "a JSON schema, as a dict or a text", True),
    "tools": ArgumentType((list, tuple), "a list of dicts, as in OpenAI's API", True),
    "tool_choice": ArgumentType((str, Mapping), "a text or a dict, as in OpenAI's API", True),
    "parallel_tool_calls": FLAG,
    "thinking_budget": WHOLE_OR_NONE,
}
"""Of Model.stream and what answers as it does."""

LOAD_ARGUMENTS: Final[Mapping[str, ArgumentType]] = {
    "model": PATH,
    "backend": TEXT,
    "numerics": TEXT_OR_NONE,
    "variants": TEXT_OR_NONE,
    "decode": TEXT,
    "seq_len": WHOLE_OR_NONE,
    "weights": TEXT,
    "max_model_len": WHOLE_OR_NONE,
    "fallback": TEXT_OR_NONE,
    "context_end": TEXT,
    "devices": ArgumentType((Integral, Iterable), "the index of a device, as 0, or of several, as [0, 1]"),
    "kv_pool": WHOLE_OR_NONE,
    "block_size": WHOLE_OR_NONE,
    "cache_dir": PATH_OR_NONE,
}
"""Of aerie.load."""

VECTOR_ARGUMENTS: Final[Mapping[str, ArgumentType]] = {
    "dimensions": WHOLE_OR_NONE,
    "prompt_name": TEXT_OR_NONE,
    "instruction": TEXT_OR_NONE,
    "normalize": ArgumentType((bool,), "True, False or None", True),
}
"""Of Model.embed."""

RERANK_ARGUMENTS: Final[Mapping[str, ArgumentType]] = {
    "query": TEXT,
    "top_n": WHOLE_OR_NONE,
    "instruction": TEXT_OR_NONE,
    "max_tokens_per_doc": WHOLE_OR_NONE,
}
"""Of Model.rerank."""


def check_types(types: Mapping[str, ArgumentType], values: Mapping[str, object]) -> None:
    """Raise UserError for the first value that has not the type of its argument. Arguments without a type are
    checked elsewhere."""
    for name, value in values.items():
        wanted = types.get(name)
        if wanted is not None and not wanted.accepts(value):
            raise UserError(
                f"{name} is {reprlib.repr(value)}, of the type {type(value).__name__}; give "
                f"{wanted.description}"
            )


def plain_number(value: Any) -> Any:
    """A number of numpy's as Python's own: comparing a float32 with float64's limits warns. Others as they
    are."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def check_callable(name: str, value: object) -> None:
    """Raise UserError if the value is neither a function nor None."""
    if value is not None and not callable(value):
        raise UserError(
            f"{name} is {reprlib.repr(value)}, of the type {type(value).__name__}; give a function, or None"
        )
