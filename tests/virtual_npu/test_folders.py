"""The one rule of where things go that nobody gave a place."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from aerie.virtual_npu import folders
from aerie.virtual_npu.errors import KnobError

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
    monkeypatch.setattr(folders, "_ABOVE_ROOMS", Path("/somewhere/site-packages"))


def test_a_checkout_keeps_things_in_its_own_build_folder():
    assert folders.home() == PROJECT / "build"
    assert folders.programs() == PROJECT / "build" / "programs"
    assert folders.built_programs() == PROJECT / "build" / "virtual_npu"


def test_an_installed_package_keeps_them_in_the_users_cache_folder(installed, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert folders.home() == Path("/home/someone/.cache/aerie")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert folders.home() == Path("/x/aerie")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the specification says to ignore
    assert folders.home() == Path("/home/someone/.cache/aerie")


@pytest.mark.usefixtures("installed")
def test_a_user_without_a_home_folder_is_told_what_to_do(monkeypatch):
    def unknown(_: int) -> None:
        raise KeyError("uid not found")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(KnobError, match=r"no home folder .*: name one with AERIE_CACHE=/path/to/folder"):
        folders.home()


@pytest.mark.parametrize("where", ["checkout", "installed"])
def test_aerie_cache_wins_everywhere(where, request, tmp_path, monkeypatch):
    if where == "installed":
        request.getfixturevalue("installed")
    monkeypatch.setenv("AERIE_CACHE", "/big/disk")
    assert (folders.home(), folders.programs()) == (Path("/big/disk"), Path("/big/disk/programs"))
    assert folders.built_programs() == Path("/big/disk/virtual_npu")
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("AERIE_CACHE", "~/mine")
    assert folders.home() == Path("/home/someone/mine")
    monkeypatch.setenv("AERIE_CACHE", "here")
    assert folders.home() == tmp_path / "here"


def test_what_the_virtual_npu_built_can_go_elsewhere_or_nowhere(monkeypatch):
    monkeypatch.setenv("AERIE_CACHE", "/big/disk")
    monkeypatch.setenv("VNPU_CACHE", "/x")
    assert folders.built_programs() == Path("/x")
    monkeypatch.setenv("VNPU_CACHE", "off")
    assert folders.built_programs() is None


def test_a_file_is_no_folder(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("AERIE_CACHE", str(tmp_path / "file"))
    with pytest.raises(KnobError, match=r"AERIE_CACHE='.*file' cannot be used: give a folder; this is a"):
        folders.home()


def test_a_folder_is_usable_where_it_can_be_made_and_written(tmp_path, monkeypatch):
    assert folders.is_usable(tmp_path / "new" / "one")
    assert not folders.is_usable(Path("/proc/nothing"))
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not folders.is_usable(tmp_path)
