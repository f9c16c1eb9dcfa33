"""What a program takes of a device, read from its text alone: nothing is compiled and nothing is run.

mlir-air's passes accept programs that cannot be built: herds five rows tall, odd bf16 strides, too much L1
(checked with a build of air-opt from March 2026: it placed 2x5 herds and passed an odd-count transfer of
stride 2). So the limits are checked here, by rules of our own after the sources named in `npu2.py`. They
are read from source, never checked on hardware, and they count on the safe side: a buffer that a loop fills
or empties is counted twice, for the compiler double-buffers it. What cannot be counted from the text is not
counted: program memory, stack beyond the default, locks, routing.
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
