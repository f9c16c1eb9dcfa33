"""The chat page as it is served: its files, their types, and what the browser may do with them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import aerie.serve.app
from aerie.engine.reporter import Reporter
from aerie.serve.load_progress import Progress, WatchedReporter
from aerie.serve.service import ServedModel

FOLDER = Path(aerie.serve.app.__file__).parent / "page"
FILES = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
PAGE = FILES["index.html"]
SCRIPTS = "\n".join(text for name, text in FILES.items() if name.endswith("js"))


def test_the_page_is_served_and_may_fetch_nothing_else(serving: Any, limit: Any) -> None:
    limit(api_key="k")  # which the page asks its reader for
    with serving.http as http:
        response = http.get("/")
    assert (response.status_code, response.text) == (200, PAGE)
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(each.split(" ", 1) for each in response.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[f"{kind}-src"] for kind in ("connect", "script", "style")} == {"'self'"}
    assert policy["require-trusted-types-for"] == "'script'"
    assert policy["trusted-types"] == "'none'"


@pytest.mark.parametrize("name", [name for name in FILES if name != "index.html"])
def test_a_file_of_the_page_is_sent_once(serving: Any, limit: Any, name: str) -> None:
    limit(api_key="k")
    kind = "text/css" if name.endswith("css") else "text/javascript"
    with serving.http as http:
        first = http.get(f"/page/{name}")
        again = http.get(f"/page/{name}", headers={"If-None-Match": first.headers["etag"]})
        other = http.get(f"/page/{name}", headers={"If-None-Match": '"older"'})
    assert (first.status_code, first.text) == (200, FILES[name])
    assert first.headers["content-type"] == f"{kind}; charset=utf-8"
    assert first.headers["cache-control"] == "no-cache"
    assert first.headers["x-content-type-options"] == "nosniff"
    assert (again.status_code, again.content) == (304, b"")
    assert other.status_code == 200


@pytest.mark.parametrize("name", ["index.html", "none.js", "..%2Fapp.py"])
def test_a_file_that_the_page_has_not(serving: Any, name: str) -> None:
    with serving.http as http:
        response = http.get(f"/page/{name}")
    assert response.status_code == 404
    if "%" not in name:
        message = response.json()["error"]["message"]
        assert message.startswith(f"the chat page has no file '{name}'; it has answers.mjs, ")


def test_the_page_has_no_outside_asset_and_writes_no_html() -> None:
    assert not re.search(r"https?://\w|@import|url\(", PAGE + FILES["page.css"])
    assert not re.search(r"<script>|<style|\bon\w+=|\bstyle=|javascript:", PAGE)
    assert set(re.findall(r'(?:src|href)="(page/[^"]+)"', PAGE)) <= {f"page/{name}" for name in FILES}
    writes_html = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc|DOMParser|"
        r"createContextualFragment|setHTML"
    )
    assert not re.search(writes_html, SCRIPTS)
    imported = set(re.findall(r'from "\./([\w.]+)"', SCRIPTS))
    assert imported <= set(FILES)
    assert not re.search(r'from "[^.]|import\(', SCRIPTS)


def test_every_control_has_a_name() -> None:
    controls = re.findall(r"<(?:input|textarea|select)[^>]* id=\"(\w+)\"", PAGE)
    labels = re.findall(r"<label[^>]*>.*?</label>", PAGE)
    named = {name for label in labels for name in re.findall(r'(?:for|id)="(\w+)"', label)}
    assert set(controls) <= named
    assert all(re.sub("<[^>]+>", "", label).strip() for label in labels)
    assert all(text.strip() for text in re.findall(r"<button[^>]*>([^<]*)<", PAGE))
    ids = re.findall(r'\bid="([\w-]+)"', PAGE)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'byId\("([\w-]+)"\)', SCRIPTS)) <= set(ids)


def test_loading_reports_its_progress(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reporter = WatchedReporter(quiet=True)
    model = ServedModel("demo", serving.service.served_model.open, reporter=reporter)
    monkeypatch.setattr(serving.service, "served_model", model)
    with serving.http as http, reporter.bar("compiling", 12) as step:
        step("rms_gemms_rope_ar8", 3)
        progress = {"title": "compiling", "done": 3, "total": 12, "what": "rms_gemms_rope_ar8"}
        assert http.get("/health").json()["progress"] == {"demo": progress}
        monkeypatch.setattr(type(serving.models), "is_starting", True)
        starting = http.get("/health")
    assert (starting.status_code, starting.headers["retry-after"]) == (503, "2")
    assert starting.json()["error"]["code"] == "loading"
    assert starting.json()["progress"] == {"demo": progress}
    assert reporter.progress is None


def test_a_watched_bar_is_shown_too(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, int]] = []
    reporter = WatchedReporter(terminal=False)
    monkeypatch.setattr("aerie.engine.reporter.no_progress", lambda what, done: shown.append((what, done)))
    with reporter.bar("loading weights", 2) as step:
        assert reporter.progress == Progress("loading weights", 0, 2)
        step("layer 1", 1)
        assert reporter.progress == Progress("loading weights", 1, 2, "layer 1")
    assert reporter.progress is None
    assert shown == [("layer 1", 1)]
    assert isinstance(reporter, Reporter)
