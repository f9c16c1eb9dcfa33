"""A command line that makes no sense ends in one line and with 2, whichever command it is of."""

from __future__ import annotations

import importlib
import re

import pytest

USAGE_ERRORS = [
    ("virtual_npu", "aerie vnpu", "", "the following arguments are required: COMMAND"),
    ("virtual_npu", "aerie vnpu", "rum", "argument COMMAND: invalid choice: 'rum' \\(choose from"),
    ("virtual_npu", "aerie vnpu", "rum a.mlir", ".*did you mean run\\?"),
    ("kernel_builder", "aerie kernels", "chekc gemm", ".*did you mean check\\?"),
    ("cli", "aerie", "chatt", ".*did you mean chat\\?"),
    ("cli", "aerie", "run hi --n-token=5x", "argument --n-tokens: '5x' is not"),
    (
        "cli",
        "aerie",
        "run hi --temprature 1",
        "unrecognized arguments: --temprature 1; did you mean --temperature\\?",
    ),
    ("cli", "aerie", "chat demo", "unrecognized arguments: demo; a model is named with --model demo"),
    ("virtual_npu", "aerie vnpu", "run --args in.npz", "the following arguments are required: file"),
    ("kernel_builder", "aerie kernels", "", "the following arguments are required: COMMAND"),
    ("kernel_builder", "aerie kernels", "check", "the following arguments are required: kernel"),
    ("multi_launch_builder", "aerie programs", "", "the following arguments are required: COMMAND"),
    (
        "multi_launch_builder",
        "aerie programs",
        "mlir out --seq-len many",
        "argument --seq-len: invalid int value: 'many'",
    ),
    ("air_dialect", "aerie air", "", "the following arguments are required: file"),
    ("air_dialect", "aerie air", "a.mlir --no-such-flag", "unrecognized arguments: --no-such-flag"),
    ("cli", "aerie", "", "the following arguments are required: COMMAND"),
]


@pytest.mark.parametrize(("room", "command", "words", "message"), USAGE_ERRORS)
def test_bad_usage_is_one_line(
    room: str, command: str, words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 of every room's command line."""
    main = importlib.import_module(f"aerie.{room}.__main__").main
    try:
        code = main(words.split())
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"error: {message}", line)
    assert re.search(rf"\(see {command}( \w+)? --help\)$", line)
