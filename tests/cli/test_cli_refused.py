"""The command line: the one line for every bad input, and its exit code."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from aerie.cli.command_line import main
from aerie.engine.tokenizer import load_tokenizer
from tests.engine.refusals import check_refused

BAD_NUMBERS = [
    (("--n-tokens", ""), "argument --n-tokens: '' is not a whole number of 1 or more"),
    (("--n-tokens", "0"), "argument --n-tokens: '0' is not a whole number of 1 or more"),
    (("--n-tokens", "ten"), "argument --n-tokens: 'ten' is not a whole number of 1 or more"),
    (("--max-model-len", "0"), "argument --max-model-len: '0' is not a whole number of 1 or more"),
    (("--seq-len", "-1"), "argument --seq-len: '-1' is not a whole number of 1 or more"),
    (("--top-k", ""), "argument --top-k: '' is not a whole number of 0 or more"),
    (("--top-k", "2.5"), "argument --top-k: '2.5' is not a whole number of 0 or more"),
    (("--seed", "x"), "argument --seed: 'x' is not a whole number of 0 or more"),
    (("--temperature", "hot"), "argument --temperature: 'hot' is not a number"),
    (("--temperature", "nan"), "argument --temperature: 'nan' is not a number"),
    (("--temperature", "-1"), "temperature is -1.0; it must be 0 (greedy) or more"),
    (("--top-p", "0"), "top-p is 0.0; it must be above 0 and at most 1"),
    (("--top-p", ""), "argument --top-p: '' is not a number"),
    (("--min-p", "2"), "min-p is 2.0; it must be from 0 (all tokens) to 1"),
    (("--repetition-penalty", "0"), "repetition-penalty is 0.0; it must be from 0.01 to 100; 1 is none"),
    (("--presence-penalty", "3"), "presence-penalty is 3.0; it must be from -2 to 2, and 0 is none"),
    (("--frequency-penalty", "-3"), "frequency-penalty is -3.0; it must be from -2 to 2, and 0 is none"),
    (
        ("--logit-bias", "x=1"),
        "argument --logit-bias: 'x=1' is not a token id, = and a number, such as 13=-5",
    ),
    (("--logit-bias", "7"), "argument --logit-bias: '7' is not a token id, = and a number, such as 13=-5"),
    (("--logit-bias", "7=101"), "logit-bias of token 7 is 101.0; it must be from -100 to 100"),
    (("--logit-bias", "99999=1"), "logit-bias names token 99999, and the model's vocabulary has 0 to"),
    (
        ("--seq-len", "257"),
        "--seq-len 257 (SEQ_LEN) is more than the model's 256 positions (max_position_embeddings); ask for "
        "at most 256",
    ),
    (
        ("--draft", "crystal"),
        "--draft 'crystal' (DRAFT) is not 'lookup', so it is to be a model: --model 'crystal' is",
    ),
    (
        ("--rule", "sequential"),
        "rule is 'sequential', which is for models of block diffusion, and this model",
    ),
    (("--block-size", "8"), "block_size (BLOCK_SIZE) is 8, and this model says one token after the other;"),
    (("--no-such-flag",), "unrecognized arguments: --no-such-flag"),
]


@pytest.mark.parametrize(("flags", "message"), BAD_NUMBERS)
def test_bad_numbers(run, prepared, flags, message):
    check_refused(run("--prompt", "hi", *flags), message)
    assert prepared == []


def test_a_knob_that_makes_no_sense(run, prepared, monkeypatch):
    """Said before a model is fetched: this one would have to be."""
    monkeypatch.setenv("VNPU_THREADS", "0")
    message = "VNPU_THREADS='0' cannot be used: give a whole number from 1 to 1024; or unset it"
    for command in ("run", "profile"):
        check_refused(run("--prompt", "hi", model="owner/name", command=command), message)
    for command in ("chat", "compile"):
        check_refused(run(model="owner/name", command=command), message)
    assert prepared == []


@pytest.mark.parametrize("prompt", ["", "   ", "\n"])
def test_empty_prompt(run, prepared, prompt):
    check_refused(run("--prompt", prompt), "the prompt is empty; give it some text with --prompt")
    assert prepared == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "there is no prompt: write it after the command, name a file with --prompt-file, or pipe it to"),
        (
            ("hi", "--prompt", "hi"),
            "the prompt is given twice, as 'hi' and with --prompt or --prompt-file; give one",
        ),
        (
            ("demo", "hi", "you"),
            "'demo' stands where the prompt does; a model is named with -m: -m demo 'hi you'",
        ),
        (
            ("hi", "--modle", "demo"),
            "unrecognized arguments: --modle demo; did you mean --model? (see aerie run",
        ),
    ],
)
def test_a_prompt_that_is_not_given_once(run, prepared, monkeypatch, flags, message):
    """--prompt-file stays an alternative of --prompt."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    check_refused(run(*flags), message)
    assert prepared == []
    check_refused(run("--prompt", "a", "--prompt-file", "b"), "not allowed with argument -p/--prompt")


def test_prompt_that_is_no_text(run):
    check_refused(run("--prompt", "\udcff"), "the prompt is not valid UTF-8")


def test_prompt_over_the_compiled_length(run, prepared):
    """Programs for a prompt that is longer than by default; refused where their length was asked for, or the
    model has no positions for it. What the message says to do works."""
    long = ("--prompt", "x" * 200, "--n-tokens", "1")
    message = (
        "the prompt is 204 tokens long and --seq-len (SEQ_LEN) has programs compiled for at most 128; "
        "shorten it, give 256, or leave --seq-len out"
    )
    check_refused(run(*long, "--seq-len", "128"), message)
    message = (
        "the prompt is 304 tokens long and the model has 256 positions (max_position_embeddings, "
        "max_seq_length, longrope or --max-model-len); shorten it"
    )
    check_refused(run("--prompt", "x" * 300), message)
    assert prepared == []
    assert run(*long)[0] == run(*long, "--seq-len", "256")[0] == 0
    assert [options.prompt_tokens for options in prepared] == [204, 204]


def test_the_length_a_tokenizer_was_made_for_says_nothing(damaged, checkpoints):
    """transformers would print a warning of its own beside our line. In a process: it does so once."""
    checkpoints.edit_json(damaged / "tokenizer_config.json", model_max_length=16)
    done = subprocess.run(
        [sys.executable, "-m", "aerie.cli", "run", "--model", str(damaged), "--prompt", "x" * 300],
        capture_output=True,
        text=True,
        timeout=120,
    )
    check_refused((done.returncode, done.stdout, done.stderr), "the prompt is 304 tokens long")


def test_weights_that_are_no_numbers(run, damaged):
    path = damaged / "model.safetensors"
    weights = load_file(path)
    norm = "model.norm.weight"
    save_file({**weights, norm: np.full_like(weights[norm], np.nan)}, path)
    code, out, err = run("--prompt", "Hi", model=damaged)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == (
        "error: the logits hold values that are not finite: weights of the checkpoint are damaged, or do not "
        "fit bf16, or the forward pass is broken; `make diagnosis` names the first step that is wrong"
    )


def test_prompt_of_the_compiled_length_is_run(run):
    code, out, _ = run("--prompt", "x" * 124, "--n-tokens", "1", "--json")
    assert code == 0
    assert len(json.loads(out)["prompt_token_ids"]) == 128


def test_no_template_is_one_rule(run, make_checkpoint, capsys, monkeypatch):
    """What is written is continued as plain text, with the same note; --raw asks for that, so it has none."""
    folder = make_checkpoint(template=None)
    note = "note: this checkpoint has no chat template; what you write is continued as plain text\n"
    for command in ("run", "profile"):
        code, _, err = run("--prompt", "hi", "--n-tokens", "1", model=folder, command=command)
        assert (code, err.count(note)) == (0, 1)
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\nmore\n"))
    code, out, err = run("--n-tokens", "2", model=folder, command="chat")
    assert (code, err.count(note), out.count("\n") >= 2) == (0, 1, True)
    assert note not in run("--prompt", "hi", "--n-tokens", "1", "--raw", model=folder)[2]
    assert note not in run("--prompt", "hi", "--n-tokens", "1")[2]


LONG_TEXT = 'naïve 日本語\n\n"quoted"  text\n'


def test_prompts_from_a_file_and_from_standard_input(run, make_checkpoint, tmp_path, monkeypatch):
    """One line break at the end is the file's, not the prompt's."""
    (tmp_path / "file").write_bytes(b"\xef\xbb\xbf" + LONG_TEXT.replace("\n", "\r\n").encode())
    tokenizer = load_tokenizer(make_checkpoint())
    for flags, content, text in (
        (("--prompt", "-"), LONG_TEXT, LONG_TEXT[:-1]),
        (("--prompt-file", "-"), LONG_TEXT + "\n", LONG_TEXT),
        (("--prompt-file", tmp_path / "file"), "", LONG_TEXT.replace("\n", "\r\n")[:-2]),
    ):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
        _, out, _ = run(*map(str, flags), "--n-tokens", "1", "--json", "--raw")
        assert json.loads(out)["prompt_token_ids"] == tokenizer.encode(text)


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        (
            b"a\xffb",
            ("--prompt", "-"),
            "the prompt on standard input is not UTF-8 text (byte 1 is 0xff); convert",
        ),
        (b" \n", ("--prompt", "-"), "the prompt on standard input is empty; give it some text"),
        (
            b"",
            ("--prompt-file", "no/file"),
            "the prompt file no/file cannot be read (No such file or directory)",
        ),
        (
            b"",
            ("--prompt", "a", "--prompt-file", "b"),
            "argument --prompt-file: not allowed with argument -p/--prompt",
        ),
        (
            b"",
            ("--prompt", "a", "--raw", "--system", "b"),
            "--system needs the chat template, which --raw leaves",
        ),
        (
            b"",
            ("--prompt", "a", "--raw", "--system", ""),
            "--system needs the chat template, which --raw leaves",
        ),
        (
            b"",
            ("--prompt", "a", "--control-tokens"),
            "--control-tokens is for text without the chat template",
        ),
        (b"", ("--prompt", "a", "--system", "\udcff"), "the system message is not valid UTF-8"),
    ],
)
def test_prompts_that_cannot_be_read(run, prepared, monkeypatch, content, flags, message):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    check_refused(run(*flags), message)
    assert prepared == []


def test_standard_input_that_is_closed(run, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    check_refused(
        run("--prompt", "-"), "the prompt on standard input cannot be read (it is closed); name a text"
    )


def test_a_system_message(run, make_checkpoint):
    _, out, _ = run("--prompt", "hi", "--system", "Be brief.", "--n-tokens", "1", "--json")
    tokenizer = load_tokenizer(make_checkpoint())
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert json.loads(out)["prompt_token_ids"] == tokenizer.encode_chat(messages)


def test_control_tokens_in_a_prompt(run, make_checkpoint):
    """Control tokens are text, unless --raw enables them; a note warns of templates written by hand."""
    tokenizer = load_tokenizer(make_checkpoint())
    end = tokenizer.encode("<|end|>", control_tokens=True)[1]
    flags = ("--prompt", "a<|end|>b", "--n-tokens", "1", "--json")

    def ends(*more):
        _, out, err = run(*flags, *more)
        return json.loads(out)["prompt_token_ids"].count(
            end
        ), "<|end|> in the prompt is text; with --con" in err

    assert ends() == (1, False)  # the template's own
    assert ends("--raw") == (0, True)
    assert ends("--raw", "--control-tokens") == (1, False)


def test_no_command(capsys):
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("error: the following arguments are required: COMMAND")


@pytest.mark.parametrize("command", ["compile", "run", "chat", "profile", "mlir"])
def test_help(command, capsys):
    with pytest.raises(SystemExit) as leaving:
        main([command, "--help"])
    assert leaving.value.code == 0
    assert "--model" in capsys.readouterr().out


def test_damaged_checkpoints(run, damaged, checkpoints):
    """One of each: the texts of all are in test_config.py and test_weights.py."""
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    check_refused(run("--prompt", "hi", model=damaged), "model.safetensors is truncated or damaged")
    weights.unlink()
    check_refused(run("--prompt", "hi", model=damaged), "there is no")
    checkpoints.edit_json(damaged / "config.json", model_type="mamba")
    check_refused(run("--prompt", "hi", model=damaged), " are supported (README.md, Models")


def test_model_that_is_not_there(run, tmp_path):
    check_refused(
        run("--prompt", "hi", model="no-such-folder"), "'no-such-folder' is neither a folder, nor a GGU"
    )
    file = tmp_path / "model.safetensors"
    file.touch()
    check_refused(
        run("--prompt", "hi", model=file),
        "is a file, and not in GGUF; give the folder that holds config.json",
    )
    (tmp_path / "tiny.bin").touch()
    pickle = run("--prompt", "hi", model=tmp_path / "tiny.bin")
    check_refused(pickle, "holds config.json (there is tiny.bin: a pickle can run code and is never read: ")
    (tmp_path / "tiny.bin").unlink()
    (tmp_path / "model.onnx").touch()
    onnx = run("--prompt", "hi", model=tmp_path / "model.onnx")
    check_refused(onnx, "holds config.json (there is model.onnx: that format is not read: fetch the safet")
    (tmp_path / "model.onnx").unlink()
    file.unlink()
    check_refused(
        run("--prompt", "hi", model=tmp_path), "config.json; give --model a Hugging Face checkpoint folder"
    )


def test_unknown_backend(capsys, make_checkpoint, tmp_path):
    code = main(
        [
            "run",
            "--model",
            str(make_checkpoint()),
            "--prompt",
            "hi",
            "--backend",
            "gpu",
            "--cache-dir",
            str(tmp_path),
        ]
    )
    captured = capsys.readouterr()
    check_refused(
        (code, captured.out, captured.err), "unknown backend 'gpu'; choose one of: auto, virtual, npu"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "flags", "message"),
    [
        ({"head_dim": 80}, (), "head_dim=80 is not a positive multiple of 32"),
        (
            {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 100},
            ("--seq-len", "192"),
            "192 (SEQ_LEN) asks for programs in which a token sees all tokens before it, and in this model "
            "it sees 100 (sliding_window); leave --seq-len out",
        ),
        ({}, ("--seq-len", "100"), "seq_len=100 is not a positive multiple of 64 (flash_attn takes"),
        ({}, ("--seq-len", "100"), "; the nearest legal value is 128"),
    ],
)
def test_shapes_that_are_not_supported(damaged, checkpoints, capsys, tmp_path, changes, flags, message):
    """Refused before anything is compiled or written; with the nearest legal value where one can choose."""
    checkpoints.edit_json(damaged / "config.json", **changes)
    code = main(["compile", "--model", str(damaged), "--cache-dir", str(tmp_path / "cache"), *flags])
    captured = capsys.readouterr()
    check_refused((code, captured.out, captured.err), message)
    assert not (tmp_path / "cache").exists()


def test_mlir_into_a_folder_that_cannot_be(capsys, make_checkpoint, tmp_path, monkeypatch):
    (tmp_path / "file").touch()

    def write(shape, seq_len, out):
        out.mkdir(parents=True)

    monkeypatch.setattr("aerie.multi_launch_builder.builder.write_mlir", write)
    code = main(["mlir", "--model", str(make_checkpoint()), str(tmp_path / "file" / "out")])
    captured = capsys.readouterr()
    check_refused((code, captured.out, captured.err), "file/out (Not a directory); name another folder")
