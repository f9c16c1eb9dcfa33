"""The tables: one comparison in full, and all instruction sets side by side with what the machine is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from aerie.common.text_tables import compact_table
from benchmarks.figures import AGAINST, CROWD, FEW_ROWS, OURS, THEIRS, TOGETHER
from benchmarks.plan import BRIEF

Record = Mapping[str, Any]
"""Of one instruction set, as figures.record makes it."""

Row = tuple[str, str, str, int]
"""Of a comparison: the figure of either side, what it is called, the ratio beside it, digits."""


def rows_of(found: Record) -> Iterator[Row]:
    """The rows of a comparison."""
    contexts, longest = found["contexts"], found["prompts"][-1]
    for tokens in found["prompts"]:
        yield f"first_token_{tokens}_s", f"first token of {tokens}, s", f"first_token_ratio_{tokens}", 3
        if f"prefill_ratio_{tokens}" in found:
            yield "", "  theirs over ours", f"prefill_ratio_{tokens}", 0
    yield "first_token_shared_s", f"  of {longest}, most of it known, s", "shared_ratio", 3
    yield "first_token_cold_s", f"first token of {BRIEF}, from a cold start, s", "", 2
    for context in contexts:
        yield (
            f"decode_{context}_ms",
            f"decode at {context}, ms (theirs over ours)",
            f"decode_ratio_{context}",
            1,
        )
        yield f"bandwidth_share_{context}", "  share of memory bandwidth", "", 2
        yield f"decode_rows_{context}_ms", "  in rows, over guide", f"rows_ratio_{context}", 1
    yield "few_rows_1_ms", "a pass of one row, ms", "", 1
    for rows in FEW_ROWS:
        yield f"few_rows_{rows}_ms", f"  of {rows} rows, over one", f"few_rows_ratio_{rows}", 1
    yield "together_1_tokens_per_s", "one request, tokens/s", "", 1
    for number in TOGETHER[1:]:
        key = f"together_{number}_tokens_per_s"
        yield key, f"  {number} together, over one", f"together_ratio_{number}", 1
    yield "", f"  {AGAINST} together, ours over theirs", "batch_ratio", 0
    yield "first_token_of_pool_s", "first token, most of it in the pool, s", "pool_ratio", 3
    yield "decode_pages_ms", f"decode in rows at {contexts[-1]} from pages, ms", "paging_ratio", 1
    for text in found.get("texts", ()):
        said = text.replace("_", " ")
        yield f"{text}_rows_ms", f"{said}: a token in rows, ms", "", 1
        yield f"{text}_lookup_ms", "  with lookup, times faster", f"lookup_ratio_{text}", 1
        yield f"{text}_guide_ms", "  than in guide", f"lookup_guide_ratio_{text}", 1
        yield f"{text}_per_pass", "  tokens a pass with lookup", "", 2
        yield f"{text}_right", "  share of its guesses that were right", "", 2
    yield "http_first_token_ms", "HTTP: more to the first token, ms", "", 2
    yield "http_token_ms", "  more per streamed token, ms", "", 2
    key = "http_together_tokens_per_s"
    yield key, f"  {CROWD} clients, over the engine", f"http_together_ratio_{CROWD}", 1
    last = contexts[-1]
    for key, label, digits in OTHERS:
        ratio = "rss_ratio" if key == "peak_bytes" else ""
        yield key.format(last=last), label.format(last=last), ratio, digits


OTHERS = (
    ("product_gflop_per_s", "products of o_ffn, GFLOP/s", 1),
    ("product_share", "  share of their micro-kernel's peak", 2),
    ("cached_gflop_per_s", "attention to the cache, GFLOP/s", 1),
    ("cached_share", "  share of the products' rate", 2),
    ("flash_gflop_per_s", "flash_attn by itself, GFLOP/s", 1),
    ("flash_share", "  share of the products' rate", 2),
    ("gemv_gb_per_s", "GEMV programs, GB/s", 1),
    ("gemv_share", "  share of memory bandwidth", 2),
    ("attention_{last}_ms", "decode attention at {last}, ms/token", 2),
    ("attention_share_{last}", "  share of memory bandwidth", 2),
    ("compile_s", "compiling the default set, s", 1),
    ("load_s", "loading, s", 2),
    ("ready_s", "start to ready, s", 2),
    ("peak_bytes", "peak resident memory, GB", 2),
    ("load_and_run_us", "load_and_run by itself, µs", 1),
    ("call_overhead_us", "overhead of a call in a token, µs", 1),
    ("python_ms", "all Python of a decoded token, ms", 2),
)
"""Figures without a ratio, and memory, whose ratio is to the checkpoint's size: key, label, digits."""


def comparison(model: str, title: str, found: Record) -> Table:
    """One comparison in full, side by side."""
    shown = compact_table(f"{model}, {title}", ("figure",), ("ours", "transformers", "ratio", "target"))
    for key, label, ratio, digits in rows_of(found):
        cells = [_number(found[side].get(key), key, digits) for side in (OURS, THEIRS)]
        verdict = found["targets"].get(ratio) or found["targets"].get(key)
        share = f"{found[ratio]:.2f}" if ratio else ""
        target = f"{verdict['target']} {'met' if verdict['met'] else 'not met'}" if verdict else ""
        shown.add_row(label, *cells, share, target)
    return shown


def _number(value: float | None, key: str, digits: int) -> str:
    if value is None:
        return ""
    return f"{value / 1e9 if key.endswith('bytes') else value:.{digits}f}"


# by instruction set

OF_ALL = (
    ("few_rows_ratio_8", "pass of 8 rows, of one's"),
    ("few_rows_ratio_16", "pass of 16 rows, of one's"),
    ("shared_ratio", "prompt mostly known, of new"),
    ("together_ratio_8", "8 requests, of one's tokens/s"),
    ("together_ratio_16", "16 requests, of one's"),
    ("batch_ratio", "8 requests: ours/theirs"),
    ("pool_ratio", "prompt mostly in the pool, of new"),
    ("paging_ratio", "decode from pages, of own cache"),
    ("http_first_token_ms", "HTTP: first token, ms more"),
    ("http_token_ms", "HTTP: a token, ms more"),
    (f"http_together_ratio_{CROWD}", f"HTTP: {CROWD} clients, of engine"),
    ("rss_ratio", "peak memory, of checkpoint"),
    ("compile_s", "compiling all variants, s"),
    ("ready_s", "start to ready, s"),
    ("product_share", "products, of micro-kernel"),
    ("cached_share", "attention, of products"),
    ("flash_share", "flash_attn, of products"),
    ("gemv_share", "GEMVs, of bandwidth"),
    ("attention_share_{last}", "decode attention, of it"),
)
"""What each set has besides prompts and decoding."""
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
    """All comparisons, which are of one model, a column for each instruction set by its title."""
    shown = compact_table(f"{model}: ours against transformers bf16", ("",), tuple(sets))
    every = list(sets.values())
    prompts, contexts = every[0]["prompts"], every[0]["contexts"]

    def add(key: str, label: str) -> None:
        shown.add_row(label, *(_judged(found, key) for found in every))

    def add_times(key: str, unit: str, digits: int) -> None:
        for side, name in ((OURS, "ours"), (THEIRS, "transformers")):
            cells = (f"{found[side][key]:.{digits}f}" for found in every)
            shown.add_row(f"  {name}, {unit}", *cells)

    for tokens in prompts:
        add(f"first_token_ratio_{tokens}", f"prompt of {tokens}: ours/theirs")
        if f"prefill_ratio_{tokens}" in every[0]:
            add(f"prefill_ratio_{tokens}", "  theirs/ours")
        add_times(f"first_token_{tokens}_s", "s", 2)
    shown.add_section()
    for context in contexts:
        add(f"decode_ratio_{context}", f"decode at {context}: theirs/ours")
        add_times(f"decode_{context}_ms", "ms/token", 1)
        add(f"rows_ratio_{context}", "  in rows, of guide")
    shown.add_section()
    for text in every[0].get("texts", ()):
        add(f"lookup_ratio_{text}", f"{text.replace('_', ' ')}: lookup, of rows")
        add(f"lookup_guide_ratio_{text}", "  lookup, of guide")
    for key, label in OF_ALL:
        add(key.format(last=contexts[-1]), label)
    shown.add_section()
    for key, label in PEAKS:
        shown.add_row(label, *(f"{found['peaks'][key][-1]:.0f}" for found in every))
    return shown


def _judged(found: Record, name: str) -> str:
    """A figure, and beside it what it should be."""
    value = found[name] if name in found else found[OURS][name]
    verdict = found["targets"].get(name)
    if verdict is None:
        return f"{value:.2f}"
    missed = {">=": "<", "<=": ">"}
    sense, bound = verdict["target"].split()
    return f"{value:.2f} {sense if verdict['met'] else missed[sense]} {bound}"


def missed(sets: Mapping[str, Record]) -> Iterator[str]:
    """What did not reach its target, a line for each."""
    for title, found in sets.items():
        for name, verdict in found["targets"].items():
            if not verdict["met"]:
                yield f"{title}: {name} {verdict['value']:.2f}, wanted {verdict['target']}"
