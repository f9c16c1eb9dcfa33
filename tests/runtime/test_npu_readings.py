"""The known messages of upstream's tools, in upstream's own wording, and our explanations of them.

The logs are written by hand from upstream's sources and issues; those with a line number of our own texts
come from runs of the tools.
"""

import pytest

from aerie.runtime.npu import log_diagnosis

PLACED = "Error: pass pipeline failed: builtin.module(air-annotate-refeed,air-place-herds{num-rows=6})"
TO_AIE = "Error: pass pipeline failed: builtin.module(air-to-aie{emit-while-loop=true device=npu2})"
TO_NPU = "Error: pass pipeline failed: builtin.module(air-to-std,airrt-to-npu{output-elf=true})"
AIECC = "Error running command: /opt/bin/aiecc"

LOGS = {
    "placement": (
        "a.mlir:1:1: error: No valid placement found.\na.mlir:9:5: error: 'air.herd' op \nUnplaced herd: h",
        "placement",
        "at most 8 columns and 4 rows",
    ),
    "shim channels": (
        f"add.mlir:12:3: error: 'air.channel.put' op out of shim DMA channels\n{TO_AIE}",
        "air-to-aie",
        "share a stream",
    ),
    "fan-in": (
        "loc(\"-\":2006:15): error: 'air.channel.get' op found multiple inputs for an aie.flow. Fan-in for "
        f"aie.flow isn't supported in current architecture.\n{TO_AIE}",
        "air-to-aie",
        "Give it an index",
    ),
    "shim tiles": (
        'loc("-":27:1): error: no ShimNOCTile has sufficient DMA capacity for 0 input/1 output channels near '
        f"centroid column 3\n{TO_AIE}",
        "air-to-aie",
        "fewer streams between host memory and one column",
    ),
    "memtile tiles": (
        "error: no MemTile has sufficient DMA capacity for 7 input/1 output channels near centroid column 0\n"
        + TO_AIE,
        "air-to-aie",
        "six channels in each direction",
    ),
    "split of L2": (
        "loc(\"-\":98:11): error: 'affine.apply' op operand count and affine map dimension and symbol count "
        f"must match\n{PLACED}",
        "placement",
        "as the bf16 GEMM does",
    ),
    "dominance": (
        "gemv.mlir:12:5: error: operand #1 does not dominate this use\n" + PLACED,
        "placement",
        "March 2026",
    ),
    "tile memory": (
        "npu.add.mlir:6:17: error: 'aie.tile' op allocated buffers exceeded available memory\n"
        f"npu.add.mlir:6:17: note: MemoryMap:\n\t(stack) \t: 0x0-0x7FF\t(2048 bytes)\n{AIECC}",
        "aiecc turns",
        "use smaller tiles",
    ),
    "routing": (f"npu.attn.mlir:3:1: error: Unable to find a legal routing\n{AIECC}", "aiecc turns", "fewer"),
    "descriptors": (
        "error: 'aiex.dma_configure_task' op Allocator exhausted available buffer descriptor IDs.\n" + AIECC,
        "aiecc turns",
        "16 buffer descriptors",
    ),
    "memtile descriptors": (
        "npu.o_ffn.mlir:5119:7: error: 'aie.dma_bd' op Allocator exhausted available BD IDs (maximum 24 "
        "available for channel 2).\n" + AIECC,
        "aiecc turns",
        "24 for its odd channels",
    ),
    "repeats": (
        f"error: 'aiex.npu.push_queue' op Repeat count exceeds the [0:255] range.\n{TO_NPU}",
        "airrt-to-npu",
        "larger tiles",
    ),
    "descriptor range": (
        f"error: 'aiex.npu.dma_memcpy_nd' op Size 1 exceeds the [0:1023] range.\n{AIECC}",
        "aiecc turns",
        "use smaller tiles",
    ),
    "stack": (
        "error: stack_size = 2048 is insufficient: this core needs 2368 bytes; set stack_size = 2368 "
        f"(Worker(stack_size=...) in IRON)\n{AIECC}",
        "aiecc turns",
        "raise program_stack_bytes",
    ),
    "unmeasured stack": (
        "error: cannot determine this core's stack requirement: recursion detected: f@0x10 -> f@0x10\n"
        + AIECC,
        "aiecc turns",
        "take the recursion out",
    ),
    "program memory": (
        "ld.lld: error: section '.text' will not fit in region 'program': overflowed by 224 bytes\n"
        "clang: error: ld.lld command failed with exit code 1 (use -v to see invocation)\n"
        f"aiecc: '/opt/peano/bin/clang' failed: \n{AIECC}",
        "Peano links a core",
        "OptLevel('Os', reason)",
    ),
    "static data": (
        f"ld.lld: error: section '.bss' will not fit in region 'data': overflowed by 64 bytes\n{AIECC}",
        "Peano links a core",
        "make the tiles smaller",
    ),
    "undefined symbol": (
        "ld.lld: error: undefined symbol: rope_2x64\n>>> referenced by lowered.ll\n"
        f"aiecc: '/opt/peano/bin/clang' failed: \n{AIECC}",
        "Peano links a core",
        'it is not extern "C"',
    ),
    "missing object": (
        f"ld.lld: error: main_core_0_2.ld.script:9: unable to find mv_4x2048_8.o\n{AIECC}",
        "Peano links a core",
        "the name in link_with",
    ),
    "herd outside": (
        "error: failed to legalize operation 'airrt.dma_memcpy_nd' that was explicitly marked illegal\n"
        + TO_NPU,
        "airrt-to-npu",
        "needs an air.launch and an air.segment around it",
    ),
    "locality": (
        "error: 'air.herd' op kernel operand #0 of type 'memref<64xbf16, 1>': x; the alloc must be "
        "defined inside the air.herd body, or the access pattern must statically partition the memref over "
        "the air.herd iteration variables\n"
        "Error: pass pipeline failed: builtin.module(air-verify-hierarchy-locality{strict=true})",
        "which core reaches which buffer",
        "allocate it inside the herd",
    ),
    "form": (
        "error: failed to legalize operation 'arith.mulf' that was explicitly marked illegal\n" + AIECC,
        "aiecc turns",
        "docs/dev/lowering.md lists them",
    ),
    "no aiebu-asm": (
        f"aiecc: ShellCommand: tool 'aiebu-asm' not found in search paths or PATH\n{AIECC}",
        "aiebu-asm writes the ELF",
        "source XRT's setup.sh",
    ),
    "no aiecc": ("Error: could not find aiecc in PATH", "", "install mlir-aie's wheel"),
    "no tool": (
        f"aiecc: ShellCommand: tool 'llc' not found in search paths or PATH\n{AIECC}",
        "aiecc turns",
        "check PEANO_INSTALL_DIR",
    ),
    "option": (
        "aircc: Unknown command line argument '--bf16-emulation'.  Try: 'aircc --help'",
        "",
        "the release that is needed",
    ),
    "text": (
        "Error parsing MLIR file: add.mlir",
        "aircc reads the program",
        "another form of the AIR dialect",
    ),
    "header": (
        "mv.cc:3:10: fatal error: 'aie_api/aie.hpp' file not found",
        "",
        "aie_api/aie.hpp is mlir-aie's",
    ),
    "killed": (
        f"aiecc: '/opt/peano/bin/llc' failed: Killed\n{AIECC}",
        "Peano's llc makes",
        "AERIE_COMPILE_MEMORY",
    ),
    "disk": (
        f"aiecc: cannot write ELF 'x.elf': No space left on device\n{AIECC}",
        "aiecc turns",
        "disk is full",
    ),
    "crash": (
        "PLEASE submit a bug report to https://github.com/llvm/llvm-project/issues/ and include the crash\n"
        f"aiecc: '/opt/peano/bin/opt' failed: Aborted\n{AIECC}",
        "Peano's opt works",
        "to report it upstream",
    ),
}
"""By the reading's name: a log, the stage that is named, and a part of our message."""


def test_every_reading_has_a_log():
    assert list(LOGS) == [reading.name for reading in log_diagnosis.KNOWN_MESSAGES]


@pytest.mark.parametrize("name", LOGS)
def test_a_known_message_is_explained(name):
    log, where, meaning = LOGS[name]
    message = log_diagnosis.failure_text("aircc", 1, log)
    reading = next(each for each in log_diagnosis.KNOWN_MESSAGES if each.name == name)
    assert name in [each.name for each in log_diagnosis.known_messages(log)]
    assert where in message.splitlines()[0]
    assert meaning in reading.meaning
    assert f"this means: {reading.meaning} ({reading.source})" in message
    assert log.splitlines()[0] in message


@pytest.mark.parametrize("name", LOGS)
def test_no_message_is_taken_for_another(name):
    known = {reading.name for reading in log_diagnosis.known_messages(LOGS[name][0])}
    assert known == {name}


def test_an_unknown_failure_shows_the_last_lines_and_guesses_nothing():
    message = log_diagnosis.failure_text("aircc", 7, "\n".join(f"line {number}" for number in range(50)))
    assert message.splitlines() == ["aircc failed with exit code 7:", *(f"line {n}" for n in range(30, 50))]


def test_errors_come_before_the_tail_each_once():
    error = "x.mlir:1:1: error: bad"
    log = "\n".join(["$ aircc x.mlir", error, *["chatter"] * 40, error, "end"])
    assert log_diagnosis.error_lines(log) == [error]


def test_notes_of_an_error_are_shown():
    log = "t.mlir:1:1: error: bad\nt.mlir:2:1: note: MemoryMap:\nchatter"
    assert log_diagnosis.error_lines(log) == ["t.mlir:1:1: error: bad", "t.mlir:2:1: note: MemoryMap:"]


def test_success_has_no_explanation():
    assert log_diagnosis.failure_text("aircc", 0, "warning: 3 errors were avoided\n") == ""


def test_a_signal_is_named():
    assert log_diagnosis.failure_text("aircc", -11, "").startswith("aircc was killed by SIGSEGV:")
    assert log_diagnosis.failure_text("aircc", -250, "").startswith("aircc was killed by signal 250:")
    assert "AERIE_COMPILE_MEMORY" in log_diagnosis.failure_text("aircc", 137, "")
    for code in (-11, -6, 134):
        assert "this means: the tool itself crashed" in log_diagnosis.failure_text("aircc", code, "")
    assert "this means" not in log_diagnosis.failure_text("aircc", -15, "")
    assert "AERIE_COMPILE_MEMORY" not in log_diagnosis.failure_text("aircc", 139, "")
