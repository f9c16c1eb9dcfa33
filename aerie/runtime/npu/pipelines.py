"""What aircc and aiecc run, as pass pipelines for air-opt and aie-opt. Only this file has them.

Read in mlir-air tools/aircc/aircc.cpp (e972f294: placement, air-to-aie, the launch side) and mlir-aie
tools/aiecc/IRTransforms.h and aiecc.cpp (7e00b579: all later passes). Releases differ a little: a pass or an
option that ends in `?` is left out if the tool's own `--help` does not list it. A pass may be marked so only
if it changes nothing in programs like ours; an option, if the pass without it does what the option asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from aerie.device.npu2 import DeviceModel

CLEANUP_PASSES = ("canonicalize", "cse")
"""What aircc runs after most passes."""


@dataclass(frozen=True)
class NestedPipeline:
    """Passes that run on each operation of one kind inside the module."""

    operation: str
    passes: tuple[str, ...]


Passes = Sequence[str | NestedPipeline]


@dataclass(frozen=True)
class ToolPasses:
    """The passes of a tool, with their options; empty if its help could not be read."""

    options: Mapping[str, frozenset[str]]

    @staticmethod
    def from_help(text: str) -> ToolPasses:
        """Parse `--help` of an MLIR tool: one pass per line, its options indented below it."""
        options: dict[str, set[str]] = {}
        own: set[str] = set()
        for indent, name in re.findall(r"^( {6}| {8})--([\w-]+)(?:=\S+)? ", text, re.MULTILINE):
            if len(indent) == 6:
                own = options.setdefault(name, set())
            else:
                own.add(name)
        return ToolPasses({name: frozenset(found) for name, found in options.items()})

    def is_missing(self, name: str, option: str = "") -> bool:
        """Whether the tool is known to lack a pass, or an option of it."""
        if not self.options:
            return False
        return option not in self.options.get(name, ()) if option else name not in self.options


@dataclass(frozen=True)
class Pipeline:
    """The text for `--pass-pipeline`, and the parts that were left out because the tool lacks them."""

    text: str
    left_out: tuple[str, ...] = ()


def pipeline(passes: Passes, tool_passes: ToolPasses) -> Pipeline:
    """The passes as a pipeline for one tool."""
    left_out: list[str] = []
    parts = ",".join(_parts(passes, tool_passes, left_out))
    return Pipeline(f"builtin.module({parts})", tuple(left_out))


def _parts(passes: Passes, tool_passes: ToolPasses, left_out: list[str]) -> Iterator[str]:
    for each in passes:
        if isinstance(each, NestedPipeline):
            yield f"{each.operation}({','.join(_parts(each.passes, tool_passes, left_out))})"
        elif part := _fit(each, tool_passes, left_out):
            yield part


def _fit(pass_text: str, tool_passes: ToolPasses, left_out: list[str]) -> str:
    """A pass with the options that the tool has; "" if it is left out."""
    name, _, given = pass_text.removesuffix("?").removesuffix("}").partition("{")
    if pass_text.endswith("?") and tool_passes.is_missing(name):
        left_out.append(name)
        return ""
    options = []
    for option in given.split():
        if option.endswith("?") and tool_passes.is_missing(name, option.partition("=")[0]):
            left_out.append(f"{name} {option.removesuffix('?')}")
        else:
            options.append(option.removesuffix("?"))
    return f"{name}{{{' '.join(options)}}}" if options else name


SUPPORTED_OPTIONS = (
    "--stack-size",
    "--air-runtime-loop-tiling-sizes",
    "--omit-ping-pong-transform",
    "--omit-while-true-loop",
    "--use-lock-race-condition-fix",
    "--coalesce-shim-dma",
    "--omit-auto-broadcast",
    "--bf16-emulation",
)
"""The options of aircc that the pipelines below follow."""


@dataclass(frozen=True)
class AirccOptions:
    """A command line's options of aircc."""

    flags: tuple[str, ...]

    def values(self, name: str) -> list[str]:
        """The values of an option, in order; "" for an option without a value."""
        pairs = (flag.partition("=") for flag in self.flags)
        return [value for given, _, value in pairs if given == name]

    def is_given(self, name: str) -> str:
        """`true` or `false`: whether an option is set."""
        return str(any(value != "false" for value in self.values(name))).lower()

    @property
    def unsupported(self) -> list[str]:
        """The flags that only aircc itself can follow."""
        return [flag for flag in self.flags if flag.partition("=")[0] not in SUPPORTED_OPTIONS]


def placement_passes(options: AirccOptions, device: DeviceModel) -> Passes:
    """aircc's passes up to the text placed.NAME that it writes: dependencies, channels, ping-pong, herds."""
    launch = ("air-isolate-async-dma-loop-nests{scope=launch}", *CLEANUP_PASSES)
    channels = 2 * device.columns
    split = (
        f"air-split-l2-memref{{max-launch-channels-mm2s={channels}? max-launch-channels-s2mm={channels}?}}"
    )
    broadcast = ("air-broadcast-detection", "air-specialize-dma-broadcast")
    return (
        "air-annotate-refeed?",
        "air-annotate-append-barrier?",
        "air-annotate-packet-ids{assign=true emit-headers=false}?",
        "air-rank-to-launch?",
        "air-insert-launch-around-herd{insert-segment=true}",
        NestedPipeline("func.func", ("air-lower-herd-parallel",)),
        "scf-forall-to-parallel",
        "air-dependency",
        "air-annotate-packet-ids{assign=true}?",
        "air-hoist-dma-in-accum-pattern",
        *(() if options.values("--omit-auto-broadcast") else broadcast),
        *("air-dma-to-channel", *CLEANUP_PASSES),
        *("air-dependency-canonicalize", *CLEANUP_PASSES),
        *launch,
        *("air-fuse-channels", *CLEANUP_PASSES),
        *(NestedPipeline("func.func", (split,)), *CLEANUP_PASSES),
        *launch,
        NestedPipeline("func.func", ("air-fuse-alloc-dealloc",)),
        NestedPipeline("func.func", ("air-shrink-memref-sizes-by-access",)),
        *_ping_pong(options),
        NestedPipeline("func.func", ("convert-linalg-to-loops",)),
        *(
            NestedPipeline("func.func", (f"air-opt-memtile-dma-bds{{device={device.name}}}",)),
            *CLEANUP_PASSES,
        ),
        f"air-place-herds{{num-rows=6 num-cols={device.columns} row-anchor=2 col-anchor=0}}",
        *CLEANUP_PASSES,
        "air-enforce-channel-fifo-order?",
        NestedPipeline("func.func", ("air-renumber-dma",)),
    )


def _ping_pong(options: AirccOptions) -> Passes:
    """The two passes that double buffers, unless the program needs a single copy of all of them."""
    omitted = [value or "all" for value in options.values("--omit-ping-pong-transform")]
    if omitted and omitted[-1] == "all":
        return ()
    of = f"{{omit-memory-space={omitted[-1]}}}" if omitted else ""
    return (f"air-label-scf-for-to-ping-pong{of}", f"air-ping-pong-transform{of}", *CLEANUP_PASSES)


def aie_passes(options: AirccOptions, device: DeviceModel) -> Passes:
    """From the placed text to cores, locks and flows on physical tiles."""
    requested = {
        "emit-while-loop": str(not options.values("--omit-while-true-loop")).lower(),
        "row-offset": "2",
        "col-offset": "0",
        "device": device.name,
        "use-lock-race-condition-fix": options.is_given("--use-lock-race-condition-fix"),
    }
    if sizes := options.values("--stack-size"):
        requested["stack-size"] = sizes[-1]
    return (
        f"air-to-aie{{{' '.join(f'{name}={value}' for name, value in requested.items())}}}",
        "air-merge-unrolled-devices?",
        NestedPipeline("aie.device", ("aie-place-tiles{merge-logical-tiles=false?}",)),
    )


def npu_passes(options: AirccOptions, device: DeviceModel) -> Passes:
    """The host's side: the transfers of launches to operations of the NPU's command processor, for an ELF."""
    tiles = ",".join(options.values("--air-runtime-loop-tiling-sizes"))
    shim = f"device={device.name}" + (f" shim-dma-tile-sizes={tiles}" if tiles else "")
    coalesced = f"coalesce-shim-dma={options.is_given('--coalesce-shim-dma')}?"
    return (
        *(NestedPipeline("func.func", (f"air-opt-shim-dma-bds{{{shim}}}",)), *CLEANUP_PASSES),
        *("air-to-std", "symbol-dce", "affine-expand-index-ops", *CLEANUP_PASSES),
        *(f"airrt-to-npu{{trace-size=0 trace-offset=0 output-elf=true {coalesced}}}", *CLEANUP_PASSES),
    )


def resource_passes(options: AirccOptions, device: DeviceModel) -> Passes:
    """aiecc's `input_with_addresses`: locks, descriptors and addresses of buffers, vectors to AIEVec."""
    emulated = " bf16-emulation=true" if options.values("--bf16-emulation") else ""
    return (
        f"convert-vector-to-aievec{{aie-target={device.architecture}{emulated}}}",
        "lower-affine",
        "aie-canonicalize-device",
        "aie-lower-scratchpad-parameters?",
        NestedPipeline(
            "aie.device",
            (
                "aie-objectFifo-stateful-transform",
                "aie-objectFifo-unroll?",
                "aie-assign-lock-ids",
                "aie-assign-bd-ids",
                "aie-lower-cascade-flows",
                "aie-lower-broadcast-packet",
                "aie-lower-multicast",
                "aie-assign-tile-controller-ids",
            ),
        ),
        "aie-generate-column-control-overlay{route-shim-to-tile-ctrl=false}",
        NestedPipeline(
            "aie.device",
            ("aie-assign-buffer-addresses", "aie-assign-core-link-files?", "aie-vector-transfer-lowering?"),
        ),
        "aie-scf-to-control-flow?",
    )


ROUTING: Passes = (NestedPipeline("aie.device", ("aie-create-pathfinder-flows",)),)


def core_passes(of_device: str, device: DeviceModel) -> Passes:
    """All cores of one `aie.device` to the LLVM dialect, as aiecc does it with `--unified`."""
    return (
        NestedPipeline(
            "aie.device",
            ("aie-localize-locks", "aie-normalize-address-spaces", "aie-transform-bfp-types?"),
        ),
        f"aie-standard-lowering{{device={of_device}}}",
        "aiex-standard-lowering",
        f"convert-aievec-to-llvm{{aie-target={device.architecture}?}}",
        *CLEANUP_PASSES,
        "expand-strided-metadata",
        "lower-affine",
        "arith-expand{include-min-max-f=true?}",  # LLVM 24 expands them only when it is asked
        "finalize-memref-to-llvm",
        "convert-func-to-llvm{use-bare-ptr-memref-call-conv=true}",
        "convert-to-llvm{dynamic=true}",
        "convert-vector-to-llvm",
        "convert-ub-to-llvm",
        *CLEANUP_PASSES,
    )


INSTRUCTIONS: Passes = (
    "aie-materialize-runtime-sequences",
    NestedPipeline(
        "aie.device",
        (
            "aie-materialize-bd-chains",
            "aie-substitute-shim-dma-allocations",
            "aie-unroll-runtime-sequence-loops?",
            "canonicalize",
            "aie-decompose-large-dma-bd?",
            "aie-lower-dynamic-bd-pool?",
            "canonicalize",
            "aie-assign-runtime-sequence-bd-ids",
            "aie-dma-tasks-to-npu",
            "aie-lower-dma-channel-reset?",
            "aie-dma-to-npu",
            "aie-lower-set-lock?",
            "aie-lower-core-reset?",
        ),
    ),
)
"""Runtime sequences to instructions. aiecc also writes the cores' configuration into them
(aie-expand-load-pdi), which takes the cores' ELF files and so Peano."""
