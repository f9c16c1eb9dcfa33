"""Stitches kernel modules into multi-launch programs, and defines those of a Llama-class model: the six
programs, and those of variants, which compute several tokens with a KV cache.

Plans, argument tables and model shapes need no IR: only building does.
"""

from typing import TYPE_CHECKING

from aerie.common.lazy import on_first_use
from aerie.multi_launch_builder.program import CompileOption, ExternalObject, Program
from aerie.multi_launch_builder.shapes import (
    ModelShape,
    UnsupportedShapeError,
    padded_vocab_size,
    round_up_seq_len,
)
from aerie.multi_launch_builder.variants import GraphType, Variant, graph_type, plan_variant_programs

if TYPE_CHECKING:
    from aerie.multi_launch_builder.builder import build_programs, build_variant_programs
    from aerie.multi_launch_builder.shape_limits import check_shape
    from aerie.multi_launch_builder.stitcher import Stitcher
    from aerie.multi_launch_builder.submodule import (
        DataflowError,
        StitchError,
        SymbolConflictError,
        WiringError,
    )
else:
    _HOMES = {
        "aerie.multi_launch_builder.builder": ["build_programs", "build_variant_programs"],
        "aerie.multi_launch_builder.shape_limits": ["check_shape"],
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
    "padded_vocab_size",
    "plan_variant_programs",
    "round_up_seq_len",
]
