"""Parts of the tests, for several machines: `--shard 2/4` is the second of four. A file is in one of them."""

from __future__ import annotations

import re
import zlib

import pytest


def is_in(path: str, shard: str) -> bool:
    """Whether a file of tests is in a shard. Raises UsageError for what is none, such as 5/4."""
    match = re.fullmatch("([0-9]{1,3})/([0-9]{1,3})", shard)
    number, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= count:
        raise pytest.UsageError(
            f"--shard {shard!r} is no part of the tests: give one such as 1/4, 2/4, 3/4, 4/4"
        )
    return zlib.crc32(path.encode()) % count == number - 1


def pytest_addoption(parser: pytest.Parser) -> None:
    """--shard N/M."""
    parser.addoption("--shard", default="", metavar="N/M", help="run the N-th of M parts of the tests")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what is in other shards, once the whole was looked at."""
    shard = config.getoption("--shard")
    if shard:
        others = [item for item in items if not is_in(item.nodeid.partition("::")[0], shard)]
        items[:] = [item for item in items if is_in(item.nodeid.partition("::")[0], shard)]
        config.hook.pytest_deselected(items=others)
