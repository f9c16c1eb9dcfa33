"""Read the input of a chat: lines, messages of several lines, and the history of earlier chats.

A message continues after a line that ends in a backslash, and between two lines of three quotation marks. A
terminal marks pasted text (bracketed paste), so that GNU readline reads it as one line.
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
MAX_HISTORY_LINES = 1000
"""Lines of history that are kept between chats."""

ReadLine = Callable[[str], str]
"""Returns a line, after showing a prompt if the user types. Raises EOFError at the end."""


class InputEntry(NamedTuple):
    """One entry. quoted: it was between quotation marks, where nothing is a command."""

    text: str
    quoted: bool = False


def typed_line(prompt: str) -> str:
    """Read a line from a terminal, with editing and history if there is readline. Raises EOFError for
    Ctrl-D."""
    if not sys.stdout.isatty():  # input() would write the prompt among the answers
        print(prompt, end="", file=sys.stderr, flush=True)
        prompt = ""
    try:
        return input(prompt)
    except EOFError:
        print(file=sys.stderr)  # what follows starts on a line of its own
        raise


def piped_line(prompt: str) -> str:  # noqa: ARG001
    """Read a line of standard input without a prompt. Raises EOFError at its end."""
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


def next_entry(read: ReadLine) -> InputEntry:
    """Read a command or a message, of one line or several. Ctrl-C drops it. Raises EOFError at the end."""
    try:
        line = read(PROMPT).rstrip("\r\n")
        if line.lstrip().startswith(QUOTES):
            return InputEntry(_quoted(line.lstrip().removeprefix(QUOTES), read), quoted=True)
        while line.endswith("\\"):
            line = f"{line[:-1]}\n{_more(read)}"
        return InputEntry(line.strip())
    except KeyboardInterrupt:
        print("\nCtrl-D or /exit leaves.", file=sys.stderr)
        return InputEntry("")


def _quoted(line: str, read: ReadLine) -> str:
    """All lines up to the closing quotation marks or the end of the input."""
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


def _more(read: ReadLine) -> str:
    try:
        return read(MORE).rstrip("\r\n")
    except EOFError:
        return ""


def history_file() -> Path:
    """The file of typed lines: aerie/chat_history in the user's state folder.

    Raises FileNotFoundError if the user has no home.
    """
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(state) if os.path.isabs(state) else Path(os.path.expanduser("~/.local/state"))
    if not folder.is_absolute():
        raise FileNotFoundError(errno.ENOENT, "there is no home folder")
    return folder / "aerie" / "chat_history"


def file_completions(start: str) -> list[str]:
    """Names of files and folders that begin so, as a user writes them; folders with a slash at the end."""
    name = start.rpartition("/")[2]
    shown = start[: len(start) - len(name)]
    try:
        entries = sorted(os.scandir(os.path.expanduser(shown) or "."), key=lambda entry: entry.name)
        return [
            f"{shown}{entry.name}{'/' * entry.is_dir()}"
            for entry in entries
            if entry.name.startswith(name) and (name or not entry.name.startswith("."))
        ]
    except OSError:
        return []


def _no_completions(line: str) -> list[str]:  # noqa: ARG001
    return []


@contextmanager
def line_editing(
    note: Callable[[str], None], completions: Callable[[str], list[str]] = _no_completions
) -> Iterator[None]:
    """Within this context, input() edits lines, reads pasted text as one line, has the history of earlier
    chats, and completes the last word by Tab.

    completions: returns what may stand in place of the last word of a line, for the text before the cursor.
    Without readline nothing changes. Prints a note if the history cannot be written.
    """
    try:
        import readline
    except ImportError:
        yield
        return
    if "libedit" in (readline.__doc__ or ""):
        readline.parse_and_bind("bind ^I rl_complete")
    else:
        readline.parse_and_bind("set enable-bracketed-paste on")
        readline.parse_and_bind("tab: complete")
    readline.set_completer_delims(" ")
    readline.set_completer(
        _completer(completions, lambda: readline.get_line_buffer()[: readline.get_endidx()])
    )
    readline.clear_history()
    readline.set_history_length(MAX_HISTORY_LINES)
    with suppress(OSError):  # there is none yet, or it is another library's
        readline.read_history_file(history_file())
    try:
        yield
    finally:
        readline.set_completer(None)
        try:
            path = history_file()
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.write_history_file(path)
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            note(f"note: the history of typed lines is not saved for the next chat ({place}{error.strerror})")


def _completer(
    completions: Callable[[str], list[str]], line: Callable[[], str]
) -> Callable[[str, int], str | None]:
    """What readline calls with the last word and 0, 1, ... until it returns None."""

    def complete(_: str, number: int) -> str | None:
        found = completions(line())
        return found[number] if number < len(found) else None

    return complete
