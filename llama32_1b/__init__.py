"""The driver: config, weights, prefill, decode, generation, the Python API and the command line. Thin."""

from typing import TYPE_CHECKING

from aerie.air_dialect.common import AerieError, on_first_use

if TYPE_CHECKING:
    from aerie.llama32_1b.api import Answer, Model, Stream, load
    from aerie.llama32_1b.generate import Figures, FinishReason
else:
    __getattr__ = on_first_use(
        __name__,
        {
            "Answer": "aerie.llama32_1b.api",
            "Model": "aerie.llama32_1b.api",
            "Stream": "aerie.llama32_1b.api",
            "load": "aerie.llama32_1b.api",
            "Figures": "aerie.llama32_1b.generate",
            "FinishReason": "aerie.llama32_1b.generate",
        },
    )

__all__ = ["AerieError", "Answer", "Figures", "FinishReason", "Model", "Stream", "load"]
