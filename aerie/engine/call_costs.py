"""What a step of a prompt costs: an estimate at first, then the time that its own programs took.

The planner cuts tokens by what steps of different rows cost beside each other, which depends on the machine,
its instruction set and the model. So the first calls of each program are timed, and the shortest of them
counts: others at work on the machine make calls longer, never shorter. After these the cost stands, and
equal prompts have equal plans. Whatever is found, it decides about time alone, and about no bit.
"""

from __future__ import annotations

from aerie.engine.programs import ProgramInfo
from aerie.multi_launch_builder import Variant

CALL_OVERHEAD_S, WEIGHT_BYTES_PER_S, FLOPS_PER_S = 2e-4, 25e9, 300e9
"""The estimate, of a layer: seconds of three calls, bytes of weights that are read in a second however many
rows there are, floating-point operations in a second. Of the virtual NPU on two cores with AVX512-BF16."""

TIMED_KINDS = ("rms_gemms_rope", "o_ffn")
"""The kinds of programs whose calls make up the cost. Attention is not among them: it costs much the same
however tokens are cut."""
TIMED_CALLS = 16
"""So many calls of a program are timed."""
MIN_LAYER_ELEMENTS = 1 << 22
"""Elements of a layer's products. A layer of fewer is done in less than a millisecond, as the demo's, where
times say little and no plan is much better than another: the estimate stands."""


class CallCosts:
    """Seconds that a layer of a step takes, without attention. layer_weights: elements of its products."""

    def __init__(self, layer_parameters: int) -> None:
        self._layer_parameters = layer_parameters
        self._calls: dict[tuple[str, int], list[float]] = {}
        self._measured: dict[int, float] = {}

    def record(self, program: ProgramInfo, seconds: float) -> None:
        """A call of a program, all of whose rows were tokens, took so long."""
        if (
            program.kind not in TIMED_KINDS
            or self._layer_parameters < MIN_LAYER_ELEMENTS
            or program.rows in self._measured
        ):
            return
        self._calls.setdefault((program.kind, program.rows), []).append(seconds)
        found = [self._calls.get((kind, program.rows), []) for kind in TIMED_KINDS]
        if all(len(times) >= TIMED_CALLS for times in found):
            self._measured[program.rows] = sum(min(times) for times in found)

    def __call__(self, variant: Variant) -> float:
        """Of a step of this variant. Where its programs were not timed, the estimate, as far off as that of
        the rows nearest to them that were."""
        rows, measured = variant.rows, self._measured
        if rows in measured or not measured:
            return measured.get(rows, self._estimate(rows))
        nearest = min(measured, key=lambda other: max(rows, other) / min(rows, other))
        return self._estimate(rows) * measured[nearest] / self._estimate(nearest)

    def _estimate(self, rows: int) -> float:
        read, multiplied = 2 * self._layer_parameters, 2 * rows * self._layer_parameters
        return CALL_OVERHEAD_S + read / WEIGHT_BYTES_PER_S + multiplied / FLOPS_PER_S
