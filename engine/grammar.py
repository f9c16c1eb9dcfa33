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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aerie.engine.config import ModelConfig
from aerie.engine.errors import UserError
from aerie.engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Schema: TypeAlias = "Mapping[str, Any] | bool | str"
"""A JSON schema: an object, True for any JSON, or either as text."""

WORD_BITS = 32
BLANKS = r"( |\n {0,16})?"
LONGEST_REASON = 200
"""Characters of what llguidance says is wrong."""


class FormError(UserError):
    """A schema or grammar that cannot be taken."""


@dataclass(frozen=True)
class Grammar:
    """A form, and whose tokens it takes. `text` is what llguidance has of it. Made by Grammars."""

    text: str
    grammars: Grammars

    def follower(self) -> Follower:
        """What goes along with one answer."""
        return Follower(self)


class Grammars:
    """The forms that answers of one model can be asked for. Any thread may ask.

    The vocabulary is read for the first of them, which takes about 0.4 s for 128,256 tokens.
    """

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig) -> None:
        self._tokenizer, self._config = tokenizer, config
        self._vocabulary: LLTokenizer | None = None
        self._lock = threading.Lock()

    @property
    def vocab_size(self) -> int:
        return self._config.vocab_size

    @property
    def ends(self) -> Collection[int]:
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
                self._vocabulary = self._read()
            return self._vocabulary

    def _read(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        ends = sorted(self._config.eos_token_ids)
        return LLTokenizer(self._tokenizer.as_json(), n_vocab=self.vocab_size, eos_token=ends)

    def json(self, schema: Schema) -> Grammar:
        """JSON that the schema describes. FormError for what is no schema, and for what llguidance has not
        of it."""
        from llguidance import LLMatcher

        own = {"whitespace_pattern": BLANKS}
        try:
            text = LLMatcher.grammar_from_json_schema(json.dumps(schema_of(schema)), overrides=own)
        except (ValueError, TypeError, RecursionError) as error:
            raise _wrong("JSON schema", str(error)) from None
        return self._checked(text, "JSON schema")

    def lark(self, grammar: str) -> Grammar:
        """Text of a grammar in llguidance's form of lark. FormError for what is none."""
        from llguidance import LLMatcher

        return self._checked(LLMatcher.grammar_from_lark(grammar), "grammar")

    def gbnf(self, grammar: str) -> Grammar:
        """Text of a grammar in llama.cpp's form, GBNF, or in lark. FormError for what is neither."""
        from llguidance.gbnf_to_lark import any_to_lark

        try:
            text = any_to_lark(grammar)
        except Exception as error:  # it raises plain Exception for rules that are not there
            raise _wrong("grammar", str(error)) from None
        return self.lark(text)

    def regex(self, expression: str) -> Grammar:
        """Text that a regular expression, in the form of Rust's, matches as a whole. FormError for none."""
        from llguidance import LLMatcher

        return self._checked(LLMatcher.grammar_from_regex(expression), "regular expression")

    def again(self, text: str) -> Grammar:
        """A form by its `text`. FormError for what is none."""
        return self._checked(text, "grammar")

    def _checked(self, text: str, what: str) -> Grammar:
        from llguidance import LLMatcher

        if wrong := LLMatcher.validate_grammar(text, self.vocabulary):
            raise _wrong(what, wrong)
        return Grammar(text, self)


def schema_of(schema: Schema) -> dict[str, Any]:
    """As an object; what was text is read, so that a reason is Python's and short. ValueError for none."""
    given = json.loads(schema) if isinstance(schema, str) else schema
    if given is True:
        return {}
    if given is False:
        raise ValueError("it is false, which describes no JSON")
    if not isinstance(given, Mapping):
        raise ValueError(f"it is {json.dumps(given)[:LONGEST_REASON]}, and no object")
    return dict(given)


def _wrong(what: str, reason: str) -> FormError:
    told = " ".join(reason.split())
    shown = told if len(told) <= LONGEST_REASON else f"{told[:LONGEST_REASON]} ..."
    return FormError(f"the {what} cannot be taken: {shown}; change it, or ask for an answer of any form")


class Follower:
    """A form beside one answer, whose tokens come with every call: what was said before is not said again."""

    def __init__(self, grammar: Grammar) -> None:
        from llguidance import LLMatcher

        self._matcher: LLMatcher = LLMatcher(grammar.grammars.vocabulary, grammar.text)
        self._size = grammar.grammars.vocab_size
        self._bits = np.zeros((1, -(-self._size // WORD_BITS)), np.int32)
        self._taken: list[int] = []

    def possible(self, token_ids: Sequence[int]) -> NDArray[np.bool_]:
        """(vocab_size,) bool: which tokens may come after these. UserError where these left the form."""
        from llguidance.numpy import fill_next_token_bitmask

        self._follow(token_ids)
        fill_next_token_bitmask(self._matcher, self._bits, 0)
        bits = np.unpackbits(self._bits.view(np.uint8), count=self._size, bitorder="little")
        return bits.view(np.bool_)

    def _follow(self, token_ids: Sequence[int]) -> None:
        """Take tokens back that are not these any more, and take those that are new."""
        given = [int(token) for token in token_ids]
        same = _same(self._taken, given)
        if same < len(self._taken):
            self._matcher.rollback(len(self._taken) - same)
        new = given[same:]
        took = self._matcher.try_consume_tokens(new)
        self._taken = given[: same + took]
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
