"""Setting up .venv: what is installed, the lines that are printed, and the errors."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[2]
CONSTRAINTS = (PROJECT / "constraints.txt").read_text()
PINNED, _, OF_DOCS = CONSTRAINTS.partition("# For make docs alone.\n")


def pins(text: str) -> dict[str, Requirement]:
    lines = re.findall(r"^[^#\n].*", text, re.MULTILINE)
    return {canonicalize_name(pin.name): pin for pin in map(Requirement, lines)}


PINS, DOCS_PINS = pins(PINNED), pins(OF_DOCS)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PROJECT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_venv = load("make_venv")
make_variables = load("make_variables")


def asked(kind: str = "test") -> list[Requirement]:
    wanted, torch = make_venv.requirements(PROJECT, kind)
    return [Requirement(each) for each in (*wanted, *torch)]


@pytest.mark.parametrize("kind", ["test", "docs"])
def test_requirements_are_pinned_within_their_range(kind: str) -> None:
    assert [str(each) for each in asked(kind) if str(each.specifier).startswith("==")] == []
    pinned = PINS | DOCS_PINS if kind == "docs" else PINS
    for each in asked(kind):
        (pin,) = pinned[canonicalize_name(each.name)].specifier
        assert pin.operator == "=="
        assert each.specifier.contains(pin.version), each


def test_requirements_of_the_site_are_pinned_once() -> None:
    assert len(DOCS_PINS) > 10
    assert not DOCS_PINS.keys() & PINS.keys()


def test_all_that_these_need_is_pinned_and_nothing_else() -> None:
    """But for the parts of CUDA, which a build of PyTorch has or has not, and pins itself."""
    needed, left = set(), [(each.name, extra) for each in asked() for extra in ("", *each.extras)]
    while left:
        name, extra = left.pop()
        if (canonicalize_name(name), extra) not in needed:
            needed.add((canonicalize_name(name), extra))
            for each in map(Requirement, distribution(name).requires or ()):
                if each.marker is None or each.marker.evaluate({"extra": extra}):
                    left += [(each.name, extra) for extra in ("", *each.extras)]
    names = {name for name, _ in needed if not re.match(r"nvidia|cuda|triton", name)}
    assert names == set(PINS)


def test_no_package_index_is_named() -> None:
    assert re.search(r"https?:|^\s*-", CONSTRAINTS, re.MULTILINE) is None


def installed(site: Path, name: str, files: tuple[str, ...] = ("INSTALLER",)) -> Path:
    """A package as an installer leaves it, in an environment's site-packages."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"{name}.py").write_text("x = 1\n")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "INSTALLER").write_text("pip\n")
    lines = [
        f"{name}.py,sha256=x,6",
        f"__pycache__/{name}.pyc,,",
        f"{info.name}/METADATA,,",
        f"{info.name}/RECORD,,",
    ]
    (info / "RECORD").write_text("\n".join([*lines, *(f"{info.name}/{file},," for file in files)]) + "\n")
    return info


def test_a_partial_install_is_repeated(tmp_path: Path) -> None:
    """A package of which a part is missing counts as there for pip and uv, and breaks much later."""
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    names = ("kept", "late", "short", "gone", "listed")
    infos = {name: installed(site, name) for name in names}
    (infos["late"] / "RECORD").unlink()
    (site / "short.py").write_text("")
    (site / "gone.py").unlink()
    (infos["listed"] / "RECORD").write_text("listed.py,sha256=x,6\n")
    make_venv.forget_halves(tmp_path)
    assert [name for name in names if infos[name].exists()] == ["kept"]


UV = """#!/bin/sh
echo "uv $*" >> calls
[ "$1" = venv ] && mkdir -p .venv/bin && cp "$0" .venv/bin/python
case "$*" in *transformers*) exit $UV_ENDS;; esac
mkdir -p .venv/lib/python3.11/site-packages
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a uv on PATH that notes how it is called; so does the Python of its .venv."""
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(PROJECT / name, tmp_path)
    (tmp_path / "tools").mkdir()
    (tmp_path / "aerie").mkdir()
    shutil.copy(PROJECT / "aerie" / "rooms.py", tmp_path / "aerie")
    uv = tmp_path / "tools" / "uv"
    uv.write_text(UV)
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("UV_ENDS", "0")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def calls(checkout: Path) -> list[str]:
    """The calls of the installers, without trials."""
    lines = (checkout / "calls").read_text().splitlines()
    return [line for line in lines if " -c " not in line]


def test_uv_takes_wheels_of_the_pinned_versions_and_the_small_torch(checkout: Path, capfd) -> None:
    assert make_venv.main(["test"]) == 0
    venv, packages, torch, itself = calls(checkout)
    assert "--seed" in venv
    for call in (packages, torch):
        assert "--only-binary :all: --constraint constraints.txt" in call
    assert ("torch" in packages, "--torch-backend cpu torch" in torch) == (False, True)
    assert "--no-build-isolation --editable ." in itself
    output = capfd.readouterr().err
    mb = make_venv.MEGABYTES
    assert f"setting up .venv for testing with uv: about {mb['run'] + mb['test']} MB to fetch" in output
    assert "fetching PyTorch's build for the CPU: about 200 MB" in output
    assert not (checkout / ".venv" / ".unfinished").exists()


def test_where_uv_fails_pip_is_tried(checkout: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    monkeypatch.setenv("UV_ENDS", "1")
    assert make_venv.main(["run"]) == 1  # this pip is the same script, and fails as well
    assert [line.partition(" --only")[0] for line in calls(checkout)[1:]] == [
        "uv pip install --python .venv",
        "uv -m pip install",
    ]
    output = capfd.readouterr().err
    assert "note: uv could not do it (above); pip is tried" in output
    assert "error: .venv is not complete; the reason is above" in output
    assert "nothing is built from source" in output
    assert (checkout / ".venv" / ".unfinished").exists()


def test_a_python_newer_than_the_wheels(checkout: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    monkeypatch.setenv("UV_ENDS", "1")
    monkeypatch.setattr(make_venv, "NEWEST", (3, 10))
    assert make_venv.main(["run"]) == 1
    assert "is newer than 3.10, and not every package has a wheel for it" in capfd.readouterr().err


def test_ctrl_c(checkout: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(make_venv, "install", interrupted)
    assert make_venv.main(["run"]) == 1
    assert "interrupted: .venv is not complete. The same command goes on from there" in capfd.readouterr().err


def test_a_folder_that_cannot_be_written(checkout: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert make_venv.main(["run"]) == 1
    output = capfd.readouterr().err
    assert f"error: {checkout} cannot be written by you" in output
    assert "apt" not in output


def test_a_python_without_ensurepip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(make_venv.SetupError, match=r"sudo apt install python3\.\d+-venv"):
        make_venv.create(tmp_path / ".venv", None)


def test_the_error_of_venv_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".venv").write_text("a file\n")
    with pytest.raises(make_venv.SetupError, match=r"-m venv .* failed: \S"):
        make_venv.create(tmp_path / ".venv", None)


@pytest.mark.parametrize("answer", [["nvidia-cublas", "torch"], ["torch", "sympy"]])
def test_a_torch_with_cuda_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: list[str]
) -> None:
    """pip names what it would install before it fetches anything."""
    report = {"install": [{"metadata": {"name": name}} for name in answer]}
    pip = f"import json, sys\nassert '--dry-run' in sys.argv\nprint(json.dumps({report}))"
    (tmp_path / "pip.py").write_text(pip)
    monkeypatch.setattr(make_venv, "PIP", (sys.executable, str(tmp_path / "pip.py")))
    assert make_venv.would_fetch_cuda(tmp_path, ["torch"]) == ("nvidia-cublas" in answer)
    assert "about 3 GB" in make_venv.TORCH_CUDA


def test_pip_output_is_shortened() -> None:
    expected = {
        "  Downloading numpy-2.4.6-cp311-cp311-linux_x86_64.whl (16.9 MB)\n": "fetching numpy 2.4.6, 16.9 MB",
        "Downloading a/b/xdsl-0.73.0-py3-none-any.whl (4.6 MB)\n": "fetching xdsl 0.73.0, 4.6 MB",
        "Downloading xdsl-0.73.0-py3-none-any.whl.metadata (12 kB)\n": "",
        "Installing collected packages: idna, rich, numpy\n": "installing 3 packages",
        "Collecting numpy\n": "",
    }
    assert {line: make_venv.brief(line) for line in expected} == expected


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("prompt", ["PROMPT"]),
        ("n-tokens", ["N_TOKENS"]),
        ("PROMT", ["PROMPT"]),
        ("SEQLEN", ["SEQ_LEN"]),
        ("TEMP", ["TEMPERATURE"]),
        ("HF_TOKEN", []),
        ("CXX", []),
        ("http_proxy", []),
        ("PYTHONPATH", []),
    ],
)
def test_the_likely_variable_is_suggested(name: str, meant: list[str]) -> None:
    assert make_variables.meant(name, KNOWN) == meant


def test_what_the_makefile_reads_is_defined() -> None:
    """Else make takes it for nothing, without a word."""
    makefile = (PROJECT / "Makefile").read_text()
    read = {*re.findall(r"\$\(([A-Z_]+)\)", makefile)}
    set_there = {*re.findall(r"^(?:override )?([A-Z_]+) *[:?+]?=", makefile, re.MULTILINE)}
    assert read - set_there <= {"MAKEFLAGS", "MAKEFILE_LIST", "MAKECMDGOALS", "MAKE", "CURDIR"}


KNOWN = re.findall(r"^([A-Z_]+) +\?=", (PROJECT / "Makefile").read_text(), re.MULTILINE)


def test_every_variable_of_the_makefile_is_one_that_it_knows() -> None:
    (listed,) = re.findall(
        r"^override KNOWN := ((?:.*\\\n)*.*)", (PROJECT / "Makefile").read_text(), re.MULTILINE
    )
    assert listed.replace("\\", " ").split() == KNOWN


def make(folder: Path, *words: str, stamps: tuple[str, ...] = ("run",)) -> subprocess.CompletedProcess[str]:
    """make in a folder whose environment is set up already, for running or for tests too, and whose Python
    prints its arguments."""
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nprintf "%s|" "$@"\nexit ${ENDS-0}\n')
    python.chmod(0o755)
    for name in ("Makefile", "tools"):
        (folder / name).symlink_to(PROJECT / name)
    for made in ("pyproject.toml", "constraints.txt", *(f".venv/.stamp-{stamp}" for stamp in stamps)):
        (folder / made).touch()
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *words], cwd=folder, env=outside, capture_output=True, text=True, check=False
    )


NASTY = "$(shell touch made)`touch made`$(touch made)'\"; touch made #\\\n $PATH $$HOME"


TARGETS = {
    "OUT": "mlir",
    "WHEELS": "setup-npu",
    "SHARD": "test-slow",
    "KEEP": "test-toolchain",
    "ISA": "bench",
    "HOST": "serve",
    "PORT": "serve",
    "N_PROMPTS": "verify",
    "CONVERSATION": "verify",
    "PROMPT_FILE": "profile",
}
"""The targets that variables are tried with which `make run` does not take, or takes in place of another."""


@pytest.mark.parametrize("target", sorted({"run", *TARGETS.values()}))
def test_every_variable_travels_as_typed(tmp_path: Path, target: str) -> None:
    travelling = [name for name in KNOWN if name not in ("JSON", "REFRESH", "PYTHON")]
    values = {name: f"{name}: {NASTY}" for name in travelling if TARGETS.get(name, "run") == target}
    typed = [f"{name}={value}" for name, value in values.items()]
    done = make(tmp_path, target, *typed, f"HF_LIKE_NO_OTHER={NASTY}", stamps=("run", "test"))
    assert (done.returncode, done.stderr) == (0, "")
    words = done.stdout.split("|")
    assert [name for name, value in values.items() if not any(word.endswith(value) for word in words)] == []
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["PYTHON", "prompt", "PY", "SPREAD", "DO", "common"])
def test_no_variable_is_run(tmp_path: Path, name: str) -> None:
    done = make(tmp_path, "run", f"{name}={NASTY}")
    assert not (tmp_path / "made").exists()
    assert done.returncode == (1 if name == "prompt" else 0)


def test_a_misspelt_variable_is_reported(tmp_path: Path) -> None:
    given = ("prompt=hi", "question=hi", "ANSWER=hi", "http_proxy=x", "CXX=clang++", "VNPU_THREADS=1")
    done = make(tmp_path, "run", *given)
    assert (done.returncode, done.stdout) == (1, "")
    assert sorted(done.stderr.splitlines()) == [
        "error: make has no variable prompt; give PROMPT",
        "note: make has no variable ANSWER; make help lists them",
        "note: make has no variable question; make help lists them",
    ]


def test_a_variable_that_the_target_does_not_read_is_reported(tmp_path: Path, monkeypatch) -> None:
    """Where it was given; in the environment it may be for others. Of several targets one is enough."""
    monkeypatch.setenv("TOP_K", "5")
    done = make(tmp_path, "serve", "SEED=1", "HOST=::1", "DRAFT=lookup")
    assert done.stdout == "-m|aerie|serve|--model=demo|--host=::1|--port=8000|--backend=auto|--draft=lookup|"
    assert (done.returncode, done.stderr) == (
        0,
        "note: make serve reads no SEED; it reads MODEL, HOST, PORT, VARIANTS, WEIGHTS, BACKEND, NUMERICS, "
        "DRAFT\n",
    )
    (tmp_path / "both").mkdir()
    assert make(tmp_path / "both", "compile", "run", "SEED=1").stderr == ""


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("doctor", "MODEL JSON"),
        ("compile", "MODEL BACKEND SEQ_LEN NUMERICS VARIANTS DECODE WEIGHTS"),
        ("mlir", "MODEL SEQ_LEN OUT"),
        ("bench", "MODEL ISA WEIGHTS"),
        ("setup-npu", "WHEELS"),
        ("lit", "REFRESH"),
        ("clean", ""),
    ],
)
def test_variables_that_a_target_reads(target: str, names: str) -> None:
    """By its recipe, and by what the names in it stand for."""
    makefile = (PROJECT / "Makefile").read_text()
    assert make_variables.read_by(target, makefile) & set(KNOWN) == set(names.split())
    assert make_variables.known(makefile) == KNOWN


@pytest.mark.parametrize("target", ["run", "doctor", "mlir"])
def test_make_adds_nothing_to_the_output_of_a_program(tmp_path: Path, monkeypatch, target: str) -> None:
    monkeypatch.setenv("ENDS", "2")
    done = make(tmp_path, target)
    assert (done.returncode, done.stderr) == (1, "")
    assert f"-m|aerie|{target}|" in done.stdout


@pytest.mark.parametrize("code", ["0", "1", "2"])
def test_make_test_toolchain_ends_as_tests_do(tmp_path: Path, monkeypatch, code: str) -> None:
    """With 2 for whatever is wrong, missing tools among it."""
    monkeypatch.setenv("ENDS", code)
    done = make(tmp_path, "test-toolchain", "SEQ_LEN=64", "JSON=1")
    assert done.stdout == "-m|aerie|test-toolchain|--model=demo|--seq-len=64|--json|"
    assert done.returncode == (0 if code == "0" else 2)


@pytest.mark.parametrize(
    ("target", "printed"),
    [("run", ".venv/bin/python -m aerie run --model="), ("test", ".venv/bin/python -m pytest -m")],
)
def test_n_runs_nothing(tmp_path: Path, target: str, printed: str) -> None:
    done = make(tmp_path, "-n", target)
    assert (done.returncode, done.stderr) == (0, "")
    assert printed in done.stdout
    assert "-m|" not in done.stdout  # what a Python that ran would have printed


def test_a_python_that_is_too_old_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    old = tmp_path / "old" / "python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = make(tmp_path, "verify", f"PYTHON={old}")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: Aerie needs Python 3.11 or newer; PYTHON={old} is not.")


def test_a_python_that_is_a_command_is_not_run(tmp_path: Path) -> None:
    done = make(tmp_path, "verify", f"PYTHON={NASTY}")
    assert done.returncode == 1
    assert f"PYTHON={NASTY} is not." in done.stderr
    assert not (tmp_path / "made").exists()


def test_clean_leaves_nothing_of_ours(tmp_path: Path) -> None:
    ours = (".mypy_cache/x", ".ruff_cache/x", "build/x", "aerie.egg-info/x", "runtime/__pycache__/x.pyc")
    theirs = (".venv/lib/__pycache__/x.pyc", "models/x")
    for name in (*ours, *theirs):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    assert make(tmp_path, "clean").returncode == 0
    assert [name for name in (*ours, *theirs) if (tmp_path / name).exists()] == [*theirs]
    assert [(tmp_path / name).parent.exists() for name in ours] == [False] * len(ours)


def test_two_commands_set_up_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, order = threading.Event(), list[str]()

    def note(*words: str, **_: object) -> None:
        order.append(*words)
        waits.set()

    monkeypatch.setattr(make_venv, "print", note, raising=False)

    def second() -> None:
        with make_venv.alone(tmp_path):
            order.append("second")

    thread = threading.Thread(target=second)
    with make_venv.alone(tmp_path):
        thread.start()
        assert waits.wait(120)
        order.append("first")
    thread.join()
    assert order == ["another command sets up .venv here; waiting for it", "first", "second"]
