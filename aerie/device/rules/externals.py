"""Functions written in C++: an object file for each, a source for each object, a definition in the source."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from xdsl.dialects.builtin import IndexType, StringAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation

from aerie.air_dialect.ops import HerdOp
from aerie.air_dialect.verifiers import parent_ops
from aerie.device import external_kernels
from aerie.device.external_kernels import OWN_KERNELS
from aerie.device.npu2 import LINKING, TO_AIE
from aerie.device.report import Fault, Finding
from aerie.device.scopes import CheckedProgram, op_location

KIND = "external"
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"\n]+)"', re.MULTILINE)


def check_external_symbols(program: CheckedProgram) -> Iterator[Finding]:
    """Every function that is called and has no body, once."""
    functions = {op.sym_name.data: op for op in program.module.walk() if isinstance(op, FuncOp)}
    seen: dict[tuple[str, str | None], CallOp] = {}
    for call in program.module.walk():
        if not isinstance(call, CallOp):
            continue
        name = call.callee.root_reference.data
        function = functions.get(name)
        if function is not None and not function.is_declaration:
            continue
        linked = attribute_text_of(function, "link_with") or _herd_object(call)
        if (name, linked) not in seen:
            seen[name, linked] = call
            yield from _external(program, call, function, linked)
            yield from _index_arguments(call)
    yield from _one_object_each(seen)
    yield from _one_source_each(functions)
    yield from _bodiless(program)


def _one_object_each(calls: Mapping[tuple[str, str | None], CallOp]) -> Iterator[Fault]:
    """A symbol stands for one function in the whole program."""
    first: dict[str, str | None] = {}
    for (name, linked), call in calls.items():
        if first.setdefault(name, linked) != linked:
            message = (
                f"@{name} links with {first[name]} and with {linked}; give each variant a name of its own"
            )
            yield Fault(KIND, op_location(call), message, LINKING, call)


def _one_source_each(functions: Mapping[str, FuncOp]) -> Iterator[Fault]:
    """An object file is built from one source with one set of defines."""
    first: dict[str, tuple[str, FuncOp]] = {}
    for name, function in functions.items():
        linked = attribute_text_of(function, "link_with")
        if linked is None:
            continue
        build = [_source_name(function, linked), *_build(function)]
        made = " ".join(filter(None, build))
        known, other = first.setdefault(linked, (made, function))
        if known != made:
            message = (
                f"@{other.sym_name.data} and @{name} link with {linked}, made of {known} and of {made}; name "
                "another object for one"
            )
            yield Fault(KIND, op_location(function), message, LINKING, function)


def _build(function: FuncOp) -> tuple[str | None, str | None]:
    """The macros and the level of optimisation of a function's object."""
    return attribute_text_of(function, "link_defines"), attribute_text_of(function, "link_optimize")


def attribute_text_of(op: Operation | None, name: str) -> str | None:
    """A string among the attributes and properties of an operation."""
    if op is None:
        return None
    found = op.attributes.get(name, op.properties.get(name))
    return found.data if isinstance(found, StringAttr) else None


def _herd_object(op: Operation) -> str | None:
    """The object file of the herd around: a function without its own is looked for there."""
    herd = next((parent for parent in parent_ops(op) if isinstance(parent, HerdOp)), None)
    return attribute_text_of(herd, "link_with")


def _external(
    program: CheckedProgram, call: CallOp, function: FuncOp | None, linked: str | None
) -> Iterator[Fault]:
    name, place = call.callee.root_reference.data, op_location(call)
    if linked is None:
        what = "is declared nowhere" if function is None else "has no body and no link_with"
        message = f'@{name} {what}; declare it with attributes {{link_with = "{name}.o"}}'
        yield Fault(KIND, place, message, TO_AIE, call)
        return
    if linked.endswith(".ll") and attribute_text_of(function, "link_with_mode") != "merge":
        message = (
            f'@{name} links with {linked}, which is no object; give it link_with_mode = "merge", or an .o'
        )
        yield Fault(KIND, place, message, LINKING, call)
        return
    source = find_source(program, _source_name(function, linked))
    if source is None:
        folders = ", ".join(map(str, _folders(program)))
        message = (
            f"@{name} links with {linked}, but {_source_name(function, linked)} is in none of: {folders}; "
            "put it there, name its folder with --kernel-dir, or set link_source"
        )
        yield Fault(KIND, place, message, LINKING, call)
        return
    why = undefined_reason(source, _names(function, name))
    if why:
        yield Fault(KIND, place, f"@{name} links with {linked}, but {why}", LINKING, call)


def _bodiless(program: CheckedProgram) -> Iterator[Fault]:
    """Herds whose whole body is a function in an object file: it must be there."""
    for herd in program.module.walk():
        is_bodiless = isinstance(herd, HerdOp) and not herd.has_body
        linked = attribute_text_of(herd, "link_with") if is_bodiless else None
        if linked is not None and find_source(program, _source_name(None, linked)) is None:
            folders = ", ".join(map(str, _folders(program)))
            message = f"it links with {linked}, but {_source_name(None, linked)} is in none of: {folders}"
            yield Fault(
                KIND, op_location(herd), f"{message}; name its folder with --kernel-dir", LINKING, herd
            )


def _source_name(function: FuncOp | None, linked: str) -> str:
    return attribute_text_of(function, "link_source") or f"{linked.rsplit('.', 1)[0]}.cc"


def _folders(program: CheckedProgram) -> list[Path]:
    return [*program.options.kernel_dirs, OWN_KERNELS]


def find_source(program: CheckedProgram, name: str) -> Path | None:
    """The first file of that name in the kernel folders and kernels_cc, None where there is none."""
    return external_kernels.find_source(name, _folders(program))


def source_of(program: CheckedProgram, call: CallOp, function: FuncOp | None) -> Path | None:
    """The source of a function in C++; None for one with a body, without an object, or that is nowhere."""
    if function is not None and not function.is_declaration:
        return None
    linked = attribute_text_of(function, "link_with") or _herd_object(call)
    return None if linked is None else find_source(program, _source_name(function, linked))


def _names(function: FuncOp | None, symbol: str) -> list[str]:
    """What a function may be called in its source: its name, and every macro that stands for it."""
    defines = (attribute_text_of(function, "link_defines") or "").split()
    pairs = (define.partition("=") for define in defines)
    return [symbol, *(macro for macro, _, value in pairs if value == symbol)]


def undefined_reason(source: Path, names: Sequence[str]) -> str | None:
    """Return why a C++ source defines no function of these names with C linkage; None if it does.

    Also None if it is unknown. The source is read as text: included headers count, and a name that the
    preprocessor pastes together is not seen.
    """
    text = text_with_includes(source, set())
    definition = re.compile(rf"\b({'|'.join(map(re.escape, names))})\s*\(")
    if "##" in text:
        return None
    if not definition.search(text):
        return f"{source.name} does not define it; name a function that is there, or add it"
    if any(map(definition.search, _c_linkage(text))):
        return None
    return f'{source.name} does not define it as extern "C", so its symbol is mangled; put it into one'


def text_with_includes(source: Path, seen: set[Path]) -> str:
    """The text without comments, and that of the headers beside it."""
    if source in seen:
        return ""
    seen.add(source)
    try:
        text = _COMMENT.sub(" ", source.read_text(errors="replace"))
    except OSError:
        return ""
    headers = [source.parent / name for name in _INCLUDE.findall(text)]
    return "\n".join([*(text_with_includes(path, seen) for path in headers if path.is_file()), text])


def _c_linkage(text: str) -> Iterator[str]:
    """What stands in each extern "C": a block, or one declaration and its body."""
    for found in re.finditer(r'extern\s+"C"', text):
        rest = text[found.end() :]
        yield _block(rest) if rest.lstrip().startswith("{") else rest.split("{", 1)[0]


def _block(text: str) -> str:
    """A text from its first opening brace to the closing one that belongs to it."""
    depth = 0
    plain = _STRING.sub(lambda found: " " * len(found.group()), text)
    for place, letter in enumerate(plain):
        depth += (letter == "{") - (letter == "}")
        if depth == 0 and letter == "}":
            return plain[:place]
    return plain


def _index_arguments(call: CallOp) -> Iterator[Fault]:
    if any(isinstance(operand.type, IndexType) for operand in call.operands):
        message = (
            f"@{call.callee.root_reference.data} takes an index, whose width on a core is not established; "
            "pass i32, as mlir-air's kernels do"
        )
        yield Fault("index-argument", op_location(call), message, TO_AIE, call, certain=False)
