"""The one rule of where things go that nobody gave a place."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from aerie import rooms
from aerie.common import folders
from aerie.common.errors import KnobError
from aerie.common.store import Store, programs_store

PROJECT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Another current folder, and no variable set."""
    for name in ("AERIE_CACHE", "VNPU_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def installed(monkeypatch):
    """As where a wheel was installed: no checkout around the rooms."""
    monkeypatch.setattr(rooms, "CHECKOUT", None)
    monkeypatch.setattr(rooms, "SEARCH_PATH", Path("/somewhere/site-packages"))


def test_a_checkout_keeps_things_in_its_own_build_folder():
    assert folders.cache_folder() == PROJECT / "build"
    assert folders.programs_folder() == PROJECT / "build" / "programs"
    assert folders.vnpu_folder() == PROJECT / "build" / "virtual_npu"


def test_an_installed_package_keeps_them_in_the_users_cache_folder(installed, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert folders.cache_folder() == Path("/home/someone/.cache/aerie")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert folders.cache_folder() == Path("/x/aerie")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the specification says to ignore
    assert folders.cache_folder() == Path("/home/someone/.cache/aerie")


@pytest.mark.usefixtures("installed")
def test_a_user_without_a_home_folder_gets_advice(monkeypatch):
    def unknown(_: int) -> None:
        raise KeyError("uid not found")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(KnobError, match=r"no home folder .*: name one with AERIE_CACHE=/path/to/folder"):
        folders.cache_folder()


@pytest.mark.parametrize("where", ["checkout", "installed"])
def test_aerie_cache_wins_everywhere(where, request, tmp_path, monkeypatch):
    if where == "installed":
        request.getfixturevalue("installed")
    monkeypatch.setenv("AERIE_CACHE", "/big/disk")
    assert (folders.cache_folder(), folders.programs_folder()) == (
        Path("/big/disk"),
        Path("/big/disk/programs"),
    )
    assert folders.vnpu_folder() == Path("/big/disk/virtual_npu")
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("AERIE_CACHE", "~/mine")
    assert folders.cache_folder() == Path("/home/someone/mine")
    monkeypatch.setenv("AERIE_CACHE", "here")
    assert folders.cache_folder() == tmp_path / "here"


def test_what_the_virtual_npu_built_can_go_elsewhere_or_nowhere(monkeypatch):
    monkeypatch.setenv("AERIE_CACHE", "/big/disk")
    monkeypatch.setenv("VNPU_CACHE", "/x")
    assert folders.vnpu_folder() == Path("/x")
    monkeypatch.setenv("VNPU_CACHE", "off")
    assert folders.vnpu_folder() is None


def test_a_file_is_no_folder(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("AERIE_CACHE", str(tmp_path / "file"))
    with pytest.raises(KnobError, match=r"AERIE_CACHE='.*file' cannot be used: give a folder; this is a"):
        folders.cache_folder()


def test_a_folder_is_usable_where_it_can_be_made_and_written(tmp_path, monkeypatch):
    assert folders.is_usable(tmp_path / "new" / "one")
    assert not folders.is_usable(Path("/proc/nothing"))
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not folders.is_usable(tmp_path)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A folder for programs, in two others."""
    folder = tmp_path / "home" / "programs"
    folders.make_folder(folder)
    monkeypatch.setenv("VNPU_CACHE", str(folder))
    return folder


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize(("mode", "who"), [(0o757, "everybody"), (0o775, "a group"), (0o777, "everybody")])
def test_a_folder_that_others_can_write_to_is_not_used(kept, monkeypatch, level, mode, who):
    """Nor one above it, where they could put another in its place."""
    open_to_all = (kept, *kept.parents)[level]
    monkeypatch.setattr(folders, "_is_own_group", lambda number: False)
    open_to_all.chmod(mode)
    with pytest.raises(KnobError) as refused:
        programs_store()
    assert f"{kept} is not used: {who} can write to {open_to_all}, so that others could put" in str(
        refused.value
    )
    assert f"-w {open_to_all}`, or name a folder of your own with AERIE_CACHE=" in str(refused.value)
    open_to_all.chmod(mode & ~0o022)  # which is what it says to do
    assert programs_store() is not None


def test_a_sticky_folder_may_be_above_and_a_group_of_the_user_alone_may_write(kept, monkeypatch):
    kept.parent.chmod(0o1777)
    assert programs_store() is not None
    monkeypatch.setattr(folders, "_is_own_group", lambda number: True)
    kept.chmod(0o775)
    assert programs_store() is not None
    kept.chmod(0o1777)
    with pytest.raises(KnobError, match=f"everybody can write to {kept}, so that others"):
        programs_store()


def test_a_folder_or_a_link_of_another_user_is_not_used(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "_trusted", lambda: {os.geteuid() + 1})
    with pytest.raises(
        KnobError, match=rf"{kept} belongs to .*, so that others .*: make it yours \(chown\), or"
    ):
        programs_store()
    link = tmp_path / "link"
    link.symlink_to(kept)
    monkeypatch.setenv("VNPU_CACHE", str(link))
    with pytest.raises(KnobError, match=f"{link} is not used: {link} belongs to"):
        programs_store()


def test_what_is_made_is_the_users_alone_whatever_the_umask(tmp_path):
    """Folders, and entries in them; an entry that others can write counts as missing."""
    before = os.umask(0)
    try:
        folders.make_folder(tmp_path / "a" / "b")
        store = Store(tmp_path / "a" / "b")
        made = store.get_or_make("x-0123456789abcdef.so", lambda work: _written(work / "x"))
    finally:
        os.umask(before)
    folders.check_private(made.parent)
    assert made.stat().st_mode & 0o022 == 0
    assert store.read(made.name) == b"program"
    made.chmod(0o666)
    assert store.read(made.name) is None


def _written(path: Path) -> Path:
    path.write_bytes(b"program")
    return path


def test_whoever_can_change_the_code_may_own_what_is_above_it(tmp_path, monkeypatch):
    """A checkout in a folder that is open to all is open itself; its build folder need not be refused."""
    checkout = tmp_path / "shared" / "checkout"
    folders.make_folder(checkout / "build")
    checkout.parent.chmod(0o777)
    with pytest.raises(KnobError, match="everybody can write to"):
        folders.check_private(checkout / "build")
    monkeypatch.setattr(rooms, "SEARCH_PATH", checkout)
    folders.check_private(checkout / "build")
