"""The chat page: it asks for nothing from elsewhere, and what its script computes."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import aerie.serve.app

PAGE = (Path(aerie.serve.app.__file__).parent / "page.html").read_text(encoding="utf-8")
(SCRIPT,) = re.findall(r"<script>(.*?)</script>", PAGE, re.DOTALL)


def test_the_page_is_served_and_may_fetch_nothing_else(serving: Any, limit: Any) -> None:
    limit(api_key="k")  # which the page asks its reader for
    with serving.http as http:
        response = http.get("/")
    assert (response.status_code, response.text) == (200, PAGE)
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'; connect-src 'self'" in policy
    known = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert policy.endswith(f"script-src 'sha256-{known}'")


def test_the_page_has_no_outside_asset_and_writes_no_html() -> None:
    assert not re.search(r"https?://|\bsrc=|<link|@import|url\(", PAGE)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|\bon\w+=\"", PAGE)


def test_every_control_has_a_name() -> None:
    named = set(re.findall(r'<label for="(\w+)"', PAGE))
    inside = re.findall(
        r"<label>[^<]+<(?:input|textarea|select)[^>]* id=\"(\w+)\"|<label>[^<]+<textarea id=\"(\w+)\"", PAGE
    )
    named |= {one for pair in inside for one in pair if one}
    assert set(re.findall(r"<(?:input|textarea|select)[^>]* id=\"(\w+)\"", PAGE)) == named
    assert all(text.strip() for text in re.findall(r"<button[^>]*>([^<]*)<", PAGE))
    ids = re.findall(r'\bid="(\w+)"', PAGE)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'\$\("(\w+)"\)', SCRIPT)) <= set(ids)


def in_node(expression: str) -> Any:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here")
    text = f"{SCRIPT}\nconsole.log(JSON.stringify({expression}))"
    done = subprocess.run([node, "-"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (
            'parts("a\\n```py\\nx = 1\\n```\\nb")',
            [{"text": "a\n"}, {"code": "x = 1\n", "language": "py"}, {"text": "b"}],
        ),
        ('parts("```\\nopen")', [{"code": "open", "language": ""}]),
        ('parts("plain `x` text")', [{"text": "plain `x` text"}]),
        ('parts("")', []),
        (
            'events("data: {\\"a\\":1}\\n\\n: still at work\\n\\ndata: [DONE]\\n\\ndata: {\\"b\\"")',
            {"made": [{"a": 1}], "rest": 'data: {"b"'},
        ),
        (
            'body({system: "Be brief.", messages: [{role: "user", content: "Hi", figures: "x"}, '
            '{role: "assistant", content: ""}]}, {temperature: "0", seed: "", top_p: "0.5"})',
            {
                "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
                "stream": True,
                "stream_options": {"include_usage": True},
                "temperature": 0,
                "top_p": 0.5,
            },
        ),
        (
            'body({messages: [{role: "user", content: "Hi"}]}, {model: "demo-drafter"})',
            {
                "messages": [{"role": "user", "content": "Hi"}],
                "stream": True,
                "stream_options": {"include_usage": True},
                "model": "demo-drafter",
            },
        ),
        (
            "figures({completion_tokens: 11, prompt_tokens: 70, prompt_tokens_details: {cached_tokens: 64}}, "
            "0, 500)",
            "11 tokens, 20.0 tokens/s; prompt 70, of these 64 cached",
        ),
        (
            "figures({completion_tokens: 1, prompt_tokens: 7}, 5, 5)",
            "1 tokens; prompt 7, of these 0 cached",
        ),
    ],
)
def test_what_the_script_computes(expression: str, expected: Any) -> None:
    assert in_node(expression) == expected


def test_no_write_over_a_conversation_loses_anything() -> None:
    """Whatever tabs write, one after the other: all that was written is in the conversation or a version."""
    chance = random.Random(1)
    texts = ["a", "ab", "abc", "b"]
    runs = [
        [chance.choices(texts, k=chance.randrange(5)) for _ in range(chance.randint(1, 6))]
        for _ in range(1000)
    ]
    made = in_node(
        f"{json.dumps(runs)}.map(writes => writes.reduce((kept, texts) => over("
        '{messages: texts.map(content => ({role: "user", content}))}, kept), null))'
    )
    for writes, kept in zip(runs, made, strict=True):
        there = [[each["content"] for each in one] for one in (kept["messages"], *kept["versions"])]
        assert there[0] == writes[-1]
        for written in writes:
            assert any(_holds(one, written) for one in there), (writes, there)
        assert len(there) <= len(writes)


def _holds(messages: list[str], before: list[str]) -> bool:
    if not before:
        return True
    *whole, last = before
    return messages[: len(whole)] == whole and "".join(messages[len(whole) : len(before)]).startswith(last)
