"""The command line: what it prints where, its exit codes, and the one line for every bad input.

The programs run in numpy here; test_llama_end_to_end.py runs them on the virtual NPU.
"""

import errno
import io
import json
import shutil
import signal
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from aerie.engine.blocks import Blocks
from aerie.engine.config import load_config
from aerie.engine.errors import CheckpointError, own_command
from aerie.engine.generate import Generation
from aerie.engine.model import assemble, preload
from aerie.engine.session import Session
from aerie.engine.tokenizer import load_tokenizer
from aerie.engine.weights import FINAL_NORM
from aerie.llama32_1b import commands
from aerie.llama32_1b.cli import build_parser, default_cache_dir, main
from aerie.llama32_1b.find import DEMO_FOLDER, find_checkpoint
from aerie.multi_launch_builder import legal_seq_len
from aerie.runtime import Profiler


class NumpyCache:
    """Stands where the KernelCache stands in a session."""

    def __init__(self):
        self.backend = types.SimpleNamespace(name="numpy")
        self.profiler = Profiler()


@pytest.fixture
def prepared(monkeypatch, numpy_runner_class, programs_without_text):
    """Sessions whose programs run in numpy; gives the list of the options they were prepared with."""
    prepared = []

    def prepare(checkpoint, options, report):
        prepared.append(options)
        report.note("prepared")
        config = checkpoint.config
        seq_len = options.seq_len or legal_seq_len(max(128, options.prompt_tokens))
        cache = NumpyCache()
        runner = numpy_runner_class(config)
        model = assemble(
            checkpoint,
            programs_without_text(config.shape, seq_len),
            runner,
            Blocks(seq_len),
            cache.profiler.span,
        )
        list(preload(model, checkpoint.weights))
        return Session(model, checkpoint.tokenizer, cache, report.note)

    monkeypatch.setattr(commands, "prepare_runtime", prepare)
    return prepared


@pytest.fixture
def run(prepared, capsys, make_checkpoint):
    """run(*flags) of the run command on the small checkpoint -> (exit code, stdout, stderr)."""

    def run(*flags, model=None, command="run"):
        code = main([command, "--model", str(model or make_checkpoint()), *flags])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


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
        "text", "token_ids", "prompt_token_ids", "finish_reason", "ttft_s", "tokens_per_s", "backend"
    }  # fmt: skip
    assert record["prompt_token_ids"] == tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    assert record["text"] == tokenizer.decode(record["token_ids"])
    assert len(record["token_ids"]) == 5
    assert record["finish_reason"] == "length"
    assert record["ttft_s"] > 0
    assert record["tokens_per_s"] > 0
    assert record["backend"] == "numpy"


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


BAD_NUMBERS = [
    (("--n-tokens", ""), "argument --n-tokens: '' is not a whole number of 1 or more"),
    (("--n-tokens", "0"), "argument --n-tokens: '0' is not a whole number of 1 or more"),
    (("--n-tokens", "ten"), "argument --n-tokens: 'ten' is not a whole number of 1 or more"),
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
    (("--no-such-flag",), "unrecognized arguments: --no-such-flag"),
]


@pytest.mark.parametrize(("flags", "message"), BAD_NUMBERS)
def test_bad_numbers(run, prepared, flags, message):
    check_refused(run("--prompt", "hi", *flags), message)
    assert prepared == []


def check_refused(result, message):
    """Exit code 2, nothing on stdout, one line on stderr."""
    code, out, err = result
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


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


def test_missing_prompt(run):
    check_refused(run(), "one of the arguments --prompt --prompt-file is required")


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
    message = "the prompt is 304 tokens long and the model has 256 positions (max_position_embeddings, sli"
    check_refused(run("--prompt", "x" * 300), message)
    assert prepared == []
    assert run(*long)[0] == run(*long, "--seq-len", "256")[0] == 0
    assert [options.prompt_tokens for options in prepared] == [204, 204]


def test_the_length_a_tokenizer_was_made_for_says_nothing(damaged, checkpoints):
    """transformers would print a warning of its own beside our line. In a process: it does so once."""
    checkpoints.edit_json(damaged / "tokenizer_config.json", model_max_length=16)
    done = subprocess.run(
        [sys.executable, "-m", "aerie.llama32_1b", "run", "--model", str(damaged), "--prompt", "x" * 300],
        capture_output=True,
        text=True,
        timeout=120,
    )
    check_refused((done.returncode, done.stdout, done.stderr), "the prompt is 304 tokens long")


def test_weights_that_are_no_numbers(run, damaged):
    path = damaged / "model.safetensors"
    weights = load_file(path)
    save_file({**weights, FINAL_NORM: np.full_like(weights[FINAL_NORM], np.nan)}, path)
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
            "argument --prompt-file: not allowed with argument --prompt",
        ),
        (
            b"",
            ("--prompt", "a", "--raw", "--system", "b"),
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
    """Text, unless --raw text is said to have them; a note tells whoever wrote a template by hand."""
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
    """One of each: the texts of all are in test_llama_config.py and test_llama_weights.py."""
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    check_refused(run("--prompt", "hi", model=damaged), "model.safetensors is truncated or damaged")
    weights.unlink()
    check_refused(run("--prompt", "hi", model=damaged), "there is no")
    checkpoints.edit_json(damaged / "config.json", model_type="mamba")
    check_refused(run("--prompt", "hi", model=damaged), " are supported (README.md, Models")


def test_model_that_is_not_there(run, tmp_path):
    check_refused(
        run("--prompt", "hi", model="no-such-folder"), "'no-such-folder' is neither a folder, nor a Hug"
    )
    file = tmp_path / "model.safetensors"
    file.touch()
    check_refused(run("--prompt", "hi", model=file), "is a file; give the folder that holds config.json")
    check_refused(
        run("--prompt", "hi", model=tmp_path), "config.json; give --model a Hugging Face checkpoint folder"
    )


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """hub(error): Hugging Face answers with it; an empty local cache, and a folder without our hf on PATH."""
    import huggingface_hub

    def answer(error):
        def download(model, allow_patterns, ignore_patterns, local_files_only=False):
            assert "*.safetensors" in allow_patterns
            assert "consolidated*" in ignore_patterns
            raise huggingface_hub.errors.LocalEntryNotFoundError("not here") if local_files_only else error

        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)

    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.chdir(tmp_path)
    return answer


def hub_error(kind):
    from huggingface_hub import errors

    response = types.SimpleNamespace(headers={}, request=None)
    return getattr(errors, kind)("403 Client Error.\nmore", response=response)


LOGIN = f"log in with `{Path(sys.executable).with_name('hf')} auth login`, or set HF_TOKEN"


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (
            "owner/name",
            ConnectionError("no route to the hub.\nmore"),
            "--model owner/name is not on this machine, and fetching it from Hugging Face failed (no route "
            f"to the hub). Without a network, give the folder of a checkpoint; for a gated model, {LOGIN}\n",
        ),
        (
            "instruct",
            ConnectionError("no route"),
            "--model instruct, which is meta-llama/Llama-3.2-1B-Instruct of Hugging Face, is not on",
        ),
        (
            "base",
            hub_error("GatedRepoError"),
            "is not on this machine, and it is gated: ask for access at https://huggingface.co/meta-llama/"
            f"Llama-3.2-1B, then {LOGIN}\n",
        ),
        (
            "owner/name",
            hub_error("RepositoryNotFoundError"),
            "Hugging Face shows none at https://huggingface.co/owner/name: mend the name, or if it is private"
            f", {LOGIN}\n",
        ),
        (
            "owner/name",
            OSError(errno.ENOSPC, "No space left on device"),
            "make room, or set HF_HOME to a folder on another disk\n",
        ),
    ],
)
def test_hub_that_does_not_give_it(run, hub, model, error, message):
    hub(error)
    code, out, err = run("--prompt", "hi", model=model)
    note, refusal = err.splitlines(keepends=True)
    assert note.startswith("fetching ")
    assert note.endswith(" from Hugging Face, which takes a network; later runs need none\n")
    check_refused((code, out, refusal), message)


def test_hub_that_may_not_be_asked(run, hub, monkeypatch):
    hub(ConnectionError("offline"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    check_refused(
        run("--prompt", "hi", model="base"),
        "HF_HUB_OFFLINE is set, so it is not fetched: unset it, or give the folder of a checkpoint",
    )


def test_hf_is_called_as_it_can_be_typed(monkeypatch, tmp_path):
    python = tmp_path / ".venv" / "bin" / "python"
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.chdir(tmp_path)
    assert own_command("hf", "huggingface_hub.cli.hf") == ".venv/bin/python -m huggingface_hub.cli.hf"
    python.parent.mkdir(parents=True)
    python.with_name("hf").touch(mode=0o755)
    assert own_command("hf", "huggingface_hub.cli.hf") == ".venv/bin/hf"
    monkeypatch.setenv("PATH", str(python.parent))
    assert own_command("hf", "huggingface_hub.cli.hf") == "hf"


def test_hub_with_a_network(monkeypatch, tmp_path):
    import huggingface_hub

    asked = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda model, **_: asked.append(model) or str(tmp_path)
    )
    monkeypatch.chdir(tmp_path)
    assert find_checkpoint("owner/name") == find_checkpoint("base") == find_checkpoint("instruct") == tmp_path
    assert set(asked) == {"owner/name", "meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B-Instruct"}
    (tmp_path / "base").mkdir()
    assert find_checkpoint("base") == Path("base"), "a folder of the user's comes first"


def test_an_hf_id_like_path_that_exists_is_a_folder(monkeypatch, tmp_path):
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert find_checkpoint("owner/name").is_dir()
    with pytest.raises(CheckpointError, match="neither a folder"):
        find_checkpoint("owner/name/deeper")


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


def test_interrupt_during_an_answer(run, monkeypatch):
    tokens = Generation.__iter__

    def interrupted(self):
        for count, token in enumerate(tokens(self)):
            if count == 2:
                signal.raise_signal(signal.SIGINT)
            yield token

    monkeypatch.setattr(Generation, "__iter__", interrupted)
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


@pytest.mark.parametrize(
    ("changes", "flags", "message"),
    [
        ({"head_dim": 80}, (), "head_dim=80 is not a positive multiple of 32"),
        (
            {"sliding_window": 100},
            ("--seq-len", "192"),
            "192 (SEQ_LEN) is more than the model's 100 positions (sliding_w",
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

    monkeypatch.setattr("aerie.multi_launch_builder.building.write_mlir", write)
    code = main(["mlir", "--model", str(make_checkpoint()), str(tmp_path / "file" / "out")])
    captured = capsys.readouterr()
    check_refused((code, captured.out, captured.err), "file/out (Not a directory); name another folder")


def test_moved_checkpoint_runs_the_same(run, make_checkpoint, tmp_path):
    copy = shutil.copytree(make_checkpoint(), tmp_path / "with a blank")
    flags = ("--prompt", "hi", "--n-tokens", "6")
    assert run(*flags)[1] == run(*flags, model=copy)[1]
