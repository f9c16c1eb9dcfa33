"""Run a side in its own process, so that its memory can be measured. It answers calls, one JSON line each.

`python -m benchmarks.worker SIDE ARGUMENTS` makes benchmarks.sides.SIDES[SIDE] from the JSON object
ARGUMENTS. Each line `{"call": METHOD, "with": {...}}` on standard input is answered on standard output by
`{"answer": ...}`, or by `{"error": ...}` for a user's error. Other output goes to its log.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aerie.cli.command_line import USER_ERRORS
from aerie.common.errors import UserError
from aerie.virtual_npu.child_process import end_with_parent

REPOSITORY = Path(__file__).resolve().parents[1]


class SideProcess:
    """The parent's end of a side's process. `started`: time.perf_counter when it was started."""

    def __init__(self, side: str, arguments: Mapping[str, Any], log: Path, env: Mapping[str, str]) -> None:
        self._side, self._log = side, log
        command = [sys.executable, "-m", "benchmarks.worker", side, json.dumps(dict(arguments))]
        self.started = time.perf_counter()
        with log.open("w") as output:
            self._process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env={**os.environ, **env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            )

    def __call__(self, method: str, **arguments: Any) -> Any:
        """Call a method of the side. Raises UserError if the side does, or its process has ended."""
        assert self._process.stdin
        assert self._process.stdout
        line = ""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"call": method, "with": arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            raise UserError(self._failure_message(method))
        reply = json.loads(line)
        if "error" in reply:
            raise UserError(reply["error"])
        return reply["answer"]

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _failure_message(self, method: str) -> str:
        code = self._process.wait()
        lines = self._log.read_text(errors="replace").strip().splitlines()
        ending = f"signal {-code} (9: too little memory, most likely)" if code < 0 else f"exit code {code}"
        last_line = lines[-1] if lines else "nothing"
        return (
            f"the process of '{self._side}' ended during {method} with {ending}; it said: {last_line} "
            f"(all of it: {self._log})"
        )


@contextlib.contextmanager
def running_worker(
    side: str, arguments: Mapping[str, Any], log: Path, env: Mapping[str, str]
) -> Iterator[SideProcess]:
    """Start a side, and end it afterwards."""
    worker = SideProcess(side, arguments, log, env)
    try:
        yield worker
    finally:
        worker.close()


def serve(side: Any) -> None:
    """Answer calls until the end of standard input."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    for line in sys.stdin:
        call = json.loads(line)
        try:
            reply = {"answer": getattr(side, call["call"])(**call["with"])}
        except USER_ERRORS as error:
            reply = {"error": str(error)}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


if __name__ == "__main__":
    end_with_parent()
    from benchmarks.sides import SIDES

    serve(SIDES[sys.argv[1]](**json.loads(sys.argv[2])))
