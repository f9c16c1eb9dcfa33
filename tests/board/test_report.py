"""The report: what goes in, that it names nobody, and that a part which cannot be had does not stop it."""

from __future__ import annotations

import json
import re
import sys
import time
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from aerie.board.__main__ import main
from aerie.board.compare.command import board_folder
from aerie.board.report import command, parts
from aerie.board.report.command import INDEX, index, write_archive
from aerie.board.report.parts import ReportPart, ReportSource, all_parts, redact_prompts, run_tool
from aerie.board.report.redaction import GENERIC_NAMES, MIN_NAME_LENGTH, PROJECT, Redactor

NOTHING = Redactor({}, {}, ())


@pytest.fixture
def no_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor has tests of its own; here it takes no time."""
    monkeypatch.setattr(parts, "doctor", lambda: ReportPart("doctor.json", "what make doctor found", "{}"))


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """Builds with a failed compilation, a comparison, and a diagnosis of somebody's prompt."""
    for folder in ("board/logs", "programs/npu", "verify"):
        (tmp_path / folder).mkdir(parents=True)
    item = {"kind": "kernel", "name": "gemm[0]", "parameters": "m=8"}
    comparison = {
        "backend": "npu",
        "against": "the virtual NPU, exact and bfp16",
        "right": False,
        "items": [
            {"item": item, "status": "differs", "first_at_fault": "gemm", "message": ""},
            {
                "item": {**item, "name": "rope[1]"},
                "status": "crashed",
                "first_at_fault": None,
                "message": "SIGSEGV",
            },
            {"item": item, "status": "near", "first_at_fault": None, "message": ""},
        ],
    }
    (tmp_path / "board" / "compare.json").write_text(json.dumps(comparison))
    (tmp_path / "board" / "logs" / "kernel-gemm-0.log").write_text("x" * (parts.TAIL_BYTES + 5) + "end\n")
    (tmp_path / "programs" / "npu" / "o_ffn-1.log").write_text(
        "$ aircc /home/ann/o_ffn.mlir\nout of channels\n"
    )
    diagnosis = {"prompt": "my secret wish", "token_ids": [1, 2, 3], "rows": [{"step": "q"}]}
    (tmp_path / "diagnosis.json").write_text(json.dumps(diagnosis))
    (tmp_path / "verify" / "broken.json").write_text("{")
    return tmp_path


def named(found: list[ReportPart]) -> dict[str, ReportPart]:
    return {part.name: part for part in found}


@pytest.mark.usefixtures("no_doctor")
def test_contents_of_the_report(build: Path) -> None:
    found = named(list(all_parts(ReportSource(build))))
    assert json.loads(found["versions.json"].content)["packages"]["numpy"]
    assert "out of channels" in found["compile-logs/o_ffn-1.log"].content
    log = found["board-logs/kernel-gemm-0.log"].content
    assert log.startswith("[9 bytes before this are left out]\n")
    assert log.endswith("end\n")
    assert found["board/*.xml"].missing == "there is none yet"
    assert found["verify/broken.json"].missing == "it is no whole JSON, so prompts could not be taken out"


@pytest.mark.usefixtures("no_doctor")
def test_prompts_stay_out_unless_requested(build: Path) -> None:
    without = named(list(all_parts(ReportSource(build))))["diagnosis.json"].content
    assert json.loads(without) == {
        "prompt": "left out: 14 letters",
        "token_ids": "left out: 3 tokens",
        "rows": [{"step": "q"}],
    }
    asked_for = named(list(all_parts(ReportSource(build, with_prompts=True))))["diagnosis.json"].content
    assert json.loads(asked_for)["prompt"] == "my secret wish"


def test_prompts_are_taken_out_at_any_depth() -> None:
    record = {"prompts": [{"name": "long", "our_token_ids": [5], "reference_token_ids": None}]}
    assert redact_prompts(record) == {
        "prompts": [{"name": "long", "our_token_ids": "left out: 1 tokens", "reference_token_ids": None}]
    }


@pytest.mark.usefixtures("no_doctor")
def test_the_archive_and_its_index(build: Path, tmp_path: Path) -> None:
    path = tmp_path / "out" / "report.zip"
    scrubber = Redactor({"/home/ann": "~"}, {"ann": "<user>"}, ())
    entries = write_archive(path, all_parts(ReportSource(build)), scrubber, "A report")
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    index = files.pop(INDEX)
    assert {entry.name: entry.nbytes for entry in entries if not entry.missing} == {
        name: len(text.encode()) for name, text in files.items()
    }
    assert "npu against the virtual NPU, exact and bfp16: 2 of 3 are not." in index
    assert "- gemm[0] differs gemm\n- rope[1] crashed SIGSEGV\n" in index
    assert "| board/*.xml | results of the board tests | there is none yet |" in index
    assert "aircc ~/o_ffn.mlir" in files["compile-logs/o_ffn-1.log"]
    assert not any("/home" in text for text in files.values())


def test_an_index_without_a_comparison(tmp_path: Path) -> None:
    write_archive(tmp_path / "r.zip", [ReportPart("a.txt", "a", "x")], NOTHING, "A report")
    with zipfile.ZipFile(tmp_path / "r.zip") as archive:
        assert (
            "Nothing was compared on this machine yet: `make test-npu` does that."
            in archive.read(INDEX).decode()
        )


@pytest.mark.parametrize("record", ["{", "[]", "null", '{"items": 3}', '{"items": [{"status": "hung"}]}'])
def test_a_comparison_of_another_version(record: str) -> None:
    text = index([], "A report", [ReportPart("board/compare.json", "the comparison", record)])
    assert "The comparison's record is not one of this version: `make test-npu` makes it anew." in text


@pytest.mark.usefixtures("no_doctor")
def test_the_command(
    build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AERIE_CACHE", str(build))
    path = tmp_path / "mine.zip"
    assert main(["report", "--out", str(path)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"\d+ bytes  versions\.json: versions of Aerie", printed)
    assert "-  board/*.xml: results of the board tests (not in it: there is none yet)" in printed
    assert (
        f"{path}: {path.stat().st_size} bytes. Look at it before you send it (index.md says what is in it),"
        in printed
    )
    assert command.default_path().parent == board_folder()


def test_a_file_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "all_parts", lambda source: [])
    (tmp_path / "file").touch()
    assert main(["report", "--out", str(tmp_path / "file" / "r.zip")]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert line.endswith("name another file with --out")


@pytest.mark.parametrize(
    ("program", "missing"),
    [
        ("print('said')", ""),
        ("import sys; sys.exit('no right to do so')", "exit code 1: no right to do so"),
        ("import time; time.sleep(60)", "did not answer"),
    ],
)
def test_versions_of_tools_are_read(program: str, missing: str) -> None:
    answer = run_tool([sys.executable, "-c", program], limit_s=0.5 if "sleep" in program else 20)
    assert missing in answer.missing
    assert bool(missing) == (answer.content == "")


def test_a_tool_that_is_not_there() -> None:
    assert run_tool(["no-such-tool"]).missing == "no-such-tool is not on this machine"


def test_only_npu_lines_of_the_kernel_log_are_included() -> None:
    log = "[1] input: mouse\n[2] amdxdna 0000:c5:00.1: init\n[3] NPU reset\n[4] usb 1\n"
    assert parts._about_npu(log) == "[2] amdxdna 0000:c5:00.1: init\n[3] NPU reset\n"


def test_a_log_that_goes_away_while_it_is_read(tmp_path: Path) -> None:
    assert parts._read_tail(tmp_path / "gone.log") == ("", "it cannot be read (No such file or directory)")


@pytest.mark.slow
def test_a_real_report_of_this_machine(tmp_path: Path) -> None:
    """With the real doctor and whatever tools there are: it names neither the machine nor its owner."""
    found: list[Any] = list(all_parts(ReportSource(tmp_path)))
    assert {"versions.json", "doctor.json"} <= {part.name for part in found if not part.missing}
    path = tmp_path / "r.zip"
    write_archive(path, found, Redactor.for_this_machine(), "A report")
    with zipfile.ZipFile(path) as archive:
        text = "".join(archive.read(name).decode() for name in archive.namelist())
    assert str(Path.home()) + "/" not in text


ANN = Redactor(
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
    assert ANN.redact_text(text) == clean


def test_a_token_in_a_file_of_json_is_found_behind_escapes() -> None:
    scrubber = Redactor({"/home/jörg": "~"}, {"jörg": "<user>"}, ('pä"ss\\word',))
    document = json.dumps({"path": "/home/jörg/x", "by jörg": ["Jörg", 3, None, 'pä"ss\\word']})
    assert "\\u00f6" in document
    assert json.loads(scrubber.redact_json(document)) == {
        "path": "~/x",
        "by <user>": ["<user>", 3, None, "<secret>"],
    }


def test_invalid_json_is_included_as_text() -> None:
    assert ANN.redact_json("{ /home/ann") == "{ ~"


def test_generic_and_short_names_stay() -> None:
    scrubber = Redactor({"/": "~"}, {"root": "<user>", "ai": "<host>", "": "<x>"}, ("short", ""))
    assert scrubber.redact_text("root of ai, short /root/x") == "root of ai, short /root/x"


def test_percent_encoded_folders_are_found() -> None:
    scrubber = Redactor({"/home/a b": "~"}, {}, ())
    assert scrubber.redact_text(f"file://{quote('/home/a b/x')}") == "file://~/x"


def test_a_line_of_a_megabyte_takes_no_time() -> None:
    started = time.process_time()
    line = "x" * (1 << 20)
    assert ANN.redact_text(line) == line
    assert time.process_time() - started < 5


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
    scrubber = Redactor({home: "~"}, {user: "<user>", host: "<host>"}, (secret,))
    pieces = [user, host, secret, home, f"{home}/x", user.upper(), host.title()]
    text = ""
    for _ in range(data.draw(st.integers(1, 8))):
        text += (
            data.draw(TEXTS)
            + data.draw(SEPARATORS)
            + data.draw(st.sampled_from(pieces))
            + data.draw(SEPARATORS)
        )
    clean = OURS.sub("\0", scrubber.redact_text(text))
    assert home not in clean
    assert secret not in clean
    for name in (user, host):
        assert name in GENERIC_NAMES or not re.search(rf"(?<![^\W_]){name}(?![^\W_])", clean, re.IGNORECASE)


@settings(max_examples=30)
@given(
    st.recursive(
        TEXTS | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)
    )
)
def test_records_keep_their_shape(record: object) -> None:
    scrubber = Redactor({"/home/zoe": "~"}, {"zoe": "<user>"}, ())
    clean = json.loads(scrubber.redact_json(json.dumps(record)))
    assert type(clean) is type(record)
    assert "zoe" not in json.dumps(clean).lower() or "zoe" in json.dumps(record).lower()


@given(
    st.dictionaries(
        st.sampled_from(["HF_TOKEN", "MY_API_KEY", "AWS_SECRET", "DB_PASSWORD"]), SECRETS, min_size=1
    )
)
def test_values_of_secret_variables_go(environment: dict[str, str]) -> None:
    scrubber = Redactor.for_this_machine({**environment, "HOME": "/home/zoe", "USER": "zoe"})
    values = " ".join(environment.values())
    assume(
        not any(
            value in placeholder for value in environment.values() for placeholder in ("<secret>", "<token>")
        )
    )
    clean = scrubber.redact_text(f"a {values} b")
    assert not any(value in clean for value in environment.values())


def test_this_machine() -> None:
    scrubber = Redactor.for_this_machine({"HOME": "/home/zoe", "USER": "zoe", "PATH": "/usr/bin"})
    assert (
        scrubber.redact_text(f"{PROJECT}/build /home/zoe/x zoe /usr/bin")
        == "<project>/build ~/x <user> /usr/bin"
    )
    assert scrubber.secrets == ()
    assert (PROJECT / "aerie" / "board").is_dir()
    assert MIN_NAME_LENGTH == 3
