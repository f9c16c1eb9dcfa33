"""What MLIR's math dialect has and xDSL lacks."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar

from xdsl.dialects.arith import FastMathFlagsAttr
from xdsl.dialects.builtin import AnyFloat
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, result_def, traits_def
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from aerie.air_dialect.types import attribute_text
from aerie.air_dialect.upstream.formats import Formatted, define_op, element_type

_ONE_FLOAT = "$operand (`fastmath` `` $fastmath^)? attr-dict `:` "


class _FloatFunction(Formatted, ABC):
    """A function of one float, or of the floats of a vector."""

    operand = operand_def()
    fastmath = opt_prop_def(FastMathFlagsAttr)

    def verify_(self) -> None:
        if not isinstance(element_type(self.operand.type), AnyFloat):
            raise VerifyException(f"{self.name} takes floats, not {attribute_text(self.operand.type)}")


class _FloatTest(_FloatFunction, ABC):
    """A function from floats to i1."""

    result = result_def()
    traits = traits_def(Pure())
    FORMAT: ClassVar[str] = _ONE_FLOAT + "custom<ComparisonResult>(type(operands), type(results))"


@irdl_op_definition
class ErfcOp(_FloatFunction):
    """`math.erfc %x fastmath<fast> : f32`: 1 - erf."""

    name = "math.erfc"
    result = result_def()
    traits = traits_def(Pure())
    FORMAT: ClassVar[str] = _ONE_FLOAT + "custom<SameType>(type(operands), type(results))"


@irdl_op_definition
class SinCosOp(_FloatFunction):
    """`%s, %c = math.sincos %x : f32`."""

    name = "math.sincos"
    sin = result_def()
    cos = result_def()
    traits = traits_def(Pure())
    FORMAT: ClassVar[str] = _ONE_FLOAT + "custom<SameType>(type(operands), type(results))"


@irdl_op_definition
class ClampFOp(Formatted):
    """`math.clampf %v to [%min, %max] : f32`."""

    name = "math.clampf"
    value = operand_def()
    min = operand_def()
    max = operand_def()
    fastmath = opt_prop_def(FastMathFlagsAttr)
    result = result_def()
    traits = traits_def(Pure())
    FORMAT: ClassVar[str] = (
        "$value `to` ` ` `[` $min `,` $max `]` (`fastmath` `` $fastmath^)? attr-dict "
        "`:` custom<SameType>(type(operands), type(results))"
    )


_TESTS = {
    "isfinite": "Neither infinite nor NaN.",
    "isinf": "Infinite.",
    "isnan": "NaN.",
    "isnormal": "Neither zero, subnormal, infinite nor NaN.",
}
TABLE_OPS = [define_op(f"math.{word}", _FloatTest, meaning) for word, meaning in _TESTS.items()]
