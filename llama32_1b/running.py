"""What runs a session's programs: one cache, and another in its place once that has failed.

    npu = Running(cache, report.note, prepare_stand_in)
    ... a step of the forward pass fails with RunError ...
    npu.recover(error, "at token 17")    # raises it again where there is no stand-in
    ... the step is run again ...

The unit that is run again is a step: the prompt, one token, one row of logits. Each reads tokens and the
counted positions of the KV cache and nothing else, so what a failed one left behind is overwritten, and no
token is lost or made twice. What the first cache computed stays in the KV cache.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from numpy.typing import NDArray

from multi_launch_builder import Program
from runtime import KernelCache, Recording, RunError, Static

Recover = Callable[[RunError, str], None]
"""Called with a failure and where it happened: makes programs run again, or raises the failure."""


def give_up(error: RunError, where: str) -> None:  # noqa: ARG001
    """There is nothing to go on with."""
    raise error


class Running:
    """A ProgramRunner whose cache can be replaced by a stand-in, once.

    `note` is told of a failure that was got over. `prepare` gives the stand-in with every weight in place; it
    is called when needed. `backend` says in one name what has run the session's programs.
    """

    def __init__(
        self,
        cache: KernelCache,
        note: Callable[[str], None],
        prepare: Callable[[], KernelCache] | None = None,
    ) -> None:
        self.cache = cache
        self.backend = cache.backend.name
        self._prepare = prepare
        self._note = note

    def run(
        self,
        program: Program,
        /,
        *,
        bo_key: str,
        outputs: Collection[str] | None = None,
        copy: bool = True,
        on_device: Collection[str] = (),
        **arrays: NDArray[Any],
    ) -> dict[str, NDArray[Any]]:
        return self.cache.run(
            program, bo_key=bo_key, outputs=outputs, copy=copy, on_device=on_device, **arrays
        )

    def record(self) -> Recording | None:
        return self.cache.record()

    def unfilled(self, program: Program, /, *, bo_key: str) -> Collection[str]:
        return self.cache.unfilled(program, bo_key=bo_key)

    def preload(self, program: Program, /, *, bo_key: str, **static: Static) -> None:
        self.cache.preload(program, bo_key=bo_key, **static)

    def recover(self, error: RunError, where: str) -> None:
        """Put the stand-in in the place of the cache that failed. Raises `error` where there is none.

        The failed cache is closed first: its device is free, and views on its buffers are dead.
        """
        if self._prepare is None:
            raise error
        prepare, self._prepare = self._prepare, None
        failed = self.cache
        self._note(
            f"\n{error}\nbackend {failed.backend.name} is given up {where}; preparing another for the rest"
        )
        failed.close()
        self.cache = prepare()
        self.backend = f"{failed.backend.name}, then {self.cache.backend.name}"
        self._note(f"going on {where} on backend {self.cache.backend.name}")
