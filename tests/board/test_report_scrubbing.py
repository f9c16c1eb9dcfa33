"""Nothing in a report says whose machine it was."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from board.report.scrubbing import NOBODY, PROJECT, SHORTEST_NAME, Scrubber

ANN = Scrubber(
    {"/home/ann": "~", "/home/ann/src/aerie": "<project>", "/tmp": "<tmp>"},
    {"ann": "<user>", "strix-box": "<host>"},
    ("s3cr3t-value",),
)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("/home/ann/src/aerie/build/x.log", "<project>/build/x.log"),
        ("/home/ann/models/llama", "~/models/llama"),
        ("at /home/ann: no", "at ~: no"),
        ("/home/anna/x", "/home/<user>/x"),
        ("/home/bob/x and /Users/bob", "/home/<user>/x and /Users/<user>"),
        ("/tmp/pytest-of-ann/pytest-3", "<tmp>/pytest-of-<user>/pytest-3"),
        ("/tmpfs stays", "/tmpfs stays"),
        ("annotate Ann ann_cache channel", "annotate <user> <user>_cache channel"),
        ("[strix-box] STRIX-BOX.local", "[<host>] <host>.local"),
        ("HF_TOKEN=hf_abcdefghijklmnop", "HF_TOKEN=<token>"),
        ("sent hf_abcdefghijklmnop to", "sent <token> to"),
        ("Authorization: Bearer abcdefgh.ijk", "Authorization: Bearer <token>"),
        ("ghp_0123456789abcdef", "<token>"),
        ("https://ann:pw@example.org/simple", "https://<secret>@example.org/simple"),
        ("mail ann.b@example.org", "mail <e-mail>"),
        ("got s3cr3t-value here", "got <secret> here"),
        ("password: hunter2, then", "password: <secret>, then"),
        ("token ids 1 2 3, 4 tokens", "token ids 1 2 3, 4 tokens"),
        ("1.4.2.dev16+g7e00b57 at 0000:c5:00.1", "1.4.2.dev16+g7e00b57 at 0000:c5:00.1"),
    ],
)
def test_texts(text: str, clean: str) -> None:
    assert ANN.text(text) == clean


def test_a_token_in_a_file_of_json_is_found_behind_escapes() -> None:
    scrubber = Scrubber({"/home/jörg": "~"}, {"jörg": "<user>"}, ('pä"ss\\word',))
    document = json.dumps({"path": "/home/jörg/x", "by jörg": ["Jörg", 3, None, 'pä"ss\\word']})
    assert "\\u00f6" in document
    assert json.loads(scrubber.json(document)) == {
        "path": "~/x",
        "by <user>": ["<user>", 3, None, "<secret>"],
    }


def test_what_is_no_json_is_text() -> None:
    assert ANN.json("{ /home/ann") == "{ ~"


def test_names_that_name_nobody_and_short_ones_stay() -> None:
    scrubber = Scrubber({"/": "~"}, {"root": "<user>", "ai": "<host>", "": "<x>"}, ("short", ""))
    assert scrubber.text("root of ai, short /root/x") == "root of ai, short /root/x"


def test_percent_encoded_folders_are_found() -> None:
    scrubber = Scrubber({"/home/a b": "~"}, {}, ())
    assert scrubber.text(f"file://{quote('/home/a b/x')}") == "file://~/x"


def test_a_line_of_a_megabyte_takes_no_time() -> None:
    started = time.monotonic()
    line = "x" * (1 << 20)
    assert ANN.text(line) == line
    assert time.monotonic() - started < 5


NAMES = st.from_regex(r"[a-z][a-z0-9]{2,11}", fullmatch=True)
SECRETS = st.text(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/=_-.", min_size=6, max_size=40
)
TEXTS = st.text(max_size=60)
SEPARATORS = st.sampled_from([" ", "/", "_", "-", ".", ":", "\n", '"', "(", "=", "@", "\\"])
OURS = re.compile("<user>|<host>|<secret>|<token>|<e-mail>|<project>|<tmp>|~")


@given(st.data(), NAMES, NAMES, SECRETS)
def test_no_name_folder_or_secret_is_left(data: st.DataObject, user: str, host: str, secret: str) -> None:
    home = f"/data/{user}"
    scrubber = Scrubber({home: "~"}, {user: "<user>", host: "<host>"}, (secret,))
    pieces = [user, host, secret, home, f"{home}/x", user.upper(), host.title()]
    text = ""
    for _ in range(data.draw(st.integers(1, 8))):
        text += (
            data.draw(TEXTS)
            + data.draw(SEPARATORS)
            + data.draw(st.sampled_from(pieces))
            + data.draw(SEPARATORS)
        )
    clean = OURS.sub("\0", scrubber.text(text))
    assert home not in clean
    assert secret not in clean
    for name in (user, host):
        assert name in NOBODY or not re.search(rf"(?<![^\W_]){name}(?![^\W_])", clean, re.IGNORECASE)


@settings(max_examples=30)
@given(
    st.recursive(
        TEXTS | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)
    )
)
def test_records_keep_their_shape(record: object) -> None:
    scrubber = Scrubber({"/home/zoe": "~"}, {"zoe": "<user>"}, ())
    clean = json.loads(scrubber.json(json.dumps(record)))
    assert type(clean) is type(record)
    assert "zoe" not in json.dumps(clean).lower() or "zoe" in json.dumps(record).lower()


@given(
    st.dictionaries(
        st.sampled_from(["HF_TOKEN", "MY_API_KEY", "AWS_SECRET", "DB_PASSWORD"]), SECRETS, min_size=1
    )
)
def test_values_of_secret_variables_go(environment: dict[str, str]) -> None:
    scrubber = Scrubber.of_this_machine({**environment, "HOME": "/home/zoe", "USER": "zoe"})
    values = " ".join(environment.values())
    assume(
        not any(
            value in placeholder for value in environment.values() for placeholder in ("<secret>", "<token>")
        )
    )
    clean = scrubber.text(f"a {values} b")
    assert not any(value in clean for value in environment.values())


def test_this_machine() -> None:
    scrubber = Scrubber.of_this_machine({"HOME": "/home/zoe", "USER": "zoe", "PATH": "/usr/bin"})
    assert scrubber.text(f"{PROJECT}/build /home/zoe/x zoe /usr/bin") == "<project>/build ~/x <user> /usr/bin"
    assert scrubber.secrets == ()
    assert (Path(str(PROJECT)) / "board").is_dir()
    assert SHORTEST_NAME == 3
