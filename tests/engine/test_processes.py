"""A model that two processes share, by torch.distributed with gloo: the bits of two devices in one process,
and the error if the other process diverges or ends."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from aerie import Model, load
from aerie.cli.arguments import default_cache_dir
from aerie.common.errors import UserError
from aerie.engine.communication import PeerError, between_processes

IDS = [int(token) for token in np.random.default_rng(6).integers(3, 1400, 13)]
PATIENCE_S = 60.0
OPTIONS: dict[str, Any] = {
    "backend": "virtual", "decode": "rows", "variants": "8x512", "kv_pool": 512,
    "cache_dir": default_cache_dir(),
}  # fmt: skip

PEER = """
import json, sys
from pathlib import Path
from aerie import AerieError, between_processes, load
address, patience, options = json.loads(sys.argv[1])
options["cache_dir"] = Path(options["cache_dir"])
with load("demo", group=between_processes(address, 1, 2, patience), **options) as model:
    print("ready", flush=True)
    for line in sys.stdin:
        call, *given = json.loads(line)
        try:
            made = getattr(model, call)(*given)
            print("made", str(getattr(made, "text", "")), flush=True)
        except AerieError as error:
            print("refused", error, flush=True)
"""
"""Rank 1: makes the calls of a model that standard input names."""


@dataclass
class Pair:
    """Both processes: the model here, and the process of rank 1."""

    model: Model
    peer: subprocess.Popen[str]

    def ask(self, call: str, *given: Any) -> None:
        """Have the other make a call."""
        assert self.peer.stdin is not None
        self.peer.stdin.write(json.dumps([call, *given]) + "\n")
        self.peer.stdin.flush()

    def heard(self) -> str:
        """What it says next."""
        assert self.peer.stdout is not None
        return self.peer.stdout.readline().strip()


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    given = json.dumps([address, PATIENCE_S, {**OPTIONS, "cache_dir": str(OPTIONS["cache_dir"])}])
    peer = subprocess.Popen(
        [sys.executable, "-c", PEER, given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        with load("demo", group=between_processes(address, 0, 2, PATIENCE_S), **OPTIONS) as model:
            pair = Pair(model, peer)
            assert pair.heard() == "ready"
            yield pair
    finally:
        peer.kill()
        peer.communicate()


def test_others_that_do_not_come_are_not_waited_for_forever() -> None:
    """Rank 0 listens, and nobody is there."""
    started = time.perf_counter()
    message = (
        r"^rank 0 of 2 did not meet the others at 127.0.0.1:0 in 0.2 s \(.*\); start all of them, with one"
    )
    with pytest.raises(UserError, match=message):
        between_processes("127.0.0.1:0", 0, 2, 0.2)
    assert time.perf_counter() - started < 60


def test_two_processes_make_the_bits_of_two_devices(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits, an answer by itself, and a batch."""
    monkeypatch.setenv("VNPU_DEVICES", "2")
    france, egypt = "What is the capital of France?", "What is the capital of Egypt?"
    for call in (["logits", IDS], ["generate", france], ["generate_batch", [egypt, france]]):
        pair.ask(*call)
    with load("demo", devices=[0, 1], **OPTIONS) as shared:
        assert pair.model.logits(IDS).tobytes() == shared.logits(IDS).tobytes()
    answer = pair.model.generate(france)
    batch = [each.text for each in pair.model.generate_batch([egypt, france])]
    assert [answer.text, *batch] == [
        "The capital of France is Paris.",
        "The capital of Egypt is Cairo.",
        "The capital of France is Paris.",
    ]
    assert [pair.heard() for _ in range(3)] == ["made", "made The capital of France is Paris.", "made"]


def test_processes_that_differ_are_reported(pair: Pair) -> None:
    """Both, and they go on."""
    pair.ask("logits", IDS[1:])
    with pytest.raises(PeerError, match="rank 1 of 2 is about to compute other tokens than rank 0: give"):
        pair.model.logits(IDS)
    assert pair.heard().startswith("refused rank 1 of 2 is about to compute other tokens")
    pair.ask("logits", IDS)
    assert pair.model.logits(IDS).shape[0] == len(IDS)
    assert pair.heard() == "made"


def test_a_process_has_one_device(pair: Pair) -> None:
    group: Any = object()
    with pytest.raises(UserError, match=r"devices is \[0, 1\], and a process among several has one device"):
        load("demo", devices=[0, 1], group=group)


def test_a_peer_that_dies_ends_what_waits_for_it_and_is_named(pair: Pair) -> None:
    """The last: nothing goes on between the two afterwards, and this process lives."""
    pair.peer.kill()
    pair.peer.wait()
    started = time.perf_counter()
    message = (
        r"^rank 1 of 2 is gone, or did not answer in 60 s \(Connection closed .*\); what was under way is"
    )
    for _ in range(2):
        with pytest.raises(PeerError, match=message):
            pair.model.generate("What is the capital of France?")
    assert time.perf_counter() - started < PATIENCE_S / 2
    with load("demo", **OPTIONS) as alone:
        assert alone.generate("What is the capital of France?").text == "The capital of France is Paris."
