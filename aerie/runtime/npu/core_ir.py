"""Finds what makes a core slow or wrong in the LLVM IR that mlir-aie makes for it, before Peano compiles it.

`check` takes the text of one file of aie-translate (stage 7) and returns findings. It reads lines, because
the IR is printed one instruction per line; LLVM is not needed.

aiecc removes `align` from every access before Peano (tools/aiecc/IRTransforms.h, downgradeIRForPeano). Peano
then assumes a vector's own alignment, and the core masks an address that does not have it. So `align` in the
text means nothing; constant offsets are checked instead.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_NAME = r'"?([\w$.-]+)"?'
_DEFINE = re.compile(rf"^define .*?@{_NAME}\(")
_LABEL = re.compile(r"^([\w$.-]+):")
_BRANCH = re.compile(r"\blabel %([\w$.-]+)")
_CALL = re.compile(rf"\bcall\b[^@]*@{_NAME}\(")
_SCALAR = re.compile(r"= (fptrunc|fpext|fmul|fadd|fsub|fdiv) (?:\w+ )*?(?:half|bfloat|float|double) ")
_LANE = re.compile(r"= (insertelement|extractelement) ")
_ALLOCA = re.compile(r"= alloca (?:\[(\d+) x (.+?)\]|(.+?))(?:,|$)")
_ACCESS = re.compile(r"\b(load|store) (<\d+ x \w+>)(?: [^,]*)?, ptr (getelementptr.*|%[\w$.-]+)")
_OFFSET = re.compile(r"(?:(%[\w$.-]+) = )?getelementptr (?:\w+ )*?\(?(\w+), ptr @[\w$.-]+, i\d+ (\d+)\)?")
_VECTOR = re.compile(r"<(\d+) x (\w+)>")
_BYTES = {
    "i1": 1,
    "i8": 1,
    "i16": 2,
    "bfloat": 2,
    "half": 2,
    "i32": 4,
    "float": 4,
    "i64": 8,
    "double": 8,
    "ptr": 4,
}

REFUSED = re.compile(r"llvm\.(maxnum|minnum)\.")
"""Intrinsics that Peano's legaliser has no rule for (mlir-aie tools/aiecc/IRTransforms.h)."""
MAX_ACCESS_BYTES = 64
"""A core's widest access, in bytes. Wider vectors move in parts of it."""
PROVIDED = frozenset({"debug_i32"})
"""Functions that mlir-aie declares in every module and calls only on request."""


@dataclass(frozen=True)
class CoreFinding:
    """kind: scalar, lanes, function, intrinsic, stack or alignment. wrong: True if it fails or computes a
    wrong result; False if it is only slow.
    """

    core: str
    kind: str
    message: str
    wrong: bool

    def __str__(self) -> str:
        return f"{self.core}: {self.message}"


def check(text: str, functions: Collection[str] = (), stack_bytes: int = 1024) -> list[CoreFinding]:
    """Return the findings of all cores in one file of LLVM IR, in its order.

    functions: symbols that the objects of the cores define. stack_bytes: the size of a core's stack.
    """
    bodies = dict(_bodies(text))
    defined = {*functions, *bodies, *PROVIDED}
    return [
        finding
        for core, lines in bodies.items()
        for finding in (
            *_slow(core, lines),
            *_calls(core, lines, defined),
            *_stack(core, lines, stack_bytes),
            *_alignment(core, lines),
        )
    ]


def _bodies(text: str) -> Iterator[tuple[str, list[str]]]:
    """The name and the body's lines of each function."""
    lines = iter(text.splitlines())
    for line in lines:
        if match := _DEFINE.match(line):
            body = []
            for inner in lines:
                if inner.startswith("}"):
                    break
                body.append(inner)
            yield match[1], body


def _innermost_loops(lines: list[str]) -> list[range]:
    """The lines of the loops without inner loops: from a label to the last branch back to it."""
    labels = {match[1]: at for at, line in enumerate(lines) if (match := _LABEL.match(line))}
    ends: dict[int, int] = {}
    for at, line in enumerate(lines):
        for target in _BRANCH.findall(line):
            if (head := labels.get(target, at)) < at:
                ends[head] = at
    loops = [range(head, end + 1) for head, end in ends.items()]
    return [loop for loop in loops if not any(other.start in loop and other != loop for other in loops)]


def _slow(core: str, lines: list[str]) -> Iterator[CoreFinding]:
    """Scalar floats, and lanes extracted from or inserted into vectors, in innermost loops."""
    inner = [lines[at] for loop in _innermost_loops(lines) for at in loop]
    scalars = Counter(match[1] for line in inner if (match := _SCALAR.search(line)))
    lanes = Counter(match[1] for line in inner if (match := _LANE.search(line)))
    if scalars:
        message = f"{_counted(scalars)} of single floats in innermost loops; a core has vectors for them"
        yield CoreFinding(core, "scalar", message, wrong=False)
    if lanes:
        message = (
            f"{_counted(lanes)} in innermost loops: vectors are split into scalars; use a width that "
            "AIE2P has"
        )
        yield CoreFinding(core, "lanes", message, wrong=False)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def _calls(core: str, lines: list[str], defined: Collection[str]) -> Iterator[CoreFinding]:
    """Functions that no object defines, and intrinsics that Peano refuses; each once."""
    called = dict.fromkeys(match[1] for line in lines if (match := _CALL.search(line)))
    for name in called:
        if REFUSED.match(name):
            message = f"calls {name}, which Peano cannot legalise; compare and select instead"
            yield CoreFinding(core, "intrinsic", message, wrong=True)
        elif not name.startswith("llvm.") and name not in defined:
            message = f"calls {name}, which no object defines; link_with names the object that has it"
            yield CoreFinding(core, "function", message, wrong=True)


def _stack(core: str, lines: list[str], limit: int) -> Iterator[CoreFinding]:
    """Allocas larger than the stack."""
    taken = sum(
        int(match[1] or 1) * _bytes(match[2] or match[3]) for line in lines if (match := _ALLOCA.search(line))
    )
    if taken > limit:
        message = (
            f"{taken} bytes of alloca, and the stack has {limit}: it would grow into the buffers; "
            "raise --stack-size, or keep the values in a buffer"
        )
        yield CoreFinding(core, "stack", message, wrong=True)


def _alignment(core: str, lines: list[str]) -> Iterator[CoreFinding]:
    """Vectors at constant offsets of a buffer that are not a multiple of their own alignment."""
    offsets: dict[str, int] = {}
    for line in lines:
        byte_offset = _OFFSET.search(line)
        offset = int(byte_offset[3]) * _bytes(byte_offset[2]) if byte_offset else 0
        if byte_offset and byte_offset[1]:
            offsets[byte_offset[1]] = offset
        if access := _ACCESS.search(line):
            width = min(_bytes(access[2]), MAX_ACCESS_BYTES)
            at = offset if access[3].startswith("getelementptr") else offsets.get(access[3], 0)
            if width and at % width:
                message = (
                    f"a {access[1]} of {access[2]} at byte {at} of its buffer, no multiple of {width}: the "
                    "core masks the address and takes other bytes; move the data to a multiple"
                )
                yield CoreFinding(core, "alignment", message, wrong=True)


def _bytes(type_: str) -> int:
    """Bytes of a scalar or vector type; 0 for any other."""
    if match := _VECTOR.fullmatch(type_.strip()):
        return math.prod((int(match[1]), _BYTES.get(match[2], 0)))
    return _BYTES.get(type_.strip(), 0)
