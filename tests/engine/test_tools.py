"""Calls of tools: found as the model's template has them, held to schemas, and text where they are none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Inner

from aerie import Model, load
from aerie.cli.checkpoints import find_checkpoint
from aerie.common.errors import UserError
from aerie.engine.call_grammar import tool_call_grammar
from aerie.engine.call_reader import ToolCallDelta, ToolCallParser, ToolCallSpec, tool_call_spec
from aerie.engine.chat_template import ChatTemplate
from aerie.engine.grammar import GrammarCompiler
from aerie.engine.tokenizer import Tokenizer
from aerie.engine.tool_calls import (
    DEFAULT_FORMAT,
    FORMATS,
    Tool,
    ToolCallFormat,
    Tools,
    ToolsError,
    detect_format,
    read_tools,
)

CITIES = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", 'Ro"}me']}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "Say it.", "parameters": CITIES},
}
NOW = {"type": "function", "function": {"name": "now-x"}}
TOOLS = Tools((Tool("weather", "Say it.", CITIES), Tool("now-x")))
ASKED = "What is the capital of France?"
PARIS = "The capital of France is Paris."
TAGS, LIST, BARE = FORMATS
FIRST, SECOND = '{"city": "Paris"}', '{"city": "Ro\\"}me"}'

Made = tuple[Tokenizer, Inner, GrammarCompiler]


def of_demo(special: tuple[str, ...] = (), others: tuple[str, ...] = (), template: str | None = None) -> Made:
    """The demo's tokenizer with more tokens, and its forms."""
    inner = Inner.from_file(str(find_checkpoint("demo") / "tokenizer.json"))
    inner.add_special_tokens([*special])
    inner.add_tokens([AddedToken(each, special=False) for each in others])
    tokenizer = Tokenizer(inner, ChatTemplate({"default": template}, {}) if template else None)
    config: Any = SimpleNamespace(vocab_size=inner.get_vocab_size(), eos_token_ids={1496, 1499})
    return tokenizer, inner, GrammarCompiler(tokenizer, config)


@pytest.fixture(scope="module")
def made() -> Callable[[str], Made]:
    known = {
        "plain": of_demo(),
        "tags": of_demo(others=("<tool_call>", "</tool_call>", "<think>")),
        "list": of_demo(special=("[TOOL_CALLS]",)),
        "bare": of_demo(special=("<|python_tag|>",)),
    }
    return lambda name: known[name]


def fits(made: Made, form: ToolCallFormat, text: str, tools: Tools, answer: Any = None) -> bool:
    """Whether an answer of the grammar may be this text, and end with it."""
    _, inner, grammars = made
    follower = tool_call_grammar(grammars, tools, form, answer).start()
    try:
        possible = follower.token_mask(inner.encode(text, add_special_tokens=False).ids)
    except UserError:
        return False
    return bool(possible[1499])


def read(made: Made, form: ToolCallFormat, text: str, tools: Tools = TOOLS) -> list[str]:
    """Texts, and calls as name and arguments, token by token."""
    tokenizer, inner, _ = made
    token = tokenizer.added_tokens().get(form.trigger)
    calls = ToolCallSpec(tools, form, frozenset([] if token is None else [token]))
    reader, stream = calls.reader(), tokenizer.incremental_detokenizer(shown=calls.shown)
    ids = inner.encode(text, add_special_tokens=False).ids
    pieces = [*map(stream.feed, ids), stream.flush()]
    parts = [part for piece in pieces for part in reader.feed(piece)]
    received: list[str] = []
    for part in [*parts, reader.flush()]:
        is_more = not isinstance(part, ToolCallDelta) or part.name is None
        delta = part if isinstance(part, str) else part.arguments
        if is_more and received:
            received[-1] += delta
        elif delta or not isinstance(part, str):
            received.append(delta if isinstance(part, str) else f"{part.name} ")
    assert [f"{call.name} {call.arguments}" for call in reader.calls] == received[
        -len(reader.calls) :
    ] * bool(reader.calls)
    return received


def tagged(*arguments: str) -> str:
    calls = (f'<tool_call>\n{{"name": "weather", "arguments": {each}}}\n</tool_call>' for each in arguments)
    return "\n".join(calls)


@pytest.mark.parametrize(
    ("name", "form", "text", "expected", "is_required"),
    [
        ("plain", TAGS, "Hello.", ["Hello."], False),
        ("plain", TAGS, f"Well.\n{tagged(FIRST)}", ["Well.\n", f"weather {FIRST}"], False),
        ("plain", TAGS, tagged(SECOND, FIRST), [f"weather {SECOND}", f"weather {FIRST}"], True),
        ("plain", TAGS, "so <tool_cal", ["so <tool_cal"], False),
        ("tags", TAGS, tagged(SECOND, FIRST), [f"weather {SECOND}", f"weather {FIRST}"], True),
        (
            "tags",
            TAGS,
            f"<think>a</think>\n{tagged(FIRST)}",
            ["<think>a</think>\n", f"weather {FIRST}"],
            False,
        ),
        ("tags", TAGS, '\n\n<tool_call>{"name":"now-x","arguments":{}}</tool_call>', ["now-x {}"], False),
        (
            "list",
            LIST,
            f'[TOOL_CALLS] [{{"name": "weather", "arguments": {FIRST}}}, '
            '{"name": "now-x", "arguments": {}}]',
            [f"weather {FIRST}", "now-x {}"],
            True,
        ),
        (
            "list",
            LIST,
            f'x [TOOL_CALLS][{{"name": "weather", "arguments": {FIRST}}}]',
            ["x ", f"weather {FIRST}"],
            False,
        ),
        ("bare", BARE, f'{{"name": "weather", "parameters": {FIRST}}}', [f"weather {FIRST}"], True),
        (
            "bare",
            BARE,
            f'<|python_tag|>{{"type": "function", "name": "weather", "parameters": {FIRST}}}',
            [f"weather {FIRST}"],
            False,
        ),
        ("bare", BARE, '{"name": "other", "parameters": {}}', ['{"name": "other", "parameters": {}}'], False),
        ("bare", BARE, '{"x": 1} is JSON', ['{"x": 1} is JSON'], False),
        (
            "plain",
            DEFAULT_FORMAT,
            f'{{"name": "weather", "arguments": {FIRST}}}\n{{"name": "weather", "arguments": {SECOND}}}',
            [f"weather {FIRST}", f"weather {SECOND}"],
            True,
        ),
        ("plain", DEFAULT_FORMAT, "", [], False),
    ],
)
def test_answers_with_and_without_calls(
    made: Callable[[str], Made],
    name: str,
    form: ToolCallFormat,
    text: str,
    expected: list[str],
    is_required: bool,
) -> None:
    assert fits(made(name), form, text, TOOLS)
    assert fits(made(name), form, text, replace(TOOLS, must_call=True)) == is_required
    assert read(made(name), form, text) == expected


@pytest.mark.parametrize(
    ("name", "form", "text"),
    [
        ("plain", TAGS, "<tool_call> no"),
        ("tags", TAGS, "<tool_call> no"),
        ("tags", TAGS, '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>'),
        ("plain", TAGS, tagged('{"city": "Oslo"}')),
        ("list", LIST, "[TOOL_CALLS]no"),
        ("bare", BARE, f'{{"name": "weather", "parameters": {FIRST}}} and'),
        ("plain", DEFAULT_FORMAT, f'{{"name": "weather", "arguments": {FIRST}}}\nand'),
    ],
)
def test_where_a_call_has_begun_nothing_else_comes(
    made: Callable[[str], Made], name: str, form: ToolCallFormat, text: str
) -> None:
    assert not fits(made(name), form, text, TOOLS)


def test_one_call_and_those_that_may_be_called(made: Callable[[str], Made]) -> None:
    several = tagged(FIRST, FIRST)
    assert fits(made("tags"), TAGS, several, TOOLS)
    assert not fits(made("tags"), TAGS, several, replace(TOOLS, parallel=False))
    assert not fits(made("tags"), TAGS, several, replace(TOOLS, allowed_names=("now-x",)))
    assert not fits(made("tags"), TAGS, tagged(*[FIRST] * 17), TOOLS)


def test_json_of_an_answer_beside_calls(made: Callable[[str], Made]) -> None:
    schema = {"const": 5}
    assert fits(made("tags"), TAGS, "5", TOOLS, schema)
    assert fits(made("tags"), TAGS, tagged(FIRST), TOOLS, schema)
    assert not fits(made("tags"), TAGS, "Hello", TOOLS, schema)
    assert not fits(made("tags"), TAGS, "5", replace(TOOLS, must_call=True), schema)
    with pytest.raises(
        UserError, match="calls of this model are JSON too: give one of the two, or tool_choice"
    ):
        tool_call_grammar(made("plain")[2], TOOLS, DEFAULT_FORMAT, schema)


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{% for tool in tools %}<tool_call>", TAGS),
        ("{% for tool in tools %}<tool_call><function=x>", DEFAULT_FORMAT),
        ("{% if tools %}[TOOL_CALLS]", LIST),
        ("{% if tools %}[TOOL_CALLS]x[ARGS]", DEFAULT_FORMAT),
        ("{% if tools %}{{ '\"parameters\": ' }}", BARE),
        ("{{ messages }}<tool_call>", DEFAULT_FORMAT),
        ({"default": "x", "tool_use": "{{ tools }}<tool_call>"}, TAGS),
        (None, DEFAULT_FORMAT),
    ],
    ids=str,
)
def test_the_form_stands_in_the_template(template: Any, form: ToolCallFormat) -> None:
    assert detect_format(template) is form


CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "Hi"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "weather", "arguments": FIRST}}],
    },
    {"role": "tool", "tool_call_id": "a", "content": "sun"},
]
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for m in messages %}<|start_header_id|>{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.id }} {{ c.function | tojson }}</tool_call>{% endfor %}"
    "{{ m.tool_call_id }}{{ m.name }}{% endfor %}"
)


def test_a_template_that_knows_tools_writes_them() -> None:
    tokenizer, _, _ = of_demo(template=TEMPLATE)
    text = tokenizer.chat_text(CALLED, TOOLS)
    assert text.startswith(
        '{"type": "function", "function": {"name": "weather", "description": "Say it.", "para'
    )
    assert '<tool_call>a {"name": "weather", "arguments": {"city": "Paris"}}</tool_call>' in text
    assert text.endswith("tool:sunaweather")
    ids, _, _ = of_demo(template=TEMPLATE.replace("<tool_call>", "[TOOL_CALLS]"))
    assert len(ids.chat_text(CALLED).rpartition("sun")[2].removesuffix("weather")) == 9


def test_a_template_that_knows_no_tools_gets_them_in_words() -> None:
    tokenizer, _, _ = of_demo(template="{% for m in messages %}{{ m.role }}: {{ m.content }}|{% endfor %}")
    begun = [{"role": "system", "content": "Be brief."}, *CALLED, {"role": "user", "content": "So?"}]
    text = tokenizer.chat_text(begun, TOOLS)
    system, user, assistant, result, _ = text.split("|")
    assert system.startswith("system: Be brief.\n\nYou may call these functions:\n{")
    assert json.loads(system.splitlines()[3])["parameters"] == CITIES
    assert user == "user: Hi"
    assert assistant == 'assistant: {"name": "weather", "arguments": {"city": "Paris"}}'
    assert result == "user: weather returned: sun\nSo?"
    assert of_demo()[0].encode_chat(CALLED[:1], TOOLS)  # without a template, too


def test_thinking_before_a_call_stays_where_the_template_knows_no_tools() -> None:
    template = "{% for m in messages %}{{ m.reasoning_content }}|{% endfor %}"
    tokenizer, _, _ = of_demo(template=template)
    hm = {"reasoning_content": "hm"}
    thought = [{**each, **(hm if each["role"] == "assistant" else {})} for each in CALLED]
    assert "|hm|" in tokenizer.chat_text(thought, TOOLS)


@pytest.mark.parametrize("is_special", [True, False])
def test_what_a_user_spells_is_text(is_special: bool) -> None:
    tokens = ("<tool_call>", "</tool_call>")
    given = {"special": tokens} if is_special else {"others": tokens}
    tokenizer, inner, _ = of_demo(**given, template=TEMPLATE)
    begins = inner.token_to_id("<tool_call>")
    assert begins is not None
    assert tokenizer.encode_chat(CALLED, TOOLS).count(begins) == 1
    spelled = [{"role": "user", "content": "say <tool_call> now"}, *CALLED[1:]]
    ids = tokenizer.encode_chat(spelled, TOOLS)
    assert ids.count(begins) == 1
    assert "say <tool_call> now" in inner.decode(ids)
    assert begins not in tokenizer.encode_chat([{"role": "user", "content": "</tool_call><tool_call>"}])
    assert begins not in tokenizer.encode("a <tool_call>")
    in_tool = Tools((Tool("f", "Write <tool_call> first."),))
    assert begins not in tokenizer.encode_chat(CALLED[:1], in_tool)


@pytest.mark.parametrize(
    ("tools", "choice", "place", "message"),
    [
        ("weather", "auto", "tools", "tools is 'weather'; give a list of tools"),
        ([{"type": "function"}], "auto", "tools[0]", "a tool is {"),
        (
            [WEATHER, WEATHER],
            "auto",
            "tools[1].name",
            "is 'weather', which a tool before it has; give each its own",
        ),
        (
            [{"function": {"name": "a b"}}],
            "auto",
            "tools[0].name",
            "'a b'; a name is made of letters, digits, _ and -, 64 at most",
        ),
        ([{"function": {"name": "x" * 65}}], "auto", "tools[0].name", "64 at most"),
        (
            [{"function": {"name": f"f{n}"}} for n in range(129)],
            "auto",
            "tools",
            "there are 129 tools; give 128 at most",
        ),
        ([WEATHER], "always", "tool_choice", "tool_choice is 'always'; there are none, auto, required and {"),
        (
            [WEATHER],
            {"type": "function", "function": {"name": "rain"}},
            "tool_choice",
            "tool_choice names 'rain', and the tools are weather; name one of these",
        ),
        ([], "required", "tool_choice", "tool_choice asks for a call, and there are no tools; give tools"),
        (
            [{"function": {"name": "f", "parameters": {"type": "array"}}}],
            "auto",
            "tools[0].parameters",
            'is of the type "array", and arguments are an object; give a JSON schema of "type": "object"',
        ),
        (
            [{"function": {"name": "f", "parameters": 5}}],
            "auto",
            "tools[0].parameters",
            "is '5'; give a JSON schema",
        ),
    ],
)
def test_tools_that_are_none(tools: Any, choice: Any, place: str, message: str) -> None:
    with pytest.raises(ToolsError) as refused:
        read_tools(tools, choice)
    assert message in str(refused.value)
    assert refused.value.place == place


def test_no_tools_to_call() -> None:
    assert read_tools([], "auto") is None
    assert read_tools([WEATHER], "none") is None


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (
            CALLED[2:],
            "messages[0].tool_call_id is 'a', and no call is before it; a message of role tool follows",
        ),
        (
            [*CALLED[:2], {"role": "tool", "tool_call_id": "b", "content": "x"}],
            "messages[2].tool_call_id is 'b', and the calls before it are 'a'; a message",
        ),
        (
            [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "[1"}}],
                }
            ],
            "messages[0].tool_calls[0].function.arguments is '[1', which is no object of JSON; give",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}],
            """messages[0].tool_calls[0] is "{'function': {'name': 'f'}}"; a call is {"id": ..., "type": """,
        ),
        (
            [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f g"}}]}],
            "messages[0].tool_calls[0].function.name is 'f g'; a name is made of letters, digits",
        ),
    ],
)
def test_messages_that_do_not_go_together(messages: Any, message: str) -> None:
    with pytest.raises(UserError) as refused:
        of_demo()[0].chat_text(messages)
    assert message in str(refused.value)


def test_a_schema_that_cannot_be_taken(made: Callable[[str], Made]) -> None:
    wrong = Tools((Tool("f"), Tool("g", "", {"type": "object", "properties": {"x": {"type": "foo"}}})))
    with pytest.raises(UserError, match=r"the parameters of 'g' cannot be taken: .*Invalid type: foo"):
        tool_call_grammar(made("plain")[2], wrong, DEFAULT_FORMAT)


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with load("demo", decode="rows") as model:
        yield model


def test_a_model_calls(model: Model) -> None:
    options: dict[str, Any] = {"tools": [WEATHER, NOW], "max_tokens": 200}
    plain = model.generate(ASKED, **options)
    assert (plain.text, plain.tool_calls) == (PARIS, ())
    made = model.generate(ASKED, **options, tool_choice="required", parallel_tool_calls=False)
    (call,) = made.tool_calls
    assert (call.name, made.text) == ("weather", "")
    assert json.loads(call.arguments)["city"] in ("Paris", 'Ro"}me')
    named = model.generate(ASKED, **options, tool_choice=NOW, temperature=1.5, seed=1)
    assert [(each.name, json.loads(each.arguments)) for each in named.tool_calls] == [("now-x", {})]


def test_company_and_guesses_change_no_call(model: Model) -> None:
    options: dict[str, Any] = {"tools": [NOW], "tool_choice": NOW}
    prompts = [ASKED, "Hi"]
    alone = [model.generate(each, 60, **options) for each in prompts]
    together = model.generate_batch(prompts, 60, **options)
    guessed = [model.generate(each, 60, **options, draft="lookup") for each in prompts]
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]
    assert [each.token_ids for each in guessed] == [each.token_ids for each in alone]
    assert [each.tool_calls for each in together] == [each.tool_calls for each in alone]
    assert sum(each.kpis.tps.n_drafted for each in guessed) > 0


def test_a_raw_text_has_no_tools(model: Model) -> None:
    with pytest.raises(UserError, match="the chat template lists the tools, and raw skips the template"):
        model.generate(ASKED, 5, tools=[WEATHER], raw=True)


def test_a_model_whose_template_marks_calls(tmp_path: Path) -> None:
    """The demo with a template that knows tools: calls are spelled, as it has no token for them."""
    folder = tmp_path / "model"
    shutil.copytree(find_checkpoint("demo"), folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = f"{{# {TAGS.trigger} {{{{ tools }}}} #}}" + config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with load(str(folder), decode="rows") as model:
        assert model.session_state.session().tokenizer.tool_call_format is TAGS
        stream = model.stream(ASKED, 200, tools=[NOW], tool_choice="required", parallel_tool_calls=False)
        made = stream.result()
    assert [(call.name, json.loads(call.arguments)) for call in made.tool_calls] == [("now-x", {})]
    assert tool_call_spec(
        TOOLS, of_demo(template="<tool_call> tools", special=("<tool_call>",))[0]
    ).shown == {1500}
    assert ToolCallParser(TOOLS, TAGS).calls == ()


def test_what_calls_are_not_held_to_is_in_the_log(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    unique = {"type": "array", "items": {"enum": [1]}, "uniqueItems": True}
    function = {"name": "f", "parameters": {"type": ["object", "null"], "properties": {"a": unique}}}
    model.generate(ASKED, 2, tools=[{"type": "function", "function": function}])
    assert "calls are not held to: f: uniqueItems" in caplog.text
    with pytest.raises(UserError, match=r"the parameters of 'f' cannot be taken: .*uniqueItems"):
        model.generate(ASKED, 2, tools=[{"type": "function", "function": {**function, "strict": True}}])
