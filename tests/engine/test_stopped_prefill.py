"""A prefill or a token that is stopped leaves nothing behind: the demo on the virtual NPU."""

import dataclasses
import io
import signal
import threading
from contextlib import contextmanager
from functools import partial

import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.cli.chat import Chat
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.forward import decode_step, prefill, prefill_call_count
from aerie.engine.forward_passes import TokenPass
from aerie.engine.generate import FinishReason
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter, no_progress
from aerie.engine.sampler import Sampler
from aerie.engine.scheduler import generate_alone
from aerie.runtime import select_backend
from aerie.runtime.buffers import BufferSet

FIRST, LOST, NEXT = "What is the capital of France?", "Who are you?", "What is the symbol of gold?"


@pytest.fixture(scope="module")
def session():
    options = RuntimeOptions(None, select_backend("virtual"), default_cache_dir())
    return prepare_runtime(open_checkpoint(DEMO_FOLDER), options, Reporter(io.StringIO()))


def converse(session, *lines):
    """What a chat writes and notes for these lines. One that is a function is called, and is no line."""
    script, out = iter(lines), io.StringIO()
    notes: list[str] = []

    def read(is_continued):
        for line in script:
            if not callable(line):
                return line
            line()
        raise EOFError

    Chat(session, Sampler(), 24, note=notes.append, out=out, read=read).run()
    return out.getvalue(), notes[1:]


@pytest.mark.parametrize("after", [1, 2, 9, 18])
def test_a_question_whose_prefill_is_stopped_was_never_asked(session, monkeypatch, after):
    """Ctrl-C as the program of that number begins, of the 18 of a prefill: no other begins after it."""
    assert prefill_call_count(session.model, 22) == 18
    expected, _ = converse(session, FIRST, NEXT)
    begun, real = [], BufferSet.execute

    def execute(buffers):
        begun.append(buffers.label)
        if len(begun) == after:
            signal.raise_signal(signal.SIGINT)
        real(buffers)

    def watch():
        monkeypatch.setattr(BufferSet, "execute", execute)

    def leave():
        monkeypatch.setattr(BufferSet, "execute", real)

    out, notes = converse(session, FIRST, watch, LOST, leave, NEXT)
    assert out == expected
    assert notes == ["\nStopped; this turn is forgotten."]
    assert len(begun) == after


def at_token(monkeypatch, number, act):
    """Call `act` as the token of that number begins, of those after the first; the rows of all that ended."""
    begun, ended, real = [], [], TokenPass.__call__

    def run(token_pass, *arguments):
        begun.append(arguments)
        if len(begun) == number:
            act()
        ended.append(real(token_pass, *arguments))
        return ended[-1]

    monkeypatch.setattr(TokenPass, "__call__", run)
    return ended


def test_ctrl_c_in_an_answer_does_not_wait_for_the_token_under_way(session, monkeypatch):
    expected, _ = converse(session, FIRST)
    with monkeypatch.context() as patch:
        ended = at_token(patch, 4, lambda: signal.raise_signal(signal.SIGINT))
        out, notes = converse(session, FIRST)
    assert len(ended) == 3
    assert notes == ["[stopped]"]
    assert expected.startswith(out.rstrip())
    assert (
        len(session.tokenizer.encode(out.rstrip())) == 1 + 4
    )  # the prefill's, three more; and one to begin with
    assert converse(session, FIRST) == (expected, [])


def test_another_thread_stops_a_token(session, monkeypatch):
    """Before its first program; what has come stays, and the same prompt is then answered whole."""
    ids = session.tokenizer.encode_chat([{"role": "user", "content": FIRST}])
    expected = list(session.generate(ids, 8, Sampler()))
    generation = session.generate(ids, 8, Sampler())

    def stop():
        other = threading.Thread(target=generation.stop)
        other.start()
        other.join()

    with monkeypatch.context() as patch:
        ended = at_token(patch, 3, stop)
        assert list(generation) == expected[:3]
    assert generation.finish_reason is FinishReason.INTERRUPTED
    assert len(ended) == 2
    assert list(session.generate(ids, 8, Sampler())) == expected


@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_stopped_at_any_moment_it_computes_the_same_afterwards(session):
    """A timer ends prefills and tokens, in the middle of programs and in what the host does between them.

    A moment inside a finaliser, or inside what others have the garbage collector call, stops nothing: Python
    tells of the exception and goes on.
    """
    ids = session.tokenizer.encode_chat([{"role": "user", "content": FIRST}])
    armed, stopped = False, 0

    def answer():
        kept = session.model.new_cache(len(ids) + 8)
        rows = [prefill(session.model, ids, kept)]
        rows += [decode_step(session.model, token, kept) for token in (5, 77, 300)]
        return [array.tobytes() for array in (*rows, *kept.layers[0], *kept.layers[5])]

    def handler(number, frame):
        if armed:
            raise KeyboardInterrupt

    expected = answer()
    before = signal.signal(signal.SIGALRM, handler)
    try:
        for moment in range(1, 33):
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, moment * 0.0007)
                answer()
                armed = False
            except KeyboardInterrupt:
                armed = False
                stopped += 1
            if moment % 8 == 0:
                assert answer() == expected
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert stopped > 3


def test_the_bar_moves_with_every_program_and_is_gone_before_the_answer(session):
    ids = session.tokenizer.encode_chat([{"role": "user", "content": FIRST}])
    events = []

    @contextmanager
    def bar(total):
        events.append(total)
        yield lambda what, done: events.append((what, done))
        events.append("gone")

    generation = generate_alone(session.model, ids, 1, Sampler(), bar=bar)
    events += [type(token) for token in generation]
    layer = ("rms_gemms_rope", "cached_attn", "o_ffn")
    assert events == [18, *((layer[n % 3], n + 1) for n in range(18)), "gone", int]


def test_the_bar_is_shown_on_a_terminal(session, capsys):
    """The session's own: a report's, with the programs run of all."""
    shown = io.StringIO()
    bar = partial(Reporter(shown, terminal=True).bar, "reading the prompt")
    out, _ = converse(dataclasses.replace(session, bar=bar), FIRST)
    assert "Paris" in out
    assert "reading the prompt" in shown.getvalue()
    assert "/18" in shown.getvalue()
    assert session.bar(18).__enter__() is no_progress  # that of a report which is no terminal
    assert tuple(capsys.readouterr()) == ("", "")
