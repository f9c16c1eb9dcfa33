"""The table of checks, lowest layer first, the checks that each goal needs, and running them. A check that
fails does not stop the others.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass

from aerie.board.doctor import basics, compilers, device, one_kernel
from aerie.board.doctor.machine import CheckResult, CheckStatus, ExaminedMachine

LIMIT_S = 30.0
"""Total time limit of a check, in seconds. The tools that a check starts have tighter limits."""

Results = Mapping[str, CheckResult]
"""The result of every check, by name, in the table's order."""


@dataclass(frozen=True)
class DoctorCheck:
    """One check of one layer. needs: earlier checks that must pass before this one makes sense."""

    name: str
    title: str
    layer: str
    run: Callable[[ExaminedMachine], CheckResult]
    needs: tuple[str, ...] = ()
    limit_s: float = LIMIT_S


def run_checks(checks: Sequence[DoctorCheck], machine: ExaminedMachine) -> dict[str, CheckResult]:
    """Run all checks. Returns their results by name. Never raises, and ends even if a check hangs.

    Each check runs in its own thread, which does not keep the process alive.
    """
    futures: dict[str, Future[CheckResult]] = {check.name: Future() for check in checks}
    for check in checks:
        threading.Thread(target=_examine, args=(check, machine, futures), daemon=True).start()
    return {check.name: _result(check, futures) for check in checks}


def _examine(
    check: DoctorCheck, machine: ExaminedMachine, futures: Mapping[str, Future[CheckResult]]
) -> None:
    failed = [name for name in check.needs if not is_usable(futures[name].result())]
    finding = CheckResult(CheckStatus.SKIPPED, f"not looked at without {failed[0]}", "") if failed else None
    _settle(futures[check.name], finding or _run_guarded(check, machine))


def _run_guarded(check: DoctorCheck, machine: ExaminedMachine) -> CheckResult:
    try:
        return check.run(machine).printable()
    except BaseException as error:  # a defect of the check, or of what it called: one layer's loss
        return CheckResult(
            CheckStatus.UNKNOWN,
            f"the check itself failed ({type(error).__name__}: {error})",
            "a check that works",
            "this is a defect of Aerie: please report it, with the output of make report",
        ).printable()


def _result(check: DoctorCheck, futures: Mapping[str, Future[CheckResult]]) -> CheckResult:
    """The result of a check. Its time limit starts when the checks that it needs have ended."""
    try:
        return futures[check.name].result(timeout=check.limit_s)
    except NotYet:
        actual = f"no answer within {check.limit_s:g} s"
        _settle(
            futures[check.name],
            CheckResult(CheckStatus.UNKNOWN, actual, "an answer", "look for what blocks it"),
        )
        return futures[check.name].result()


def _settle(future: Future[CheckResult], finding: CheckResult) -> None:
    """Set the first result. A check may end just when its time is over."""
    with contextlib.suppress(InvalidStateError):
        future.set_result(finding)


def is_usable(finding: CheckResult) -> bool:
    """Whether other layers can build on this one."""
    return finding.status in (CheckStatus.OK, CheckStatus.WARNING)


COMPILE = ("mlir_air", "mlir_aie", "aie_api", "peano", "aiebu_asm", "air_bindings")
DEVICE = ("driver", "node", "npu", "memlock")
BINDINGS = ("pyxrt", "bindings")

CHECKS = (
    DoctorCheck("python", "Python", "basics", basics.python),
    DoctorCheck("system", "system", "basics", basics.system),
    DoctorCheck("instructions", "CPU", "basics", basics.instructions),
    DoctorCheck("compiler", "C++ compiler", "basics", basics.compiler),
    DoctorCheck("memory", "memory", "basics", basics.memory),
    DoctorCheck("disk", "disk", "basics", basics.disk),
    DoctorCheck("cache", "cache folder", "basics", basics.cache),
    DoctorCheck("mlir_air", "mlir-air", "NPU compilers", compilers.mlir_air),
    DoctorCheck("mlir_aie", "mlir-aie", "NPU compilers", compilers.mlir_aie),
    DoctorCheck("aie_api", "AIE API headers", "NPU compilers", compilers.aie_api),
    DoctorCheck("peano", "Peano", "NPU compilers", compilers.peano),
    DoctorCheck("aiebu_asm", "aiebu-asm", "NPU compilers", compilers.aiebu_asm),
    DoctorCheck("air_bindings", "air.ir", "NPU compilers", compilers.air_bindings),
    DoctorCheck("stages", "compiler stages", "NPU compilers", compilers.stages),
    DoctorCheck("driver", "driver", "NPU", device.driver),
    DoctorCheck("node", "device node", "NPU", device.node),
    DoctorCheck("npu", "device", "NPU", device.npu),
    DoctorCheck("firmware", "firmware", "NPU", device.firmware, needs=("node",)),
    DoctorCheck("memlock", "locked memory", "NPU", device.memlock),
    DoctorCheck("xrt", "XRT", "XRT", device.xrt),
    DoctorCheck("pyxrt", "pyxrt", "XRT", device.pyxrt),
    DoctorCheck("bindings", "pyxrt's calls", "XRT", device.bindings, needs=("pyxrt",)),
    DoctorCheck("checkpoint", "checkpoint", "what runs", basics.checkpoint),
    DoctorCheck("virtual_npu", "virtual NPU", "what runs", one_kernel.on_virtual_npu, ("compiler",), 90.0),
    DoctorCheck(
        "launch", "one kernel", "what runs", one_kernel.on_npu, (*DEVICE, *BINDINGS, *COMPILE), 150.0
    ),
)


NOT_SET_UP_WITHOUT = {
    "NPU compilers": ("mlir_air", "mlir_aie", "aie_api", "peano"),
    "NPU": ("driver", "node"),
    "XRT": ("xrt", "pyxrt"),
}
"""Layers that only an NPU needs, and the check without which nobody has started to set the layer up."""


def not_set_up(results: Results) -> frozenset[str]:
    """The names of checks whose layers were never set up here, and of the layers above them.

    A broken part, or a missing part of a layer that is partly there, is never among them.
    """
    layers = {
        layer for layer, parts in NOT_SET_UP_WITHOUT.items() if all(results[part].absent for part in parts)
    }
    names: set[str] = set()
    for check in CHECKS:
        waits = results[check.name].status is CheckStatus.SKIPPED and not names.isdisjoint(check.needs)
        if waits or (check.layer in layers and results[check.name].status is not CheckStatus.OK):
            names.add(check.name)
    return frozenset(names)


@dataclass(frozen=True)
class Goal:
    """Something that a user wants to do, its command, and the checks that it needs."""

    name: str
    title: str
    command: str
    needs: tuple[str, ...]
    runs: bool = True  # ends with a model's answer

    def first_blocker(self, results: Results) -> DoctorCheck | None:
        """The first failed check that prevents it."""
        broken = next((name for name in self.needs if not is_usable(results[name])), None)
        return next((check for check in CHECKS if check.name == broken), None)


GOALS = (
    Goal(
        "virtual",
        "run on the virtual NPU",
        'make run PROMPT="..."',
        ("python", "compiler", "cache", "virtual_npu", "checkpoint"),
    ),
    Goal("stages", "test the compilers", "make test-toolchain", ("python", "stages"), runs=False),
    Goal(
        "compile",
        "compile for the NPU",
        "make compile BACKEND=npu",
        ("python", "system", "cache", *COMPILE),
        runs=False,
    ),
    Goal(
        "npu",
        "run on the NPU",
        'make run BACKEND=npu PROMPT="..."',
        ("python", "system", *DEVICE, *BINDINGS, *COMPILE, "cache", "launch", "checkpoint"),
    ),
)
"""In each goal the hardware comes before what only helps to use it: the order in which to fix things."""
