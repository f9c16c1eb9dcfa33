"""A stand-in for pyxrt: the virtual NPU behind XRT's calls, which are recorded and can be made to fail.

It proves plumbing: which calls are made, in which order, and the message when one fails. It is no NPU, and
what ran on it has not run on one.

    pyxrt = PyxrtStandIn()
    pyxrt.fail("start", RuntimeError("..."))        # the next call of that kind, once
    pyxrt.fail("wait", TIMEOUT, after=3)            # the fourth one ends in that state
    pyxrt.fail("wait", HANGS)
    pyxrt.fail("bo", LOST)                          # from there on every call fails
    pyxrt.calls                                     # ["device 0", "elf scale", ..., "~device"]

Kinds: device, elf, hw_context, kernel, bo, map, sync, run, set_arg, start, wait.
"""

from __future__ import annotations

import itertools
import math
import re
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import aerie.virtual_npu.pyxrt as virtual

ERROR, ABORT, TIMEOUT, NORESPONSE = 5, 6, 8, 9
RUNNING = 3
HANGS, LOST = "hangs", "lost"

GONE = "DRM_IOCTL_AMDXDNA_CREATE_BO IOCTL failed (err=-19): No such device"
NO_CONTEXT = "DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL failed (err=-22): Invalid argument"
WEDGED = "DRM_IOCTL_AMDXDNA_EXEC_CMD IOCTL failed (err=-5): Input/output error"
MEMLOCK = "mmap(addr=0, len=67108864) failed (err=-11): Resource temporarily unavailable"

HEALTH = "\ntxn_op_idx = 0x00000011\nctx_pc = 0x0000F00D\n"
"""What XRT adds to the message of a command that timed out (xrt_kernel.cpp, amend_aie_error_message)."""


class State:
    """A state without a name, as pyxrt's RUNNING: it is its number, and nothing else."""

    def __init__(self, value):
        self.value = value

    def __int__(self):
        return self.value


class Recorded:
    """An object of pyxrt: `real` is the virtual NPU's, and its end is recorded too."""

    def __init__(self, owner, kind, name, make):
        self.owner, self.kind, self.name = owner, kind, name
        owner.called(kind, name)
        self.real = make()
        self.alive = True
        owner.alive[kind] = owner.alive.get(kind, 0) + 1

    def __del__(self):
        if getattr(self, "alive", False):
            self.owner.alive[self.kind] -= 1
            self.owner.calls.append(f"~{self.kind} {self.name}".strip())


class PyxrtStandIn(ModuleType):
    """A module with the names of pyxrt's ELF flow."""

    def __init__(self, device_name="NPU Strix", contexts=math.inf):
        super().__init__("pyxrt")
        self.calls, self.alive = [], {}
        self.device_name, self.contexts = device_name, contexts
        self._failures, self._lost = {}, False
        self.xclBOSyncDirection = virtual.xclBOSyncDirection
        self.ert_cmd_state = virtual.ert_cmd_state
        self.xrt_info_device = SimpleNamespace(name="name")
        self.device = kind_of_object(self, Device)
        self.elf = kind_of_object(self, Elf)
        self.hw_context = kind_of_object(self, HwContext)
        self.run = kind_of_object(self, Run)
        self.ext = SimpleNamespace(bo=kind_of_object(self, Bo), kernel=kind_of_object(self, Kernel))

    def fail(self, kind, how, after=0):
        """Make one call of a kind fail, once, after that many good ones: an exception to raise, LOST, or,
        for wait, the final state or HANGS."""
        self._failures[kind] = [after, how]

    def called(self, kind, detail=""):
        """Record a call; what was asked for happens, or is given back where `wait` has to do it."""
        self.calls.append(f"{kind} {detail}".strip())
        if self._lost:
            raise RuntimeError(GONE)
        waiting = self._failures.get(kind)
        if waiting is None:
            return None
        waiting[0] -= 1
        if waiting[0] >= 0:
            return None
        how = self._failures.pop(kind)[1]
        if how is LOST:
            self._lost = True
            raise RuntimeError(GONE)
        if isinstance(how, BaseException):
            raise how
        return how

    def summary(self):
        """The calls with repetitions counted: ["device 0", "elf scale", "bo x4", ...]."""
        kinds = [re.sub(r"^(~?(bo|map|sync|set_arg)) .*", r"\1", call) for call in self.calls]
        return [f"{call} x{n}" if n > 1 else call for call, n in _runs(kinds)]


def _runs(items):
    return [(key, len(list(group))) for key, group in itertools.groupby(items)]


def kind_of_object(owner, kind):
    """A class of pyxrt: calling it makes an object of the stand-in that belongs to `owner`."""
    return type(kind.__name__, (kind,), {"__init__": lambda self, *args: kind.__init__(self, owner, *args)})


class Device(Recorded):
    def __init__(self, owner, index):
        super().__init__(owner, "device", str(index), lambda: virtual.device(index))

    def get_info(self, key):
        return self.owner.device_name


class Elf(Recorded):
    def __init__(self, owner, path):
        super().__init__(owner, "elf", Path(path).name.rsplit("-", 1)[0], lambda: virtual.elf(path))


class HwContext(Recorded):
    def __init__(self, owner, device, elf):
        def make():
            if owner.alive.get("hw_context", 0) >= owner.contexts:
                raise RuntimeError(NO_CONTEXT)
            return virtual.hw_context(device.real, elf.real)

        super().__init__(owner, "hw_context", elf.name, make)


class Kernel(Recorded):
    def __init__(self, owner, context, name):
        super().__init__(owner, "kernel", name, lambda: virtual.ext.kernel(context.real, name))


class Bo(Recorded):
    def __init__(self, owner, device, nbytes):
        super().__init__(owner, "bo", str(nbytes), lambda: virtual.ext.bo(device.real, nbytes))

    def map(self):
        self.owner.called("map", self.name)
        return self.real.map()

    def sync(self, direction):
        self.owner.called("sync", self.name)
        self.real.sync(direction)


class Run(Recorded):
    """`start` hands the run to the virtual NPU, which carries it out at the first `wait`."""

    def __init__(self, owner, kernel):
        super().__init__(owner, "run", kernel.name, lambda: virtual.run(kernel.real))
        self._state = 1

    def set_arg(self, index, bo):
        self.owner.called("set_arg", str(index))
        self.real.set_arg(index, bo.real)

    def start(self):
        self.owner.called("start", self.name)
        self._state = RUNNING
        self.real.start()

    def wait(self, timeout_ms=0):
        how = self.owner.called("wait", self.name)
        if self._state == RUNNING and how is None:
            self.real.wait2()
            self._state = 4
        elif how not in (None, HANGS):
            self._state = how
        if self._state == RUNNING:  # it hangs: the time passes
            self.owner.fail("wait", HANGS)
            time.sleep(timeout_ms / 1000)
            return State(TIMEOUT)
        return State(self._state)

    def state(self):
        return State(self._state)

    def wait2(self):
        if self._state != 4:
            name = virtual.ert_cmd_state(self._state).name
            health = HEALTH if self._state == TIMEOUT else ""
            raise RuntimeError(f"Command failed to complete successfully ({name}){health}")
