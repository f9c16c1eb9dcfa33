"""Structured output: JSON that matches a schema, or text of a grammar or regular expression.

llguidance says which tokens may come next: it parses the answer so far, and gives one bit for each token of
the vocabulary. When the output is complete, only an end token may come. A grammar depends on the answer's
tokens only, so an answer has the same tokens for any schedule. Drafts that the grammar does not allow are
rejected, and tokens of rejected drafts are rolled back here.

Between its parts JSON may have one blank, or a line end with indentation (BLANKS). If any number of blanks
were allowed, a model could generate blanks without end.
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
    MAX_TEXT,
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
Value = TypeVar("Value")

WORD_BITS = 32
MAX_COMPILED_CHARACTERS, MAX_REFUSED_CHARACTERS, MAX_MATCHERS = 2**24, 2**22, 8
"""Characters of the forms whose reading is kept, and of those whose refusal is, each form counted with
CHARACTERS_PER_GRAMMAR more; and how many forms are kept made: a matcher has up to some tens of MB."""
CHARACTERS_PER_GRAMMAR = 1000
MAX_COPIES = 32
"""Maximum copies of a cached matcher. All copies add to its states, whose number is limited."""
CPU_S, TOKEN_CPU_S = 0.5, 0.005
"""CPU seconds for the grammar of an answer: in total, plus for each token."""


@dataclass(frozen=True)
class Grammar:
    """A compiled grammar for the tokens of one model. text: as llguidance has it. notes: parts of a schema
    that are not enforced. Made by GrammarCompiler."""

    text: str
    grammars: GrammarCompiler
    matcher: LLMatcher = field(repr=False, compare=False)
    notes: tuple[str, ...] = ()

    def start(self) -> GrammarMatcher:
        """A matcher for one answer."""
        return GrammarMatcher(self)


class GrammarCompiler:
    """Compiles grammars for the answers of one model. Any thread may call it.

    A grammar is compiled in a child process (grammar_process.py), and the result is cached, also an error, so
    a grammar that is sent again delays no other. The vocabulary is read at the first one, in both processes,
    which takes about 0.4 s for 128,256 tokens.
    """

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig) -> None:
        self.tokenizer, self._config = tokenizer, config
        self._vocabulary: LLTokenizer | None = None
        self._lock = threading.Lock()
        self._read = _LimitedCache[GrammarSource, CompiledGrammar](MAX_COMPILED_CHARACTERS, _characters)
        self._matchers = _LimitedCache[str, _Matcher](MAX_MATCHERS)
        self._refused = _LimitedCache[GrammarSource, str](MAX_REFUSED_CHARACTERS, _characters)
        self._compile_lock = threading.Lock()

    @property
    def vocab_size(self) -> int:
        return self._config.vocab_size

    @property
    def eos_ids(self) -> Collection[int]:
        """The tokens that end an answer."""
        return self._config.eos_token_ids

    @cached_property
    def special_tokens(self) -> Mapping[str, int]:
        """Tokens that are no text of a grammar, by name: special tokens, and tokens such as <name>."""
        is_whole = self.vocabulary.is_special_token
        return {text: token for text, token in self.tokenizer.added_tokens().items() if is_whole(token)}

    @property
    def vocabulary(self) -> LLTokenizer:
        """The vocabulary as llguidance has it. Raises CheckpointError if llguidance cannot read the
        tokenizer."""
        with self._lock:
            if self._vocabulary is None:
                from llguidance import LLTokenizer

                self._vocabulary = LLTokenizer(
                    self.tokenizer.as_json(), n_vocab=self.vocab_size, eos_token=sorted(self.eos_ids)
                )
            return self._vocabulary

    @cached_property
    def _process(self) -> GrammarProcess:
        return GrammarProcess(self.tokenizer.as_json(), self.vocab_size, sorted(self.eos_ids))

    def json(self, schema: Schema, hold: str = "meaning") -> Grammar:
        """JSON of this schema. hold: the enforcement, as grammar_process.GrammarSource. Raises GrammarError
        for an invalid schema, for keywords that llguidance does not support, and for a schema without
        instances."""
        return self._grammar(GrammarSource("schema", schema_text(schema), hold))

    def schema(self, schema: Schema, hold: str, blanks: str) -> CompiledGrammar:
        """A schema as a part of a larger grammar: the `schema` of the result. Raises as `json`."""
        return self.compile(GrammarSource("schema", schema_text(schema), hold, blanks))

    def lark(self, grammar: str) -> Grammar:
        """Text of a grammar in llguidance's dialect of lark. Raises GrammarError if it is invalid, or has no
        finite text."""
        return self._grammar(GrammarSource("lark", grammar))

    def gbnf(self, grammar: str) -> Grammar:
        """Text of a grammar in llama.cpp's GBNF, or in lark. Raises GrammarError if it is neither."""
        return self._grammar(GrammarSource("gbnf", grammar))

    def regex(self, expression: str) -> Grammar:
        """Text that a regular expression, in Rust's syntax, matches completely. Raises GrammarError if it is
        invalid or matches nothing."""
        return self._grammar(GrammarSource("regex", expression))

    def recompile(self, text: str, notes: tuple[str, ...] = ()) -> Grammar:
        """A grammar from its `text`. Raises GrammarError if it is invalid."""
        return self._grammar(GrammarSource("made", text), notes)

    def compile(self, source: GrammarSource) -> CompiledGrammar:
        """Compile a grammar in the child process, or find it in the cache. Raises GrammarError if it is
        refused."""
        check_length(source)
        result = self._lookup(source)
        if result is None:
            with self._compile_lock:  # whoever waited for the same form finds it here
                result = self._lookup(source) or self._compile_now(source)
        if isinstance(result, str):
            raise GrammarError(result)
        return result

    def _lookup(self, source: GrammarSource) -> CompiledGrammar | str | None:
        """The cached compile result: a grammar, or the error."""
        return self._read.lookup(source) or self._refused.lookup(source)

    def _compile_now(self, source: GrammarSource) -> CompiledGrammar | str:
        try:
            return self._read.put(source, self._process.read(source))
        except GrammarInterruptedError:
            raise
        except GrammarError as error:
            return self._refused.put(source, str(error))

    def _grammar(self, source: GrammarSource, notes: tuple[str, ...] = ()) -> Grammar:
        compiled = self.compile(source)
        cached = self._matchers.get_or_make(compiled.text, lambda: _Matcher(self.vocabulary, compiled.text))
        cached.copies += 1
        if cached.copies > MAX_COPIES:
            self._matchers.drop(compiled.text)
        return Grammar(compiled.text, self, cached.matcher, (*notes, *compiled.notes))


class _Matcher:
    """A matcher that answers copy, and the number of copies."""

    def __init__(self, vocabulary: LLTokenizer, text: str) -> None:
        from llguidance import LLMatcher

        self.matcher, self.copies = LLMatcher(vocabulary, text, log_level=0, limits=limits()), 0
        if self.matcher.is_error():
            raise grammar_refused("made", self.matcher.get_error())


Key = TypeVar("Key")


class _LimitedCache(dict[Key, Value]):
    """A cache of the last results, limited by their total size. Any thread may use it."""

    def __init__(self, max_size: int, size: Callable[[Key, Value], int] = lambda _, __: 1) -> None:
        super().__init__()
        self._max_size, self._size, self._lock = max_size, size, threading.Lock()
        self._total = 0

    def get_or_make(self, key: Key, make: Callable[[], Value]) -> Value:
        value = self.lookup(key)
        return self.put(key, make()) if value is None else value

    def lookup(self, key: Key) -> Value | None:
        with self._lock:
            if key in self:
                self[key] = self.pop(key)
            return self.get(key)

    def put(self, key: Key, value: Value) -> Value:
        self.drop(key)
        with self._lock:
            self[key] = value
            self._total += self._size(key, value)
            while self._total > self._max_size:
                self._forget(next(iter(self)))
        return value

    def drop(self, key: Key) -> None:
        with self._lock:
            if key in self:
                self._forget(key)

    def _forget(self, key: Key) -> None:
        self._total -= self._size(key, self.pop(key))


def _characters(source: GrammarSource, result: CompiledGrammar | str) -> int:
    size = len(result) if isinstance(result, str) else len(result.text) + len(result.schema)
    return len(source.text) + size + CHARACTERS_PER_GRAMMAR


def schema_text(schema: Schema) -> str:
    """The schema as JSON text. Raises GrammarError if it is not JSON."""
    if isinstance(schema, str):
        return schema
    _check_size(schema)
    try:
        return json.dumps(schema)
    except (ValueError, TypeError, RecursionError) as error:
        raise grammar_refused("schema", str(error)) from None


def _check_size(schema: Any) -> None:
    """Raises GrammarError for more text than a grammar may have. Without it json.dumps would stop all threads
    while it writes."""
    size, remaining = 0, [schema]
    while remaining:
        part = remaining.pop()
        size += 2 + (len(part) if isinstance(part, str) else 0)
        if size > MAX_TEXT:
            raise grammar_refused("schema", f"it has more than {MAX_TEXT} characters, which is the limit")
        if isinstance(part, Mapping):
            remaining += (*part.keys(), *part.values())
        elif isinstance(part, list | tuple):
            remaining += part


class GrammarMatcher:
    """A grammar's state for one answer. Each call gets all tokens of the answer; those of the call before are
    not parsed again."""

    def __init__(self, grammar: Grammar) -> None:
        self._matcher: LLMatcher = grammar.matcher.deep_copy()
        self._spent_s = 0.0
        self._size = grammar.grammars.vocab_size
        self._bits = np.zeros((1, -(-self._size // WORD_BITS)), np.int32)
        self._taken: list[int] = []

    def token_mask(self, token_ids: Sequence[int]) -> NDArray[np.bool_]:
        """bool (vocab_size,): which tokens may come after these. Raises UserError if these do not match the
        grammar, and if the mask takes too much time."""
        from llguidance.numpy import fill_next_token_bitmask

        started = time.thread_time()
        self._follow(token_ids)
        fill_next_token_bitmask(self._matcher, self._bits, 0)
        self._check(time.thread_time() - started)
        bits = np.unpackbits(self._bits.view(np.uint8), count=self._size, bitorder="little")
        return bits.view(np.bool_)

    def accepts(self, token_ids: Sequence[int]) -> bool:
        """Whether an answer may begin with these tokens. Raises UserError as token_mask for all else."""
        ids = [int(token) for token in token_ids]
        return self._consumed(ids) == len(ids)

    def _check(self, spent_s: float = 0.0) -> None:
        """Raises UserError if llguidance has stopped with an error, or the time limit is passed."""
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
            f"the grammar cannot be followed after {tokens} tokens: {reason[:200]}; ask for "
            "one that is less ambiguous, or has fewer parts that may be left out"
        )

    def _follow(self, token_ids: Sequence[int]) -> None:
        """Roll back tokens that the answer does not have, and consume the new ones."""
        ids = [int(token) for token in token_ids]
        consumed = self._consumed(ids)
        if consumed < len(ids):
            raise UserError(
                f"token {ids[consumed]}, number {consumed + 1} of the answer, does not match the "
                "grammar; an answer that started without a grammar cannot continue with one"
            )

    def _consumed(self, ids: list[int]) -> int:
        """How many of these tokens, from the first on, match the grammar; its state is after them then."""
        same = _same(self._taken, ids)
        if same < len(self._taken):
            self._matcher.rollback(len(self._taken) - same)
        consumed = int(self._matcher.try_consume_tokens(ids[same:]))
        self._taken = ids[: same + consumed]
        self._check()
        return same + consumed


def _same(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of first tokens that are equal in both lists."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(index for index in range(shorter) if one[index] != other[index])
