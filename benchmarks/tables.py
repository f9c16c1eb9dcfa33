"""The tables: one comparison in full, and all instruction sets side by side with what the machine is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from aerie.runtime.tables import compact_table
from benchmarks.figures import OURS, THEIRS

Record = Mapping[str, Any]
"""Of one instruction set, as figures.record makes it."""

ROWS = (
    ("prefill_{brief}_s", "prefill of {brief} tokens, s", "prefill_ratio_{brief}", 2),
    ("prefill_{whole}_s", "prefill of {whole} tokens, s", "prefill_ratio_{whole}", 2),
    ("prefill_{whole}_tokens_per_s", "  tokens/s", "", 1),
    ("decode_{short}_ms", "decode at context {short}, ms/token", "decode_ratio_{short}", 1),
    ("decode_{long}_ms", "decode at context {long}, ms/token", "decode_ratio_{long}", 1),
    ("bandwidth_share_{short}", "  share of memory bandwidth", "", 2),
    ("bandwidth_share_{long}", "  the same at context {long}", "", 2),
    ("product_gflop_per_s", "products of o_ffn, GFLOP/s", "", 1),
    ("product_share", "  share of their micro-kernel's peak", "", 2),
    ("flash_gflop_per_s", "flash_attn, GFLOP/s", "", 1),
    ("flash_share", "  share of the products' rate", "", 2),
    ("gemv_gb_per_s", "GEMV programs, GB/s", "", 1),
    ("gemv_share", "  share of memory bandwidth", "", 2),
    ("attention_{long}_ms", "decode attention at {long}, ms/token", "", 2),
    ("attention_share_{long}", "  share of memory bandwidth", "", 2),
    ("first_token_cold_s", "first token of {brief}, from a cold start, s", "", 2),
    ("compile_s", "compiling, s", "", 1),
    ("load_s", "loading, s", "", 2),
    ("ready_s", "start to ready, s", "", 2),
    ("peak_bytes", "peak resident memory, GB", "rss_ratio", 2),
    ("load_and_run_us", "load_and_run by itself, µs", "", 1),
    ("call_overhead_us", "overhead of a call in a token, µs", "", 1),
    ("python_ms", "all Python of a decoded token, ms", "", 2),
)


def comparison(model: str, title: str, found: Record) -> Table:
    """One comparison in full, side by side. The ratio of memory is to the checkpoint's size."""
    shown = compact_table(f"{model}, {title}", ("figure",), ("ours", "transformers", "ratio", "target"))
    told: set[str] = set()
    for key, label, ratio, digits in ROWS:
        key, label, ratio = (text.format(**_lengths(found)) for text in (key, label, ratio))
        if key in told:
            continue  # a model with few positions has one context
        told.add(key)
        cells = [_number(found[side].get(key), key, digits) for side in (OURS, THEIRS)]
        verdict = found["targets"].get(ratio) or found["targets"].get(key)
        share = f"{found[ratio]:.2f}" if ratio else ""
        target = f"{verdict['target']} {'met' if verdict['met'] else 'not met'}" if verdict else ""
        shown.add_row(label, *cells, share, target)
    return shown


def _lengths(found: Record) -> dict[str, int]:
    """By the names that ROWS and SETS have for them."""
    prefills, contexts = found["prefills"], found["contexts"]
    return {"brief": prefills[0], "whole": prefills[-1], "short": contexts[0], "long": contexts[-1]}


def _number(value: float | None, key: str, digits: int) -> str:
    if value is None:
        return ""
    return f"{value / 1e9 if key.endswith('bytes') else value:.{digits}f}"


# by instruction set

SETS = (
    ("prefill_{brief}_s", "prefill of {brief} tokens", "s", "prefill_ratio_{brief}", 2),
    ("prefill_{whole}_s", "prefill of {whole} tokens", "s", "prefill_ratio_{whole}", 2),
    ("decode_{short}_ms", "decode at context {short}", "ms/token", "decode_ratio_{short}", 1),
    ("decode_{long}_ms", "decode at context {long}", "ms/token", "decode_ratio_{long}", 1),
)
SHARES = (
    ("product_share", "products, of the micro-kernel"),
    ("flash_share", "flash_attn, of the products"),
    ("gemv_share", "GEMVs, of memory bandwidth"),
    ("attention_share_{long}", "decode attention, of the same"),
)
PEAKS = (
    ("product_gflop_per_s", "product in L1, GFLOP/s"),
    ("f32_fma_gflop_per_s", "f32 FMA, GFLOP/s"),
    ("memory_gb_per_s", "memory, GB/s"),
)


def machine_lines(machine: Mapping[str, Any]) -> list[str]:
    """What machine it is (machine.describe), in two lines."""
    has = ", ".join(machine["instruction_sets"])
    cpus, cores, threads = (_counted(machine, each) for each in ("cpus", "cores", "threads"))
    hyper = " (hyperthreads)" if machine["cpus"] > machine["cores"] else ""
    caches = ", ".join(f"{name} {_binary(nbytes)}" for name, nbytes in machine["cache_bytes"].items())
    memory = machine["memory_bytes"]
    return [
        f"{machine['cpu']}: {cpus.replace('cpu', 'CPU')}{hyper} on {cores}, {threads} used; "
        f"has {has or 'no instruction set that is known'}",
        f"caches: {caches or 'not told'}; memory: {_binary(memory) if memory else 'not told'}; "
        f"compiler: {machine['compiler']}",
    ]


def _counted(machine: Mapping[str, Any], what: str) -> str:
    """Such as 1 core, 2 cores."""
    return f"{machine[what]} {what if machine[what] > 1 else what.removesuffix('s')}"


def _binary(nbytes: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if nbytes >= factor:
            return f"{nbytes / factor:.3g} {unit}"
    return f"{nbytes >> 10} KiB"


def peaks_by_set(peaks: Mapping[str, Mapping[str, Sequence[float]]]) -> Table:
    """What the machine can do at most, a column for each instruction set by its title."""
    shown = compact_table("at most, by one thread and by all", ("",), tuple(peaks))
    for key, label in PEAKS:
        shown.add_row(label, *(" ".join(f"{rate:.0f}" for rate in of[key]) for of in peaks.values()))
    return shown


def by_set(model: str, sets: Mapping[str, Record]) -> Table:
    """All comparisons, a column for each instruction set by its title; `-` where a set has no such figure."""
    shown = compact_table(f"{model}: ours against transformers bf16", ("",), tuple(sets))
    for key, label, unit, ratio, digits in SETS:
        labels = list(dict.fromkeys(label.format(**_lengths(found)) for found in sets.values()))
        shown.add_row(f"{' or '.join(labels)}: ratio", *(_ratio(found, ratio) for found in sets.values()))
        for side in (OURS, THEIRS):
            cells = [_cell(found, side, key, digits) for found in sets.values()]
            shown.add_row(f"  {'ours' if side == OURS else 'transformers'}, {unit}", *cells)
    shown.add_section()
    for key, label in SHARES:
        shown.add_row(label, *(_judged(found, key) for found in sets.values()))
    shown.add_section()
    for key, label in PEAKS:
        shown.add_row(label, *(f"{found['peaks'][key][-1]:.0f}" for found in sets.values()))
    return shown


def _cell(found: Record, side: str, key: str, digits: int) -> str:
    return f"{found[side][key.format(**_lengths(found))]:.{digits}f}"


def _ratio(found: Record, key: str) -> str:
    name = key.format(**_lengths(found))
    return _with_target(found, name, found[name])


def _judged(found: Record, key: str) -> str:
    name = key.format(**_lengths(found))
    return _with_target(found, name, found[OURS][name])


def _with_target(found: Record, name: str, value: float) -> str:
    verdict = found["targets"].get(name)
    if verdict is None:
        return f"{value:.2f}"
    return f"{value:.2f} {verdict['target'] if verdict['met'] else verdict['target'].replace('>=', '<')}"


def missed(sets: Mapping[str, Record]) -> Iterator[str]:
    """What did not reach its target, a line for each."""
    for title, found in sets.items():
        for name, verdict in found["targets"].items():
            if not verdict["met"]:
                yield f"{title}: {name} {verdict['value']:.2f}, wanted {verdict['target']}"
