"""Stitches kernel modules into multi-launch programs, and knows the six programs of a Llama-class model."""

from multi_launch_builder.errors import (
    ConfigError,
    DataflowError,
    StitchError,
    SymbolConflictError,
    UnsupportedShapeError,
    WiringError,
)
from multi_launch_builder.limits import legal_seq_len, padded_vocab_size
from multi_launch_builder.program import CompileOption, ExternalObject, Program
from multi_launch_builder.programs import build_programs
from multi_launch_builder.shapes import ModelShape
from multi_launch_builder.stitcher import Stitcher

__all__ = [
    "CompileOption",
    "ConfigError",
    "DataflowError",
    "ExternalObject",
    "ModelShape",
    "Program",
    "StitchError",
    "Stitcher",
    "SymbolConflictError",
    "UnsupportedShapeError",
    "WiringError",
    "build_programs",
    "legal_seq_len",
    "padded_vocab_size",
]
