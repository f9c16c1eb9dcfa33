"""linalg's named operations that xDSL lacks, each from one line of subscripts, as einsum has them.

`"n c h+y w+x, f c y x -> n f h w"` is a convolution: every word indexes a dimension of an operand, and `h+y`
is the window `h * stride + y * dilation`. Loops run over the dimensions of the output, then over the others
in the order of the second input. Source of the subscripts: LinalgNamedStructuredOps.yaml of MLIR.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from itertools import chain
from typing import ClassVar, Self

from xdsl.builder import Builder
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AnyFloat,
    ArrayAttr,
    DenseIntElementsAttr,
    FixedBitwidthType,
    FloatAttr,
    IndexType,
    IntegerType,
    Signedness,
    i1,
)
from xdsl.dialects.linalg import ops
from xdsl.dialects.linalg.abstract_ops import NamedOperation
from xdsl.dialects.linalg.attrs import IteratorTypeAttr
from xdsl.ir import Attribute, BlockArgument, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.irdl import opt_prop_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from aerie.air_dialect.assembly import print_parts
from aerie.air_dialect.types import attribute_text
from aerie.air_dialect.upstream import arith as upstream_arith
from aerie.air_dialect.upstream.formats import define_op
from aerie.air_dialect.upstream.linalg import TypeFnAttr, shape_of

ScalarValues = Sequence[SSAValue]
"""The elements of the operands at one point of the loops, the output's last."""


# ---- bodies: what one point of the loops computes ----


def convert(value: SSAValue, target: Attribute, is_unsigned: bool = False) -> SSAValue:
    """The value as another element type, by the conversion that linalg implies."""
    source = value.type
    if source == target:
        return value
    conversion = _conversion(source, target, is_unsigned)
    return conversion(value, target).results[0]  # type: ignore[call-arg, arg-type]


def _conversion(source: Attribute, target: Attribute, is_unsigned: bool) -> type[Operation]:
    pair = isinstance(source, AnyFloat), isinstance(target, AnyFloat)
    integers = [type_ for type_ in (source, target) if isinstance(type_, IntegerType)]
    is_unsigned = is_unsigned or any(type_.signedness.data is Signedness.UNSIGNED for type_ in integers)
    if IndexType() in (source, target):
        return upstream_arith.IndexCastOp
    if pair == (False, True):
        return upstream_arith.UIToFPOp if is_unsigned else upstream_arith.SIToFPOp
    if pair == (True, False):
        return upstream_arith.FPToUIOp if is_unsigned else upstream_arith.FPToSIOp
    is_wider = _width(target) > _width(source)
    if pair == (True, True):
        return upstream_arith.ExtFOp if is_wider else upstream_arith.TruncFOp
    if not is_wider:
        return upstream_arith.TruncIOp
    return upstream_arith.ExtUIOp if is_unsigned else upstream_arith.ExtSIOp


def _width(type_: Attribute) -> int:
    assert isinstance(type_, FixedBitwidthType)
    return type_.bitwidth


_ADD = (arith.AddfOp, arith.AddiOp, arith.OrIOp)
_MUL = (arith.MulfOp, arith.MuliOp, arith.AndIOp)
_MAX = (arith.MaximumfOp, arith.MaxSIOp, arith.OrIOp)
_MIN = (arith.MinimumfOp, arith.MinSIOp, arith.AndIOp)
_MAX_UNSIGNED = (arith.MaximumfOp, arith.MaxUIOp, arith.OrIOp)
_MIN_UNSIGNED = (arith.MinimumfOp, arith.MinUIOp, arith.AndIOp)
_DIV = (arith.DivfOp, arith.DivSIOp, arith.DivSIOp)
_DIV_UNSIGNED = (arith.DivfOp, arith.DivUIOp, arith.DivUIOp)
TypeChoice = tuple[type[Operation], type[Operation], type[Operation]]
"""The operation on floats, on integers and on i1."""


def _apply(choice: TypeChoice, lhs: SSAValue, rhs: SSAValue) -> SSAValue:
    number = 0 if isinstance(lhs.type, AnyFloat) else 2 if lhs.type == i1 else 1
    return choice[number](lhs, rhs).results[0]  # type: ignore[call-arg, arg-type]


BodyBuilder = Callable[[ScalarValues, bool], SSAValue]
"""From the scalars, and whether integers are unsigned, to the new element of the output."""


def _sum_of_products(scalars: ScalarValues, is_unsigned: bool) -> SSAValue:
    *inputs, total = scalars
    left, right = (convert(value, total.type, is_unsigned) for value in inputs)
    return _apply(_ADD, total, _apply(_MUL, left, right))


def _folded(choice: TypeChoice) -> BodyBuilder:
    """The element of the first input, folded into the output."""
    return lambda scalars, is_unsigned: _apply(
        choice, scalars[-1], convert(scalars[0], scalars[-1].type, is_unsigned)
    )


def _of_two(choice: TypeChoice) -> BodyBuilder:
    """An operation on two inputs."""

    def body(scalars: ScalarValues, is_unsigned: bool) -> SSAValue:
        left, right = (convert(value, scalars[-1].type, is_unsigned) for value in scalars[:-1])
        return _apply(choice, left, right)

    return body


def _of_one(operation: type[Operation]) -> BodyBuilder:
    """A function of one input."""
    return lambda scalars, _: operation(convert(scalars[0], scalars[-1].type)).results[0]  # type: ignore[call-arg, arg-type]


def _square(scalars: ScalarValues, _: bool) -> SSAValue:
    value = convert(scalars[0], scalars[-1].type)
    return _apply(_MUL, value, value)


def _reciprocal(scalars: ScalarValues, _: bool) -> SSAValue:
    value = convert(scalars[0], scalars[-1].type)
    assert isinstance(value.type, AnyFloat)
    return _apply(_DIV, arith.ConstantOp(FloatAttr(1.0, value.type)).result, value)


# ---- operations ----


class StructuredOp(NamedOperation, ABC):
    """`linalg.name {attributes} ins(%a, %b : types) outs(%c : type)`, by its subscripts and its body."""

    PRINT_ATTRS_IN_FRONT: ClassVar[bool] = True
    SUBSCRIPTS: ClassVar[str]
    """As the module says; "" where all operands have the shape of the output."""
    BODY: ClassVar[BodyBuilder]

    strides = opt_prop_def(DenseIntElementsAttr)
    dilations = opt_prop_def(DenseIntElementsAttr)
    cast = opt_prop_def(TypeFnAttr)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        op: Self = super().parse(parser)
        if op.cast is not None and op.cast.data == "cast_unsigned":
            op.detach_region(0)
            op.add_region(_region(cls, op.operands, is_unsigned=True))
        return op

    @classmethod
    def get_hidden_region(cls, inputs: Sequence[SSAValue], outputs: Sequence[SSAValue]) -> Region:
        return _region(cls, [*inputs, *outputs])

    def get_default_indexing_maps(self) -> Sequence[AffineMap]:
        if not self.SUBSCRIPTS:
            return [AffineMap.identity(len(shape_of(self.outputs[0])))] * len(self.operands)
        return _maps(self.SUBSCRIPTS, _integers(self.strides), _integers(self.dilations))

    def get_iterator_types(self) -> ArrayAttr[IteratorTypeAttr]:
        *_, output = self.get_default_indexing_maps()
        reductions = output.num_dims - len(output.results)
        kinds = [IteratorTypeAttr.parallel()] * len(output.results)
        return ArrayAttr(kinds + [IteratorTypeAttr.reduction()] * reductions)

    def verify_(self) -> None:
        types = ", ".join(attribute_text(value.type) for value in self.operands)
        words = _words(self.SUBSCRIPTS) if self.SUBSCRIPTS else []
        if words and [len(shape_of(value)) for value in self.operands] != [len(names) for names in words]:
            raise VerifyException(
                f"{self.name} of {types}: write operands of ranks {', '.join(str(len(w)) for w in words)} "
                f"({self.SUBSCRIPTS})"
            )
        if not words and len({shape_of(value) for value in self.operands}) > 1:
            raise VerifyException(f"{self.name} of {types}: the shapes must be equal")
        extents: dict[str, int] = {}
        for names, value in zip(words, self.operands, strict=False):
            for name, extent in zip(names, shape_of(value), strict=True):
                earlier = extents.setdefault(name, extent)
                if "+" not in name and earlier != extent and DYNAMIC_INDEX not in (earlier, extent):
                    raise VerifyException(
                        f"{self.name} ({self.SUBSCRIPTS}) of {types}: {name} is {earlier} and {extent}"
                    )
        super().verify_()


def _integers(attribute: DenseIntElementsAttr | None) -> Sequence[int]:
    return [] if attribute is None else [int(number) for number in attribute.get_values()]


def _region(cls: type[StructuredOp], operands: Sequence[SSAValue], is_unsigned: bool = False) -> Region:
    """The body, with the conversions that mixed element types need."""

    @Builder.implicit_region(NamedOperation.body_arg_types(operands))
    def region(arguments: tuple[BlockArgument, ...]) -> None:
        ops.YieldOp(cls.BODY(arguments, is_unsigned))

    return region


def _words(subscripts: str) -> list[list[str]]:
    return [operand.split() for operand in subscripts.replace("->", ",").split(",")]


def _maps(subscripts: str, strides: Sequence[int], dilations: Sequence[int]) -> list[AffineMap]:
    """The indexing maps of the operands; strides and dilations count windows, 1 where not given."""
    operands = _words(subscripts)
    names = list(dict.fromkeys(chain(operands[-1], *operands[1:-1], operands[0])))
    loops = {name: AffineExpr.dimension(n) for n, name in enumerate(n for n in names if "+" not in n)}
    windows = [word for words in operands for word in words if "+" in word]

    def expression(word: str) -> AffineExpr:
        if word not in windows:
            return loops[word]
        number = windows.index(word)
        place, reach = (loops[name] for name in word.split("+"))
        stride, dilation = (given[number] if number < len(given) else 1 for given in (strides, dilations))
        return place * stride + reach * dilation

    return [AffineMap(len(loops), 0, tuple(map(expression, words))) for words in operands]


class MatmulOp(ops.MatmulOp):
    """`linalg.matmul indexing_maps = [...] ins(%a, %b : ...) outs(%c : ...)`, also of mixed element types."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        maps = None
        if parser.parse_optional_keyword("indexing_maps") is not None:
            parser.parse_punctuation("=")
            maps = parser.parse_attribute()
        op: Self = super().parse(parser)
        if maps is not None:
            op.properties["indexing_maps"] = maps
        if op.attributes.get("cast") == TypeFnAttr("cast_unsigned"):
            op.detach_region(0)
            op.add_region(_region(_NAMED["linalg.dot"], op.operands, is_unsigned=True))
        return op

    def print(self, printer: Printer) -> None:
        default = ops.MatmulOp.get_irdl_definition().properties["indexing_maps"].default_value
        if self.indexing_maps != default:
            print_parts(printer, " indexing_maps = ", self.indexing_maps)
        super().print(printer)

    @classmethod
    def get_hidden_region(cls, inputs: Sequence[SSAValue], outputs: Sequence[SSAValue]) -> Region:
        return _region(_NAMED["linalg.dot"], [*inputs, *outputs])


CONTRACTIONS = {
    "dot": "k, k ->",
    "matvec": "m k, k -> m",
    "vecmat": "k, k n -> n",
    "matmul_transpose_a": "k m, k n -> m n",
    "matmul_transpose_b": "m k, n k -> m n",
    "batch_matmul": "b m k, b k n -> b m n",
    "batch_matmul_transpose_a": "b k m, b k n -> b m n",
    "batch_matmul_transpose_b": "b m k, b n k -> b m n",
    "batch_matvec": "b m k, b k -> b m",
    "batch_vecmat": "b k, b k n -> b n",
    "batch_reduce_matmul": "b m k, b k n -> m n",
    "mmt4d": "m k a c, n k b c -> m n a b",
    "batch_mmt4d": "g m k a c, g n k b c -> g m n a b",
    "conv_1d": "w+x, x -> w",
    "conv_1d_nwc_wcf": "n w+x c, x c f -> n w f",
    "conv_1d_ncw_fcw": "n c w+x, f c x -> n f w",
    "conv_2d": "h+y w+x, y x -> h w",
    "conv_2d_nhwc_hwcf": "n h+y w+x c, y x c f -> n h w f",
    "conv_2d_nhwc_fhwc": "n h+y w+x c, f y x c -> n h w f",
    "conv_2d_nchw_fchw": "n c h+y w+x, f c y x -> n f h w",
    "conv_2d_ngchw_fgchw": "n g c h+y w+x, f g c y x -> n g f h w",
    "conv_2d_ngchw_gfchw": "n g c h+y w+x, g f c y x -> n g f h w",
    "conv_2d_nhwgc_gfhwc": "n h+y w+x g c, g f y x c -> n h w g f",
    "conv_3d": "d+z h+y w+x, z y x -> d h w",
    "conv_3d_ndhwc_dhwcf": "n d+z h+y w+x c, z y x c f -> n d h w f",
    "conv_3d_ncdhw_fcdhw": "n c d+z h+y w+x, f c z y x -> n f d h w",
    "depthwise_conv_1d_nwc_wc": "n w+x c, x c -> n w c",
    "depthwise_conv_1d_ncw_cw": "n c w+x, c x -> n c w",
    "depthwise_conv_1d_nwc_wcm": "n w+x c, x c m -> n w c m",
    "depthwise_conv_2d_nhwc_hwc": "n h+y w+x c, y x c -> n h w c",
    "depthwise_conv_2d_nchw_chw": "n c h+y w+x, c y x -> n c h w",
    "depthwise_conv_2d_nhwc_hwcm": "n h+y w+x c, y x c m -> n h w c m",
    "depthwise_conv_3d_ndhwc_dhwc": "n d+z h+y w+x c, z y x c -> n d h w c",
    "depthwise_conv_3d_ncdhw_cdhw": "n c d+z h+y w+x, c z y x -> n c d h w",
    "depthwise_conv_3d_ndhwc_dhwcm": "n d+z h+y w+x c, z y x c m -> n d h w c m",
}
"""Sums of products over the dimensions that the output lacks."""

_WINDOWS = {
    "nhwc": "n h+y w+x c, y x -> n h w c",
    "nchw": "n c h+y w+x, y x -> n c h w",
    "nwc": "n w+x c, x -> n w c",
    "ncw": "n c w+x, x -> n c w",
    "ndhwc": "n d+z h+y w+x c, z y x -> n d h w c",
}
_POOLS: dict[str, TypeChoice] = {
    "sum": _ADD, "max": _MAX, "min": _MIN, "max_unsigned": _MAX_UNSIGNED, "min_unsigned": _MIN_UNSIGNED,
}  # fmt: skip
_ELEMENTWISE: dict[str, BodyBuilder] = {
    "div": _of_two(_DIV),
    "div_unsigned": _of_two(_DIV_UNSIGNED),
    "powf": _of_two((math.PowFOp, math.PowFOp, math.PowFOp)),
    "square": _square,
    "reciprocal": _reciprocal,
    "abs": _of_one(math.AbsFOp),
    "ceil": _of_one(math.CeilOp),
    "erf": _of_one(math.ErfOp),
    "floor": _of_one(math.FloorOp),
    "negf": _of_one(arith.NegfOp),
    "round": _of_one(math.RoundOp),
    "rsqrt": _of_one(math.RsqrtOp),
    "tanh": _of_one(math.TanhOp),
}


def _operation(word: str, subscripts: str, body: BodyBuilder) -> type[StructuredOp]:
    """The class of `linalg.word`."""
    meaning = f"`linalg.{word}`: {subscripts or 'element by element'}."
    return define_op(f"linalg.{word}", StructuredOp, meaning, SUBSCRIPTS=subscripts, BODY=staticmethod(body))


_NAMED: dict[str, type[StructuredOp]] = {
    op.name: op
    for op in (
        *(_operation(word, subscripts, _sum_of_products) for word, subscripts in CONTRACTIONS.items()),
        *(
            _operation(f"pooling_{layout}_{kind}", subscripts, _folded(choice))
            for layout, subscripts in _WINDOWS.items()
            for kind, choice in _POOLS.items()
        ),
        *(_operation(word, "", body) for word, body in _ELEMENTWISE.items()),
    )
}
TABLE_OPS = list(_NAMED.values())
