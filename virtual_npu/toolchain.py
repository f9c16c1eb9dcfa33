"""From AIR text to a shared object: generate C++, compile it, compile external kernels, link."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import air_dialect
from virtual_npu import knobs
from virtual_npu.codegen.module import Generated, generate
from virtual_npu.compiler import INCLUDE, Compiler, find_compiler, stop
from virtual_npu.errors import ParseError, ToolchainError
from virtual_npu.external import ExternalKernel, KernelObject, kernel_objects
from virtual_npu.options import EXACT, BuildOptions
from virtual_npu.runtime_objects import FLAGS, compile_runtime


def emit(
    text: str,
    filename: str = "<string>",
    options: BuildOptions = EXACT,
    kernel_dirs: Sequence[Path] = (),
) -> Generated:
    """Parse AIR text and generate its C++, without compiling. Raises VirtualNpuError."""
    try:
        module = air_dialect.parse(text, filename)
    except air_dialect.AirParseError as error:
        raise ParseError(str(error)) from error
    return generate(module, text, options, kernel_dirs)


def build(
    text: str,
    output: Path,
    *,
    kernel_dirs: Sequence[Path] = (),
    filename: str = "<string>",
    options: BuildOptions | None = None,
    keep: Path | None = None,
) -> list[ExternalKernel]:
    """Build AIR text into the shared object `output`, which appears complete or not at all.

    `filename` names the text in messages; without `options`, those that the environment asks for hold.
    External kernels come from `kernel_dirs`, then from the project's kernels_cc; gives the ones the program
    calls. `keep` is a folder that receives the generated C++. Raises subclasses of VirtualNpuError: text that
    does not parse, an operation that is not supported, a kernel source that is not found, a missing compiler,
    what it refused.
    """
    options = options or BuildOptions.from_knobs()
    compiler = find_compiler(options)
    generated = emit(text, filename, options, kernel_dirs)
    sources = kernel_objects(generated.kernels, kernel_dirs)
    output = Path(output)
    kept_in = keep or (Path(knobs.KEEP.get()) if knobs.KEEP.get() else None)
    try:
        if kept_in:
            _keep(generated.text, kept_in, output.stem if filename == "<string>" else Path(filename).stem)
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=".work-") as scratch:
            _build_in(Path(scratch), compiler, generated, sources, output)
    except OSError as error:
        raise ToolchainError(
            f"cannot build {output}: {error}. Free space, or choose another folder"
        ) from error
    return generated.kernels


def _build_in(
    folder: Path, compiler: Compiler, generated: Generated, kernels: Sequence[KernelObject], output: Path
) -> None:
    """Compile in a scratch folder, link next to the output, and move the result into place."""
    main = folder / f"{output.stem}.cc"
    main.write_text(generated.text)
    runtime = [INCLUDE / "vnpu" / name for name in generated.runtime]
    objects = _compile_all(compiler, folder, main, runtime, kernels)
    descriptor, name = tempfile.mkstemp(dir=output.parent, prefix=f".{output.name}.")
    os.close(descriptor)
    try:
        compiler.link(objects, Path(name))
        os.chmod(name, 0o755)
        os.replace(name, output)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _keep(text: str, folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.cc").write_text(text)


Job = tuple[Path, Callable[[Path, Path], None]]
"""A source, and what makes its object."""


def _compile_all(
    compiler: Compiler, folder: Path, main: Path, runtime: Sequence[Path], kernels: Sequence[KernelObject]
) -> list[Path]:
    """Compile everything, several files at a time; gives the objects."""
    jobs: list[Job] = [(main, functools.partial(compiler.compile, extra=FLAGS))]
    for kernel in kernels:
        flags = (*FLAGS, f"-I{kernel.source.parent}", *kernel.flags)
        jobs.append((kernel.source, functools.partial(compiler.compile, extra=flags)))
    jobs += [(source, functools.partial(compile_runtime, compiler)) for source in runtime]
    objects = [folder / f"{number}_{source.stem}.o" for number, (source, _) in enumerate(jobs)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        running = [
            pool.submit(job, source, target) for (source, job), target in zip(jobs, objects, strict=True)
        ]
        try:
            for job in running:
                job.result()
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            stop()
            raise
    return objects
