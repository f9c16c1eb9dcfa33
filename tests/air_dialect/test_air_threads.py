"""Programs are compiled side by side, so parsing must stand several threads."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from aerie import air_dialect

PROGRAM = """
func.func @f(%n: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.for %i = %c0 to %n step %c1 {
    scf.for %j = %c0 to %n step %c1 {
      %sum = arith.addi %i, %j : index
    }
  }
  air.launch () in () {
    air.segment @s {
    }
  }
  return
}
"""


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Threads change places as often as they can, so that a race shows."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("eager_switching")
def test_threads_parse_side_by_side() -> None:
    wanted = air_dialect.print_module(air_dialect.parse(PROGRAM))
    with ThreadPoolExecutor(max_workers=4) as pool:
        texts = pool.map(lambda _: air_dialect.print_module(air_dialect.parse(PROGRAM)), range(100))
    assert set(texts) == {wanted}
