"""Programs drawn from the grammar: the same everywhere, what is known of them, and what they compute."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from aerie.device import check
from aerie.virtual_npu.__main__ import main
from aerie.virtual_npu.options import BuildOptions
from aerie.virtual_npu.program import Program
from aerie.virtual_npu.random_programs import FEATURES, ExpectedVerdict, RandomProgram, random_program
from aerie.virtual_npu.random_programs.shapes import program_text, random_shape

CHECKED, AGREED, SILENT = 40, 0.95, 0.01
"""Programs that a test checks; the least share that agrees, and the largest that the check is silent on."""


def accepts(text: str) -> bool:
    return check(text, stack_bytes=2048).ok


def test_the_check_agrees_with_the_expected_verdicts() -> None:
    programs = [random_program(seed) for seed in range(CHECKED)]
    verdicts = [(program.expected == ExpectedVerdict.ACCEPTED, accepts(program.text)) for program in programs]
    counts = Counter(verdicts)
    assert counts[True, True] + counts[False, False] >= AGREED * CHECKED, counts
    assert counts[False, True] <= SILENT * CHECKED, counts
    assert min(counts[True, True], counts[False, False]) > CHECKED / 5


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_every_feature_is_judged_by_itself(feature) -> None:
    """Written into a shape that is taken without it."""
    chance = random.Random(feature.name)
    form = next(form for form in (random_shape(chance) for _ in range(500)) if feature.fits(form))
    assert accepts(program_text(form, "plain"))
    text = program_text(feature.write(form, chance), "featured")
    assert accepts(text) == (feature.verdict == ExpectedVerdict.ACCEPTED)
    assert feature.source


def test_the_same_seed_gives_the_same_text() -> None:
    programs = [random_program(seed) for seed in range(600)]
    assert [program.text for program in programs] == [random_program(seed).text for seed in range(600)]
    assert len({program.text for program in programs}) == 600
    names = {feature.name for program in programs for feature in program.features}
    assert names == {feature.name for feature in FEATURES}


PLAIN = [program for program in map(random_program, range(200)) if not program.features]


@pytest.mark.parametrize("way", [("dma", "direct"), ("channel", "staged")], ids=" ".join)
def test_checks_change_no_bit(way: tuple[str, str]) -> None:
    program = next(p for p in PLAIN if (p.shape.by, p.shape.way) == way and p.shape.element == "i32")
    source = np.random.default_rng(7).integers(-99, 99, program.shape.point * program.shape.points, np.int32)
    for checks in (True, False):
        target = np.zeros_like(source)
        _run(program, checks, [source, target])
        assert (target == (2 if program.shape.adds else 1) * source).all()


def _run(program: RandomProgram, checks: bool, arrays: list[np.ndarray]) -> None:
    options = BuildOptions(checks=checks)
    built = Program.from_text(program.text, program.name, options=options)
    built.library.run(program.name, [array.ctypes.data for array in arrays])


def test_generate_writes_programs_and_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--seed", "3", "--count", "4", "--out", str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out == (
        f"4 programs in {tmp_path / 'new'}; the check agrees with the expected verdict of 4\n"
    )
    labels = [json.loads(line) for line in (tmp_path / "new" / "labels.jsonl").read_text().splitlines()]
    assert [label["name"] for label in labels] == [f"drawn_{seed}" for seed in range(3, 7)]
    for label in labels:
        assert (tmp_path / "new" / f"{label['name']}.mlir").read_text() == random_program(label["seed"]).text
        assert label["expected"] == random_program(label["seed"]).expected.name.lower()
        assert label["check"] in ("accepted", "refused")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--count", "-1"], "error: argument --count: '-1' is no number from 0 to 100000"),
        (["--seed", "x"], "error: argument --seed: 'x' is no number from 0 to 100000"),
        (
            ["--count", "0", "--out", "{}/file/below"],
            "error: cannot write {}/file/below: Not a directory; name",
        ),
    ],
)
def test_what_generate_refuses(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    words = [word.format(tmp_path) for word in arguments]
    out = [] if "--out" in arguments else ["--out", str(tmp_path)]
    try:
        status = main(["generate", *words, *out])
    except SystemExit as stop:
        status = int(str(stop.code))
    assert status == 2
    assert message.format(tmp_path) in capsys.readouterr().err
