"""The page of environment variables, from every knob in the code."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from md_text import code, page, section, table

from aerie import rooms

PLAIN = {
    "products": (
        "the virtual NPU makes every block, copy and product one by one, as the program says",
        "loops that are recognised as one product become one call",
    ),
    "calls": (
        "every call of a program is made by itself",
        "on the virtual NPU all programs of a token are one call",
    ),
    "buffers": (
        "each program has buffers of its own, and the host copies between them",
        "a program reads where it lies what another one made",
    ),
    "host_code": ("decode attention is numpy's", "it is C++, compiled once"),
}
"""Parts that AERIE_PLAIN names: the plain way, and the usual one."""


def files() -> list[tuple[str, Path]]:
    """(name, path) of every module of aerie, wherever its folders lie."""
    roots = {"aerie": rooms.PACKAGE} | {f"aerie.{name}": rooms.folder(name) for name in rooms.AT_THE_TOP}
    found = {}
    for name, root in roots.items():
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join((name, *parts)).removesuffix(".__init__")] = path
    return sorted(found.items())


def knobs() -> list[Any]:
    """Every environment variable that the code reads, by name."""
    found: dict[str, Any] = {}
    for name, path in files():
        if re.search(r"\bKnob\(", path.read_text()):
            values = vars(importlib.import_module(name)).values()
            found |= {each.name: each for each in values if type(each).__name__ == "Knob"}
    return [found[name] for name in sorted(found)]


def environment_page() -> str:
    rows = [(code(knob.name), code(knob.default) or "none", knob.meaning) for knob in knobs()]
    parts = [(code(name), *texts) for name, texts in PLAIN.items()]
    return page(
        "Environment variables",
        "`AERIE_` variables are for every backend or for the NPU, `VNPU_` variables for the virtual NPU. "
        "A value that makes no sense is refused before anything is done, with what is accepted. "
        "None of them changes a result, but for `VNPU_NUMERICS`, `VNPU_ROUNDING`, `VNPU_MARCH` and "
        "`AERIE_PLAIN=products`, which change numbers or the order of sums.",
        section("All variables", table(("variable", "default", "meaning"), rows)),
        section(
            "Parts of AERIE_PLAIN",
            "What is done fast also has a plain way, for comparing. Name parts with commas between, or "
            "`all`.",
            table(("part", "the plain way", "otherwise"), parts),
        ),
        section(
            "Variables of others",
            "`CXX` names the C++ compiler where `VNPU_CXX` does not. `PEANO_INSTALL_DIR`, "
            "`MLIR_AIE_INSTALL_DIR` and `XILINX_XRT` say where the NPU's tools are. `XDG_CACHE_HOME` and "
            "`XDG_STATE_HOME` say where your caches and histories are. `HF_TOKEN` and `HF_HUB_OFFLINE` are "
            "Hugging Face's.",
        ),
    )
