"""Hashes of what makes an artifact."""

import importlib.metadata
import os
import time

import pytest

from aerie.common import fingerprint
from aerie.common.fingerprint import (
    NOT_BUILT_IN,
    files_digest,
    hash_key,
    includes_digest,
    mentioned_macros,
    package_digest,
    package_version,
    tool_version,
    tree_digest,
    with_includes,
)


def test_a_key_depends_on_every_name_and_value():
    keys = {hash_key(made) for made in ({"a": "1"}, {"a": "2"}, {"b": "1"}, {"a": "1", "b": ""})}
    assert len(keys) == 4
    assert all(len(key) == 16 for key in keys)
    assert hash_key({"a": "1", "b": "2"}) == hash_key({"b": "2", "a": "1"})


def test_files_count_by_content_and_name(tmp_path):
    a, b = tmp_path / "a.cc", tmp_path / "b.cc"
    a.write_text("1")
    b.write_text("2")
    before = files_digest([a, b], tmp_path)
    assert files_digest([b, a, a], tmp_path) == before
    b.write_text("3")
    assert files_digest([a, b], tmp_path) != before
    b.write_text("2")
    b.rename(tmp_path / "c.cc")
    assert files_digest([a, tmp_path / "c.cc"], tmp_path) != before


def test_a_tree_counts_sources_but_for_what_is_skipped(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "x.hpp").write_text("1")
    (tmp_path / "own.py").write_text("1")
    before = tree_digest(tmp_path)
    (tmp_path / "inner" / "x.pyc").write_text("not a source")
    assert tree_digest(tmp_path) == before
    without = tree_digest(tmp_path, skip=("own.py",))
    (tmp_path / "own.py").write_text("2")
    assert tree_digest(tmp_path) != before
    assert tree_digest(tmp_path, skip=("own.py",)) == without
    (tmp_path / "inner" / "x.hpp").write_text("2")
    assert tree_digest(tmp_path, skip=("own.py",)) != without


def test_our_own_folders_are_hashed_once(monkeypatch):
    """The key of a program's text and that of its C++ name the same hashes of sources."""
    taken = []

    def digest(root, skip):
        taken.append((root.name, skip))
        return "it"

    monkeypatch.setattr(fingerprint, "tree_digest", digest)
    package_digest.cache_clear()
    try:
        assert [package_digest(folder) for folder in ("virtual_npu", "device") * 2] == ["it"] * 4
    finally:
        package_digest.cache_clear()
    assert taken == [("virtual_npu", NOT_BUILT_IN), ("device", ())]


def test_includes_are_followed(tmp_path):
    (tmp_path / "a.cc").write_text('#include <aie_api/aie.hpp>\n#include "one.h"\n#include "elsewhere.h"\n')
    (tmp_path / "one.h").write_text('  # include "two.h"\n#include "one.h"\n')
    (tmp_path / "two.h").write_text("")
    found = with_includes([tmp_path / "a.cc", tmp_path / "missing.cc"])
    assert {path.name for path in found} == {"a.cc", "one.h", "two.h"}


@pytest.mark.parametrize("settled", [3.0, 0.0])
def test_every_change_of_a_header_counts(tmp_path, monkeypatch, settled):
    """Also one of the same size, and with the old time of change put back."""
    monkeypatch.setattr(fingerprint, "_SETTLED_SECONDS", settled)
    header = tmp_path / "inner" / "one.h"
    header.parent.mkdir()
    text = '#include "inner/one.h"\n'
    seen = set()
    for content in ("1", "2", "3"):
        if settled == 0:
            time.sleep(0.02)  # longer than a file system's clock ticks
        header.write_text(content)
        os.utime(header, (1, 1))
        assert includes_digest(text, [tmp_path]) == includes_digest(text, [tmp_path])
        seen.add(includes_digest(text, [tmp_path]))
    assert len(seen) == 3
    header.unlink()
    assert includes_digest(text, [tmp_path]) not in seen


def test_where_a_folder_is_does_not_count(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name / "vnpu").mkdir(parents=True)
        (tmp_path / name / "vnpu" / "x.h").write_text('#include "y.h"')
        (tmp_path / name / "vnpu" / "y.h").write_text("1")
    digests = [includes_digest('#include "vnpu/x.h"', [tmp_path / name]) for name in ("a", "b")]
    assert digests[0] == digests[1]
    (tmp_path / "b" / "vnpu" / "y.h").write_text("2")
    assert includes_digest('#include "vnpu/x.h"', [tmp_path / "b"]) != digests[1]


def test_the_version_of_a_package():
    assert package_version("xdsl") == importlib.metadata.version("xdsl")
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        package_version("no-such-package")


def test_tools():
    assert tool_version("sh-that-is-not-there").startswith("sh-that-is-not-there: ")
    assert tool_version("true")


def test_macros_of_a_file_and_of_its_headers(tmp_path):
    (tmp_path / "a.cc").write_text('#include "b.h"\n#if VNPU_ONE\n#endif\n')
    (tmp_path / "b.h").write_text("#include <c.h>\n// VNPU_TWO3\nint MY_VNPU_FOUR, vnpu_five;\n")
    (tmp_path / "c.h").write_text("#ifdef VNPU_SIX\n#endif\n")
    assert mentioned_macros(tmp_path / "a.cc", (tmp_path,)) == {"VNPU_ONE", "VNPU_TWO3", "VNPU_SIX"}
    assert mentioned_macros(tmp_path / "none.cc", (tmp_path,)) == set()
