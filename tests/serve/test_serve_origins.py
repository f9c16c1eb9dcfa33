"""Who may ask: no page of another site, at any address; and what is asked by GET changes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.datastructures import Headers

from aerie.common.errors import UserError
from aerie.serve import npu_view
from aerie.serve.app import _app_with_routes
from aerie.serve.cli import _limits, build_parser
from aerie.serve.errors import ApiError
from aerie.serve.origins import check_origin, is_local_name, parse_origins
from aerie.serve.service import ServerLimits

ROUTES = [
    (method, route.path)
    for route in _app_with_routes().routes
    if isinstance(route, APIRoute)
    for method in sorted(route.methods or ())
]
NAMES = {"{slot}": "0", "{item}": "none"}
FOREIGN: Sequence[Mapping[str, str]] = (
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "Cross-Site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    {"Origin": "http://evil.example"},
    {"Origin": "http://localhost:1", "Sec-Fetch-Site": "same-site"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "http://["},
    {"Host": "evil.example"},
)


def address(path: str, name: str) -> str:
    """A path of the table with names in it."""
    parts = [NAMES.get(part, name) if part.startswith("{") else part for part in path.split("/")]
    return "/".join(parts)


def is_refusal(error: Any) -> bool:
    """Whether the error says so in the form of OpenAI's and Anthropic's APIs, or of Ollama's."""
    if isinstance(error, str):
        return any(words in error for words in ("is not allowed", "answers to localhost", "no Origin header"))
    return bool(error["type"] == "permission_error")


def test_no_page_of_another_site_asks_anything(serving: Any) -> None:
    assert len(ROUTES) > 40
    with serving.http as http:
        for (method, path), headers in zip(ROUTES, itertools.cycle(FOREIGN), strict=False):
            response = http.request(method, address(path, "demo"), headers=headers)
            assert response.status_code == 403, (method, path, headers)
            if method != "HEAD":
                assert is_refusal(response.json()["error"])
            for other in FOREIGN:
                with pytest.raises(ApiError, match=r"is not allowed|answers to localhost|no Origin header"):
                    check_origin(ServerLimits(), method, path, Headers({"Host": "localhost", **other}))


def test_what_is_asked_by_get_changes_nothing_and_costs_nothing(
    serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No model is loaded, no step taken, no program run, and what is kept stays."""

    def never(*given: Any, **named: Any) -> None:
        raise AssertionError((given, named))

    worker, models = serving.service.worker, serving.models
    for owner, name in (
        (worker, "submit"),
        (worker, "run_in_thread"),
        (models, "load"),
        (models, "unload"),
        (npu_view, "make_view"),
    ):
        monkeypatch.setattr(owner, name, never)
    kept = serving.server.config.app._app._app._app.state.store

    def state() -> tuple[Any, ...]:
        service = serving.service
        return dict(kept._entries), kept.nbytes, dict(service.views._views), service.state

    before = state()
    program = next(iter(serving.service.opened.session.model.programs))
    with serving.http as http:
        for method, path in ROUTES:
            if method != "GET":
                continue
            for name in ("demo", "none", program):
                assert http.get(address(path, name)).status_code in (200, 404), (path, name)
    assert state() == before


LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize(
    ("limits", "method", "path", "headers"),
    [
        (ServerLimits(), "GET", "/", {"host": "localhost", **LINK}),
        (ServerLimits(), "GET", "/npu", {"host": "127.0.0.2:8000", **LINK}),
        (ServerLimits(), "GET", "/health", {"host": "[::1]:8000", "sec-fetch-site": "same-origin"}),
        (
            ServerLimits(),
            "GET",
            "/health",
            {"host": "LOCALHOST", "origin": "http://localhost", "sec-fetch-site": "none"},
        ),
        (
            ServerLimits(origins=("http://a",)),
            "POST",
            "/x",
            {"host": "localhost", "origin": "http://a", **FOREIGN[0]},
        ),
        (
            ServerLimits(origins=("*",), api_key="k"),
            "POST",
            "/x",
            {"host": "b", "origin": "http://c", **FOREIGN[0]},
        ),
        (ServerLimits(origins=("*",), api_key="k"), "GET", "/x", {"host": "b", **FOREIGN[0]}),
        (ServerLimits(is_local=False, api_key="k"), "GET", "/x", {"host": "our.example"}),
    ],
)
def test_allowed_origins(limits: ServerLimits, method: str, path: str, headers: Mapping[str, str]) -> None:
    check_origin(limits, method, path, Headers(headers))


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
def test_a_link_opens_pages_alone(path: str) -> None:
    with pytest.raises(ApiError, match="the request is from a page of another site and has no Origin header"):
        check_origin(ServerLimits(), "GET", path, Headers({"host": "localhost", **LINK}))


def test_this_machines_own_names() -> None:
    own = ("localhost", "Localhost", "127.0.0.1", "127.0.0.2", "127.255.255.254", "::1")
    others = ("", "127.0.0.1.evil.example", "localhost.evil.example", "128.0.0.1", "0.0.0.0", "::2", "[", "1")
    assert [name for name in (*own, *others) if is_local_name(name)] == list(own)


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        (
            "*",
            "allows requests from pages of every site, and no API key is set; give --api-key, or "
            "name the sites",
        ),
        ("null", "allows requests from pages of every site, and no API key is set"),
        ("http://a.example/", "in small letters; give one such as http://a.example"),
        ("HTTP://A.example", "give one such as http://a.example"),
        ("a.example", "give one such as https://example.org"),
        ("http://[", "give one such as https://example.org"),
        ("", "browsers send only a scheme and a host"),
    ],
)
def test_origins_that_no_browser_sends(origin: str, words: str) -> None:
    with pytest.raises(UserError) as wrong:
        parse_origins([origin], has_key=False)
    assert words in str(wrong.value)


def test_origins() -> None:
    given = ["http://a.example", "https://b:8443", "*", "null"]
    assert parse_origins(given, has_key=True) == tuple(given)


def test_pages_of_all_sites_may_ask_with_the_key(serving: Any, limit: Any) -> None:
    limit(origins=("*",), api_key="k")
    with serving.http as http:
        foreign = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
        assert http.get("/v1/models", headers=foreign).status_code == 401
        assert http.get("/v1/models", headers={**foreign, "x-api-key": "k"}).status_code == 200


@pytest.mark.parametrize(
    ("flag", "variable", "words"),
    [
        ("", None, "--api-key is blank, which would let everybody in; give a key, or leave it out"),
        (" ", "fine", "--api-key is blank"),
        (None, " \t", "AERIE_API_KEY is blank, which would let everybody in"),
        ("key\n", None, "--api-key has blanks around it, control characters or characters outside of ASCII"),
        (
            None,
            "Schlüssel",
            "AERIE_API_KEY has blanks around it, control characters or characters outside of ASCII",
        ),
    ],
)
def test_invalid_api_keys(
    flag: str | None, variable: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIE_API_KEY", variable or "")
    given = ["serve"] if flag is None else ["serve", "--api-key", flag]
    with pytest.raises(UserError) as wrong:
        _limits(build_parser().parse_args(given))
    assert words in str(wrong.value)


def test_a_variable_that_is_empty_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIE_API_KEY", "")
    assert _limits(build_parser().parse_args(["serve", "--host", "127.0.0.2"])).api_key is None
