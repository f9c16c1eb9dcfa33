"""The reference is made from the code, all of it; and the pictures are those of their script."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aerie
from aerie.engine.decode_paths import FEATURES
from aerie.engine.families import FAMILIES
from aerie.engine.model_family import ModelFamily
from aerie.runtime.npu import versions
from aerie.virtual_npu.errors import ERROR_KINDS
from tests.docs.pages import DOCS, PROJECT, table

TOOLS = str(PROJECT / "tools" / "docs")


@pytest.fixture(scope="module")
def tools() -> Iterator[None]:
    """tools/docs importable, as mkdocs has it."""
    sys.path.insert(0, TOOLS)
    yield
    sys.path.remove(TOOLS)


@pytest.fixture(scope="module")
def made(tools: None) -> dict[str, str]:
    import reference

    return {name: make() for name, make in reference.PAGES.items()}


def test_every_page_is_in_the_navigation(made: dict[str, str]) -> None:
    """mkdocs finds nothing in the navigation that is neither written nor made, and nothing beside it."""
    named = set(
        re.findall(r"[\w-]+(?:/[\w-]+)?\.md", (PROJECT / "mkdocs.yml").read_text().partition("nav:")[2])
    )
    written = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert named == written | set(made)
    assert not written & set(made)


def test_the_families_of_the_readme_are_those_of_the_code(tools: None) -> None:
    import models

    assert models.families_table() in (PROJECT / "README.md").read_text(), "copy what families_table() makes"


def test_every_command_and_option_is_documented(made: dict[str, str]) -> None:
    import commands

    page = made["reference/commands.md"]
    found = list(commands.every_command())
    assert len(found) > 25
    for words, _, parser in found:
        assert f"## `{words}`" in page
        for action in parser._actions:
            if action.option_strings and not isinstance(action, argparse._HelpAction):
                assert action.option_strings[-1] in page, f"{words} {action.option_strings}"


def test_every_option_says_what_it_means(made: dict[str, str]) -> None:
    empty = re.findall(r"^\| (`--[^`]+`) \|  \|$", made["reference/commands.md"], re.MULTILINE)
    assert empty == []


def test_every_target_and_variable_of_make_is_documented(made: dict[str, str]) -> None:
    makefile = (PROJECT / "Makefile").read_text()
    page = made["reference/make.md"]
    for target in re.findall(r"^([a-z-]+):.*##", makefile, re.MULTILINE):
        assert f"`make {target}`" in page
    for variable in re.findall(r"^([A-Z_]+) +\?=", makefile, re.MULTILINE):
        assert re.search(rf"\b{variable}\b", page), variable


def test_every_environment_variable_is_documented(made: dict[str, str]) -> None:
    import settings

    found = settings.knobs()
    assert len(found) > 15
    for knob in found:
        assert f"| `{knob.name}` |" in made["reference/environment.md"]


def test_every_address_and_field_says_what_it_is(made: dict[str, str]) -> None:
    http_api: Any = importlib.import_module("http_api")
    found = list(http_api.addresses())
    assert len(found) > 40
    assert [path for _, path, endpoint in found if not http_api.does(path)] == []
    assert set(http_api.DOES) == {path for _, path, _ in found}
    fields = {
        name for _, _, endpoint in found for model in http_api.bodies(endpoint) for name in model.model_fields
    }
    fields |= set(http_api.OllamaOptions.model_fields)
    assert set(http_api.MEANS) <= fields
    page = made["reference/http.md"]
    assert "| `mirostat` | `0` | Mirostat is not built |" in page
    assert "| `metadata` | object |  | taken, and changes no answer |" in page


def test_every_public_name_is_in_the_python_api(made: dict[str, str]) -> None:
    for name in set(aerie.__all__) - {"__version__"}:
        assert f"::: aerie.{name}" in made["reference/python.md"]
        assert inspect.getdoc(getattr(aerie, name)), name


def test_every_feature_of_a_decode_path_is_documented(made: dict[str, str]) -> None:
    page = made["reference/programs.md"]
    assert "| | `rows` | `guide` | `seq_len` |" in page.replace("|  |", "| |")
    assert [what for what in FEATURES.values() if f"\n| {what} | yes | " not in page] == []
    assert "| chunks | yes | yes | no: they read a prompt from its first token on" in page


def test_every_kind_of_check_is_documented() -> None:
    page = DOCS / "reference" / "virtual-npu-checks.md"
    shown = [kind for kind, *_ in table(page, "kind", "what it means", "what it cannot see")]
    assert sorted(shown) == sorted((*ERROR_KINDS, "expect", "schedule", "garbage", "sanitizer", "crash"))


def test_parameters_of_a_docstring_are_a_list(tools: None) -> None:
    from docstring_lists import as_list

    text = "Open it.\n\nmodel: a folder.\nsize, rows: how many; none: all. Raises Error.\n\nIts end: here."
    listed = "- **model**: a folder.\n- **size, rows**: how many; none: all. Raises Error."
    assert as_list(text, {"model", "size", "rows"}) == f"Open it.\n\n{listed}\n\nIts end: here."
    assert as_list(text, {"other"}) == text


def test_links_between_pages_lead_somewhere(made: dict[str, str]) -> None:
    """Those of generated pages too; mkdocs looks at them again, and at headings."""
    texts = {str(path.relative_to(DOCS)): path.read_text() for path in DOCS.rglob("*.md")} | made
    for name, text in texts.items():
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
            path = (DOCS / name).parent / link
            target = str(Path(*path.resolve().relative_to(DOCS.resolve()).parts))
            assert target in texts or path.is_file(), f"{name}: {link}"


def test_pictures_are_those_of_their_script(tools: None) -> None:
    import pictures

    for name, draw in pictures.PICTURES.items():
        assert (DOCS / "pictures" / name).read_text() == draw().svg()
    shown = {path.name for path in (DOCS / "pictures").glob("*.svg")}
    assert shown == set(pictures.PICTURES)


def test_the_fields_of_a_family() -> None:
    page = DOCS / "how-to" / "add-a-model-family.md"
    names = [name for row in table(page, "field", "what it is") for name in row[0].split(", ")]
    assert names == [field.name for field in dataclasses.fields(ModelFamily)]
    assert FAMILIES["qwen3"].qk_norm


def test_the_static_check_has_these_kinds_and_resources(tools: None) -> None:
    import settings

    text = "\n".join(path.read_text() for name, path in settings.files() if re.search(r"\.device\b", name))
    page = DOCS / "reference" / "static-check.md"
    kinds = re.findall(r"(?:Fault|Complaint)\(\s*\"([a-z-]+)\"", text)
    kinds += re.findall(r"^KIND = \"(\w+)\"", text, re.MULTILINE)
    shown = [kind for kind, _ in table(page, "kind", "what")]
    assert sorted(shown) == sorted(set(kinds))
    used = re.findall(r"Usage\(\s*[\w.()]+,\s*\"([^\"]+)\"", text)
    used += re.findall(r"\(\"((?:shim|memtile) ch[^\"]+)\"", text)
    resources = table(page, "resource", "of", "how")
    assert {resource for resource, _, _ in resources} == set(used)
    assert {place for _, place, _ in resources} <= {"function", "launch", "segment", "herd"}


def test_the_features_of_lit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "tests" / "lit" / "support"))
    features = importlib.import_module("features")
    rows: Any = table(DOCS / "how-to" / "ci.md", "feature", "what decides it")
    assert dict(rows) == features.FEATURES


def test_versions_in_the_text_are_the_wanted_ones() -> None:
    text = (DOCS / "how-to" / "install-npu.md").read_text()
    assert set(re.findall(r"llvm-aie==(\S+)", text)) == {versions.PEANO.version}
    assert set(re.findall(r"git checkout (\w+)", text)) == {versions.DRIVER_COMMIT.version}
    assert set(re.findall(r"https://github.com/Xilinx/\S+", text)) == set(versions.WHEEL_PAGES)
    assert f"locks {versions.MEMLOCK_BYTES >> 20} MiB" in text
    assert f"From Linux {versions.KERNEL_WITH_DRIVER.version} on" in text


def test_no_page_claims_that_it_ran_on_hardware() -> None:
    """Until somebody has: then the row says what, where and when, and this test goes."""
    heading = ("part", "ran on the virtual NPU", "went through upstream's compilers", "otherwise checked")
    rows = table(DOCS / "explanation" / "board.md", *heading, "ran on hardware")
    assert len(rows) >= 7
    assert {ran for *_, ran in rows} == {"**never**"}
