"""python.md does what it says: every example runs, and prints what stands below it."""

from __future__ import annotations

import inspect
import io
import itertools
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from doc_transcripts import DOCS, FENCE, blocks, matches, table

import aerie
from aerie.answers import Options
from aerie.api import MAX_TOKENS, Model, load
from aerie.chunked import ChunkedLLM

PAGE, CHUNKS, STATIC = "how-to/python.md", "how-to/chunks.md", "how-to/export-static-form.md"
EXAMPLES = [
    pytest.param(page, code, printed, id=code.strip().splitlines()[-1].strip())
    for page in (PAGE, CHUNKS, STATIC)
    for (language, _, code), (_, _, printed) in itertools.pairwise(blocks(page))
    if language == "python"
]


@pytest.mark.parametrize(("page", "code", "expected"), EXAMPLES)
def test_an_example_prints_what_it_says(
    page: str, code: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VNPU_DEVICES", "2")
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(code, page, "exec"), {"__name__": "__main__"})
    if not matches(expected, printed.getvalue()):
        pytest.fail(f"{page}:\n{code}--- expected\n{expected}--- found\n{printed.getvalue()}", pytrace=False)


def test_the_example_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    ((_, _, code),) = [b for b in FENCE.findall((DOCS.parent / "README.md").read_text()) if b[0] == "python"]
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == "The capital of France is Paris."


def test_the_parameters_of_the_page() -> None:
    of_load = [name for name, _, _ in table(PAGE, "parameter", "default", "meaning")]
    assert of_load == list(inspect.signature(load).parameters)
    text = (DOCS / PAGE).read_text()
    asked = text[text.rindex("| parameter |") :].partition("\n\n")[0]
    parameters = {*inspect.signature(Model.stream).parameters, *Options.__annotations__} - {"self", "options"}
    assert len(parameters) > 10
    for name in parameters:
        assert f"`{name}`" in asked
    assert f"| `max_tokens` | `{MAX_TOKENS}` |" in asked
    assert inspect.signature(Model.generate).parameters == inspect.signature(Model.stream).parameters


@pytest.mark.parametrize(("page", "kind"), [(PAGE, Model), (CHUNKS, ChunkedLLM)])
def test_every_public_name_is_on_the_page(page: str, kind: type) -> None:
    text = (DOCS / page).read_text()
    methods = [name for name in vars(kind) if not name.startswith("_")]
    assert [name for name in methods if f"{name}" not in text] == []
    assert {"AerieError", "Result", "FinishReason", "Model", "Stream", "load"} <= set(aerie.__all__)
