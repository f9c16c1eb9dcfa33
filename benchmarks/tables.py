"""The tables: one comparison in full, and all instruction sets side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from aerie.common.text_tables import compact_table
from benchmarks.figures import BATCH_SIZES, COMPARED_BATCH, CONCURRENT_CLIENTS, FEW_ROWS, OURS, THEIRS
from benchmarks.plan import BRIEF_TOKENS

Record = Mapping[str, Any]
"""The entry of one instruction set, as figures.record makes it."""

Row = tuple[str, str, str, int]
"""A row: the key of each side's figure, its label, the key of the ratio, digits."""


def comparison_rows(figures: Record) -> Iterator[Row]:
    """The rows of a comparison."""
    contexts, longest = figures["contexts"], figures["prompts"][-1]
    for tokens in figures["prompts"]:
        yield f"first_token_{tokens}_s", f"first token of {tokens}, s", f"first_token_ratio_{tokens}", 3
        if f"prefill_ratio_{tokens}" in figures:
            yield "", "  theirs over ours", f"prefill_ratio_{tokens}", 0
    yield "first_token_shared_s", f"  of {longest}, most of it known, s", "shared_ratio", 3
    yield "first_token_cold_s", f"first token of {BRIEF_TOKENS}, from a cold start, s", "", 2
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
    for number in BATCH_SIZES[1:]:
        key = f"together_{number}_tokens_per_s"
        yield key, f"  {number} together, over one", f"together_ratio_{number}", 1
    yield "", f"  {COMPARED_BATCH} together, ours over theirs", "batch_ratio", 0
    yield "first_token_of_pool_s", "first token, most of it in the pool, s", "pool_ratio", 3
    yield "decode_pages_ms", f"decode in rows at {contexts[-1]} from pages, ms", "paging_ratio", 1
    for text in figures.get("texts", ()):
        text_name = text.replace("_", " ")
        yield f"{text}_rows_ms", f"{text_name}: a token in rows, ms", "", 1
        yield f"{text}_lookup_ms", "  with lookup, times faster", f"lookup_ratio_{text}", 1
        yield f"{text}_guide_ms", "  than in guide", f"lookup_guide_ratio_{text}", 1
        yield f"{text}_per_pass", "  tokens a pass with lookup", "", 2
        yield f"{text}_right", "  share of its draft tokens that were right", "", 2
    yield "http_first_token_ms", "HTTP: more to the first token, ms", "", 2
    yield "http_token_ms", "  more per streamed token, ms", "", 2
    key = "http_together_tokens_per_s"
    yield (
        key,
        f"  {CONCURRENT_CLIENTS} clients, over the engine",
        f"http_together_ratio_{CONCURRENT_CLIENTS}",
        1,
    )
    last = contexts[-1]
    for key, label, digits in OTHER_FIGURES:
        ratio = "rss_ratio" if key == "peak_bytes" else ""
        yield key.format(last=last), label.format(last=last), ratio, digits


OTHER_FIGURES = (
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
"""Figures without a ratio, and peak memory, whose ratio is to the checkpoint's size: key, label, digits."""


def comparison_table(model: str, title: str, figures: Record) -> Table:
    """One comparison in full, side by side."""
    table = compact_table(f"{model}, {title}", ("figure",), ("ours", "transformers", "ratio", "target"))
    for key, label, ratio, digits in comparison_rows(figures):
        cells = [_number(figures[side].get(key), key, digits) for side in (OURS, THEIRS)]
        verdict = figures["targets"].get(ratio) or figures["targets"].get(key)
        share = f"{figures[ratio]:.2f}" if ratio else ""
        target = f"{verdict['target']} {'met' if verdict['met'] else 'not met'}" if verdict else ""
        table.add_row(label, *cells, share, target)
    return table


def _number(value: float | None, key: str, digits: int) -> str:
    if value is None:
        return ""
    return f"{value / 1e9 if key.endswith('bytes') else value:.{digits}f}"


# by instruction set

SHARED_FIGURES = (
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
    (f"http_together_ratio_{CONCURRENT_CLIENTS}", f"HTTP: {CONCURRENT_CLIENTS} clients, of engine"),
    ("rss_ratio", "peak memory, of checkpoint"),
    ("compile_s", "compiling all variants, s"),
    ("ready_s", "start to ready, s"),
    ("product_share", "products, of micro-kernel"),
    ("cached_share", "attention, of products"),
    ("flash_share", "flash_attn, of products"),
    ("gemv_share", "GEMVs, of bandwidth"),
    ("attention_share_{last}", "decode attention, of it"),
)
"""Figures of each set besides prompts and decode."""
PEAKS = (
    ("product_gflop_per_s", "product in L1, GFLOP/s"),
    ("f32_fma_gflop_per_s", "f32 FMA, GFLOP/s"),
    ("memory_gb_per_s", "memory, GB/s"),
)


def machine_lines(machine: Mapping[str, Any]) -> list[str]:
    """The machine (machine.describe_machine) in two lines."""
    has = ", ".join(machine["instruction_sets"])
    cpus, cores, threads = (_counted(machine, each) for each in ("cpus", "cores", "threads"))
    hyper = " (hyperthreads)" if machine["cpus"] > machine["cores"] else ""
    caches = ", ".join(f"{name} {_binary(nbytes)}" for name, nbytes in machine["cache_bytes"].items())
    memory = machine["memory_bytes"]
    return [
        f"{machine['cpu']}: {cpus.replace('cpu', 'CPU')}{hyper} on {cores}, {threads} used; "
        f"has {has or 'no instruction set that is known'}",
        f"caches: {caches or 'not known'}; memory: {_binary(memory) if memory else 'not known'}; "
        f"compiler: {machine['compiler']}",
    ]


def _counted(machine: Mapping[str, Any], noun: str) -> str:
    """A count with its noun, such as "1 core" or "2 cores"."""
    return f"{machine[noun]} {noun if machine[noun] > 1 else noun.removesuffix('s')}"


def _binary(nbytes: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if nbytes >= factor:
            return f"{nbytes / factor:.3g} {unit}"
    return f"{nbytes >> 10} KiB"


def peaks_by_set(peaks: Mapping[str, Mapping[str, Sequence[float]]]) -> Table:
    """The peaks of the machine, one column per instruction set."""
    table = compact_table("at most, by one thread and by all", ("",), tuple(peaks))
    for key, label in PEAKS:
        table.add_row(label, *(" ".join(f"{rate:.0f}" for rate in of[key]) for of in peaks.values()))
    return table


def table_by_set(model: str, sets: Mapping[str, Record]) -> Table:
    """All comparisons of one model, one column per instruction set."""
    table = compact_table(f"{model}: ours against transformers bf16", ("",), tuple(sets))
    every = list(sets.values())
    prompts, contexts = every[0]["prompts"], every[0]["contexts"]

    def add(key: str, label: str) -> None:
        table.add_row(label, *(_value_and_target(figures, key) for figures in every))

    def add_times(key: str, unit: str, digits: int) -> None:
        for side, name in ((OURS, "ours"), (THEIRS, "transformers")):
            cells = (f"{figures[side][key]:.{digits}f}" for figures in every)
            table.add_row(f"  {name}, {unit}", *cells)

    for tokens in prompts:
        add(f"first_token_ratio_{tokens}", f"prompt of {tokens}: ours/theirs")
        if f"prefill_ratio_{tokens}" in every[0]:
            add(f"prefill_ratio_{tokens}", "  theirs/ours")
        add_times(f"first_token_{tokens}_s", "s", 2)
    table.add_section()
    for context in contexts:
        add(f"decode_ratio_{context}", f"decode at {context}: theirs/ours")
        add_times(f"decode_{context}_ms", "ms/token", 1)
        add(f"rows_ratio_{context}", "  in rows, of guide")
    table.add_section()
    for text in every[0].get("texts", ()):
        add(f"lookup_ratio_{text}", f"{text.replace('_', ' ')}: lookup, of rows")
        add(f"lookup_guide_ratio_{text}", "  lookup, of guide")
    for key, label in SHARED_FIGURES:
        add(key.format(last=contexts[-1]), label)
    table.add_section()
    for key, label in PEAKS:
        table.add_row(label, *(f"{figures['peaks'][key][-1]:.0f}" for figures in every))
    return table


def _value_and_target(figures: Record, name: str) -> str:
    """A figure, and its target beside it."""
    value = figures[name] if name in figures else figures[OURS][name]
    verdict = figures["targets"].get(name)
    if verdict is None:
        return f"{value:.2f}"
    missed_targets = {">=": "<", "<=": ">"}
    sense, bound = verdict["target"].split()
    return f"{value:.2f} {sense if verdict['met'] else missed_targets[sense]} {bound}"


def missed_targets(sets: Mapping[str, Record]) -> Iterator[str]:
    """One line for each missed target."""
    for title, figures in sets.items():
        for name, verdict in figures["targets"].items():
            if not verdict["met"]:
                yield f"{title}: {name} {verdict['value']:.2f}, wanted {verdict['target']}"
