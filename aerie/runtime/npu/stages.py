"""The stages that upstream's compilers take a program through without Peano and without an NPU.

For each stage: what it does, what it needs, how it ended, and where its texts are. stage_runner.py runs them.
Stages 2 to 4 are aircc's own work; the others are what aiecc does with aircc's text (pipelines.py).
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from aerie.runtime.npu.core_ir import CoreFinding
from aerie.runtime.npu.pipelines import ToolPasses
from aerie.runtime.npu.tools import STAGE_FINDERS

TOOL_TIMEOUT_S = 30
"""Time limit in seconds for a tool that prints its version or its help."""


@dataclass(frozen=True)
class ToolStage:
    """One stage. tools: alternative sets of tools; one whole set must be installed. source: whose
    work it is.
    """

    number: int
    title: str
    tools: tuple[frozenset[str], ...]
    source: str

    def __str__(self) -> str:
        return f"{self.number} ({self.title})"


def _stage(number: int, title: str, source: str, *tools: str) -> ToolStage:
    return ToolStage(number, title, tuple(frozenset(names.split()) for names in tools), source)


_AIRCC, _AIECC = "mlir-air tools/aircc/aircc.cpp", "mlir-aie tools/aiecc/IRTransforms.h"

PARSE, PLACE, TO_AIE, TO_NPU, RESOURCES, ROUTE, CORES, INSTRUCTIONS = STAGES = (
    _stage(1, "parse and verify", "mlir-air's dialect", "air-opt"),
    _stage(2, "placement", _AIRCC, "aircc", "air-opt"),
    _stage(3, "air-to-aie and tiles", _AIRCC, "aircc", "air-opt"),
    _stage(4, "the launch side", _AIRCC, "aircc", "air-opt"),
    _stage(5, "locks, descriptors, buffers", _AIECC, "aie-opt"),
    _stage(6, "routing", _AIECC, "aie-opt"),
    _stage(7, "cores to LLVM IR", _AIECC, "aie-opt aie-translate"),
    _stage(8, "instruction words", _AIECC, "aie-opt aie-translate"),
)


class StageStatus(StrEnum):
    """How a stage ended."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"  # a tool is missing, for this stage or for one that it builds upon
    NOT_RUN = "not run"  # an earlier stage failed


@dataclass(frozen=True)
class StageFailure:
    """What a failed tool printed. line: its first line about the failure; meanings: of known messages;
    full_text:
    everything worth showing.
    """

    line: str
    meanings: tuple[str, ...]
    full_text: str


@dataclass(frozen=True)
class StageOutcome:
    """How one stage of one program ended.

    note: why it was skipped, or what it made. left_out: passes and options that the tool lacks. findings:
    what is slow or wrong in the code of the cores, each once.
    """

    stage: ToolStage
    status: StageStatus
    seconds: float = 0.0
    note: str = ""
    failure: StageFailure | None = None
    left_out: tuple[str, ...] = ()
    findings: tuple[CoreFinding, ...] = ()


@dataclass(frozen=True)
class StageTools:
    """The tools of one machine that run stages, by name."""

    paths: Mapping[str, Path]

    @staticmethod
    def from_machine() -> StageTools:
        """The tools of this machine."""
        paths = {name: find() for name, (find, _) in STAGE_FINDERS.items()}
        return StageTools({name: path for name, path in paths.items() if path is not None})

    @property
    def missing(self) -> list[str]:
        """The missing tools, one line each with where to get them."""
        return [advice for name, (_, advice) in STAGE_FINDERS.items() if name not in self.paths]

    def blocker(self, stage: ToolStage) -> str:
        """Why a stage cannot run here; "" if it can. All but the first two need the stage before."""
        if not any(names <= self.paths.keys() for names in stage.tools):
            lacking = sorted(stage.tools[0] - self.paths.keys())
            return f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} missing"
        before = STAGES[stage.number - 2]
        return f"stage {before} cannot run" if stage.number > 2 and self.blocker(before) else ""

    @property
    def runnable(self) -> list[ToolStage]:
        """The stages that can run."""
        return [stage for stage in STAGES if not self.blocker(stage)]

    def passes_of(self, tool: str) -> ToolPasses:
        """The passes and options of a tool."""
        return ToolPasses.from_help(_tool_output(str(self.paths[tool]), "--help"))

    def version(self, tool: str) -> str:
        """A tool's version in one line: that of its LLVM."""
        lines = _tool_output(str(self.paths[tool]), "--version").splitlines()
        return next((line.strip() for line in lines if "version" in line), "it prints no version")


@functools.cache
def _tool_output(path: str, option: str) -> str:
    try:
        done = subprocess.run(
            [path, option], capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""  # its first stage reports whatever is wrong with the tool
    return done.stdout


@dataclass(frozen=True)
class StageFiles:
    """The paths of one program's texts, in its folder."""

    work: Path
    name: str

    @property
    def source(self) -> Path:
        """The program as it was passed in."""
        return self.work / f"{self.name}.mlir"

    @property
    def log(self) -> Path:
        """Every command line, with all that the tool printed."""
        return self.work / f"stages.{self.name}.log"

    def module_after(self, stage: ToolStage) -> Path:
        """The module that a stage wrote, under the name that `aircc` gives it."""
        kinds = {PLACE: "placed", TO_AIE: "aie", TO_NPU: "npu", RESOURCES: "addresses", ROUTE: "routed"}
        return self.work / f"{kinds[stage]}.{self.name}.mlir" if stage in kinds else self.source

    @property
    def placed(self) -> Path:
        """The module of stage 2, which is AIR and runs on the virtual NPU."""
        return self.module_after(PLACE)

    def core(self, of_device: str, kind: str) -> Path:
        """All cores of one `aie.device`: kind `mlir`, or `ll` for LLVM IR."""
        return self.work / f"cores.{self.name}.{of_device}.{kind}"

    @property
    def cores(self) -> list[Path]:
        """The LLVM IR of all cores, one file per device."""
        return sorted(self.work.glob(f"cores.{self.name}.*.ll"))

    @property
    def instructions(self) -> Path:
        """The runtime sequences as operations of the command processor."""
        return self.work / f"instructions.{self.name}.mlir"

    @property
    def hex_words(self) -> Path:
        """Return the instructions as hexadecimal words, one per line."""
        return self.work / f"words.{self.name}.txt"
