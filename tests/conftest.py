"""What all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Programs that tests build are kept as long as they run, and apart from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VNPU_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
