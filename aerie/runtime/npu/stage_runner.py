"""Runs one program through the stages. Each stage reads the text that the previous one wrote.

aircc runs with an `aiecc` in front of its PATH that does nothing, so that it ends where aiecc would start.
Without aircc, air-opt runs the same passes. Every tool runs in the program's folder, with the time limit of
AERIE_COMPILE_TIMEOUT, in a process group that is killed as one.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from aerie.common.processes import Children, TimeLimitError
from aerie.device.npu2 import NPU2, DeviceModel
from aerie.runtime import knobs
from aerie.runtime.npu import core_ir, log_diagnosis, pipelines
from aerie.runtime.npu.core_ir import CoreFinding
from aerie.runtime.npu.pipelines import AirccOptions, Passes
from aerie.runtime.npu.stages import (
    CORES,
    INSTRUCTIONS,
    PARSE,
    PLACE,
    RESOURCES,
    ROUTE,
    STAGES,
    TO_AIE,
    TO_NPU,
    StageFailure,
    StageFiles,
    StageOutcome,
    StageStatus,
    StageTools,
    ToolStage,
)

if TYPE_CHECKING:
    from aerie.multi_launch_builder.program import Program

AIRCC_STAGES = (PLACE, TO_AIE, TO_NPU)
AIECC_STUB = "#!/bin/sh\n# Ends aircc where aiecc would begin.\nexit 0\n"
DEVICE = re.compile(r'^ *aie\.device\(\w+\)(?: @("?)([\w$.-]+)\1)?', re.MULTILINE)
EXTERNAL_FUNCTION = re.compile(r"func\.func private @([\w$.-]+)\(.*\blink_with\b")

OnResult = Callable[[StageOutcome], None]


class StageFailedError(Exception):
    """A stage failed; `failure` has the reason."""

    def __init__(self, failure: StageFailure) -> None:
        super().__init__(failure.full_text)
        self.failure = failure


@dataclass(frozen=True)
class StageRunner:
    """Runs programs with the tools of a machine. Several threads may use it."""

    tools: StageTools
    device: DeviceModel = NPU2
    children: Children = field(default_factory=Children)

    def run(self, program: Program, work: Path, on_result: OnResult = lambda _: None) -> list[StageOutcome]:
        """Run all stages. Returns their outcomes, in order, and calls `on_result` with each as it ends.

        work: an empty folder for the tools' files (see StageFiles). Raises KnobError if the time limit is not
        valid.
        """
        results: list[StageOutcome] = []
        for result in _ProgramRun(self, program, work).results():
            on_result(result)
            results.append(result)
        return results

    def stop(self) -> None:
        """Kill the tools that run in any thread, with all that they started."""
        self.children.stop()


def devices_with_cores(text: str) -> list[str]:
    """The names of the `aie.device` operations in a module that have cores, in order."""
    matches = list(DEVICE.finditer(text))
    ends = (*(match.start() for match in matches[1:]), len(text))
    bodies = zip(matches, ends, strict=False)  # without a device there is one end too many
    return [match[2] or "main" for match, end in bodies if "aie.core(" in text[match.end() : end]]


class _ProgramRun:
    """The run of one program through the stages."""

    def __init__(self, runner: StageRunner, program: Program, work: Path) -> None:
        self._runner, self._tools, self._device = runner, runner.tools, runner.device
        self._texts, self._options = StageFiles(work, program.name), AirccOptions(program.flags)
        self._left_out: dict[str, None] = {}
        self._seconds = int(knobs.COMPILE_TIMEOUT.get())
        self._texts.source.write_text(program.text)

    def results(self) -> Iterator[StageOutcome]:
        failed = False
        for stage in STAGES:
            if failed:
                result = StageOutcome(stage, StageStatus.NOT_RUN)
            elif reason := self._blocker(stage):
                result = StageOutcome(stage, StageStatus.SKIPPED, note=reason)
            elif stage in AIRCC_STAGES and "aircc" in self._tools.paths:
                result = self._by_aircc[stage]
            else:
                result = self._result(stage)
            failed = failed or result.status is StageStatus.FAILED
            yield result

    def _blocker(self, stage: ToolStage) -> str:
        """Why the stage cannot run: a missing tool, or an option that only aircc follows."""
        alone = self._options.unsupported if "aircc" not in self._tools.paths else []
        if alone and stage is not PARSE and not self._tools.blocker(stage):
            return f"aircc is missing, and air-opt alone cannot follow {' '.join(alone)}"
        return self._tools.blocker(stage)

    def _result(self, stage: ToolStage) -> StageOutcome:
        begin = time.monotonic()
        self._left_out.clear()
        try:
            note = self._run(stage)
        except StageFailedError as error:
            return StageOutcome(stage, StageStatus.FAILED, time.monotonic() - begin, failure=error.failure)
        findings = self._findings() if stage is CORES else ()
        seconds = time.monotonic() - begin
        return StageOutcome(stage, StageStatus.OK, seconds, note, None, tuple(self._left_out), findings)

    def _run(self, stage: ToolStage) -> str:
        """Run one stage. Returns a note about its result. Raises StageFailedError."""
        if stage is PARSE:
            self._call("air-opt", "", self._texts.source.name, "-o", os.devnull)
        elif stage is CORES:
            return self._cores()
        elif stage is INSTRUCTIONS:
            return self._instructions()
        else:
            self._module(stage)
        return ""

    def _module(self, stage: ToolStage) -> None:
        """Run a stage that rewrites the module."""
        output = self._texts.module_after(stage)
        tool = "air-opt" if stage in AIRCC_STAGES else "aie-opt"
        self._opt(tool, self._passes(stage), self._texts.module_after(STAGES[stage.number - 2]), output)

    def _passes(self, stage: ToolStage) -> Passes:
        if stage is ROUTE:
            return pipelines.ROUTING
        passes = {
            PLACE: pipelines.placement_passes,
            TO_AIE: pipelines.aie_passes,
            TO_NPU: pipelines.npu_passes,
            RESOURCES: pipelines.resource_passes,
        }
        return passes[stage](self._options, self._device)

    def _cores(self) -> str:
        text = self._texts.module_after(ROUTE).read_text()
        devices = devices_with_cores(text)
        for name in devices:
            lowered, translated = (self._texts.core(name, kind) for kind in ("mlir", "ll"))
            self._opt(
                "aie-opt", pipelines.core_passes(name, self._device), self._texts.module_after(ROUTE), lowered
            )
            self._call("aie-translate", translated.name, "--mlir-to-llvmir", lowered.name)
        count = text.count("aie.core(")
        return f"{count} core{'s' * (count != 1)} in {len(devices)} device{'s' * (len(devices) != 1)}"

    def _findings(self) -> tuple[CoreFinding, ...]:
        """What is slow or wrong in the LLVM IR of the cores, each once, with the first core that has it."""
        functions = EXTERNAL_FUNCTION.findall(self._texts.source.read_text())
        sizes = self._options.values("--stack-size")
        stack = int(sizes[-1]) if sizes else self._device.stack_bytes
        findings: dict[str, CoreFinding] = {}
        for text in self._texts.cores:
            for finding in core_ir.check(text.read_text(), functions, stack):
                findings.setdefault(finding.message, finding)
        return tuple(findings.values())

    def _instructions(self) -> str:
        output, words = self._texts.instructions, self._texts.hex_words
        self._opt("aie-opt", pipelines.INSTRUCTIONS, self._texts.module_after(ROUTE), output)
        self._call(
            "aie-translate", words.name, "--aie-npu-to-binary", "--aie-output-binary=false", output.name
        )
        return f"{len(words.read_text().split())} words"

    def _opt(self, tool: str, passes: Passes, text: Path, output: Path) -> None:
        fitted = pipelines.pipeline(passes, self._tools.passes_of(tool))
        self._left_out.update(dict.fromkeys(fitted.left_out))
        self._call(tool, output.name, f"--pass-pipeline={fitted.text}", text.name)

    def _call(self, tool: str, output_name: str, *arguments: str) -> None:
        """Run a tool that writes `output_name`. Raises StageFailedError if it fails or writes nothing."""
        output = ["-o", output_name] if output_name else []
        code, log_text = self._tool(tool, [*arguments, *output])
        cause = log_diagnosis.failure_text(tool, code, log_text)
        if not cause and output_name and not (self._texts.work / output_name).is_file():
            cause = log_diagnosis.missing_output_text(tool, output_name, log_text)
        if cause:
            raise StageFailedError(_failure(cause, log_text))

    def _tool(self, tool: str, arguments: Sequence[str], **environment: str) -> tuple[int, str]:
        """Return a tool's exit code and output. Raises StageFailedError if it does not start or end."""
        log = self._texts.log
        begin = log.stat().st_size if log.exists() else 0
        command = [str(self._tools.paths[tool]), *arguments]
        try:
            code = self._runner.children.run(
                command, self._texts.work, log, {**os.environ, **environment}, self._seconds
            )
        except OSError as error:
            raise StageFailedError(_failure(f"{tool} could not be started: {error}", "")) from error
        except TimeLimitError as error:
            log_text = self._since(begin)
            raise StageFailedError(
                _failure(log_diagnosis.timeout_text(tool, self._seconds, log_text), log_text)
            ) from error
        return code, self._since(begin)

    def _since(self, begin: int) -> str:
        return self._texts.log.read_bytes()[begin:].decode(errors="replace")

    @functools.cached_property
    def _by_aircc(self) -> Mapping[ToolStage, StageOutcome]:
        """Run aircc's stages. It runs once; its texts, and their times, show how far it came."""
        begin = time.time()
        try:
            code, log_text = self._tool("aircc", self._aircc_arguments(), PATH=self._aircc_path())
            cause = log_diagnosis.failure_text("aircc", code, log_text)
        except StageFailedError as error:
            cause, log_text = error.failure.full_text, ""
        failed = self._failed_in_aircc(cause)
        results: dict[ToolStage, StageOutcome] = {}
        for stage in AIRCC_STAGES:
            output = self._texts.module_after(stage)
            if stage is failed:
                explanation = cause or log_diagnosis.missing_output_text("aircc", output.name, log_text)
                failure = _failure(explanation, log_text)
                results[stage] = StageOutcome(stage, StageStatus.FAILED, time.time() - begin, failure=failure)
                break
            end = output.stat().st_mtime
            results[stage] = StageOutcome(stage, StageStatus.OK, max(0.0, end - begin))
            begin = end
        return results

    def _failed_in_aircc(self, cause: str) -> ToolStage | None:
        """The first stage without a text. With all of them, aircc still failed where there is a cause: its
        placement does not end it, and what comes last is the launch side."""
        missing = (stage for stage in AIRCC_STAGES if not self._texts.module_after(stage).is_file())
        if log_diagnosis.has_unplaced_herd(cause):
            return PLACE
        return next(missing, TO_NPU if cause else None)

    def _aircc_arguments(self) -> list[str]:
        text, device = self._texts.source.name, self._device.name
        fixed = ["--device", device, "--output-format", "elf", "--elf-name", f"{self._texts.name}.elf"]
        return [text, *fixed, "--tmpdir", ".", *self._options.flags]

    def _aircc_path(self) -> str:
        """PATH for aircc, which finds aiecc there."""
        folder = self._texts.work / "no-aiecc"
        folder.mkdir(exist_ok=True)
        (folder / "aiecc").write_text(AIECC_STUB)
        (folder / "aiecc").chmod(0o755)
        return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PATH", "")])])


def _failure(full_text: str, log_text: str) -> StageFailure:
    """Make the failure of a stage from the message about a tool and the tool's output."""
    lines = log_diagnosis.error_lines(log_text) or full_text.splitlines()
    line = next((line for line in lines if "error:" in line), lines[0])
    meanings = tuple(reading.meaning for reading in log_diagnosis.known_messages(log_text))
    return StageFailure(line, meanings, full_text)
