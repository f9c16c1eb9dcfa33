"""The child process of compile_ahead.py: compiles programs one after the other, in idle processor time.

Standard input has one line of JSON, and ends when the parent ends. Standard output gets the name of each
program that is compiled. The exit status is 0 if all are, or if there is too little memory to begin.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aerie.common.shown_names import one_line
from aerie.multi_launch_builder import ModelShape, program_store
from aerie.runtime import Backend, KernelCache, select_backend
from aerie.runtime.memory import available_bytes

FREE_SHARE = 2
"""A program is compiled only if so many times the memory that it takes is free."""


def main() -> int:
    """Compile the programs of the request on standard input. Returns the exit status."""
    use_idle_time()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    request = json.loads(sys.stdin.readline())
    backend = select_backend(request["backend"], request["numerics"], compile_only=True)
    threading.Thread(target=_end_with_parent, args=(backend,), daemon=True).start()
    try:
        for name in compiled(request, backend):
            print(name, flush=True)
    except KeyboardInterrupt:
        return 128 + signal.SIGTERM
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        print(one_line(reason or type(error).__name__), file=sys.stderr)
        return 1
    return 0


def use_idle_time() -> None:
    """Run this process and its children on one processor, whenever nothing else wants it."""
    os.nice(19)
    with contextlib.suppress(AttributeError, OSError):  # Linux has these; a container may forbid them
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def compiled(request: dict[str, Any], backend: Backend) -> Iterator[str]:
    """Compile the programs, and yield the name of each. Stops where memory is short."""
    cache = KernelCache(Path(request["cache_dir"]), backend, report=_ignore)
    shape = ModelShape(**request["shape"])
    for name in request["names"]:
        free = available_bytes()
        if free is not None and free < FREE_SHARE * backend.toolchain.memory_bytes:
            return
        cache.compile_all(program_store.load_programs_by_name(shape, [name]), jobs=1)
        yield name


def _ignore(_: str) -> None:
    """Nobody reads what is unusual here: the session finds it again."""


def _end_with_parent(backend: Backend) -> None:
    """End this process and its compilers when the parent has ended, however it did."""
    sys.stdin.read()
    backend.toolchain.stop()
    os._exit(1)
