"""Forms are read in a process of their own: what a stranger asks for may take any time, memory and stack.

The process has the model's vocabulary and llguidance. It is told one form at a time, and has LIMITS for it
(sandbox.py); where it ends by that, by a crash or by a limit of llguidance, the form is refused, and the next
one is read by a new process. What it takes, in these limits and with a first few tokens, is then made again
where answers are (grammar.py), where threads have twice that stack at least; there no more Python is run over
a form.
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
"""Of one form; of time altogether, as the machine may have much else to do. It begins by reading the
vocabulary."""
MOST_TEXT, MOST_OF_OURS = 2**18, 2**20
"""Characters of a form, and of a grammar that is made here of several."""
TRIED: Final = 8
"""Tokens that are tried of each form, each time the first that may come."""
BLANKS: Final = r"( |\n {0,16})?"


class GrammarSource(NamedTuple):
    """A form to read. kind: schema, lark, gbnf, regex, or made, a grammar of ours. hold: of schemas, what of
    them an answer is held to: "all" of it, or else it is refused; "meaning": all but formats that llguidance
    has not, which mean nothing by JSON Schema; "known": what llguidance has of it."""

    kind: str
    text: str
    enforcement: str = "meaning"
    whitespace: str = BLANKS


class CompiledGrammar(NamedTuple):
    """text: the grammar as llguidance has it. schema: of a schema, what is left of it. notes: what answers
    are not held to."""

    text: str
    schema: str = ""
    notes: tuple[str, ...] = ()


class GrammarError(UserError):
    """A schema or grammar that cannot be taken."""


class GrammarInterruptedError(GrammarError):
    """One that was not read, for a reason that need not be its own: it may be taken another time."""


OPTIONS: Final = "x-guidance"
"""Of llguidance, in a schema: ours."""
NAMES: Final = {"schema": "JSON schema", "regex": "regular expression"}
"""What a form is called, if not a grammar."""
BEYOND: Final = (
    f"to read it takes more than {LIMITS.cpu_s:g} s, {LIMITS.memory_bytes >> 20} MiB or the depth that a "
    "form may have; ask for fewer rules, references, repetitions, or smaller numbers"
)
REFUSALS: Final = {"RefusedError": "", "RecursionError": "it is nested too deeply"}
"""Exceptions of the process that are of the form, and what is told if not what they say."""


def grammar_refused(kind: str, reason: str) -> GrammarError:
    what = NAMES.get(kind, "grammar")
    return GrammarError(
        f"the {what} cannot be taken: {one_line(reason)}; change it, or ask for an answer of any form"
    )


def check_length(wanted: GrammarSource) -> None:
    """FormError for more than a form may have."""
    most = MOST_OF_OURS if wanted.kind == "made" else MOST_TEXT
    if len(wanted.text) > most:
        raise grammar_refused(wanted.kind, f"it has {len(wanted.text)} characters, and {most} is the limit")


def limits() -> LLParserLimits:
    """Of llguidance, here and where answers are: its own for a token, and so few states that a matcher has
    some tens of MB at most."""
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=25_000, verbose_errors=False)


class GrammarProcess:
    """One process, begun when the first form is asked for, and again after its end. Any thread may ask,
    for forms that check_length lets through.

    tokenizer: in the form of Hugging Face's tokenizers. ends: tokens that end an answer.
    """

    def __init__(self, tokenizer: str, vocab_size: int, ends: list[int]) -> None:
        beginning = ("begin", [tokenizer, vocab_size, ends])
        self._process = BoundedProcess(__name__, LIMITS, most=1, initialization=beginning)

    def read(self, wanted: GrammarSource) -> CompiledGrammar:
        """FormError for what cannot be taken; CheckpointError where llguidance cannot read the vocabulary."""
        try:
            text, schema, notes = self._process.call("read", wanted)
        except InterruptedCallError:
            raise GrammarInterruptedError(str(grammar_refused(wanted.kind, BEYOND))) from None
        except OverLimitError:
            raise grammar_refused(wanted.kind, BEYOND) from None
        except RaisedError as error:
            if error.kind not in REFUSALS:
                raise RuntimeError(f"a form cannot be read: {error}\n{error.trace}") from None
            raise grammar_refused(wanted.kind, REFUSALS[error.kind] or str(error)) from None
        except BeginningError as error:
            raise CheckpointError(
                f"the checkpoint's tokenizer cannot be read for answers of a form ({error}); ask for an "
                "answer of any form"
            ) from None
        return CompiledGrammar(text, schema, tuple(notes))


def begin(tokenizer: str, vocab_size: int, eos_ids: list[int]) -> _Reading:
    """In the process, once."""
    from llguidance import LLTokenizer

    return _Reading(LLTokenizer(tokenizer, n_vocab=vocab_size, eos_token=eos_ids))


Compiled: TypeAlias = "tuple[str, LLMatcher] | RefusedError"


class _Reading:
    """A form, in the process. Raises RefusedError."""

    def __init__(self, vocabulary: LLTokenizer) -> None:
        self._vocabulary = vocabulary

    def read(self, form: Sequence[str]) -> CompiledGrammar:
        """form: a GrammarSource, or what JSON makes of it."""
        from llguidance import LLMatcher

        wanted = GrammarSource(*form)
        if wanted.kind == "schema":
            return self._schema(wanted)
        if wanted.kind == "regex":
            made = CompiledGrammar(LLMatcher.grammar_from_regex(wanted.text))
        else:
            text = _lark(wanted.text) if wanted.kind == "gbnf" else wanted.text
            made = CompiledGrammar(
                LLMatcher.grammar_from_lark(text) if wanted.kind in ("gbnf", "lark") else text
            )
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

    def _schema(self, wanted: GrammarSource) -> CompiledGrammar:
        root = json_schema.check_schema(json_schema.parse_schema(wanted.text))
        root.pop(OPTIONS, None)
        json_schema.normalize_numbers(root)
        if wanted.enforcement == "meaning":
            json_schema.without_formats(root)
        own: dict[str, Any] = {"whitespace_pattern": wanted.whitespace}
        made, notes = self._compiled(root, own), list[str]()
        if isinstance(made, RefusedError) and wanted.enforcement == "known":
            own |= {"lenient": True, "coerce_one_of": True}
            made, notes = self._loosely(root, own)
        if isinstance(made, RefusedError):
            raise made
        text, matcher = made
        if not schema_emptiness.has_finite_instance(root):
            raise RefusedError("no JSON is of it that comes to an end")
        self._try(matcher)
        return CompiledGrammar(
            text, json_schema.dump_schema({**root, OPTIONS: own}), tuple(dict.fromkeys(notes))
        )

    def _loosely(self, root: Any, own: Mapping[str, Any]) -> tuple[Compiled, list[str]]:
        """What is left of a schema, and what is left out."""
        notes = json_schema.drop_unsupported(root, self._is_pattern)
        made = self._compiled(root, own)
        for _ in json_schema.REMEDIES:
            if isinstance(made, RefusedError) and (left_out := json_schema.drop_after_error(root, str(made))):
                notes.append(left_out)
                made = self._compiled(root, own)
        if not isinstance(made, RefusedError):
            warnings = made[1].get_grammar_warnings()
            notes += [each for warning in warnings for each in json_schema.dropped_keywords(warning)]
        return made, notes

    def _compiled(self, root: Any, own: Mapping[str, Any]) -> Compiled:
        from llguidance import LLMatcher

        try:
            text = LLMatcher.grammar_from_json_schema(json_schema.dump_schema(root), overrides=own)
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
