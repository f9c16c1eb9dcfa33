"""Both pages in Chromium, as a reader has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from aerie.serve.models import ModelManager
from aerie.serve.service import ServedModel
from tests.serve.browsing import (
    ANSWER,
    IN_CHROMIUM,
    PHONE,
    QUESTION,
    answer_with,
    ask,
    is_as_wide_as_its_window,
    new_page,
    running_browser,
    whole,
)
from tests.serve.conftest import opened
from tests.serve.test_serve_npu import OPENED

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here: pip install playwright")
pytestmark = IN_CHROMIUM
NAME = "cached_attn_ar8_cl512"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with running_browser(playwright) as started:
        yield started


@pytest.fixture
def page(browser: Any, serving: Any) -> Iterator[Any]:
    with new_page(browser, serving.url) as page:
        yield page


def back(page: Any) -> str:
    return str(page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor"))


def test_a_chat_is_answered_again_and_kept(page: Any) -> None:
    page.goto("/")
    page.click("#settings")
    page.get_by_label("Temperature").fill("0")
    page.get_by_role("button", name="Done").click()
    ask(page)
    page.get_by_text("of these").wait_for()  # tokens/s too, unless all of them came at once
    answer = page.locator("article").last.locator(".text")
    assert answer.inner_text().strip() == ANSWER
    page.get_by_role("button", name="Regenerate").click()
    page.get_by_role("group", name="Version 2 of 2").wait_for()
    assert answer.inner_text().strip() == ANSWER
    page.get_by_role("button", name="New conversation").click()
    page.reload()
    page.get_by_role("navigation").get_by_role("button", name=QUESTION, exact=True).click()
    assert answer.inner_text().strip() == ANSWER
    page.get_by_role("group", name="Version 2 of 2").wait_for()


def test_settings_are_sent_and_code_is_shown_as_code(page: Any) -> None:
    sent = answer_with(page, whole("See:\n```py\nx = 1 < 2\n```\n"))
    page.goto("/")
    page.click("#settings")
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_text("More about sampling").click()
    page.get_by_label("Seed").fill("7")
    page.get_by_role("button", name="Done").click()
    ask(page)
    page.locator("pre").wait_for()
    assert page.locator("pre").inner_text().strip() == "x = 1 < 2"
    assert sent[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert sent[0]["seed"] == 7
    page.reload()
    assert page.locator("pre").inner_text().strip() == "x = 1 < 2"


def test_escape_stops_an_answer(page: Any) -> None:
    page.route("**/v1/chat/completions", lambda route: None)  # which never comes
    page.goto("/")
    ask(page)
    page.locator("#stop").wait_for(state="visible")
    page.keyboard.press("Escape")
    playwright.expect(page.locator(".end")).to_have_text("You stopped this answer.")
    assert page.locator("#stop").is_hidden()


@pytest.mark.parametrize("path", ["/", "/npu"])
def test_a_phone_and_the_dark(page: Any, path: str) -> None:
    page.set_viewport_size(PHONE)
    page.goto(path)
    if path == "/npu":
        page.locator("#trace:enabled").wait_for()
    assert is_as_wide_as_its_window(page)
    light = back(page)
    page.get_by_role("button", name="Theme").click()
    dark = back(page)
    assert light != dark
    page.reload()
    assert back(page) == dark


def test_the_last_request_its_bytes_and_its_trace(page: Any, serving: Any, tmp_path: Any) -> None:
    asked = {"prompt": [5, 6, 7], "max_tokens": 4, **{**serving.endless, "max_tokens": 4}}
    with serving.http as http:
        assert http.post("/v1/completions", json=asked).status_code == 200
        (name, *_) = [each["name"] for each in http.get("/npu/request").json()["programs"]]
    page.goto("/npu")
    page.locator("#status").get_by_text("Request").wait_for()
    assert "3 tokens" in page.locator("#summary").inner_text()
    runs = page.locator("#runs")
    assert runs.get_by_text("host: the rest").is_visible()
    assert page.get_by_role("heading", name="Static check").count() == 0
    page.get_by_role("button", name="Count the bytes").click()
    page.get_by_role("button", name="Count the bytes").wait_for(state="hidden", timeout=500_000)
    assert "iB" in runs.get_by_role("row").filter(has_text=name).inner_text()
    assert page.get_by_role("group", name="Tiles of the array").get_by_text("MiB").first.is_visible()
    with page.expect_download() as downloaded:
        page.get_by_role("button", name="Download the trace").click()
    kept = tmp_path / "trace.json"
    downloaded.value.save_as(kept)
    assert "passes" in kept.read_text()
    page.select_option("#program", NAME)
    page.get_by_text(f"{NAME}, 1 launch.").wait_for()
    assert page.locator("#request").is_hidden()


def test_a_trace_of_ones_own(page: Any, tmp_path: Any) -> None:
    trace, other = tmp_path / "design.json", tmp_path / "other.json"
    trace.write_text(json.dumps({"traceEvents": OPENED}))
    other.write_text("no trace")
    page.goto("/npu")
    page.locator("#program option").first.wait_for(state="attached")
    page.set_input_files("#own", trace)
    page.get_by_text("design.json: 1 lanes, 1 locks; 1 boxes never ended.").wait_for()
    assert page.locator("#checked").is_hidden()
    page.get_by_role("button", name="3, 1: 0 B in, 64 B out").click()
    assert "tile (3, 1)" in page.locator("#facts").inner_text()
    assert page.locator("#time .unfinished").count() == 1
    page.set_input_files("#own", other)
    page.get_by_text("This file is no trace").wait_for()


def test_tiles_numbers_and_trace_by_keyboard(page: Any, tmp_path: Any) -> None:
    page.goto("/")
    page.get_by_role("link", name="Virtual NPU").press("Enter")
    page.locator("#program option").first.wait_for(state="attached")
    page.select_option("#program", NAME)
    page.get_by_text(f"{NAME}, 1 launch.").wait_for()
    tiles = page.get_by_role("group", name="Tiles of the array").get_by_role("button")
    assert tiles.count() == 8 * 4 + 8 + 1
    page.get_by_role("button", name="core (0, 0): 77.5 KiB in, 4.0 KiB out, 20 transfers").press("Enter")
    assert "28.8 KiB" in page.locator("#facts").inner_text()
    assert page.get_by_text("30464 of 65536").is_visible()
    with page.expect_download() as downloaded:
        page.get_by_role("button", name="Download the trace").press("Enter")
    kept = tmp_path / "trace.json"
    downloaded.value.save_as(kept)
    assert json.loads(kept.read_text())["traceEvents"]


def test_a_choice_of_models(browser: Any, starting_models: Any) -> None:
    serving = starting_models(
        ModelManager([ServedModel(name, partial(opened, name)) for name in ("demo", "demo-drafter")])
    )
    serving.wait_until(lambda: not serving.models.is_starting)
    context = browser.new_context(base_url=serving.url, viewport=PHONE)
    page = context.new_page()
    page.goto("/")
    choice = page.get_by_label("Model", exact=True)
    playwright.expect(choice.locator("option")).to_have_text(["demo", "demo-drafter (unloaded)"])
    assert is_as_wide_as_its_window(page)
    choice.select_option("demo-drafter")
    ask(page)
    page.get_by_text("of these").wait_for()
    page.get_by_role("option", name="demo-drafter", exact=True).wait_for(state="attached")
    assert serving.models.all["demo-drafter"].opened is not None
    page.reload()
    playwright.expect(page.get_by_label("Model", exact=True)).to_have_value("demo-drafter")
    page.click("#list")
    page.click("#npu")
    page.wait_for_url("**/npu?model=demo-drafter")
    page.get_by_role("heading", name="The last request").wait_for()
    context.close()
