"""Whatever goes into a report goes through here first: nothing in it says whose machine it was.

What is taken out: the folders of the home, the project and temporary files; other people's homes; the names
of user and machine; the values of environment variables that hold secrets; whatever looks like a token, a
password in an address, or an e-mail address. Names of fewer than three letters stay: they would be found in
every text, and name nobody.
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

SHORTEST_NAME, SHORTEST_SECRET = 3, 6
"""Letters that a name or a secret must have to be looked for."""
NOBODY = frozenset({"root", "localhost", "user", "ubuntu", "runner"})
"""Names that name nobody."""

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
"""What looks like a secret wherever it comes from, and what stands for it. Lengths are bounded, and nothing
is tried in the middle of a word: a log may be one line of megabytes."""

OTHER_HOMES = re.compile(r"(/home|/Users)/[^/\s'\":;,)\]}<>]+")


@dataclass(frozen=True)
class Scrubber:
    """What has to go from texts: folders and names, each with what stands for it, and values of secrets."""

    places: Mapping[str, str]
    names: Mapping[str, str]
    secrets: tuple[str, ...] = ()

    @staticmethod
    def of_this_machine(environment: Mapping[str, str] = os.environ) -> Scrubber:
        """What this machine, user and environment would give away."""
        folders = {str(PROJECT): "<project>", tempfile.gettempdir(): "<tmp>"}
        homes = {home: "~" for home in (environment.get("HOME", ""), os.path.expanduser("~")) if home}
        homes |= {os.path.realpath(home): "~" for home in homes}
        names = {
            _user(environment): "<user>",
            platform.node(): "<host>",
            platform.node().split(".")[0]: "<host>",
        }
        secrets = (value for name, value in environment.items() if SECRET_NAMES.search(name))
        return Scrubber({**homes, **folders}, names, tuple(secrets))

    def text(self, text: str) -> str:
        """The text with all of that replaced."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            if len(secret) >= SHORTEST_SECRET:
                text = text.replace(secret, "<secret>")
        for pattern, replacement in LOOKS_SECRET:
            text = pattern.sub(replacement, text)
        for place in sorted(self.places, key=len, reverse=True):
            text = _without_place(text, place.rstrip("/"), self.places[place])
        text = OTHER_HOMES.sub(r"\1/<user>", text)
        for name in sorted(self.names, key=len, reverse=True):
            text = _without_name(text, name, self.names[name])
        return text

    def record(self, value: Any) -> Any:
        """A record of JSON with every text in it replaced, keys too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.record(inner) for key, inner in value.items()}
        return [self.record(inner) for inner in value] if isinstance(value, (list, tuple)) else value

    def json(self, text: str) -> str:
        """A JSON document, replaced value by value: escapes hide nothing. What is no JSON is text."""
        try:
            return json.dumps(self.record(json.loads(text)), indent=1, ensure_ascii=False) + "\n"
        except ValueError:
            return self.text(text)


def _without_place(text: str, place: str, replacement: str) -> str:
    if not place.strip("/"):
        return text
    for spelled in {place, quote(place)}:
        text = re.sub(rf"{re.escape(spelled)}(?![\w-]|\.\w)", lambda _: replacement, text)
    return text


def _without_name(text: str, name: str, replacement: str) -> str:
    """Whole words only, in any case; `_`, `-` and `.` end a word: folders' names are made so."""
    if len(name) < SHORTEST_NAME or name.lower() in NOBODY:
        return text
    pattern = rf"(?<![^\W_]){re.escape(name)}(?![^\W_])"
    return re.sub(pattern, lambda _: replacement, text, flags=re.IGNORECASE)


def _user(environment: Mapping[str, str]) -> str:
    try:
        return environment.get("USER") or getpass.getuser()
    except (KeyError, OSError):  # no entry for the user's number
        return ""
