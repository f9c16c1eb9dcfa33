"""The stages that upstream's compilers take a program through without Peano and without an NPU.

What each is, what it needs, how it ended, and where its texts lie; stage_runner.py runs them. Stages 2 to 4
are aircc's own work, the others are what aiecc does with the text that aircc hands it (pipelines.py).
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from aerie.runtime.npu.core_ir import CoreFinding
from aerie.runtime.npu.pipelines import Known
from aerie.runtime.npu.tools import STAGE_FINDERS

ANSWER_S = 30
"""Seconds that a tool may take to say its version, or what it can."""


@dataclass(frozen=True)
class Stage:
    """One stage. tools: sets of tools that run it; one whole set must be there. source: whose work it is."""

    number: int
    title: str
    tools: tuple[frozenset[str], ...]
    source: str

    def __str__(self) -> str:
        return f"{self.number} ({self.title})"


def _stage(number: int, title: str, source: str, *tools: str) -> Stage:
    return Stage(number, title, tuple(frozenset(names.split()) for names in tools), source)


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


class Status(StrEnum):
    """How a stage ended."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"  # a tool is missing, for this stage or for one that it builds upon
    NOT_RUN = "not run"  # an earlier stage failed


@dataclass(frozen=True)
class Failure:
    """What a tool said. line: its first line about it; meanings: what known messages mean; account: all
    that is worth showing."""

    line: str
    meanings: tuple[str, ...]
    account: str


@dataclass(frozen=True)
class Result:
    """How one stage of one program ended.

    note: why it was skipped, or what came out. left_out: passes and options that the tool does not have.
    findings: what is slow or wrong in the code of the cores, each once.
    """

    stage: Stage
    status: Status
    seconds: float = 0.0
    note: str = ""
    failure: Failure | None = None
    left_out: tuple[str, ...] = ()
    findings: tuple[CoreFinding, ...] = ()


@dataclass(frozen=True)
class StageTools:
    """The tools of one machine that run stages, by name."""

    paths: Mapping[str, Path]

    @staticmethod
    def found() -> StageTools:
        """Those of this machine."""
        found = {name: find() for name, (find, _) in STAGE_FINDERS.items()}
        return StageTools({name: path for name, path in found.items() if path is not None})

    @property
    def missing(self) -> list[str]:
        """What is not there, one line each, with where it comes from."""
        return [advice for name, (_, advice) in STAGE_FINDERS.items() if name not in self.paths]

    def obstacle(self, stage: Stage) -> str:
        """Why a stage cannot run here; "" where it can. All but the first two build upon the one before."""
        if not any(names <= self.paths.keys() for names in stage.tools):
            lacking = sorted(stage.tools[0] - self.paths.keys())
            return f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} missing"
        before = STAGES[stage.number - 2]
        return f"stage {before} cannot run" if stage.number > 2 and self.obstacle(before) else ""

    @property
    def runnable(self) -> list[Stage]:
        """The stages that can run."""
        return [stage for stage in STAGES if not self.obstacle(stage)]

    def known(self, tool: str) -> Known:
        """The passes and options that a tool has."""
        return Known.of_help(_answer(str(self.paths[tool]), "--help"))

    def version(self, tool: str) -> str:
        """What a tool says of its version, in one line: that of its LLVM."""
        lines = _answer(str(self.paths[tool]), "--version").splitlines()
        return next((line.strip() for line in lines if "version" in line), "it does not tell its version")


@functools.cache
def _answer(path: str, question: str) -> str:
    try:
        done = subprocess.run([path, question], capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""  # whatever is wrong with the tool, its first stage tells
    return done.stdout


@dataclass(frozen=True)
class Texts:
    """Where the texts of one program lie in its folder."""

    work: Path
    name: str

    @property
    def source(self) -> Path:
        """The program, as it was given."""
        return self.work / f"{self.name}.mlir"

    @property
    def log(self) -> Path:
        """Every command line with all that the tool said."""
        return self.work / f"stages.{self.name}.log"

    def after(self, stage: Stage) -> Path:
        """The module that a stage wrote; `aircc` names those of its stages so."""
        kinds = {PLACE: "placed", TO_AIE: "aie", TO_NPU: "npu", RESOURCES: "addresses", ROUTE: "routed"}
        return self.work / f"{kinds[stage]}.{self.name}.mlir" if stage in kinds else self.source

    @property
    def placed(self) -> Path:
        """What stage 2 wrote, which is AIR and can be run on the virtual NPU."""
        return self.after(PLACE)

    def core(self, of_device: str, kind: str) -> Path:
        """All cores of one `aie.device`: as `mlir`, and as `ll`, which is LLVM IR."""
        return self.work / f"cores.{self.name}.{of_device}.{kind}"

    @property
    def cores(self) -> list[Path]:
        """The LLVM IR of all cores, a file for each device."""
        return sorted(self.work.glob(f"cores.{self.name}.*.ll"))

    @property
    def instructions(self) -> Path:
        """The runtime sequences as operations of the command processor."""
        return self.work / f"instructions.{self.name}.mlir"

    @property
    def words(self) -> Path:
        """The same as words in hexadecimal, one a line."""
        return self.work / f"words.{self.name}.txt"
