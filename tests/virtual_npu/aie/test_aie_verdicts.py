"""Designs of each class in mlir-aie's hw_verdicts: they pass or hang here as such designs did on a Strix.

The designs are our own. What tells a pair of them apart is one arbiter, one port, a word or a moment.
"""

from __future__ import annotations

import numpy as np
import pytest

from aerie.virtual_npu.errors import VirtualNpuDeadlock
from aerie.virtual_npu.options import BuildOptions
from aerie.virtual_npu.program import Program
from tests.virtual_npu.aie.routed import BLOCK, IN_WORDS, Routed

pytestmark = pytest.mark.slow

ALL = 4 * BLOCK
SHIM = "x30: D0>N3 D1>N7 N2>D0\n30: S3>N3 S7>N5 N0>S2\n"
APART = "31: S3>D0 S5>D1 N0>S0 N0=1.0 N1=0.0 D1|31,1>1.0 D0|31,0>0.0\n"
ENDS = {"a": "30M0", "b": "30M1", "out": "30S0"}
IN_TURN = f"a+0,{ALL} out+0,{ALL} w:a b+{ALL},{ALL} w:out"
"""The host sends b when a has gone into the memtile, so that a's second block waits for the core first."""


def _join(name: str, routes: str, blocks: int = 4, more: int = 0) -> str:
    """A core takes a block of a and one of b in each round."""
    design = Routed(name).ring("a_mem", "31", 0, 0, blocks, more).ring("b_mem", "31", 1, 1, blocks)
    for buffer in ("a_in", "b_in", "sum"):
        design.buffer(buffer, "32")
    design.core("32", blocks, ["a_in", "b_in"], "sum")
    loops, words = blocks > 1, blocks * BLOCK
    for channel, buffer in (("S0", "a_in"), ("S1", "b_in"), ("M0", "sum")):
        design.channel("32", channel, [buffer], loops=loops)
    sequence = f"a+0,{words + more} out+0,{words} w:a b+{ALL},{words} w:out"
    return design.routes(SHIM + routes).host(ENDS, sequence, words)


def _broadcast(name: str, routes: str) -> str:
    """As a join, where a second core gets a too."""
    design = Routed(name).ring("a_mem", "31", 0, 0).ring("b_mem", "31", 1, 1)
    for buffer in ("a_in", "b_in", "sum"):
        design.buffer(buffer, "32")
    design.buffer("copy_in", "33").buffer("copy", "33")
    design.core("32", 4, ["a_in", "b_in"], "sum").core("33", 4, ["copy_in"], "copy")
    for tile, channel, buffer in (("32", "S0", "a_in"), ("32", "S1", "b_in"), ("32", "M0", "sum")):
        design.channel(tile, channel, [buffer])
    design.channel("33", "S0", ["copy_in"]).channel("33", "M0", ["copy"])
    sequence = f"a+0,{ALL} out+0,{ALL} out2+{ALL},{ALL} w:a b+{ALL},{ALL} w:out w:out2"
    return design.routes(routes).host({**ENDS, "out2": "30S1"}, sequence, 2 * ALL)


def _relay(name: str, routes: str) -> str:
    """As a join in a farther core; a goes through the memory of a nearer one."""
    design = Routed(name).ring("a_mem", "31", 0, 0).ring("b_mem", "31", 1, 1).buffer("relay", "32")
    for buffer in ("a_in", "b_in", "sum"):
        design.buffer(buffer, "33")
    design.channel("32", "S0", ["relay"]).channel("32", "M0", ["relay"], packet=2)
    design.core("33", 4, ["a_in", "b_in"], "sum")
    for channel, buffer in (("S0", "a_in"), ("S1", "b_in"), ("M0", "sum")):
        design.channel("33", channel, [buffer])
    return design.routes(routes).host(ENDS, IN_TURN, ALL)


def _line_of_two(name: str, spins: int, early: bool) -> str:
    """Two cores one after the other; what comes into the second one and what it sends share an arbiter."""
    design = Routed(name)
    for number, (tile, slow) in enumerate((("32", 0), ("33", spins))):
        design.buffer(f"in{number}", tile).buffer(f"out{number}", tile)
        design.core(tile, 8, [f"in{number}"], f"out{number}", slow, early)
        design.channel(tile, "S0", [f"in{number}"]).channel(tile, "M0", [f"out{number}"], packet=number + 1)
    routes = """
      x30: D0>N3
      x40: N2>D0
      30: N1=0.0 S3|31,0>0.0
      31: N1=0.0 S1|31,0>0.0
      32: D0=1.0 N3=0.0 E1=2.0 S1|31,0>1.0 D0|31,1>0.0 N0|31,2>2.0
      33: D0=1.0 S0=1.1 S3|31,1>1.0 D0|31,2>1.1
      42: S2=0.0 W1|31,2>0.0
      41: S2=0.0 N2|31,2>0.0
      40: S2=0.0 N2|31,2>0.0"""
    sequence = f"a+0,{8 * BLOCK}#0 out+0,{8 * BLOCK} w:out"
    return design.routes(routes).host({"a": "30M0", "out": "40S0"}, sequence, 8 * BLOCK)


def _tokens(name: str, arbiter: str) -> str:
    """The host waits for a token, whose packet needs an arbiter that a waiting packet may hold."""
    design = Routed(name).ring("a_mem", "31", 0, 0, 2).ring("b_mem", "31", 1, 1, 2)
    routes = f"""
      x30: D0>N3 D1>N7
      30: S3>N3 S7>N5 E0=5.3 E1=0.0 N2|31,0>5.3 N1|31,1>0.0 S0={arbiter}h T0|31,15>{arbiter}
      31: S3>D0 S5>D1 S1=0.0 S2=5.3 D1|31,1>0.0 D0|31,0>5.3
      40: S2=5.3 S3=0.0 W0|31,0>5.3 W1|31,1>0.0 S0=4.3h T0|31,15>4.3
      x40: N2>D0 N3>D1"""
    words = 2 * BLOCK
    sequence = f"a+0,{words} w:a b+{words},{words} out2+{words},{words} w:out2 out+0,{words} w:out"
    channels = {"a": "30M0", "b": "30M1", "out": "40S0", "out2": "40S1"}
    return design.routes(routes).host(channels, sequence, 2 * words)


def _headers(name: str, keeps: str) -> str:
    """a comes in eight packets that fill a descriptor; with their headers they are 8 words too long."""
    design = Routed(name).buffer("parts", "31", credits=8).ring("b_mem", "31", 1, 1, 1)
    design.channel("31", "S0", ["parts"], 8, loops=False).channel("31", "M0", ["parts"], 8, 0, loops=False)
    for buffer in ("a_in", "b_in", "sum"):
        design.buffer(buffer, "32")
    design.core("32", 1, ["a_in", "b_in"], "sum")
    for channel, buffer in (("S0", "a_in"), ("S1", "b_in"), ("M0", "sum")):
        design.channel("32", channel, [buffer], loops=False)
    routes = SHIM + APART + f"32: D0>S0 D0=1.0{keeps} D1=1.1 S0|31,1>1.1 S1|31,0>1.0"
    return design.routes(routes).host(ENDS, f"a+0,{BLOCK} out+0,{BLOCK} w:a b+{ALL},{BLOCK} w:out", BLOCK)


def _meet(name: str, packets: int) -> str:
    """A memtile sends packets until its credits end; each takes the memtile's arbiter and then the shim's.
    The host starts a packet that takes them the other way round, when it has started what receives all."""
    design = Routed(name).buffer("b_mem", "31", credits=0, full=packets).buffer("sink", "32", credits=60)
    design.channel("31", "M0", ["b_mem"], packet=1).channel("32", "S0", ["sink"])
    routes = """
      x30: D0>N3 N2>D0
      30: S2=5.0,5.1 N1=5.1 N0|31,1>5.0 S3|31,2>5.1
      31: N0=0.0,0.1 S0=0.0 D0|31,1>0.0 S1|31,2>0.1
      32: D0=0.0 S0|31,1>0.0 S0|31,2>0.0"""
    words = (packets + 1) * BLOCK
    return design.routes(routes).host(
        {"a": "30M0", "out": "30S0"}, f"out+0,{words} a+0,{BLOCK}#2 w:out", words
    )


def _two_makers(name: str, spins: int) -> str:
    """Two cores fill two buffers of a memtile, which sends them in turns. The fast one's third block holds
    the arbiter of both, where the slow one's first has not come before."""
    design = Routed(name).buffer("a_mem", "31").buffer("b_mem", "31").buffer("a", "32").buffer("b", "33")
    design.core("32", 3, [], "a").core("33", 3, [], "b", spins)
    design.channel("32", "M0", ["a"], packet=1).channel("33", "M0", ["b"], packet=2)
    design.channel("31", "S0", ["a_mem"]).channel("31", "S1", ["b_mem"])
    design.channel("31", "M0", ["a_mem", "b_mem"])
    routes = """
      x30: N2>D0
      30: N0>S2
      31: D0>S0 D0=0.0 D1=0.1 N0|31,1>0.0 N1|31,2>0.1
      32: S0=0.0 S1=1.0 D0|31,1>0.0 N0|31,2>1.0
      33: S0=0.0 D0|31,2>0.0"""
    return design.routes(routes).host({"out": "30S0"}, f"out+0,{6 * BLOCK} w:out", 6 * BLOCK)


def _crowd(name: str) -> str:
    """Three packets for one arbiter: one that has it until the host lets it go on, one that waits from the
    begin at the highest port, and one that comes last, at the lowest."""
    design = Routed(name).buffer("first", "31", credits=0, full=1).buffer("last", "31")
    design.buffer("far", "32", credits=0, full=1)
    design.channel("31", "S0", ["last"], loops=False).channel("31", "M0", ["last"], packet=0, loops=False)
    design.channel("31", "M1", ["first"], packet=1, loops=False)
    design.channel("32", "M0", ["far"], packet=2, loops=False)
    routes = """
      x30: D0>N3 N2>D0
      30: S3>N3 N0>S2
      31: S3>D0 S0=0.0 D0|31,0>0.0 D1|31,1>0.0 N0|31,2>0.0
      32: S0=0.0 D0|31,2>0.0"""
    sequence = f"a+{BLOCK},{BLOCK} w:a out+0,{3 * BLOCK} w:out"
    return design.routes(routes).host({"a": "30M0", "out": "30S0"}, sequence, 3 * BLOCK)


def _chain_lock(name: str, blocks: int, routes: str) -> str:
    """A join whose first input has one lock for a whole chain of blocks, and two buffers in the core."""
    design = Routed(name).buffer("a_mem", "31", blocks, credits=1).ring("b_mem", "31", 1, 1, blocks)
    words = f"memref<{blocks * BLOCK}xi32>"
    whole = f"""aie.dma_start(S2MM, 0, ^whole, ^NEXT)
^whole:
aie.use_lock(%a_mem_p, AcquireGreaterEqual, %one)
aie.dma_bd(%a_mem : {words})
aie.use_lock(%a_mem_c, Release, %one)
aie.next_bd ^whole"""
    chain = ["aie.dma_start(MM2S, 0, ^part0, ^NEXT)"]
    for part in range(blocks):
        chain.append(f"^part{part}:")
        chain += ["aie.use_lock(%a_mem_c, AcquireGreaterEqual, %one)"] if part == 0 else []
        packet = "{packet = #aie.packet_info<pkt_type = 0, pkt_id = 0>}"
        chain.append(f"aie.dma_bd(%a_mem : {words} offset = {part * BLOCK} len = {BLOCK}) {packet}")
        chain += ["aie.use_lock(%a_mem_p, Release, %one)"] if part == blocks - 1 else []
        chain.append(f"aie.next_bd ^part{(part + 1) % blocks}")
    design.programs["31"] += [whole, "\n".join(chain)]
    for buffer in ("a_in", "a_in2", "b_in", "sum"):
        design.buffer(buffer, "32")
    design.core("32", blocks // 2, ["a_in", "b_in", "a_in2"], "sum")
    design.channel("32", "S0", ["a_in", "a_in2"]).channel("32", "S1", ["b_in"]).channel("32", "M0", ["sum"])
    out = blocks // 2 * BLOCK
    sequence = f"a+0,{blocks * BLOCK} out+0,{out} w:a b+{ALL},{blocks * BLOCK} w:out"
    return design.routes(SHIM + routes).host(ENDS, sequence, out)


ONE_ARBITER = APART + "32: D0>S0 D0=1.0 D1=1.1 S0|31,1>1.1 S1|31,0>1.0"
TWO_ARBITERS = APART + "32: D0>S0 D0=1.0 D1=0.0 S0|31,1>0.0 S1|31,0>1.0"
ONE_LINK = """31: S3>D0 S5>D1 N0>S0 N1=0.0,0.1 D1|31,1>0.1 D0|31,0>0.0
  32: D0>S0 D0=0.0 D1=1.0 S1|31,1>1.0 S1|31,0>0.0"""
FAR = "x30: D0>N3 D1>N7 N2>D0 N3>D1\n30: S3>N3 S7>N5 N0>S2 N1>S3\n"
FAR_MEM = "31: S3>D0 S5>D1 N0>S0 N1>S1 N0=1.0 N1=0.0 D1|31,1>1.0 D0|31,0>0.0\n"
COPY = "33: D0>S0 D0=0.0 S5|31,0>0.0\n"
RELAY = """x30: D0>N3 D1>N7 N2>D0
30: S3>N3 S7>N5 N1>S2
31: S3>D0 S5>D1 N1>S1 N0=1.0 N1=0.0 D1|31,1>1.0 D0|31,0>0.0
"""
RELAY_END = "33: D0>S0 D0=0.0 D1=1.0 S4|31,1>1.0 S0|31,2>0.0\n"
DESIGNS = {
    "join_one_arbiter": (_join("join_one_arbiter", ONE_ARBITER), True),
    "join_two_arbiters": (_join("join_two_arbiters", TWO_ARBITERS), False),
    "join_one_link": (_join("join_one_link", ONE_LINK), True),
    "one_block_one_arbiter": (_join("one_block_one_arbiter", ONE_ARBITER, 1), False),
    "five_words_more": (_join("five_words_more", ONE_ARBITER, 1, 5), False),
    "six_words_more": (_join("six_words_more", ONE_ARBITER, 1, 6), True),
    "broadcast_one_arbiter": (
        _broadcast(
            "broadcast_one_arbiter",
            FAR + FAR_MEM + COPY + "32: D0>S0 N0>S1 D0=1.0 D1=1.1 N5=1.0 S0|31,1>1.1 S1|31,0>1.0",
        ),
        True,
    ),
    "broadcast_two_arbiters": (
        _broadcast(
            "broadcast_two_arbiters",
            FAR + FAR_MEM + COPY + "32: D0>S0 N0>S1 D0=1.0 D1=0.0 N5=1.0 S0|31,1>0.0 S1|31,0>1.0",
        ),
        False,
    ),
    "relay_one_arbiter": (
        _relay(
            "relay_one_arbiter",
            RELAY + RELAY_END + "32: N0>S1 D0=2.0 N0=0.0 N4=0.1 S0|31,1>0.1 D0|31,2>0.0 S1|31,0>2.0",
        ),
        True,
    ),
    "relay_two_arbiters": (
        _relay(
            "relay_two_arbiters",
            RELAY + RELAY_END + "32: N0>S1 D0=2.0 N0=0.0 N4=1.0 S0|31,1>1.0 D0|31,2>0.0 S1|31,0>2.0",
        ),
        False,
    ),
    "slow_then_frees_both": (_line_of_two("slow_then_frees_both", 1000, False), False),
    "frees_input_then_slow": (_line_of_two("frees_input_then_slow", 1000, True), True),
    "token_behind_a_packet": (_tokens("token_behind_a_packet", "5.2"), True),
    "token_beside_a_packet": (_tokens("token_beside_a_packet", "4.3"), False),
    "host_while_others_send": (_meet("host_while_others_send", 28), True),
    "host_after_others": (_meet("host_after_others", 8), False),
    "slow_maker": (_two_makers("slow_maker", 800), True),
    "less_slow_maker": (_two_makers("less_slow_maker", 100), False),
    "lowest_port_first": (_crowd("lowest_port_first"), False),
    "chain_lock_runs_ahead": (_chain_lock("chain_lock_runs_ahead", 4, ONE_ARBITER), True),
    "chain_lock_fits": (_chain_lock("chain_lock_fits", 2, ONE_ARBITER), False),
    "chain_lock_two_arbiters": (_chain_lock("chain_lock_two_arbiters", 4, TWO_ARBITERS), False),
    "headers_dropped": (_headers("headers_dropped", ""), False),
    "headers_kept": (_headers("headers_kept", "h"), True),
}
"""Text of each design, and whether it hangs."""


@pytest.fixture(scope="module")
def program() -> Program:
    module = "\n".join(["module {", *(text for text, _ in DESIGNS.values()), "}"])
    return Program.from_text(module, "verdicts.mlir", options=BuildOptions(checks=False))


@pytest.mark.parametrize("name", DESIGNS)
def test_verdict(program: Program, name: str) -> None:
    text, hangs = DESIGNS[name]
    words = int(text.split("%out: memref<")[1].split("x")[0])
    arguments = np.arange(IN_WORDS, dtype=np.int32), np.zeros(words, np.int32)
    if hangs:
        with pytest.raises(VirtualNpuDeadlock, match="nothing can go on"):
            program.run(*arguments, entry=name)
    else:
        program.run(*arguments, entry=name)


def test_the_lowest_port_goes_before_one_that_waited_longer(program: Program) -> None:
    sent = np.arange(IN_WORDS, dtype=np.int32)
    got = program.run(sent, np.zeros(3 * BLOCK, np.int32), entry="lowest_port_first").outputs[1]
    nothing = np.zeros(BLOCK, np.int32)
    assert np.array_equal(got.reshape(3, BLOCK), [nothing, sent[BLOCK : 2 * BLOCK], nothing])


def test_a_join_sums_what_came(program: Program) -> None:
    sent = np.arange(IN_WORDS, dtype=np.int32)
    got = program.run(sent, np.zeros(ALL, np.int32), entry="join_two_arbiters").outputs[1]
    assert np.array_equal(got, sent[:ALL] + sent[ALL : 2 * ALL])
