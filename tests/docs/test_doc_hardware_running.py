"""board.md, "Running", against the code."""

import re

from doc_transcripts import DOCS, table

from aerie.runtime import knobs
from aerie.runtime.npu import failures
from aerie.runtime.npu.lock import UPSTREAM, DeviceLock

PAGE = "explanation/board.md"


def section():
    return re.search(r"\n## Running\n(.*?)\n## ", (DOCS / PAGE).read_text(), re.DOTALL)[1]


def test_states():
    ends = [final for value, final in failures.FINAL.items() if value != failures.COMPLETED]
    shown = table(PAGE, "state", "what happened", "usually")
    assert shown == [(final.name, final.meaning, final.usually) for final in ends]


def test_figures():
    text = section()
    assert f"slices of {failures.SLICE_MS} ms" in text
    assert f"the driver has {knobs.NPU_MOST_CONTEXTS} for all processes" in text
    assert "Eight programs stay loaded" in text
    assert knobs.NPU_CONTEXTS.default == "8"
    assert f"`{DeviceLock().path.name}`" in text
    assert f"`{UPSTREAM}`" in text
