"""From measurements to figures: medians, ratios, shares of what the machine can do, targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from aerie.engine.blocks import GUIDE, ROWS
from aerie.engine.strategies.decode_config import LOOKUP

OURS, THEIRS = "ours", "theirs"
FEW_ROWS = (8, 16)
"""Rows of a pass that are held against one."""
TOGETHER = (1, 8, 16)
"""Requests that share passes."""
AGAINST = 8
"""Of these, those that are held against the other side's batch."""
CROWD = 16
"""Clients of the server at once."""

TARGETS: dict[str, tuple[str, float]] = {
    "first_token_ratio": ("<=", 1.1),
    "rows_ratio": ("<=", 1.35),
    "few_rows_ratio_8": ("<=", 1.35),
    "few_rows_ratio_16": ("<=", 1.8),
    "shared_ratio": ("<=", 0.05),
    "together_ratio_8": (">=", 5.5),
    "together_ratio_16": (">=", 8.0),
    "batch_ratio": (">=", 2.0),
    "lookup_ratio_code_editing": (">=", 2.0),
    "lookup_ratio_prose": (">=", 0.97),
    "lookup_ratio_quoting_summary": (">=", 2.0),
    "pool_ratio": ("<=", 0.06),
    "paging_ratio": ("<=", 1.03),
    "http_first_token_ms": ("<=", 3.0),
    "http_token_ms": ("<=", 0.3),
    "http_together_ratio": (">=", 0.9),
    "rss_ratio": ("<=", 1.30),
    "compile_s": ("<=", 90.0),
    "ready_s": ("<=", 10.0),
    "bandwidth_share": (">=", 0.70),
    "flash_share": (">=", 0.50),
    "cached_share": (">=", 0.50),
    "call_overhead_us": ("<=", 30.0),
    "load_and_run_us": ("<=", 30.0),
    "python_ms": ("<=", 2.0),
}
"""What this project wants to reach at the size of Llama-3.2-1B on two cores, by figure or by kind of figure,
in every instruction set; each has others of its own (instruction_sets.py)."""

GEMVS = ("rms_gemv_rope", "o_gemv_ffn", "lm_head_gemv")
PRODUCT, CACHED, FLASH = "o_ffn_ar", "cached_attn_ar", "flash_attn"
"""Programs of products and of attention, by how their names begin."""

Rates = Mapping[str, Mapping[str, float]]
"""Of programs, as `with_rates` gives them."""


@dataclass
class Samples:
    """What was measured, by side and name, a number per round; and what the model weighs, in bytes.

    attention_flops: operations of attention in the longest prompt. prompts: their lengths, in order.
    ratios_of: those of them whose speed has a target of the set. contexts: positions that a token attends to.
    texts: answers that were said with guesses and without.
    """

    checkpoint_bytes: int
    weight_bytes_per_token: int
    cache_bytes_per_position: int
    attention_flops: float
    prompts: Sequence[int]
    ratios_of: Sequence[int]
    contexts: Sequence[int]
    texts: Sequence[str] = ()
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
    figures = {
        f"first_token_{tokens}_s": samples.median(side, f"first_{tokens}") for tokens in samples.prompts
    }
    figures |= {
        "first_token_cold_s": samples.median(side, "cold"),
        "load_s": samples.median(side, "load"),
        "ready_s": samples.median(side, "ready"),
        "peak_bytes": samples.median(side, "peak_bytes"),
    }
    for number in TOGETHER if side == OURS else (AGAINST,):
        figures[f"together_{number}_tokens_per_s"] = number / samples.median(side, f"together_{number}")
    for context in samples.contexts:
        spent = samples.median(side, f"decode_{context}")
        figures[f"decode_{context}_ms"] = 1e3 * spent
        figures[f"bandwidth_share_{context}"] = _share_of_memory(
            samples.weight_bytes_per_token,
            samples.of[side, f"decode_{context}"],
            samples.of["machine", f"bandwidth_{context}"],
        )
    return figures | (_figures_of_ours(samples) if side == OURS else {})


def _figures_of_ours(samples: Samples) -> dict[str, float]:
    """What can be told of our side alone."""
    last = samples.contexts[-1]
    keys_and_values = last * samples.cache_bytes_per_position
    beside = samples.of["machine", f"beside_{last}"]
    in_ms = {f"rows_{context}": f"decode_rows_{context}_ms" for context in samples.contexts}
    in_ms |= {f"few_rows_{rows}": f"few_rows_{rows}_ms" for rows in (1, *FEW_ROWS)}
    return {
        **{
            f"{text}_{name}_ms": 1e3 * samples.median(OURS, f"{text}_{name}")
            for text in samples.texts
            for name in (GUIDE, ROWS, LOOKUP)
        },
        **{f"{text}_per_pass": samples.median(OURS, f"{text}_per_pass") for text in samples.texts},
        **{f"{text}_right": samples.median(OURS, f"{text}_share") for text in samples.texts},
        "http_first_token_ms": 1e3 * samples.median(OURS, "http_first"),
        "http_token_ms": 1e3 * samples.median(OURS, "http_token"),
        "http_together_tokens_per_s": CROWD / samples.median(OURS, "http_together"),
        "first_token_shared_s": samples.median(OURS, "shared"),
        "first_token_of_pool_s": samples.median(OURS, "pool_shared"),
        "decode_pages_ms": 1e3 * samples.median(OURS, "decode_pages"),
        **{name: 1e3 * samples.median(OURS, sample) for sample, name in in_ms.items()},
        "compile_s": samples.median(OURS, "compile"),
        "load_and_run_us": 1e6 * samples.median(OURS, "load_and_run"),
        "python_ms": 1e3 * samples.median(OURS, f"python_{last}"),
        "call_overhead_us": 1e6 * samples.median(OURS, f"call_overhead_{last}"),
        f"attention_{last}_ms": 1e3 * samples.median(OURS, f"attention_{last}"),
        f"attention_share_{last}": _share_of_memory(
            keys_and_values, samples.of[OURS, f"attention_beside_{last}"], beside
        ),
        "gemv_share": _share_of_memory(
            samples.weight_bytes_per_token, samples.of[OURS, f"programs_beside_{last}"], beside
        ),
    }


def with_rates(programs: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The programs' times with what they make of it: milliseconds a call, GFLOP/s, GB/s."""
    return {
        name: {
            "calls": times["calls"],
            "ms": 1e3 * times["seconds"],
            "gflop_per_s": times["flops"] / times["seconds"] / 1e9,
            "gb_per_s": times["nbytes"] / times["seconds"] / 1e9,
        }
        for name, times in programs.items()
    }


def shares_of_programs(samples: Samples, programs: Rates, peak_gflop_per_s: float) -> dict[str, float]:
    """What programs make of the machine: those of the longest prompt, and of decoding after it.

    product_gflop_per_s: of the products in that program o_ffn_ar* which takes most of the time.
    product_share: that over their micro-kernel's peak. cached_share, flash_share: the rates of attention to a
    KV cache, by all programs cached_attn_ar*, and of flash_attn over that of the products. gemv_gb_per_s:
    bytes that the decode programs read, over their time.
    """
    product = programs[max(_of_kind(programs, PRODUCT), key=lambda name: _seconds(programs, [name]))][
        "gflop_per_s"
    ]
    flops = samples.attention_flops * len(samples.of[OURS, f"first_{samples.prompts[-1]}"])
    cached = flops / _seconds(programs, _of_kind(programs, CACHED)) / 1e9
    flash = programs[FLASH]["gflop_per_s"]
    read = sum(programs[name]["gb_per_s"] * _seconds(programs, [name]) for name in GEMVS)
    gemv = read / _seconds(programs, GEMVS)
    return {
        "product_gflop_per_s": product,
        "product_share": product / peak_gflop_per_s,
        "cached_gflop_per_s": cached,
        "cached_share": cached / product,
        "flash_gflop_per_s": flash,
        "flash_share": flash / product,
        "gemv_gb_per_s": gemv,
    }


def _of_kind(programs: Rates, kind: str) -> list[str]:
    return [name for name in programs if name.startswith(kind)]


def _seconds(programs: Rates, names: Sequence[str]) -> float:
    """Those of all calls of these programs."""
    return sum(programs[name]["calls"] * programs[name]["ms"] / 1e3 for name in names)


def _share_of_memory(nbytes: int, seconds: Sequence[float], bandwidths: Sequence[float]) -> float:
    """Of what memory gave beside each time: the median, as with `ratios`."""
    return median(nbytes / spent / given for spent, given in zip(seconds, bandwidths, strict=True))


def ratios(samples: Samples) -> dict[str, float]:
    """first_token_ratio_*: our time over theirs. prefill_ratio_* and decode_ratio_*: theirs over ours, of the
    same prompts and of decoding, so that higher is better. rows_ratio_*: decoding in the family rows over
    that in guide. few_rows_ratio_*: a pass of so many rows over one of one. shared_ratio: a prompt that
    shares most of its tokens with the conversation over one that shares none. together_ratio_*: tokens per
    second of so many requests over those of one, both in the family rows. batch_ratio: ours over theirs, of
    8 requests. pool_ratio: as shared_ratio, of a prompt that the pool of many requests has most of.
    paging_ratio: a token of one request from pages over one from a KV cache of its own. lookup_ratio_*:
    a token of an answer without guesses over one with guesses by lookup, both in the family rows, so that
    higher is better; lookup_guide_ratio_*: one without them in guide over the same. http_together_ratio_*:
    tokens per second of so many clients of the server over those of the engine alone. rss_ratio: our peak
    over the checkpoint's bytes.

    Each is the median over the rounds of the ratio in that round, whose two times the machine's load touches
    alike. Of what one side measured once there is one round.
    """
    ours, theirs = ([(side, f"first_{tokens}") for tokens in samples.prompts] for side in (OURS, THEIRS))
    found = {
        f"first_token_ratio_{tokens}": _ratio(samples, *pair)
        for tokens, *pair in zip(samples.prompts, ours, theirs, strict=True)
    }
    for tokens in samples.ratios_of:
        found[f"prefill_ratio_{tokens}"] = _ratio(
            samples, (THEIRS, f"first_{tokens}"), (OURS, f"first_{tokens}")
        )
    for context in samples.contexts:
        decode = f"decode_{context}"
        found[f"decode_ratio_{context}"] = _ratio(samples, (THEIRS, decode), (OURS, decode))
        found[f"rows_ratio_{context}"] = _ratio(
            samples, (OURS, f"rows_{context}"), (OURS, f"guide_{context}")
        )
    for rows in FEW_ROWS:
        found[f"few_rows_ratio_{rows}"] = _ratio(samples, (OURS, f"few_rows_{rows}"), (OURS, "few_rows_1"))
    found["shared_ratio"] = _ratio(samples, (OURS, "shared"), ours[-1])
    for number in TOGETHER[1:]:
        one = _ratio(samples, (OURS, "together_1"), (OURS, f"together_{number}"))
        found[f"together_ratio_{number}"] = number * one
    batch = f"together_{AGAINST}"
    found["batch_ratio"] = _ratio(samples, (THEIRS, batch), (OURS, batch))
    found["pool_ratio"] = _ratio(samples, (OURS, "pool_shared"), (OURS, "pool_new"))
    found["paging_ratio"] = _ratio(samples, (OURS, "decode_pages"), (OURS, "decode_own"))
    for text in samples.texts:
        with_guesses = (OURS, f"{text}_{LOOKUP}")
        found[f"lookup_ratio_{text}"] = _ratio(samples, (OURS, f"{text}_{ROWS}"), with_guesses)
        found[f"lookup_guide_ratio_{text}"] = _ratio(samples, (OURS, f"{text}_{GUIDE}"), with_guesses)
    together = (OURS, "engine_together"), (OURS, "http_together")
    found[f"http_together_ratio_{CROWD}"] = _ratio(samples, *together)
    found["rss_ratio"] = samples.median(OURS, "peak_bytes") / samples.checkpoint_bytes
    return found


def _ratio(samples: Samples, over: tuple[str, str], under: tuple[str, str]) -> float:
    return median(a / b for a, b in zip(samples.of[over], samples.of[under], strict=False))


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
    programs: Rates,
    peaks: Mapping[str, Sequence[float]],
    least: Mapping[str, float] | None,
    **about: Any,
) -> dict[str, Any]:
    """What build/bench.json holds of an instruction set: the ratios first, then what makes them.

    peaks: as `measure_peaks` gives them. least: targets of the set; None where no target applies, for they
    are for one size of model.
    """
    ours, theirs, found = side_figures(samples, OURS), side_figures(samples, THEIRS), ratios(samples)
    ours |= shares_of_programs(samples, programs, peaks["product_gflop_per_s"][1])
    return {
        **found,
        "targets": {} if least is None else verdicts({**ours, **found}, least),
        OURS: ours,
        THEIRS: theirs,
        "peaks": peaks,
        "bandwidth_bytes_per_s": samples.bandwidth,
        "programs": programs,
        "prompts": list(samples.prompts),
        "contexts": list(samples.contexts),
        "texts": list(samples.texts),
        **about,
        "samples": {f"{side}.{name}": values for (side, name), values in samples.of.items()},
    }
