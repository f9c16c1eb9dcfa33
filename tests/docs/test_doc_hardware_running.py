"""docs/hardware.md, "Running", against the code."""

import re

from doc_transcripts import DOCS, table

from runtime.npu import knobs, states
from runtime.npu.lock import UPSTREAM, DeviceLock

PAGE = "hardware.md"


def section():
    return re.search(r"\n## Running\n(.*?)\n## ", (DOCS / PAGE).read_text(), re.DOTALL)[1]


def test_states():
    ends = [final for value, final in states.FINAL.items() if value != states.COMPLETED]
    shown = table(PAGE, "state", "what happened", "usually")
    assert shown == [(final.name, final.meaning, final.usually) for final in ends]


def test_figures():
    text = section()
    assert f"slices of {states.SLICE_MS} ms" in text
    assert f"the driver has {knobs.MOST_CONTEXTS} for all processes" in text
    assert "Eight programs stay loaded" in text
    assert knobs.CONTEXTS.default == "8"
    assert f"`{DeviceLock().path.name}`" in text
    assert f"`{UPSTREAM}`" in text
