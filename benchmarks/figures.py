"""From measurements to figures: medians, ratios, targets, and the table that shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rich.table import Table

from aerie.runtime.tables import compact_table

OURS, THEIRS = "ours", "theirs"

TARGETS: dict[str, tuple[str, float]] = {
    "prefill_ratio": (">=", 1.0),
    "decode_ratio": (">=", 2.0),
    "bandwidth_share": (">=", 0.70),
    "rss_ratio": ("<=", 1.25),
    "compile_s": ("<=", 60.0),
    "ready_s": ("<=", 10.0),
    "call_overhead_us": ("<=", 30.0),
    "load_and_run_us": ("<=", 30.0),
    "python_ms": ("<=", 2.0),
}
"""What this project wants to reach at the size of Llama-3.2-1B on two cores, by kind of figure."""


@dataclass
class Samples:
    """What was measured, by side and name, a number per round; and what the model weighs, in bytes."""

    checkpoint_bytes: int
    weight_bytes_per_token: int
    prefill_tokens: int
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
    seconds = samples.median(side, "prefill")
    figures = {
        "prefill_s": seconds,
        "prefill_tokens_per_s": samples.prefill_tokens / seconds,
        "first_token_cold_s": samples.median(side, "cold"),
        "first_token_warm_s": samples.median(side, "warm"),
        "load_s": samples.median(side, "load"),
        "ready_s": samples.median(side, "ready"),
        "peak_bytes": samples.median(side, "peak_bytes"),
    }
    for context in samples.contexts:
        spent = samples.median(side, f"decode_{context}")
        figures[f"decode_{context}_ms"] = 1e3 * spent
        figures[f"bandwidth_share_{context}"] = _bandwidth_share(samples, side, context)
    if side == OURS:
        last = samples.contexts[-1]
        figures["compile_s"] = samples.median(side, "compile")
        figures["load_and_run_us"] = 1e6 * samples.median(side, "load_and_run")
        figures["python_ms"] = 1e3 * samples.median(side, f"python_{last}")
        figures["call_overhead_us"] = 1e6 * samples.median(side, f"call_overhead_{last}")
    return figures


def _bandwidth_share(samples: Samples, side: str, context: int) -> float:
    """Of what memory gave while it was measured: the median over the rounds, as with `ratios`."""
    pairs = zip(
        samples.of[side, f"decode_{context}"], samples.of["machine", f"bandwidth_{context}"], strict=True
    )
    return median(samples.weight_bytes_per_token / seconds / bandwidth for seconds, bandwidth in pairs)


def ratios(samples: Samples) -> dict[str, float]:
    """Ours over theirs in speed, so that higher is better; rss_ratio is ours over the checkpoint's bytes.

    A ratio is the median over the rounds of the two sides' ratio in that round, which the load of the machine
    touches alike.
    """
    found = {"prefill_ratio": _speed_ratio(samples, "prefill")}
    for context in samples.contexts:
        found[f"decode_ratio_{context}"] = _speed_ratio(samples, f"decode_{context}")
    found["rss_ratio"] = samples.median(OURS, "peak_bytes") / samples.checkpoint_bytes
    return found


def _speed_ratio(samples: Samples, name: str) -> float:
    pairs = zip(samples.of[OURS, name], samples.of[THEIRS, name], strict=True)
    return median(theirs / ours for ours, theirs in pairs)


def verdicts(figures: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """For every figure that has a target: its value, the target, and whether it is met."""
    found = {}
    for name, value in figures.items():
        target = TARGETS.get(name) or TARGETS.get(name.rpartition("_")[0])
        if target:
            sense, bound = target
            met = value >= bound if sense == ">=" else value <= bound
            found[name] = {"value": value, "target": f"{sense} {bound:g}", "met": met}
    return found


def record(samples: Samples, *, judged: bool, **about: Any) -> dict[str, Any]:
    """What build/bench.json holds: the ratios first, then everything they come from.

    judged: whether the targets apply, which are for one size of model.
    """
    ours, theirs, found = side_figures(samples, OURS), side_figures(samples, THEIRS), ratios(samples)
    return {
        **found,
        "targets": verdicts({**ours, **found}) if judged else {},
        OURS: ours,
        THEIRS: theirs,
        "bandwidth_bytes_per_s": samples.bandwidth,
        **about,
        "samples": {f"{side}.{name}": values for (side, name), values in samples.of.items()},
    }


ROWS = (
    ("prefill_s", "prefill of {prefill} tokens, s", "prefill_ratio", 2),
    ("prefill_tokens_per_s", "prefill, tokens/s", "", 1),
    ("decode_{short}_ms", "decode at context {short}, ms/token", "decode_ratio_{short}", 1),
    ("decode_{long}_ms", "decode at context {long}, ms/token", "decode_ratio_{long}", 1),
    ("bandwidth_share_{short}", "  share of memory bandwidth", "", 2),
    ("bandwidth_share_{long}", "  the same at context {long}", "", 2),
    ("first_token_cold_s", "first token, from a cold start, s", "", 2),
    ("first_token_warm_s", "first token, warm, s", "", 2),
    ("compile_s", "compiling, s", "", 1),
    ("load_s", "loading, s", "", 2),
    ("ready_s", "start to ready, s", "", 2),
    ("peak_bytes", "peak resident memory, GB", "rss_ratio", 2),
    ("load_and_run_us", "load_and_run by itself, µs", "", 1),
    ("call_overhead_us", "overhead of a program's call in a token, µs", "", 1),
    ("python_ms", "all Python of a decoded token, ms", "", 2),
)


def table(found: Mapping[str, Any], samples: Samples) -> Table:
    """The figures side by side. The ratio of memory is to the checkpoint's size."""
    names = {
        "prefill": samples.prefill_tokens,
        "short": samples.contexts[0],
        "long": samples.contexts[-1],
    }
    title = f"{found['model']}: ours against transformers bf16"
    shown = compact_table(title, ("figure",), ("ours", "transformers", "ratio", "target"))
    told: set[str] = set()
    for key, label, ratio, digits in ROWS:
        key, ratio = key.format(**names), ratio.format(**names)
        if key in told:
            continue  # a model with few positions has one context
        told.add(key)
        cells = [_number(found[side].get(key), key, digits) for side in (OURS, THEIRS)]
        shown.add_row(label.format(**names), *cells, *_judged(found, key, ratio))
    return shown


def _judged(found: Mapping[str, Any], key: str, ratio: str) -> tuple[str, str]:
    """The cells of ratio and target."""
    verdict = found["targets"].get(ratio) or found["targets"].get(key)
    share = f"{found[ratio]:.2f}" if ratio else ""
    return share, f"{verdict['target']} {'met' if verdict['met'] else 'not met'}" if verdict else ""


def _number(value: float | None, key: str, digits: int) -> str:
    if value is None:
        return ""
    return f"{value / 1e9 if key.endswith('bytes') else value:.{digits}f}"
