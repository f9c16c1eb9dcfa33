"""From AIR text to a shared object: generate C++, compile it, compile external kernels, link."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import air_dialect
from virtual_npu import knobs
from virtual_npu.codegen.module import ExternalKernel, Generated, generate
from virtual_npu.errors import KernelSourceError, ToolchainError, VirtualNpuError
from virtual_npu.options import EXACT, BuildOptions

PACKAGE = Path(__file__).resolve().parent
INCLUDE = PACKAGE / "include"
OWN_KERNELS = PACKAGE.parent / "kernels_cc"

_FLAGS = [
    "-std=c++20",
    "-fPIC",
    "-pthread",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-Wno-psabi",
]


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler and its flags."""

    path: str
    flags: tuple[str, ...]

    def compile(self, source: Path, target: Path, extra: Sequence[str] = ()) -> None:
        """Compile one file to an object. Raises ToolchainError with the compiler's own lines."""
        self._run([*self.flags, *extra, "-c", str(source), "-o", str(target)], f"compiling {source.name}")

    def link(self, objects: Sequence[Path], target: Path) -> None:
        """Link objects to a shared object; undefined symbols are errors."""
        names = [str(path) for path in objects]
        sanitizers = [flag for flag in self.flags if flag.startswith("-fsanitize")]
        # The sanitizers' own symbols come with the process that loads the object.
        complete = [] if sanitizers else ["-Wl,--no-undefined"]
        self._run(
            ["-shared", "-pthread", *sanitizers, *complete, *names, "-o", str(target), "-lm"], "linking"
        )

    def _run(self, arguments: Sequence[str], what: str) -> None:
        done = subprocess.run([self.path, *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ToolchainError(f"{what} failed; {self.path} says:\n{done.stderr.strip()}")


_SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize=alignment", "-fno-omit-frame-pointer", "-g1")


def find_compiler(options: BuildOptions = EXACT) -> Compiler:
    """The compiler that the knobs or the system name. Raises ToolchainError when there is none."""
    named = knobs.CXX.get() or os.environ.get("CXX", "")
    candidates = [named] if named else ["c++", "g++", "clang++"]
    for candidate in candidates:
        path = shutil.which(candidate)
        if path:
            march = knobs.MARCH.get()
            tuning = () if march == "none" else (f"-march={march}",)
            sanitize = _SANITIZE if options.sanitize else ()
            return Compiler(path, (*_FLAGS, f"-O{knobs.OPT.get()}", *tuning, *sanitize, *options.defines))
    raise ToolchainError(
        f"no C++ compiler: looked for {', '.join(candidates)}. Install one (Debian, Ubuntu: apt install g++; "
        "Fedora: dnf install gcc-c++) or name it with VNPU_CXX"
    )


def emit(text: str, filename: str = "<string>", options: BuildOptions = EXACT) -> Generated:
    """Parse AIR text and generate its C++, without compiling. Raises VirtualNpuError."""
    try:
        module = air_dialect.parse(text, filename)
    except air_dialect.AirParseError as error:
        raise VirtualNpuError(str(error)) from error
    return generate(module, text, options)


def build(
    text: str,
    output: Path,
    *,
    kernel_dirs: Sequence[Path] = (),
    filename: str = "<string>",
    options: BuildOptions | None = None,
) -> None:
    """Build AIR text into the shared object `output`, which appears complete or not at all.

    `filename` names the text in messages; without `options`, those that the environment asks for hold.
    External kernels come from `kernel_dirs`, then from the project's kernels_cc. Raises subclasses of
    VirtualNpuError: text that does not parse, an operation that is not supported, a kernel source that
    is not found, a missing compiler, what it refused.
    """
    options = options or BuildOptions.from_knobs()
    compiler = find_compiler(options)
    generated = emit(text, filename, options)
    sources = _kernel_objects(generated.kernels, kernel_dirs)
    output = Path(output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="vnpu-") as scratch:
            _build_in(Path(scratch), compiler, generated, sources, output)
    except OSError as error:
        raise ToolchainError(
            f"cannot build {output}: {error}. Free space, or choose another folder"
        ) from error


def _build_in(
    folder: Path, compiler: Compiler, generated: Generated, kernels: Sequence[_KernelObject], output: Path
) -> None:
    """Compile in a scratch folder, link next to the output, and move the result into place."""
    main = folder / f"{output.stem}.cc"
    main.write_text(generated.text)
    if knobs.KEEP.get():
        _keep(main)
    runtime = [INCLUDE / "vnpu" / name for name in generated.runtime]
    objects = _compile_all(compiler, folder, [main, *runtime], kernels)
    descriptor, name = tempfile.mkstemp(dir=output.parent, prefix=f".{output.name}.")
    os.close(descriptor)
    try:
        compiler.link(objects, Path(name))
        os.chmod(name, 0o755)
        os.replace(name, output)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _keep(source: Path) -> None:
    folder = Path(knobs.KEEP.get())
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, folder / source.name)


@dataclass(frozen=True)
class _KernelObject:
    source: Path
    flags: tuple[str, ...]

    @property
    def described(self) -> str:
        """File name and defines, for messages."""
        return " ".join([self.source.name, *self.flags])


def _kernel_objects(kernels: Sequence[ExternalKernel], kernel_dirs: Sequence[Path]) -> list[_KernelObject]:
    """One object per link_with name; its source is looked up in `kernel_dirs`, then in kernels_cc."""
    found: dict[str, tuple[ExternalKernel, _KernelObject]] = {}
    folders = [*map(Path, kernel_dirs), OWN_KERNELS]
    for kernel in kernels:
        flags = tuple(f"-D{define}" for define in kernel.defines)
        item = _KernelObject(_find_source(kernel, folders), flags)
        known = found.setdefault(kernel.object_name, (kernel, item))
        if known[1] != item:
            raise KernelSourceError(
                f"@{known[0].symbol} and @{kernel.symbol} both link with {kernel.object_name}, but name "
                f"different sources or defines ({known[1].described} and {item.described}): give one of them "
                "another link_with"
            )
    return [item for _, item in found.values()]


def _find_source(kernel: ExternalKernel, folders: Sequence[Path]) -> Path:
    for folder in folders:
        path = folder / kernel.source_name
        if path.is_file():
            return path
    looked = ", ".join(str(folder) for folder in folders)
    raise KernelSourceError(
        f"line {kernel.line}: @{kernel.symbol} links with {kernel.object_name}, but {kernel.source_name} is "
        f"in none of: {looked}. Put it there, name its folder with --kernel-dir, or set link_source"
    )


def _compile_all(
    compiler: Compiler, folder: Path, own: Sequence[Path], kernels: Sequence[_KernelObject]
) -> list[Path]:
    """Compile everything, several files at a time; gives the objects."""
    jobs: list[tuple[Path, tuple[str, ...]]] = [(source, (f"-I{INCLUDE}",)) for source in own]
    for kernel in kernels:
        paths = (f"-I{OWN_KERNELS / 'host'}", f"-I{kernel.source.parent}")
        jobs.append((kernel.source, (*paths, *kernel.flags)))
    objects = [folder / f"{number}_{source.stem}.o" for number, (source, _) in enumerate(jobs)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        running = [
            pool.submit(compiler.compile, source, target, extra)
            for (source, extra), target in zip(jobs, objects, strict=True)
        ]
        for job in running:
            job.result()
    return objects
