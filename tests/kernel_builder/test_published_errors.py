"""The published errors of large products come out too. Built as users build: they compute for seconds."""

from __future__ import annotations

import pytest

from tests.kernel_builder.test_numerics import FAST, NAMED, check_published_error

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("as_users_build")]


@pytest.mark.parametrize("name", sorted(NAMED.keys() - set(FAST)))
def test_more_published_errors(name: str) -> None:
    check_published_error(name)
