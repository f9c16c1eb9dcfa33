"""print(parse(text)) parses to an equal module, and prints the same again."""

from pathlib import Path

import pytest

import air_dialect

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.mlir"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_program_round_trips(program: Path) -> None:
    module = air_dialect.parse(program.read_text(), program.name)
    text = air_dialect.print_module(module)
    again = air_dialect.parse(text, "printed")
    assert module.is_structurally_equivalent(again)
    assert air_dialect.print_module(again) == text
