"""The grammar of an answer that may or must call tools, in llguidance's dialect of lark.

A call names an existing function, and its arguments match the function's schema. If calls are not required
(`Tools.must_call`), an answer is text, or JSON of a schema, or a text and calls; after the start of a call
only calls may follow.

A call starts with a token of its own (Qwen's <tool_call>), or with letters, or is the start of the answer.
Other special tokens (<think>) may be in a text as without tools. Blanks between the parts of a call may
differ from the format's: models differ in them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from aerie.engine.grammar import BLANKS, Grammar, GrammarCompiler, GrammarError, Schema
from aerie.engine.grammar_process import CompiledGrammar
from aerie.engine.tool_calls import ToolCallFormat, Tools, ToolsError

MAX_CALLS: Final = 16
"""Maximum calls of an answer: a model that was not trained for calls might not stop."""
SPACE: Final = r"[ \n]?"
"""Between the parts of a call. If more were allowed, untrained models would generate blanks."""
ONE_BLANK: Final = " ?"
"""Between the parts of a call's arguments: models write them in one line."""
ANYTHING: Final = r"(?s:.*)"


def tool_call_grammar(
    grammars: GrammarCompiler,
    tools: Tools,
    call_format: ToolCallFormat,
    answer: Schema | None = None,
    hold: str = "meaning",
) -> Grammar:
    """The grammar of an answer with these tools. answer: the schema of an answer without calls, and `hold`
    its enforcement; None means text. Raises ToolsError for parameters that are refused, and if a call and a
    JSON answer would start alike; GrammarError for a refused answer schema."""
    if answer is not None and call_format.is_bare and not tools.must_call:
        raise ToolsError(
            "tools and a form of the answer were given, and calls of this model are JSON too: give one of "
            'the two, or tool_choice "required" or "none"',
            "response_format",
        )
    arguments = [_arguments(grammars, tools, index) for index in range(len(tools.tools))]
    answer_grammar = None if answer is None else grammars.schema(answer, hold, BLANKS)
    start = _start(tools, call_format, grammars, answer is not None)
    by_name = {tool.name: each for tool, each in zip(tools.tools, arguments, strict=True)}
    calls = _calls(tools, call_format, grammars, [by_name[tool.name] for tool in tools.callable])
    lines = (*start, *calls, *_text_rules(tools, call_format, grammars, answer_grammar))
    notes = [f"{name}: {note}" for name, each in by_name.items() for note in each.notes]
    return grammars.recompile("\n".join(lines), (*notes, *(answer_grammar.notes if answer_grammar else ())))


def _arguments(grammars: GrammarCompiler, tools: Tools, index: int) -> CompiledGrammar:
    tool = tools.tools[index]
    try:
        return grammars.schema(tool.schema, "all" if tool.is_strict else "known", ONE_BLANK)
    except GrammarError as error:
        problem = f"the parameters of {tool.name!r} cannot be taken: {error}"
        raise ToolsError(problem, f"tools[{index}].parameters") from None


def call_prefix_regex(names: Iterable[str], name_group: str = "(") -> str:
    """A regular expression, for Python and llguidance, of the text before a call's arguments."""
    key = f"{SPACE}:{SPACE}"
    kind = f'"type"{key}"function"{SPACE},{SPACE}'
    return (
        rf'\{{{SPACE}({kind})?"name"{key}"{name_group}{"|".join(names)})"{SPACE},{SPACE}'
        rf'"(arguments|parameters)"{key}'
    )


def _start(
    tools: Tools, call_format: ToolCallFormat, grammars: GrammarCompiler, is_json: bool
) -> Iterator[str]:
    trigger = _spelled(call_format.trigger, grammars)
    if tools.must_call:
        yield f"start: {'' if call_format.is_bare else trigger} calls"
        return
    alternatives = ["said", *(["calls"] if call_format.is_bare else [])]
    if is_json:
        alternatives.append(f"{trigger} calls")
    elif call_format.trigger in grammars.special_tokens:
        alternatives.append(f"said {trigger} calls")
    elif not call_format.is_bare:
        alternatives.append("said begun calls")
        yield f"begun[lazy]: /{ANYTHING}{_regex(call_format.trigger)}/"
    yield f"start: {' | '.join(alternatives)}"


def _calls(
    tools: Tools, call_format: ToolCallFormat, grammars: GrammarCompiler, arguments: Sequence[CompiledGrammar]
) -> Iterator[str]:
    callable_tools, more = tools.callable, ""
    if call_format.between is not None and tools.parallel:
        more = f"({_spelled(call_format.between, grammars)} call){{0,{MAX_CALLS - 1}}}"
    opening, closing = (_spelled(text, grammars) for text in (call_format.opening, call_format.closing))
    yield f"calls: {opening} call {more} {closing}"
    yield f"call: {' | '.join(f'call_{number}' for number in range(len(callable_tools)))}"
    for number, (tool, compiled) in enumerate(zip(callable_tools, arguments, strict=True)):
        yield f"call_{number}: HEAD_{number} %json {compiled.schema} TAIL"
        yield f"HEAD_{number}: /{call_prefix_regex([tool.name])}/"
    yield f"TAIL: /{SPACE}\\}}/"


def _text_rules(
    tools: Tools, call_format: ToolCallFormat, grammars: GrammarCompiler, answer: CompiledGrammar | None
) -> Iterator[str]:
    """An answer without calls, or the text before calls: no text that would be parsed as a call."""
    if tools.must_call:
        return
    if answer is not None:
        yield f"said: %json {answer.schema}"
        return
    others = {*grammars.special_tokens.values()} - {
        *grammars.eos_ids,
        grammars.special_tokens.get(call_format.trigger),
    }
    ids = ",".join(str(each) for each in sorted(each for each in others if each is not None))
    yield "said: FIRST?" + f" (<[{ids}]> TEXT?)*" * bool(ids)
    text = (
        f"/(?s:.+)/ & ~/{ANYTHING}{_regex(call_format.trigger)}{ANYTHING}/"
        if call_format.trigger
        else "/(?s:.+)/"
    )
    yield f"TEXT: {text}"
    names = [tool.name for tool in tools.callable]
    yield f"FIRST: {text}" + f" & ~/{SPACE}{call_prefix_regex(names)}{ANYTHING}/" * call_format.is_bare


def _regex(text: str) -> str:
    return re.escape(text).replace("/", r"\/")


def _spelled(text: str, grammars: GrammarCompiler) -> str:
    """A text of a format as a grammar: its tokens, letters, and blanks, whose number may differ."""
    tokens = [token for token in grammars.special_tokens if token in text]
    pieces = re.split("|".join(["(\\s+)", *(f"({re.escape(token)})" for token in tokens)]), text)
    return " ".join(_piece(piece, grammars) for piece in pieces if piece)


def _piece(piece: str, grammars: GrammarCompiler) -> str:
    if (token := grammars.special_tokens.get(piece)) is not None:
        return f"<[{token}]>"
    return f"/{SPACE}/" if piece.isspace() else json.dumps(piece)
