"""Every environment variable that is read is a knob, and each fast path is tested both ways."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerie import rooms
from aerie.common.knobs import PLAIN_PARTS, Knob
from tests.docs.pages import PROJECT

ROOMS = ["benchmarks", "aerie", *rooms.AT_THE_TOP]

OF_OTHERS = {
    "CXX": "aerie/common/compiler.py",  # the C++ compiler, as make and cmake know it
    "OLLAMA_MODELS": "aerie/cli/model_folders.py",  # Ollama's: where its models are
    "PATH": "aerie/runtime/npu/toolchain.py",
    "PYTHONPATH": "aerie/virtual_npu/child_process.py",
    "RAY_USAGE_STATS_ENABLED": "aerie/serve/replicas.py",
    "NO_COLOR": "aerie/cli/answer_printer.py",
    "TERM": "aerie/cli/answer_printer.py",  # what the terminal is
    "XDG_CACHE_HOME": "aerie/common/folders.py",
    "XDG_STATE_HOME": "aerie/cli/line_input.py",
    "XILINX_XRT": "aerie/runtime/npu/tools.py",  # set by XRT's and upstream's own scripts, as the next two
    "PEANO_INSTALL_DIR": "aerie/runtime/npu/tools.py",
    "MLIR_AIE_INSTALL_DIR": "aerie/runtime/npu/tools.py",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "aerie/engine/tokenizer_files.py",
    "OMP_WAIT_POLICY": "verify/reference.py",  # OpenMP's: idle threads of torch leave the cores
}
"""Environment variables that are not ours, and who looks at each."""

BOTH_WAYS = {
    "products": ("tests/virtual_npu/test_vnpu_products.py", "tests/engine/test_bit_identities.py"),
    "buffers": ("tests/runtime/test_shared_buffers.py", "tests/engine/test_bit_identities.py"),
    "calls": ("tests/runtime/test_recording.py", "tests/engine/test_bit_identities.py"),
    "host_code": ("tests/engine/test_decode_attention.py", "tests/engine/test_bit_identities.py"),
}
"""Parts that AERIE_PLAIN names, with the tests that compare the results with and without."""

CHANGES_SOMETHING_ELSE = {
    "VNPU_STRICT", "VNPU_DEVICES", "VNPU_CXX", "VNPU_MARCH", "VNPU_OPT", "VNPU_KEEP", "AERIE_CACHE",
    "VNPU_CACHE", "VNPU_NUMERICS", "VNPU_ROUNDING", "VNPU_RACE_EVENTS", "AERIE_CHECK_MEMORY",
    "AERIE_COMPILE_MEMORY", "AERIE_COMPILE_TIMEOUT", "AERIE_NPU_TIMEOUT", "AERIE_NPU_CONTEXTS",
    "AERIE_NPU_LOCK", "AERIE_API_KEY", "AERIE_COMPILE_AHEAD", "AERIE_MLIR_AIR", "AERIE_MLIR_AIE",
    "AERIE_AIR_CHECKS",
}  # fmt: skip


def modules() -> Iterator[str]:
    """Those that make a knob."""
    for room in ROOMS:
        for path in (PROJECT / room).rglob("*.py"):
            if re.search(r"\bKnob\(", path.read_text()):
                name = ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__")
                yield f"aerie.{name}" if room in rooms.AT_THE_TOP else name


@pytest.fixture(scope="module")
def knobs() -> dict[str, Knob]:
    """Every knob that any module of the project holds."""
    held = (value for name in modules() for value in vars(importlib.import_module(name)).values())
    return {value.name: value for value in held if isinstance(value, Knob)}


def environment_reads(tree: ast.AST) -> Iterator[str]:
    """Names in os.environ["NAME"], os.environ.get("NAME") and os.getenv("NAME")."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
            yield ast.unparse(node.slice).strip("'")
        elif isinstance(node, ast.Call) and re.match(r"os\.(environ\.\w+|getenv)$", ast.unparse(node.func)):
            yield from (ast.unparse(argument).strip("'") for argument in node.args[:1])


def test_no_other_variable_is_read() -> None:
    """Python reads the environment through knobs, and C++ does not read it; but for the XRT stand-in, which a
    host in C++ is compiled with."""
    read = {}
    for room in ROOMS:
        for path in (PROJECT / room).rglob("*.py"):
            where = str(path.relative_to(PROJECT))
            read.update(dict.fromkeys(environment_reads(ast.parse(path.read_text())), where))
    assert read.pop("self.name") == "aerie/common/knobs.py"
    assert {
        name: where for name, where in read.items() if not name.isidentifier() or name.isupper()
    } == OF_OTHERS
    sources = [path for room in ROOMS for path in cpp_sources(PROJECT / room)]
    assert len(sources) > 20
    reading = {path.parts[-3] for path in sources if "getenv" in path.read_text()}
    assert reading == {"xrt_stand_in"}


def cpp_sources(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.suffix in {".cc", ".h", ".hpp"})


def test_every_fast_path_is_tested_both_ways(knobs: dict[str, Knob]) -> None:
    """A new knob, or part of AERIE_PLAIN, has to be put into a table above, and its tests have to set it."""
    assert {*CHANGES_SOMETHING_ELSE, "AERIE_PLAIN", "VNPU_THREADS"} == knobs.keys()
    assert BOTH_WAYS.keys() == set(PLAIN_PARTS)
    for part, files in BOTH_WAYS.items():
        for file in files:
            text = (PROJECT / file).read_text()
            assert "AERIE_PLAIN" in text, f"{file} says nothing of AERIE_PLAIN"
            assert re.search(rf'"{part}"', text), f"{file} says nothing of {part}"
    assert '"VNPU_THREADS": "' in (PROJECT / "tests/engine/test_bit_identities.py").read_text()
