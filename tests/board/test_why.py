"""What `aerie why` says of status registers."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerie.board.__main__ import main
from aerie.board.why import explain
from aerie.common.errors import UserError

REGISTERS = """\
registers of a board in this state:
  core (0, 2) Core_Status 0x32004 = 0x000201
  core (0, 3) Core_Status 0x32004 = 0x000041
  tile (0, 2) DMA_S2MM_Status_0 0x1df00 = 0x00080013
  tile (0, 3) DMA_S2MM_Status_0 0x1df00 = 0x00080007
  tile (0, 3) DMA_MM2S_Status_0 0x1df10 = 0x00080007
  tile (0, 0) DMA_S2MM_Status_0 0x1d220 = 0x00080013
"""
"""As the virtual NPU prints them of a hang; test_aie_faults compares what it says itself with `aerie why`."""


ONE = {
    "0 2 0x32004 0x100001": "core (0, 2) has ended",
    "1 3 204804 2": "core (1, 3) is held in reset",
    "0 2 0x32004 0": "core (0, 2) is not enabled",
    "0 2 0x32004 1": "core (0, 2) goes on",
    "0 2 0x32004 0x4011": (
        "core (0, 2) waits for memory of the tile north of it, waits for the cascade, which is empty"
    ),
    "0x21df00 0x05280007": (
        "S2MM 0 of core tile (0, 2) waits for a lock, in descriptor 5, with 2 in its queue"
    ),
    "0 1 0xa0684 0x2a080013": "MM2S 1 of memtile (0, 1) waits for room in the stream, in descriptor 42",
    "0 0 0x1d228 0x40080023": "MM2S 0 of shim (0, 0) waits for its token to go out, in descriptor 0",
    "3 0 0x1d220 0": "S2MM 0 of shim (3, 0) has no task",
    "0 2 0x1df00 0x1800": (
        "S2MM 0 of core tile (0, 2) has no task, after an error: a descriptor that is not valid; more words "
        "than its descriptor has: a packet did not end with it"
    ),
    "0 2 0x1f030 0x2": "lock 3 of tile (0, 2) is 2",
}


@pytest.mark.parametrize("line", ONE)
def test_a_register(line: str) -> None:
    assert explain(line)[0] == ONE[line]


TOGETHER = {
    "0 2 0x1df00 0x80013\n0 1 0xa0680 0x80013": "a packet may hold an arbiter or a link",
    "0 2 0x32004 0x201\n0 0 0x1d228 0": "the host has not started one, or waits for a token",
    "0 2 0x32004 0x1\n0 2 0x1df00 0x80007": "the core did not give its buffer back",
    "0 0 0x1d220 0x40000": "a queue takes four tasks beside the one that runs",
}


@pytest.mark.parametrize("dump", TOGETHER)
def test_what_it_may_be(dump: str) -> None:
    (hint,) = (line for line in explain(dump) if line.startswith("perhaps: "))
    assert TOGETHER[dump] in hint


def test_what_is_no_register(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        UserError, match=r"line 2: 'core 7' is no register: write column, row, address and value"
    ):
        explain("0 2 0x32004 1\ncore 7")
    with pytest.raises(
        UserError, match="none of the 1 registers is the status of a core or a channel, or a lock"
    ):
        explain("0 2 0x1d000 1")
    assert main(["why", str(tmp_path / "none")]) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err
    (tmp_path / "dump").write_text(REGISTERS)
    assert main(["why", str(tmp_path / "dump")]) == 0
    assert "core (0, 2) waits for a lock of its own tile" in capsys.readouterr().out
