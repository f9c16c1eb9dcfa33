"""Compiles grammars in a child process: a client's grammar may take any time, memory and stack.

The child has the model's vocabulary and llguidance. It gets one grammar at a time, with LIMITS (sandbox.py).
If it ends by a limit, a crash or a limit of llguidance, the grammar is refused, and the next one is compiled
by a new child. A grammar that compiled within these limits, and was tried with a few tokens, is compiled
again in the main process (grammar.py), whose threads have at least twice that stack; no other Python runs
over the grammar there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from aerie.common.errors import UserError
from aerie.common.sandbox import (
    BeginningError,
    BoundedProcess,
    InterruptedCallError,
    Limits,
    OverLimitError,
    RaisedError,
    one_line,
)
from aerie.engine import grammar_emptiness, json_schema, schema_emptiness
from aerie.engine.errors import CheckpointError
from aerie.engine.json_schema import RefusedError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

LIMITS: Final = Limits(cpu_s=1.0, wait_s=20.0, memory_bytes=512 << 20, stack_bytes=1 << 20, begin_s=120.0)
"""Limits of one grammar. The wall-clock limit allows for other work on the machine. The start includes
reading the vocabulary."""
MAX_TEXT, MAX_GENERATED_TEXT = 2**18, 2**20
"""Maximum characters of a client's grammar, and of a grammar that is made here of several."""
TRIAL_TOKENS: Final = 8
"""Number of tokens that are tried of each grammar, each time the first one allowed."""
BLANKS: Final = r"( |\n {0,16})?"


class GrammarSource(NamedTuple):
    """A grammar to compile. kind: schema, lark, gbnf, regex, or made (a grammar of ours).

    enforcement: for schemas, "all" (refuse a schema that cannot be enforced completely), "meaning" (all but
    formats that llguidance does not support, which mean nothing in JSON Schema), or "known" (what llguidance
    supports). whitespace: what may stand between JSON tokens.
    """

    kind: str
    text: str
    enforcement: str = "meaning"
    whitespace: str = BLANKS


class CompiledGrammar(NamedTuple):
    """text: the grammar as llguidance has it. schema: the enforced part of a schema. notes: the parts that
    are not enforced."""

    text: str
    schema: str = ""
    notes: tuple[str, ...] = ()


class GrammarError(UserError):
    """A schema or grammar that is refused."""


class GrammarInterruptedError(GrammarError):
    """A grammar that did not compile, for a reason that may not be its own. It may compile later."""


OPTIONS: Final = "x-guidance"
"""llguidance's key for options in a schema. Ours are set there."""
NAMES: Final = {"schema": "JSON schema", "regex": "regular expression"}
"""What errors call a kind of grammar; others are "grammar"."""
BEYOND: Final = (
    f"to read it takes more than {LIMITS.cpu_s:g} s, {LIMITS.memory_bytes >> 20} MiB or the depth that a "
    "form may have; ask for fewer rules, references, repetitions, or smaller numbers"
)
REFUSALS: Final = {"RefusedError": "", "RecursionError": "it is nested too deeply"}
"""Exceptions of the child that refuse the grammar, with the reason if their text is not one."""


def grammar_refused(kind: str, reason: str) -> GrammarError:
    name = NAMES.get(kind, "grammar")
    return GrammarError(
        f"the {name} cannot be taken: {one_line(reason)}; change it, or ask for an answer of any form"
    )


def check_length(source: GrammarSource) -> None:
    """Raises GrammarError for more text than a grammar may have."""
    limit = MAX_GENERATED_TEXT if source.kind == "made" else MAX_TEXT
    if len(source.text) > limit:
        raise grammar_refused(source.kind, f"it has {len(source.text)} characters, and {limit} is the limit")


def limits() -> LLParserLimits:
    """llguidance's limits, in the child and in the main process: its own for a token, and few enough states
    that a matcher has some tens of MB at most."""
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=25_000, verbose_errors=False)


class GrammarProcess:
    """The child process. It starts at the first grammar, and again after its end. Any thread may use it, for
    grammars that passed check_length.

    tokenizer: as JSON of Hugging Face's tokenizers. ends: tokens that end an answer.
    """

    def __init__(self, tokenizer: str, vocab_size: int, eos_ids: list[int]) -> None:
        beginning = ("begin", [tokenizer, vocab_size, eos_ids])
        self._process = BoundedProcess(__name__, LIMITS, most=1, initialization=beginning)

    def read(self, source: GrammarSource) -> CompiledGrammar:
        """Compile a grammar. Raises GrammarError if it is refused, and CheckpointError if llguidance cannot
        read the vocabulary."""
        try:
            text, schema, notes = self._process.call("read", source)
        except InterruptedCallError:
            raise GrammarInterruptedError(str(grammar_refused(source.kind, BEYOND))) from None
        except OverLimitError:
            raise grammar_refused(source.kind, BEYOND) from None
        except RaisedError as error:
            if error.kind not in REFUSALS:
                raise RuntimeError(f"a form cannot be read: {error}\n{error.trace}") from None
            raise grammar_refused(source.kind, REFUSALS[error.kind] or str(error)) from None
        except BeginningError as error:
            raise CheckpointError(
                f"the checkpoint's tokenizer cannot be read for answers of a form ({error}); ask for an "
                "answer of any form"
            ) from None
        return CompiledGrammar(text, schema, tuple(notes))


def begin(tokenizer: str, vocab_size: int, eos_ids: list[int]) -> _Compiler:
    """Prepare the child. Called once in it."""
    from llguidance import LLTokenizer

    return _Compiler(LLTokenizer(tokenizer, n_vocab=vocab_size, eos_token=eos_ids))


Compiled: TypeAlias = "tuple[str, LLMatcher] | RefusedError"


class _Compiler:
    """The compiler in the child. Raises RefusedError."""

    def __init__(self, vocabulary: LLTokenizer) -> None:
        self._vocabulary = vocabulary

    def read(self, source_fields: Sequence[str]) -> CompiledGrammar:
        """form: a GrammarSource, or the same as JSON has it."""
        from llguidance import LLMatcher

        source = GrammarSource(*source_fields)
        if source.kind == "schema":
            return self._schema(source)
        if source.kind == "regex":
            compiled = CompiledGrammar(LLMatcher.grammar_from_regex(source.text))
        else:
            text = _lark(source.text) if source.kind == "gbnf" else source.text
            compiled = CompiledGrammar(
                LLMatcher.grammar_from_lark(text) if source.kind in ("gbnf", "lark") else text
            )
            if source.kind != "made":
                self._check_ends(text)
        self._try(self._matcher(compiled.text))
        return compiled

    def _matcher(self, text: str) -> LLMatcher:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._vocabulary, text, log_level=0, limits=limits())
        if matcher.is_error():
            raise RefusedError(matcher.get_error().removesuffix("<non-verbose/>"))
        return matcher

    def _try(self, matcher: LLMatcher) -> None:
        """Try the first tokens: perhaps none is possible, or computing them takes too much."""
        for _ in range(TRIAL_TOKENS):
            bits = int.from_bytes(matcher.compute_bitmask(), "little")
            if matcher.is_error():
                raise _stuck(matcher)
            if matcher.is_stopped() or not bits:
                return
            token = (bits & -bits).bit_length() - 1
            if not matcher.consume_token(token):
                raise _stuck(matcher)

    def _check_ends(self, text: str) -> None:
        if not grammar_emptiness.accepts_any_text(text, lambda terminal: self._is_empty(text, terminal)):
            raise RefusedError("no rule of it comes to an end, so no answer would")

    def _is_empty(self, grammar: str, terminal: str) -> bool:
        from llguidance import LLMatcher

        named = terminal if terminal.isupper() else "ONE_OF_IT"
        lines = [*grammar_emptiness.terminals(grammar), f"start: {named}"]
        if named != terminal:
            lines.append(f"{named}: {terminal}")
        made = LLMatcher(self._vocabulary, LLMatcher.grammar_from_lark("\n".join(lines)), log_level=0)
        if made.is_error():
            return False
        made.compute_bitmask()
        return made.is_error() and "NoExtension" in made.get_error()

    def _schema(self, source: GrammarSource) -> CompiledGrammar:
        root = json_schema.check_schema(json_schema.parse_schema(source.text))
        root.pop(OPTIONS, None)
        json_schema.normalize_numbers(root)
        if source.enforcement == "meaning":
            json_schema.without_formats(root)
        options: dict[str, Any] = {"whitespace_pattern": source.whitespace}
        result, notes = self._compiled(root, options), list[str]()
        if isinstance(result, RefusedError) and source.enforcement == "known":
            options |= {"lenient": True, "coerce_one_of": True}
            result, notes = self._compile_loosely(root, options)
        if isinstance(result, RefusedError):
            raise result
        text, matcher = result
        if not schema_emptiness.has_finite_instance(root):
            raise RefusedError("no JSON is of it that comes to an end")
        self._try(matcher)
        return CompiledGrammar(
            text, json_schema.dump_schema({**root, OPTIONS: options}), tuple(dict.fromkeys(notes))
        )

    def _compile_loosely(self, root: Any, options: Mapping[str, Any]) -> tuple[Compiled, list[str]]:
        """The enforced part of a schema, and the parts that are dropped."""
        notes = json_schema.drop_unsupported(root, self._is_pattern)
        result = self._compiled(root, options)
        for _ in json_schema.REMEDIES:
            if isinstance(result, RefusedError) and (
                left_out := json_schema.drop_after_error(root, str(result))
            ):
                notes.append(left_out)
                result = self._compiled(root, options)
        if not isinstance(result, RefusedError):
            warnings = result[1].get_grammar_warnings()
            notes += [each for warning in warnings for each in json_schema.dropped_keywords(warning)]
        return result, notes

    def _compiled(self, root: Any, options: Mapping[str, Any]) -> Compiled:
        from llguidance import LLMatcher

        try:
            text = LLMatcher.grammar_from_json_schema(json_schema.dump_schema(root), overrides=options)
            return text, self._matcher(text)
        except (ValueError, TypeError) as error:
            return RefusedError(str(error))
        except RefusedError as error:
            return error

    def _is_pattern(self, pattern: str) -> bool:
        alone = {"type": "string", "pattern": pattern}
        return not isinstance(self._compiled(alone, {}), RefusedError)


def _stuck(matcher: LLMatcher) -> RefusedError:
    message = matcher.get_error()
    if "NoExtension" in message:
        return RefusedError("no text is of it")
    return RefusedError(message.removesuffix("<non-verbose/>"))


def _lark(grammar: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        text: str = any_to_lark(grammar)
    except RecursionError:
        raise
    except Exception as error:  # it raises plain Exception for rules that are not there
        raise RefusedError(str(error)) from None
    return text
