"""Records name nobody."""

from __future__ import annotations

import pytest

from board.privacy import record_without_names, without_names


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/ada/aerie/.venv", "~/aerie/.venv"),
        ("at /home/ada", "at ~"),
        ("/home/ada:/usr/bin:/home/ada/bin", "~:/usr/bin:~/bin"),
        ("/home/adam/x", "/home/adam/x"),
        ("/data/ada/x", "/data/USER/x"),
        ("adage, canada, ada's", "adage, canada, USER's"),
        ("kernel of strix-17", "kernel of HOST"),
        ("strix-170 and a strix", "strix-170 and a strix"),
        ("", ""),
    ],
)
def test_names(text: str, shown: str) -> None:
    assert without_names(text, "/home/ada", "ada", "strix-17") == shown


def test_names_that_name_nobody() -> None:
    assert without_names("/root/x of root", "/root", "root", "localhost") == "~/x of root"
    assert without_names("npu ai on a b", "/", "ai", "a") == "npu ai on a b"


def test_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("LOGNAME", "ada")
    given = {"/home/ada": ["/home/ada/x", 3, None, {"found": "ada"}]}
    assert record_without_names(given) == {"/home/ada": ["~/x", 3, None, {"found": "USER"}]}
