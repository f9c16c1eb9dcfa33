"""Stitches kernel modules into multi-launch programs, and knows those of a Llama-class model: the six, and
those of variants, which compute several tokens against a KV cache.

What a program is, which arguments it has and what shapes a model has need no IR: only what builds does.
"""

from typing import TYPE_CHECKING

from aerie.common.lazy import on_first_use
from aerie.multi_launch_builder.program import CompileOption, ExternalObject, Program
from aerie.multi_launch_builder.shapes import (
    ModelShape,
    UnsupportedShapeError,
    legal_seq_len,
    padded_vocab_size,
)
from aerie.multi_launch_builder.variants import GraphType, Variant, graph_type, plan_variant_programs

if TYPE_CHECKING:
    from aerie.multi_launch_builder.building import build_programs, build_variant_programs
    from aerie.multi_launch_builder.limits import check_shape
    from aerie.multi_launch_builder.stitcher import Stitcher
    from aerie.multi_launch_builder.submodule import (
        DataflowError,
        StitchError,
        SymbolConflictError,
        WiringError,
    )
else:
    _HOMES = {
        "aerie.multi_launch_builder.building": ["build_programs", "build_variant_programs"],
        "aerie.multi_launch_builder.limits": ["check_shape"],
        "aerie.multi_launch_builder.stitcher": ["Stitcher"],
        "aerie.multi_launch_builder.submodule": [
            "DataflowError",
            "StitchError",
            "SymbolConflictError",
            "WiringError",
        ],
    }
    __getattr__ = on_first_use(__name__, {name: home for home, names in _HOMES.items() for name in names})

__all__ = [
    "CompileOption",
    "DataflowError",
    "ExternalObject",
    "GraphType",
    "ModelShape",
    "Program",
    "StitchError",
    "Stitcher",
    "SymbolConflictError",
    "UnsupportedShapeError",
    "Variant",
    "WiringError",
    "build_programs",
    "build_variant_programs",
    "check_shape",
    "graph_type",
    "legal_seq_len",
    "padded_vocab_size",
    "plan_variant_programs",
]
