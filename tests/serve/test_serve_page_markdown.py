"""How the chat page reads Markdown, in node."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.serve.scripts import in_node

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
