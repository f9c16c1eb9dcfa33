"""`reduce`: the smallest text found that still fails as the program does."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.common.errors import ProgramError
from aerie.common.progress import working
from aerie.virtual_npu import child_process
from aerie.virtual_npu.commands import common, run
from aerie.virtual_npu.console import print_json
from aerie.virtual_npu.errors import OptionError

if TYPE_CHECKING:
    from aerie.virtual_npu.reduction import Failure, Reduction

MAX_TRIES, CANDIDATE_S = 1000, 60
STOPPED = 130


def add(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "reduce",
        help="find a smaller text that fails in the same way",
        description="Runs ever smaller texts, each in a process of its own, with the options of `run`. What "
        "fails with the same kind of error, in operations that the first error names, is kept. Ctrl-C ends "
        "the search with the smallest text so far.",
    )
    run.add_running(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="MLIR", help="file for the text; default: print")
    parser.add_argument(
        "--max-tries",
        type=int,
        default=MAX_TRIES,
        metavar="N",
        help=f"run no more than N texts (default: {MAX_TRIES})",
    )
    parser.add_argument(
        "--candidate-limit",
        type=int,
        default=CANDIDATE_S,
        metavar="S",
        help=f"give up a text that takes longer than S seconds (default: {CANDIDATE_S})",
    )
    common.add_json(parser)
    parser.set_defaults(command=_reduce)


def _reduce(options: argparse.Namespace) -> int:
    from aerie.virtual_npu import toolchain  # noqa: F401 - imported once, not in each process
    from aerie.virtual_npu.console import read_text
    from aerie.virtual_npu.reduction import Reduction

    run.check_combination(options)
    _check_bounds(options)
    original = read_text(options.file)
    # A second SIGINT comes where a terminal sends it to this process and to its parent.
    interrupt = signal.signal(signal.SIGINT, run.interrupt)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="vnpu-") as folder,
            working(f"running {options.file}") as show,
        ):
            runs = _Runs(options, Path(folder))
            failure = runs.failure(original)
            if failure is None:
                raise OptionError(
                    f"{options.file} runs without an error: there is nothing to reduce; give the options of "
                    "`aerie vnpu run` with which it fails"
                )
            lines = original.count("\n")
            reduction = Reduction(
                original, runs.test(failure), options.max_tries, _notice(show, lines, options.max_tries)
            )
            is_whole = _run_until_stopped(reduction)
    finally:
        signal.signal(signal.SIGINT, interrupt)
    _report(options, original, reduction, runs.last or failure, is_whole)
    return 0 if is_whole else STOPPED


def _check_bounds(options: argparse.Namespace) -> None:
    """Raises OptionError for bounds under which nothing is run."""
    for name, value in (("--max-tries", options.max_tries), ("--candidate-limit", options.candidate_limit)):
        if value < 1:
            raise OptionError(f"{name} {value} runs nothing: give a whole number from 1 on")


def _run_until_stopped(reduction: Reduction) -> bool:
    """Whether the search came to its end before Ctrl-C."""
    try:
        reduction.run()
    except KeyboardInterrupt:
        return False
    return True


def _notice(show: Callable[[str], None], lines: int, most: int) -> Callable[[str, int], None]:
    return lambda best, tries: show(
        f"reducing: {best.count(chr(10))} of {lines} lines, {tries} of at most {most} texts"
    )


class _Runs:
    """Runs of texts, each in a process that is forked for it.

    last: the failure of the last text that failed as wanted.
    """

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = argparse.Namespace(**vars(options))
        self._folder = folder
        self.last: Failure | None = None

    def test(self, wanted: Failure) -> Callable[[str], bool]:
        """A function that says whether a text fails as wanted."""

        def is_same(text: str) -> bool:
            found = self.failure(text)
            if found is None or not found.is_same_as(wanted):
                return False
            self.last = found
            return True

        return is_same

    def failure(self, text: str) -> Failure | None:
        """How a text fails; None if it does not."""
        from aerie.virtual_npu.reduction import Failure

        candidate, answer = self._folder / self._options.file.name, self._folder / "answer"
        candidate.write_text(text)
        answer.unlink(missing_ok=True)
        status = self._wait(self._fork(candidate, answer))
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            limit = f"the run did not end within {self._options.candidate_limit} s"
            crash = f"the program crashed ({signal.Signals(number).name})"
            return Failure("crash", limit if number == signal.SIGALRM else crash)
        found = json.loads(answer.read_text())
        return Failure(*found) if found else None

    def _fork(self, candidate: Path, answer: Path) -> int:
        """Start the run of a text in a group of processes of its own. Gives its process id."""
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            try:
                os.setpgid(0, 0)
                child_process.end_with_parent()
                self._run(candidate, answer)
            finally:
                os._exit(0 if answer.exists() else child_process.CRASHED)
        return child

    def _run(self, candidate: Path, answer: Path) -> None:
        """Run a text, and write a list of the kind and the message of its error; null if it has none."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.alarm(self._options.candidate_limit)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        failure: list[str] | None = None
        try:
            run.run_program(self._options, common.program(self._options, candidate))
        except ProgramError as error:
            failure = [error.kind, str(error)]
        except Exception as error:
            failure = ["defect", f"{type(error).__name__}: {error}"]
        answer.write_text(json.dumps(failure))

    @staticmethod
    def _wait(child: int) -> int:
        """The status of a process. On Ctrl-C, the process and what it started end too."""
        try:
            return os.waitpid(child, 0)[1]
        except KeyboardInterrupt:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise


def _report(
    options: argparse.Namespace, original: str, reduction: Reduction, failure: Failure, is_whole: bool
) -> None:
    from aerie.virtual_npu.arrays import write_output_file

    if options.output:
        write_output_file(options.output, lambda file: file.write(reduction.best.encode()))
    lines = [text.count("\n") for text in (original, reduction.best)]
    if options.json:
        print_json(
            {
                "ok": True,
                "text": reduction.best,
                "error": {"kind": failure.kind, "message": failure.message},
                "lines": lines[1],
                "lines_before": lines[0],
                "texts_run": reduction.tries,
                "stopped": not is_whole,
            }
        )
        return
    if not options.output:
        print(reduction.best, end="")
    stopped = "; stopped before the end" if not is_whole else ""
    print(
        f"{lines[1]} of {lines[0]} lines are left, after {reduction.tries} texts{stopped}; they fail with: "
        f"{failure.message}",
        file=sys.stderr,
    )
