"""C++ under construction: a file, a function in it, and the C++ side of SSA values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from xdsl.dialects import func
from xdsl.dialects.builtin import IndexType, IntegerType, MemRefType, ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from aerie.air_dialect.index_constants import NUMBERS
from aerie.air_dialect.ops import ChannelOp
from aerie.air_dialect.values import walk
from aerie.device.external_kernels import ExternalKernel
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.cpp_text import add, is_integer, mul, parenthesize
from aerie.virtual_npu.codegen.execution import BodyMode
from aerie.virtual_npu.codegen.op_errors import line_of, unsupported, unsupported_reason, with_op_in_errors
from aerie.virtual_npu.codegen.value_names import ValueNames
from aerie.virtual_npu.cpp_quoting import line_comment, local_name, mangled, string_literal
from aerie.virtual_npu.options import BuildOptions


@dataclass(frozen=True)
class Scalar:
    """The C++ text of a scalar, vector or token. `is_literal`: it names nothing local, and can stand
    anywhere."""

    text: str
    is_literal: bool = False


@dataclass(frozen=True)
class MemRef:
    """A memref value: pointer to its first element, extents and strides (in elements) as C++ text."""

    pointer: str
    sizes: tuple[str, ...]
    strides: tuple[str, ...]
    type: MemRefType
    copies: int = 1
    """How many buffers lie one after the other: one, or one per tile of the herds that use it."""
    offset: str | None = None
    """How far the first element lies behind the begin of its buffer, where the type leaves that open and it
    was handed over."""

    @property
    def extent(self) -> str:
        """Elements from the first to the last one, both included."""
        pairs = zip(self.sizes, self.strides, strict=True)
        return add("1", *(mul(parenthesize(add(size, "-1")), stride) for size, stride in pairs))

    @property
    def footprint(self) -> str:
        """Elements of all copies."""
        return self.extent if self.copies == 1 else mul(parenthesize(self.extent), str(self.copies))


Value = Scalar | MemRef


Emitter = Callable[["Body", Operation], None]
_EMITTERS: dict[str, Emitter] = {}


def emitter(*names: str) -> Callable[[Emitter], Emitter]:
    """Register a function as the emitter of the operations with these names."""

    def register(function: Emitter) -> Emitter:
        for name in names:
            _EMITTERS[name] = function
        return function

    return register


_BEFORE_EMITTERS: list[Emitter] = []


def before_emitter(function: Emitter) -> Emitter:
    """Register a function that is called before the emitter of any operation."""
    _BEFORE_EMITTERS.append(function)
    return function


_AFTER_EMITTERS: list[Emitter] = []


def after_emitter(function: Emitter) -> Emitter:
    """Register a function that is called after the emitter of any operation, for what all have in common."""
    _AFTER_EMITTERS.append(function)
    return function


def supported_operations() -> list[str]:
    """The names of all operations of a program that can be emitted."""
    return sorted(name for name in _EMITTERS if not name.startswith("vnpu."))


@dataclass
class VersionedLoops:
    """Loops that are emitted in two versions (loop versioning): with a check of every access, and without."""

    op: Operation
    conditions: dict[str, None] = field(default_factory=dict)
    """C++ conditions, tested before the loops, under which all of their indices are in bounds."""


@dataclass
class CppFile:
    """One C++ file under construction."""

    module: ModuleOp
    source: Sequence[str]
    """The lines of the MLIR text, for comments."""
    options: BuildOptions
    functions: list[str] = field(default_factory=list)
    launches: list[range] = field(default_factory=list)
    """Of each launch, the places of its functions in `functions`; its own comes last."""
    declarations: list[str] = field(default_factory=list)
    kernels: dict[str, ExternalKernel] = field(default_factory=dict)
    """The external kernels that are called, by their symbol."""
    runtime_parts: set[str] = field(default_factory=set)
    """The parts of the runtime to link beside the common one: schedule, product, rearranged."""
    names: set[str] = field(default_factory=set)
    emitted: set[str] = field(default_factory=set)
    channel_structs: dict[Operation, str] = field(default_factory=dict)
    channel_users: dict[Operation, dict[str, set[Operation | None]]] = field(default_factory=dict)
    """Of a function, which launches use each channel."""
    port_tables: dict[tuple[Operation, bool], str] = field(default_factory=dict)
    globals: dict[str, str] = field(default_factory=dict)
    """C++ text of a pointer to every memref.global that is used, by its name."""
    shared_names: dict[tuple[str, str], str] = field(default_factory=dict)
    """The C++ name of each declaration of `declare_once`, by its key."""
    lines: set[int] = field(default_factory=set)
    """The lines of the MLIR text that have an operation before which a run can stop."""

    def __post_init__(self) -> None:
        self.symbols: dict[str, func.FuncOp] = {}
        self.channels: dict[str, ChannelOp] = {}
        self.value_names = ValueNames(self.source)
        for op in walk(self.module):
            if isinstance(op, func.FuncOp):
                self.symbols[op.sym_name.data] = op
            elif isinstance(op, ChannelOp):
                self.channels[op.sym_name] = op

    def source_line(self, line: int) -> str:
        """A line of the MLIR text as a comment; empty for operations that were built in Python."""
        if not 0 < line <= len(self.source):
            return ""
        return line_comment(self.source[line - 1])

    def fresh(self, hint: str) -> str:
        """A C++ name that no other function or struct of this file has."""
        base = mangled(hint)
        name, count = base, 1
        while name in self.names:
            count += 1
            name = f"{base}_{count}"
        self.names.add(name)
        return name

    def declare_once(self, hint: str, key: tuple[str, str], declaration: Callable[[str], str]) -> str:
        """The C++ name of a declaration of the file, made of that name by `declaration`. The same key, a kind
        and a text, gives the same one: to compile a small function takes milliseconds."""
        if key not in self.shared_names:
            self.shared_names[key] = self.fresh(hint)
            self.declarations.append(declaration(self.shared_names[key]))
        return self.shared_names[key]

    def constant(self, type_: str, hint: str, fields: str) -> str:
        """The C++ name of a constant of the file; the same fields give the same one."""
        return self.declare_once(
            hint, (type_, fields), lambda name: f"static constexpr {type_} {name}{{{fields}}};"
        )


@dataclass
class Body:
    """One C++ function under construction."""

    file: CppFile
    mode: BodyMode
    root: Operation | None = None
    """The launch or function whose channels this body uses."""
    owns_channels: bool = False
    """Whether this body declares those channels itself, and nothing else uses them."""
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    values: dict[SSAValue, Value] = field(default_factory=dict)
    numbers: dict[SSAValue, int | None] = field(default_factory=dict)
    """The constant of each value that was asked for, None where it is not constant."""
    names: set[str] = field(default_factory=set)
    uses_arena: bool = False
    uses_transfer: bool = False
    mode_statement: str = ""
    """The C++ statement that puts the core's mode registers in place (`mode_registers`), or nothing."""
    versioned: VersionedLoops | None = None
    """The loops in two versions that are being emitted, if any."""
    lent_buffers: dict[SSAValue, str] = field(default_factory=dict)
    """The `vnpu::LentBuffer` of each buffer that borrows blocks (passes/elide_l1_copies.py)."""
    accumulation_groups: dict[Operation, str] = field(default_factory=dict)
    """The `vnpu::SummedTogether` of a contraction whose loop sums several blocks at once (vector_sums.py)."""
    loop_indices: list[list[str]] = field(default_factory=list)
    """The loop variables of each linalg operation around, outermost first, for linalg.index."""

    # ---- text ----

    def emit_line(self, text: str) -> None:
        """Append one line at the current indentation."""
        self.lines.append("  " * self.depth + text)

    @contextmanager
    def block(self, head: str, tail: str = "}") -> Iterator[None]:
        """`head {` ... `tail` around what is emitted inside."""
        self.emit_line(f"{head} {{" if head else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.emit_line(tail)

    def fresh(self, hint: str | None) -> str:
        """A C++ identifier that this function does not use yet."""
        base = local_name(hint)
        name, count = base, 1
        while name in self.names:
            count += 1
            name = f"{base}_{count}"
        self.names.add(name)
        return name

    def name_for(self, value: SSAValue) -> str:
        """A fresh identifier after the value's own name."""
        return self.fresh(value.name_hint)

    @property
    def checked(self) -> bool:
        """Whether accesses are checked, through pointers that know their buffer.

        Emitters get the C++ of an access from virtual_npu.codegen.memory, which adds the checks.
        """
        return self.file.options.checks

    @property
    def checks_bounds(self) -> bool:
        """Whether indices are compared with extents."""
        return self.checked

    @property
    def heartbeat(self) -> str:
        """The C++ class that watches loops which may have no end; empty where none does."""
        return "vnpu::Heartbeat" if self.checked else ""

    def check_alignment(self, op: Operation, value: SSAValue, pointer: str, bytes_: int) -> None:
        """Emit a check that a vector of so many bytes lies where a core can access it."""

    # ---- values ----

    def value(self, value: SSAValue) -> Value:
        """The C++ side of an SSA value."""
        return self.values[value]

    def text(self, value: SSAValue) -> str:
        """C++ text of a scalar, vector or token."""
        found = self.values[value]
        assert isinstance(found, Scalar), f"{value} is a memref"
        return found.text

    def texts(self, values: Sequence[SSAValue]) -> list[str]:
        """C++ text of several scalars."""
        return [self.text(value) for value in values]

    def number(self, value: SSAValue) -> int | None:
        """The constant of a value, a 64-bit integer; None if it is not constant."""
        if not isinstance(value.type, IndexType | IntegerType):
            return None
        known = NUMBERS.analyze(value, self.numbers)
        return known if known is not None and -(1 << 63) <= known < 1 << 63 else None

    def memref(self, value: SSAValue) -> MemRef:
        """The C++ side of a memref."""
        found = self.values[value]
        assert isinstance(found, MemRef), f"{value} is not a memref"
        return found

    def define(self, result: SSAValue, expression: str) -> None:
        """Emit `const T name = expression;` for a scalar or vector result; a known number stays a literal."""
        known = self.number(result)
        if known is not None:
            self.values[result] = Scalar(types.literal(result.type, known), is_literal=True)
            return
        name = self.name_for(result)
        self.emit_line(f"const {types.cpp(result.type)} {name} = {expression};")
        self.values[result] = Scalar(name)

    def alias(self, result: SSAValue, expression: str) -> None:
        """Emit nothing, and repeat this expression wherever the result is used: one that costs nothing."""
        self.values[result] = Scalar(expression, is_literal=is_integer(expression))

    def define_memref(
        self, result: SSAValue, pointer: str, sizes: Sequence[str], strides: Sequence[str]
    ) -> MemRef:
        """Emit the pointer of a memref result; extents and strides that are static in its type stay
        literals."""
        type_ = result.type
        assert isinstance(type_, MemRefType)
        name = self.name_for(result)
        kind = "const auto " if self.checked else f"{types.scalar(type_.element_type)} *const "
        self.emit_line(f"{kind}{name} = {pointer};")
        known = zip(type_.get_shape(), sizes, strict=True)
        extents = [
            str(size) if size != types.DYNAMIC else self.emit_variable(text, f"{name}_size")
            for size, text in known
        ]
        steps = [
            str(stride) if stride != types.DYNAMIC else self.emit_variable(text, f"{name}_stride")
            for stride, text in zip(types.memref_strides(type_), strides, strict=True)
        ]
        found = MemRef(name, tuple(extents), tuple(steps), type_)
        self.values[result] = found
        return found

    def emit_variable(self, text: str, hint: str) -> str:
        """The name of a variable that holds an integer expression; the text itself where that is simple."""
        if text.isidentifier() or is_integer(text):
            return text
        name = self.fresh(hint)
        self.emit_line(f"const vnpu::i64 {name} = {text};")
        return name

    # ---- operations ----

    def site(self, op: Operation, label: str = "") -> str:
        """The C++ `vnpu::Site` that names an operation in messages."""
        text = string_literal(f"{op.name} {label}".strip())
        return f"vnpu::Site{{{text}, {line_of(op)}}}"

    def operations(self, block: Block) -> None:
        """Emit every operation of a block but its terminator."""
        for op in block.ops:
            if op is not block.last_op or not self.is_terminator(op):
                self.operation(op)

    @staticmethod
    def is_terminator(op: Operation | None) -> bool:
        """Whether an operation is the terminator of its block, which the operation around reads."""
        return op is not None and op.name in _TERMINATORS

    def operation(self, op: Operation) -> None:
        """Emit one operation."""
        emit = _EMITTERS.get(op.name)
        if emit is None:
            raise unsupported(op, unsupported_reason(op.name))
        with with_op_in_errors(op):
            for first in _BEFORE_EMITTERS:
                first(self, op)
            emit(self, op)
            for also in _AFTER_EMITTERS:
                also(self, op)

    def comment(self, op: Operation) -> None:
        """Emit the line of the MLIR text that an operation stands in, as a comment."""
        line = line_of(op)
        source = self.file.source_line(line)
        if source:
            self.emit_line(f"// {line}: {source}")

    @contextmanager
    def outlined(self, *assigned: str) -> Iterator[None]:
        """Emit a block without suspension, which assigns these variables of the body.

        In a coroutine it is a lambda: compilers keep the variables of a coroutine in memory, not in
        registers.
        """
        captured = "".join(f", &{name}" for name in assigned)
        is_lambda = self.mode is BodyMode.PROCESS
        with self.block(f"[={captured}]" if is_lambda else "", "}();" if is_lambda else "}"):
            yield

    @contextmanager
    def straight_mode(self) -> Iterator[None]:
        """Emit in BodyMode.STRAIGHT inside of this context, as in a task of a sequencer."""
        mode, self.mode = self.mode, BodyMode.STRAIGHT
        yield
        self.mode = mode


_TERMINATORS = frozenset(
    [
        "scf.yield",
        "scf.reduce",
        "scf.reduce.return",
        "scf.condition",
        "scf.in_parallel",
        "scf.forall.in_parallel",
        "affine.yield",
        "linalg.yield",
        "func.return",
        "air.execute_terminator",
        "air.launch_terminator",
        "air.segment_terminator",
        "air.herd_terminator",
        "memref.alloca_scope.return",
        "memref.atomic_yield",
        "vector.yield",
        "vnpu.yield",
    ]
)
