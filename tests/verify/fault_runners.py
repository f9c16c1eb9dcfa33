"""Runners around the healthy one, which change what programs are given and what they give back."""

from __future__ import annotations

import numpy as np

from aerie.kernel_builder.arguments import WRITTEN_ROLES


class Passing:
    """Hands every call on as it is."""

    def __init__(self, inner):
        self.inner = inner

    def record(self):
        return None  # every call comes through `run`

    def unfilled_weights(self, program, /, *, bo_key):
        return self.inner.unfilled_weights(program, bo_key=bo_key)

    def preload(self, program, /, *, bo_key, **static):
        self.inner.preload(program, bo_key=bo_key, **static)

    def shared_array(self, name, argument):
        return self.inner.shared_array(name, argument)

    def run(self, program, /, *, bo_key, outputs=None, copy=True, on_device=(), **arrays):
        return self.inner.run(
            program, bo_key=bo_key, outputs=outputs, copy=copy, on_device=on_device, **arrays
        )


class Renaming(Passing):
    """Uses the buffer sets that `rename` says."""

    def __init__(self, inner, rename):
        super().__init__(inner)
        self.rename = rename

    def unfilled_weights(self, program, /, *, bo_key):
        return super().unfilled_weights(program, bo_key=self.rename(bo_key))

    def preload(self, program, /, *, bo_key, **static):
        super().preload(program, bo_key=self.rename(bo_key), **static)

    def run(self, program, /, *, bo_key, **rest):
        return super().run(program, bo_key=self.rename(bo_key), **rest)


def layer_of(bo_key):
    """The layer whose buffers these are; None for those that have none."""
    _, _, number = bo_key.rpartition("_L")
    return int(number) if number.isdigit() else None


class Giving(Passing):
    """Passes what `change(kind, layer, arrays)` makes of a call's inputs."""

    def __init__(self, inner, change):
        super().__init__(inner)
        self.change = change

    def run(self, program, /, *, bo_key, outputs=None, copy=True, on_device=(), **arrays):
        return super().run(
            program,
            bo_key=bo_key,
            outputs=outputs,
            copy=copy,
            on_device=on_device,
            **self.change(program.kind, layer_of(bo_key), dict(arrays)),
        )


class Returning(Passing):
    """Gives back what `change(kind, layer, values)` makes of all that a call read and wrote, by name."""

    def __init__(self, inner, change):
        super().__init__(inner)
        self.change = change

    def run(self, program, /, *, bo_key, outputs=None, copy=True, on_device=(), **arrays):
        table = program.arguments
        written = [argument.name for argument in table if argument.role in WRITTEN_ROLES]
        results = super().run(program, bo_key=bo_key, outputs=written, copy=True, **arrays)
        changed = self.change(program.kind, layer_of(bo_key), {**arrays, **results})
        wanted = [table[slot].name for slot in table.output_indices] if outputs is None else outputs
        return {name: np.ascontiguousarray(changed[name]) for name in wanted}


def only(kinds, change, layer=None):
    """`change` for the programs of these kinds, in one layer or in all."""

    def chosen(kind, at, values):
        return {**values, **change(values)} if kind in kinds and layer in (None, at) else values

    return chosen


BEFORE, ATTENTION, AFTER = (
    ("rms_gemms_rope", "rms_gemv_rope"),
    ("flash_attn", "cached_attn"),
    ("o_ffn", "o_gemv_ffn"),
)

HEADS = ("lm_head_gemv", "lm_head")
"""Kinds of programs, of a block and of one token, by where they stand."""


class Stale(Passing):
    """An input of a layer's programs is written in the first call only, as if it were a weight."""

    def __init__(self, inner, kinds, layer, argument):
        super().__init__(inner)
        self.kinds, self.layer, self.argument, self.kept = kinds, layer, argument, {}

    def run(self, program, /, *, bo_key, **arrays):
        if program.kind in self.kinds and layer_of(bo_key) == self.layer:
            now = arrays[self.argument].copy()
            arrays[self.argument] = self.kept.setdefault(program.name, now)
        return super().run(program, bo_key=bo_key, **arrays)


class RowBefore(Passing):
    """The LM head is given the row that it was given the time before."""

    before = None

    def run(self, program, /, **rest):
        if program.kind in HEADS:
            now = rest["x"].copy()
            rest["x"], self.before = (now if self.before is None else self.before), now
        return super().run(program, **rest)
