"""What is typed or piped to a chat: lines, messages of several lines, and what was typed in earlier chats.

A message goes on after a line that ends in a backslash, and between two lines of three quotation marks. A
terminal marks what is pasted into it (bracketed paste), so that GNU readline takes it whole.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

PROMPT, MORE = ">>> ", "... "
QUOTES = '"""'
KEPT_LINES = 1000
"""Of the history, from chat to chat."""

Read = Callable[[str], str]
"""Gives a line, shown the prompt before it where someone types; EOFError at the end."""


class Entry(NamedTuple):
    """What was entered; `quoted` between quotation marks, where nothing is a command."""

    text: str
    quoted: bool = False


def typed_line(prompt: str) -> str:
    """A line typed at a terminal, with editing and history where there is readline. EOFError for Ctrl-D."""
    if not sys.stdout.isatty():  # input() would write the prompt among the answers
        print(prompt, end="", file=sys.stderr, flush=True)
        prompt = ""
    try:
        return input(prompt)
    except EOFError:
        print(file=sys.stderr)  # what follows starts on a line of its own
        raise


def piped_line(prompt: str) -> str:  # noqa: ARG001
    """A line of standard input, without a prompt; EOFError at its end."""
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


def next_entry(read: Read) -> Entry:
    """A command or a message, of one line or several. Ctrl-C drops it; EOFError where there is no more."""
    try:
        line = read(PROMPT).rstrip("\r\n")
        if line.lstrip().startswith(QUOTES):
            return Entry(_quoted(line.lstrip().removeprefix(QUOTES), read), quoted=True)
        while line.endswith("\\"):
            line = f"{line[:-1]}\n{_more(read)}"
        return Entry(line.strip())
    except KeyboardInterrupt:
        print("\nCtrl-D or /exit leaves.", file=sys.stderr)
        return Entry("")


def _quoted(line: str, read: Read) -> str:
    """All lines up to the closing quotation marks, or to the end of the input."""
    lines = []
    while QUOTES not in line:
        lines.append(line)
        try:
            line = read(MORE).rstrip("\r\n")
        except EOFError:
            break
    else:
        lines.append(line.partition(QUOTES)[0])
    return "\n".join(lines).strip()


def _more(read: Read) -> str:
    try:
        return read(MORE).rstrip("\r\n")
    except EOFError:
        return ""


def history_file() -> Path:
    """Where typed lines are kept: aerie/chat_history in the user's folder for such things.

    Raises FileNotFoundError for a user without a home.
    """
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(state) if os.path.isabs(state) else Path(os.path.expanduser("~/.local/state"))
    if not folder.is_absolute():
        raise FileNotFoundError(errno.ENOENT, "there is no home folder")
    return folder / "aerie" / "chat_history"


@contextmanager
def line_editing(note: Callable[[str], None]) -> Iterator[None]:
    """Within this, input() edits lines, takes pasted ones whole, and knows those of earlier chats.

    Without readline it is as it was. A history that cannot be kept is told, once.
    """
    try:
        import readline
    except ImportError:
        yield
        return
    if "libedit" not in (readline.__doc__ or ""):
        readline.parse_and_bind("set enable-bracketed-paste on")
    readline.clear_history()
    readline.set_history_length(KEPT_LINES)
    with suppress(OSError):  # there is none yet, or it is another library's
        readline.read_history_file(history_file())
    try:
        yield
    finally:
        try:
            path = history_file()
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.write_history_file(path)
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            note(f"note: typed lines are not kept for the next chat ({place}{error.strerror})")
