"""Redaction of everything that goes into a report, so that it does not identify the machine's owner.

It removes: the folders of the home, the project and temporary files; other users' homes; the names of user
and machine; the values of environment variables that hold secrets; and everything that looks like a token, a
password in an address, or an e-mail address. Names of fewer than three letters stay: they occur in every
text, and identify nobody.
"""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from aerie import rooms

PROJECT = rooms.SEARCH_PATH

MIN_NAME_LENGTH, MIN_SECRET_LENGTH = 3, 6
"""Minimum length of a name and of a secret that are searched for."""
GENERIC_NAMES = frozenset({"root", "localhost", "user", "ubuntu", "runner"})
"""User and host names that identify nobody."""

SECRET_NAMES = re.compile("TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
"""Environment variables whose values are never shown."""

LOOKS_SECRET = (
    (re.compile(r"\bhf_[A-Za-z0-9]{8,}"), "<token>"),  # Hugging Face
    (re.compile(r"\bgh[a-z]_[A-Za-z0-9]{8,}|\bgithub_pat_\w{8,}"), "<token>"),
    (re.compile(r"\bsk-[\w-]{8,}|\bAKIA[A-Z0-9]{12,}"), "<token>"),
    (re.compile(r"(?i)(\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}"), r"\1<token>"),
    (re.compile(r"(?i)(\b(?:token|password|passwd|secret|api_?key)\s*[=:]\s*)[^\s,;'\"]+"), r"\1<secret>"),
    (re.compile(r"(://)[^/\s@:]{1,200}:[^/\s@]{1,200}@"), r"\1<secret>@"),
    (re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@(?:[\w-]{1,63}\.){1,8}[A-Za-z]{2,24}"), "<e-mail>"),
)
"""Patterns of secrets, each with its replacement. Lengths are bounded, and no match starts in the middle of a
word: a log may be one line of megabytes.
"""

OTHER_HOMES = re.compile(r"(/home|/Users)/[^/\s'\":;,)\]}<>]+")


@dataclass(frozen=True)
class Redactor:
    """What is removed from texts: folders and names, each with its replacement, and values of secrets."""

    places: Mapping[str, str]
    names: Mapping[str, str]
    secrets: tuple[str, ...] = ()

    @staticmethod
    def for_this_machine(environment: Mapping[str, str] = os.environ) -> Redactor:
        """A redactor for the names, folders and secrets of this machine, user and environment."""
        folders = {str(PROJECT): "<project>", tempfile.gettempdir(): "<tmp>"}
        homes = {home: "~" for home in (environment.get("HOME", ""), os.path.expanduser("~")) if home}
        homes |= {os.path.realpath(home): "~" for home in homes}
        names = {
            _user(environment): "<user>",
            platform.node(): "<host>",
            platform.node().split(".")[0]: "<host>",
        }
        secrets = (value for name, value in environment.items() if SECRET_NAMES.search(name))
        return Redactor({**homes, **folders}, names, tuple(secrets))

    def redact_text(self, text: str) -> str:
        """The text with all of these replaced."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            if len(secret) >= MIN_SECRET_LENGTH:
                text = text.replace(secret, "<secret>")
        for pattern, replacement in LOOKS_SECRET:
            text = pattern.sub(replacement, text)
        for place in sorted(self.places, key=len, reverse=True):
            text = _replace_folder(text, place.rstrip("/"), self.places[place])
        text = OTHER_HOMES.sub(r"\1/<user>", text)
        for name in sorted(self.names, key=len, reverse=True):
            text = _replace_name(text, name, self.names[name])
        return text

    def redact_record(self, value: Any) -> Any:
        """A JSON record with every text in it replaced, keys too."""
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, dict):
            return {self.redact_text(str(key)): self.redact_record(inner) for key, inner in value.items()}
        return [self.redact_record(inner) for inner in value] if isinstance(value, (list, tuple)) else value

    def redact_json(self, text: str) -> str:
        """A JSON document, redacted value by value, so that escapes hide nothing. Other text is redacted as
        text.
        """
        try:
            return json.dumps(self.redact_record(json.loads(text)), indent=1, ensure_ascii=False) + "\n"
        except ValueError:
            return self.redact_text(text)


def _replace_folder(text: str, folder: str, replacement: str) -> str:
    if not folder.strip("/"):
        return text
    for spelled in {folder, quote(folder)}:
        text = re.sub(rf"{re.escape(spelled)}(?![\w-]|\.\w)", lambda _: replacement, text)
    return text


def _replace_name(text: str, name: str, replacement: str) -> str:
    """Replace whole words only, in any case. `_`, `-` and `.` end a word, because folder names use them."""
    if len(name) < MIN_NAME_LENGTH or name.lower() in GENERIC_NAMES:
        return text
    pattern = rf"(?<![^\W_]){re.escape(name)}(?![^\W_])"
    return re.sub(pattern, lambda _: replacement, text, flags=re.IGNORECASE)


def _user(environment: Mapping[str, str]) -> str:
    try:
        return environment.get("USER") or getpass.getuser()
    except (KeyError, OSError):  # no entry for the user's number
        return ""
