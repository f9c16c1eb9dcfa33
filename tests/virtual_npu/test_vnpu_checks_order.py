# ruff: noqa: E501 - MLIR has long lines
"""Data races: every kind is found, with both sides in the message; the same program with the missing order is clean."""

from __future__ import annotations

import re

import numpy as np
import pytest

from aerie import virtual_npu

N = 64
L3, L2, L1 = "memref<64xf32>", "memref<64xf32, 1>", "memref<64xf32, 2>"
HALF = "memref<32xf32, 2>"


def function(name: str, launch: str, space: str = "()  in ()", constants: str = "") -> str:
    """A function of x and y around a launch that knows them as %a and %b."""
    return f"""
  func.func @{name}(%x: {L3}, %y: {L3}) {{
    {constants}
    air.launch {space} args(%a=%x, %b=%y) : {L3}, {L3} {{
      {launch}
    }}
    return
  }}"""


def herd(body: str, columns: str = "%c1", tail: str = "", name: str = "h") -> str:
    """A herd of `columns` x 1 tiles that knows x and y as %e and %f."""
    return f"""
      air.herd @{name} {tail} tile (%tx, %ty) in (%sx={columns}, %sy=%c1) args(%e=%a, %f=%b) : {L3}, {L3} {{
        {body}
      }}"""


def allocated(name: str, type_: str) -> str:
    return f"""
      %t_{name}, %{name} = air.execute -> ({type_}) {{
        %alloc = memref.alloc() : {type_}
        air.execute_terminator %alloc : {type_}
      }}"""


def given_back(name: str, type_: str, after: str) -> str:
    return f"""
      %d_{name} = air.execute [{after}] {{
        memref.dealloc %{name} : {type_}
      }}"""


def through_l2(wait: str, free: str) -> str:
    """x to L2 to y, all with tokens; `wait` is what the second transfer depends on."""
    return f"""{allocated("m", L2)}
      %in = air.dma_memcpy_nd async [%t_m] (%m[] [] [], %a[] [] []) : ({L2}, {L3})
      %out = air.dma_memcpy_nd async [{wait}] (%b[] [] [], %m[] [] []) : ({L3}, {L2})
      {given_back("m", L2, free)}"""


def tile_copy(offset: str) -> str:
    """32 elements from x to y, at an offset that a tile computes."""
    return f"""
        %m = memref.alloc() : {HALF}
        %o = {offset}
        air.dma_memcpy_nd (%m[] [] [], %e[%o] [%c32] [%c1]) : ({HALF}, {L3})
        air.dma_memcpy_nd (%f[%o] [%c32] [%c1], %m[] [] []) : ({L3}, {HALF})
        memref.dealloc %m : {HALF}"""


def asynchronous_tile(wait: str) -> str:
    """A tile that fetches, computes in an execute that depends on `wait`, and writes back."""
    return f"""{allocated("m", HALF)}
        %in = air.dma_memcpy_nd async [%t_m] (%m[] [] [], %e[%c0] [%c32] [%c1]) : ({HALF}, {L3})
        %sum = air.execute [{wait}] {{
          %v = vector.load %m[%c0] : {HALF}, vector<16xf32>
          %w = arith.addf %v, %v : vector<16xf32>
          vector.store %w, %m[%c0] : {HALF}, vector<16xf32>
        }}
        %out = air.dma_memcpy_nd async [%sum] (%f[%c0] [%c32] [%c1], %m[] [] []) : ({L3}, {HALF})
        {given_back("m", HALF, "%out")}"""


def plain_tile(before: str, after: str) -> str:
    """A tile that starts a transfer and reads what it brings in its own order, with a wait before or after."""
    return f"""
        %m = memref.alloc() : {HALF}
        %in = air.dma_memcpy_nd async (%m[] [] [], %e[%c0] [%c32] [%c1]) : ({HALF}, {L3})
        {before}
        %v = memref.load %m[%c1] : {HALF}
        {after}
        memref.store %v, %m[%c0] : {HALF}
        air.dma_memcpy_nd (%f[%c0] [%c32] [%c1], %m[] [] []) : ({L3}, {HALF})
        memref.dealloc %m : {HALF}"""


def two_herds(second: str) -> str:
    """Two herds with tokens: the first writes the halves of y, the second overwrites one."""
    first = f"air.dma_memcpy_nd (%f[%c16] [%c32] [%c1], %e[%c0] [%c32] [%c1]) : ({L3}, {L3})"
    again = f"air.dma_memcpy_nd (%f[%c32] [%c32] [%c1], %e[%c0] [%c32] [%c1]) : ({L3}, {L3})"
    return (
        "%one = "
        + herd(first, tail="async", name="one").strip()
        + "\n      %two = "
        + herd(again, tail=f"async [{second}]", name="two").strip()
    )


SHARED_L1 = f"""
      air.segment @s args(%p=%a, %q=%b) : {L3}, {L3} {{
        %s = memref.alloc() : {L1}
        air.herd @h tile (%tx, %ty) in (%sx=%c2, %sy=%c1) args(%m=%s, %e=%p, %f=%q) : {L1}, {L3}, {L3} {{
          %one = arith.constant 1.0 : f32
          %own = arith.muli %tx, STEP : index
          scf.for %i = %c0 to %c16 step %c1 {{
            %at = arith.addi %own, %i : index
            memref.store %one, %m[%at] : {L1}
          }}
        }}
        memref.dealloc %s : {L1}
      }}"""

INTERLEAVED = f"""{allocated("m", L2)}
      %even = air.dma_memcpy_nd async [%t_m] (%m[%c0, %c0] [%c32, %c1] [%c2, %c1], %a[%c0] [%c32] [%c1]) : ({L2}, {L3})
      %odd = air.dma_memcpy_nd async [%t_m] (%m[%c0, %c1] [%c32, %c1] [%c2, %c1], %a[%c32] [%c32] [%c1]) : ({L2}, {L3})
      %out = air.dma_memcpy_nd async [%even, %odd] (%b[] [] [], %m[] [] []) : ({L3}, {L2})
      {given_back("m", L2, "%out")}"""

WRITTEN_WHILE_READ = f"""{allocated("m", L2)}
      %in = air.dma_memcpy_nd async [%t_m] (%m[] [] [], %a[] [] []) : ({L2}, {L3})
      %out = air.dma_memcpy_nd async [%in] (%b[] [] [], %m[] [] []) : ({L3}, {L2})
      %again = air.dma_memcpy_nd async [WAIT] (%m[] [] [], %a[] [] []) : ({L2}, {L3})
      {given_back("m", L2, "%again, %out")}"""

SYNCHRONOUS = f"""
      %m = memref.alloc() : {L2}
      air.dma_memcpy_nd (%m[] [] [], %a[] [] []) : ({L2}, {L3})
      air.dma_memcpy_nd (%b[] [] [], %m[] [] []) : ({L3}, {L2})
      memref.dealloc %m : {L2}"""

LOOP = f"""{allocated("m", L2)}
      %last = scf.for %i = %c0 to %c2 step %c1 iter_args(%t = %t_m) -> (!air.async.token) {{
        %in = air.dma_memcpy_nd async [%t] (%m[] [] [], %a[] [] []) : ({L2}, {L3})
        %out = air.dma_memcpy_nd async [%in] (%b[] [] [], %m[] [] []) : ({L3}, {L2})
        scf.yield %out : !air.async.token
      }}
      {given_back("m", L2, "%last")}"""

CHANNEL = """
  air.channel @c []
""" + function("by_channel", herd(f"""
        %m = memref.alloc() : {HALF}
        %first = arith.cmpi eq, %tx, %c0 : index
        scf.if %first {{
          air.dma_memcpy_nd (%m[] [] [], %e[%c0] [%c32] [%c1]) : ({HALF}, {L3})
          air.dma_memcpy_nd (%f[%c0] [%c32] [%c1], %m[] [] []) : ({L3}, {HALF})
          air.channel.put @c[] (%m[] [] []) : ({HALF})
        }} else {{
          air.channel.get @c[] (%m[] [] []) : ({HALF})
          air.dma_memcpy_nd (%f[%c16] [%c32] [%c1], %m[] [] []) : ({L3}, {HALF})
        }}
        memref.dealloc %m : {HALF}""", "%c2"))  # fmt: skip

LAUNCHES = f"""
  func.func @two_launches(%x: {L3}, %y: {L3}) {{
    %one = air.launch async () in () args(%a=%x, %b=%y) : {L3}, {L3} {{
      air.dma_memcpy_nd (%b[] [] [], %a[] [] []) : ({L3}, {L3})
    }}
    %two = air.launch async [WAIT] () in () args(%a=%y, %b=%x) : {L3}, {L3} {{
      air.dma_memcpy_nd (%b[] [] [], %a[] [] []) : ({L3}, {L3})
    }}
    air.wait_all [%one, %two]
    return
  }}"""

TWO = "%n2 = arith.constant 2 : index"
GRID = "(%i) in (%n=%n2)"


def points(offset: str) -> str:
    return f"air.dma_memcpy_nd (%b[{offset}] [%c32] [%c1], %a[%c0] [%c32] [%c1]) : ({L3}, {L3})"


GATHERED = f"""{allocated("m", L2)}
      %one = air.dma_memcpy_nd async [%t_m] (%m[%c0] [%c32] [%c1], %a[%c0] [%c32] [%c1]) : ({L2}, {L3})
      %two = air.dma_memcpy_nd async [%t_m] (%m[OFFSET] [%c32] [%c1], %a[%c32] [%c32] [%c1]) : ({L2}, {L3})
      %out = air.dma_memcpy_nd async [WAIT] (%b[] [] [], %m[] [] []) : ({L3}, {L2})
      {given_back("m", L2, "%out")}"""

LAUNCHES_IN_L3 = f"""{allocated("m", L3)}
      %in = air.dma_memcpy_nd async [%t_m] (%m[] [] [], %a[] [] []) : ({L3}, {L3})
      %out = air.dma_memcpy_nd async [%t_m] (%b[] [] [], %m[] [] []) : ({L3}, {L3})
      {given_back("m", L3, "%in, %out")}"""

REFILLED = f"""{allocated("m", L2)}
      %one = air.dma_memcpy_nd async [%t_m] (%m[] [] [], %a[] [] []) : ({L2}, {L3})
      %out = air.dma_memcpy_nd async [%t_m] (%b[] [] [], %m[] [] []) : ({L3}, {L2})
      %two = air.dma_memcpy_nd async [%t_m] (%m[] [] [], %a[] [] []) : ({L2}, {L3})
      %end = air.wait_all async [%one, %out, %two]
      {given_back("m", L2, "%end")}"""

OVER_L1 = f"""
      air.segment @s args(%p=%a, %q=%b) : {L3}, {L3} {{
        %t_s, %s = air.execute -> ({L1}) {{
          %alloc = memref.alloc() : {L1}
          air.execute_terminator %alloc : {L1}
        }}
        %one = air.herd @h async [%t_s] tile (%tx, %ty) in (%sx=%c1, %sy=%c1) args(%m=%s, %e=%p) : {L1}, {L3} {{
          air.dma_memcpy_nd (%m[] [] [], %e[] [] []) : ({L1}, {L3})
        }}
        %two = air.herd @h async [%t_s] tile (%tx, %ty) in (%sx=%c1, %sy=%c1) args(%m=%s, %f=%q) : {L1}, {L3} {{
          air.dma_memcpy_nd (%f[] [] [], %m[] [] []) : ({L3}, {L1})
        }}
        %d = air.execute [%one, %two] {{
          memref.dealloc %s : {L1}
        }}
      }}"""

RACES = {
    "two_writes": (
        function("two_writes", GATHERED.replace("OFFSET", "%c16").replace("WAIT", "%one, %two")),
        "writes element 16 of %alloc", "writes"),
    "in_l3": (function("in_l3", LAUNCHES_IN_L3), "reads element 0 of %alloc", "writes"),
    "tiles": (function("tiles", herd(tile_copy("arith.muli %tx, %c16 : index"), "%c2")), "writes element 16 of %y", "writes"),
    "points": (function("points", "%o = arith.muli %i, %c16 : index\n" + points("%o"), GRID, TWO), "element 16 of %y", "writes"),
    "herds": (function("herds", two_herds("")), "writes element 32 of %y", "writes"),
    "two_launches": (LAUNCHES.replace("WAIT", ""), "element 0 of %y", "writes"),
}  # fmt: skip

IN_EXECUTE = SHARED_L1.replace(
    "          scf.for %i", "          %filled = air.execute {\n          scf.for %i"
).replace("STEP : index\n          %filled", "%c16 : index\n          %filled").replace(
    "            memref.store %one, %m[%at] : memref<64xf32, 2>\n          }",
    "            memref.store %one, %m[%at] : memref<64xf32, 2>\n          }\n          }",
)  # fmt: skip

LOCKED = {
    "lost_token": (function("lost_token", through_l2("%t_m", "%in, %out")), "reads element 0 of %alloc", "writes"),
    "written_while_read": (
        function("written_while_read", WRITTEN_WHILE_READ.replace("WAIT", "%in")), "writes element 0 of %alloc", "reads"),
    "gathered": (
        function("gathered", GATHERED.replace("OFFSET", "%c32").replace("WAIT", "%t_m")), "reads element 0 of %alloc", "writes"),
    "refilled": (function("refilled", REFILLED), "writes element 0 of %alloc", "reads"),
    "over_l1": (function("over_l1", OVER_L1), "reads element 0 of %alloc", "writes"),
}  # fmt: skip

WHY = {
    "two_writes": "for locks keep a read and a write apart, and not two writes; let one of them depend on the token of the other$",
    "in_l3": "for L3 has no locks; let one of them depend on the token of the other, or send the data through a channel$",
    "tiles": "for L3 has no locks",
}

MISSING = {
    "execute": (function("execute", herd(asynchronous_tile("%t_m"))), "of %alloc"),
    "unawaited": (function("unawaited", herd(plain_tile("", "air.wait_all [%in]"))), "reads element 1 of %m"),
}

CLEAN = {
    "in_execute": function("in_execute", IN_EXECUTE),
    "freed_at_the_end": function("freed_at_the_end", through_l2("%in", "%in")),
    "with_token": function("with_token", through_l2("%in", "%out")),
    "read_then_written": function("read_then_written", WRITTEN_WHILE_READ.replace("WAIT", "%out")),
    "tiles_apart": function("tiles_apart", herd(tile_copy("arith.muli %tx, %c32 : index"), "%c2")),
    "points_apart": function("points_apart", "%o = arith.muli %i, %c32 : index\n" + points("%o"), GRID, TWO),
    "execute_after": function("execute_after", herd(asynchronous_tile("%in"))),
    "awaited": function("awaited", herd(plain_tile("air.wait_all [%in]", ""))),
    "herds_in_turn": function("herds_in_turn", two_herds("%one")),
    "l1_of_each": function("l1_of_each", SHARED_L1.replace("STEP", "%c1")),
    "shared_l1_apart": function("shared_l1_apart", SHARED_L1.replace("STEP", "%c16")),
    "interleaved": function("interleaved", INTERLEAVED),
    "synchronous": function("synchronous", SYNCHRONOUS),
    "loop": function("loop", LOOP),
    "by_channel": CHANNEL,
    "two_launches_in_turn": LAUNCHES.replace("WAIT", "%one").replace(
        "@two_launches", "@two_launches_in_turn"
    ),
}


def transfers(count: int, chained: bool) -> str:
    """Transfers that a loop starts side by side, each of its own elements, or one after the other."""
    after = "[%t]" if chained else ""
    return f"""
      %n = arith.constant {count} : index
      %ready = air.wait_all async
      %last = scf.for %i = %c0 to %n step %c1 iter_args(%t = %ready) -> (!air.async.token) {{
        %o = arith.muli %i, %c4 : index
        %u = air.dma_memcpy_nd async {after} (%b[%o] [%c4] [%c1], %a[%o] [%c4] [%c1]) : ({L3}, {L3})
        scf.yield %u : !air.async.token
      }}"""


CROWDS = {
    "side_by_side_8": function("side_by_side_8", transfers(8, chained=False)),
    "side_by_side_9": function("side_by_side_9", transfers(9, chained=False)),
    "side_by_side_16": function("side_by_side_16", transfers(16, chained=False)),
    "in_a_row_16": function("in_a_row_16", transfers(16, chained=True)),
}

LATE_RACE = function("late_race", f"""
      %n = arith.constant 600 : index
      scf.for %i = %c0 to %n step %c1 {{
        air.dma_memcpy_nd (%b[%c0] [%c32] [%c1], %a[%c0] [%c32] [%c1]) : ({L3}, {L3})
      }}
      %one = air.dma_memcpy_nd async (%b[%c32] [%c32] [%c1], %a[%c0] [%c32] [%c1]) : ({L3}, {L3})
      %two = air.dma_memcpy_nd async (%b[%c16] [%c32] [%c1], %a[%c0] [%c32] [%c1]) : ({L3}, {L3})""")  # fmt: skip
"""1204 accesses; the two transfers that race make the last four."""


@pytest.fixture(scope="module")
def library(program):
    texts = [text for text, *_ in (*RACES.values(), *LOCKED.values(), *MISSING.values())]
    texts += [*CLEAN.values(), *CROWDS.values(), LATE_RACE]
    return program("module {" + "\n".join(texts) + "}", options=virtual_npu.BuildOptions(checks=True))


def call(library, entry, seed=0):
    x, y = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    result = library.run(entry, [x.ctypes.data, y.ctypes.data], virtual_npu.RunOptions(seed=seed))
    assert result.notes == ()
    return x, y


@pytest.mark.parametrize("name", RACES)
def test_a_race_is_reported_with_both_sides(library, name):
    _, what, how = RACES[name]
    with pytest.raises(virtual_npu.VirtualNpuRuntimeError) as caught:
        call(library, name)
    assert caught.value.kind == "race"
    message = str(caught.value)
    assert re.search(
        rf"line \d+: [\w.]+.*: data race: this .*{re.escape(what)}\b.*, which line \d+: [\w.]+.* {how}, and nothing",
        message,
    ), message
    assert re.search(WHY.get(name, ""), message)


@pytest.mark.parametrize("name", RACES)
def test_a_race_is_found_whatever_the_schedule(library, name):
    for seed in range(1, 6):
        with pytest.raises(virtual_npu.VirtualNpuRuntimeError) as caught:
            call(library, name, seed)
        # Where the read comes first, it also reads what nobody wrote.
        assert caught.value.kind in ("race", "uninitialised"), str(caught.value)


@pytest.mark.parametrize("name", CLEAN)
def test_the_same_program_with_its_order_is_clean(library, name):
    once = call(library, name)
    for seed in range(1, 9):
        for first, again in zip(once, call(library, name, seed), strict=True):
            np.testing.assert_array_equal(first, again)


def test_a_race_between_tiles_names_both(library):
    with pytest.raises(virtual_npu.VirtualNpuRuntimeError, match=r"in herd @h \(1, 0\).*in herd @h \(0, 0\)"):
        call(library, "tiles")
    with pytest.raises(virtual_npu.VirtualNpuRuntimeError, match=r"launch \([01]\).*launch \([01]\)"):
        call(library, "points")


@pytest.mark.parametrize("name", LOCKED)
def test_what_the_locks_of_the_device_order_is_noted(library, name):
    """In every schedule the result is the same: locks hold the later one back, as program order has it."""
    _, what, how = LOCKED[name]
    head = (
        rf"line \d+: [\w.]+.*: in .*: missing token, a data race but for the locks of the device: this {re.escape(what)}, which "
        rf"line \d+: [\w.]+.* {how}, and no token puts one before the other: the compiler puts locks around each use of a "
        "buffer in L1 or L2, in the order of the text, but a pass may change that; let the later one depend on the earlier one$"
    )
    results = set()
    for seed in range(8):
        x, y = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
        notes = library.run(name, [x.ctypes.data, y.ctypes.data], virtual_npu.RunOptions(seed=seed)).notes
        assert any(re.match(head, note) for note in notes), notes
        assert all("missing token, a data race but for the locks" in note for note in notes), notes
        results.add(y.tobytes())
    assert results == {np.arange(N, dtype=np.float32).tobytes()}


@pytest.mark.parametrize("name", MISSING)
def test_a_token_that_is_missing_in_a_tile_is_noted(library, name):
    x, y = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    notes = library.run(name, [x.ctypes.data, y.ctypes.data]).notes
    head = (
        r"line \d+: [\w.]+: in herd @h \(0, 0\): missing token, a data race but for the order of the tile: "
        r"this (reads|writes) element \d+ of %\w+, which line \d+: [\w.]+ in herd @h \(0, 0\) (reads|writes), and no token"
    )
    assert all(re.match(head, note) for note in notes), notes
    assert any(MISSING[name][1] in note for note in notes), notes


def test_races_may_be_notes(library):
    x, y = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    result = library.run("tiles", [x.ctypes.data, y.ctypes.data], virtual_npu.RunOptions(races="note"))
    (note,) = result.notes
    assert re.search(
        r"line \d+: air.dma_memcpy_nd: in herd @h \(1, 0\): data race: this writes element 16 of %y", note
    )
    np.testing.assert_array_equal(y[:48], x[:48])
    with pytest.raises(virtual_npu.OptionError, match="races 'no' is not known; choose one of: error, note"):
        virtual_npu.RunOptions(races="no")


@pytest.mark.parametrize(
    ("name", "beyond"),
    [("side_by_side_8", 0), ("side_by_side_9", 1), ("side_by_side_16", 8), ("in_a_row_16", 0)],
)
def test_more_strands_than_chains_become_a_note(library, name, beyond):
    x, y = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    notes = library.run(name, [x.ctypes.data, y.ctypes.data]).notes
    wanted = (
        rf"line \d+: air.dma_memcpy_nd: {beyond} of these started while 8 others were running, and nothing "
        "orders them: the race check distinguishes 8, so data races with the rest may be missed; let each "
        "depend on the token of an earlier one, or wait for some before the next start"
    )
    assert len(notes) == (beyond > 0)
    assert all(re.fullmatch(wanted, note) for note in notes), notes


def test_the_end_of_the_memory_for_accesses_is_noted(library, monkeypatch):
    """A race that comes too late goes unseen, and the note says so; with enough memory it is found."""
    monkeypatch.setenv("VNPU_THREADS", "1")
    x, y = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    late = [x.ctypes.data, y.ctypes.data]
    monkeypatch.setenv("VNPU_RACE_EVENTS", "1024")
    (note,) = library.run("late_race", late).notes
    wanted = (
        r"race check: (\d+) accesses came after the 1024 that it remembers were used up, so data races with them may "
        r"be missed: run the program for a smaller shape, or set VNPU_RACE_EVENTS higher \(\d+ bytes of memory each\)"
    )
    match = re.fullmatch(wanted, note)
    assert match, note
    assert int(match[1]) == 2 * 600 + 4 - 1024
    monkeypatch.delenv("VNPU_RACE_EVENTS")
    with pytest.raises(virtual_npu.VirtualNpuRuntimeError, match="data race"):
        library.run("late_race", late)
