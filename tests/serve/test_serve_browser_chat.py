"""The chat page in Chromium: hostile answers, versions, two tabs, cut answers, a dead server, files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.browsing import (
    IN_CHROMIUM,
    PHONE,
    answer_with,
    ask,
    ended,
    is_as_wide_as_its_window,
    new_page,
    piece,
    running_browser,
    stream_text,
    whole,
)

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here: pip install playwright")
pytestmark = IN_CHROMIUM
expect = playwright.expect


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with running_browser(playwright) as started:
        yield started


@pytest.fixture
def page(browser: Any, serving: Any) -> Iterator[Any]:
    with new_page(browser, serving.url, permissions=["clipboard-read", "clipboard-write"]) as page:
        yield page


HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)><a xlink:href='javascript:alert(1)'><text y=9>x</text></a></svg>",
    "<iframe srcdoc='<script>parent.alert(1)</script>'></iframe>",
    "<math><mtext><style><img src onerror=alert(1)></style></mtext></math>",
    "[click](javascript:alert(1))",
    "[click](<javascript:alert(1)>)",
    "[click](JaVa\tScRiPt:alert(1))",
    "[click](&#106;avascript:alert(1))",
    "[click](data:text/html,<script>alert(1)</script>)",
    "![x](javascript:alert(1))",
    "![x](https://evil.example/pixel.png)",
    '<https://evil.example/"onmouseover=alert(1)>',
    '[a](https://evil.example/"onmouseover="alert(1))',
    "[a](https://evil.example 'x\" onmouseover=\"alert(1)')",
    "```<img/src=x/onerror=alert(1)>\n</code></pre><script>alert(1)</script>\n```",
    "`</code><script>alert(1)</script>`",
    "| <img src=x onerror=alert(1)> |\n|---|\n| <script>alert(1)</script> |",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "# <style>* { display: none }</style>",
    "<form action=https://evil.example><input name=q><button>Go</button></form>",
    "<meta http-equiv=refresh content='0; url=https://evil.example'>",
    "<base href=https://evil.example>",
    "\u202e\u0000<scr\u0000ipt>alert(1)</script>",
)
DRAWN = """text => ({
  tags: [...text.querySelectorAll("*")].map(each => each.localName),
  attributes: [...text.querySelectorAll("*")].flatMap(each => [...each.attributes].map(one => one.name)),
  links: [...text.querySelectorAll("a")].map(each => each.protocol),
})"""
TAGS = {
    *("h2", "h3", "p", "code", "pre", "div", "span", "button", "a", "details", "summary", "em"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}
ATTRIBUTES = {
    *("class", "href", "target", "rel", "tabindex", "type", "title", "role", "aria-label", "aria-level"),
    *("hidden", "aria-busy", "disabled", "open"),
}


def hostile_conversation() -> dict[str, Any]:
    """A conversation whose every text is hostile, as the storage has it."""
    messages: list[dict[str, Any]] = []
    for number, text in enumerate(HOSTILE):
        shared = {
            "content": text,
            "made": number,
            "note": text,
            "figures": text,
            "model": text,
            "reasoning": text,
        }
        for role in ("user", "assistant"):
            parent = messages[-1]["id"] if messages else None
            message_id = f"{role}-{number}"
            messages.append({"id": message_id, "parent": parent, "role": role, "end": "error", **shared})
    title, leaf = HOSTILE[1], messages[-1]["id"]
    return {"id": "1-x", "title": title, "system": title, "changed": 1, "leaf": leaf, "messages": messages}


def test_no_answer_becomes_more_than_text(page: Any) -> None:
    """None of the elements, attributes or addresses that hostile texts carry is on the page, wherever they
    stand: in answers, thinking, questions, titles, notes, names of languages; stored or streamed."""
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    everything = "\n\n".join(HOSTILE)
    answer_with(
        page, stream_text(piece(reasoning_content=everything), piece(content=everything), *ended("stop"))
    )
    page.goto("/")
    stored = json.dumps(hostile_conversation())
    page.evaluate("text => localStorage.setItem('aerie.conversation.1-x', text)", stored)
    page.reload()
    expect(page.locator("article")).to_have_count(2 * len(HOSTILE))
    ask(page, everything.replace("\x00", ""))
    expect(page.locator("article.assistant .figures").last).to_contain_text("tokens")
    for drawn in page.locator("article").evaluate_all(f"articles => articles.map({DRAWN})"):
        assert {*drawn["tags"]} <= TAGS
        assert {*drawn["attributes"]} <= ATTRIBUTES
        assert {*drawn["links"]} <= {"https:"}
    first = page.locator("article.assistant").first
    assert first.locator(".text").inner_text() == first.locator(".end").inner_text() == HOSTILE[0]
    assert page.locator("#conversations .open").inner_text() == HOSTILE[1]
    assert {url.removeprefix(page.url).split("?")[0].split("/")[0] for url in requested} <= {
        *("", "page", "health", "props", "v1"),
    }


def test_the_browser_itself_refuses_html(browser: Any, serving: Any) -> None:
    """Whatever a script of the page would write as HTML, its policy forbids."""
    context = browser.new_context(base_url=serving.url)
    page = context.new_page()
    page.goto("/")
    write = """() => { try { document.body.innerHTML = "<b>x</b>"; return "written"; }
      catch (error) { return error.name; } }"""
    assert page.evaluate(write) == "TypeError"
    page.goto("/npu")  # whose script makes elements too, without Trusted Types
    assert page.evaluate(write) == "written"
    context.close()


def test_an_edit_and_another_answer_are_versions(page: Any) -> None:
    sent = answer_with(page, *map(whole, ("One.", "Two.", "Three.", "Four.")))
    page.goto("/")
    answer = page.locator("article.assistant .text").first
    ask(page, "First?")
    expect(answer).to_have_text("One.")
    page.get_by_role("button", name="Regenerate").click()
    expect(answer).to_have_text("Two.")
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Edit your message").fill("Second?")
    page.get_by_label("Edit your message").press("Enter")
    expect(answer).to_have_text("Three.")
    assert sent[2]["messages"] == [{"role": "user", "content": "Second?"}]
    question = page.locator("article.user")
    question.get_by_role("button", name="Earlier version").click()
    expect(answer).to_have_text("Two.")
    expect(question.get_by_role("group")).to_have_attribute("aria-label", "Version 1 of 2")
    expect(question.get_by_role("button", name="Later version")).to_be_focused()
    page.locator("article.assistant").get_by_role("button", name="Earlier version").click()
    expect(answer).to_have_text("One.")
    page.reload()
    expect(answer).to_have_text("One.")
    page.locator("article.user").get_by_role("button", name="Later version").click()
    expect(answer).to_have_text("Three.")


def test_two_tabs_are_put_together(page: Any) -> None:
    """Two tabs go on with the same conversation: each sees the other's turns, and none is lost."""
    page.goto("/")
    answer_with(page, whole("One."), whole("From the first tab."))
    ask(page, "First?")
    expect(page.locator("article.assistant .text")).to_have_text("One.")
    other = page.context.new_page()
    answer_with(other, whole("From the second tab."))
    other.goto("/")
    expect(other.locator("article.assistant .text")).to_have_text("One.")
    ask(other, "Second?")
    expect(page.locator("article.assistant .text").last).to_have_text("From the second tab.")
    page.get_by_role("button", name="Edit").last.click()
    page.get_by_label("Edit your message").fill("Other?")
    page.get_by_label("Edit your message").press("Enter")
    expect(page.locator("article.assistant .text").last).to_have_text("From the first tab.")
    expect(other.get_by_role("group", name="Version 1 of 2")).to_be_visible()
    for each in (page, other):
        each.reload()
        assert each.locator("article").count() == 4
    other.get_by_role("button", name="Delete First?").click()
    expect(page.locator("article")).to_have_count(0)
    other.get_by_role("button", name="Undo").click()
    expect(page.locator("#conversations")).to_contain_text("First?")


CUTS = [
    (stream_text(piece(content="So"), *ended("length")), "Cut: the answer has as many tokens", True),
    (
        stream_text(piece(content="So"), *ended("length", 10**6)),
        "Cut: the context of the model is full.",
        False,
    ),
    (stream_text(piece(content="So"), done=False), "Cut: the connection to the server was lost.", True),
    (
        stream_text(piece(content="So"), {"error": {"message": "the server was stopped", "code": "stopped"}}),
        "the server was stopped",
        False,
    ),
]


@pytest.mark.parametrize(("stream", "note", "goes_on"), CUTS)
def test_a_cut_answer_says_so_and_goes_on(page: Any, stream: str, note: str, goes_on: bool) -> None:
    sent = answer_with(page, stream, whole(" it was."))
    page.goto("/")
    expect(page.locator("#model")).to_have_text("demo")  # and its context is known
    ask(page)
    expect(page.locator(".end")).to_contain_text(note)
    expect(page.locator("#status")).to_contain_text(note)
    more = page.get_by_role("button", name="Continue")
    assert more.count() == goes_on
    if goes_on:
        more.click()
        expect(page.locator("article.assistant .text")).to_have_text("So it was.")
        assert sent[1]["continue_final_message"] is True
        assert sent[1]["messages"][-1] == {"role": "assistant", "content": "So"}
        expect(page.get_by_role("group", name="Version 2 of 2")).to_be_visible()


def test_a_refusal_is_shown_and_a_full_queue_is_tried_again(page: Any) -> None:
    def refusal(status: int, message: str, code: str) -> Any:
        body = json.dumps({"error": {"message": message, "code": code}})
        return lambda route: route.fulfill(status=status, body=body, headers={"Retry-After": "1"})

    busy = refusal(429, "64 answers run or wait, and 64 is the limit; try again in 1 s", "queue_full")
    long = refusal(400, "the prompt has 5000 tokens, and 4096 is the limit", "context_length_exceeded")
    sent = answer_with(page, busy, whole("At last."), long)
    page.goto("/")
    ask(page)
    progress = "The question is sent again in 1 s. The server says: 64 answers run or wait"
    expect(page.locator(".pending")).to_contain_text(progress)
    expect(page.locator("article.assistant .text")).to_have_text("At last.")
    ask(page)
    expect(page.locator(".end.wrong")).to_have_text("the prompt has 5000 tokens, and 4096 is the limit")
    assert len(sent) == 3


def test_a_dead_server_is_reported_and_comes_back(page: Any, serving: Any) -> None:
    page.goto("/")
    expect(page.locator("#model")).to_have_text("demo")
    page.context.set_offline(True)
    ask(page)
    expect(page.locator("#server")).to_contain_text("The server does not answer.")
    expect(page.locator(".pending")).to_contain_text("The question is sent again when it is back.")
    page.context.set_offline(False)
    expect(page.locator("article.assistant .text")).to_contain_text("Paris")
    expect(page.locator("#server")).to_be_hidden()


def test_a_page_that_is_closed_keeps_what_has_come(page: Any, serving: Any) -> None:
    page.goto("/")
    page.evaluate(
        f"localStorage.setItem('aerie.settings', '{json.dumps({'temperature': '1.5', 'max_tokens': 400})}')"
    )
    page.reload()
    page.route("**/v1/chat/completions", lambda route: _with_bias(route, serving.endless["logit_bias"]))
    ask(page)
    expect(page.locator("article.assistant .text")).to_contain_text(re.compile(".{10}", re.DOTALL))
    page.reload()
    expect(page.locator(".end")).to_have_text("Cut: the page was closed before the answer was complete.")
    assert len(page.locator("article.assistant .text").inner_text()) > 5
    serving.wait_until(lambda: serving.running() == 0)


def _with_bias(route: Any, bias: Any) -> None:
    """Let the answer have no end token."""
    route.continue_(post_data=json.dumps({**json.loads(route.request.post_data), "logit_bias": bias}))


def test_thinking_is_folded(page: Any) -> None:
    asked = stream_text(
        piece(reasoning_content="Hm, "), piece(reasoning_content="so."), piece(content="Yes."), *ended("stop")
    )
    tagged = whole("<think>\nOr so.\n</think>\n\nNo.")
    sent = answer_with(page, asked, tagged)
    template = json.dumps({"chat_template": "{% if enable_thinking %}"})
    page.route("**/props?model=demo", lambda route: route.fulfill(body=template))
    page.goto("/")
    expect(page.locator("#model")).to_have_text("demo")
    page.click("#settings")
    page.get_by_label("Thinking before the answer").select_option("Off")
    page.get_by_role("button", name="Done").click()
    ask(page)
    ask_again = page.get_by_role("button", name="Regenerate")
    thinking, text = page.locator(".thinking"), page.locator("article.assistant .text")
    expect(text).to_have_text("Yes.")
    expect(thinking.locator("summary")).to_have_text("Thought for less than a second")
    expect(thinking.locator("div")).to_be_hidden()
    thinking.locator("summary").press("Enter")
    expect(thinking.locator("div")).to_have_text("Hm, so.")
    ask_again.click()
    expect(text).to_have_text("No.")
    expect(page.locator(".thinking div")).to_have_text("Or so.")
    assert [each["chat_template_kwargs"] for each in sent] == [{"enable_thinking": False}] * 2


def test_a_key_is_asked_for(page: Any, limit: Any) -> None:
    limit(api_key="k")
    answered: list[int] = []
    page.on(
        "response", lambda response: answered.append(response.status) if "/chat/" in response.url else None
    )
    page.goto("/")
    expect(page.locator("#notice")).to_contain_text("The server asks for an API key.")
    ask(page)
    expect(page.locator(".end.wrong")).to_contain_text("there is no API key")
    page.locator("#notice").get_by_role("button", name="Settings").click()
    page.get_by_label("API key").fill("k")
    page.get_by_role("button", name="Done").click()
    expect(page.locator("#notice")).to_be_hidden()
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("article.assistant .figures")).to_contain_text("tokens")
    assert answered == [401, 200]


def test_loading_is_shown_with_progress(page: Any) -> None:
    progress = {"title": "compiling", "done": 3, "total": 12, "what": "o_ffn_ar8"}
    error = {"message": "the model 'demo' is being loaded; try again", "code": "loading"}
    loading = {"error": error, "models": {"demo": "loading"}, "progress": {"demo": progress}}
    page.route("**/health", lambda route: route.fulfill(status=503, body=json.dumps(loading)))
    page.goto("/")
    expect(page.locator("#server")).to_have_text("demo: compiling, 3 of 12 (o_ffn_ar8)")
    assert page.locator("#server-progress").evaluate("bar => bar.value / bar.max") == 0.25
    refused = {"status": 503, "body": json.dumps(loading), "headers": {"Retry-After": "1"}}
    answer_with(page, lambda route: route.fulfill(**refused), whole("Here."))
    ask(page)
    expect(page.locator(".pending")).to_have_text("The model is being loaded. The question waits for it.")
    expect(page.locator("article.assistant .text")).to_have_text("Here.")
    page.unroute("**/health")
    expect(page.locator("#server")).to_be_hidden()


def test_conversations_go_to_a_file_and_back(page: Any, tmp_path: Path) -> None:
    answer_with(page, whole("**One.**"), whole("Two."))
    page.goto("/")
    ask(page, "First?")
    expect(page.locator("article.assistant .text")).to_have_text("One.")
    page.get_by_role("button", name="Copy this answer").click()
    assert page.evaluate("navigator.clipboard.readText()") == "**One.**"
    page.get_by_role("button", name="Regenerate").click()
    page.get_by_role("group", name="Version 2 of 2").wait_for()
    page.get_by_text("Export and import").click()
    with page.expect_download() as markdown:
        page.get_by_role("button", name="Conversation as Markdown").click()
    assert markdown.value.suggested_filename == "first.md"
    assert Path(markdown.value.path()).read_text() == "# First?\n\n## You\n\nFirst?\n\n## Model\n\nTwo.\n"
    with page.expect_download() as exported:
        page.get_by_role("button", name="All conversations as JSON").click()
    file = tmp_path / "all.json"
    exported.value.save_as(file)
    page.evaluate("localStorage.clear()")
    page.reload()
    assert page.locator("article").count() == 0
    page.set_input_files("#import", file)
    expect(page.locator("#notice")).to_contain_text("Imported: 1 new, 0 that were here already.")
    expect(page.locator("article.assistant .text")).to_have_text("Two.")
    page.get_by_role("button", name="Earlier version").click()
    expect(page.locator("article.assistant .text strong")).to_have_text("One.")
    file.write_text("{}")
    page.set_input_files("#import", file)
    expect(page.locator("#notice")).to_contain_text("The file has no conversations.")


FILL = """() => {
  for (let more = 2 ** 23; more >= 1; more = Math.floor(more / 2)) {
    try { localStorage.setItem(`full.${more}`, "x".repeat(more)); } catch { continue; }
  }
}"""
"""Leaves room for a few characters at most."""


def test_a_full_storage_is_reported(page: Any) -> None:
    answer_with(page, whole("It is kept here."))
    page.goto("/")
    page.evaluate(FILL)
    ask(page)
    expect(page.locator("article.assistant .text")).to_have_text("It is kept here.")
    expect(page.locator("#notice")).to_contain_text("This browser's storage is full.")
    page.evaluate(
        "Object.keys(localStorage).filter(name => /^full/.test(name)).map(name => delete localStorage[name])"
    )
    ask(page)
    expect(page.locator("article")).to_have_count(4)
    page.reload()
    expect(page.locator("article")).to_have_count(4)


WIDE = "\n\n".join(
    (
        "| " + " | ".join(f"a long heading {i}" for i in range(12)) + " |\n" + "|---" * 12 + "|",
        "```\n" + "wide " * 80 + "\n```",
        "w" * 300,
        "[" + "l" * 200 + "](https://example.org/" + "p" * 200 + ")",
        "`" + "c" * 300 + "`",
        "- " * 10 + "deep",
        "> " * 10 + "q" * 100,
    )
)


def test_nothing_is_wider_than_a_phone(page: Any) -> None:
    answer_with(page, whole(WIDE))
    page.set_viewport_size(PHONE)
    page.goto("/")
    ask(page, "q" * 300)
    page.locator(".table").wait_for()
    log = page.locator("#log")
    assert is_as_wide_as_its_window(page)
    assert log.evaluate("log => log.scrollWidth <= log.clientWidth")
    for control in ("#list", "#settings"):
        page.click(control)
        assert is_as_wide_as_its_window(page)
    page.keyboard.press("Escape")


def test_an_answer_that_grows_leaves_what_stands(page: Any) -> None:
    """Elements of an answer stay the same while it grows: a selection and an open block stay with them."""
    page.goto("/")
    grown = page.evaluate(
        """async () => {
          const {MarkdownView} = await import("/page/dom.mjs");
          const element = document.createElement("div"), view = new MarkdownView(element);
          const text = "First *one*.\\n\\n```\\ncode\\nmore\\n```\\n\\n- a\\n- b\\n\\nLast.";
          view.update(text.slice(0, 24));
          const [paragraph, block] = element.children, code = block.querySelector("code").firstChild;
          for (let i = 25; i <= text.length; i++) view.update(text.slice(0, i));
          return [paragraph === element.children[0], block === element.children[1],
            code === block.querySelector("code").firstChild, element.children.length];
        }"""
    )
    assert grown == [True, True, True, 4]
