"""The pages of the device: what NPU2 is, which forms its compiler takes, and what the toolchain says."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from md_text import code, page, section, sentence, table

from aerie.device.lowering import TABLE, find_rule, forms_of
from aerie.device.lowering.air import AIR_TABLE, air_forms_of, find_air
from aerie.device.npu2 import DEVICES
from aerie.device.rules.lowering import core_operations
from aerie.kernel_builder.kernels import all_kernels
from aerie.multi_launch_builder.builder import build_programs
from aerie.multi_launch_builder.programs import plan_programs
from aerie.multi_launch_builder.shapes import DEMO, DEMO_SEQ_LEN
from aerie.runtime.npu import failures, versions
from aerie.runtime.npu.log_diagnosis import KNOWN_MESSAGES

API_USES = Path(__file__).parents[2] / "kernels_cc" / "aie_api_uses.json"
Forms = Callable[[Any], Iterable[Any]]


def devices() -> str:
    heading = ("device", "architecture", "columns", "rows of cores", "L1 of a core", "L2 of a memtile")
    rows = [
        (
            code(device.name),
            device.architecture,
            device.columns,
            device.rows,
            f"{device.l1_bytes} bytes",
            f"{device.l2_bytes} bytes",
            f"{device.launch_mm2s} in, {device.launch_s2mm} out",
            "ELF or xclbin" if device.elf else "xclbin",
        )
        for device in DEVICES.values()
    ]
    return table((*heading, "shim channels", "output"), rows)


def _of_programs() -> list[str]:
    """The kernels that the six programs of the guide are made of."""
    plans = plan_programs(DEMO, DEMO_SEQ_LEN).values()
    return sorted({step.kernel for plan in plans for step in plan.launches})


def _uses(operations: Forms, forms: Forms) -> dict[Any, set[str]]:
    """Every form in these kernels, and the kernels that have it."""
    found: dict[Any, set[str]] = defaultdict(set)
    for name in _of_programs():
        for case in all_kernels()[name].cases:
            for op in operations(all_kernels()[name].build(**case).module):
                for form in forms(op):
                    found[form].add(name)
    return found


def _lowered(
    rows: Iterable[Any], uses: dict[Any, set[str]], lookup: Callable[..., Any]
) -> Iterator[list[str]]:
    forms: dict[Any, list[Any]] = defaultdict(list)
    for form in sorted(uses, key=str):
        forms[lookup(form, "aie2p")].append(form)
    for row in rows:
        if row in forms:
            users = sorted(set().union(*(uses[form] for form in forms[row])))
            shown = ", ".join(code(form) for form in forms[row])
            yield [shown, ", ".join(users), row.verdict.value, row.note, "; ".join(row.evidence)]


def lowering_page() -> str:
    heading = ("form", "kernels", "lowered", "note", "evidence")
    refused = [
        (row.forms, row.verdict.value, row.note, row.alternative, "; ".join(row.evidence))
        for row in TABLE
        if not row.verdict.lowers and "aie2p" in row.architectures
    ]
    cores = _uses(core_operations, forms_of)
    around = _uses(lambda module: module.walk(), air_forms_of)
    functions = [
        (code(row["function"]), row["header"], row["on_aie2p"])
        for row in json.loads(API_USES.read_text())["uses"]
    ]
    return page(
        "Operation forms",
        "A form is an operation with its element type, its number of lanes, and what else its lowering "
        "depends on. [What the compiler of the cores takes](../dev/lowering.md) says how to read "
        "these tables. All evidence was read in files of mlir-air, mlir-aie and llvm-aie. None was measured "
        "by this project.",
        section("On the cores", table(heading, _lowered(TABLE, cores, find_rule))),
        section("Around the cores", table(heading, _lowered(AIR_TABLE, around, find_air))),
        section(
            "What does not lower on AIE2P", table(("form", "verdict", "why", "instead", "evidence"), refused)
        ),
        section(
            "Functions of the AIE API in C++ kernels", table(("function", "header", "on AIE2P"), functions)
        ),
    )


def _wanted() -> list[Any]:
    return [each for each in vars(versions).values() if isinstance(each, versions.RequiredVersion)]


def _options() -> Iterator[tuple[str, str, str]]:
    """Each option of aircc that programs give, with the programs and the reason."""
    built = build_programs(DEMO, 64)
    users: dict[Any, list[str]] = defaultdict(list)
    for name, program in built.items():
        for option in dict.fromkeys(program.options):
            users[option].append(name)
    for option, names in users.items():
        programs = "all" if len(names) == len(built) else ", ".join(names)
        yield code(option.flag), programs, option.reason


def toolchain_page() -> str:
    bad = [(code(each.version), each.reason) for each in versions.PEANO_KNOWN_BAD]
    ends = [
        (code(final.name), final.meaning, final.likely_cause)
        for value, final in failures.FINAL.items()
        if value != failures.COMPLETED
    ]
    allowed = [
        (name, f"{spec.allowance.share:g}", f"{spec.allowance.largest:g}", spec.allowance.reason)
        for name, spec in sorted(all_kernels().items())
        if spec.allowance
    ]
    return page(
        "The NPU's toolchain",
        section(
            "Versions",
            "`make doctor` and `make setup-npu` go by these.",
            table(
                ("what", "version", "source"), [(each.name, each.version, each.source) for each in _wanted()]
            ),
            "Releases of Peano that must not be used:",
            table(("release", "why"), bad),
        ),
        section("Options that programs give to aircc", table(("option", "programs", "why"), _options())),
        section(
            "Messages that are explained",
            "Where one of these stages fails, Aerie prints the tool's own lines and this text.",
            table(
                ("name", "meaning, and what to change"),
                [(each.name, each.meaning) for each in KNOWN_MESSAGES],
            ),
        ),
        section("States in which a run can end", table(("state", "what happened", "usually"), ends)),
        section(
            "What a board may differ by",
            "`make test-npu` compares each kernel with the virtual NPU. Beyond the kernel's own "
            "tolerance these "
            "differences count as near. `share` is mean |got - want| over mean |want|. `largest` is the "
            "largest "
            "|got - want| over the rms of its row.",
            table(("kernel", "share", "largest", "why"), allowed),
        ),
    )


def static_check_page() -> str:
    """The devices; the page by hand has the resources and the kinds (docs/reference/static-check.md)."""
    return devices()


def kernels_page() -> str:
    rows = [
        (code(name), sentence(spec.title), ", ".join(code(each) for each in spec.parameters))
        for name, spec in sorted(all_kernels().items())
    ]
    return page(
        "Kernels",
        "`aerie kernels show NAME` prints a kernel's MLIR, and `aerie kernels check NAME` runs it against "
        "its reference.",
        table(("kernel", "what it computes", "parameters"), rows),
        section("Devices", devices()),
    )


def upstream_names(text: str) -> str:
    return re.sub(r"`", "", text)
