"""Requests that are drawn, most of them wrong, at all addresses: each is answered, and the server goes on."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

import pytest

from aerie.serve.service import ServerLimits
from tests.serve.drawing import Drawing, Drawn
from tests.serve.fuzz import Fuzz, wrong_with


def test_every_request_is_answered_and_changes_no_other(starting: Any, caplog: Any) -> None:
    serving = starting(ServerLimits(time_limit_s=20))
    serving.wait_until(lambda: serving.service.opened)
    report = Fuzz(urlsplit(serving.url).port or 0, seed=1, requests=300).run()
    assert report.is_well, str(report)
    assert report.requests == 300
    assert report.statuses[200] > 30
    assert "Traceback" not in caplog.text


def test_all_addresses_are_drawn_and_a_number_is_drawn_again() -> None:
    drawing, again = Drawing(), Drawing()
    every = [drawing.request(3, number) for number in range(len(drawing.addresses) * 3)]
    assert {address for address, _ in every} == drawing.addresses
    assert [drawn for _, drawn in every] == [again.request(3, number)[1] for number in range(len(every))]


@pytest.mark.parametrize(
    ("status", "body", "wrong"),
    [
        (500, b'{"error": {"message": "x"}}', "status 500"),
        (200, b'{"error": {"code": "internal_error"}}', "a failure of the server in a body"),
        (400, b"Bad Request", "an error 400 is no JSON"),
        (400, json.dumps({"error": {"message": ""}}).encode(), "an error says nothing"),
        (400, b'{"error": {"message": "x is wrong"}}', ""),
        (503, b'{"error": {"message": "being loaded"}}', ""),
    ],
)
def test_what_counts_as_a_failure(status: int, body: bytes, wrong: str) -> None:
    assert wrong_with(Drawn("GET", "/"), status, body) == wrong
