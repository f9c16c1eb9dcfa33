"""`aerie test-toolchain`: needs no NPU and no driver, only the compilers of `make setup-npu`.

Our own check sees each program and kernel first, and may refuse it. The stages then run in parallel for
several of them, and the placed text and the modules of the device are run against their source. Exit codes: 0
no stage that can run here failed, 1 one did, 2 no stage can run.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from pathlib import Path

from aerie.board.toolchain.records import SubjectOutcome, comparison_lines, line_of, print_outcomes, record
from aerie.board.toolchain.results import compare, core_findings, product_note
from aerie.board.toolchain.subjects import SubjectChoice, ToolchainSubject
from aerie.cli.arguments import add_model, int_at_least
from aerie.cli.checkpoints import find_checkpoint
from aerie.common.errors import UserError
from aerie.engine.config import load_config
from aerie.engine.program_library import choose_seq_len
from aerie.engine.reporter import Reporter
from aerie.kernel_builder.weight_blocks import BF16, KINDS
from aerie.runtime.errors import CompileError
from aerie.runtime.npu.checks import preflight
from aerie.runtime.npu.stage_runner import StageRunner
from aerie.runtime.npu.stages import STAGES, StageFiles, StageOutcome, StageStatus, StageTools
from aerie.runtime.npu.tools import missing_list

RIGHT, WRONG = 0, 1
MAX_MIB = 16
"""Arguments of the demo's programs take a few MiB, and run with checks in seconds."""

KEPT = "every stage's texts and the tools' own words: NAME/ in the folder of --keep"
NOT_KEPT = "--keep FOLDER keeps every stage's texts and the tools' own words"

Note = Callable[[str], None]


def add_toolchain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a program, a kernel at all its shapes or at one; `programs`, `kernels` (default: both); a "
        "variant, such as AR-8xCL-512, or one of its programs",
    )
    add_model(parser)
    parser.add_argument(
        "--weights",
        choices=KINDS,
        default=BF16,
        help="of what kind the programs' matrices are (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="one record of JSON instead of the table")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep every stage's texts and logs there")
    parser.add_argument(
        "--run-up-to",
        type=int_at_least(0),
        default=MAX_MIB,
        metavar="MIB",
        help="run what was compiled against its source where the arguments take at most this many MiB; "
        "0 means never (default: %(default)s)",
    )


def run_test_toolchain(arguments: argparse.Namespace) -> int:
    """Take every program and kernel through upstream's compilers, stage by stage."""
    tools, report = StageTools.from_machine(), Reporter()
    if not tools.runnable:
        raise UserError(missing_list("no stage of the compilers can run here", tools.missing))
    config = load_config(find_checkpoint(arguments.model))
    seq_len = choose_seq_len(config, arguments.seq_len)
    choice = SubjectChoice(config.shape, seq_len, arguments.weights)
    chosen = choice.select(arguments.names)
    for line in describe_tools(tools):
        report.note(line)
    with _folder(arguments.keep) as folder:
        outcomes = run_all(
            choice.build(chosen),
            StageRunner(tools),
            folder,
            arguments.run_up_to,
            report.note,
        )
    of = {"model": arguments.model, "seq_len": seq_len, "weights": arguments.weights}
    if arguments.json:
        print(json.dumps(record(outcomes, tools, of), indent=1))
    else:
        weights = "" if arguments.weights == BF16 else f" in {arguments.weights}"
        title = f"{arguments.model}{weights}, {seq_len} tokens: upstream's compilers, stage by stage"
        print_outcomes(outcomes, title)
    report.note(KEPT if arguments.keep else NOT_KEPT)
    return RIGHT if all(outcome.is_right for outcome in outcomes) else WRONG


def describe_tools(tools: StageTools) -> Iterator[str]:
    """The tools that exist, and the stages that cannot run, with the reasons."""
    for name, path in tools.paths.items():
        yield f"{name}: {path} ({tools.version(name)})"
    yield from tools.missing
    for stage in STAGES:
        if why := tools.blocker(stage):
            yield f"stage {stage} is skipped: {why}"


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """The folder for the texts: `keep`, or a temporary one that is removed afterwards."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="aerie-toolchain-") as folder:
            yield Path(folder)
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {keep} ({error.strerror}); name another folder") from None
    yield keep.resolve()


def run_all(
    subjects: Iterator[ToolchainSubject], runner: StageRunner, folder: Path, most_mib: int, note: Note
) -> list[SubjectOutcome]:
    """The outcome of every subject, in order. The stages of several subjects run in parallel, one per CPU.

    Our own IR is built, checked and compared in this thread only. Ctrl-C ends the tools too.
    """
    waiting: dict[Future[list[StageOutcome]], ToolchainSubject] = {}
    outcomes: dict[str, SubjectOutcome] = {}
    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="stages") as pool:
        try:
            for subject in subjects:
                outcomes[subject.name] = outcome = _check(subject)
                if outcome.refused:
                    note(f"{subject.name}: refused by our own check")
                    continue
                work = _emptied(folder / subject.name)
                tell = functools.partial(_note_result, note, subject.name)
                waiting[pool.submit(runner.run, subject.program, work, tell)] = subject
            for future in as_completed(waiting):
                subject = waiting[future]
                outcome = _finish(subject, future.result(), folder / subject.name, most_mib)
                outcomes[subject.name] = outcome
                for line in comparison_lines(outcome):
                    note(line)
        except BaseException:
            _stop(pool, runner, list(waiting))
            raise
    return list(outcomes.values())


def _note_result(note: Note, name: str, result: StageOutcome) -> None:
    if result.status is not StageStatus.NOT_RUN:
        note(line_of(name, result))


def _check(subject: ToolchainSubject) -> SubjectOutcome:
    refused = ""
    try:
        preflight(subject.program)
    except CompileError as error:
        refused = error.cause
    return SubjectOutcome(subject.name, subject.kind, subject.program.flags, refused)


def _finish(
    subject: ToolchainSubject, results: Sequence[StageOutcome], work: Path, most_mib: int
) -> SubjectOutcome:
    texts = StageFiles(work, subject.name)
    compared = compare(subject, texts, most_mib)
    wrong = (str(finding) for result in results for finding in result.findings if finding.wrong)
    return SubjectOutcome(
        subject.name,
        subject.kind,
        subject.program.flags,
        results=tuple(results),
        compared=compared,
        products=product_note(texts),
        findings=(*wrong, *core_findings(texts)),
    )


def _emptied(work: Path) -> Path:
    """An empty folder for one subject. Raises UserError if the folder was not made by this command."""
    if work.exists() and not StageFiles(work, work.name).log.is_file():
        raise UserError(f"{work} is there, and is none of ours: name another folder with --keep")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    return work


def _stop(
    pool: ThreadPoolExecutor, runner: StageRunner, futures: Sequence[Future[list[StageOutcome]]]
) -> None:
    """End all tools repeatedly: a program may start its next stage meanwhile."""
    pool.shutdown(wait=False, cancel_futures=True)
    while not all(future.done() for future in futures):
        runner.stop()
        wait(futures, timeout=0.1)
