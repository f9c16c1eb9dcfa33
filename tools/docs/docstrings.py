"""A griffe extension: what a docstring says of parameters, as `name: text`, becomes a list.

The house writes them one after the other in a paragraph. In a page of the site each is an item.
"""

from __future__ import annotations

from typing import Any

import griffe
from docstring_lists import as_list

OTHERS = {"options", "sampling", "kwargs"}
"""Names that stand for several parameters."""


class Parameters(griffe.Extension):  # type: ignore[misc]
    def on_function(self, *, func: Any, **_: Any) -> None:
        self._rewrite(func, {parameter.name.strip("*") for parameter in func.parameters})

    def on_class(self, *, cls: Any, **_: Any) -> None:
        made = cls.members.get("__init__")
        parameters = {each.name for each in made.parameters} if made else set()
        self._rewrite(cls, set(cls.members) | parameters)

    @staticmethod
    def _rewrite(named: Any, names: set[str]) -> None:
        if named.docstring:
            named.docstring.value = as_list(named.docstring.value, names | OTHERS)
