"""Runs one program through the stages, each with the text that the one before it wrote.

aircc runs with an `aiecc` in front of its PATH that does nothing, so that it ends where aiecc would begin;
where there is no aircc, air-opt runs the same passes. Every tool runs in the program's folder, under the time
limit of AERIE_COMPILE_TIMEOUT, in a process group that ends as one.
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
from aerie.runtime.npu import core_ir, pipelines, readings
from aerie.runtime.npu.core_ir import CoreFinding
from aerie.runtime.npu.pipelines import Options, Passes
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
    Failure,
    Result,
    Stage,
    StageTools,
    Status,
    Texts,
)

if TYPE_CHECKING:
    from aerie.multi_launch_builder.program import Program

AIRCC_STAGES = (PLACE, TO_AIE, TO_NPU)
NO_AIECC = "#!/bin/sh\n# Ends aircc where aiecc would begin.\nexit 0\n"
DEVICE = re.compile(r'^ *aie\.device\(\w+\)(?: @("?)([\w$.-]+)\1)?', re.MULTILINE)
LINKED = re.compile(r"func\.func private @([\w$.-]+)\(.*\blink_with\b")

OnResult = Callable[[Result], None]


class StageError(Exception):
    """A stage failed; the failure says how."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.account)
        self.failure = failure


@dataclass(frozen=True)
class StageRunner:
    """Runs programs with the tools of a machine; several threads may."""

    tools: StageTools
    device: DeviceModel = NPU2
    children: Children = field(default_factory=Children)

    def run(self, program: Program, work: Path, on_result: OnResult = lambda _: None) -> list[Result]:
        """Every stage's result, in order, each told to `on_result` as it ends.

        `work` is an empty folder, which keeps what the tools write, where Texts says. Raises KnobError for a
        time limit that makes no sense.
        """
        results: list[Result] = []
        for result in _Course(self, program, work).results():
            on_result(result)
            results.append(result)
        return results

    def stop(self) -> None:
        """Kill the tools that run in any thread, with all that they started."""
        self.children.stop()


def devices_with_cores(text: str) -> list[str]:
    """The names of the `aie.device` operations in a module that have cores, in order."""
    found = list(DEVICE.finditer(text))
    ends = (*(match.start() for match in found[1:]), len(text))
    bodies = zip(found, ends, strict=False)  # without a device there is one end too many
    return [match[2] or "main" for match, end in bodies if "aie.core(" in text[match.end() : end]]


class _Course:
    """One program on its way."""

    def __init__(self, runner: StageRunner, program: Program, work: Path) -> None:
        self._runner, self._tools, self._device = runner, runner.tools, runner.device
        self._texts, self._options = Texts(work, program.name), Options(program.flags)
        self._left_out: dict[str, None] = {}
        self._seconds = int(knobs.COMPILE_TIMEOUT.get())
        self._texts.source.write_text(program.text)

    def results(self) -> Iterator[Result]:
        failed = False
        for stage in STAGES:
            if failed:
                result = Result(stage, Status.NOT_RUN)
            elif why := self._obstacle(stage):
                result = Result(stage, Status.SKIPPED, note=why)
            elif stage in AIRCC_STAGES and "aircc" in self._tools.paths:
                result = self._by_aircc[stage]
            else:
                result = self._result(stage)
            failed = failed or result.status is Status.FAILED
            yield result

    def _obstacle(self, stage: Stage) -> str:
        """Why the stage cannot run: a missing tool, or an option that only aircc follows."""
        alone = self._options.not_understood if "aircc" not in self._tools.paths else []
        if alone and stage is not PARSE and not self._tools.obstacle(stage):
            return f"aircc is missing, and air-opt alone cannot follow {' '.join(alone)}"
        return self._tools.obstacle(stage)

    def _result(self, stage: Stage) -> Result:
        begin = time.monotonic()
        self._left_out.clear()
        try:
            made = self._run(stage)
        except StageError as error:
            return Result(stage, Status.FAILED, time.monotonic() - begin, failure=error.failure)
        findings = self._findings() if stage is CORES else ()
        seconds = time.monotonic() - begin
        return Result(stage, Status.OK, seconds, made, None, tuple(self._left_out), findings)

    def _run(self, stage: Stage) -> str:
        """Run one stage; what there is to say of it. Raises StageError."""
        if stage is PARSE:
            self._call("air-opt", "", self._texts.source.name, "-o", os.devnull)
        elif stage is CORES:
            return self._cores()
        elif stage is INSTRUCTIONS:
            return self._instructions()
        else:
            self._module(stage)
        return ""

    def _module(self, stage: Stage) -> None:
        """A stage that makes a module of a module."""
        made = self._texts.after(stage)
        tool = "air-opt" if stage in AIRCC_STAGES else "aie-opt"
        self._opt(tool, self._passes(stage), self._texts.after(STAGES[stage.number - 2]), made)

    def _passes(self, stage: Stage) -> Passes:
        if stage is ROUTE:
            return pipelines.ROUTING
        made = {
            PLACE: pipelines.placement,
            TO_AIE: pipelines.to_aie,
            TO_NPU: pipelines.to_npu,
            RESOURCES: pipelines.resources,
        }
        return made[stage](self._options, self._device)

    def _cores(self) -> str:
        text = self._texts.after(ROUTE).read_text()
        devices = devices_with_cores(text)
        for name in devices:
            lowered, translated = (self._texts.core(name, kind) for kind in ("mlir", "ll"))
            self._opt("aie-opt", pipelines.cores(name, self._device), self._texts.after(ROUTE), lowered)
            self._call("aie-translate", translated.name, "--mlir-to-llvmir", lowered.name)
        count = text.count("aie.core(")
        return f"{count} core{'s' * (count != 1)} in {len(devices)} device{'s' * (len(devices) != 1)}"

    def _findings(self) -> tuple[CoreFinding, ...]:
        """What is slow or wrong in the LLVM IR of the cores, each once, with the first core that has it."""
        functions = LINKED.findall(self._texts.source.read_text())
        sizes = self._options.values("--stack-size")
        stack = int(sizes[-1]) if sizes else self._device.stack_bytes
        found: dict[str, CoreFinding] = {}
        for text in self._texts.cores:
            for finding in core_ir.check(text.read_text(), functions, stack):
                found.setdefault(finding.message, finding)
        return tuple(found.values())

    def _instructions(self) -> str:
        made, words = self._texts.instructions, self._texts.words
        self._opt("aie-opt", pipelines.INSTRUCTIONS, self._texts.after(ROUTE), made)
        self._call("aie-translate", words.name, "--aie-npu-to-binary", "--aie-output-binary=false", made.name)
        return f"{len(words.read_text().split())} words"

    def _opt(self, tool: str, passes: Passes, text: Path, made: Path) -> None:
        fitted = pipelines.pipeline(passes, self._tools.known(tool))
        self._left_out.update(dict.fromkeys(fitted.left_out))
        self._call(tool, made.name, f"--pass-pipeline={fitted.text}", text.name)

    def _call(self, tool: str, made: str, *arguments: str) -> None:
        """Run a tool that writes the file `made`. Raises StageError where it fails or writes nothing."""
        output = ["-o", made] if made else []
        code, said = self._tool(tool, [*arguments, *output])
        cause = readings.failure(tool, code, said)
        if not cause and made and not (self._texts.work / made).is_file():
            cause = readings.nothing_made(tool, made, said)
        if cause:
            raise StageError(_failure(cause, said))

    def _tool(self, tool: str, arguments: Sequence[str], **environment: str) -> tuple[int, str]:
        """A tool's exit code and all that it said. Raises StageError where it does not start or end."""
        log = self._texts.log
        begin = log.stat().st_size if log.exists() else 0
        command = [str(self._tools.paths[tool]), *arguments]
        try:
            code = self._runner.children.run(
                command, self._texts.work, log, {**os.environ, **environment}, self._seconds
            )
        except OSError as error:
            raise StageError(_failure(f"{tool} could not be started: {error}", "")) from error
        except TimeLimitError as error:
            said = self._since(begin)
            raise StageError(_failure(readings.timed_out(tool, self._seconds, said), said)) from error
        return code, self._since(begin)

    def _since(self, begin: int) -> str:
        return self._texts.log.read_bytes()[begin:].decode(errors="replace")

    @functools.cached_property
    def _by_aircc(self) -> Mapping[Stage, Result]:
        """aircc's stages. It runs once; the texts that it wrote, and when, tell how far it came."""
        begin = time.time()
        try:
            code, said = self._tool("aircc", self._aircc_arguments(), PATH=self._aircc_path())
            cause = readings.failure("aircc", code, said)
        except StageError as error:
            cause, said = error.failure.account, ""
        failed = self._failed_in_aircc(cause)
        results: dict[Stage, Result] = {}
        for stage in AIRCC_STAGES:
            made = self._texts.after(stage)
            if stage is failed:
                told = cause or readings.nothing_made("aircc", made.name, said)
                failure = _failure(told, said)
                results[stage] = Result(stage, Status.FAILED, time.time() - begin, failure=failure)
                break
            end = made.stat().st_mtime
            results[stage] = Result(stage, Status.OK, max(0.0, end - begin))
            begin = end
        return results

    def _failed_in_aircc(self, cause: str) -> Stage | None:
        """The first stage without a text. With all of them, aircc still failed where there is a cause: its
        placement does not end it, and what comes last is the launch side."""
        missing = (stage for stage in AIRCC_STAGES if not self._texts.after(stage).is_file())
        if readings.unplaced(cause):
            return PLACE
        return next(missing, TO_NPU if cause else None)

    def _aircc_arguments(self) -> list[str]:
        text, device = self._texts.source.name, self._device.name
        fixed = ["--device", device, "--output-format", "elf", "--elf-name", f"{self._texts.name}.elf"]
        return [text, *fixed, "--tmpdir", ".", *self._options.flags]

    def _aircc_path(self) -> str:
        """PATH for aircc, which looks aiecc up there."""
        folder = self._texts.work / "no-aiecc"
        folder.mkdir(exist_ok=True)
        (folder / "aiecc").write_text(NO_AIECC)
        (folder / "aiecc").chmod(0o755)
        return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PATH", "")])])


def _failure(account: str, said: str) -> Failure:
    """From a tool's failure as it is told, and all that the tool said."""
    lines = readings.own_lines(said) or account.splitlines()
    line = next((line for line in lines if "error:" in line), lines[0])
    meanings = tuple(reading.meaning for reading in readings.known(said))
    return Failure(line, meanings, account)
