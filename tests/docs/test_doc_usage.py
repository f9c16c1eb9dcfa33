"""docs/usage.md against the code: its tables, and what it says that bad input prints."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from doc_transcripts import DOCS, blocks, matches, session, table
from safetensors.numpy import load_file, save_file

from aerie.cli import arguments
from aerie.cli.chat import HELP
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.cli.commands import _record
from aerie.engine.generate import FinishReason
from aerie.multi_launch_builder.limits import rules

PAGE = "usage.md"
MAKEFILE = (DOCS.parent / "Makefile").read_text()
TEXT = (DOCS / PAGE).read_text()


def test_make_targets() -> None:
    shown = {cell.split()[1] for cell, _ in table(PAGE, "target", "what it does")}
    assert shown == set(re.findall(r"^([a-z-]+):.*##", MAKEFILE, re.MULTILINE))


def test_make_variables() -> None:
    shown = {name: flag for name, flag, _ in table(PAGE, "variable", "flag", "default")}
    assert set(shown) == set(re.findall(r"^([A-Z_]+) +\?=", MAKEFILE, re.MULTILINE))
    for name, flag in shown.items():
        if flag.startswith("--"):
            passed = rf'{flag}="\$\${name}"|option,{flag},{name}\)'
            assert re.search(passed, MAKEFILE), f"{name} is not passed as {flag}"


def _commands() -> dict[str, list[argparse.Action]]:
    """What each command of `aerie` takes."""
    (choices,) = (a.choices for a in arguments.build_parser()._actions if isinstance(a.choices, dict))
    return {name: [a for a in parser._actions if a.dest != "help"] for name, parser in choices.items()}


def test_flags_of_every_command() -> None:
    rows = table(PAGE, "flag", "of", "meaning")
    for name, actions in _commands().items():
        shown = {flag for flag, of, _ in rows if of == "all" or name in of.split(", ")}
        assert shown == {(*action.option_strings, action.metavar)[0] for action in actions}, name


def test_defaults() -> None:
    defaults = {
        action.option_strings[0]: action.default for action in _commands()["profile"] if action.option_strings
    }
    for _, flag, default in table(PAGE, "variable", "flag", "default"):
        if re.fullmatch(r"[\d.]+", default):
            assert float(default) == defaults[flag]


def test_shapes_that_the_kernels_accept() -> None:
    rows = table(PAGE, "size", "in config.json", "multiple of", "at most", "why the limit")
    assert [(name, int(step), int(most), why) for name, _, step, most, why in rows] == [
        (rule.name, rule.step, rule.most, rule.why_most) for rule in rules()
    ]


def test_json_fields() -> None:
    generation = SimpleNamespace(
        token_ids=[1],
        prompt_ids=(2,),
        finish_reason=None,
        passes=None,
        figures=SimpleNamespace(ttft_s=0.1, tokens_per_s=None),
    )
    fields = list(_record(cast(Any, SimpleNamespace(backend="virtual")), cast(Any, generation), "text"))
    assert [field for field, _ in table(PAGE, "field", "meaning")] == fields
    (example,) = (json.loads(body) for language, _, body in blocks(PAGE) if language == "json")
    assert list(example) == fields


@pytest.mark.parametrize("reason", FinishReason)
def test_finish_reasons(reason: FinishReason) -> None:
    (meaning,) = (cell for field, cell in table(PAGE, "field", "meaning") if field == "finish_reason")
    assert f"{reason.value}:" in meaning


def test_chat_commands() -> None:
    shown = set(re.findall(r"^\| `(/\w+)[^`]*` \|", TEXT, re.MULTILINE))
    assert shown == set(re.findall(r"^(/\w+)", HELP, re.MULTILINE))


USAGE_ERRORS = [
    ("virtual_npu", "aerie vnpu", "", "the following arguments are required: COMMAND"),
    ("virtual_npu", "aerie vnpu", "rum", "argument COMMAND: invalid choice: 'rum' (choose from"),
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
    ("llama32_1b", "aerie", "", "the following arguments are required: COMMAND"),
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
    assert line.startswith(f"error: {message}")
    assert re.search(rf"\(see {command}( \w+)? --help\)$", line)


def _without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _with(file: str, **entries: object) -> Callable[[Path], None]:
    """Entries of a JSON file replaced; None removes one."""

    def change(folder: Path) -> None:
        content = {**json.loads((folder / file).read_text()), **entries}
        (folder / file).write_text(
            json.dumps({key: value for key, value in content.items() if value is not None})
        )

    return change


def _truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100_000])


def _with_tensor(name: str, change: Callable[[np.ndarray], np.ndarray] | None) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensor = tensors.pop(name)
        save_file({**tensors, name: change(tensor)} if change else tensors, folder / "model.safetensors")

    return rewrite


def _with_bias(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file({**load_file(path), "model.layers.0.self_attn.q_proj.bias": np.ones(256, np.float32)}, path)


UP = "model.layers.2.mlp.up_proj.weight"
BROKEN: dict[str, Callable[[Path], None]] = {
    "no-config": _without("config.json"),
    "no-weights": _without("model.safetensors"),
    "no-tokenizer": _without("tokenizer.json"),
    "refusing": _with(
        "tokenizer_config.json", chat_template="{{ raise_exception('no system messages here') }}"
    ),
    "truncated": _truncated,
    "no-tensor": _with_tensor(UP, None),
    "wrong-type": _with_tensor(UP, lambda tensor: tensor.astype(np.int8)),
    "wrong-shape": _with("config.json", intermediate_size=832),
    "gemma": _with("config.json", architectures=["Gemma2ForCausalLM"], model_type="gemma2"),
    "norms-queries": _with("config.json", use_qk_norm=True),
    "has-a-bias": _with_bias,
    "quantised": _with("config.json", quantization_config={"quant_method": "gptq", "bits": 4}),
    "yarn": _with("config.json", rope_scaling={"rope_type": "yarn", "factor": 4.0}),
    "head-dim-80": _with("config.json", head_dim=80),
    "too-wide": _with("config.json", intermediate_size=53248),
}
REFUSALS = [pair for language, _, body in blocks(PAGE) if language == "console" for pair in session(body)]


@pytest.mark.parametrize(("command", "message"), REFUSALS, ids=[command for command, _ in REFUSALS])
def test_refusals(
    command: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)
    assert words[0] == "aerie"
    if (model := _model(words)) in BROKEN:
        shutil.copytree(DEMO_FOLDER, model)
        BROKEN[model](Path(model))
    assert arguments.main([*words[1:], "--cache-dir", "cache"]) == 2
    printed = capsys.readouterr()
    assert matches(message, printed.err)
    assert printed.out == ""
    assert not Path("cache").exists()


def test_every_broken_checkpoint_is_shown() -> None:
    assert set(BROKEN) <= {_model(shlex.split(command)) for command, _ in REFUSALS}


def _model(words: list[str]) -> str:
    return words[words.index("--model") + 1] if "--model" in words else "demo"
