"""The grammar of an answer that may call tools, or has to, in llguidance's form of lark.

A call is of a function that there is, and its arguments are of the function's schema. Where calls are not
asked for (`Tools.required`), an answer is text, or JSON of a schema, or a text and calls: where a call has
begun, nothing but a call may go on.

What begins a call is a token of its own (Qwen's <tool_call>), or spelled in letters, or the call itself, at
the beginning of the answer. Other tokens of their own (<think>) may come in a text as without tools. Blanks
between the parts of a call may be others than in its form: models differ in them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from aerie.engine.grammar import BLANKS, Grammar, GrammarCompiler, GrammarError, Schema
from aerie.engine.grammar_process import CompiledGrammar
from aerie.engine.tool_calls import ToolCallFormat, Tools, ToolsError

MOST_CALLS: Final = 16
"""Of an answer: a model that was not made for it would not stop."""
SPACE: Final = r"[ \n]?"
"""Between the parts of a call: were more possible, models that were not made for calls would say them."""
ONE_BLANK: Final = " ?"
"""The same, between the parts of its arguments: models write them in one line."""
ANYTHING: Final = r"(?s:.*)"


def tool_call_grammar(
    grammars: GrammarCompiler,
    tools: Tools,
    form: ToolCallFormat,
    answer: Schema | None = None,
    hold: str = "meaning",
) -> Grammar:
    """See the module. answer: the schema of an answer that calls nothing, and what of it is held to; None: it
    is text. ToolsError for parameters that cannot be taken, and where a call and JSON of the answer would
    begin alike. GrammarError for an answer's schema that cannot be taken."""
    if answer is not None and form.is_bare and not tools.must_call:
        raise ToolsError(
            "tools and a form of the answer were given, and calls of this model are JSON too: give one of "
            'the two, or tool_choice "required" or "none"',
            "response_format",
        )
    arguments = [_arguments(grammars, tools, index) for index in range(len(tools.tools))]
    answered = None if answer is None else grammars.schema(answer, hold, BLANKS)
    start = _start(tools, form, grammars, answer is not None)
    read = {tool.name: each for tool, each in zip(tools.tools, arguments, strict=True)}
    calls = _calls(tools, form, grammars, [read[tool.name] for tool in tools.callable])
    lines = (*start, *calls, *_said(tools, form, grammars, answered))
    notes = [f"{name}: {note}" for name, each in read.items() for note in each.notes]
    return grammars.recompile("\n".join(lines), (*notes, *(answered.notes if answered else ())))


def _arguments(grammars: GrammarCompiler, tools: Tools, index: int) -> CompiledGrammar:
    tool = tools.tools[index]
    try:
        return grammars.schema(tool.schema, "all" if tool.is_strict else "known", ONE_BLANK)
    except GrammarError as error:
        told = f"the parameters of {tool.name!r} cannot be taken: {error}"
        raise ToolsError(told, f"tools[{index}].parameters") from None


def call_prefix_regex(names: Iterable[str], name_group: str = "(") -> str:
    """A regular expression, of Python and of llguidance, of what comes before a call's arguments."""
    key = f"{SPACE}:{SPACE}"
    kind = f'"type"{key}"function"{SPACE},{SPACE}'
    return (
        rf'\{{{SPACE}({kind})?"name"{key}"{name_group}{"|".join(names)})"{SPACE},{SPACE}'
        rf'"(arguments|parameters)"{key}'
    )


def _start(tools: Tools, form: ToolCallFormat, grammars: GrammarCompiler, is_json: bool) -> Iterator[str]:
    trigger = _spelled(form.trigger, grammars)
    if tools.must_call:
        yield f"start: {'' if form.is_bare else trigger} calls"
        return
    ways = ["said", *(["calls"] if form.is_bare else [])]
    if is_json:
        ways.append(f"{trigger} calls")
    elif form.trigger in grammars.whole_tokens:
        ways.append(f"said {trigger} calls")
    elif not form.is_bare:
        ways.append("said begun calls")
        yield f"begun[lazy]: /{ANYTHING}{_regex(form.trigger)}/"
    yield f"start: {' | '.join(ways)}"


def _calls(
    tools: Tools, form: ToolCallFormat, grammars: GrammarCompiler, arguments: Sequence[CompiledGrammar]
) -> Iterator[str]:
    each, more = tools.callable, ""
    if form.between is not None and tools.parallel:
        more = f"({_spelled(form.between, grammars)} call){{0,{MOST_CALLS - 1}}}"
    yield f"calls: {_spelled(form.opening, grammars)} call {more} {_spelled(form.closing, grammars)}"
    yield f"call: {' | '.join(f'call_{number}' for number in range(len(each)))}"
    for number, (tool, read) in enumerate(zip(each, arguments, strict=True)):
        yield f"call_{number}: HEAD_{number} %json {read.schema} TAIL"
        yield f"HEAD_{number}: /{call_prefix_regex([tool.name])}/"
    yield f"TAIL: /{SPACE}\\}}/"


def _said(
    tools: Tools, form: ToolCallFormat, grammars: GrammarCompiler, answer: CompiledGrammar | None
) -> Iterator[str]:
    """An answer, or what comes before calls: no text that would be read as a call."""
    if tools.must_call:
        return
    if answer is not None:
        yield f"said: %json {answer.schema}"
        return
    others = {*grammars.whole_tokens.values()} - {*grammars.eos_ids, grammars.whole_tokens.get(form.trigger)}
    ids = ",".join(str(each) for each in sorted(each for each in others if each is not None))
    yield "said: FIRST?" + f" (<[{ids}]> TEXT?)*" * bool(ids)
    text = f"/(?s:.+)/ & ~/{ANYTHING}{_regex(form.trigger)}{ANYTHING}/" if form.trigger else "/(?s:.+)/"
    yield f"TEXT: {text}"
    names = [tool.name for tool in tools.callable]
    yield f"FIRST: {text}" + f" & ~/{SPACE}{call_prefix_regex(names)}{ANYTHING}/" * form.is_bare


def _regex(text: str) -> str:
    return re.escape(text).replace("/", r"\/")


def _spelled(text: str, grammars: GrammarCompiler) -> str:
    """A text of a form: its tokens, letters, and blanks, of which there may be more or fewer."""
    tokens = [token for token in grammars.whole_tokens if token in text]
    pieces = re.split("|".join(["(\\s+)", *(f"({re.escape(token)})" for token in tokens)]), text)
    return " ".join(_piece(piece, grammars) for piece in pieces if piece)


def _piece(piece: str, grammars: GrammarCompiler) -> str:
    if (token := grammars.whole_tokens.get(piece)) is not None:
        return f"<[{token}]>"
    return f"/{SPACE}/" if piece.isspace() else json.dumps(piece)
