"""What is typed or piped to a chat, and what is kept of it from chat to chat."""

import io
import os
import sys

import pytest

from aerie.cli.line_input import (
    InputEntry,
    history_file,
    line_editing,
    next_entry,
    piped_line,
    typed_line,
)


def entries(*lines):
    """Everything entered in these lines, and the prompts that were shown."""
    script, prompts, found = iter(lines), [], []

    def read(prompt):
        prompts.append(prompt)
        try:
            return next(script) + "\n"
        except StopIteration:
            raise EOFError from None

    while True:
        try:
            found.append(next_entry(read))
        except EOFError:
            return found, prompts


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["  one  ", "", "two"], [InputEntry("one"), InputEntry(""), InputEntry("two")]),
        (["one\\", "  two\\", "three", "four"], [InputEntry("one\n  two\nthree"), InputEntry("four")]),
        (["one\\"], [InputEntry("one")]),
        (['"""', "/one", "", '  two"""', "three"], [InputEntry("/one\n\n  two", True), InputEntry("three")]),
        (['"""one"""'], [InputEntry("one", True)]),
        (['  """one', "two\\", '"""'], [InputEntry("one\ntwo\\", True)]),
        (['"""one', "two"], [InputEntry("one\ntwo", True)]),
        (['a """ b'], [InputEntry('a """ b')]),
        (["pasted\nat once"], [InputEntry("pasted\nat once")]),
    ],
)
def test_messages_of_several_lines(lines, expected):
    """At the end of the input what there is of a message counts: nothing that was entered is lost."""
    assert entries(*lines)[0] == expected


def test_what_is_shown_before_a_line():
    assert entries("one", "a\\", "b", '"""', '"""')[1] == [">>> ", ">>> ", "... ", ">>> ", "... ", ">>> "]


@pytest.mark.parametrize("typed", [[], ["one\\"], ['"""one', "two"]])
def test_ctrl_c_drops_what_was_being_entered(typed, capsys):
    script = iter(typed)

    def read(prompt):
        try:
            return next(script)
        except StopIteration:
            raise KeyboardInterrupt from None

    assert next_entry(read) == InputEntry("")
    assert tuple(capsys.readouterr()) == ("", "\nCtrl-D or /exit leaves.\n")


def test_end_of_typed_input_ends_the_line(monkeypatch, capsys):
    """And the prompt is shown where it is not taken for an answer."""
    shown = []

    def ended(prompt):
        shown.append(prompt)
        raise EOFError

    monkeypatch.setattr("builtins.input", ended)
    for stdout_is_terminal in (True, False):
        monkeypatch.setattr(sys.stdout, "isatty", lambda answer=stdout_is_terminal: answer)
        with pytest.raises(EOFError):
            typed_line(">>> ")
    assert shown == [">>> ", ""]
    assert tuple(capsys.readouterr()) == ("", "\n>>> \n")


def test_piped_lines(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\nlast"))
    assert [piped_line(">>> ") for _ in range(3)] == ["one\n", "\n", "last"]
    with pytest.raises(EOFError):
        piped_line(">>> ")


@pytest.fixture
def state(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_lines_are_known_in_the_next_chat(state):
    readline = pytest.importorskip("readline")
    with line_editing(pytest.fail):
        assert readline.get_current_history_length() == 0
        readline.add_history("Who are you?")
    assert history_file().stat().st_mode & 0o777 == 0o600
    assert history_file().is_relative_to(state)
    readline.clear_history()
    with line_editing(pytest.fail):
        assert readline.get_history_item(1) == "Who are you?"


def test_an_unwritable_history_is_reported(state, monkeypatch):
    pytest.importorskip("readline")
    state.write_text("a file in its place")
    notes: list[str] = []
    with line_editing(notes.append):
        pass
    (note,) = notes
    assert note.startswith("note: the history of typed lines is not saved for the next chat (")
    assert "Not a directory" in note
    state.unlink()
    notes.clear()
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with line_editing(notes.append):
        pass
    assert notes == [
        "note: the history of typed lines is not saved for the next chat (there is no home folder)"
    ]


def test_without_readline(state, monkeypatch):
    monkeypatch.setitem(sys.modules, "readline", None)
    with line_editing(pytest.fail):
        pass
    assert not state.exists()


def test_where_they_are_kept_by_default(monkeypatch):
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert history_file() == type(history_file())(os.path.expanduser("~/.local/state/aerie/chat_history"))
