"""Answers of a form that was asked for: JSON that a schema describes, or text of a grammar.

Which tokens may come next is llguidance's to say: it parses the answer so far, and gives a bit for every
token of the vocabulary. Where the form is complete, nothing but the end may come. A form depends on the
answer's tokens alone, so an answer has the same tokens however it is scheduled; guesses that leave the form
are wrong guesses, and tokens that are taken back are taken back here.

Between its parts JSON may have a blank, or a line end with an indentation (BLANKS): were any number possible,
a model that says nothing but blanks would never leave the form.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from aerie.common.errors import UserError
from aerie.engine.config import ModelConfig
from aerie.engine.grammar_process import (
    BLANKS,
    MOST_TEXT,
    CompiledGrammar,
    GrammarError,
    GrammarInterruptedError,
    GrammarProcess,
    GrammarSource,
    check_length,
    grammar_refused,
    limits,
)
from aerie.engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["BLANKS", "Grammar", "GrammarCompiler", "GrammarError", "GrammarMatcher", "Schema"]

Schema: TypeAlias = "Mapping[str, Any] | bool | str"
"""A JSON schema: an object, True for any JSON, or either as text."""
Made = TypeVar("Made")

WORD_BITS = 32
MOST_READ, MOST_REFUSED, MOST_MADE = 2**24, 2**22, 8
"""Characters of the forms whose reading is kept, and of those whose refusal is, each form counted with
OF_EACH more; and how many forms are kept made: a matcher has up to some tens of MB."""
OF_EACH = 1000
MOST_COPIES = 32
"""Of a matcher that is kept. All copies add to its states, of which there is a limit."""
CPU_S, TOKEN_CPU_S = 0.5, 0.005
"""Of the processor, for the form of an answer: so much at all, and for each of its tokens."""


@dataclass(frozen=True)
class Grammar:
    """A form, and whose tokens it takes. `text` is what llguidance has of it. notes: what of a schema its
    answers are not held to. Made by GrammarCompiler."""

    text: str
    grammars: GrammarCompiler
    matcher: LLMatcher = field(repr=False, compare=False)
    notes: tuple[str, ...] = ()

    def start(self) -> GrammarMatcher:
        """What goes along with one answer."""
        return GrammarMatcher(self)


class GrammarCompiler:
    """The forms that answers of one model can be asked for. Any thread may ask.

    A form is read in a process of its own (form_process.py), and what comes of it is kept, be it a refusal:
    one that is sent again holds no other. The vocabulary is read for the first of them, here and there, which
    takes about 0.4 s for 128,256 tokens.
    """

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig) -> None:
        self._tokenizer, self._config = tokenizer, config
        self._vocabulary: LLTokenizer | None = None
        self._lock = threading.Lock()
        self._read, self._made = (
            _Kept[GrammarSource, CompiledGrammar](MOST_READ, _characters),
            _Kept[str, _Matcher](MOST_MADE),
        )
        self._refused, self._turn = _Kept[GrammarSource, str](MOST_REFUSED, _characters), threading.Lock()

    @property
    def vocab_size(self) -> int:
        return self._config.vocab_size

    @property
    def eos_ids(self) -> Collection[int]:
        """The tokens that end an answer."""
        return self._config.eos_token_ids

    @cached_property
    def whole_tokens(self) -> Mapping[str, int]:
        """Those that no text of a grammar is made of, by what they are called: special ones, and <such>."""
        is_whole = self.vocabulary.is_special_token
        return {text: token for text, token in self._tokenizer.added_tokens().items() if is_whole(token)}

    @property
    def vocabulary(self) -> LLTokenizer:
        """As llguidance has it. CheckpointError for a tokenizer that it cannot read."""
        with self._lock:
            if self._vocabulary is None:
                from llguidance import LLTokenizer

                self._vocabulary = LLTokenizer(
                    self._tokenizer.as_json(), n_vocab=self.vocab_size, eos_token=sorted(self.eos_ids)
                )
            return self._vocabulary

    @cached_property
    def _process(self) -> GrammarProcess:
        return GrammarProcess(self._tokenizer.as_json(), self.vocab_size, sorted(self.eos_ids))

    def json(self, schema: Schema, hold: str = "meaning") -> Grammar:
        """JSON that the schema describes. hold: as form_process.Wanted. GrammarError for what is no schema, for
        what llguidance has not of it, and for what no JSON is of."""
        return self._of(GrammarSource("schema", schema_text(schema), hold))

    def schema(self, schema: Schema, hold: str, blanks: str) -> CompiledGrammar:
        """A schema as a part of a grammar has it: `schema`. Raises what `json` does."""
        return self.compile(GrammarSource("schema", schema_text(schema), hold, blanks))

    def lark(self, grammar: str) -> Grammar:
        """Text of a grammar in llguidance's form of lark. GrammarError for what is none, and has no end."""
        return self._of(GrammarSource("lark", grammar))

    def gbnf(self, grammar: str) -> Grammar:
        """Text of a grammar in llama.cpp's form, GBNF, or in lark. GrammarError for what is neither."""
        return self._of(GrammarSource("gbnf", grammar))

    def regex(self, expression: str) -> Grammar:
        """Text that a regular expression, in the form of Rust's, matches as a whole. GrammarError for none, and
        for one that matches nothing."""
        return self._of(GrammarSource("regex", expression))

    def recompile(self, text: str, notes: tuple[str, ...] = ()) -> Grammar:
        """A form by its `text`. GrammarError for what is none."""
        return self._of(GrammarSource("made", text), notes)

    def compile(self, wanted: GrammarSource) -> CompiledGrammar:
        """What of a form can be held. GrammarError for what cannot be taken."""
        check_length(wanted)
        told = self._known(wanted)
        if told is None:
            with self._turn:  # whoever waited for the same form finds it here
                told = self._known(wanted) or self._read_now(wanted)
        if isinstance(told, str):
            raise GrammarError(told)
        return told

    def _known(self, wanted: GrammarSource) -> CompiledGrammar | str | None:
        """What is kept: a reading, or why there is none."""
        return self._read.known(wanted) or self._refused.known(wanted)

    def _read_now(self, wanted: GrammarSource) -> CompiledGrammar | str:
        try:
            return self._read.keep(wanted, self._process.read(wanted))
        except GrammarInterruptedError:
            raise
        except GrammarError as error:
            return self._refused.keep(wanted, str(error))

    def _of(self, wanted: GrammarSource, notes: tuple[str, ...] = ()) -> Grammar:
        read = self.compile(wanted)
        made = self._made.of(read.text, lambda: _Matcher(self.vocabulary, read.text))
        made.copies += 1
        if made.copies > MOST_COPIES:
            self._made.drop(read.text)
        return Grammar(read.text, self, made.matcher, (*notes, *read.notes))


class _Matcher:
    """A matcher that answers have copies of, and how often it was given out."""

    def __init__(self, vocabulary: LLTokenizer, text: str) -> None:
        from llguidance import LLMatcher

        self.matcher, self.copies = LLMatcher(vocabulary, text, log_level=0, limits=limits()), 0
        if self.matcher.is_error():
            raise grammar_refused("made", self.matcher.get_error())


Key = TypeVar("Key")


class _Kept(dict[Key, Made]):
    """What was made last, by what it is of; of so much together. From any thread."""

    def __init__(self, most: int, size: Callable[[Key, Made], int] = lambda _, __: 1) -> None:
        super().__init__()
        self._most, self._size, self._lock = most, size, threading.Lock()
        self._held = 0

    def of(self, key: Key, make: Callable[[], Made]) -> Made:
        made = self.known(key)
        return self.keep(key, make()) if made is None else made

    def known(self, key: Key) -> Made | None:
        with self._lock:
            if key in self:
                self[key] = self.pop(key)
            return self.get(key)

    def keep(self, key: Key, made: Made) -> Made:
        self.drop(key)
        with self._lock:
            self[key] = made
            self._held += self._size(key, made)
            while self._held > self._most:
                self._forget(next(iter(self)))
        return made

    def drop(self, key: Key) -> None:
        with self._lock:
            if key in self:
                self._forget(key)

    def _forget(self, key: Key) -> None:
        self._held -= self._size(key, self.pop(key))


def _characters(wanted: GrammarSource, told: CompiledGrammar | str) -> int:
    of = len(told) if isinstance(told, str) else len(told.text) + len(told.schema)
    return len(wanted.text) + of + OF_EACH


def schema_text(schema: Schema) -> str:
    """As JSON. GrammarError for what is none."""
    if isinstance(schema, str):
        return schema
    _check_size(schema)
    try:
        return json.dumps(schema)
    except (ValueError, TypeError, RecursionError) as error:
        raise grammar_refused("schema", str(error)) from None


def _check_size(schema: Any) -> None:
    """FormError for more than a form may have: json.dumps stops all threads while it writes."""
    size, left = 0, [schema]
    while left:
        part = left.pop()
        size += 2 + (len(part) if isinstance(part, str) else 0)
        if size > MOST_TEXT:
            raise grammar_refused("schema", f"it has more than {MOST_TEXT} characters, which is the limit")
        if isinstance(part, Mapping):
            left += (*part.keys(), *part.values())
        elif isinstance(part, list | tuple):
            left += part


class GrammarMatcher:
    """A form beside one answer, whose tokens come with every call: what was said before is not said again."""

    def __init__(self, grammar: Grammar) -> None:
        self._matcher: LLMatcher = grammar.matcher.deep_copy()
        self._spent_s = 0.0
        self._size = grammar.grammars.vocab_size
        self._bits = np.zeros((1, -(-self._size // WORD_BITS)), np.int32)
        self._taken: list[int] = []

    def token_mask(self, token_ids: Sequence[int]) -> NDArray[np.bool_]:
        """(vocab_size,) bool: which tokens may come after these. UserError where these left the form, and
        where to say it takes more than a form may."""
        from llguidance.numpy import fill_next_token_bitmask

        began = time.thread_time()
        self._follow(token_ids)
        fill_next_token_bitmask(self._matcher, self._bits, 0)
        self._check(time.thread_time() - began)
        bits = np.unpackbits(self._bits.view(np.uint8), count=self._size, bitorder="little")
        return bits.view(np.bool_)

    def _check(self, spent_s: float = 0.0) -> None:
        """UserError where llguidance has ended it, or it takes too much."""
        self._spent_s += spent_s
        tokens = len(self._taken)
        if self._matcher.is_error():
            reason = self._matcher.get_error().removesuffix("<non-verbose/>").strip()
        elif self._spent_s > CPU_S + TOKEN_CPU_S * tokens:
            most = f"{CPU_S:g} s, and {TOKEN_CPU_S:g} s for each token, are the limit"
            reason = f"it took {self._spent_s:.1f} s of the processor, and {most}"
        else:
            return
        raise UserError(
            f"the form that was asked for cannot be followed after {tokens} tokens: {reason[:200]}; ask for "
            "one that is less ambiguous, or has fewer parts that may be left out"
        )

    def _follow(self, token_ids: Sequence[int]) -> None:
        """Take tokens back that are not these any more, and take those that are new."""
        given = [int(token) for token in token_ids]
        same = _same(self._taken, given)
        if same < len(self._taken):
            self._matcher.rollback(len(self._taken) - same)
        new = given[same:]
        took = self._matcher.try_consume_tokens(new)
        self._taken = given[: same + took]
        self._check()
        if took < len(new):
            raise UserError(
                f"token {new[took]}, the answer's number {same + took + 1}, is not of the form that was "
                "asked for; an answer that was begun without a form cannot go on with one"
            )


def _same(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two lists begin with alike."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    return next(at for at in range(most) if one[at] != other[at])
