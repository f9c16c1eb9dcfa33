"""What the AIE level refuses, and how it says so; nothing is compiled."""

from __future__ import annotations

import pytest

from aerie.common.errors import ProgramError
from aerie.virtual_npu.options import BuildOptions
from aerie.virtual_npu.toolchain import emit, instructions_header

SEQUENCE = "aie.runtime_sequence(%a: memref<8xi32>) { SEQUENCE }"
DEVICE = f"""
module {{
  aie.device(npu2) @main {{
    %shim = aie.tile(0, 0)
    %mem = aie.tile(0, 1)
    %core = aie.tile(0, 2)
    %l = aie.lock(%core, 0) {{init = 0 : i32, sym_name = "l"}}
    %b = aie.buffer(%core) {{sym_name = "b"}} : memref<8xi32>
    aie.shim_dma_allocation @in(%shim, MM2S, 0)
    DEVICE
    {SEQUENCE}
  }}
}}
"""

FIFO = "!aie.objectfifo<memref<8xi32>>"
SUBVIEW = "!aie.objectfifosubview<memref<8xi32>>"
CHAIN = """aie.mem(%core) {{
  %0 = aie.dma_start(S2MM, 0, ^bd, ^end)
^bd:
  {}
  aie.next_bd ^end
^end:
  aie.end
}}"""
WRITE = """%address = arith.constant {} : i32
%value = arith.constant 1 : i32
aiex.npu.write32(%address, %value) {{column = 0 : i32, row = {} : i32}} : i32, i32"""

RELEASE, ACQUIRE = "aie.use_lock(%l, Release, 1)", "aie.use_lock(%l, Acquire, 1)"

OF_DEVICE = {
    "aie.tile(8, 2)": r"aie.tile\(8, 2\) is outside: the device has 8 columns and 6 rows",
    "%m = aie.lock(%core, 1) {init = 64 : i32}": "aie.lock begins with 64: a lock has six bits, 0 to 63",
    'aie.core(%core) { aie.use_lock(%l, "Acquire", 1) aie.use_lock(%l, "Take", 1) aie.end }': (
        "aie.use_lock knows no Take: write one of"
    ),
    CHAIN.format("aie.dma_bd(%b : memref<8xi32> sizes = [2, 4] strides = [1])"): "has 2 sizes and 1 strides",
    CHAIN.format("aie.dma_bd(%b : memref<8xi32> sizes = [1,1,1,1,8] strides = [1,1,1,1,1])"): "has 5 dim",
    CHAIN.format("aie.dma_bd(%b : memref<8xi32> sizes = [8] strides = [1] pad [<1, 1>, <1, 1>])"): "pads oth",
    CHAIN.format(f"{RELEASE} aie.dma_bd(%b : memref<8xi32>) {RELEASE}"): (
        "a descriptor releases one lock: leave out the second one"
    ),
    CHAIN.format(f"{ACQUIRE} {ACQUIRE} aie.dma_bd(%b : memref<8xi32>)"): (
        "a descriptor acquires one lock: leave out the second one"
    ),
    "aie.flow(%core, Core : 0, %shim, DMA : 0)": (
        r"a flow at port Core : 0 of tile \(0, 2\), which has no core"
    ),
    f"aie.objectfifo @of(%core, {{%shim}}, [1, 2, 3]) : {FIFO}": "2 tiles and 3 depths: give one, or one for",
    f"aie.objectfifo @of(%core, {{%shim}}, 2 : i32) {{aie_stream = 1 : i32}} : {FIFO}": "aie_stream of @of",
    f"aie.objectfifo @of(%core, {{%shim}}, 2) : {FIFO} aie.objectfifo.link [@of] -> [@no]([] [])": (
        "no aie.objectfifo @no"
    ),
    "\n".join(f"aie.objectfifo @o{n}(%core, {{%shim}}, 2) {{via_DMA = true}} : {FIFO}" for n in range(3)): (
        r"@o2 needs one more MM2S channel of tile \(0, 2\), which has 2"
    ),
    f"aie.core(%core) {{ %s = aie.objectfifo.acquire @no(Consume, 1) : {SUBVIEW} aie.end }}": (
        "no aie.objectfifo @no"
    ),
    f"aie.objectfifo @of(%core, {{%shim}}, 2) : {FIFO} aie.core(%core) {{ "
    f"%s = aie.objectfifo.acquire @of(Consume, 1) : {SUBVIEW} aie.end }}": (
        r"tile \(0, 2\) has no end of @of to consume at"
    ),
    f"aie.core(%core) {{ %s = aie.objectfifo.acquire @of(Take, 1) : {SUBVIEW} aie.end }}": (
        "an object FIFO has no port Take: write Produce or Consume"
    ),
    f"aie.objectfifo @of(%core, {{%shim}}, 2) : {FIFO} = [dense<1> : memref<8xi32>]": (
        "@of has 2 objects and 1 initial values: give one for each"
    ),
    f"aie.objectfifo @of(%shim, {{%core}}, 1) : {FIFO} = [dense<1> : memref<8xi32>]": (
        "@of begins at a shim, which holds no initial values"
    ),
    f"aie.objectfifo @o(%mem, {{%shim}}, 2) : {FIFO} aie.objectfifo @a(%core, {{%mem}}, 2) : {FIFO} "
    f"aie.objectfifo @c(%core, {{%mem}}, 2) : {FIFO} aie.objectfifo.link [@a, @c] -> [@o]([4, 0] [])": (
        r"its offsets \[4, 0\] do not rise: the compiler takes a part to end where the next one begins"
    ),
    f"aie.objectfifo @o(%mem, {{%shim}}, 2) : {FIFO} aie.objectfifo @a(%core, {{%mem}}, 2) : {FIFO} "
    f"aie.objectfifo @c(%core, {{%mem}}, 2) : {FIFO} aie.objectfifo.link [@a, @c] -> [@o]([4] [])": (
        "has 2 parts and 1 offsets: give one for each"
    ),
    "%m = aie.buffer(%core) {address = 512 : i32} : memref<8xi32> aie.core(%core) { aie.end }": (
        "its stack has bytes 0 to 1023 of the tile, and buffer of memref<8xi32> begins at byte 512, so"
    ),
    "%m = aie.buffer(%core) : memref<16128xi32> aie.core(%core) { aie.end }": (
        r"the buffers of tile \(0, 2\) take 64544 bytes and its stack 1024, of 65536 that there are: make"
    ),
    "aie.core(%core) { %s = memref.alloca() : memref<64xi32> aie.end } {stack_size = 128 : i32}": (
        "memref.alloca takes 256 bytes of a stack of 128, which would overwrite buffers: give a stack_size"
    ),
    "%s = aie.logical_tile<CoreTile>(0, 2)": "the device has no CoreTile left: give tiles, or use fewer",
    "%s = aie.logical_tile<Tile>(?, ?)": "no Tile: write one of ShimNOCTile, ShimPLTile, MemTile, CoreTile",
    "aie.core(%core) { %p = arith.constant 0 : i32 %v = arith.constant 1 : i64 "
    "aie.put_stream(%p : i32, %v : i64) aie.end }": "of anything but 32 bits is not supported",
    "aie.core(%core) { %p = arith.constant 0 : i32 %v = aie.get_stream(%p : i32) : i64 aie.end }": (
        "aie.get_stream: of anything but 32 bits is not supported"
    ),
    "aie.core(%core) { %x = aiex.read_scratchpad_parameter @p : i32 aie.end }": (
        "no aiex.scratchpad_parameter @p beside the devices"
    ),
    "aie.core(%core) { %i = arith.constant 0 : index %p = memref.load %b[%i] : memref<8xi32> "
    "%v = aie.get_stream(%p : i32) : i32 aie.end }": "a port known only at run time is not supported: wri",
}  # fmt: skip
OF_SEQUENCE = {
    "aiex.npu.dma_wait {symbol = @no}": "no aie.shim_dma_allocation @no: the device has @in",
    "aiex.npu.dma_wait": "names no aie.shim_dma_allocation",
    "aiex.configure @no { }": "no device @no: the module has @main",
    "aiex.configure @main { aiex.run @no() : () }": "the device @main has no sequence @no",
    "%i = arith.constant 0 : index %v = memref.load %a[%i] : memref<8xi32> "
    "%t = aiex.dma_configure_task(%core, S2MM, 0) { aie.use_lock(%l, Acquire, %v) "
    "aie.dma_bd(%b : memref<8xi32>) aie.end }": "the value of a descriptor's lock is known only at run time",
    "%z = arith.constant 0 : i32 "
    "aiex.npu.address_patch(%z : i32) {addr = 118784 : ui32, arg_idx = 0 : i32}": "address 0x1d000 is in no",
    "aiex.npu.load_pdi": "without device_ref is not supported: name the device",
    "%v = arith.constant 1 : i32 aiex.npu.rtp_write(@no, 0, %v) : i32": "no aie.buffer @no",
    "%t = arith.constant 1 : index aiex.dma_start_task(%t)": "its task is not configured in this sequence",
    WRITE.format(0x1F050, 2): r"tile \(0, 2\) has no lock 5",
    WRITE.format(0x400, 2): r"no aie.buffer of tile \(0, 2\) has address 0x400",
    WRITE.format(0x32000, 2): r"tile \(0, 2\) has no aie.core",
    WRITE.format(0x32004, 2): r"register 0x32004 of tile \(0, 2\) is not supported",
    WRITE.format(0x1D204, 0): r"descriptor 1 of tile \(0, 0\) was not written before",
    "%i = arith.constant 8 : i32 aiex.npu.write32(%i, %i) {buffer = @b} : i32, i32": "byte 32 is outside",
    "%i = arith.constant 8 : i32 aiex.npu.write32(%i, %i) {buffer = @no} : i32, i32": "no aie.buffer @no",
    "%i = arith.constant 0 : index %v = memref.load %a[%i] : memref<8xi32> "
    "%o = arith.index_cast %v : i32 to index %c = memref.reinterpret_cast %a to offset: [%o], sizes: [8], "
    "strides: [1] : memref<8xi32> to memref<8xi32, strided<[1], offset: ?>>": (
        "memref.reinterpret_cast: with an offset known only at run time is not supported"
    ),
    "aiex.npu.create_scratchpad {size = 130 : ui32}": "of 130 bytes: a scratchpad has a multiple of 4",
    "aiex.npu.update_from_scratchpad<half> {address = 0 : ui32}": "knows no half: write one of incr, decr, m",
    "aiex.npu.update_from_scratchpad {state_table_idx = 32 : ui8, buffer = @b, address = 0 : ui32}": (
        "word 32 of a scratchpad that has 32"
    ),
    "aiex.npu.update_from_scratchpad {state_table_idx = 0 : ui8, buffer = @b, address = 7 : ui32}": (
        "byte 28 is outside of buffer @b"
    ),
    "aiex.npu.update_from_scratchpad {state_table_idx = 0 : ui8, address = 118788 : ui32}": (
        "of a register is not supported: give the descriptor an offset_parameter, or name a buffer"
    ),
    "aiex.core_reset(%core)": r"tile \(0, 2\) has no aie.core",
    WRITE.replace("write32(%address, %value)", "maskwrite32(%address, %value, %value)")
    .replace(": i32, i32", ": i32, i32, i32").format(0x32004, 2): "bits 0x1 of register 0x32004 of tile",
    "%plus = arith.constant 0 : i32 "
    "aiex.npu.address_patch(%plus : i32) {addr = 118820 : ui32, arg_idx = 0 : i32}": (
        "address 0x1d024 is in no descriptor that was written before"
    ),
    "%z = arith.constant 0 : i32 aiex.npu.push_queue(0, 0, S2MM : 0) bd_id %z repeat %z : i32, i32": (
        "descriptor 0 of tile .0, 0. was not written before"
    ),
    "aiex.npu.writebd {bd_id = 0 : i32, buffer_length = 8 : i32, column = 0 : i32, row = 0 : i32} "
    "%z = arith.constant 0 : i32 aiex.npu.push_queue(0, 0, S2MM : 0) bd_id %z repeat %z : i32, i32": (
        "descriptor 0 has no address of an argument: add aiex.npu.address_patch"
    ),
    "%d = memref.get_global @no : memref<8xi32> "
    "aiex.npu.blockwrite(%d) {address = 118784 : ui32} : memref<8xi32>": "no memref.global @no with values",
    "aiex.npu.blockwrite(%a) {address = 118784 : ui32} : memref<8xi32>": "of anything but a memref.global is",
    "%i = arith.constant 0 : index %n = memref.load %a[%i] : memref<8xi32> "
    "aiex.npu.sync(%n, %n, %n, %n, %n, %n) : i32, i32, i32, i32, i32, i32": (
        "with numbers known only at run time is not supported"
    ),
    "%t = aiex.dma_configure_task(%core, S2MM, 0) { aie.dma_bd(%b : memref<8xi32>) aie.next_bd ^x ^x: "
    "aie.dma_bd(%b : memref<8xi32>) aie.next_bd ^x }": (
        "a task whose descriptors begin again is not supported: give it a repeat_count"
    ),
}  # fmt: skip


READ = "aie.core(%core) { %x = aiex.read_scratchpad_parameter @p : i32 aie.end }"
OFFSET = (
    "%t = aiex.dma_configure_task_for @in { aie.dma_bd(%a : memref<8xi32> offset = 0 len = 8) "
    "{offset_parameter = @p} aie.end }"
)
PARAMETERS = {
    "aiex.scratchpad_parameter @p : i32": "is read by a core and is an offset: declare one for each",
    "aiex.scratchpad_parameter @p : f32": "has type f32: a core reads i8, i16, i32 or bf16",
    "aiex.scratchpad_parameter @p : i16": "is an offset, and has type i16: give it i32",
    "\n".join(f"aiex.scratchpad_parameter @p{n} : i32" for n in range(33)): (
        "33 parameters, and a scratchpad has 32 words"
    ),
}


@pytest.mark.parametrize("text", PARAMETERS)
def test_of_parameters(text: str) -> None:
    offset = "" if "f32" in text else OFFSET
    design = DEVICE.replace("DEVICE", "" if "i16" in text else READ).replace("SEQUENCE", offset)
    with pytest.raises(ProgramError, match=PARAMETERS[text]):
        emit(design.replace("module {", f"module {{\n{text}"))


def test_of_numbers_for_a_host() -> None:
    text = DEVICE.replace("DEVICE", "").replace("SEQUENCE", "").replace("memref<8xi32>) {", "bf16) {")
    with pytest.raises(ProgramError, match="a host gives no number of type bf16: take i64 or f32"):
        instructions_header(text)


@pytest.mark.parametrize("text", OF_DEVICE)
def test_of_a_device(text: str) -> None:
    with pytest.raises(ProgramError, match=OF_DEVICE[text]):
        emit(DEVICE.replace("DEVICE", text).replace("SEQUENCE", ""))


@pytest.mark.parametrize("text", OF_SEQUENCE)
def test_of_a_sequence(text: str) -> None:
    with pytest.raises(ProgramError, match=OF_SEQUENCE[text]):
        emit(DEVICE.replace("DEVICE", "").replace("SEQUENCE", text))


def test_an_argument_of_a_sequence_may_get_its_shape_from_the_run() -> None:
    bd = "aie.dma_bd(%a : memref<*xi32> offset = 0 len = 8) aie.end"
    text = DEVICE.replace("DEVICE", "").replace("%a: memref<8xi32>", "%a: memref<*xi32>")
    text = text.replace("SEQUENCE", f"%t = aiex.dma_configure_task_for @in {{ {bd} }}")
    with pytest.raises(ProgramError, match=r"memref<\*xi32> has no shape: run it with arrays \(--args\)"):
        emit(text)
    assert '"shape\\": [8]' in emit(text, options=BuildOptions(elements=(8,))).text
    with pytest.raises(ProgramError, match=r"aie.dma_bd takes a memref"):
        emit(text.replace("memref<*xi32>", "i32"))


def test_unknown_device() -> None:
    with pytest.raises(ProgramError, match=r"aie.device\(npu3\) is not known here: write one of npu1"):
        emit("module { aie.device(npu3) { } }")


def test_a_device_that_is_no_npu_is_read_and_not_run() -> None:
    with pytest.raises(ProgramError, match=r"xcvc1902 is no NPU: the virtual NPU runs npu1, npu1_1col"):
        emit("module { aie.device(xcvc1902) { %t = aie.tile(49, 8) } }")
    with pytest.raises(
        ProgramError, match=r"aie.tile\(17, 3\) is outside: the device has 17 columns and 4 rows"
    ):
        emit("module { aie.device(xcve2302) { %t = aie.tile(17, 3) } }")
    with pytest.raises(ProgramError, match=r"aie.tile\(50, 8\) is outside: the device has 50 columns and 9"):
        emit("module { %t = aie.tile(49, 8) %u = aie.tile(50, 8) }")


def test_nothing_to_run() -> None:
    with pytest.raises(ProgramError, match=r"no aie.runtime_sequence: there is nothing to run"):
        emit("module { aie.device(npu2) { } }")


TRACE = """
aie.trace.config @t(%core) packet_type = core {
  aie.trace.reg register = "T" value = 1 : i32
}"""


def test_traces_are_read_and_not_looked_at() -> None:
    emit(DEVICE.replace("DEVICE", TRACE).replace("SEQUENCE", "aie.trace.start_config @t"))


def test_older_forms_of_registers() -> None:
    older = """aiex.npu.write32 {address = 127008 : ui32, column = 0 : i32, row = 2 : i32, value = 1 : ui32}
      aiex.npu.sync {channel = 0 : i32, column = 0 : i32, column_num = 1 : i32, direction = 0 : i32,
        row = 0 : i32, row_num = 1 : i32}"""
    with pytest.raises(ProgramError, match=r"aiex.npu.write32: tile \(0, 2\) has no lock 2"):
        emit(DEVICE.replace("DEVICE", "").replace("SEQUENCE", older))
    text = emit(DEVICE.replace("DEVICE", "").replace("SEQUENCE", older.replace("127008", "126976"))).text
    assert "host.set_lock(0, 1)" in text
    assert "host.take_token(" in text
