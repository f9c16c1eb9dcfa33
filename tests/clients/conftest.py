"""One server with the demo model for all clients, and what they ask it."""

from __future__ import annotations

import base64
import gc
import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from aerie.serve.service import ServerLimits
from tests.serve.conftest import Serving, start

FRANCE, PARIS = "What is the capital of France?", "The capital of France is Paris."
TOO_LONG = "Paris " * 3000
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # LiteLLM fetches a table of prices otherwise
os.environ["LANGSMITH_TRACING"] = "false"
os.environ["NO_PROXY"] = "127.0.0.1"


@pytest.fixture(scope="session")
def serving() -> Iterator[Serving]:
    serving, stop = start(ServerLimits())
    try:
        serving.wait_until(lambda: serving.server.started and serving.service.opened)
        opened: Any = serving.service.worker.opened
        eos = opened.session.model.config.eos_token_ids
        serving.endless = {str(token): -100 for token in eos}
        yield serving
    finally:
        stop()
        with warnings.catch_warnings():  # some clients leave connections open
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Other projects' warnings are theirs."""
    for item in items:
        if "/clients/" in str(item.path):
            item.add_marker(pytest.mark.filterwarnings("ignore"))
