"""From AIR text to a shared object: generates C++, and compiles the parts that are not in the store yet."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from aerie import air_dialect
from aerie.common.compiler import Compiler, known_compilers
from aerie.common.errors import ToolchainError, UndefinedError
from aerie.common.knobs import cpp_copy_folder
from aerie.common.store import Store, programs_store, read_content, write_atomic
from aerie.device.errors import KernelSourceError, ParseError
from aerie.device.external_kernels import ExternalKernel, kernel_objects
from aerie.virtual_npu.codegen.module import GeneratedCpp, generate
from aerie.virtual_npu.codegen.passes.pipeline import advance
from aerie.virtual_npu.codegen.unranked import give_elements
from aerie.virtual_npu.errors import OptionError
from aerie.virtual_npu.objects import HEADERS, INCLUDE, TranslationUnit, shared_object
from aerie.virtual_npu.options import EXACT, BuildOptions

STRING = "<string>"
"""The name, in messages, of text that comes from no file."""


def emit(
    text: str,
    filename: str = STRING,
    options: BuildOptions = EXACT,
    kernel_dirs: Sequence[Path] = (),
) -> GeneratedCpp:
    """Parse AIR text and generate its C++, without compiling. Raises ProgramError."""
    return _generated(text, filename, options, kernel_dirs)[0]


def _generated(
    text: str,
    filename: str,
    options: BuildOptions,
    kernel_dirs: Sequence[Path],
    module: ModuleOp | None = None,
) -> tuple[GeneratedCpp, BuildOptions]:
    """The C++ of a text, and the options to compile it with: cores of devices check bounds alone."""
    module = _parse(text, filename) if module is None else module.clone()
    give_elements(module, options.elements)
    if not _has_devices(module):
        return generate(module, text, options, kernel_dirs), options
    from aerie.virtual_npu.aie import module as aie  # a quarter of all imports, which AIR programs do without

    if options.stop_lines:
        raise OptionError(
            "a module with aie.device does not stop at a line: leave --stop-at out, or run the AIR program"
        )
    unchecked = replace(options, checks=False)
    return aie.generate(module, text, unchecked, checks_bounds=options.checks), unchecked


def _has_devices(module: ModuleOp) -> bool:
    """Whether a module is one of the AIE level."""
    return any(op.name == "aie.device" for op in module.body.block.ops)


def ir_at_stage(text: str, stage: str, filename: str = STRING, options: BuildOptions = EXACT) -> str:
    """The IR of AIR text at a stage on its way to C++ (one of `STAGES`), as text. Raises ProgramError."""
    module = _parse(text, filename)
    if not _has_devices(module):  # those are run as they are written
        advance(module, options, stage=stage)
    return air_dialect.print_module(module)


def _parse(text: str, filename: str) -> ModuleOp:
    try:
        return air_dialect.parse(text, filename, check_loops=True)
    except air_dialect.AirParseError as error:
        raise ParseError(str(error)) from error


def parameters_text(text: str, filename: str = STRING) -> str:
    """The scratchpad's parameters of a module with `aie.device`, as mlir-aie's hosts read them from a file.

    Raises ProgramError.
    """
    from aerie.virtual_npu.aie import scratchpads

    return scratchpads.parameters_text(_parse(text, filename))


def instructions_header(text: str, filename: str = STRING) -> str:
    """A C++ header with the instructions of a module with `aie.device`, whose sequences take numbers.

    Raises ProgramError.
    """
    from aerie.virtual_npu.aie import host_files

    return host_files.instructions_header(_parse(text, filename))


@dataclass(frozen=True)
class Cpp:
    """A program's C++: what was generated, the external kernels it calls, the runtime."""

    compilers: list[Compiler]
    units: list[TranslationUnit]
    kernels: list[ExternalKernel]

    def shared_object(self, store: Store | Path) -> Path:
        """The C++ compiled and linked, from the store; without a store, made in the folder that is given.

        Raises KernelSourceError for an external kernel that its source does not define, ToolchainError with
        the compiler's own lines, and OSError.
        """
        try:
            return shared_object(self.compilers, self.units, store)
        except UndefinedError as error:
            for kernel in self.kernels:
                if error.names(kernel.cpp_name):
                    raise KernelSourceError(
                        f"line {kernel.line}: @{kernel.symbol} links with {kernel.object_name}, but "
                        f'{kernel.source_name} does not define extern "C" {kernel.cpp_name}: define it '
                        "there, or name another link_source; functions of the system are not called"
                    ) from error
            raise


def generate_cpp(
    text: str,
    name: str,
    options: BuildOptions,
    kernel_dirs: Sequence[Path],
    *,
    filename: str = STRING,
    keep: Path | None = None,
    module: ModuleOp | None = None,
) -> Cpp:
    """The C++ of AIR text, not compiled yet. Its file is named after `filename`, else `name`.

    keep: a folder for a copy. module: what the text is printed from, as for `build`. Raises ProgramError and
    OSError.
    """
    generated, options = _generated(text, filename, options, kernel_dirs, module)
    compilers = known_compilers(options.compiler_flags)
    main = Path(f"{name if filename == STRING else Path(filename).stem}.cc")
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / main).write_text(generated.text)
    external = [
        TranslationUnit(kernel.source, folders=(*HEADERS, kernel.source.parent), flags=kernel.flags)
        for kernel in kernel_objects(generated.kernels, kernel_dirs)
    ]
    if options.checks and external:
        external = [_marker("begin"), *external, _marker("end")]
    runtime = [TranslationUnit(INCLUDE / "vnpu" / source) for source in generated.runtime]
    return Cpp(compilers, [TranslationUnit(main, generated.text), *external, *runtime], generated.kernels)


def _marker(end: str) -> TranslationUnit:
    """A unit that marks the start or end of the kernels' variables, for include/vnpu/garbage.cc.

    The linker places variables in the order of the objects.
    """
    name = f"vnpu_statics_{end}"
    return TranslationUnit(
        Path(f"statics_{end}.cc"), f'extern "C" {{ alignas(64) char {name}[64]; }}\n', folders=()
    )


def build(
    text: str,
    output: Path,
    *,
    kernel_dirs: Sequence[Path] = (),
    filename: str = STRING,
    options: BuildOptions | None = None,
    keep: Path | None = None,
    use_cache: bool = True,
    module: ModuleOp | None = None,
) -> list[ExternalKernel]:
    """Build AIR text into the shared object `output`, which appears complete or not at all.

    `filename` names the text in messages; without `options`, those that the environment asks for hold.
    External kernels come from `kernel_dirs`, then from the project's kernels_cc; gives the ones the program
    calls. `keep` is a folder that receives the generated C++. With `use_cache`, what was compiled before is
    not compiled again. `module` is what `air_dialect.print_as_source` made the text of, verified: the text is
    then not read. It is left as it is. Raises subclasses of ProgramError: text that does not parse, an
    operation that is not supported, a kernel source that is not found, a missing compiler, what it refused.
    """
    options, keep, output = options or BuildOptions.from_knobs(), keep or cpp_copy_folder(), Path(output)
    try:
        cpp = generate_cpp(
            text, output.stem, options, kernel_dirs, filename=filename, keep=keep, module=module
        )
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=".work-") as work:
            store = programs_store() if use_cache else None
            library = cpp.shared_object(Path(work) if store is None else store)
            write_atomic(output, lambda file: file.write(read_content(library)), mode=0o755)
    except OSError as error:
        raise ToolchainError.of_system(output, error) from error
    return cpp.kernels
