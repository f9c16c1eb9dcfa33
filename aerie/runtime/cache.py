"""KernelCache: programs compiled once, loaded once, and run on buffers that keep their weights.

Three layers, each with its own lifetime and key:

1. artifacts on disk, for good, by the hash of all that made them (`artifacts.py`);
2. loaded programs, for the life of the cache object, one per artifact (`device.py`);
3. buffer-object sets, for the life of the cache object, one per program and `bo_key`; sets may share buffers,
   so that one program reads where it lies what another wrote (`buffers.py`).

A call is a value (`calls.py`), made at once or noted to be repeated. `run`, `record`, `preload` and `buffer`
take names, and derive from the roles in the program's argument table what is written and read when;
`load_and_run` takes arrays by position with index sets.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from aerie.kernel_builder.arguments import Argument, ArgumentTable
from aerie.runtime.artifacts import Artifact, ArtifactStore, Recipe, Report
from aerie.runtime.backend import Backend
from aerie.runtime.buffers import NOTHING_SHARED, Array, Buffers, BufferSet, Sharing, Static
from aerie.runtime.calls import Call, Recording
from aerie.runtime.compiling import Begin, OnProgress, SideBySide
from aerie.runtime.device import Contexts
from aerie.runtime.errors import AerieRuntimeError, ArrayError
from aerie.runtime.profiler import Profiler

if TYPE_CHECKING:
    from aerie.multi_launch_builder.program import Program


class KernelCache:
    """Compiles, loads and runs programs on one backend.

    `report` receives one line for whatever is unusual but handled, such as a damaged artifact; by default it
    goes to standard error. One thread runs programs; compiling may use several.
    """

    def __init__(
        self,
        cache_dir: Path | str,
        backend: Backend,
        profiler: Profiler | None = None,
        report: Report | None = None,
        sharing: Sharing = NOTHING_SHARED,
    ) -> None:
        self.cache_dir = Path(cache_dir)
        self.backend = backend
        self.profiler = profiler or Profiler(enabled=False)
        report = report or _to_stderr
        self._store = ArtifactStore(self.cache_dir, report)
        self._programs: dict[str, tuple[Artifact, ArgumentTable]] = {}
        self._contexts = Contexts(backend.pyxrt, backend.access, backend.name, report, backend.device)
        self._buffers = Buffers(self._contexts.buffer_object, sharing)
        self._sets: dict[tuple[str, str], BufferSet] = {}
        weakref.finalize(
            self, _release, self._sets, self._buffers, self._contexts
        )  # dropped, or at the interpreter's end

    # compile

    def compile_and_cache(self, program: Program) -> Artifact:
        """Compile the program unless the cache holds it, and make its name known to this object.

        Raises CompileError with the tool's own lines, and DiskFullError.
        """
        return self.compile_all([program], jobs=1)[program.name]

    def compile_all(
        self, programs: Sequence[Program], jobs: int | None = None, progress: OnProgress | None = None
    ) -> dict[str, Artifact]:
        """As compile_and_cache, for several programs side by side, at most `jobs` at a time (default: one per
        CPU).

        `progress` is called from the compiling threads. Gives the artifacts by program name.
        """
        artifacts = SideBySide(self._compile_one, self.backend.toolchain, jobs, progress).compile(programs)
        for program, artifact in zip(programs, artifacts, strict=True):
            self._register(program, artifact)
        return {artifact.name: artifact for artifact in artifacts}

    def _compile_one(self, program: Program, begin: Begin) -> Artifact:
        toolchain = self.backend.toolchain
        recipe = Recipe(program.name, self.backend.name, program.text, toolchain.ingredients(program))

        def compile_in(work: Path) -> Path:
            with begin(self._store.why(recipe)):
                return toolchain.compile(program, work, self._store.store)

        return self._store.build(recipe, compile_in)

    def _register(self, program: Program, artifact: Artifact) -> None:
        known = self._programs.get(program.name)
        if known is not None and known[0].key != artifact.key:
            self._drop_sets(program.name)  # same name, other program: its buffers do not fit any more
            self._contexts.release(known[0])
        self._programs[program.name] = artifact, program.arguments
        self.profiler.declare(program.name, nbytes=sum(argument.nbytes for argument in program.arguments))

    # run by name

    def run(
        self,
        program: Program | str,
        /,
        *,
        bo_key: str | None = None,
        outputs: Collection[str] | None = None,
        copy: bool = True,
        on_device: Collection[str] = (),
        **arrays: Array,
    ) -> dict[str, Array]:
        """Run a program on the buffers of `bo_key` (default: the program's name) with arrays given by name.

        Every input is passed in every call; weights and tables once, here or by `preload`; no other argument
        ever. Gives the arrays of the arguments named in `outputs` (default: all of role output). With
        `copy=False` they are read-only views, which the next call with this key, or with one that shares the
        buffer, overwrites. A view that is passed on to a program which shares its buffer is not copied; one
        named in `on_device` is not even brought to the host, and only such a program may read it.

        Raises AerieRuntimeError for a program that was not compiled, ArgumentError for an unknown name,
        ArrayError for an array that is missing, not taken, or of another shape or dtype, and RunError.
        """
        return self.call(program, bo_key, arrays, outputs, copy, on_device).make(self.profiler)

    def call(
        self,
        program: Program | str,
        bo_key: str | None,
        arrays: Mapping[str, Array],
        outputs: Collection[str] | None,
        copy: bool,
        on_device: Collection[str],
    ) -> Call:
        """The call that `run` makes, as a value. Raises as `run` does, but for RunError of the run itself."""
        buffers = self.buffer_set(program, bo_key)
        wanted = buffers.outputs if outputs is None else [buffers.slot(output) for output in outputs]
        name = program if isinstance(program, str) else program.name
        return Call(name, buffers, buffers.slots(arrays), wanted, copy, on_device)

    def record(self) -> Recording:
        """A new recording, in which calls by name and host work between them are noted, to be repeated."""
        return Recording(self.call, self.backend.access, self.profiler)

    def unfilled(self, program: Program | str, /, bo_key: str | None = None) -> list[str]:
        """The weights and tables of `bo_key` still to be filled, through this set or one that shares them."""
        return self.buffer_set(program, bo_key).unfilled

    def preload(self, program: Program | str, /, bo_key: str | None = None, **statics: Static) -> None:
        """Write weights and tables to the buffers of `bo_key`, once; a later call replaces those it names.

        Each is an array, or a function that is called with the buffer and fills it in place. Raises
        ArgumentError for an unknown name, ArrayError for another role, shape or dtype.
        """
        buffers = self.buffer_set(program, bo_key)
        for name, static in statics.items():
            slot = buffers.slot(name)
            if slot not in buffers.arguments.static_input_indices:
                role = buffers.arguments[slot].role.value
                raise ArrayError(
                    f"{buffers.label}: {name} is an {role}; only weights and tables are preloaded"
                )
            buffers.fill(slot, static)

    def buffer(self, program: Program | str, bo_key: str | None, name: str) -> Array:
        """A writable view on an input, weight or table where the device reads it, to be filled in place.

        The next run takes over a weight or table, every run an input. Valid until `close`. Raises
        ArgumentError for an unknown name, ArrayError for an argument that the program overwrites.
        """
        buffers = self.buffer_set(program, bo_key)
        slot = buffers.slot(name)
        if slot in buffers.arguments.intermediate_indices:
            role = buffers.arguments[slot].role.value
            raise ArrayError(f"{buffers.label}: {name} is an {role}, which the program overwrites")
        return buffers.writable_view(slot)

    def array(self, name: str, argument: Argument) -> Array:
        """A writable array in a buffer object called `name`, of the argument's shape and dtype.

        A program for whose input `sharing` has that name, and which is given the array, reads it where it
        lies, as the host has filled it; any other takes a copy. The same name gives the same array, until
        `close`. Raises RunError.
        """
        return self._buffers.array(name, argument)

    # run by position

    def load_and_run(
        self,
        name: str,
        *inputs: Array,
        output_indices: Collection[int] | None = None,
        static_input_indices: Collection[int] = (),
        intermediate_indices: Collection[int] = (),
        bo_key: str | None = None,
    ) -> tuple[Array, ...]:
        """Run a program with one array per argument, in table order.

        The first call with a `bo_key` (default: the name) writes all arrays; later ones skip static and
        intermediate slots. Gives one array per argument: a read-only view for `output_indices` (default: the
        last), valid until the next call with this key, and an empty array for all others. Raises as `run`
        does, and ArrayError for a number of arrays or an index that does not fit.
        """
        buffers = self.buffer_set(name, bo_key)
        slots = buffers.positions(len(inputs), output_indices, static_input_indices, intermediate_indices)
        arrays = {slot: inputs[slot] for slot in slots.every}
        for slot in slots.once:
            if not buffers.is_written(slot):
                arrays[slot] = inputs[slot]
        found = Call(name, buffers, arrays, slots.wanted).make(self.profiler)
        results = list(buffers.nothing)
        for slot in slots.wanted:
            results[slot] = found[buffers.names[slot]]
        return tuple(results)

    # buffers and lifetime

    def buffer_set(self, program: Program | str, bo_key: str | None) -> BufferSet:
        """The buffers of a program under a key. AerieRuntimeError for a program that was not compiled."""
        name = program if isinstance(program, str) else program.name
        return self._sets.get((name, bo_key or name)) or self._new_set(name, bo_key or name)

    def artifact(self, name: str) -> Artifact:
        """The compiled program of that name. AerieRuntimeError for one that was not compiled."""
        return self._known(name)[0]

    def _known(self, name: str) -> tuple[Artifact, ArgumentTable]:
        if name not in self._programs:
            known = ", ".join(sorted(self._programs)) or "none yet"
            raise AerieRuntimeError(
                f"no program '{name}' in this cache ({known}); call compile_and_cache first"
            )
        return self._programs[name]

    def _new_set(self, name: str, bo_key: str) -> BufferSet:
        artifact, arguments = self._known(name)
        label = f"program '{name}'" if bo_key == name else f"program '{name}' on buffers '{bo_key}'"
        self._contexts.load(artifact)
        allocate = functools.partial(self._buffers.of, label, bo_key)
        buffers = BufferSet(label, self.backend.pyxrt, self._contexts, artifact, arguments, allocate)
        self._sets[name, bo_key] = buffers
        return buffers

    def _drop_sets(self, name: str) -> None:
        for key in [key for key in self._sets if key[0] == name]:
            self._sets.pop(key).close()

    def close(self) -> None:
        """Release buffers, then programs, then the device. The cache can be used again; weights are gone."""
        _release(self._sets, self._buffers, self._contexts)

    def __enter__(self) -> KernelCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _release(sets: dict[tuple[str, str], BufferSet], buffers: Buffers, contexts: Contexts) -> None:
    """All that a cache holds of its device, in XRT's order, which the garbage collector does not know."""
    while sets:
        sets.popitem()[1].close()
    buffers.clear()
    contexts.close()


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)
