"""What the device refuses."""

from __future__ import annotations


class XrtError(RuntimeError):
    """A use that the device refuses, or a run that failed. A RuntimeError, as pyxrt raises."""
