"""Compute figures from measurements: medians, ratios, shares of the peaks of the machine, targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from aerie.engine.strategies.decode_config import PROMPT_LOOKUP
from aerie.engine.variant_set import GUIDE, ROWS

OURS, THEIRS = "ours", "theirs"
FEW_ROWS = (8, 16)
"""Rows of passes that are compared with a pass of one row."""
BATCH_SIZES = (1, 8, 16)
"""Requests that share passes."""
COMPARED_BATCH = 8
"""The batch size that is compared with transformers' batch."""
CONCURRENT_CLIENTS = 16
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
"""Rates of programs, as `add_rates` returns them."""


@dataclass
class Samples:
    """Measured values by side and name, one per round, and the sizes of the model in bytes.

    attention_flops: operations of attention in the longest prompt. prompts: their lengths, in order.
    ratios_of: prompts whose speed has a target. contexts: positions that a decoded token attends to. texts:
    names of replayed texts.
    """

    checkpoint_bytes: int
    weight_bytes_per_token: int
    cache_bytes_per_position: int
    attention_flops: float
    prompts: Sequence[int]
    ratios_of: Sequence[int]
    contexts: Sequence[int]
    texts: Sequence[str] = ()
    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, side: str, name: str, value: float) -> None:
        self.values.setdefault((side, name), []).append(value)

    def median(self, side: str, name: str) -> float:
        return median(self.values[side, name])

    @property
    def bandwidth(self) -> float:
        """Bytes per second: the best of the run, as other programs can only lower it."""
        return max(max(self.values["machine", f"bandwidth_{context}"]) for context in self.contexts)


def side_figures(samples: Samples, side: str) -> dict[str, float]:
    """One side's figures; each name ends with its unit."""
    figures = {
        f"first_token_{tokens}_s": samples.median(side, f"first_{tokens}") for tokens in samples.prompts
    }
    figures |= {
        "first_token_cold_s": samples.median(side, "cold"),
        "load_s": samples.median(side, "load"),
        "ready_s": samples.median(side, "ready"),
        "peak_bytes": samples.median(side, "peak_bytes"),
    }
    for number in BATCH_SIZES if side == OURS else (COMPARED_BATCH,):
        figures[f"together_{number}_tokens_per_s"] = number / samples.median(side, f"together_{number}")
    for context in samples.contexts:
        spent = samples.median(side, f"decode_{context}")
        figures[f"decode_{context}_ms"] = 1e3 * spent
        figures[f"bandwidth_share_{context}"] = _share_of_memory(
            samples.weight_bytes_per_token,
            samples.values[side, f"decode_{context}"],
            samples.values["machine", f"bandwidth_{context}"],
        )
    return figures | (_aerie_figures(samples) if side == OURS else {})


def _aerie_figures(samples: Samples) -> dict[str, float]:
    """Figures of Aerie alone."""
    last = samples.contexts[-1]
    keys_and_values = last * samples.cache_bytes_per_position
    beside = samples.values["machine", f"beside_{last}"]
    in_ms = {f"rows_{context}": f"decode_rows_{context}_ms" for context in samples.contexts}
    in_ms |= {f"few_rows_{rows}": f"few_rows_{rows}_ms" for rows in (1, *FEW_ROWS)}
    return {
        **{
            f"{text}_{name}_ms": 1e3 * samples.median(OURS, f"{text}_{name}")
            for text in samples.texts
            for name in (GUIDE, ROWS, PROMPT_LOOKUP)
        },
        **{f"{text}_per_pass": samples.median(OURS, f"{text}_per_pass") for text in samples.texts},
        **{f"{text}_right": samples.median(OURS, f"{text}_share") for text in samples.texts},
        "http_first_token_ms": 1e3 * samples.median(OURS, "http_first"),
        "http_token_ms": 1e3 * samples.median(OURS, "http_token"),
        "http_together_tokens_per_s": CONCURRENT_CLIENTS / samples.median(OURS, "http_together"),
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
            keys_and_values, samples.values[OURS, f"attention_beside_{last}"], beside
        ),
        "gemv_share": _share_of_memory(
            samples.weight_bytes_per_token, samples.values[OURS, f"programs_beside_{last}"], beside
        ),
    }


def add_rates(programs: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Program times with milliseconds per call, GFLOP/s and GB/s."""
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
    product = programs[max(_names_of_kind(programs, PRODUCT), key=lambda name: _seconds(programs, [name]))][
        "gflop_per_s"
    ]
    flops = samples.attention_flops * len(samples.values[OURS, f"first_{samples.prompts[-1]}"])
    cached = flops / _seconds(programs, _names_of_kind(programs, CACHED)) / 1e9
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


def _names_of_kind(programs: Rates, kind: str) -> list[str]:
    return [name for name in programs if name.startswith(kind)]


def _seconds(programs: Rates, names: Sequence[str]) -> float:
    """Total seconds of all calls of these programs."""
    return sum(programs[name]["calls"] * programs[name]["ms"] / 1e3 for name in names)


def _share_of_memory(nbytes: int, seconds: Sequence[float], bandwidths: Sequence[float]) -> float:
    """Median share of the bandwidth that was measured beside each time."""
    return median(nbytes / spent / bandwidth for spent, bandwidth in zip(seconds, bandwidths, strict=True))


def ratios(samples: Samples) -> dict[str, float]:
    """first_token_ratio_*: our time over theirs. prefill_ratio_* and decode_ratio_*: theirs over ours, of the
    same prompts and of decoding, so that higher is better. rows_ratio_*: decoding in the decode path rows
    over that in guide. few_rows_ratio_*: a pass of so many rows over one of one. shared_ratio: a prompt that
    shares most of its tokens with the conversation over one that shares none. together_ratio_*: tokens per
    second of so many requests over those of one, both in the decode path rows. batch_ratio: ours over theirs,
    of 8 requests. pool_ratio: as shared_ratio, of a prompt that the pool of many requests has most of.
    paging_ratio: a token of one request from pages over one from a KV cache of its own. lookup_ratio_*: a
    token of an answer without drafts over one with drafts by lookup, both in the decode path rows, so that
    higher is better; lookup_guide_ratio_*: one without them in guide over the same. http_together_ratio_*:
    tokens per second of so many clients of the server over those of the engine alone. rss_ratio: our peak
    over the checkpoint's bytes.

    Each is the median over the rounds of the ratio in that round, whose two times the machine's load touches
    alike. Of what one side measured once there is one round.
    """
    ours, theirs = ([(side, f"first_{tokens}") for tokens in samples.prompts] for side in (OURS, THEIRS))
    figures = {
        f"first_token_ratio_{tokens}": _ratio(samples, *pair)
        for tokens, *pair in zip(samples.prompts, ours, theirs, strict=True)
    }
    for tokens in samples.ratios_of:
        figures[f"prefill_ratio_{tokens}"] = _ratio(
            samples, (THEIRS, f"first_{tokens}"), (OURS, f"first_{tokens}")
        )
    for context in samples.contexts:
        decode = f"decode_{context}"
        figures[f"decode_ratio_{context}"] = _ratio(samples, (THEIRS, decode), (OURS, decode))
        figures[f"rows_ratio_{context}"] = _ratio(
            samples, (OURS, f"rows_{context}"), (OURS, f"guide_{context}")
        )
    for rows in FEW_ROWS:
        figures[f"few_rows_ratio_{rows}"] = _ratio(samples, (OURS, f"few_rows_{rows}"), (OURS, "few_rows_1"))
    figures["shared_ratio"] = _ratio(samples, (OURS, "shared"), ours[-1])
    for number in BATCH_SIZES[1:]:
        one = _ratio(samples, (OURS, "together_1"), (OURS, f"together_{number}"))
        figures[f"together_ratio_{number}"] = number * one
    batch = f"together_{COMPARED_BATCH}"
    figures["batch_ratio"] = _ratio(samples, (THEIRS, batch), (OURS, batch))
    figures["pool_ratio"] = _ratio(samples, (OURS, "pool_shared"), (OURS, "pool_new"))
    figures["paging_ratio"] = _ratio(samples, (OURS, "decode_pages"), (OURS, "decode_own"))
    for text in samples.texts:
        with_guesses = (OURS, f"{text}_{PROMPT_LOOKUP}")
        figures[f"lookup_ratio_{text}"] = _ratio(samples, (OURS, f"{text}_{ROWS}"), with_guesses)
        figures[f"lookup_guide_ratio_{text}"] = _ratio(samples, (OURS, f"{text}_{GUIDE}"), with_guesses)
    together = (OURS, "engine_together"), (OURS, "http_together")
    figures[f"http_together_ratio_{CONCURRENT_CLIENTS}"] = _ratio(samples, *together)
    figures["rss_ratio"] = samples.median(OURS, "peak_bytes") / samples.checkpoint_bytes
    return figures


def _ratio(samples: Samples, over: tuple[str, str], under: tuple[str, str]) -> float:
    return median(a / b for a, b in zip(samples.values[over], samples.values[under], strict=False))


def verdicts(figures: Mapping[str, float], targets: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """For each figure with a target: its value, the target, and whether it is met.

    targets: of the instruction set, besides TARGETS.
    """
    all_targets = {**TARGETS, **{kind: (">=", bound) for kind, bound in targets.items()}}
    by_name = {}
    for name, value in figures.items():
        target = all_targets.get(name) or all_targets.get(name.rpartition("_")[0])
        if target:
            sense, bound = target
            met = value >= bound if sense == ">=" else value <= bound
            by_name[name] = {"value": value, "target": f"{sense} {bound:g}", "met": met}
    return by_name


def record(
    samples: Samples,
    programs: Rates,
    peaks: Mapping[str, Sequence[float]],
    targets: Mapping[str, float] | None,
    **about: Any,
) -> dict[str, Any]:
    """The entry of build/bench.json for an instruction set: the ratios first, then their inputs.

    peaks: as `measure_peaks` returns them. targets: of the set; None means no targets, as they are for one
    size of model.
    """
    ours, theirs, ratio_figures = side_figures(samples, OURS), side_figures(samples, THEIRS), ratios(samples)
    ours |= shares_of_programs(samples, programs, peaks["product_gflop_per_s"][1])
    return {
        **ratio_figures,
        "targets": {} if targets is None else verdicts({**ours, **ratio_figures}, targets),
        OURS: ours,
        THEIRS: theirs,
        "peaks": peaks,
        "bandwidth_bytes_per_s": samples.bandwidth,
        "programs": programs,
        "prompts": list(samples.prompts),
        "contexts": list(samples.contexts),
        "texts": list(samples.texts),
        **about,
        "samples": {f"{side}.{name}": values for (side, name), values in samples.values.items()},
    }
