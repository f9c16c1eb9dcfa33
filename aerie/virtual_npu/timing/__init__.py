"""A timing model of NPU2: what a program will cost on the board, predicted from its text.

The model replays the program's own events (which channel moves how many bytes, which core computes what, who
waits for whom) with the latencies and bandwidths of `parameters.Parameters`, which others have published. It
executes no data. Nothing in it was measured by us: we have no board.
"""

from aerie.common.lazy import TYPE_CHECKING, on_first_use

if TYPE_CHECKING:
    from aerie.virtual_npu.timing.bodies import TimingError
    from aerie.virtual_npu.timing.model import predict
    from aerie.virtual_npu.timing.parameters import DEFAULT, Parameters
    from aerie.virtual_npu.timing.prediction import NOTE, LaunchPrediction, PartPrediction, Prediction
else:
    _HOMES = {
        "aerie.virtual_npu.timing.bodies": ["TimingError"],
        "aerie.virtual_npu.timing.model": ["predict"],
        "aerie.virtual_npu.timing.parameters": ["DEFAULT", "Parameters"],
        "aerie.virtual_npu.timing.prediction": ["NOTE", "LaunchPrediction", "PartPrediction", "Prediction"],
    }
    __getattr__ = on_first_use(__name__, {name: home for home, names in _HOMES.items() for name in names})

__all__ = [
    "DEFAULT",
    "NOTE",
    "LaunchPrediction",
    "Parameters",
    "PartPrediction",
    "Prediction",
    "TimingError",
    "predict",
]
