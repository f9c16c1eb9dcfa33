"""What the tests of the pages in Chromium share."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
IN_CHROMIUM = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
]
PHONE = {"width": 390, "height": 800}
PATIENCE_MS = 120_000
"""How long a page may take on a busy machine for what it shows at once on an idle one."""
QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."


@contextmanager
def running_browser(playwright: Any) -> Iterator[Any]:
    playwright.expect.set_options(timeout=PATIENCE_MS)
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def new_page(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    """A page of a browser that keeps nothing from before. A script that fails, or that the page's policy
    refuses, fails the test."""
    context, wrong = browser.new_context(base_url=url, color_scheme="light", **options), []
    context.set_default_timeout(PATIENCE_MS)

    def watch(page: Any) -> None:
        page.on("pageerror", lambda error: wrong.append(error))
        page.on(
            "console",
            lambda message: wrong.append(message.text) if "Security Policy" in message.text else None,
        )

    context.on("page", watch)
    yield context.new_page()
    context.close()
    assert not wrong


def ask(page: Any, question: str = QUESTION) -> None:
    page.fill("#text", question)
    page.press("#text", "Enter")


def is_as_wide_as_its_window(page: Any) -> bool:
    return bool(page.locator("html").evaluate("html => html.scrollWidth <= html.clientWidth"))


def piece(**delta: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def ended(reason: str, total_tokens: int = 12) -> list[dict[str, Any]]:
    usage = {"prompt_tokens": 2, "completion_tokens": total_tokens - 2, "total_tokens": total_tokens}
    return [
        {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
        {"choices": [], "usage": usage},
    ]


def stream_text(*events: Any, done: bool = True) -> str:
    text = "".join(f"data: {json.dumps(each)}\n\n" for each in events)
    return text + ("data: [DONE]\n\n" if done else "")


def answer_with(page: Any, *answers: str | Callable[[Any], None]) -> list[Any]:
    """Let the page's questions be answered with these texts of a stream, the last one again and again.
    Returns the bodies of the requests."""
    sent: list[Any] = []

    def answered(route: Any) -> None:
        answer = answers[min(len(sent), len(answers) - 1)]
        sent.append(json.loads(route.request.post_data))
        if isinstance(answer, str):
            route.fulfill(body=answer, content_type="text/event-stream")
        else:
            answer(route)

    page.route("**/v1/chat/completions", answered)
    return sent


def whole(text: str) -> str:
    """The stream of an answer that is complete."""
    return stream_text(piece(content=text), *ended("stop"))
