"""KernelCache: programs compiled once, loaded once, and run on buffers that keep their weights.

It has three layers, each with its own lifetime and key:

1. artifacts on disk, permanent, by the hash of everything that made them (`artifacts.py`);
2. loaded programs, for the life of the cache object, one per artifact (`device.py`);
3. buffer-object sets, for the life of the cache object, one per program and `bo_key`. Sets may share buffers,
   so that one program reads what another wrote, without a copy (`buffers.py`).

A call is a value (`calls.py`), which is executed immediately or recorded and repeated. `run`, `record`,
`preload` and `buffer` take names. The roles in the program's argument table decide what is written and read
when. `load_and_run` takes arrays by position, with index sets.
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
from aerie.runtime.artifacts import Artifact, ArtifactInputs, ArtifactStore, Note
from aerie.runtime.backend import Backend
from aerie.runtime.buffers import NOTHING_SHARED, Array, BufferAllocator, BufferSet, Sharing, Static
from aerie.runtime.calls import ProgramCall, Recording
from aerie.runtime.device import OpenDevice
from aerie.runtime.errors import AerieRuntimeError, ArrayError
from aerie.runtime.parallel_compile import Begin, OnProgress, ParallelCompiler
from aerie.runtime.profiler import Profiler

if TYPE_CHECKING:
    from aerie.multi_launch_builder.program import Program


class KernelCache:
    """Compiles, loads and runs programs on one backend.

    report: receives one line about each unusual event that was handled, such as a damaged artifact; the
    default prints to standard error. One thread runs programs; several may compile.
    """

    def __init__(
        self,
        cache_dir: Path | str,
        backend: Backend,
        profiler: Profiler | None = None,
        report: Note | None = None,
        sharing: Sharing = NOTHING_SHARED,
    ) -> None:
        self.cache_dir = Path(cache_dir)
        self.backend = backend
        self.profiler = profiler or Profiler(enabled=False)
        report = report or _to_stderr
        self._store = ArtifactStore(self.cache_dir, report)
        self._programs: dict[str, tuple[Artifact, ArgumentTable]] = {}
        self._contexts = OpenDevice(backend.pyxrt, backend.access, backend.name, report, backend.device)
        self._buffers = BufferAllocator(self._contexts.buffer_object, sharing)
        self._sets: dict[tuple[str, str], BufferSet] = {}
        weakref.finalize(
            self, _release, self._sets, self._buffers, self._contexts
        )  # dropped, or at the interpreter's end

    # compile

    def compile_and_cache(self, program: Program) -> Artifact:
        """Compile the program unless the cache has it, and register its name in this object.

        Raises CompileError with the tool's own lines, and DiskFullError.
        """
        return self.compile_all([program], jobs=1)[program.name]

    def compile_all(
        self, programs: Sequence[Program], jobs: int | None = None, progress: OnProgress | None = None
    ) -> dict[str, Artifact]:
        """Compile several programs in parallel, at most `jobs` at a time (default: one per CPU).

        progress: called from the compiling threads. Returns the artifacts by program name. Raises as
        compile_and_cache.
        """
        artifacts = ParallelCompiler(self._compile_one, self.backend.toolchain, jobs, progress).compile(
            programs
        )
        for program, artifact in zip(programs, artifacts, strict=True):
            self._register(program, artifact)
        return {artifact.name: artifact for artifact in artifacts}

    def _compile_one(self, program: Program, begin: Begin) -> Artifact:
        toolchain = self.backend.toolchain
        recipe = ArtifactInputs(program.name, self.backend.name, program.text, toolchain.ingredients(program))

        def compile_in(work: Path) -> Path:
            with begin(self._store.rebuild_reason(recipe)):
                return toolchain.compile(program, work, self._store.store)

        return self._store.build(recipe, compile_in)

    def _register(self, program: Program, artifact: Artifact) -> None:
        registered = self._programs.get(program.name)
        if registered is not None and registered[0].key != artifact.key:
            self._drop_sets(program.name)  # same name, other program: its buffers do not fit any more
            self._contexts.release(registered[0])
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
        """Run a program on the buffers of `bo_key` (default: the program's name), with arrays by argument
        name.

        Every call passes every input. Weights and tables are passed once, here or to `preload`; no other
        argument can be passed. Returns the arrays of the arguments named in `outputs` (default: all of role
        output).
        With `copy=False` they are read-only views, which the next call that uses the buffer overwrites. A
        view that is passed to a program which shares its buffer is not copied. A view named in `on_device` is
        not transferred to the host, and only such a program may read it.

        Raises AerieRuntimeError if the program was not compiled, ArgumentTableError if a name is unknown,
        ArrayError if an array is missing, not allowed, or of another shape or dtype, and RunError if the run
        fails.
        """
        return self.call(program, bo_key, arrays, outputs, copy, on_device).execute(self.profiler)

    def call(
        self,
        program: Program | str,
        bo_key: str | None,
        arrays: Mapping[str, Array],
        outputs: Collection[str] | None,
        copy: bool,
        on_device: Collection[str],
    ) -> ProgramCall:
        """The call that `run` executes, as a value. Raises what `run` raises before the program runs."""
        buffers = self.buffer_set(program, bo_key)
        slots = buffers.outputs if outputs is None else [buffers.slot(output) for output in outputs]
        name = program if isinstance(program, str) else program.name
        return ProgramCall(name, buffers, buffers.slots(arrays), slots, copy, on_device)

    def record(self) -> Recording:
        """Start a recording: calls by name, and host work between them, that can be repeated."""
        return Recording(self.call, self.backend.access, self.profiler)

    def unfilled_weights(self, program: Program | str, /, bo_key: str | None = None) -> list[str]:
        """The weights and tables of `bo_key` that are not filled yet, through this set or one that shares
        them.
        """
        return self.buffer_set(program, bo_key).unfilled

    def preload(self, program: Program | str, /, bo_key: str | None = None, **statics: Static) -> None:
        """Write weights and tables to the buffers of `bo_key` once. A later call replaces the ones that it
        names.

        Each value is an array, or a function that fills the buffer it is given. Raises ArgumentTableError if
        a name is unknown, ArrayError if role, shape or dtype do not fit.
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
        """A writable view of an input, weight or table in the memory that the device reads.

        The next run uploads a weight or table once; every run uploads an input. Valid until `close`. Raises
        ArgumentTableError if the name is unknown, ArrayError if the program overwrites the argument.
        """
        buffers = self.buffer_set(program, bo_key)
        slot = buffers.slot(name)
        if slot in buffers.arguments.intermediate_indices:
            role = buffers.arguments[slot].role.value
            raise ArrayError(f"{buffers.label}: {name} is an {role}, which the program overwrites")
        return buffers.writable_view(slot)

    def shared_array(self, name: str, argument: Argument) -> Array:
        """A writable array in the buffer object `name`, of the argument's shape and dtype. Valid until
        `close`.

        A program whose input has that name in `sharing` reads the array without a copy when it is passed in;
        other programs copy it. The same name returns the same array. Raises RunError if no buffer can be
        allocated.
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

        The first call with a `bo_key` (default: the name) writes all arrays; later calls skip static and
        intermediate slots. Returns one array per argument: a read-only view for `output_indices` (default:
        the last), valid until the next call with this key, and an empty array for the others. Raises as `run`
        does, and ArrayError if the number of arrays or an index does not fit.
        """
        buffers = self.buffer_set(name, bo_key)
        slots = buffers.positions(len(inputs), output_indices, static_input_indices, intermediate_indices)
        arrays = {slot: inputs[slot] for slot in slots.per_call}
        for slot in slots.once:
            if not buffers.is_written(slot):
                arrays[slot] = inputs[slot]
        by_name = ProgramCall(name, buffers, arrays, slots.outputs).execute(self.profiler)
        results = list(buffers.nothing)
        for slot in slots.outputs:
            results[slot] = by_name[buffers.names[slot]]
        return tuple(results)

    # buffers and lifetime

    def buffer_set(self, program: Program | str, bo_key: str | None) -> BufferSet:
        """The buffers of a program for a key. Raises AerieRuntimeError if the program was not compiled."""
        name = program if isinstance(program, str) else program.name
        return self._sets.get((name, bo_key or name)) or self._new_set(name, bo_key or name)

    def artifact(self, name: str) -> Artifact:
        """The compiled program of that name. Raises AerieRuntimeError if it was not compiled."""
        return self._lookup(name)[0]

    def _lookup(self, name: str) -> tuple[Artifact, ArgumentTable]:
        if name not in self._programs:
            names = ", ".join(sorted(self._programs)) or "none yet"
            raise AerieRuntimeError(
                f"no program '{name}' in this cache ({names}); call compile_and_cache first"
            )
        return self._programs[name]

    def _new_set(self, name: str, bo_key: str) -> BufferSet:
        artifact, arguments = self._lookup(name)
        label = f"program '{name}'" if bo_key == name else f"program '{name}' on buffers '{bo_key}'"
        self._contexts.load(artifact)
        allocate = functools.partial(self._buffers.for_argument, label, bo_key)
        buffers = BufferSet(label, self.backend.pyxrt, self._contexts, artifact, arguments, allocate)
        self._sets[name, bo_key] = buffers
        return buffers

    def _drop_sets(self, name: str) -> None:
        for key in [key for key in self._sets if key[0] == name]:
            self._sets.pop(key).close()

    def close(self) -> None:
        """Release buffers, then programs, then the device. The cache can be used again, without
        the weights.
        """
        _release(self._sets, self._buffers, self._contexts)

    def __enter__(self) -> KernelCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _release(sets: dict[tuple[str, str], BufferSet], buffers: BufferAllocator, contexts: OpenDevice) -> None:
    """Release everything that a cache holds of its device, in XRT's order; the garbage collector has another
    one.
    """
    while sets:
        sets.popitem()[1].close()
    buffers.clear()
    contexts.close()


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)
