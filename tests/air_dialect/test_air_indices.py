"""The one reading of index expressions: every operation of the table, in every interpretation of it.

Whatever a reading says is held against numbers: all small operands of every operator are tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from xdsl.dialects import scf
from xdsl.ir import SSAValue

import aerie.virtual_npu.codegen.module  # noqa: F401  registers every emitter
from aerie.air_dialect import parse
from aerie.air_dialect.index_constants import NUMBERS, constant_int, leaves
from aerie.air_dialect.index_divisors import MULTIPLES, REGULAR, Divisibility, is_affine_index, known_divisor
from aerie.air_dialect.index_expressions import IndexAnalysis, defining_expr, iteration_range
from aerie.air_dialect.index_intervals import INTERVALS, CountedLoop, analyze_loop, interval
from aerie.air_dialect.index_operators import OPERATIONS, IndexOperator
from aerie.air_dialect.linear_forms import LINEAR, LinearForm, linear_form
from aerie.virtual_npu.codegen.access_ranges import BOUNDS
from aerie.virtual_npu.codegen.body import supported_operations
from aerie.virtual_npu.codegen.channels import OF_COORDINATES
from aerie.virtual_npu.codegen.cpp_text import TEXTS


def values(text: str) -> dict[str, SSAValue]:
    """The values of a program by their names; the last of those that share one."""
    module = parse(text)
    found: dict[str, SSAValue] = {}
    for op in module.walk():
        arguments = [value for region in op.regions for block in region.blocks for value in block.args]
        found.update({value.name_hint: value for value in (*arguments, *op.results) if value.name_hint})
    return found


def made_in(body: str, arguments: str = "%n: index, %m: memref<8x16xf32>") -> dict[str, SSAValue]:
    return values(f"func.func @f({arguments}) {{\n{body}\nreturn\n}}")


# ---- every operation, every reading ----

READINGS: dict[str, tuple[IndexAnalysis[Any], set[IndexOperator]]] = {
    "numbers": (NUMBERS, set()),
    "ranges": (INTERVALS, set()),
    "multiples": (MULTIPLES, set()),
    "coordinates": (
        OF_COORDINATES,
        {IndexOperator.UNSIGNED_CEIL_DIVIDE, IndexOperator.UNSIGNED_MIN, IndexOperator.UNSIGNED_MAX},
    ),
}
CASTS = {f"arith.{name}" for name in ("index_cast", "index_castui", "extsi", "extui", "trunci")}
SUMS = {IndexOperator.ADD, IndexOperator.SUBTRACT, IndexOperator.MULTIPLY, IndexOperator.CAST}
FEW: dict[str, tuple[IndexAnalysis[Any], set[IndexOperator]]] = {
    "linear forms": (LINEAR, SUMS),
    "regular": (REGULAR, SUMS),
    "reaches": (BOUNDS, SUMS),
    "affine text": (
        TEXTS,
        {IndexOperator.ADD, IndexOperator.MULTIPLY, IndexOperator.MODULO, IndexOperator.FLOOR_DIVIDE,
         IndexOperator.CEIL_DIVIDE, IndexOperator.MIN, IndexOperator.MAX},
    ),
}  # fmt: skip
"""Readings that know these operators, and knowingly no other."""


@pytest.mark.parametrize("name", [*READINGS, *FEW])
def test_every_analysis_handles_an_operator_or_rejects_it(name: str) -> None:
    reading, listed = READINGS.get(name) or FEW[name]
    unknown = listed if name in READINGS else set(IndexOperator) - listed
    assert set(reading.operators) == set(IndexOperator)
    assert {operator for operator, function in reading.operators.items() if function is None} == unknown


def test_every_operation_of_indices_that_can_run_is_read() -> None:
    """But for those that only make sense of bits, or of two results."""
    dialect = [name for name in supported_operations() if name.startswith("index.")]
    read = {text.split()[0] for text, _ in BINARY} | OTHERS
    assert [name for name in dialect if name not in read] == []
    assert {name for name in OPERATIONS if name not in read} <= {*CASTS, "arith.select"}


CASES = {
    "add addi": (7, -2, 5), "sub subi": (7, -2, 9), "mul muli": (7, -2, -14),
    "floordivs floordivsi": (-7, 2, -4), "ceildivs ceildivsi": (-7, 2, -3), "divs divsi": (-7, 2, -3),
    "rems remsi": (-7, 2, -1), "divu divui": (7, 2, 3), "ceildivu ceildivui": (7, 2, 4),
    "remu remui": (7, 4, 3), "mins minsi": (-7, 2, -7), "maxs maxsi": (-7, 2, 2), "minu minui": (7, 2, 2),
    "maxu maxui": (7, 2, 7), "and andi": (6, 3, 2),
    "or ori": (6, 3, 7), "xor xori": (6, 3, 5), "shl shli": (3, 2, 12), "shrs shrsi": (-7, 1, -4),
    "shru shrui": (7, 1, 3),
}  # fmt: skip
"""Names in the dialects index and arith, two operands, the result."""
BINARY = [
    (text, case)
    for names, case in CASES.items()
    for text in (f"index.{names.split()[0]} %a, %b", f"arith.{names.split()[1]} %a, %b : index")
]
OTHERS = {"index.constant", "index.bool.constant", "index.cmp", "index.casts", "index.castu", "index.sizeof"}


@pytest.mark.parametrize(("operation", "case"), BINARY, ids=[operation.split()[0] for operation, _ in BINARY])
def test_the_number_that_an_operation_makes(operation: str, case: tuple[int, int, int]) -> None:
    left, right, result = case
    found = made_in(f"%a = arith.constant {left} : index\n%b = index.constant {right}\n%r = {operation}")["r"]
    assert constant_int(found) == result
    assert interval(found) == (result, result)
    assert known_divisor(found) == abs(result)
    assert linear_form(found) == LinearForm(result)


DIVISIONS = ("divs", "divu", "rems", "remu", "floordivs", "ceildivs", "ceildivu")


def ab(*numbers: int, type_: str = "index") -> str:
    """Constants %a and %b."""
    lines = (f"%{name} = arith.constant {n} : {type_}\n" for name, n in zip("ab", numbers, strict=False))
    return "".join(lines)


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (f"{ab(300, type_='i32')}%r = arith.trunci %a : i32 to i8", None),
        (f"{ab(100, type_='i32')}%r = arith.trunci %a : i32 to i8", 100),
        (f"{ab(100, type_='i8')}%r = arith.addi %a, %a : i8", None),
        (f"{ab(200, type_='i8')}%r = arith.index_cast %a : i8 to index", -56),
        (f"{ab(200, type_='i8')}%r = arith.index_castui %a : i8 to index", 200),
        (f"{ab(200, type_='i8')}%r = arith.extui %a : i8 to i32", 200),
        (f"{ab(-1, type_='i64')}%r = index.castu %a : i64 to index", None),
        (f"{ab(1, type_='i1')}%r = arith.extui %a : i1 to i32", 1),
        (f"{ab(1, type_='i1')}%r = arith.extsi %a : i1 to i32", -1),
        (f"{ab(3, 4)}%t = index.bool.constant true\n%r = arith.select %t, %a, %b : index", 3),
        (f"{ab(3, 4)}%t = index.cmp eq(%a, %b)\n%r = arith.select %t, %a, %b : index", 4),
        (f"{ab(-1, 1)}%r = arith.cmpi ult, %a, %b : index", None),
        (f"{ab(-1, 1)}%r = arith.cmpi slt, %a, %b : index", -1),
        (f"{ab(2, 1)}%r = index.cmp ule(%a, %b)", 0),
        (f"{ab(-8, 2)}%r = arith.divui %a, %b : index", None),
        (f"{ab(100, 7, type_='i8')}%r = arith.shrui %a, %b : i8", 0),
        (f"{ab(100, 8, type_='i8')}%r = arith.shrui %a, %b : i8", None),
        *((f"{ab(8, 0)}%r = index.{name} %a, %b", None) for name in DIVISIONS),
        ("%r = memref.rank %m : memref<8x16xf32>", 2),
        (f"{ab(1)}%r = memref.dim %m, %a : memref<8x16xf32>", 16),
        (f"{ab(9)}%r = affine.min affine_map<(d) -> (d - 4, 7)>(%a)", 5),
        (f"{ab(9)}%r = affine.max affine_map<(d) -> (d - 4, 7)>(%a)", 7),
        (f"{ab(9)}%r = affine.apply affine_map<(d)[s] -> (d mod 4 + s)>(%a)[%a]", 10),
        (f"{ab(29)}%q, %r = affine.delinearize_index %a into (4, 8) : index, index", 5),
        (f"{ab(29)}%r, %q = affine.delinearize_index %a into (4, 8) : index, index", 3),
        (f"{ab(3)}%r = affine.linearize_index [%a, %a] by (4, 8) : index", 27),
        (f"{ab(1)}%t, %r = air.execute -> (index) {{ %s = arith.addi %a, %a : index\n"
         "air.execute_terminator %s : index }", 2),
        (f"{ab(2)}%r = arith.muli %n, %a : index", None),
    ],
)  # fmt: skip
def test_numbers_that_are_hard_to_tell(body: str, result: int | None) -> None:
    assert constant_int(made_in(body)["r"]) == result


def ranges() -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    bounds = [(low, high) for low in range(-3, 4) for high in range(low, 4)]
    return itertools.product(bounds, bounds)


BOTH = [
    operator
    for operator in IndexOperator
    if operator not in (IndexOperator.CAST, IndexOperator.UNSIGNED_CAST, IndexOperator.SELECT)
]


@pytest.mark.parametrize("operator", BOTH, ids=lambda operator: operator.name)
def test_ranges_and_multiples_hold_every_number(operator: IndexOperator) -> None:
    """Over all small ranges, and over all small multiples."""
    count = 0
    for left, right in ranges():
        found = INTERVALS.apply(operator, [left, right])
        pairs = itertools.product(range(left[0], left[1] + 1), range(right[0], right[1] + 1))
        results = [result for a, b in pairs if (result := NUMBERS.apply(operator, [a, b])) is not None]
        count += found is not None
        assert found is None or all(found[0] <= result <= found[1] for result in results)
    assert count
    for left_by, right_by in itertools.product(range(5), repeat=2):
        divisor = MULTIPLES.apply(operator, [Divisibility(left_by), Divisibility(right_by)])
        assert divisor is not None
        for a, b in itertools.product(range(-4, 5), repeat=2):
            result = NUMBERS.apply(operator, [a * left_by, b * right_by])
            assert result is None or (result % divisor.divisor if divisor.divisor else result) == 0


@pytest.mark.parametrize(("bits", "wide"), [((-2, 3), (0, 15)), ((0, 5), (0, 5))])
def test_the_range_of_bits_taken_as_unsigned(bits: tuple[int, int], wide: tuple[int, int]) -> None:
    assert INTERVALS.apply(IndexOperator.UNSIGNED_CAST, [bits, (4, 4)]) == wide
    assert all(wide[0] <= number_ % 16 <= wide[1] for number_ in range(bits[0], bits[1] + 1))


def test_a_range_with_an_unknown_condition_is_of_both_sides() -> None:
    assert INTERVALS.apply(IndexOperator.SELECT, [None, (1, 2), (5, 6)]) == (1, 6)
    assert INTERVALS.apply(IndexOperator.SELECT, [(-1, -1), (1, 2), (5, 6)]) == (1, 2)
    assert INTERVALS.apply(IndexOperator.SELECT, [(0, 0), (1, 2), (5, 6)]) == (5, 6)
    assert NUMBERS.apply(IndexOperator.SELECT, [None, 1, 2]) is None


# ---- loops, coordinates, and what passes through ----

HERD = """
func.func @f(%m: memref<8x16xf32>) {
  %c2 = arith.constant 2 : index
  %c4 = index.constant 4
  %t, %from = air.execute -> (index) { %s = index.mul %c4, %c2
    air.execute_terminator %s : index }
  air.herd @h tile (%x, %y) in (%sx=%c2, %sy=%c2) args(%step=%from, %k=%c4) : index, index {
    %zero = arith.constant 0 : index
    %bytes = index.mul %x, %step
    %ends = arith.muli %sx, %step : index
    scf.for %i = %zero to %ends step %step {
      %place = index.add %i, %bytes
      %half = arith.divui %place, %k : index
      %shifted = index.shl %i, %sy
    }
  }
  return
}
"""


def test_every_analysis_reads_arguments_and_results_of_regions() -> None:
    found = values(HERD)
    assert constant_int(found["ends"]) == 16
    assert interval(found["place"]) == (0, 16)
    assert known_divisor(found["place"]) == 8
    assert is_affine_index(found["place"])
    assert (interval(found["half"]), known_divisor(found["half"])) == ((0, 4), 2)
    assert not is_affine_index(found["half"])
    assert leaves(found["half"]) == {found["i"], found["x"]}
    assert linear_form(found["place"]) == LinearForm(0, {found["i"]: 1, found["x"]: 8})
    assert constant_int(found["place"], {found["x"]: 1, found["i"]: 8}) == 16
    assert defining_expr(found["shifted"]) is None  # by what is no number of the operation's own


LOOPS = """
func.func @f(%n: index, %m: index) {
  %c0 = arith.constant 0 : index
  %c8 = arith.constant 8 : index
  %c3 = arith.constant 3 : index
  scf.for %a = %c0 to %c8 step %c3 { }
  scf.parallel (%b) = (%c3) to (%c8) step (%c3) { scf.reduce }
  affine.for %c = 2 to min affine_map<()[s] -> (s, 9)>()[%n] step 4 { }
  affine.parallel (%d, %e) = (max(%n - 2, 1), 0) to (min(%m, 8), 4) step (2, 3) { }
  scf.forall (%f, %g) = (0, 1) to (%c8, 6) step (2, %c3) { }
  scf.for %h = %c0 to %n step %c3 { }
  affine.for %i = max affine_map<() -> (1, 2)>() to min affine_map<() -> (9, 6)>() { }
  return
}
"""


@pytest.mark.parametrize(
    ("name", "bounds", "divisor"),
    [
        ("a", (0, 6), 3), ("b", (3, 6), 3), ("c", None, 2), ("d", None, 1), ("e", (0, 3), 3),
        ("f", (0, 6), 2), ("g", (1, 4), 1), ("h", None, 3), ("i", (2, 5), 1),
    ],
)  # fmt: skip
def test_what_a_loop_runs_over(name: str, bounds: tuple[int, int] | None, divisor: int) -> None:
    value = values(LOOPS)[name]
    assert interval(value) == bounds
    assert known_divisor(value) == divisor
    assert iteration_range(value) is not None


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        ((0, 8, 3), CountedLoop(0, 3, 3)),
        ((1, 9, 4), CountedLoop(1, 4, 2)),
        ((3, 3, 1), None),
        ((0, 8, 0), None),
    ],
)
def test_how_often_a_loop_runs(bounds: tuple[int, int, int], found: CountedLoop | None) -> None:
    low, high, step = (f"%{name} = arith.constant {n} : index" for name, n in zip("abc", bounds, strict=True))
    body = f"{low}\n{high}\n{step}\nscf.for %i = %a to %b step %c {{\n}}"
    loop = made_in(body)["i"].owner.parent_op()
    assert isinstance(loop, scf.ForOp)
    assert analyze_loop(loop) == found


def test_a_variable_that_takes_one_value_is_that_value() -> None:
    value = made_in(f"{ab(4, 5)}scf.for %i = %a to %b step %b {{\n}}")["i"]
    assert (interval(value), known_divisor(value), linear_form(value)) == ((4, 4), 4, LinearForm(4))


# ---- linear forms ----


def test_a_nonlinear_part_becomes_its_own_term() -> None:
    found = made_in(
        "%k = memref.dim %m, %n : memref<8x16xf32>\n%p = arith.muli %n, %k : index\n"
        "%r = affine.apply affine_map<(a, b) -> (3 * a - b + 5)>(%p, %n)"
    )
    assert linear_form(found["r"]) == LinearForm(5, {found["p"]: 3, found["n"]: -1})


def test_integers_that_may_wrap_around_are_terms_of_their_own() -> None:
    found = made_in(
        "%i = arith.index_cast %n : index to i32\n%s = arith.addi %i, %i : i32\n"
        "%z = index.castu %n : index to i32\n%c3 = arith.constant 12 : i32\n%w = arith.muli %z, %c3 : i32"
    )
    assert linear_form(found["s"]) == LinearForm(0, {found["s"]: 1})
    assert interval(found["s"]) is None
    assert known_divisor(found["w"]) == 4  # 12 times a number, less a power of two


def test_an_expression_of_any_depth_is_read() -> None:
    lines = ["%c1 = arith.constant 1 : index", "%v0 = arith.addi %c1, %c1 : index"]
    lines += [f"%v{i} = arith.addi %v{i - 1}, %v{i - 1} : index" for i in range(1, 61)]
    lines += [f"%v{i} = arith.addi %v{i - 1}, %n : index" for i in range(61, 3000)]
    found = made_in("\n".join(lines))
    assert constant_int(found["v60"]) == 1 << 61
    assert constant_int(found["v2999"]) is None
    assert linear_form(found["v2999"]) == LinearForm(1 << 61, {found["n"]: 2939})
