"""The table of checks, lowest layer first, what each goal needs of them, and running them, each by itself:
whatever one meets, the others and the doctor go on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass

from aerie.board.doctor import basics, compilers, device, one_kernel
from aerie.board.doctor.machine import Finding, Machine, Status

LIMIT_S = 30.0
"""How long a check may take in all, in seconds. What a check starts has tighter limits of its own."""

Results = Mapping[str, Finding]
"""A finding for every check, by name, in the table's order."""


@dataclass(frozen=True)
class Check:
    """One look at one layer. `needs`: earlier checks without which there is nothing to look at."""

    name: str
    title: str
    layer: str
    examine: Callable[[Machine], Finding]
    needs: tuple[str, ...] = ()
    limit_s: float = LIMIT_S


def examine_all(checks: Sequence[Check], machine: Machine) -> dict[str, Finding]:
    """Every check's finding, by name. Never raises, and ends even if a check does not.

    Checks run side by side, each in a thread of its own that does not keep the process alive.
    """
    found: dict[str, Future[Finding]] = {check.name: Future() for check in checks}
    for check in checks:
        threading.Thread(target=_examine, args=(check, machine, found), daemon=True).start()
    return {check.name: _finding(check, found) for check in checks}


def _examine(check: Check, machine: Machine, found: Mapping[str, Future[Finding]]) -> None:
    failed = [name for name in check.needs if not works(found[name].result())]
    finding = Finding(Status.SKIPPED, f"not looked at without {failed[0]}", "") if failed else None
    _settle(found[check.name], finding or _looked_at(check, machine))


def _looked_at(check: Check, machine: Machine) -> Finding:
    try:
        return check.examine(machine).printable()
    except BaseException as error:  # a defect of the check, or of what it called: one layer's loss
        return Finding(
            Status.UNKNOWN,
            f"the check itself failed ({type(error).__name__}: {error})",
            "a check that works",
            "this is a defect of Aerie: please report it, with the output of make report",
        ).printable()


def _finding(check: Check, found: Mapping[str, Future[Finding]]) -> Finding:
    """What the check found; its time begins no later than when those it needs are settled."""
    try:
        return found[check.name].result(timeout=check.limit_s)
    except NotYet:
        said = f"no answer within {check.limit_s:g} s"
        _settle(found[check.name], Finding(Status.UNKNOWN, said, "an answer", "look for what blocks it"))
        return found[check.name].result()


def _settle(future: Future[Finding], finding: Finding) -> None:
    """The first finding counts: a check may answer just when it was given up."""
    with contextlib.suppress(InvalidStateError):
        future.set_result(finding)


def works(finding: Finding) -> bool:
    """Whether other layers can build on this one."""
    return finding.status in (Status.OK, Status.WARNING)


COMPILE = ("mlir_air", "mlir_aie", "aie_api", "peano", "aiebu_asm", "air_bindings")
DEVICE = ("driver", "node", "npu", "memlock")
BINDINGS = ("pyxrt", "bindings")

CHECKS = (
    Check("python", "Python", "basics", basics.python),
    Check("system", "system", "basics", basics.system),
    Check("instructions", "CPU", "basics", basics.instructions),
    Check("compiler", "C++ compiler", "basics", basics.compiler),
    Check("memory", "memory", "basics", basics.memory),
    Check("disk", "disk", "basics", basics.disk),
    Check("cache", "cache folder", "basics", basics.cache),
    Check("mlir_air", "mlir-air", "NPU compilers", compilers.mlir_air),
    Check("mlir_aie", "mlir-aie", "NPU compilers", compilers.mlir_aie),
    Check("aie_api", "AIE API headers", "NPU compilers", compilers.aie_api),
    Check("peano", "Peano", "NPU compilers", compilers.peano),
    Check("aiebu_asm", "aiebu-asm", "NPU compilers", compilers.aiebu_asm),
    Check("air_bindings", "air.ir", "NPU compilers", compilers.air_bindings),
    Check("stages", "compiler stages", "NPU compilers", compilers.stages),
    Check("driver", "driver", "NPU", device.driver),
    Check("node", "device node", "NPU", device.node),
    Check("npu", "device", "NPU", device.npu),
    Check("firmware", "firmware", "NPU", device.firmware, needs=("node",)),
    Check("memlock", "locked memory", "NPU", device.memlock),
    Check("xrt", "XRT", "XRT", device.xrt),
    Check("pyxrt", "pyxrt", "XRT", device.pyxrt),
    Check("bindings", "pyxrt's calls", "XRT", device.bindings, needs=("pyxrt",)),
    Check("checkpoint", "checkpoint", "what runs", basics.checkpoint),
    Check("virtual_npu", "virtual NPU", "what runs", one_kernel.on_virtual_npu, ("compiler",), 90.0),
    Check("launch", "one kernel", "what runs", one_kernel.on_npu, (*DEVICE, *BINDINGS, *COMPILE), 150.0),
)


NOT_SET_UP_WITHOUT = {
    "NPU compilers": ("mlir_air", "mlir_aie", "aie_api", "peano"),
    "NPU": ("driver", "node"),
    "XRT": ("xrt", "pyxrt"),
}
"""Layers that only a board needs, and what nobody has begun with who has none of it."""


def not_set_up(results: Results) -> frozenset[str]:
    """The checks, by name, of layers that nobody has begun to set up here, and of what is built upon these.

    What is there and wrong is never among them, nor what is missing of a layer that is there in part.
    """
    layers = {
        layer for layer, parts in NOT_SET_UP_WITHOUT.items() if all(results[part].absent for part in parts)
    }
    names: set[str] = set()
    for check in CHECKS:
        waits = results[check.name].status is Status.SKIPPED and not names.isdisjoint(check.needs)
        if waits or (check.layer in layers and results[check.name].status is not Status.OK):
            names.add(check.name)
    return frozenset(names)


@dataclass(frozen=True)
class Goal:
    """Something an owner wants to do, the command for it, and the checks that stand in its way."""

    name: str
    title: str
    command: str
    needs: tuple[str, ...]
    runs: bool = True  # ends with a model's answer

    def obstacle(self, results: Results) -> Check | None:
        """The first check that keeps it from working."""
        broken = next((name for name in self.needs if not works(results[name])), None)
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
"""In each, the hardware comes before what only helps to use it: that is the order in which to mend."""
