"""The chat REPL, driven by lines, with a session that records and answers by rule."""

import dataclasses
import io
import signal

import pytest

from aerie.llama32_1b.chat import Chat, piped_line, require_chat_template, typed_line
from aerie.llama32_1b.errors import PromptError, PromptTooLongError, UserError
from aerie.llama32_1b.generate import Figures, FinishReason, Generation, Sampler
from aerie.llama32_1b.tokenizer import Tokenizer


class FakeTokenizer:
    """One token per message, and one for where the answer starts."""

    has_chat_template = True

    def encode_chat(self, messages):
        self.messages = [(message["role"], message["content"]) for message in messages]
        return [1] * (len(messages) + 1)


class FakeGeneration:
    def __init__(self, prompt_ids, reason):
        self.prompt_ids = prompt_ids
        self.token_ids = [5, 6]
        self.finish_reason = reason
        self.ending = f"ended by {reason.value}"
        self.figures = Figures(len(prompt_ids), 2, 0.25, 4.0)


class FakeSession:
    """Answers "echo N" to a conversation of N messages; `during` is called in the middle of an answer."""

    def __init__(self, limit=100):
        self.tokenizer = FakeTokenizer()
        self.limit = limit
        self.enough = None
        self.reason = FinishReason.STOP
        self.during = lambda: None

    def make_room(self, prompt_ids):
        self.asked = len(prompt_ids)

    def generate(self, prompt_ids, max_new_tokens, sampler, interrupted):
        if len(prompt_ids) > self.limit:
            raise PromptTooLongError(len(prompt_ids), self.limit, self.enough)
        self.interrupted = interrupted
        return FakeGeneration(prompt_ids, self.reason)

    def text(self, generation):
        yield "echo "
        self.during()
        if self.interrupted():
            generation.finish_reason = FinishReason.INTERRUPTED
            generation.ending = "stopped"
            return
        yield str(len(self.tokenizer.messages))


@pytest.fixture
def session():
    return FakeSession()


def converse(session, *lines):
    """What the chat wrote and noted for these lines."""
    script, notes, out = iter(lines), [], io.StringIO()

    def read():
        line = next(script, None)
        if line is None:
            raise EOFError
        return line + "\n"

    Chat(session, Sampler(), 9, note=notes.append, out=out, read=read).run()
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
    out, notes = converse(session, "/help", "/what now")
    assert out == ""
    assert "/reset   forget the conversation" in notes[0]
    assert notes[1] == "There is no command /what; there are /reset, /stats, /help, /exit."


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.CONTEXT])
def test_an_answer_that_was_cut_says_so(session, reason):
    session.reason = reason
    _, notes = converse(session, "hello")
    more = "; /reset starts afresh" if reason is FinishReason.CONTEXT else ""
    assert notes == [f"[ended by {reason.value}{more}]"]


@pytest.mark.parametrize(
    ("enough", "why"),
    [
        (None, "the model has 3 positions: /reset starts afresh."),
        (
            64,
            "--seq-len (SEQ_LEN) has programs compiled for at most 3: /reset starts afresh; a chat without "
            "--seq-len goes on until the model's positions are used up.",
        ),
    ],
)
def test_too_long_a_conversation_keeps_the_session(enough, why):
    """What it says to do makes room."""
    session = FakeSession(limit=3)
    session.enough = enough
    out, notes = converse(session, "one", "two", "/stats", "/reset", "three")
    assert out == "echo 1\necho 1\n"
    assert notes[0] == f"With this message the conversation is 4 tokens long, and {why}"
    assert notes[1].endswith("conversation: 1 turns, 4 tokens")


def test_a_first_message_that_is_too_long():
    """There is nothing to forget: shorten it."""
    _, notes = converse(FakeSession(limit=1), "one")
    assert notes == [
        "the prompt is 2 tokens long and the model has 1 positions (max_position_embeddings); shorten it"
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


def test_second_interrupt_forgets_the_turn(session):
    session.during = lambda: [signal.raise_signal(signal.SIGINT) for _ in range(2)]
    _, notes = converse(session, "hello", "/stats")
    assert notes == ["\nStopped; this turn is forgotten.", "No answer yet."]


def test_interrupt_at_the_prompt_does_not_leave(monkeypatch, capsys):
    def interrupted(prompt):
        assert prompt == ">>> "
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupted)
    assert typed_line() == ""
    assert tuple(capsys.readouterr()) == ("", "\nCtrl-D or /exit leaves.\n")


def test_end_of_typed_input_ends_the_line(monkeypatch, capsys):
    def ended(prompt):
        raise EOFError

    monkeypatch.setattr("builtins.input", ended)
    with pytest.raises(EOFError):
        typed_line()
    assert tuple(capsys.readouterr()) == ("", "\n")


def test_piped_lines(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\nlast"))
    assert [piped_line() for _ in range(3)] == ["one\n", "\n", "last"]
    with pytest.raises(EOFError):
        piped_line()


def test_template_is_needed():
    class Untemplated:
        chat_template = None

    with pytest.raises(UserError, match="this checkpoint has no chat template, which chat needs; use `run`"):
        require_chat_template(Tokenizer(Untemplated()))


def test_turn_by_turn_is_the_whole_conversation_at_once(numpy_model, make_checkpoint):
    """With a real model: the second answer is what a fresh start with the same history gives."""
    from aerie.llama32_1b.tokenizer import load_tokenizer

    folder = make_checkpoint()
    model = numpy_model(folder, 128)
    model = dataclasses.replace(model, config=dataclasses.replace(model.config, eos_token_ids=()))

    class Session(FakeSession):
        def __init__(self):
            self.tokenizer = load_tokenizer(folder)
            self.given = []

        def generate(self, prompt_ids, max_new_tokens, sampler, interrupted):
            self.given.append(Generation(model, prompt_ids, max_new_tokens, sampler, interrupted))
            return self.given[-1]

        def text(self, generation):
            stream = self.tokenizer.stream()
            yield from (stream.feed(token) for token in generation)
            yield stream.flush()

    session = Session()
    converse(session, "the first", "the second")
    last = session.given[-1]
    assert list(Generation(model, last.prompt_ids, 9, Sampler())) == last.token_ids
    assert len(last.prompt_ids) > len(session.given[0].prompt_ids) + 9
