"""Reads a failed tool's log: the stage that failed, the tool's own lines, and the meaning of known messages.

The messages are upstream's, each with the file it was found in; what is not known is shown and not guessed
at. Those marked (ran) were met when our programs went through the real tools (docs/explanation/board.md).
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from aerie.runtime.toolchain import SHOWN_LINES


@dataclass(frozen=True)
class KnownMessage:
    """A known message: its pattern, what it means and what to change, and the upstream file that has it."""

    name: str
    pattern: str
    meaning: str
    source: str
    fatal: bool = False
    """Whether it means failure even if the tool's exit code is 0."""


KNOWN_MESSAGES = (
    KnownMessage(
        "placement",
        r"No valid placement found\.",
        "no room in the array for a herd: at most 8 columns and 4 rows, together with the "
        "segment's other herds; make the named herd smaller",
        "mlir-air mlir/lib/Transform/AIRHerdPlacementPass.cpp, which says so and does not fail",
        fatal=True,
    ),
    KnownMessage(
        "shim channels",
        r"out of shim DMA channels|failed to map to shim dma channels: out of channels",
        "more streams between host memory and the array than the shim has, 16 in each direction: share a "
        "stream among cores (broadcast), bring it in through L2, or give the herd one row",
        "mlir-air mlir/lib/Conversion/AIRToAIESchedulingUtils.cpp",
    ),
    KnownMessage(
        "fan-in",
        r"found multiple inputs for an aie\.flow\. Fan-in",
        "several members of a channel would end in one stream, which switches cannot join: an "
        "air.channel.get reads a bundle without an index, or one get stands for several puts. Give it an "
        "index, take a channel for each source, or let a memtile gather them",
        "mlir-air mlir/lib/Conversion/AIRToAIESchedulingUtils.cpp (ran)",
    ),
    KnownMessage(
        "shim tiles",
        r"no ShimNOCTile has sufficient DMA capacity",
        "a shim tile has two channels in each direction, a memtile's streams come from the shim tiles near "
        "it, and none of those is free for one stream more: fewer streams between host memory and one column",
        "mlir-aie lib/Dialect/AIE/Transforms/AIEPlacer.cpp (ran)",
    ),
    KnownMessage(
        "memtile tiles",
        r"no MemTile has sufficient DMA capacity",
        "a memtile has six channels in each direction, and no memtile is free for one stream more: fewer "
        "streams into and out of one L2 buffer, or L2 buffers in more columns",
        "mlir-aie lib/Dialect/AIE/Transforms/AIEPlacer.cpp",
    ),
    KnownMessage(
        "split of L2",
        r"'affine\.apply' op operand count and affine map dimension and symbol count must match",
        "a defect of air-split-l2-memref: it rewrites the index of an L2 buffer with an operand too few. "
        "Index the buffer another way, as the bf16 GEMM does",
        "mlir-air mlir/lib/Transform/AIRMiscPasses.cpp, at e972f294 (ran)",
    ),
    KnownMessage(
        "dominance",
        r"operand #\d+ does not dominate this use",
        "a pass put an operation before what it needs; mlir-air of March 2026 does it to transfers in "
        "nested loops: `make doctor` shows the release that is needed",
        "mlir-air mlir/lib/Transform/AIRDependency.cpp, at ec7d2f0b (ran)",
    ),
    KnownMessage(
        "tile memory",
        r"allocated buffers exceeded available memory",
        "the buffers of one tile are larger than its memory (64 KiB with the stack for a core, 512 KiB for "
        "a memtile): use smaller tiles, or --omit-ping-pong-transform where double buffers are not needed; "
        "the MemoryMap in the log names them",
        "mlir-aie lib/Dialect/AIE/Transforms/AIEAssignBuffers.cpp",
    ),
    KnownMessage(
        "routing",
        r"Unable to find a legal routing",
        "the switches have no way for all streams at once: use fewer streams into one column or memtile, "
        "or fewer channels",
        "mlir-aie lib/Dialect/AIE/Transforms/AIECreatePathFindFlows.cpp",
    ),
    KnownMessage(
        "descriptors",
        r"exhausted available buffer descriptor IDs|runs out of bd_id",
        "one shim tile has 16 buffer descriptors, and more transfers than that are under way in it at "
        "once: smaller --air-runtime-loop-tiling-sizes wait for transfers earlier, or move a launch into a "
        "program of its own",
        "mlir-aie lib/Dialect/AIEX/Transforms/AIEAssignRuntimeSequenceBDIDs.cpp",
    ),
    KnownMessage(
        "memtile descriptors",
        r"exhausted available BD IDs",
        "a memtile has 24 descriptors for its even and 24 for its odd channels, a core 16, and the "
        "transfers of one tile take more: larger tiles, or L2 buffers in more columns",
        "mlir-aie lib/Dialect/AIE/Transforms/AIEAssignBufferDescriptorIDs.cpp (ran)",
    ),
    KnownMessage(
        "repeats",
        r"Repeat count exceeds the \[0:255\] range",
        "a loop around a transfer has more than 255 trips, and a task queue counts no further: use larger "
        "tiles, or split the launch",
        "mlir-aie lib/Dialect/AIEX/IR/AIEXDialect.cpp; mlir-air "
        "programming_examples/kernel_registry/details/GEMV_bf16.md",
    ),
    KnownMessage(
        "descriptor range",
        r"(?:Size|Stride)\b[^\n]* exceeds the \[\d+:\w+\] range",
        "a size or stride of a transfer is larger than its field in a buffer descriptor: use smaller "
        "tiles, or move the data in fewer, longer runs",
        "mlir-aie lib/Dialect/AIEX/IR/AIEXDialect.cpp, verifyStridesWraps",
    ),
    KnownMessage(
        "stack",
        r"is insufficient: this core needs|uses the device default of \d+ bytes, but it needs",
        "a core's functions take more stack than the program reserves: raise program_stack_bytes in "
        "aerie/device/npu2.py to the bytes in the message; what the stack takes is taken from the "
        "core's buffers",
        "mlir-aie programming_guide/core_data_memory.md",
    ),
    KnownMessage(
        "unmeasured stack",
        r"error: cannot determine this core's stack requirement",
        "a function on the core calls itself, so that no stack is surely enough: take the recursion out of "
        "it",
        "mlir-aie programming_guide/core_data_memory.md",
    ),
    KnownMessage(
        "program memory",
        r"will not fit in region 'program'|code exceeds the tile's program memory",
        "the code of one core is larger than its 16 KiB: unroll less, declare the kernel's object with "
        "OptLevel('Os', reason), or split the work among more cores",
        "mlir-aie programming_guide/core_data_memory.md",
    ),
    KnownMessage(
        "static data",
        r"will not fit in region 'data'",
        "tables and variables of the C++ kernels do not fit what stack and buffers leave of the core's "
        "memory: make the tiles smaller",
        "mlir-aie programming_guide/core_data_memory.md",
    ),
    KnownMessage(
        "undefined symbol",
        r"undefined symbol: \S+",
        "a core calls a function that no object on its command line defines: its name in kernels_cc is "
        'another, it is not extern "C", or the function that a library call became (such as memset) is not '
        "there for the core",
        "LLVM lld; mlir-aie tools/aiecc",
    ),
    KnownMessage(
        "missing object",
        r"cannot open \S+\.o: No such file|unable to find \S+\.o",
        "an object that link_with names is not next to the program: the name in link_with "
        "differs from the object's",
        "LLVM lld; mlir-aie tools/aiecc/Utils.h, resolveExternalPath",
    ),
    KnownMessage(
        "herd outside",
        r"failed to legalize (operation )?'?airrt\.dma_memcpy_nd",
        "a transfer is left that belongs to no segment: in a program of several launches every air.herd "
        "needs an air.launch and an air.segment around it",
        "mlir-air programming_examples/llms/shared/infra/stitching.py",
    ),
    KnownMessage(
        "locality",
        r"must be defined inside the air\.\w+ body|must statically partition the memref",
        "several tiles may reach the same buffer of a level that is not theirs: allocate it inside the "
        "herd (or segment), or index it by the tile's ids",
        "mlir-air mlir/lib/Transform/AIRVerifyHierarchyLocality.cpp",
    ),
    KnownMessage(
        "form",
        r"failed to legalize operation '(?:aievec|vector|arith|math|llvm)\.[\w.]+'",
        "the cores have no instruction for this operation at this type: `aerie vnpu check` "
        "names the forms that are known to lower, and docs/dev/lowering.md lists them",
        "mlir-air programming_examples/relu/relu.py; mlir-aie lib/Dialect/AIEVec",
    ),
    KnownMessage(
        "no aiebu-asm",
        r"tool 'aiebu-asm' not found",
        "XRT's aiebu-asm, which writes the ELF, is not found: source XRT's setup.sh; `make doctor` looks "
        "for it",
        "mlir-aie tools/aiecc/Actions.h",
    ),
    KnownMessage(
        "no aiecc",
        r"could not find aiecc in PATH",
        "mlir-aie's aiecc is not found by aircc: install mlir-aie's wheel into this environment; `make "
        "doctor` looks for it",
        "mlir-air tools/aircc/aircc.cpp",
    ),
    KnownMessage(
        "no tool",
        r"aiecc: ShellCommand: tool '(?!aiebu-asm')[^']+' not found",
        "a tool that aiecc calls is not found; opt, llc and clang are Peano's: check PEANO_INSTALL_DIR "
        "with `make doctor`",
        "mlir-aie tools/aiecc/Actions.h",
    ),
    KnownMessage(
        "option",
        r"Unknown command line argument",
        "this release of the tool does not know an option that we give: `make doctor` shows the release "
        "that is needed",
        "LLVM llvm/lib/Support/CommandLine.cpp",
    ),
    KnownMessage(
        "text",
        r"Error parsing MLIR file",
        "this aircc reads another form of the AIR dialect: `make doctor` shows the release of mlir-air "
        "that is needed",
        "mlir-air tools/aircc/aircc.cpp",
    ),
    KnownMessage(
        "header",
        r"fatal error: '[^']+' file not found",
        "a header is missing for a C++ kernel; aie_api/aie.hpp is mlir-aie's: `make doctor` looks for it",
        "Peano's clang",
    ),
    KnownMessage(
        "killed",
        r"failed: Killed|\(Killed\)|LLVM ERROR: out of memory|std::bad_alloc",
        "a tool was killed, which is what the system does where memory runs out: set AERIE_COMPILE_MEMORY "
        "to fewer GiB, so that fewer programs compile side by side",
        "LLVM llvm/lib/Support/Unix/Program.inc",
    ),
    KnownMessage(
        "disk",
        r"No space left on device",
        "the disk is full: free some space, or name a folder on another disk with AERIE_CACHE",
        "errno ENOSPC",
    ),
    KnownMessage(
        "crash",
        r"PLEASE submit a bug report|Stack dump:|Assertion `.*' failed",
        "the tool itself crashed: `make doctor` compares the releases with the required ones; "
        "the program's text is next to the log, to report it upstream",
        "LLVM llvm/lib/Support/PrettyStackTrace.cpp",
    ),
)

STAGES = (
    (r"aiebu(-asm' (failed|not found)| full-ELF assembly failed|_assembler)", "aiebu-asm writes the ELF"),
    (r"ld\.lld: error|aiecc: '[^']*/clang(\+\+)?' failed", "Peano links a core"),
    (r"aiecc: '[^']*/llc' failed", "Peano's llc makes a core's object"),
    (r"aiecc: '[^']*/opt' failed", "Peano's opt works on a core"),
    (r"Error running command: \S*aiecc", "aiecc turns the array's configuration into an ELF"),
    (r"Error: pass pipeline failed: \S*airrt-to-npu", "aircc: airrt-to-npu, the host's side of transfers"),
    (r"Error: pass pipeline failed: \S*air-to-aie", "aircc: air-to-aie, the array's configuration"),
    (
        r"Error: pass pipeline failed: \S*air-verify-hierarchy",
        "aircc: the check of which core reaches which buffer",
    ),
    (
        r"Error: pass pipeline failed: \S*air-place-herds|No valid placement",
        "aircc: placement",
    ),
    (r"Error parsing MLIR file", "aircc reads the program"),
)
"""What a log says of the stage that failed, innermost first: aircc calls aiecc, which calls the others."""

CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
"""Signals by which a tool that crashes ends."""

_ERROR = re.compile(
    r"\berror\b|\bfailed\b|\bfatal\b|not found|could not find|will not fit|undefined symbol|No space left|"
    r"No valid placement|Unplaced herd|out of|Killed|exceed|Unknown command line",
    re.IGNORECASE,
)
_CONTEXT = re.compile(r"\bnote: |^>>> ")


def failure_text(tool: str, code: int, log_text: str) -> str:
    """Why a tool that ended with this exit code failed; "" if it succeeded.

    A negative code is the signal that killed it.
    """
    if code == 0:
        return (
            _explain(f"{tool} ended with exit code 0 and did not succeed", log_text)
            if any(reading.fatal for reading in known_messages(log_text))
            else ""
        )
    if code < 0:
        return _explain(f"{tool} was killed by {_signal_name(-code)}", log_text, _signal_text(-code))
    hint = _signal_text(code - 128) if code > 128 else ""  # as a shell tells of a signal
    return _explain(f"{tool} failed with exit code {code}", log_text, hint)


def timeout_text(tool: str, seconds: int, log_text: str) -> str:
    """Why a tool failed that was killed after `seconds`."""
    killed = f"{tool} had not ended after {seconds} s and was killed with all that it started"
    return _explain(f"{killed}; AERIE_COMPILE_TIMEOUT gives it more", log_text)


def missing_output_text(tool: str, name: str, log_text: str) -> str:
    """Why a tool with exit code 0 failed: it did not write `name`."""
    return _explain(f"{tool} ended without an error and without {name}", log_text)


def failed_stage(log_text: str) -> str:
    """The stage that failed, as text; "" if the log does not show it."""
    return next((words for pattern, words in STAGES if re.search(pattern, log_text)), "")


def known_messages(log_text: str) -> list[KnownMessage]:
    """The known messages in a log, in the table's order."""
    return [reading for reading in KNOWN_MESSAGES if re.search(reading.pattern, log_text)]


def has_unplaced_herd(log_text: str) -> bool:
    """Whether a herd could not be placed, which aircc reports without failing."""
    return any(reading.name == "placement" for reading in known_messages(log_text))


def error_lines(log_text: str) -> list[str]:
    """The tool's lines about its failure with their notes, else its last lines; at most SHOWN_LINES."""
    lines = [line for line in log_text.splitlines() if line.strip() and not line.startswith("$ ")]
    relevant = [
        line for line in lines if _ERROR.search(line) or _CONTEXT.search(line) or known_messages(line)
    ]
    return list(dict.fromkeys(relevant))[:SHOWN_LINES] or lines[-SHOWN_LINES:]


def _explain(headline: str, log_text: str, hint: str = "") -> str:
    stage_name = failed_stage(log_text)
    meanings = [f"this means: {reading.meaning} ({reading.source})" for reading in known_messages(log_text)]
    if hint and not meanings:
        meanings = [f"this means: {hint}"]
    begin = f"{headline} ({stage_name}):" if stage_name else f"{headline}:"
    return "\n".join([begin, *error_lines(log_text), *meanings])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _signal_text(number: int) -> str:
    name = "killed" if number == signal.SIGKILL else "crash" if number in CRASHES else ""
    return next((reading.meaning for reading in KNOWN_MESSAGES if reading.name == name), "")
