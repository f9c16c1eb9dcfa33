"""Aerie: language models on AMD Ryzen AI NPUs, open from the prompt down to the last kernel.

    import aerie

    with aerie.load("demo") as model:
        print(model.generate("What is the capital of France?"))

All that is importable is here: the Python API (`api.py`) by the names below, and the rooms, `aerie.engine`,
`aerie.virtual_npu`, `aerie.kernel_builder` and so on. Five rooms lie at the top of the repository instead of
in this folder (`rooms.py`); installed, all are subpackages. `python -m aerie`, or `aerie`, is the command
line.
"""

from aerie import rooms as rooms  # first: it lets the others be found
from aerie.common.errors import AerieError
from aerie.common.lazy import TYPE_CHECKING, on_first_use
from aerie.version import VERSION

if TYPE_CHECKING:
    from aerie.answers import Result, Stream, Usage
    from aerie.api import Model
    from aerie.async_answers import AsyncStream
    from aerie.batch_api import KV
    from aerie.chunked_llm import ChunkedLLM
    from aerie.engine.communication import between_processes
    from aerie.engine.generate import FinishReason
    from aerie.engine.kpis import Event, EventKind, Kpis
    from aerie.engine.reranking import RankedDocument
    from aerie.loading import load
else:
    _HOMES = {
        "aerie.answers": ["Result", "Stream", "Usage"],
        "aerie.api": ["Model"],
        "aerie.async_answers": ["AsyncStream"],
        "aerie.batch_api": ["KV"],
        "aerie.chunked_llm": ["ChunkedLLM"],
        "aerie.engine.communication": ["between_processes"],
        "aerie.engine.generate": ["FinishReason"],
        "aerie.engine.kpis": ["Event", "EventKind", "Kpis"],
        "aerie.engine.reranking": ["RankedDocument"],
        "aerie.loading": ["load"],
    }
    __getattr__ = on_first_use(__name__, {name: home for home, names in _HOMES.items() for name in names})

__version__ = VERSION
__all__ = [
    "KV",
    "AerieError",
    "AsyncStream",
    "ChunkedLLM",
    "Event",
    "EventKind",
    "FinishReason",
    "Kpis",
    "Model",
    "RankedDocument",
    "Result",
    "Stream",
    "Usage",
    "__version__",
    "between_processes",
    "load",
]
