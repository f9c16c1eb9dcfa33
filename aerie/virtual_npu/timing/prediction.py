"""The result of the timing model: predicted times and what limits them, never a measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NOTE = "predicted by a model of NPU2, never measured on a board"

LIMITS = ("core", "stream", "memtile", "cascade", "shim", "DDR", "dispatch", "dependency")
"""What a launch can be limited by. dependency: latencies of locks and descriptors."""

ERROR_FACTORS: Mapping[str, float] = {
    "dispatch": 1.2,
    "memtile": 1.2,
    "DDR": 1.1,
    "core": 1.3,
    "stream": 1.4,
}
"""How sure a prediction is: of the published times that no fit has seen, limited in this way, 4 of 5 are
within this factor (`python -m benchmarks.board_times` prints them; 39, 58, 11, 92 and 6 rows)."""
OTHER_ERROR_FACTOR = 1.2
"""The same of all 206 rows; for limits without rows."""


@dataclass(frozen=True)
class PartPrediction:
    """One core, DMA channel or stream of a launch.

    kind: a word of LIMITS. busy_us: the time in which it works; the rest of the launch it waits. nbytes: what
    passes through it.
    """

    name: str
    kind: str
    busy_us: float
    nbytes: int


@dataclass(frozen=True)
class LaunchPrediction:
    """One launch of a program.

    us: its time with its share of dispatch. limited_by: the word of LIMITS with the largest share of
    `path_us`, which divides `us` over what the longest chain of events waits for. ddr_bytes: read and
    written. macs: multiply-accumulates of all cores. simulated_points of points were replayed, the rest is
    extrapolated.
    """

    name: str
    us: float
    limited_by: str
    path_us: Mapping[str, float]
    parts: tuple[PartPrediction, ...]
    ddr_bytes: int
    macs: int
    points: int
    simulated_points: int

    @property
    def error_factor(self) -> float:
        """The factor within which 4 of 5 published times of launches limited in this way are."""
        return ERROR_FACTORS.get(self.limited_by, OTHER_ERROR_FACTOR)

    def to_json(self) -> dict[str, object]:
        """The launch as JSON values."""
        return {
            "name": self.name,
            "us": round(self.us, 3),
            "limited_by": self.limited_by,
            "error_factor": self.error_factor,
            "path_us": {kind: round(us, 3) for kind, us in self.path_us.items()},
            "ddr_bytes": self.ddr_bytes,
            "macs": self.macs,
            "points": self.points,
            "simulated_points": self.simulated_points,
            "parts": [
                {"name": p.name, "kind": p.kind, "busy_us": round(p.busy_us, 3), "bytes": p.nbytes}
                for p in self.parts
            ],
        }


@dataclass(frozen=True)
class Prediction:
    """The predicted time of one execution of a program on the board."""

    launches: tuple[LaunchPrediction, ...]

    @property
    def total_us(self) -> float:
        """The sum over the launches, which run one after the other."""
        return sum(launch.us for launch in self.launches)

    @property
    def limited_by(self) -> str:
        """What holds up most of it, a word of LIMITS."""
        by_limit: dict[str, float] = {}
        for launch in self.launches:
            for limit, us in launch.path_us.items():
                by_limit[limit] = by_limit.get(limit, 0.0) + us
        return max(by_limit, key=by_limit.__getitem__)

    def to_json(self) -> dict[str, object]:
        """The prediction as JSON values."""
        launches = [launch.to_json() for launch in self.launches]
        return {"note": NOTE, "measured": False, "total_us": round(self.total_us, 3), "launches": launches}
