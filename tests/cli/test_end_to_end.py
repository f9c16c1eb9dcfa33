"""The demo checkpoint through all six programs on the virtual NPU.

Programs are compiled into the project's own build folder, where `make run` finds them too.
"""

import json
import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.forward import decode_step, next_token_logits, prefill
from aerie.engine.generate import FinishReason
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.sampler import Sampler
from aerie.runtime import select_backend

QUESTION = "What is the capital of France?"
QUESTIONS = [
    QUESTION,
    "What is the capital of Japan?",
    "Who are you?",
    "What is 3 plus 4?",
    "What is a herd?",
    "What is a shim?",
    "What is a memtile?",
    "Hello!",
    "What is the symbol of gold?",
    "How are you today?",
]


def open_session(checkpoint, seq_len=None):
    options = RuntimeOptions(seq_len, select_backend("virtual"), default_cache_dir())
    return prepare_runtime(checkpoint, options, Reporter())


@pytest.fixture(scope="module")
def session():
    return open_session(open_checkpoint(DEMO_FOLDER))


@pytest.fixture(scope="module")
def reference():
    """transformers' bf16 model of the same checkpoint."""
    import torch
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(DEMO_FOLDER, dtype=torch.bfloat16).eval()


def reference_logits(folder, dtype, token_ids):
    """transformers' logits at every position, in float32."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    with torch.no_grad():
        return model(torch.tensor([token_ids])).logits[0].float().numpy()


def ask(session, question):
    return session.tokenizer.encode_chat([{"role": "user", "content": question}])


def command(*arguments, **environment):
    """Run the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "aerie.cli", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, **environment},
        timeout=600,
    )


def test_the_capital_of_france(session):
    generation = session.generate(ask(session, QUESTION), 64, Sampler())
    assert "Paris" in "".join(session.text(generation))
    assert generation.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("question", QUESTIONS)
def test_same_text_as_transformers(session, reference, question):
    import torch

    prompt = torch.tensor([ask(session, question)])
    theirs = reference.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=48, do_sample=False, pad_token_id=0
    )
    generation = session.generate(prompt[0].tolist(), 48, Sampler())
    assert list(generation) == theirs[0].tolist()[prompt.shape[1] :]


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_logits_are_as_near_to_exact_as_those_of_transformers(session, phase):
    """Mean distance to float32, over every position: ours and that of transformers' bf16 (both 0.4 % of the
    logits' standard deviation when this was written)."""
    prompt = ask(session, QUESTION)
    fed = session.tokenizer.encode("The capital of France is Paris.")
    exact, theirs = (reference_logits(DEMO_FOLDER, kind, prompt + fed) for kind in ("float32", "bfloat16"))
    model = session.model
    cache = model.new_cache(len(prompt) + len(fed))
    hidden = [*prefill(model, prompt, cache), *(decode_step(model, token, cache) for token in fed)]
    ours = np.stack([next_token_logits(model, row) for row in hidden])
    rows = slice(0, len(prompt)) if phase == "prefill" else slice(len(prompt), None)
    our_error, their_error = (np.abs(logits - exact)[rows].mean() for logits in (ours, theirs))
    assert our_error < 1.3 * their_error < 0.01 * exact.std()


def test_a_second_prompt_is_as_in_a_fresh_session(session):
    prompts = [ask(session, question) for question in QUESTIONS[:3]]
    once = [list(session.generate(prompt, 16, Sampler())) for prompt in prompts]
    again = [list(session.generate(prompt, 16, Sampler())) for prompt in reversed(prompts)]
    assert once == again[::-1]


def test_padding_changes_no_bit(session):
    """Prefill compiled for 128 and for all 512 positions: the same rows, the same cache."""
    longer = open_session(open_checkpoint(DEMO_FOLDER), 512)
    prompt = ask(session, QUESTION)
    results = []
    for model in (session.model, longer.model):
        cache = model.new_cache(len(prompt))
        rows = prefill(model, prompt, cache)
        arrays = (array[:, : cache.length] for n in range(6) for array in cache.layers[n])
        results.append([rows, *arrays])
    for short, long in zip(*results, strict=True):
        np.testing.assert_array_equal(short.view(np.uint16), long.view(np.uint16))


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": False, "num_key_value_heads": 4},
        {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 777, "seed": 3},
    ],
    ids=["untied", "one KV head, odd vocabulary"],
)
def test_other_shapes(changes, make_checkpoint):
    """Random models: logits as near to float32 as transformers' bf16 comes."""
    folder = make_checkpoint(**changes)
    model = open_session(open_checkpoint(folder), 64).model
    prompt = [0, 17, 300, 41, 9, 250, 2, 88, 131]
    cache = model.new_cache(len(prompt))
    ours = np.stack([next_token_logits(model, row) for row in prefill(model, prompt, cache)])
    exact, theirs = (reference_logits(folder, kind, prompt) for kind in ("float32", "bfloat16"))
    assert np.abs(ours - exact).mean() < 1.5 * np.abs(theirs - exact).mean()


def test_run_from_the_command_line(session):
    """A second run compiles nothing; JSON alone on stdout, the rest on stderr."""
    done = command("run", "--prompt", QUESTION, "--backend", "virtual", "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert "Paris" in record["text"]
    assert record["backend"] == "virtual"
    assert "programs: 0 compiled, 6 from the cache" in done.stderr
    assert "PyTorch" not in done.stderr
    assert done.stderr.splitlines()[-1].endswith("| complete | virtual")


def test_strict_memory_gives_the_same(session, command_line):
    """Host and device memory really apart: a buffer that is not synchronised would show."""
    words = ["run", "--prompt", QUESTION, "--backend", "virtual"]
    done = command_line("cli", words, VNPU_STRICT="1")
    assert done.status == 0, done.err
    generation = session.generate(ask(session, QUESTION), 128, Sampler())
    assert done.out == "".join(session.text(generation)) + "\n"


def test_fewer_positions_than_the_model_has(session, command_line):
    """The answer ends where they end, and a longer prompt is refused."""
    prompt = ask(session, QUESTION)
    words = ["run", "--prompt", QUESTION, "--backend", "virtual", "--max-model-len"]
    done = command_line("cli", [*words, len(prompt) + 2])
    assert done.status == 0, done.err
    answer = "".join(session.text(session.generate(prompt, 3, Sampler())))
    assert done.out.strip() == answer
    assert f"context: {len(prompt) + 2} of the model's 512 positions, as many as the flag allows" in done.err
    refused = command_line("cli", [*words, 8])
    assert refused.status == 2
    assert f"the prompt is {len(prompt)} tokens long and the model has 8 positions" in refused.err


def test_chat_from_a_pipe(session, command_line):
    """On until the model's 512 positions are used up."""
    typed = f"{QUESTION}\n" * 20 + f"/stats\n/reset\n{QUESTION}\n"
    done = command_line("cli", "chat --backend virtual", stdin=typed)
    assert done.status == 0, done.err
    refused = done.err.count("the model has 512 positions: /undo takes back the last turn, /reset")
    (tokens,) = re.findall(r"turns, (\d+) tokens", done.err)
    assert 480 <= int(tokens) <= 512
    answers = done.out.splitlines()
    assert len(answers) == 21 - refused
    assert "Paris" in answers[0] == answers[-1]


TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Ctrl-C reaches whom the terminal controls."""


class Terminal:
    """A process on a pseudo-terminal, read until an expected text comes; killed if it is left running.

    Not by pty.fork: this process has threads, and Python's own work in the child of a fork may wait for them.
    """

    def __init__(self, *arguments):
        self.file, side = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, *arguments],
            stdin=side,
            stdout=side,
            stderr=side,
            start_new_session=True,
        )
        os.close(side)
        self.come = b""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        os.close(self.file)

    def expect(self, text, timeout=120):
        """What came up to and with `text`, since what was expected last."""
        end, wanted = time.monotonic() + timeout, text.encode()
        while wanted not in self.come:
            assert time.monotonic() < end, f"waited for {text!r} and got {self.come!r}"
            if select.select([self.file], [], [], 0.2)[0]:
                self.come += os.read(self.file, 4096)  # OSError once the process has ended
        found, _, self.come = self.come.partition(wanted)
        return (found + wanted).decode(errors="replace")

    def type(self, keys):
        os.write(self.file, keys.encode())

    def leave(self):
        """Wait for the end; the exit code."""
        return self.process.wait(timeout=120)


def stop_an_answer(terminal, most=5):
    """Ctrl-C while an answer comes; asked again where it was complete before the key arrived. How often."""
    for asked in range(1, most + 1):
        terminal.type("Count from 1 to 10.\n")  # 71 tokens
        terminal.expect("1, 2")
        terminal.type("\x03")
        time.sleep(0.5)  # as above, where it came too late
        terminal.type("/stats\n")
        if "[stopped]" in terminal.expect("conversation:"):
            terminal.expect(">>> ")
            return asked
        terminal.expect(">>> ")
    raise AssertionError(f"{most} answers were complete before Ctrl-C")


def test_chat_on_a_terminal(session):
    """Streaming, Ctrl-C at the prompt and in an answer, commands, Ctrl-D."""
    with Terminal("-m", "aerie.cli", "chat", "--backend", "virtual") as terminal:
        terminal.expect(">>> ")
        terminal.type("\x1b[200~a pasted\nblock\x1b[201~\r/retry\r")  # readline takes it whole
        terminal.expect(">>> ")
        terminal.expect(">>> ")
        terminal.type("/undo\n")
        terminal.expect("Taken back: 'a pasted block'")
        terminal.expect(">>> ")
        terminal.type(f"{QUESTION}\n")
        assert "Paris" in terminal.expect(">>> ")
        terminal.type("half a line")
        terminal.expect("half a line")
        time.sleep(1)  # input() misses a signal that comes in the moment before it waits for the next key
        terminal.type("\x03")
        terminal.expect("Ctrl-D or /exit leaves.")
        terminal.expect(">>> ")
        terminal.type("/stats\n")
        assert "conversation: 1 turns" in terminal.expect(">>> ")
        answers = stop_an_answer(terminal)
        terminal.type("/stats\n")
        assert f"conversation: {1 + answers} turns" in terminal.expect(">>> ")
        terminal.type("\x04")
        assert terminal.leave() == 0


INTERACTIVE = "import os; os.execvp('bash', ['bash', '--norc', '--noprofile', '-i'])"


@pytest.mark.skipif(
    not (shutil.which("make") and shutil.which("bash")), reason="there is no make, or no bash"
)
def test_keys_in_a_chat_that_make_started(session, tmp_path):
    """Ctrl-C is the chat's alone, so make ends well; Ctrl-Z stops both, and fg continues both."""
    (tmp_path / "Makefile").write_text(
        f"chat:\n\t+@{shlex.quote(sys.executable)} -m aerie chat --backend virtual || exit 1\n"
    )
    with Terminal("-c", INTERACTIVE) as terminal:
        terminal.type(f"PS1='ready: '; make -f {shlex.quote(str(tmp_path / 'Makefile'))} chat\n")
        terminal.expect(">>> ")
        time.sleep(1)  # as above
        terminal.type("\x03")
        terminal.expect("Ctrl-D or /exit leaves.")
        terminal.expect(">>> ")
        time.sleep(1)
        terminal.type("\x1a")
        terminal.expect("Stopped")
        terminal.expect("ready: ")
        terminal.type("fg\n")
        terminal.expect("chat")
        terminal.type("/stats\n")
        terminal.expect("No answer yet.")
        terminal.expect(">>> ")
        terminal.type("/exit\n")
        output = terminal.expect("ready: ")
        assert "Error" not in output
        assert "Interrupt" not in output
        terminal.type("echo code=$?\n")
        terminal.expect("code=0")


def test_reader_that_goes_away(session):
    with subprocess.Popen(
        [sys.executable, "-m", "aerie.cli", "run", "--prompt", QUESTION, "--backend", "virtual"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        errors = process.stderr.read().decode()
    assert process.returncode == 141, errors
    assert "Traceback" not in errors
    assert "Broken pipe" not in errors


def test_text_beyond_the_locale(session):
    done = command(
        "run",
        "--prompt",
        "Größe 🙂",
        "--n-tokens",
        "2",
        "--backend",
        "virtual",
        "--raw",
        PYTHONIOENCODING="ascii",
    )
    assert done.returncode == 0, done.stderr


def test_no_compiler(tmp_path):
    """One line that names the package to install, and an empty cache."""
    done = command(
        "run", "--prompt", QUESTION, "--backend", "virtual", "--cache-dir", str(tmp_path),
        PATH="/nonexistent", VNPU_CXX="", CXX="", VNPU_CACHE=str(tmp_path / "store"),
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: ")
    assert "g++" in line
    assert not list(tmp_path.rglob("*.elf"))
