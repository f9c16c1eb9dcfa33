"""What limits each launch of a token and of a prefill of Llama-3.2-1B, for docs/dev/predicted-times.md."""

from __future__ import annotations

from collections.abc import Iterator

from aerie.multi_launch_builder.program_store import load_programs
from aerie.multi_launch_builder.shapes import LLAMA_3_2_1B
from aerie.virtual_npu.timing import LaunchPrediction, predict
from benchmarks.board_times.programs import PROGRAM_NAMES, PROMPT_TOKENS

COLUMNS = ("program", "launch", "us", "share", "limit", "of it", "GB/s", "TFLOP/s")
MARK = "<!-- made by python -m benchmarks.board_times --programs -->"


def limits_table() -> str:
    """The table in Markdown, with the mark that says what made it."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *_rows()]
    return "\n".join((MARK, "", *(f"| {' | '.join(row)} |" for row in rows)))


def _rows() -> Iterator[tuple[str, ...]]:
    for name, program in load_programs(LLAMA_3_2_1B, PROMPT_TOKENS, PROGRAM_NAMES).items():
        prediction = predict(program.text, filename=name)
        for launch in prediction.launches:
            yield (f"`{name}`", launch.name, *_figures(launch, prediction.total_us))


def _figures(launch: LaunchPrediction, total_us: float) -> tuple[str, ...]:
    return (
        f"{launch.us:,.0f}",
        f"{launch.us / total_us:.0%}",
        launch.limited_by,
        f"{launch.path_us[launch.limited_by] / launch.us:.0%}",
        f"{launch.ddr_bytes / launch.us / 1e3:.1f}",
        f"{2 * launch.macs / launch.us / 1e6:.2f}" if launch.macs else "-",
    )
