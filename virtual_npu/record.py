"""What a run recorded, for viewers of traces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CLOCK = (
    "program order of the schedule: one step per event; not hardware time, and nothing about how long "
    "anything takes on an NPU"
)


def chrome_trace(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as Perfetto and chrome://tracing read it: a line per tile, engine and channel.

    `ts` and `dur` are steps of the schedule, shown as microseconds.
    """
    named = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": name}}
        for number, name in enumerate(record.get("threads", ()))
    ]
    process = {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": f"virtual NPU ({CLOCK})"}}
    return {
        "traceEvents": [process, *named, *record.get("trace", ())],
        "displayTimeUnit": "ns",
        "otherData": {"clock": CLOCK},
    }
