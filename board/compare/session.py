"""The whole comparison: item by item, whatever becomes of each, until the device is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from board.compare.items import Item
from board.compare.processes import MakeBackend, compare_apart, limits_s
from board.compare.records import Outcome, Status, as_json
from verify.files import write_whole

OnItem = Callable[[Item, str], None]
"""Called with an item and what is being done with it."""

CompareOne = Callable[[Item, Callable[[str], None]], Outcome]
"""Compares one item, telling its phases."""


def compare_all(items: Sequence[Item], compare_one: CompareOne, on_item: OnItem) -> Iterator[Outcome]:
    """The outcomes, in order. Once the device is lost, all that is left was not run."""
    lost: Item | None = None
    for item in items:
        if lost is not None:
            yield Outcome(item, Status.NOT_RUN, message=f"{lost} left a device that answers no more")
            continue
        outcome = compare_one(item, lambda phase, item=item: on_item(item, phase))  # type: ignore[misc]
        lost = item if outcome.lost else None
        yield outcome


def in_processes(make_backend: MakeBackend, cache_dir: Path, logs: Path) -> CompareOne:
    """Compares each item in a process of its own, its log in the folder `logs`.

    Raises UserError for an AERIE_NPU_TIMEOUT that makes no sense.
    """
    limits = limits_s()

    def compare_one(item: Item, on_phase: Callable[[str], None]) -> Outcome:
        log = logs / f"{item.kind}-{item.name}-{item.case}.log"
        outcome = compare_apart(item, make_backend, cache_dir, log, on_phase, limits)
        return replace(outcome, log=log.name)

    return compare_one


def save(outcomes: Sequence[Outcome], backend: str, path: Path) -> None:
    """The record as JSON, in one step. Raises OSError."""
    record = {
        "backend": backend,
        "against": "the virtual NPU, exact and bfp16",
        "right": all(outcome.status.is_right for outcome in outcomes),
        "items": [_entry(outcome) for outcome in outcomes],
    }
    write_whole(path, json.dumps(record, indent=1, allow_nan=False) + "\n")


def _entry(outcome: Outcome) -> dict[str, object]:
    entry: dict[str, object] = as_json(outcome)
    guilty = outcome.guilty
    return {**entry, "numerics": outcome.numerics, "first_at_fault": guilty.launch if guilty else None}
