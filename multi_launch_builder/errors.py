"""What the stitcher and the programs refuse, one class per kind of mistake."""

from __future__ import annotations


class StitchError(ValueError):
    """A module that cannot become part of a multi-launch program."""


class WiringError(StitchError):
    """A launch argument and a program argument that do not fit, or an argument without a wire."""


class SymbolConflictError(StitchError):
    """One symbol or object file with two meanings in one program."""


class DataflowError(StitchError):
    """A buffer read before it is written, written where it must not be, or never used."""


class UnsupportedShapeError(ValueError):
    """A model shape or sequence length that the kernels do not accept."""


class ConfigError(ValueError):
    """A config.json that does not say what shape the model has."""
