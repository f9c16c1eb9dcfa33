"""What the scripts of the chat page compute, in node: Markdown, streams, conversations, two tabs."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import aerie.serve.app

FOLDER = Path(aerie.serve.app.__file__).parent / "page"
IMPORTS = f"""
import {{GrowingText, parseBlocks}} from "{FOLDER}/blocks.mjs";
import {{safeUrl}} from "{FOLDER}/inline.mjs";
import * as conversations from "{FOLDER}/conversations.mjs";
import {{Answer, ENDS, events, requestBody, splitThinking}} from "{FOLDER}/answers.mjs";
import {{ConversationStore}} from "{FOLDER}/storage.mjs";
import {{describe}} from "{FOLDER}/server.mjs";
import {{simulation}} from "{Path(__file__).parent}/tabs.mjs";
const nodes = text => parseBlocks(text).map(({{node}}) => node);
function short(node) {{
  if (typeof node === "string") return node;
  if (node.tag === "code-block") return {{[node.tag]: [node.language, node.code]}};
  const href = node.attributes?.href;
  return {{[node.tag]: [...(href ? [`-> ${{href}}`] : []), ...node.children.map(short)]}};
}}
"""


def in_node(expression: str, before: str = "") -> Any:
    """The value of a JavaScript expression."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here")
    text = f"{IMPORTS}\n{before}\nconsole.log(JSON.stringify({expression}) ?? null)"
    command = [node, "--input-type=module", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


MARKDOWN: list[tuple[str, Any]] = [
    (
        "a *b* **c** ~~d~~ `e*f*`",
        [{"p": ["a ", {"em": ["b"]}, " ", {"strong": ["c"]}, " ", {"del": ["d"]}, " "]}],
    ),
    (
        "***x*** snake_case_word 2 * 3 * 4",
        [{"p": [{"em": [{"strong": ["x"]}]}, " snake_case_word 2 * 3 * 4"]}],
    ),
    ("# One #\n###### Six", [{"h3": ["One"]}, {"h6": ["Six"]}]),
    ("Title\n===\ntext\nmore", [{"h3": ["Title"]}, {"p": ["text\nmore"]}]),
    (
        "- a\n- b\n  1. c\n\nend",
        [{"ul": [{"li": ["a"]}, {"li": ["b", {"ol": [{"li": ["c"]}]}]}]}, {"p": ["end"]}],
    ),
    ("1. a\n\n   b\n2. c", [{"ol": [{"li": [{"p": ["a"]}, {"p": ["b"]}]}, {"li": [{"p": ["c"]}]}]}]),
    ("> q\n> - l", [{"blockquote": [{"p": ["q"]}, {"ul": [{"li": ["l"]}]}]}]),
    ("```py title\nx = 1 < 2\n```\nb", [{"code-block": ["py", "x = 1 < 2"]}, {"p": ["b"]}]),
    ("~~~\nopen\n```", [{"code-block": ["", "open\n```"]}]),
    ("a\n***\nb", [{"p": ["a"]}, {"hr": []}, {"p": ["b"]}]),
    (
        "| a | b |\n|--|:-:|\n| `x\\|y` |",
        [
            {
                "table": [
                    {"thead": [{"tr": [{"th": ["a"]}, {"th": ["b"]}]}]},
                    {"tbody": [{"tr": [{"td": [{"code": ["x|y"]}]}, {"td": []}]}]},
                ]
            }
        ],
    ),
    ("In\n1986. It", [{"p": ["In\n1986. It"]}]),
    ("- [x] a", [{"ul": [{"li": ["☑ ", "a"]}]}]),
    ("[a](https://x.y/z_1) <https://b.c> see https://d.e/f_g.", None),
    ("&lt;b&gt; &#65; a<br>b \\*c\\*", [{"p": ["<b> A a\nb *c*"]}]),
    ("", []),
]


def test_markdown_becomes_a_tree() -> None:
    made = in_node(f"{json.dumps([text for text, _ in MARKDOWN])}.map(text => nodes(text).map(short))")
    expected = dict(MARKDOWN)
    expected[MARKDOWN[0][0]][0]["p"].append({"code": ["e*f*"]})
    expected["[a](https://x.y/z_1) <https://b.c> see https://d.e/f_g."] = [
        {
            "p": [
                {"a": ["-> https://x.y/z_1", "a"]},
                " ",
                {"a": ["-> https://b.c/", "https://b.c"]},
                " see ",
                {"a": ["-> https://d.e/f_g", "https://d.e/f_g"]},
                ".",
            ]
        }
    ]
    for (text, _), tree in zip(MARKDOWN, made, strict=True):
        assert tree == expected[text], text


def test_an_address_that_nobody_should_follow_is_text() -> None:
    unsafe = (
        "javascript:alert(1)",
        " java\tscript:alert(1)",
        "JaVaScRiPt:alert(1)",
        "data:text/html,<script>alert(1)</script>",
        "vbscript:x",
        "file:///etc/passwd",
        "//evil.example/x",
        "/relative",
        "blob:https://a/b",
        "https://",
        "x" * 3000,
    )
    assert in_node(f"{json.dumps(unsafe)}.map(safeUrl)") == [None] * len(unsafe)
    assert in_node('nodes("[click](javascript:alert(1))").map(short)') == [
        {"p": ["click (javascript:alert(1))"]}
    ]
    image = "![x](data:image/svg+xml;base64,PHN2Zz4=)"
    made = in_node(f"nodes({json.dumps(image)}).map(short)")
    assert made == [{"p": ["image: x (data:image/svg+xml;base64,PHN2Zz4=)"]}]


PIECES = [
    *(
        "a",
        "b ",
        " ",
        "\n",
        "\n\n",
        "- ",
        "1. ",
        "2. ",
        "# ",
        "> ",
        "```",
        "```py\n",
        "| a | b |\n",
        "|---|---|\n",
    ),
    *("|", "---", "===", "*", "**", "`", "    ", "  ", "[x](http://y.z)", "\t", "~~~\n", "10) ", "<b>", "\\"),
]


def test_a_text_that_grows_is_the_text_that_is_whole() -> None:
    """However a text comes, what is drawn in the end is what the whole text gives."""
    chance = random.Random(1)
    texts = ["".join(chance.choices(PIECES, k=chance.randint(1, 14))) for _ in range(2000)]
    differing = in_node(
        "texts.filter(text => { const growing = new GrowingText();"
        "  for (let i = 1; i <= text.length; i++) growing.update(text.slice(0, i));"
        "  return JSON.stringify(growing.nodes) !== JSON.stringify(nodes(text)); })",
        f"const texts = {json.dumps(texts)};",
    )
    assert differing == []


def test_a_long_answer_is_read_in_time_that_grows_with_it() -> None:
    """Blocks that stand are not read again, and no text makes the reader slow."""
    read = in_node(
        "read",
        "let read = 0;"
        "const text = Array.from({length: 2000}, (_, i) => `Paragraph ${i} is here.`).join('\\n\\n');"
        "const growing = new GrowingText();"
        "for (let i = 20; i <= text.length; i += 20) {"
        "  growing.update(text.slice(0, i)); read += i - growing.settled; }",
    )
    assert read < 60 * 2000 * 30
    hostile = [
        "*a ",
        "*_a ",
        "[",
        "![](",
        "`",
        '[a](b "',
        "> ",
        "- ",
        "|",
        "<",
        "&",
        "~~",
        "# ",
        "1. a\n",
        "|-|\n",
    ]
    slowest_ms = in_node(
        "Math.max(...hostile.map(each => { const text = each.repeat(5000), begun = performance.now();"
        "  nodes(text); return performance.now() - begun; }))",
        f"const hostile = {json.dumps(hostile)};",
    )
    assert slowest_ms < 5000  # a quadratic reader takes minutes


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (
            'events("data: {\\"a\\":1}\\n\\n: still at work\\n\\ndata: [DONE]\\n\\ndata: {\\"b\\"")',
            {"made": [{"a": 1}, {"done": True}], "rest": 'data: {"b"'},
        ),
        (
            'requestBody([{role: "user", content: "Hi", figures: "x"}, {role: "assistant", content: ""}], '
            '"Be brief.", {temperature: "0", seed: "", top_p: "0.5", thinking: "off", model: "demo"})',
            {
                "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
                "stream": True,
                "stream_options": {"include_usage": True},
                "return_progress": True,
                "temperature": 0,
                "top_p": 0.5,
                "model": "demo",
                "chat_template_kwargs": {"enable_thinking": False},
            },
        ),
        (
            'requestBody([{role: "assistant", content: "Once"}], "", {}, true)',
            {
                "messages": [{"role": "assistant", "content": "Once"}],
                "stream": True,
                "stream_options": {"include_usage": True},
                "return_progress": True,
                "continue_final_message": True,
            },
        ),
        ('splitThinking("<think>\\nso\\n</think>\\n\\nyes")', {"reasoning": "so", "content": "yes"}),
        ('splitThinking("<think>so</thi")', {"reasoning": "so", "content": ""}),
        ('splitThinking("so\\n</think>\\nyes")', {"reasoning": "so", "content": "yes"}),
        ('splitThinking("<th")', {"reasoning": "", "content": ""}),
        ('splitThinking("<th", true)', {"reasoning": "", "content": "<th"}),
        (
            'splitThinking("The mark </think> ends it.")',
            {"reasoning": "", "content": "The mark </think> ends it."},
        ),
    ],
)
def test_what_is_sent_and_what_comes(expression: str, expected: Any) -> None:
    assert in_node(expression) == expected


def test_an_answer_is_put_together() -> None:
    before = """
    const answer = new Answer();
    const delta = fields => ({choices: [{delta: fields}]});
    answer.take({choices: [], prompt_progress: {processed: 4, total: 8}}, 0);
    answer.take(delta({role: "assistant", content: ""}), 500);
    answer.take(delta({reasoning_content: "Hm."}), 1000);
    answer.take(delta({content: "Yes"}), 3000);
    answer.take(delta({content: "."}), 3500);
    answer.take({choices: [{delta: {}, finish_reason: "length"}]}, 3500);
    answer.take({choices: [], usage: {prompt_tokens: 70, completion_tokens: 11, total_tokens: 81,
      prompt_tokens_details: {cached_tokens: 64}}}, 3500);
    const figures = [answer.figures()];
    answer.take({choices: [], timings: {predicted_per_second: 9.5}}, 3500);
    figures.push(answer.figures());
    const failed = new Answer();
    let error = null;
    try { failed.take({error: {message: "no room", code: "no_room"}}, 0); } catch (raised) { error = raised; }
    """
    made = in_node(
        "{parts: answer.parts, seconds: answer.thoughtSeconds(9999), figures, "
        "at: answer.progress, "
        "ends: [answer.end(4096), answer.end(81), answer.end(), failed.end()], "
        "error: [error.message, error.isPassing, error.isLost], "
        "known: [answer.end(81), failed.end()].map(end => ENDS[end])}",
        before,
    )
    assert made == {
        "parts": {"reasoning": "Hm.", "content": "Yes."},
        "seconds": 2,
        "figures": [f"11 tokens, {rate} tokens/s; prompt 70, of these 64 cached" for rate in ("4.0", "9.5")],
        "at": {"processed": 4, "total": 8},
        "ends": ["length", "context", "length", "lost"],
        "error": ["no room", True, False],
        "known": [
            "Cut: the context of the model is full. Begin a new conversation, or edit an earlier message.",
            "Cut: the connection to the server was lost.",
        ],
    }


@pytest.mark.parametrize(
    ("health", "text"),
    [
        (
            None,
            "The server does not answer. If it was stopped, start it again with aerie serve: this page",
        ),
        ({"models": {"demo": "loaded"}}, ""),
        (
            {"models": {"demo": "loading"}, "error": {"message": "x", "code": "loading"}},
            "demo is being loaded.",
        ),
        (
            {
                "models": {"demo": "loading"},
                "progress": {"demo": {"title": "compiling", "done": 3, "total": 12, "what": "o_ffn_ar8"}},
            },
            "demo: compiling, 3 of 12 (o_ffn_ar8)",
        ),
        ({"models": {"demo": "waiting"}}, "demo waits until other models leave enough memory."),
        (
            {"error": {"message": "the server is stopping; use another one"}},
            "The server says: the server is stopping",
        ),
    ],
)
def test_what_the_server_does_is_told_in_words(health: Any, text: str) -> None:
    assert in_node(f"describe({json.dumps(health)}).text").startswith(text)


def test_versions_of_a_question_and_of_an_answer() -> None:
    before = """
    const {append, choose, newConversation, path, versions, toMarkdown} = conversations;
    const talk = newConversation();
    const question = append(talk, null, {role: "user", content: "One?"});
    const first = append(talk, question.id, {role: "assistant", content: "1", end: "stop"});
    const next = append(talk, first.id, {role: "user", content: "And two?"});
    const second = append(talk, question.id, {role: "assistant", content: "2", made: Date.now() + 1});
    const contents = () => path(talk).map(each => each.content);
    const shown = [contents()];
    choose(talk, first); shown.push(contents());
    choose(talk, second); shown.push(contents());
    """
    made = in_node("{shown, all: versions(talk, first).map(each => each.content), title: talk.title}", before)
    assert made == {
        "shown": [["One?", "2"], ["One?", "1", "And two?"], ["One?", "2"]],
        "all": ["1", "2"],
        "title": "One?",
    }


def test_what_a_file_says_is_data() -> None:
    """Whatever is imported: each message can be reached, and nothing is of a wrong type."""
    hostile = [
        {
            "messages": [
                {"id": "a", "parent": "b", "role": "user", "content": "x"},
                {"id": "b", "parent": "a"},
            ]
        },
        {
            "id": "__proto__",
            "title": 7,
            "system": None,
            "leaf": "none",
            "messages": [
                {"id": "a", "parent": "b", "role": "user", "content": "1"},
                {
                    "id": "b",
                    "parent": "a",
                    "role": "assistant",
                    "content": "2",
                    "figures": {},
                    "thought": "3",
                },
                {"id": "c", "parent": "gone", "role": "user", "content": "3", "made": "x"},
                {"id": "d", "parent": "d", "role": "user", "content": "4"},
                {"id": "<x>", "parent": None, "role": "user", "content": "5"},
                {"id": "e", "parent": None, "role": "system", "content": "6"},
                None,
                7,
            ],
        },
    ]
    made = in_node(f"{json.dumps(hostile)}.map(conversations.fromJson)")
    assert [(each["id"], each["parent"]) for each in made[0]["messages"]] == [("a", None)]
    assert [(each["id"], each["parent"]) for each in made[1]["messages"]] == [
        *(("a", None), ("b", "a"), ("c", None), ("d", None))
    ]
    assert made[1]["title"] == "New conversation"
    assert made[1]["leaf"] == "d"
    assert "figures" not in made[1]["messages"][1]
    assert in_node("[null, 7, {}, {messages: 7}].map(conversations.fromJson)") == [None] * 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "The file is no JSON. Import takes what Export as JSON wrote."),
        ("{}", "The file has no conversations. Import takes what Export as JSON wrote."),
        ("[]", "The file has no conversations. Import takes what Export as JSON wrote."),
        ('{"conversations": []}', "The file has no conversations. Import takes what Export as JSON wrote."),
    ],
)
def test_a_file_that_is_no_export(text: str, message: str) -> None:
    before = (
        f"let told = null; try {{ conversations.fromFile({json.dumps(text)}); }} "
        "catch (error) { told = error.message; }"
    )
    assert in_node("told", before) == message


def test_conversations_of_the_older_form_are_read() -> None:
    """Lists of messages, and lists that were written over: each list is a path of the tree."""
    one, two = (
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello", "figures": "3 tokens"},
    )
    other = {"role": "assistant", "content": "Good day", "wrong": "it broke"}
    old = {
        "id": "5-x",
        "title": "Hi",
        "system": "",
        "messages": [one, two],
        "versions": [[one, other], [one]],
    }
    made = in_node(
        "{shown: conversations.path(talk), all: conversations.versions(talk, conversations.path(talk)[1])}",
        f"const talk = conversations.fromJson({json.dumps(old)});",
    )
    assert [each["content"] for each in made["shown"]] == ["Hi", "Hello"]
    assert [(each["content"], each["end"], each.get("note")) for each in made["all"]] == [
        ("Good day", "error", "it broke"),
        ("Hello", "stop", None),
    ]


def test_no_turn_of_any_tab_is_lost() -> None:
    """Three tabs write one conversation, and their writes pass each other: in the end all have every turn."""
    played = in_node("Array.from({length: 30}, simulation(conversations, ConversationStore))")
    assert max(each["rounds"] for each in played) < 10000
    assert [each["lost"] for each in played] == [[]] * 30


def test_a_write_keeps_what_is_stored() -> None:
    """Also where the event of another tab's write has not come yet."""
    before = """
    const kept = Object.create({
      getItem(name) { return this[name] ?? null; }, setItem(name, text) { this[name] = text; },
    });
    const one = new ConversationStore(kept), talk = conversations.newConversation();
    conversations.append(talk, null, {role: "user", content: "Hi"});
    one.save(talk);
    const two = new ConversationStore(kept), same = two.all.get(talk.id);
    conversations.append(talk, talk.leaf, {role: "assistant", content: "From one", end: "stop"});
    conversations.append(same, same.leaf, {role: "assistant", content: "From two", end: "stop"});
    one.save(talk);
    two.save(same);
    """
    assert in_node("same.messages.map(each => each.content).sort()", before) == ["From one", "From two", "Hi"]


def test_a_full_storage_is_told_and_keeps_what_it_has() -> None:
    before = """
    const kept = Object.create({
      getItem(name) { return this[name] ?? null; },
      setItem(name, text) { if (text.length > 2000) throw new Error("full"); this[name] = text; },
      removeItem(name) { delete this[name]; },
    });
    const told = [], store = new ConversationStore(kept, full => told.push(full));
    const talk = conversations.newConversation(), other = conversations.newConversation();
    conversations.append(talk, null, {role: "user", content: "short"});
    store.save(talk);
    const before = kept[Object.keys(kept)[0]];
    conversations.append(talk, talk.leaf, {role: "assistant", content: "x".repeat(3000), end: "stop"});
    const fits = [store.save(talk), store.save(other)];
    const same = kept[`aerie.conversation.${talk.id}`] === before;
    store.remove(talk);
    """
    made = in_node("{told, fits, same, left: [...store.all.keys()].length}", before)
    assert made == {"told": [False, True, True, False], "fits": [False, True], "same": True, "left": 1}


def test_an_import_adds_only_what_is_missing() -> None:
    before = """
    const kept = Object.create({
      getItem(name) { return this[name] ?? null; }, setItem(name, text) { this[name] = text; },
    });
    const store = new ConversationStore(kept), talk = conversations.newConversation();
    conversations.append(talk, null, {role: "user", content: "Hi"});
    store.save(talk);
    const file = conversations.toFile([talk]);
    const reply = {role: "assistant", content: "Hello", reasoning: "Greet.", end: "stop"};
    conversations.append(talk, talk.leaf, reply);
    store.save(talk);
    const added = [store.add(conversations.fromFile(file)), store.add(conversations.fromFile(file))];
    """
    made = in_node(
        "{added, count: talk.messages.length, markdown: conversations.toMarkdown(talk), "
        "name: conversations.fileName('Café, what?', 'md')}",
        before,
    )
    markdown = "# Hi\n\n## You\n\nHi\n\n## Model\n\n> Greet.\n\nHello\n"
    assert made == {"added": [0, 0], "count": 2, "markdown": markdown, "name": "cafe-what.md"}
