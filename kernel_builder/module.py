"""A finished kernel: verified IR, its text and its argument table."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from xdsl.dialects.builtin import ModuleOp

from air_dialect import print_module
from kernel_builder.arguments import ArgumentTable


@dataclass(frozen=True)
class KernelModule:
    """`module` holds one public func.func called `name`; `arguments` are its arguments in order."""

    name: str
    module: ModuleOp = field(repr=False)
    arguments: ArgumentTable

    @cached_property
    def text(self) -> str:
        """The module as AIR text."""
        return print_module(self.module)
