"""docs/static_check.md against the code: its devices, resources and kinds."""

from __future__ import annotations

import re

from doc_transcripts import table

from aerie import rooms
from aerie.device.npu2 import DEVICES

PAGE = "static_check.md"
RULES = rooms.folder("device")


def sources() -> str:
    return "\n".join(path.read_text() for path in sorted(RULES.rglob("*.py")))


def test_devices() -> None:
    memories = ("L1 bytes", "L2 bytes per memtile", "shim channels in + out")
    shown = table(PAGE, "device", "architecture", "columns", "rows of cores", *memories, "output")
    assert shown == [
        (
            device.name,
            device.architecture,
            str(device.columns),
            str(device.rows),
            str(device.l1_bytes),
            str(device.l2_bytes),
            f"{device.launch_mm2s} + {device.launch_s2mm}",
            "ELF or xclbin" if device.elf else "xclbin",
        )
        for device in DEVICES.values()
    ]


def test_kinds() -> None:
    text = sources()
    made = re.findall(r"(?:Fault|Complaint)\(\s*\"([a-z-]+)\"", text) + re.findall(
        r"^KIND = \"(\w+)\"", text, re.M
    )
    shown = [kind for kind, _ in table(PAGE, "kind", "what")]
    assert len(shown) == len(set(shown))
    assert set(shown) == set(made)


def test_resources() -> None:
    text = sources()
    for resource, place, _ in table(PAGE, "resource", "of", "how"):
        assert f'"{resource}"' in text, resource
        assert place in ("function", "launch", "segment", "herd")
    used = re.findall(r"Usage\(\s*[\w.()]+,\s*\"([^\"]+)\"", text) + re.findall(
        r"\(\"((?:shim|memtile) ch[^\"]+)\"", text
    )
    shown = {resource for resource, _, _ in table(PAGE, "resource", "of", "how")}
    assert set(used) == shown
