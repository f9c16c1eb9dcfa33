"""The gate's command line: its output, its exit codes, and the one line for every bad input."""

import json
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.common.errors import UserError
from aerie.engine.families import FAMILIES
from aerie.engine.open_session import prepare_runtime
from aerie.engine.reporter import Reporter
from aerie.llama32_1b.synthetic.shape import TINY, in_family
from aerie.verify import __main__ as cli
from aerie.verify.random_model import random_checkpoint, random_model_config, with_longer_context
from aerie.verify.reference import Reference
from tests.verify.fault_runners import Passing


@pytest.fixture
def gate(capsys, tmp_path):
    """gate(*flags) -> (exit code, lines of standard output, lines of standard error, the record's folder)"""

    def run(*flags):
        code = cli.main(["gate", "--backend", "virtual", "--out", str(tmp_path / "out"), *flags])
        out, err = capsys.readouterr()
        return code, out.splitlines(), err.splitlines(), tmp_path / "out"

    return run


@pytest.fixture
def prompts_alone(monkeypatch):
    """Without ladders, which other tests have: they take seconds."""
    monkeypatch.setattr(cli, "_layer_reports", lambda *_: [])


def test_the_demo_passes(gate):
    code, out, err, folder = gate()
    assert code == 0
    assert out[-1] == "[verify] PASS"
    assert [line for line in out if line.startswith("chat turn")]
    assert [line for line in out if line.startswith("long ")]
    ladders = [
        line.split()[-3:]
        for line in out
        if line.startswith(("the model ", "in few rows ", "random weights "))
    ]
    assert [(verdict, int(used.strip("%")) < 70) for _, used, verdict in ladders] == [("ok", True)] * 6
    assert "virtual: long, " in "\n".join(err)
    path = folder / "verify-demo-virtual-exact.json"
    assert err[-1] == f"record: {path}"
    record = json.loads(path.read_text())
    assert record["verdict"] == "PASS"
    assert [(one["model"], one["tokens"], len(one["steps"])) for one in record["ladders"]] == [
        ("the model", 512, 220),
        ("in few rows", 512, 220),
        ("random weights", 512, 76),
    ]
    assert "own" in record["ladders"][0]["steps"][0]


@pytest.mark.parametrize("option", ["--prompts", "--conversation"])
def test_blocks_have_no_further_prompts(gate, option):
    code, out, err, _ = gate("--model", "demo-diffusion", option, "3")
    assert (code, out) == (2, [])
    assert err[-1] == (
        "error: --prompts (N_PROMPTS) and --conversation (CONVERSATION) are for models that generate token "
        "by token; this one fills in blocks: leave them out"
    )


def test_more_than_there_is_is_refused_before_anything_is_compared(gate):
    code, out, err, _ = gate("--conversation", "500")
    assert (code, out) == (2, [])
    assert err[-1].startswith("error: --conversation is 500 tokens (CONVERSATION)")


@pytest.mark.parametrize("command", [("gate",), ("diagnosis", "--prompt", "Hi")])
def test_fewer_positions_than_the_model_has(command, monkeypatch, capsys):
    """What is opened has as many as the flag says, random weights in its shape too."""

    def opened(checkpoint, options, _):
        raise UserError(f"{checkpoint.config.context} positions, for a prompt of {options.prompt_tokens}")

    monkeypatch.setattr(cli, "_open_both", opened)
    assert cli.main([*command, "--backend", "virtual", "--max-model-len", "40"]) == 2
    assert "error: 40 positions, for a prompt of " in capsys.readouterr().err
    config = replace(TINY, max_positions=40)
    with random_checkpoint(random_model_config(config), Reporter(quiet=True)) as checkpoint:
        assert checkpoint.config.context == 40
    assert with_longer_context(config).context == 1024


def test_a_fault_exits_with_1(gate, monkeypatch, prompts_alone):
    class NoFFN(Passing):
        def run(self, program, /, *, bo_key, **rest):
            results = super().run(program, bo_key=bo_key, **rest)
            return (
                {"x_next": results["x_next"] * 0}
                if (program.kind, bo_key[-3:]) == ("o_ffn", "_L3")
                else results
            )

    def prepare(*arguments):
        session = healthy(*arguments)
        runner: Any = NoFFN(session.model.runner)
        return replace(session, model=replace(session.model, runner=runner))

    healthy = prepare_runtime
    monkeypatch.setattr(cli, "prepare_runtime", prepare)
    code, out, _, folder = gate()
    assert code == 1
    assert out[-1].startswith("[verify] FAIL: free-running, chat turn, position ")
    (path,) = folder.iterdir()
    record = json.loads(path.read_text())
    assert record["verdict"] == "FAIL"
    assert out[-1].startswith(f"[verify] FAIL: {record['failures'][0]['text']}")


def test_bfp16_has_a_record_of_its_own(gate, monkeypatch):
    """In few programs: both kinds of products of rows, which are those that have block floats."""
    monkeypatch.setenv("VNPU_OPT", "1")  # block floats are in generated code
    code, out, _, folder = gate("--numerics", "bfp16", "--variants", "8,128x512", "--decode", "rows")
    assert (code, out[-1]) == (0, "[verify] PASS")
    assert "bfp16 products" in "\n".join(out)
    assert [path.name for path in folder.iterdir()] == ["verify-demo-virtual-bfp16.json"]


def refused(gate, *flags):
    code, out, err, _ = gate(*flags)
    assert (code, out) == (2, [])
    return err[-1]


def test_there_is_no_such_model(gate):
    assert refused(gate, "--model", "/no/such/folder").startswith(
        "error: --model '/no/such/folder' is neither a folder, nor a GGUF file, nor a Hugging Face id"
    )


def test_a_folder_without_a_checkpoint(gate, tmp_path):
    assert f"error: there is no {tmp_path / 'config.json'}" in refused(gate, "--model", str(tmp_path))


def test_an_unknown_flag(gate):
    message = "error: unrecognized arguments: --fulll; did you mean --full? (see aerie verify --help)"
    assert refused(gate, "--fulll") == message


def test_unknown_numerics(gate):
    assert refused(gate, "--numerics", "int4").startswith("error: ")


def test_without_torch_it_says_how_to_get_it(gate, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert refused(gate) == (
        "error: the reference needs torch, which is not installed; `make verify` installs it, as does "
        "pip install -e '.[test]'"
    )


def test_a_folder_that_cannot_be_made(gate, tmp_path):
    (tmp_path / "file").write_text("")
    assert refused(gate, "--out", str(tmp_path / "file")) == (
        f"error: cannot write to {tmp_path / 'file'} (File exists); name another folder with --out, "
        "or for everything with AERIE_CACHE"
    )


def test_a_record_that_cannot_be_written(gate, tmp_path, prompts_alone):
    (tmp_path / "out" / "verify-demo-virtual-exact.json").mkdir(parents=True)
    code, _, err, _ = gate()
    assert code == 2
    assert err[-1] == (
        f"error: cannot write {tmp_path / 'out' / 'verify-demo-virtual-exact.json'} (Is a directory); "
        "name another folder with --out, or for everything with AERIE_CACHE"
    )


def test_a_checkpoint_that_transformers_cannot_load(tmp_path):
    """It wants a number where ours looks at nothing."""
    from aerie.engine.errors import CheckpointError

    shutil.copytree(DEMO_FOLDER, tmp_path, dirs_exist_ok=True)
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**content, "initializer_range": "wide"}))
    with pytest.raises(CheckpointError, match=f"transformers cannot load {tmp_path}: .*; fetch it again"):
        Reference.open(tmp_path)


def test_a_reference_that_gives_no_numbers(write_llama):
    import torch

    from aerie.engine.errors import CheckpointError

    reference = Reference.open(write_llama(num_hidden_layers=1))
    with torch.no_grad():
        reference.model.model.norm.weight[0] = float("nan")
    with pytest.raises(CheckpointError, match="logits that are not finite for this checkpoint"):
        reference.greedy([1, 2], 2)


def test_one_pass_gives_what_steps_give(demo_reference):
    """Within what bf16 products of other shapes may differ by."""
    prompt = [1495, 100, 200, 300]
    answer = demo_reference.greedy(prompt, 8)
    rows = demo_reference.logits([*prompt, *answer.token_ids[:-1]], start=len(prompt) - 1)
    assert rows.shape == answer.logits.shape
    assert abs(rows - answer.logits).max() < 0.1 * answer.logits.std()


def test_models_whose_layers_keep_states_have_no_chunks(monkeypatch):
    model: Any = SimpleNamespace(config=in_family(TINY, FAMILIES["lfm2"]))
    monkeypatch.setattr(cli, "_kinds", lambda *_: [("the model", model)])
    notes: list[str] = []
    given: Any = SimpleNamespace(note=notes.append)
    assert [*cli._check_chunks(model, given, given)] == []
    assert notes == ["the model: no chunks, as layers of a Lfm2ForCausalLM keep states"]
