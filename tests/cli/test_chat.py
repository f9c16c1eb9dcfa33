"""The chat REPL, driven by lines, with a session that records and answers by rule."""

import dataclasses
import io
import json
import re
import signal
from typing import Any

import pytest

from aerie.cli.answer_printer import print_answer
from aerie.cli.chat import COMMANDS, HELP, Chat, completions
from aerie.cli.chat_model import ChatModel
from aerie.cli.checkpoints import BUILT_IN_MODELS, DEMO_FOLDER
from aerie.cli.command_line import build_parser
from aerie.cli.word_wrap import WordWrapper
from aerie.engine.config import load_config
from aerie.engine.errors import PromptError, PromptTooLongError
from aerie.engine.generate import FinishReason, RequestFigures
from aerie.engine.sampler import Sampler
from aerie.engine.scheduler import generate_alone
from aerie.engine.thinking import KNOWN_TAGS, ThinkingStart
from aerie.engine.variant_set import VariantSet
from aerie.engine.variants import parse_variants
from aerie.multi_launch_builder.variants import Variant


class FakeTokenizer:
    """One token per message, and one for where the answer starts."""

    has_chat_template = True
    start = None

    def encode_chat(self, messages, arguments=None):
        self.arguments = arguments
        self.messages = [(message["role"], message["content"]) for message in messages]
        return [1] * (len(messages) + 1)

    def thinking_start(self, prompt_ids):
        return self.start


class FakeGeneration:
    def __init__(self, prompt_ids, reason):
        self.prompt_ids = prompt_ids
        self.token_ids = [5, 6]
        self.finish_reason = reason
        self.finish_text = f"ended by {reason.value}"
        self.figures = RequestFigures(len(prompt_ids), 2, 0.25, 4.0)


class FakeSession:
    """Answers "echo N" to a conversation of N messages; `reading` is called before it, `during` in it."""

    def __init__(self, limit=100):
        self.tokenizer: Any = FakeTokenizer()
        self.limit = limit
        self.enough = None
        self.reason = FinishReason.STOP
        self.reading = self.during = lambda: None

    def ensure_programs(self, prompt_ids):
        self.asked = len(prompt_ids)

    def generate(self, prompt_ids, max_new_tokens, sampler, interrupted):
        if len(prompt_ids) > self.limit:
            raise PromptTooLongError(len(prompt_ids), self.limit, self.enough)
        self.interrupted = interrupted
        return FakeGeneration(prompt_ids, self.reason)

    def text(self, generation):
        self.reading()
        self.interrupted()
        yield "echo "
        self.during()
        if self.interrupted():
            generation.finish_reason = FinishReason.INTERRUPTED
            generation.finish_text = "stopped"
            return
        yield str(len(self.tokenizer.messages))


@pytest.fixture
def session():
    return FakeSession()


def converse(session, *lines, system=None, model=None):
    """What the chat wrote and noted for these lines."""
    script, out = iter(lines), io.StringIO()
    notes: list[str] = []

    def read(prompt):
        line = next(script, None)
        if line is None:
            raise EOFError
        return line + "\n"

    Chat(session, Sampler(), 9, note=notes.append, out=out, read=read, system=system, model=model).run()
    assert notes[0] == "Type a message; /help lists the commands."
    return out.getvalue(), notes[1:]


def test_history_is_sent_whole(session):
    out, notes = converse(session, "hello", "", "  again  ", "/exit", "never read")
    assert out == "echo 1\necho 3\n"
    assert notes == []
    assert session.tokenizer.messages == [("user", "hello"), ("assistant", "echo 1"), ("user", "again")]


def test_reset_forgets(session):
    out, notes = converse(session, "hello", "/reset", "again", "/stats")
    assert out == "echo 1\necho 1\n"
    assert notes[0] == "The conversation is forgotten."
    assert notes[1].endswith("conversation: 1 turns, 4 tokens")


def test_stats(session):
    _, notes = converse(session, "/stats", "hello", "more", "/stats")
    assert notes[0] == "No answer yet."
    assert notes[1] == (
        "prompt 4 tokens | new 2 tokens | time to first token 0.250 s | 4.00 tokens/s\n"
        "conversation: 2 turns, 6 tokens"
    )


def test_help_and_unknown_commands(session):
    """In any letter case; an unknown argument is reported, and nothing is done."""
    out, notes = converse(session, "/HELP", "/what now", "/Reset it", '"""/reset"""', "/EXIT", "never read")
    assert notes[0] == HELP
    assert all(f"\n{name} {command.argument_name}" in HELP for name, command in COMMANDS.items())
    assert notes[1] == (
        "There is no command /what; there are /reset, /undo, /retry, /system, /save, /load, /set, /show, "
        '/model, /stats, /help, /exit. A message that begins with a slash goes between """ and """.'
    )
    assert notes[2] == "/reset takes nothing after it; nothing was done."
    assert out == "echo 1\n"
    assert session.tokenizer.messages == [("user", "/reset")]


def test_names_of_other_programs_for_commands(session):
    """And the nearest for a mistyped one."""
    out, notes = converse(session, "one", "/?", "/clear", "/sav x", "/bye", "never read")
    assert notes == [
        HELP,
        "The conversation is forgotten.",
        "There is no command /sav; did you mean /save? A message that begins with a slash goes between "
        '""" and """.',
    ]
    assert out == "echo 1\n"
    assert converse(session, "/quit", "never read") == ("", [])


def test_settings_hold_from_the_next_answer_on(session):
    given = []

    def generate(ids, limit, sampler, interrupted):
        given.append((sampler.temperature, sampler.seed, limit))
        return FakeSession.generate(session, ids, limit, sampler, interrupted)

    session.generate = generate
    _, notes = converse(
        session,
        "one",
        "/set temperature 0.5",
        "/set seed 7",
        "/set n_tokens 3",
        "two",
        "/set seed none",
        "three",
    )
    assert given == [(0.0, None, 9), (0.5, 7, 3), (0.5, None, 3)]
    assert notes[0] == "temperature is 0.5 from the next answer on."


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("temprature 1", "There is no setting temprature; did you mean temperature?"),
        ("xyz 1", "There is no setting xyz; there are temperature, top-k, "),
        (
            "temperature",
            "/set temperature needs a value: /set temperature VALUE; /set alone shows all settings",
        ),
        ("temperature hot", "temperature is 'hot'; it must be a number"),
        ("temperature -1", "temperature is -1.0; it must be 0 (greedy) or more"),
        ("top-k 2.5", "top-k is '2.5'; it must be a whole number of 0 or more"),
        ("n-tokens 0", "n-tokens is 0; it must be a whole number of 1 or more"),
        ("think maybe", "think is 'maybe'; it must be on, off, none, which leaves it to the template"),
    ],
)
def test_a_setting_that_cannot_be(session, words, message):
    """The settings stay."""
    _, notes = converse(session, f"/set {words}", "/set")
    assert notes[0].startswith(message)
    assert notes[1].splitlines()[0].split() == ["temperature", "0.0"]
    assert notes[1].splitlines()[-2].split() == ["n-tokens", "9"]


def test_system_is_a_setting_too(session):
    converse(session, "/set system Be brief.", "one")
    assert session.tokenizer.messages == [("system", "Be brief."), ("user", "one")]


def chat_model(largest, context, diffusion=None):
    config = dataclasses.replace(
        load_config(DEMO_FOLDER), max_position_embeddings=context, diffusion=diffusion
    )
    variants = VariantSet(variants=(Variant(8, largest), Variant(32, largest)))
    return ChatModel("demo", config, variants, "virtual")


def test_show_and_model():
    """What the model is; another takes another chat."""
    model = chat_model(512, 2048)
    _, notes = converse(FakeSession(), "/model", "/model other", "one", "/show", model=model)
    assert notes[0] == str(model)
    assert "family    llama, 6 layers of 256" in notes[0]
    assert "context   512 of the model's 2048 positions" in notes[0]
    assert (
        notes[1] == "A chat stays with its model: /save FILE, /bye, `aerie chat -m other`, then /load FILE."
    )
    assert notes[2:4] == [str(model), "There is no system message."]
    assert notes[4].endswith("conversation: 1 turn")


def test_a_context_that_ends_offers_what_can_be_done(session):
    """Each command in it can be parsed."""
    session.reason = FinishReason.CONTEXT
    _, (note,) = converse(session, "one", model=chat_model(512, 2048))
    assert note == (
        "[ended by context; /undo takes back the last turn, /reset starts afresh; with /save FILE, then "
        "`aerie chat -m demo --variants 8,32x512,1024` and /load FILE, it goes on to position 1024; with "
        "/save FILE, then `aerie chat -m demo --context-end shift` and /load FILE, the oldest is dropped]"
    )
    for command in re.findall("`aerie (.*?)`", note):
        arguments = build_parser().parse_args(command.split())
        assert arguments.variants is None or parse_variants(arguments.variants)


def test_no_longer_variants_are_offered_where_there_are_none(session):
    session.reason = FinishReason.CONTEXT
    (note,) = converse(session, "one", model=chat_model(512, 512))[1]
    assert "--variants" not in note
    diffusion = load_config(BUILT_IN_MODELS["demo-diffusion"]).diffusion
    (note,) = converse(session, "one", model=chat_model(512, 512, diffusion))[1]
    assert note == "[ended by context; /undo takes back the last turn, /reset starts afresh]"


def test_tab_completes_commands_settings_and_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talk.json").touch()
    (tmp_path / "talks").mkdir()
    (tmp_path / ".hidden").touch()
    assert completions("/s") == ["/system", "/save", "/set", "/show", "/stats"]
    assert completions("/b") == ["/bye"]
    assert completions("/set te") == ["temperature"]
    assert completions("/load ") == ["talk.json", "talks/"]
    assert completions("/save talk.") == ["talk.json"]
    assert completions(f"/save {tmp_path}/tal") == [f"{tmp_path}/talk.json", f"{tmp_path}/talks/"]
    for line in ("", "he", "/set temperature 0", "/load none/x", "/undo "):
        assert completions(line) == []


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_words_are_whole_on_a_terminal(monkeypatch):
    """In each piece that a word may come in; elsewhere the text is as the model wrote it."""
    monkeypatch.setattr(WordWrapper.__init__, "__defaults__", (lambda: 10,))
    text = "The capital of France\n  is Paris, and 東京東京東京 averyveryverylongword x"
    wrapped = "The\ncapital of\nFrance\n  is\nParis, and\n東京東京東\n京 averyveryverylongword x\n"
    for size in (1, 3, 100):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        out, plain = Terminal(), io.StringIO()
        assert print_answer(pieces, out).text == print_answer(pieces, plain).text == text
        assert (out.getvalue(), plain.getvalue()) == (wrapped, text + "\n")


OPEN = ThinkingStart(KNOWN_TAGS[0], is_open=True)
THOUGHT = ["so", " it", " goes\n</thi", "nk>\n\nPa", "ris."]


def test_thinking_is_dim_on_a_terminal_and_left_out_elsewhere(monkeypatch):
    monkeypatch.setattr(WordWrapper.__init__, "__defaults__", (lambda: 8,))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    out, plain = Terminal(), io.StringIO()
    assert print_answer(THOUGHT, out, OPEN) == print_answer(THOUGHT, plain, OPEN) == ("so it goes", "Paris.")
    assert out.getvalue() == "\x1b[2mso it\ngoes\x1b[22m\n\nParis.\n"
    assert plain.getvalue() == "Paris.\n"
    assert print_answer(THOUGHT, None, OPEN) == ("so it goes", "Paris.")


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", ""), ("TERM", "dumb")])
def test_thinking_has_headings_where_there_are_no_colours(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    out = Terminal()
    print_answer(THOUGHT, out, OPEN)
    assert out.getvalue() == "[thinking]\nso it goes\n\n[answer]\nParis.\n"


def test_dim_ends_with_an_answer_that_fails_or_never_comes(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def pieces():
        yield "so it "
        raise PromptError("lost")

    out = Terminal()
    with pytest.raises(PromptError):
        print_answer(pieces(), out, OPEN)
    assert out.getvalue() == "\x1b[2mso it\x1b[22m"
    out = Terminal()
    print_answer(["so"], out, OPEN)
    assert out.getvalue() == "\x1b[2mso\x1b[22m\n"


def test_a_conversation_has_answers_without_their_thinking(session):
    """And /set think says to the template whether there is any."""
    session.tokenizer.start = OPEN
    session.text = lambda generation: iter(["so</think>", "Hi"])
    out, notes = converse(session, "one", "/set think on", "two", "/set think off", "/set", "three")
    assert out == "Hi\nHi\nHi\n"
    assert session.tokenizer.messages[1] == ("assistant", "Hi")
    assert notes[:2] == ["think is on from the next answer on.", "think is off from the next answer on."]
    assert notes[2].splitlines()[-1].split() == ["think", "off"]
    assert session.tokenizer.arguments == {"enable_thinking": False}
    converse(session, "/set think on", "/set think none", "one")
    assert session.tokenizer.arguments == {}
    session.text = lambda generation: iter(["so"])
    assert converse(session, "one")[1][0].startswith("[all of it was thinking; /set n-tokens allows more")


def test_what_is_held_back_is_written_when_an_answer_fails():
    def pieces():
        yield "half a wo"
        raise PromptError("lost")

    out = Terminal()
    with pytest.raises(PromptError):
        print_answer(pieces(), out)
    assert out.getvalue() == "half a wo"


def test_undo(session):
    _, notes = converse(session, "/undo", "one", "two " * 20, "/undo", "/stats", "three")
    assert notes == [
        "There is no turn to take back.",
        f"Taken back: '{('two ' * 20)[:50]}...' and its answer; 1 turn left.",
        "conversation: 1 turn, no answer since",
    ]
    assert session.tokenizer.messages[::2] == [("user", "one"), ("user", "three")]
    assert len(session.tokenizer.messages) == 3


def test_retry(session):
    """In place of the old answer; a message whose answer failed is asked as well."""
    out, notes = converse(session, "/retry", "one", "/retry", "/stats")
    assert notes[0] == "There is no message to answer again."
    assert session.tokenizer.messages == [("user", "one")]
    assert out == "echo 1\necho 1\n"
    assert notes[1] == "note: at --temperature 0 (TEMPERATURE) the same message has the same answer"
    assert notes[2].endswith("conversation: 1 turns, 4 tokens")


def test_a_retry_that_fails_keeps_the_old_answer(session):
    failing = iter([False, True, False])

    def during():
        if next(failing):
            raise PromptError("the device is lost")

    session.during = during
    _, notes = converse(session, "one", "/retry", "/retry", "/stats")
    assert notes[1] == "the device is lost"
    assert session.tokenizer.messages == [("user", "one")]
    assert notes[2].endswith("conversation: 1 turns, 4 tokens")


def test_system_message(session):
    _, notes = converse(
        session, "one", "/system", "/system Be brief.", "/reset", "two", '/system ""', system="Hm"
    )
    assert notes == [
        "The system message: Hm",
        "The system message is set.",
        "The conversation is forgotten; the system message stays.",
        "The system message is removed.",
    ]
    converse(session, "/system Be brief.", "two")
    assert session.tokenizer.messages == [("system", "Be brief."), ("user", "two")]
    assert converse(session, "/system")[1] == ["There is no system message."]


def test_a_system_message_that_the_template_refuses(session):
    encode = session.tokenizer.encode_chat

    def refuse(messages, arguments=None):
        if messages[0]["role"] == "system":
            raise PromptError("the checkpoint's chat template refuses this conversation (no system)")
        return encode(messages)

    session.tokenizer.encode_chat = refuse
    out, notes = converse(session, "/system Be brief.", "one")
    assert (out, len(notes)) == ("echo 1\n", 1)


def test_save_and_load(session, tmp_path):
    path = tmp_path / "a talk.json"
    _, notes = converse(
        session, f"/save {path}", "/system Be brief.", "one", f"/save {path}", "two 🙂", f"/save {path}"
    )
    assert notes[0] == "There is nothing to save yet."
    assert notes[2:] == [f"1 turn saved to {path}.", f"2 turns saved to {path}, in place of what was there."]
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert [message["role"] for message in saved["messages"]] == ["system", *["user", "assistant"] * 2]
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]

    _, notes = converse(session, "other", f"/load {path}", "three", f"/save {path}")
    assert notes[0] == f"2 turns loaded from {path}; 1 turn before it forgotten."
    assert session.tokenizer.messages[:3] == [
        ("system", "Be brief."),
        ("user", "one"),
        ("assistant", "echo 2"),
    ]
    assert notes[1] == f"3 turns saved to {path}, in place of what was there."


def test_a_file_that_is_there_is_not_written_over(session, tmp_path):
    path = tmp_path / "mine"
    path.write_text("mine")
    _, notes = converse(session, "one", f"/save {path}", "/save", "/save /proc/none/x", "/save a\0b")
    assert notes[0] == f"{path} exists and is not overwritten; name another file, or remove it first"
    assert path.read_text() == "mine"
    assert notes[1:] == [
        "/save needs the name of a file: /save FILE",
        "cannot write /proc/none/x (No such file or directory); name another file",
        "'a\\x00b' is no name of a file",
    ]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot read {path} (No such file or directory); name a file that /save wrote"),
        ("hello", "{path} is not JSON; name a file that /save wrote"),
        (b"\xff", "{path} is not JSON; name a file that /save wrote"),
        ("{}", '{path} is no conversation: there is no list "messages"; name a file that /save wrote'),
        ("[1]", 'message 1 has no "role" and "content"'),
        ('[{"role": "user", "content": 1}]', "the content of message 1 is no text"),
        ('[{"role": "user", "content": "\\ud800"}]', "the content of message 1 is no text"),
        (
            '[{"role": "assistant", "content": "x"}]',
            "message 1 is from 'assistant'; user and assistant take turns",
        ),
        (
            '[{"role": "system", "content": "x"}, {"role": "system", "content": "x"}]',
            "message 2 is from 'system'",
        ),
        ('[{"role": "user", "content": "x"}]', "the last message has no answer"),
    ],
)
def test_a_file_that_is_no_conversation(session, tmp_path, content, why):
    """Told, and the conversation there is stays."""
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    _, notes = converse(session, "one", f"/load {path}", "two")
    assert why.format(path=path) in notes[0]
    assert len(session.tokenizer.messages) == 3


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.CONTEXT])
def test_an_answer_that_was_cut_says_so(session, reason):
    session.reason = reason
    _, notes = converse(session, "hello")
    more = "; /undo takes back the last turn, /reset starts afresh" if reason is FinishReason.CONTEXT else ""
    assert notes == [f"[ended by {reason.value}{more}]"]


@pytest.mark.parametrize(
    ("enough", "why"),
    [
        (None, "the model has 3 positions: /undo takes back the last turn, /reset starts afresh."),
        (
            64,
            "--seq-len (SEQ_LEN) has programs compiled for at most 3: /undo takes back the last turn, /reset "
            "starts afresh; a chat without --seq-len goes on until the model's positions are used up.",
        ),
    ],
)
def test_too_long_a_conversation_keeps_the_session(enough, why):
    """What it says to do makes room."""
    session = FakeSession(limit=3)
    session.enough = enough
    out, notes = converse(session, "one", "two", "/stats", "/reset", "three", "/undo", "four")
    assert out == "echo 1\necho 1\necho 1\n"
    assert notes[0] == f"With this message the conversation is 4 tokens long, and {why}"
    assert notes[1].endswith("conversation: 1 turns, 4 tokens")


def test_a_first_message_that_is_too_long():
    """There is nothing to forget: shorten it."""
    _, notes = converse(FakeSession(limit=1), "one")
    assert notes == [
        "the prompt is 2 tokens long and the model has 1 positions (max_position_embeddings, "
        "max_seq_length, longrope or --max-model-len); shorten it"
    ]


def test_other_user_errors_keep_the_session(session):
    def fail():
        raise PromptError("the prompt holds token 999")

    session.during = fail
    _, notes = converse(session, "one")
    assert notes == ["the prompt holds token 999"]


def test_interrupt_stops_the_answer_and_keeps_the_conversation(session):
    session.during = lambda: signal.raise_signal(signal.SIGINT)
    before = signal.getsignal(signal.SIGINT)
    out, notes = converse(session, "hello", "/stats")
    assert out == "echo \n"
    assert notes[0] == "[stopped]"
    assert "1 turns" in notes[1]
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupt_while_the_prompt_is_read_forgets_the_turn(session):
    def press():
        if len(session.tokenizer.messages) == 3:
            signal.raise_signal(signal.SIGINT)

    session.reading = press
    before = signal.getsignal(signal.SIGINT)
    out, notes = converse(session, "one", "lost", "/stats", "/exit")
    assert out == "echo 1\n"
    assert notes[0] == "\nStopped; this turn is forgotten."
    assert notes[1].endswith("conversation: 1 turns, 4 tokens")
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupt_in_a_command_keeps_the_session(session, monkeypatch):
    def interrupted(chat, line):
        raise KeyboardInterrupt

    monkeypatch.setattr(Chat, "_command", interrupted)
    out, notes = converse(session, "one", "/stats", "two")
    assert out == "echo 1\necho 3\n"
    assert notes == ["\nStopped."]


def test_second_interrupt_forgets_the_turn(session):
    def interrupt_twice():
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    session.during = interrupt_twice
    _, notes = converse(session, "hello", "/stats")
    assert notes == ["\nStopped; this turn is forgotten.", "No answer yet."]


def test_turn_by_turn_is_the_whole_conversation_at_once(numpy_model, make_checkpoint):
    """With a real model: the second answer is what a fresh start with the same history gives."""
    from aerie.engine.tokenizer import load_tokenizer

    folder = make_checkpoint()
    model = numpy_model(folder, 128)
    model = dataclasses.replace(model, config=dataclasses.replace(model.config, eos_token_ids=()))

    class Session(FakeSession):
        def __init__(self):
            self.tokenizer = load_tokenizer(folder)
            self.given = []

        def generate(self, prompt_ids, max_new_tokens, sampler, interrupted):
            self.given.append(generate_alone(model, prompt_ids, max_new_tokens, sampler, interrupted))
            return self.given[-1]

        def text(self, generation):
            stream = self.tokenizer.incremental_detokenizer()
            yield from (stream.feed(token) for token in generation)
            yield stream.flush()

    session = Session()
    converse(session, "the first", "the second")
    last = session.given[-1]
    assert list(generate_alone(model, last.prompt_ids, 9, Sampler())) == last.token_ids
    assert len(last.prompt_ids) > len(session.given[0].prompt_ids) + 9
