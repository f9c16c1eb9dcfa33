"""The gate's results: as a table for people, and as a JSON record with every number."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from aerie.common import folders, store
from aerie.common.errors import UserError
from aerie.common.text_tables import VERDICT, compact_table, print_tables
from aerie.verify.bounds import Bounds, GateFailure, LogitsDistance, kl_bound
from aerie.verify.chunk_check import ChunkModeResult
from aerie.verify.conversation_check import ConversationResult
from aerie.verify.diagnosis_report import percent, row_json
from aerie.verify.diffusion_check import DiffusionResult
from aerie.verify.gate import MIN_PENALTY_KL, PENALTY, POSITIONS, GateRecord, Trial
from aerie.verify.layer_check import LayerReport
from aerie.version import VERSION


def make_folder(folder: Path) -> None:
    """Create the folder that --out names, for reports. Raises UserError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write to {folder} ({error.strerror}); name another folder with --out, or for "
            f"everything with {folders.VARIABLE}"
        ) from None


def write_report(path: Path, text: str) -> None:
    """Write `text` to `path` in one step, and create its folder. Raises UserError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        store.write_atomic(path, lambda file: file.write(text.encode()))
    except OSError as error:
        raise UserError(
            f"cannot write {path} ({error.strerror}); name another folder with --out, or for "
            f"everything with {folders.VARIABLE}"
        ) from None


PACKAGES = ("numpy", "torch", "transformers")
SHOWN_FAILURES = 10

EXPLANATION = """\
n: positions compared. same: tokens of our own answer until it parts from the
reference's. place: the worst of either side's likeliest token in the other's
order. rms, largest, mean: of our logits less the reference's, as a multiple of
what rounding to bf16 does to the reference itself. KL: of the distributions,
mean, in nats. sure: choices that no rounding changes, and that were
compared. used: of a step's own bound, on the inputs that ours had."""


def print_record(record: GateRecord, file: TextIO | None = None) -> None:
    """Print tables, every failure but the first (a few, if many), and the verdict as the last line."""
    console = Console(file=file, highlight=False, markup=False)
    first = [_distance_table(record)] if record.trials else []
    print_tables(console, *first, *_other_tables(record))
    console.print(EXPLANATION, soft_wrap=True)
    for failure in record.failures[1 : SHOWN_FAILURES + 1]:
        console.print(f"also: {failure}", soft_wrap=True)
    console.print(verdict_line(record.failures), soft_wrap=True)


def verdict_line(failures: Sequence[GateFailure]) -> str:
    """PASS, or FAIL with the first failure and the number of further ones."""
    if not failures:
        return "[verify] PASS"
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return f"[verify] FAIL: {failures[0]}{more}"


def _distance_table(record: GateRecord) -> Table:
    """One row per prompt and part, with the bounds in the footer."""
    bounds = record.bounds
    title = f"ours ({record.backend}, {record.numerics} products) against transformers bf16"
    figures = ("n", "same", "place", "rms", "largest", "mean", "KL", "KL ≤")
    table = compact_table(title, ("prompt", "part"), figures, (VERDICT,))
    for trial in record.trials:
        for row in _rows(trial, bounds):
            table.add_row(*row)
    table.add_section()
    limits = (f"{bounds.top_k}", f"{bounds.rms:g}", f"{bounds.largest:g}", f"{bounds.bias_at_one:g}/√m")
    table.add_row("bound", "", "n", "", *limits, "", "", record.verdict)
    return table


def _rows(trial: Trial, bounds: Bounds) -> Iterator[tuple[str, ...]]:
    """The steps, with the free-running answer; the prompt's positions if they are compared."""
    expected, broken = trial.expected, {failure.part for failure in trial.failures}
    verdict = "FAIL" if broken - {POSITIONS, PENALTY} else "ok"
    yield (
        trial.prompt.name,
        "steps",
        *_numbers(_same(trial), trial.forced_distance, expected.rounding, bounds),
        verdict,
    )
    if expected.positions_rounding is not None:
        verdict = "FAIL" if POSITIONS in broken or trial.positions is None else "ok"
        numbers = _numbers("", trial.positions, expected.positions_rounding, bounds)
        yield trial.prompt.name, "prompt", *numbers, verdict
    if trial.penalty_kl:
        verdict = "FAIL" if PENALTY in broken else "ok"
        kl = f"{max(trial.penalty_kl):.1e}", f"{MIN_PENALTY_KL:.1e}"
        yield trial.prompt.name, "penalty", str(len(trial.penalty_kl)), *[""] * 5, *kl, verdict


def _same(trial: Trial) -> str:
    equal = len(trial.free_run.token_ids) if trial.free_run else 0
    return f"{equal if trial.divergence is None else trial.divergence} of {equal}"


def _numbers(same: str, ours: LogitsDistance | None, rounding: LogitsDistance, bounds: Bounds) -> list[str]:
    if ours is None:
        return ["-", same, *["-"] * 6]
    unit = rounding.total_rms or float("nan")
    return [
        str(ours.positions),
        same,
        str(ours.worst_place),
        *(f"{value / unit:.2f}" for value in (ours.total_rms, ours.most, ours.mean_bias)),
        f"{ours.mean_kl:.1e}",
        f"{kl_bound(rounding, bounds):.1e}",
    ]


def _other_tables(record: GateRecord) -> list[Table]:
    others = [*_layer_tables(record), *_identity_tables(record), *_result_tables(record)]
    return [*_filled_tables(record), *_conversation_tables(record), *others]


def _conversation_tables(record: GateRecord) -> Iterator[Table]:
    """A long conversation's answers, over all turns."""
    if not record.conversations:
        return
    figures = ("tokens", "n", "place", "rms", "largest", "mean", "KL", "KL ≤")
    table = compact_table("", ("conversation",), figures, (VERDICT,))
    for talk in record.conversations:
        n, _, *numbers = ["-"] * 8
        if talk.rounding is not None:
            n, _, *numbers = _numbers("", talk.distance, talk.rounding, record.bounds)
        verdict = "FAIL" if talk.failures else "ok"
        table.add_row(f"{talk.turns} turns", str(talk.tokens), n, *numbers, verdict)
    yield table


def _layer_tables(record: GateRecord) -> Iterator[Table]:
    """The step nearest its bound, of each layer report in prefill and in decode."""
    if not record.layer_reports:
        return
    figures = ("tokens", "steps")
    table = compact_table("", ("every step", "phase"), figures, ("nearest its bound", "used", VERDICT))
    for report in record.layer_reports:
        verdict = "FAIL" if report.failures else "ok"
        for phase, rows in report.phases.items():
            nearest = max(rows, key=lambda row: row.used)
            left = any(row.problem or row.drift for row in rows)
            where = nearest.place.removeprefix("decode, ")
            table.add_row(
                report.model, phase, str(report.tokens), str(len(rows)), where, percent(nearest.used),
                "FAIL" if left else "ok",
            )  # fmt: skip
        if report.broken:
            table.add_row(report.model, "-", str(report.tokens), "-", "-", "-", verdict)
    yield table


def _identity_tables(record: GateRecord) -> Iterator[Table]:
    if not record.identities:
        return
    table = compact_table("", ("same to the bit", "of"), ("numbers", "differ"), ("result",))
    for identities in record.identities:
        if identities.skipped:
            table.add_row(identities.name, identities.of, "-", "-", f"skipped: {identities.skipped}")
        else:
            verdict = "FAIL" if identities.failure else "ok"
            table.add_row(
                identities.name, identities.of, str(identities.compared), str(identities.differing), verdict
            )
    yield table


def _filled_tables(record: GateRecord) -> Iterator[Table]:
    if not record.diffusion_results:
        return
    figures = ("passes", "blocks", "n", "place", "rms", "largest", "KL", "sure")
    title = f"blocks filled in ({record.backend}, {record.numerics} products) against transformers bf16"
    table = compact_table(title, ("of", "prompt", "rule"), figures, (VERDICT,))
    for results in record.diffusion_results:
        verdict = "FAIL" if results.failures else "ok"
        counts = str(results.passes), str(results.blocks)
        if results.distance is None or results.rounding is None:
            table.add_row(results.whose, results.prompt, results.how, *counts, *["-"] * 6, verdict)
            continue
        n, _, place, rms, most, _, kl, _ = _numbers("", results.distance, results.rounding, record.bounds)
        table.add_row(
            results.whose,
            results.prompt,
            results.how,
            *counts,
            n,
            place,
            rms,
            most,
            kl,
            str(results.sure),
            verdict,
        )
    yield table


def _result_tables(record: GateRecord) -> Iterator[Table]:
    if not record.chunk_results:
        return
    figures = ("tokens", "laid", "n", "place", "rms", "KL", "KL to one text")
    table = compact_table(
        "chunks against transformers with the mode's mask", ("of", "mode"), figures, (VERDICT,)
    )
    for results in record.chunk_results:
        verdict = "FAIL" if results.failures else "ok"
        if results.distance is None or results.rounding is None:
            table.add_row(results.whose, results.mode, str(results.tokens), *["-"] * 6, verdict)
            continue
        n, _, place, rms, _, _, kl, _ = _numbers("", results.distance, results.rounding, record.bounds)
        counts = str(results.tokens), str(results.laid), n, place, rms, kl, f"{results.from_causal:.1e}"
        table.add_row(results.whose, results.mode, *counts, verdict)
    yield table


def save_record(record: GateRecord, model: str, path: Path) -> None:
    """Write the record as JSON, in one step. Raises UserError if that fails."""
    write_report(path, json.dumps(as_json(record, model), indent=1, allow_nan=False) + "\n")


def as_json(record: GateRecord, model: str) -> dict[str, Any]:
    """All results: tokens of both sides, numbers of each position, versions, bounds, verdict."""
    return {
        "verdict": record.verdict,
        "failures": [_failure(failure) for failure in record.failures],
        "model": model,
        "backend": record.backend,
        "numerics": record.numerics,
        "rounding": record.rounding,
        "bounds": asdict(record.bounds),
        "versions": {"aerie": VERSION, "python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in PACKAGES},
        "prompts": [_trial(trial) for trial in record.trials],
        "ladders": [_layer_json(report) for report in record.layer_reports],
        "bit_identity": [asdict(identity) for identity in record.identities],
        "chunks": [_result_json(result) for result in record.chunk_results],
        "blocks": [_result_json(result) for result in record.diffusion_results],
        "conversations": [_result_json(result) for result in record.conversations],
    }


def _failure(failure: GateFailure) -> dict[str, Any]:
    """A number that is not finite is null in JSON; the failure's text has it."""
    finite = failure.value is not None and math.isfinite(failure.value)
    return {**asdict(failure), "value": failure.value if finite else None, "text": str(failure)}


def _trial(trial: Trial) -> dict[str, Any]:
    run, expected = trial.free_run, trial.expected
    return {
        "name": trial.prompt.name,
        "prompt_token_ids": list(trial.prompt.token_ids),
        "reference_token_ids": expected.answer.token_ids,
        "our_token_ids": run.token_ids if run else None,
        "finish_reason": run.reason.value if run and run.reason else None,
        "divergence": trial.divergence,
        "steps": _distance(trial.forced_distance),
        "steps_rounding": _distance(expected.rounding),
        "positions": _distance(trial.positions),
        "positions_rounding": _distance(expected.positions_rounding),
        "penalty_kl": trial.penalty_kl,
    }


def _layer_json(report: LayerReport) -> dict[str, Any]:
    return {
        "model": report.model,
        "tokens": report.tokens,
        "broken": report.broken,
        "steps": [row_json(row) for row in report.rows],
    }


def _result_json(result: ChunkModeResult | DiffusionResult | ConversationResult) -> dict[str, Any]:
    distances = {name: _distance(getattr(result, name)) for name in ("distance", "rounding")}
    return {**vars(result), **distances, "failures": [_failure(failure) for failure in result.failures]}


def _distance(distance: LogitsDistance | None) -> dict[str, list[float]] | None:
    return None if distance is None else {name: array.tolist() for name, array in vars(distance).items()}
