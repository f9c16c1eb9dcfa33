"""The cost of a variant's call in the prefill of a prompt: an estimate first, then measured times.

The planner splits tokens by the relative costs of calls with different rows. These depend on the machine, its
instruction set and the model. So the first calls of each program are timed, and the shortest time counts:
other work on the machine makes calls longer, never shorter. Then the cost is fixed, and equal prompts have
equal plans. The cost affects time only, and no bit.

The virtual NPU does not multiply rows of padding, which are zeros, so there a call costs what its tokens
cost, and the weights that it reads.
"""

from __future__ import annotations

from aerie.engine.programs import ProgramInfo
from aerie.multi_launch_builder import Variant

CALL_OVERHEAD_S, WEIGHT_BYTES_PER_S, FLOPS_PER_S = 2e-4, 25e9, 300e9
"""The estimate for a layer: seconds of three calls, bytes of weights read in a second for any number of rows,
floating-point operations in a second. For the virtual NPU on two cores with AVX512-BF16."""

TIMED_KINDS = ("rms_gemms_rope", "o_ffn")
"""The kinds of programs that are timed. Attention costs about the same however tokens are split."""
TIMED_CALLS = 16
"""Number of calls of each program that are timed."""
MIN_LAYER_ELEMENTS = 1 << 22
"""Minimum weight elements of a layer for timing. A smaller layer, as the demo's, takes less than a
millisecond; then times say little, and the estimate stays."""


class CallCosts:
    """Seconds that a call takes in one layer, without attention. layer_parameters: weight elements of a
    layer. padding_share: what a row of padding costs of what a token costs, beside the weights that are
    read."""

    def __init__(self, layer_parameters: int, padding_share: float = 1.0) -> None:
        self._layer_parameters, self._padding_share = layer_parameters, padding_share
        self._calls: dict[tuple[str, int], list[float]] = {}
        self._measured: dict[int, float] = {}

    def record(self, program: ProgramInfo, seconds: float) -> None:
        """Record the time of a program call whose rows were all tokens."""
        if (
            program.kind not in TIMED_KINDS
            or self._layer_parameters < MIN_LAYER_ELEMENTS
            or program.rows in self._measured
        ):
            return
        self._calls.setdefault((program.kind, program.rows), []).append(seconds)
        times_by_kind = [self._calls.get((kind, program.rows), []) for kind in TIMED_KINDS]
        if all(len(times) >= TIMED_CALLS for times in times_by_kind):
            self._measured[program.rows] = sum(min(times) for times in times_by_kind)

    def __call__(self, variant: Variant) -> float:
        """Seconds of a call of this variant. If its programs were not timed: the estimate, scaled by the
        error of the estimate for the nearest number of rows that was timed."""
        return self._of_rows(variant.rows)

    def spared_by_padding(self, rows: int) -> float:
        """Seconds that each row of padding takes off a call of so many rows."""
        share = self._row_estimate / self._estimate(rows)
        return (1 - self._padding_share) * share * self._of_rows(rows)

    def _of_rows(self, rows: int) -> float:
        measured = self._measured
        if rows in measured or not measured:
            return measured.get(rows, self._estimate(rows))
        nearest = min(measured, key=lambda other: max(rows, other) / min(rows, other))
        return self._estimate(rows) * measured[nearest] / self._estimate(nearest)

    def _estimate(self, rows: int) -> float:
        read = 2 * self._layer_parameters
        return CALL_OVERHEAD_S + read / WEIGHT_BYTES_PER_S + rows * self._row_estimate

    @property
    def _row_estimate(self) -> float:
        return 2 * self._layer_parameters / FLOPS_PER_S
