"""The table of checks, lowest layer first, and what each goal needs of them."""

from __future__ import annotations

from dataclasses import dataclass

from board.doctor import basics, compilers, device, launches, model, xrt
from board.doctor.examination import Check, Results, works

COMPILE = ("mlir_air", "mlir_aie", "aie_api", "peano", "aiebu_asm", "air_bindings")
DEVICE = ("driver", "node", "npu", "memlock")
BINDINGS = ("pyxrt", "bindings")

CHECKS = (
    Check("python", "Python", "basics", basics.python),
    Check("system", "system", "basics", basics.system),
    Check("compiler", "C++ compiler", "basics", basics.compiler),
    Check("memory", "memory", "basics", basics.memory),
    Check("disk", "disk", "basics", basics.disk),
    Check("mlir_air", "mlir-air", "NPU compilers", compilers.mlir_air),
    Check("mlir_aie", "mlir-aie", "NPU compilers", compilers.mlir_aie),
    Check("aie_api", "AIE API headers", "NPU compilers", compilers.aie_api),
    Check("peano", "Peano", "NPU compilers", compilers.peano),
    Check("aiebu_asm", "aiebu-asm", "NPU compilers", compilers.aiebu_asm),
    Check("air_bindings", "air.ir", "NPU compilers", compilers.air_bindings),
    Check("driver", "driver", "NPU", device.driver),
    Check("node", "device node", "NPU", device.node),
    Check("npu", "device", "NPU", device.npu),
    Check("firmware", "firmware", "NPU", device.firmware, needs=("node",)),
    Check("memlock", "locked memory", "NPU", device.memlock),
    Check("xrt", "XRT", "XRT", xrt.xrt),
    Check("pyxrt", "pyxrt", "XRT", xrt.pyxrt),
    Check("bindings", "pyxrt's calls", "XRT", xrt.bindings, needs=("pyxrt",)),
    Check("checkpoint", "checkpoint", "what runs", model.checkpoint),
    Check("virtual_npu", "virtual NPU", "what runs", launches.on_virtual_npu, ("compiler",), 90.0),
    Check("launch", "one kernel", "what runs", launches.on_npu, (*DEVICE, *BINDINGS, *COMPILE), 150.0),
)


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
        ("python", "compiler", "virtual_npu", "checkpoint"),
    ),
    Goal(
        "compile",
        "compile for the NPU",
        "make compile BACKEND=npu",
        ("python", "system", *COMPILE),
        runs=False,
    ),
    Goal(
        "npu",
        "run on the NPU",
        'make run BACKEND=npu PROMPT="..."',
        ("python", "system", *DEVICE, *BINDINGS, *COMPILE, "launch", "checkpoint"),
    ),
)
"""In each, the hardware comes before what only helps to use it: that is the order in which to mend."""
