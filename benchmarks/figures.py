"""From measurements to figures: medians, ratios, shares of what the machine can do, targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

OURS, THEIRS = "ours", "theirs"

TARGETS: dict[str, tuple[str, float]] = {
    "bandwidth_share": (">=", 0.70),
    "flash_share": (">=", 0.50),
    "rss_ratio": ("<=", 1.25),
    "compile_s": ("<=", 60.0),
    "ready_s": ("<=", 10.0),
    "call_overhead_us": ("<=", 30.0),
    "load_and_run_us": ("<=", 30.0),
    "python_ms": ("<=", 2.0),
}
"""What this project wants to reach at the size of Llama-3.2-1B on two cores, by kind of figure, in every
instruction set; each has others of its own (instruction_sets.py)."""

GEMVS = ("rms_gemv_rope", "o_gemv_ffn", "lm_head_gemv")
PRODUCT, FLASH = "o_ffn", "flash_attn"


@dataclass
class Samples:
    """What was measured, by side and name, a number per round; and what the model weighs, in bytes.

    prefills: lengths of prompts, the short one first. contexts: positions that a token attends to.
    """

    checkpoint_bytes: int
    weight_bytes_per_token: int
    cache_bytes_per_position: int
    prefills: Sequence[int]
    contexts: Sequence[int]
    of: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, side: str, name: str, value: float) -> None:
        self.of.setdefault((side, name), []).append(value)

    def median(self, side: str, name: str) -> float:
        return median(self.of[side, name])

    @property
    def bandwidth(self) -> float:
        """Bytes per second: the best of the run, for what else runs on a machine can only take from it."""
        return max(max(self.of["machine", f"bandwidth_{context}"]) for context in self.contexts)


def side_figures(samples: Samples, side: str) -> dict[str, float]:
    """One side's figures, each with its unit in its name."""
    figures: dict[str, float] = {}
    for tokens in samples.prefills:
        seconds = figures[f"prefill_{tokens}_s"] = samples.median(side, f"prefill_{tokens}")
        figures[f"prefill_{tokens}_tokens_per_s"] = tokens / seconds
    figures |= {
        "first_token_cold_s": samples.median(side, "cold"),
        "load_s": samples.median(side, "load"),
        "ready_s": samples.median(side, "ready"),
        "peak_bytes": samples.median(side, "peak_bytes"),
    }
    for context in samples.contexts:
        spent = samples.median(side, f"decode_{context}")
        figures[f"decode_{context}_ms"] = 1e3 * spent
        figures[f"bandwidth_share_{context}"] = _bandwidth_share(samples, side, context)
    return figures | (_figures_of_ours(samples) if side == OURS else {})


def _figures_of_ours(samples: Samples) -> dict[str, float]:
    """What can be told of our side alone."""
    last = samples.contexts[-1]
    attention = samples.median(OURS, f"attention_{last}")
    return {
        "compile_s": samples.median(OURS, "compile"),
        "load_and_run_us": 1e6 * samples.median(OURS, "load_and_run"),
        "python_ms": 1e3 * samples.median(OURS, f"python_{last}"),
        "call_overhead_us": 1e6 * samples.median(OURS, f"call_overhead_{last}"),
        f"attention_{last}_ms": 1e3 * attention,
        f"attention_share_{last}": last * samples.cache_bytes_per_position / attention / samples.bandwidth,
    }


def shares_of_programs(
    programs: Mapping[str, Mapping[str, float]], peak_gflop_per_s: float, bandwidth_bytes_per_s: float
) -> dict[str, float]:
    """What the programs of `with_rates` make of the machine.

    product_gflop_per_s, product_share: of the products in o_ffn, and that over their micro-kernel's peak.
    flash_share: flash_attn's rate over that of the products. gemv_share: bytes that the decode programs
    read, over their time and memory's bandwidth.
    """
    product, flash = (programs[name]["gflop_per_s"] for name in (PRODUCT, FLASH))
    spent = {name: programs[name]["calls"] * programs[name]["ms"] / 1e3 for name in GEMVS}
    read = sum(programs[name]["gb_per_s"] * 1e9 * seconds for name, seconds in spent.items())
    return {
        "product_gflop_per_s": product,
        "product_share": product / peak_gflop_per_s,
        "flash_gflop_per_s": flash,
        "flash_share": flash / product,
        "gemv_gb_per_s": read / sum(spent.values()) / 1e9,
        "gemv_share": read / sum(spent.values()) / bandwidth_bytes_per_s,
    }


def _bandwidth_share(samples: Samples, side: str, context: int) -> float:
    """Of what memory gave while it was measured: the median over the rounds, as with `ratios`."""
    pairs = zip(
        samples.of[side, f"decode_{context}"], samples.of["machine", f"bandwidth_{context}"], strict=True
    )
    return median(samples.weight_bytes_per_token / seconds / bandwidth for seconds, bandwidth in pairs)


def ratios(samples: Samples) -> dict[str, float]:
    """Ours over theirs in speed, so that higher is better; rss_ratio is ours over the checkpoint's bytes.

    A ratio is the median over the rounds of the two sides' ratio in that round, which the load of the machine
    touches alike. Of what one side measured once there is one round.
    """
    found = {
        f"prefill_ratio_{tokens}": _speed_ratio(samples, f"prefill_{tokens}") for tokens in samples.prefills
    }
    for context in samples.contexts:
        found[f"decode_ratio_{context}"] = _speed_ratio(samples, f"decode_{context}")
    found["rss_ratio"] = samples.median(OURS, "peak_bytes") / samples.checkpoint_bytes
    return found


def _speed_ratio(samples: Samples, name: str) -> float:
    pairs = zip(samples.of[OURS, name], samples.of[THEIRS, name], strict=False)
    return median(theirs / ours for ours, theirs in pairs)


def verdicts(figures: Mapping[str, float], least: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """For every figure that has a target: its value, the target, and whether it is met.

    least: targets of the instruction set, besides TARGETS.
    """
    targets = {**TARGETS, **{kind: (">=", bound) for kind, bound in least.items()}}
    found = {}
    for name, value in figures.items():
        target = targets.get(name) or targets.get(name.rpartition("_")[0])
        if target:
            sense, bound = target
            met = value >= bound if sense == ">=" else value <= bound
            found[name] = {"value": value, "target": f"{sense} {bound:g}", "met": met}
    return found


def record(
    samples: Samples,
    programs: Mapping[str, Mapping[str, float]],
    peaks: Mapping[str, Sequence[float]],
    least: Mapping[str, float] | None,
    **about: Any,
) -> dict[str, Any]:
    """What build/bench.json holds of an instruction set: the ratios first, then what makes them.

    programs: as `with_rates` gives them. peaks: as `measure_peaks` does. least: targets of the set; None
    where no target applies, for they are for one size of model.
    """
    ours, theirs, found = side_figures(samples, OURS), side_figures(samples, THEIRS), ratios(samples)
    ours |= shares_of_programs(programs, peaks["product_gflop_per_s"][1], samples.bandwidth)
    return {
        **found,
        "targets": {} if least is None else verdicts({**ours, **found}, least),
        OURS: ours,
        THEIRS: theirs,
        "peaks": peaks,
        "bandwidth_bytes_per_s": samples.bandwidth,
        "programs": programs,
        "prefills": list(samples.prefills),
        "contexts": list(samples.contexts),
        **about,
        "samples": {f"{side}.{name}": values for (side, name), values in samples.of.items()},
    }
