"""The static check: what a program takes of a device, read from its text, without compiling or running it.

mlir-air's passes accept programs that cannot be built: herds five rows tall, odd bf16 strides, too much L1
(checked with a build of air-opt from March 2026: it placed 2x5 herds and passed an odd-count transfer of
stride 2). So this package checks the limits, by rules of our own after the sources named in `npu2.py`. The
limits are read from source, never checked on hardware. They are on the safe side: a buffer that a loop fills
or empties counts twice, because the compiler double-buffers it. Program memory, stack beyond the default,
locks and routing are not counted: the text does not show them.
"""

from aerie.common.lazy import TYPE_CHECKING, on_first_use

if TYPE_CHECKING:
    from aerie.device.check import check
    from aerie.device.npu2 import DEVICES, NPU1, NPU2, DeviceModel
    from aerie.device.report import CheckReport, Fault, ResourceUsage
else:
    _HOMES = {
        "aerie.device.check": ["check"],
        "aerie.device.npu2": ["DEVICES", "NPU1", "NPU2", "DeviceModel"],
        "aerie.device.report": ["Fault", "CheckReport", "ResourceUsage"],
    }
    __getattr__ = on_first_use(__name__, {name: home for home, names in _HOMES.items() for name in names})

__all__ = ["DEVICES", "NPU1", "NPU2", "CheckReport", "DeviceModel", "Fault", "ResourceUsage", "check"]
