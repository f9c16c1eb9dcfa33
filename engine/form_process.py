"""Forms are read in a process of their own: what a stranger asks for may take any time, memory and stack.

The process has the model's vocabulary and llguidance. It is told one form at a time, and has CPU_S seconds of
its processor, MEMORY more bytes and a stack of STACK for it; where it ends by that, by a crash or by a limit
of llguidance, the form is refused, and the next one is read by a new process. What it takes, in these limits
and with a first few tokens, is then made again where answers are (grammar.py), where threads have twice that
stack at least; there no more Python is run over a form.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aerie.engine import finite_grammar, finite_schema, form_schema
from aerie.engine.errors import UserError
from aerie.engine.form_schema import RefusedError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

CPU_S: Final = 1.0
WALL_S: Final = 20.0
"""On a machine that has much else to do."""
START_S: Final = 120.0
"""For a process to be there: it reads the vocabulary."""
MEMORY: Final = 512 * 2**20
STACK: Final = 2**20
MOST_TEXT, MOST_OF_OURS = 2**18, 2**20
"""Characters of a form, and of a grammar that is made here of several."""
TRIED: Final = 8
"""Tokens that are tried of each form, each time the first that may come."""
BLANKS: Final = r"( |\n {0,16})?"
BEGIN: Final = "import sys; sys.path[:] = {!r}; from aerie.engine.form_process import serve; serve({})"


class Wanted(NamedTuple):
    """A form to read. kind: schema, lark, gbnf, regex, or made, a grammar of ours. hold: of schemas, what of
    them an answer is held to: "all" of it, or else it is refused; "meaning": all but formats that llguidance
    has not, which mean nothing by JSON Schema; "known": what llguidance has of it."""

    kind: str
    text: str
    hold: str = "meaning"
    blanks: str = BLANKS


class Read(NamedTuple):
    """text: the grammar as llguidance has it. schema: of a schema, what is left of it. notes: what answers
    are not held to."""

    text: str
    schema: str = ""
    notes: tuple[str, ...] = ()


class FormError(UserError):
    """A schema or grammar that cannot be taken."""


OPTIONS: Final = "x-guidance"
"""Of llguidance, in a schema: ours."""
NAMES: Final = {"schema": "JSON schema", "regex": "regular expression"}
"""What a form is called, if not a grammar."""
LONGEST_REASON: Final = 200
"""Characters of what llguidance says is wrong."""


def refused(kind: str, reason: str) -> FormError:
    told = " ".join(reason.split())
    shown = told if len(told) <= LONGEST_REASON else f"{told[:LONGEST_REASON]} ..."
    what = NAMES.get(kind, "grammar")
    return FormError(f"the {what} cannot be taken: {shown}; change it, or ask for an answer of any form")


def limits() -> LLParserLimits:
    """Of llguidance, here and where answers are: its own for a token, and so few states that a matcher has
    some tens of MB at most."""
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=25_000, verbose_errors=False)


class FormProcess:
    """One process, begun when the first form is asked for, and again after its end. Any thread may ask.

    tokenizer: in the form of Hugging Face's tokenizers. ends: tokens that end an answer.
    """

    def __init__(self, tokenizer: str, vocab_size: int, ends: list[int]) -> None:
        self._vocabulary = json.dumps([tokenizer, vocab_size, ends]).encode()
        self._lock = threading.Lock()
        self._ours: Connection | None = None
        self._end: weakref.finalize[Any, Any] | None = None

    def read(self, wanted: Wanted) -> Read:
        """FormError for what cannot be taken."""
        most = MOST_OF_OURS if wanted.kind == "made" else MOST_TEXT
        if len(wanted.text) > most:
            raise refused(wanted.kind, f"it has {len(wanted.text)} characters, and {most} is the limit")
        with self._lock:
            told = self._asked(wanted)
        if "failed" in told:
            raise RuntimeError(told["failed"])
        if "wrong" in told:
            raise refused(wanted.kind, told["wrong"])
        return Read(told["text"], told["schema"], tuple(told["notes"]))

    def _asked(self, wanted: Wanted) -> Mapping[str, Any]:
        try:
            ours = self._begun()
            ours.send_bytes(json.dumps(wanted._asdict()).encode())
            if ours.poll(WALL_S):
                told: Mapping[str, Any] = json.loads(ours.recv_bytes())
                return told
        except (EOFError, OSError):
            pass
        self.close()
        return {
            "wrong": f"to read it takes more than {CPU_S:g} s, {MEMORY >> 20} MiB or the depth that a form "
            "may have; ask for fewer rules, references, repetitions, or smaller numbers"
        }

    def _begun(self) -> Connection:
        if self._ours is None:
            self._ours, theirs = Pipe()
            code = BEGIN.format(sys.path, theirs.fileno())
            with theirs:
                made = subprocess.Popen(
                    [sys.executable, "-c", code],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            self._end = weakref.finalize(self, _end, made, self._ours)
            self._ours.send_bytes(self._vocabulary)
            if not self._ours.poll(START_S) or self._ours.recv_bytes() != b"ready":
                raise EOFError
        return self._ours

    def close(self) -> None:
        """End the process; the next form begins another."""
        self._ours = None
        if self._end:
            self._end()


def _end(process: subprocess.Popen[bytes], ours: Connection) -> None:
    ours.close()
    process.kill()
    process.wait()


def serve(number: int) -> None:
    """In the process: read forms from this descriptor until it is closed."""
    from llguidance import LLTokenizer

    with Connection(number) as theirs, contextlib.suppress(EOFError):
        tokenizer, size, ends = json.loads(theirs.recv_bytes())
        vocabulary = LLTokenizer(tokenizer, n_vocab=size, eos_token=ends)
        theirs.send_bytes(b"ready")
        _limit_memory()
        threading.stack_size(STACK)
        while True:
            wanted = Wanted(**json.loads(theirs.recv_bytes()))
            told: dict[str, Any] = {}
            one = threading.Thread(target=lambda: told.update(_told(wanted, vocabulary)))  # noqa: B023
            signal.setitimer(signal.ITIMER_PROF, CPU_S)
            one.start()
            one.join()
            signal.setitimer(signal.ITIMER_PROF, 0)
            theirs.send_bytes(json.dumps(told).encode())


def _limit_memory() -> None:
    """Of this process, from now on; and no file where it ends by a signal."""
    with open("/proc/self/statm") as file:
        there = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (there + MEMORY, there + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _told(wanted: Wanted, vocabulary: LLTokenizer) -> dict[str, Any]:
    try:
        return _Reading(vocabulary).read(wanted)._asdict()
    except RefusedError as error:
        return {"wrong": str(error)}
    except RecursionError:
        return {"wrong": "it is nested too deeply"}
    except MemoryError:
        return {"wrong": "it takes too much memory"}
    except Exception:
        return {"failed": traceback.format_exc()}


class _Reading:
    """A form, in the process. Raises RefusedError."""

    def __init__(self, vocabulary: LLTokenizer) -> None:
        self._vocabulary = vocabulary

    def read(self, wanted: Wanted) -> Read:
        from llguidance import LLMatcher

        if wanted.kind == "schema":
            return self._schema(wanted)
        if wanted.kind == "regex":
            made = Read(LLMatcher.grammar_from_regex(wanted.text))
        else:
            text = _lark(wanted.text) if wanted.kind == "gbnf" else wanted.text
            made = Read(LLMatcher.grammar_from_lark(text) if wanted.kind in ("gbnf", "lark") else text)
            if wanted.kind != "made":
                self._check_ends(text)
        self._try(self._matcher(made.text))
        return made

    def _matcher(self, text: str) -> LLMatcher:
        from llguidance import LLMatcher

        made = LLMatcher(self._vocabulary, text, log_level=0, limits=limits())
        if made.is_error():
            raise RefusedError(made.get_error().removesuffix("<non-verbose/>"))
        return made

    def _try(self, matcher: LLMatcher) -> None:
        """The first tokens: none may be possible, or too much may be."""
        for _ in range(TRIED):
            bits = int.from_bytes(matcher.compute_bitmask(), "little")
            if matcher.is_error():
                raise _stuck(matcher)
            if matcher.is_stopped() or not bits:
                return
            token = (bits & -bits).bit_length() - 1
            if not matcher.consume_token(token):
                raise _stuck(matcher)

    def _check_ends(self, text: str) -> None:
        if not finite_grammar.has_text(text, lambda terminal: self._is_empty(text, terminal)):
            raise RefusedError("no rule of it comes to an end, so no answer would")

    def _is_empty(self, grammar: str, terminal: str) -> bool:
        from llguidance import LLMatcher

        named = terminal if terminal.isupper() else "ONE_OF_IT"
        lines = [*finite_grammar.terminals(grammar), f"start: {named}"]
        if named != terminal:
            lines.append(f"{named}: {terminal}")
        made = LLMatcher(self._vocabulary, LLMatcher.grammar_from_lark("\n".join(lines)), log_level=0)
        if made.is_error():
            return False
        made.compute_bitmask()
        return made.is_error() and "NoExtension" in made.get_error()

    def _schema(self, wanted: Wanted) -> Read:
        root = form_schema.as_schema(form_schema.read(wanted.text))
        root.pop(OPTIONS, None)
        form_schema.exact(root)
        if wanted.hold == "meaning":
            form_schema.without_formats(root)
        own: dict[str, Any] = {"whitespace_pattern": wanted.blanks}
        made, notes = self._compiled(root, own), list[str]()
        if isinstance(made, RefusedError):
            if wanted.hold != "known":
                raise made
            notes = form_schema.loosened(root, self._is_pattern)
            own |= {"lenient": True, "coerce_one_of": True}
            made = self._compiled(root, own)
            if isinstance(made, RefusedError):
                raise made
            warnings = made[1].get_grammar_warnings()
            notes += [each for warning in warnings for each in form_schema.warned(warning)]
        text, matcher = made
        if not finite_schema.has_instance(root):
            raise RefusedError("no JSON is of it that comes to an end")
        self._try(matcher)
        return Read(text, form_schema.written({**root, OPTIONS: own}), tuple(dict.fromkeys(notes)))

    def _compiled(self, root: Any, own: Mapping[str, Any]) -> tuple[str, LLMatcher] | RefusedError:
        from llguidance import LLMatcher

        try:
            text = LLMatcher.grammar_from_json_schema(form_schema.written(root), overrides=own)
            return text, self._matcher(text)
        except (ValueError, TypeError) as error:
            return RefusedError(str(error))
        except RefusedError as error:
            return error

    def _is_pattern(self, pattern: str) -> bool:
        alone = {"type": "string", "pattern": pattern}
        return not isinstance(self._compiled(alone, {}), RefusedError)


def _stuck(matcher: LLMatcher) -> RefusedError:
    told = matcher.get_error()
    if "NoExtension" in told:
        return RefusedError("no text is of it")
    return RefusedError(told.removesuffix("<non-verbose/>"))


def _lark(grammar: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        made: str = any_to_lark(grammar)
    except RecursionError:
        raise
    except Exception as error:  # it raises plain Exception for rules that are not there
        raise RefusedError(str(error)) from None
    return made
