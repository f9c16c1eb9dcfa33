"""The JSON for the page of the virtual NPU: the static check, what tiles moved, and the trace."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import aerie.serve.app
from aerie.serve import npu_view
from aerie.virtual_npu.timing import TimingError

PAGE = (Path(aerie.serve.app.__file__).parent / "npu.html").read_text(encoding="utf-8")
NAME = "cached_attn_ar8_cl512"


def test_a_program_is_checked_run_and_traced(serving: Any) -> None:
    with serving.http as http:
        listed = http.get("/npu/programs").json()
        assert NAME in [each["name"] for each in listed["programs"]]
        assert (listed["device"]["columns"], listed["device"]["rows"]) == (8, 4)
        view = http.post(f"/npu/programs/{NAME}", timeout=120).json()
        assert http.get(f"/npu/programs/{NAME}").json() == view
        trace = http.get(f"/npu/trace/{NAME}")
    (launch,) = view["launches"]
    assert {(core["x"], core["y"]) for core in launch["cores"]} == {(0, y) for y in range(4)}
    assert all(0 < core["peak_bytes"] <= view["device"]["core"]["bytes"] for core in launch["cores"])
    keys_and_values, queries = 2 * 2 * 512 * 64 * 2, 8 * 256 * 2
    assert launch["shim"]["bytes_out"] <= keys_and_values + queries + 8 * 16 * 4 * 4
    assert launch["shim"]["bytes_in"] == queries  # as large as what is made of them
    tiles = launch["memtiles"]
    assert len(tiles) == 8
    assert sum(tile["bytes_in"] for tile in tiles) == launch["memtile"]["bytes_in"]
    assert sum(tile["bytes_out"] for tile in tiles) == launch["memtile"]["bytes_out"]
    assert [tile["bytes_in"] == tile["bytes_out"] > 0 for tile in tiles] == 4 * [True] + 4 * [False]
    assert view["check"]["ok"]
    assert [each["name"] for each in view["predicted"]["launches"]] == [launch["name"]]
    assert (view["predicted"]["measured"], view["predicted"]["total_us"] > 0) == (False, True)
    assert view["spans"]
    assert "not hardware time" in view["clock"]
    assert "attachment" in trace.headers["content-disposition"]
    assert {"thread_name", "process_name"} <= {event["name"] for event in trace.json()["traceEvents"]}


def test_a_program_that_is_not_there(serving: Any) -> None:
    with serving.http as http:
        answers = [http.get(f"/npu/{kind}/none") for kind in ("programs", "trace")]
    message = "there is no program 'none'; GET /npu/programs lists those that are compiled"
    assert [(each.status_code, each.json()["error"]["message"]) for each in answers] == [(404, message)] * 2


def test_the_page_is_open_and_its_numbers_are_not(serving: Any, limit: Any) -> None:
    limit(api_key="k")
    with serving.http as http:
        statuses = [http.get(path).status_code for path in ("/npu", "/npu/programs", f"/npu/trace/{NAME}")]
        page = http.get("/npu")
    assert statuses == [200, 401, 401]
    assert page.text == PAGE
    assert "default-src 'none'; connect-src 'self'" in page.headers["content-security-policy"]


def test_the_page_has_no_outside_asset_and_writes_no_html() -> None:
    assert not re.search(r"https?://|\bsrc=|<link|@import|url\(", PAGE)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|\bon\w+=\"", PAGE)


def test_a_program_too_large_is_checked_and_not_run(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npu_view, "MAX_ARGUMENT_BYTES", 1000)
    seen = npu_view.make_view(serving.service.require_loaded().session.model.programs[NAME])
    view = npu_view.view_to_json(seen)
    assert (view["ran"], view["launches"], view["check"]["ok"]) == (False, [], True)
    assert view["why"].endswith(
        "1000 is the most that is run for this page; `aerie vnpu run --stats --trace` has no limit"
    )


def test_a_program_without_a_prediction_says_why(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(text: str, filename: str) -> None:
        raise TimingError(f"{filename} has no air.launch")

    monkeypatch.setattr(npu_view, "MAX_ARGUMENT_BYTES", 1000)
    monkeypatch.setattr(npu_view, "predict", refuse)
    seen = npu_view.make_view(serving.service.require_loaded().session.model.programs[NAME])
    assert npu_view.view_to_json(seen)["predicted"] == {"error": f"{NAME} has no air.launch"}


def test_herds_at_one_place_add_up() -> None:
    counted = {"line": 1, "bytes_in": 4, "bytes_out": 2, "transfers": 1, "kernel_calls": 1}
    wheres = ["launch @a", "segment @s", "herd @h (1, 2)", "herd @g (1, 2)", "launch @b"]
    peaks = [0, 64, 30, 20, 0]
    tiles = [
        {"where": where, "peak_l1_bytes": peak, **counted} for where, peak in zip(wheres, peaks, strict=True)
    ]
    first, second = npu_view.launches(tiles)
    assert (first["name"], second["name"]) == ("a", "b")
    assert first["cores"] == [
        {"x": 1, "y": 2, "bytes_in": 8, "bytes_out": 4, "transfers": 2, "kernel_calls": 2, "peak_bytes": 30}
    ]
    assert (first["memtile"]["bytes_in"], second["cores"]) == (4, [])


def _read_trace(text: str) -> dict[str, Any]:
    """What the page's readTrace makes of a file's text, or `{"error": ...}`."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here")
    script = PAGE[PAGE.index('"use strict"') : PAGE.index("</script>")]
    script += f"""
      try {{
        const {{tiles, ...others}} = readTrace({json.dumps(text)});
        console.log(JSON.stringify({{...others, tiles: Object.fromEntries(tiles)}}));
      }} catch (error) {{ console.log(JSON.stringify({{error: error.message}})); }}
    """
    done = subprocess.run([node, "-"], input=script, capture_output=True, text=True, check=True)
    read: dict[str, Any] = json.loads(done.stdout)
    return read


def _box(tid: int, name: str, cat: str, at: int, long: int, **args: object) -> dict[str, Any]:
    return {"name": name, "cat": cat, "ph": "X", "ts": at, "dur": long, "tid": tid, "args": args}


OPENED = [
    {"name": "thread_name", "ph": "M", "tid": 0, "args": {"name": "MM2S 1 of memtile (3, 1)"}},
    _box(0, "waits for lock full >= 1", "wait", 0, 10, line=4),
    _box(0, "BD of a", "bd", 10, 20, line=4, bytes=64),
    _box(0, "BD of a", "bd", 30, 5, line=4, bytes=64, unfinished=True),
    {"name": "lock full of tile (3, 1)", "ph": "C", "ts": 0, "args": {"value": 0}},
    {"name": "lock full of tile (3, 1)", "ph": "C", "ts": 10, "args": {"value": 1}},
]


def test_the_page_reads_a_trace_of_a_device() -> None:
    read = _read_trace(json.dumps({"traceEvents": OPENED, "otherData": {"events_left_out": 7}}))
    assert read["leftOut"] == 7
    (lane,) = read["lanes"]
    assert (read["end"], lane["place"], lane["bytes"], lane["transfers"]) == (35, "3, 1", 64, 1)
    assert lane["busy"] == [[10, 20, "BD of a, line 4"]]
    assert lane["wait"] == [[0, 10, "waits for lock full >= 1, line 4"]]
    assert lane["unfinished"] == [[30, 5, "BD of a, line 4"]]
    assert read["locks"] == [
        {"name": "lock full of tile (3, 1)", "place": "3, 1", "values": [[0, 0], [10, 1]]}
    ]
    assert read["tiles"] == {"3, 1": {"bytes_in": 0, "bytes_out": 64, "transfers": 1}}
    assert read["buffers"] == [
        {"name": "a at 3, 1", "bytes_in": 0, "bytes_out": 64, "transfers": 1, "bytes": 64}
    ]
    assert read["isAir"] is False


AIR_TRACE = [
    {"name": "thread_name", "ph": "M", "tid": 0, "args": {"name": "launch: air.channel.put @in[0]"}},
    {"name": "thread_name", "ph": "M", "tid": 1, "args": {"name": "herd @core (0, 1)"}},
    _box(1, "herd @core", "body", 0, 20, line=3, unfinished=True),
    _box(0, "air.channel.put @in", "put", 2, 1, line=2, bytes=64, **{"from": "%x", "from_memory": "L3"}),
    _box(1, "air.channel.get @in", "get", 1, 5, line=4, bytes=64, to="%a", to_memory="L1"),
    _box(1, "air.dma_memcpy_nd", "copy", 7, 1, line=5, bytes=32, to="%y", to_memory="L3", from_memory="L1"),
    _box(1, "air.channel.get @in", "get", 9, 11, line=6, bytes=64, to="%a", to_memory="L1", unfinished=True),
]


def test_the_page_reads_a_trace_of_an_air_program() -> None:
    """Of tiles, the channel and the buffers the bytes; of a transfer the steps that it waited; what never
    ended."""
    read = _read_trace(json.dumps({"traceEvents": AIR_TRACE}))
    core = next(lane for lane in read["lanes"] if lane["name"] == "herd @core (0, 1)")
    assert (read["isAir"], core["place"]) == (True, "herd @core (0, 1)")
    assert core["wait"] == [[1, 4, "air.channel.get @in, line 4"]]
    assert [box[:2] for box in core["busy"]] == [[5, 1], [7, 1]]
    assert core["unfinished"] == [[9, 11, "air.channel.get @in, line 6"]]
    assert read["tiles"] == {
        "launch": {"bytes_in": 0, "bytes_out": 64, "transfers": 1},
        "herd @core (0, 1)": {"bytes_in": 64, "bytes_out": 32, "transfers": 2},
    }
    assert [(one["name"], one["bytes"]) for one in read["channels"]] == [("@in", 64)]
    assert [(one["name"], one["bytes_in"], one["bytes_out"]) for one in read["buffers"]] == [
        ("%x in L3", 0, 64),
        ("%a in L1", 64, 0),
        ("%y in L3", 32, 0),
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"traceEvents": 3}'])
def test_the_page_refuses_a_file_that_is_no_trace(text: str) -> None:
    message = "This file is no trace: it has no traceEvents. aerie vnpu run --trace FILE writes one"
    assert _read_trace(text) == {"error": message}


def test_the_page_reads_odd_events() -> None:
    read = _read_trace(json.dumps({"traceEvents": [None, 3, {}, {"ph": "X"}, {"ph": "M"}]}))
    assert (read["end"], [lane["name"] for lane in read["lanes"]]) == (1, ["undefined"])
