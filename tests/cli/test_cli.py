"""The command line: what it prints where, and its exit codes.

The programs run in numpy here; test_end_to_end.py runs them on the virtual NPU.
"""

import io
import json
import shutil
import signal
import sys

import pytest

from aerie.cli import commands
from aerie.cli.arguments import default_cache_dir
from aerie.cli.checkpoints import BUILT_IN_MODELS, DEMO_FOLDER, find_checkpoint
from aerie.cli.command_line import build_parser, main
from aerie.engine.config import load_config
from aerie.engine.requests import Request
from aerie.engine.tokenizer import load_tokenizer


def test_text_to_stdout_and_the_rest_to_stderr(run):
    code, out, err = run("--prompt", "hi", "--n-tokens", "5")
    assert code == 0
    assert out.endswith("\n")
    assert "prepared" in err
    assert "prepared" not in out
    last = err.strip().splitlines()[-1]
    assert last.startswith("prompt 5 tokens | new 5 tokens | time to first token ")
    assert last.endswith(" tokens/s | cut after 5 tokens (--n-tokens, N_TOKENS) | numpy")


def test_json_alone(run, make_checkpoint, monkeypatch):
    """One object on standard output; where someone looks on, the answer comes on standard error."""
    code, out, err = run("--prompt", "hi", "--n-tokens", "5", "--json")
    record = json.loads(out)
    assert record["text"] not in err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    _, out, err = run("--prompt", "hi", "--n-tokens", "5", "--json", "--backend", "virtual")
    assert json.loads(out)["text"] == record["text"]
    assert f"\n{record['text']}\n" in err
    tokenizer = load_tokenizer(make_checkpoint())
    assert code == 0
    assert set(record) == {
        "text", "token_ids", "prompt_token_ids", "finish_reason", "ttft_s", "tokens_per_s", "passes",
        "backend", "thinking",
    }  # fmt: skip
    assert record["prompt_token_ids"] == tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    assert record["text"] == tokenizer.decode(record["token_ids"])
    assert len(record["token_ids"]) == 5
    assert record["finish_reason"] == "length"
    assert record["ttft_s"] > 0
    assert record["tokens_per_s"] > 0
    assert record["passes"] is None
    assert record["backend"] == "numpy"


@pytest.mark.parametrize("flags", [("hi you",), ("hi", "you"), ("-p", "hi you"), ()])
def test_every_way_to_give_a_prompt(run, monkeypatch, flags):
    """After the command, in one word or several, by a short flag, or through a pipe."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hi you\n")))
    expected = json.loads(run("--prompt", "hi you", "--n-tokens", "1", "--json")[1])["prompt_token_ids"]
    code, out, _ = run("--n-tokens", "1", "--json", *flags)
    assert (code, json.loads(out)["prompt_token_ids"]) == (0, expected)


def test_a_model_by_its_short_flag(make_checkpoint):
    arguments = build_parser().parse_args(["chat", "-m", "demo"])
    assert arguments.model == "demo"


def test_one_token_has_no_rate(run):
    _, out, _ = run("--prompt", "hi", "--n-tokens", "1", "--json")
    assert json.loads(out)["tokens_per_s"] is None


def test_raw_leaves_the_template_out(run, make_checkpoint):
    _, out, _ = run("--prompt", "hi", "--n-tokens", "1", "--json", "--raw")
    tokenizer = load_tokenizer(make_checkpoint())
    assert json.loads(out)["prompt_token_ids"] == tokenizer.encode("hi")


def test_without_a_template_a_prompt_is_continued(run, make_checkpoint):
    folder = make_checkpoint(template=None)
    _, out, _ = run("--prompt", "hi", "--n-tokens", "1", "--json", model=folder)
    expected = load_tokenizer(folder).encode("hi")
    assert json.loads(out)["prompt_token_ids"] == expected


def test_seed_repeats(run):
    def text(seed):
        flags = ("--prompt", "hi", "--n-tokens", "8", "--temperature", "4", "--top-k", "50", "--top-p", "0.9")
        return json.loads(run(*flags, "--seed", seed, "--json")[1])["token_ids"]

    assert text("1") == text("1") != text("2")


def test_sampling_flags_without_temperature_are_remarked(run):
    for flags in (("--top-k", "5"), ("--top-p", "0.5"), ("--min-p", "0.5")):
        _, _, err = run("--prompt", "hi", "--n-tokens", "1", *flags)
        assert "note: --top-k, --top-p and --min-p change nothing at --temperature 0" in err
    assert "note:" not in run("--prompt", "hi", "--n-tokens", "1", "--seed", "4")[2]


def test_penalties_and_bias_change_what_is_likeliest(run):
    def tokens(*flags):
        return json.loads(run("--prompt", "hi", "--n-tokens", "6", "--json", *flags)[1])["token_ids"]

    likeliest, favoured = tokens()[0], ("--logit-bias", "7=12")
    assert tokens("--logit-bias", f"{likeliest}=-100")[0] != likeliest
    assert tokens(*favoured).count(7) == 5
    for penalty in ("--frequency-penalty", "--presence-penalty", "--repetition-penalty"):
        assert 0 < tokens(*favoured, penalty, "2").count(7) < 5


def test_an_answer_of_a_json_schema(run, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["a", "b"]}')
    for flags in ((), ("--temperature", "2", "--seed", "1")):
        code, out, err = run("--prompt", "hi", "--json-schema", str(schema), *flags, model="demo")
        assert (code, out.strip() in ('"a"', '"b"')) == (0, True), err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "schema.json of --json-schema cannot be read (No such file or directory); name a text file"),
        (b"\xff", "schema.json of --json-schema is not UTF-8 text (byte 0 is 0xff)"),
        (b"{", "the JSON schema cannot be taken: Expecting property name enclosed in double quotes"),
        (b'{"type": "foo"}', "the JSON schema cannot be taken: Invalid type: foo; change it"),
    ],
)
def test_a_file_that_is_no_json_schema(run, tmp_path, content, message):
    schema = tmp_path / "schema.json"
    if content is not None:
        schema.write_bytes(content)
    code, _, err = run("--prompt", "hi", "--json-schema", str(schema))
    assert (code, message in err) == (2, True), err


def test_end_of_context_is_stated(run, make_checkpoint):
    code, out, err = run(
        "--prompt", "hi", "--json", model=make_checkpoint(max_position_embeddings=16, eos_token_id=1)
    )
    record = json.loads(out)
    assert code == 0
    assert record["finish_reason"] == "context"
    assert len(record["token_ids"]) + len(record["prompt_token_ids"]) == 17
    assert "cut at the end of the model's context of 16 positions" in err


def test_options_reach_the_runtime(run, prepared, tmp_path):
    run(
        "--prompt",
        "hi",
        "--n-tokens",
        "1",
        "--seq-len",
        "64",
        "--backend",
        "virtual",
        "--cache-dir",
        str(tmp_path),
    )
    options = prepared[0]
    assert (options.seq_len, options.backend.name, options.cache_dir) == (64, "virtual", tmp_path)


def test_numerics_reach_the_runtime(run, prepared):
    run("--prompt", "hi", "--n-tokens", "1", "--backend", "virtual", "--numerics", "bfp16")
    assert prepared[0].backend.toolchain.numerics == "bfp16"


def test_profile_prints_a_table(run):
    code, out, err = run("--prompt", "hi", "--n-tokens", "3", command="profile")
    assert code == 0
    for operation in (
        "detokenization",
        "decode attention",
        "KV cache write",
        "embedding",
        "final RMSNorm",
        "sampling",
    ):
        assert operation in out
    assert "prompt 5 tokens" in err


def test_chat_over_a_pipe(prepared, make_checkpoint, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n/stats\n/exit\n"))
    assert main(["chat", "--model", str(make_checkpoint()), "--n-tokens", "4"]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip()
    assert "conversation: 1 turns" in captured.err
    assert ">>>" not in captured.out


def test_interrupt_during_an_answer(run, monkeypatch):
    tokens = Request.__iter__

    def interrupted(self):
        for count, token in enumerate(tokens(self)):
            if count == 2:
                signal.raise_signal(signal.SIGINT)
            yield token

    monkeypatch.setattr(Request, "__iter__", interrupted)
    code, out, err = run("--prompt", "hi", "--json")
    record = json.loads(out)
    assert code == 130
    assert record["finish_reason"] == "interrupted"
    assert len(record["token_ids"]) == 3
    assert "| stopped | numpy" in err


def test_interrupt_at_any_other_time(run, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "prepare_runtime", interrupted)
    code, out, err = run("--prompt", "hi")
    assert (code, out, err) == (130, "", "stopped\n")


def test_defects_keep_their_traceback(run, monkeypatch):
    from aerie.runtime import ArrayError

    for defect in (ArrayError("x is missing"), ZeroDivisionError()):

        def fail(*arguments, defect=defect):
            raise defect

        monkeypatch.setattr(commands, "prepare_runtime", fail)
        with pytest.raises(type(defect)):
            run("--prompt", "hi")


def test_default_directory_is_in_the_project():
    directory = default_cache_dir()
    assert directory.parts[-2:] == ("build", "programs")
    assert (directory.parents[1] / "pyproject.toml").is_file()


def test_default_model_is_the_demo():
    assert build_parser().parse_args(["compile"]).model == "demo"
    assert find_checkpoint("demo") == DEMO_FOLDER


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], [("demo", "guide")]),
        (["--decode", "rows"], [("demo", "rows")]),
        (["--draft", "lookup"], [("demo", "rows"), ("demo", "guide")]),
        (["--decode", "rows", "--draft", "demo-drafter"], [("demo", "rows"), ("demo-drafter", "guide")]),
    ],
)
def test_compile_has_all_ready_that_the_same_words_run(words, wanted, monkeypatch):
    compiled = []

    def compiling(config, options, report, all_variants):
        compiled.append((config, options.decode, all_variants))

    monkeypatch.setattr(commands, "compile_programs", compiling)
    assert main(["compile", *words]) == 0
    assert compiled == [(load_config(BUILT_IN_MODELS[model]), decode, True) for model, decode in wanted]


def test_compile_needs_a_config_only(damaged, monkeypatch, capsys):
    """No weights, no tokenizer: a program depends on shapes alone."""
    for path in damaged.iterdir():
        if path.name != "config.json":
            path.unlink()
    compiled = []
    monkeypatch.setattr(commands, "compile_programs", lambda *given, **_: compiled.append(given))
    assert main(["compile", "--model", str(damaged), "--seq-len", "64"]) == 0
    assert compiled[0][0] == load_config(damaged)
    assert compiled[0][1].seq_len == 64


def test_moved_checkpoint_runs_the_same(run, make_checkpoint, tmp_path):
    copy = shutil.copytree(make_checkpoint(), tmp_path / "with a blank")
    flags = ("--prompt", "hi", "--n-tokens", "6")
    assert run(*flags)[1] == run(*flags, model=copy)[1]


def test_values_for_the_chat_template(run, damaged, checkpoints):
    """JSON, or else text; the last of a name counts."""
    (damaged / "chat_template.jinja").unlink(missing_ok=True)
    template = "{{ 'a' * n }}{{ word }}{% if enable_thinking is false %}!{% endif %}"
    checkpoints.edit_json(damaged / "tokenizer_config.json", chat_template=template)
    flags = [f"--template-arg={each}" for each in ("n=1", "n=3", "word=x=y", "enable_thinking=false")]
    code, out, _ = run("--prompt", "hi", "--n-tokens", "1", "--json", *flags, model=damaged)
    assert code == 0
    assert load_tokenizer(damaged).decode(json.loads(out)["prompt_token_ids"]) == "aaax=y!"
    for wrong, message in (
        (["--template-arg=n"], "'n' is not a name, = and a value, such as enable_thinking=false"),
        (["--template-arg=n=1", "--raw"], "--template-arg is for the chat template, which --raw leaves out"),
        (["--template-arg=tools=1"], "tools cannot be given to the chat template, which has a value"),
    ):
        code, _, err = run("--prompt", "hi", *wrong, model=damaged)
        assert code == 2
        assert message in err


def test_thinking_is_turned_on_and_off_and_kept_apart(run, damaged, checkpoints):
    (damaged / "chat_template.jinja").unlink(missing_ok=True)
    template = "a{% if enable_thinking is true %}<think>{% elif enable_thinking is false %}!{% endif %}"
    checkpoints.edit_json(damaged / "tokenizer_config.json", chat_template=template)
    flags = ("--prompt", "hi", "--n-tokens", "4", "--json")
    tokenizer = load_tokenizer(damaged)
    for more, prompt in (
        (["--think"], "a<think>"),
        (["--no-think"], "a!"),
        (["--no-think", "--think"], "a<think>"),
    ):
        code, out, err = run(*flags, *more, model=damaged)
        made = json.loads(out)
        assert code == 0
        assert tokenizer.decode(made["prompt_token_ids"]) == prompt
        thinks = prompt.endswith(">")
        assert bool(made["thinking"]) is thinks
        assert bool(made["text"]) is not thinks
        assert "cannot be turned on or off" not in err
        assert ("note: all of it was thinking, and no answer came; --n-tokens" in err) is thinks
    code, _, err = run(*flags, "--think", "--raw", model=damaged)
    assert code == 2
    assert "which --raw leaves out, and so are --think and --no-think" in err


def test_thinking_that_the_template_cannot_switch(run, make_checkpoint):
    code, _, err = run("--prompt", "hi", "--n-tokens", "1", "--no-think")
    assert code == 0
    assert "note: this model's chat template has no enable_thinking" in err


def test_values_without_a_chat_template(run, make_checkpoint):
    code, _, err = run("--prompt", "hi", "--template-arg=n=1", model=make_checkpoint(template=None))
    assert code == 2
    assert "n is for a chat template, and this checkpoint has none; leave it out" in err
