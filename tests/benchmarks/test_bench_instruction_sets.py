"""Limiting both sides to an instruction set: the choices, the environment of the processes, refusals."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from aerie.common import cpu
from aerie.common.errors import UserError
from benchmarks import __main__ as command
from benchmarks import comparison
from benchmarks.instruction_sets import OLD_VARIABLES, VARIABLES, SelectedSet, choose
from benchmarks.worker import running_worker

BY_NAME = {each.name: each for each in (*cpu.X86_SETS, *cpu.ARM_SETS)}
INTEL = ("avx2", "avx512", "avx512_bf16", "amx")


@pytest.fixture(autouse=True)
def unlimited(monkeypatch):
    for name in (*VARIABLES, *OLD_VARIABLES):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def has(monkeypatch):
    """has(names of sets): from now on this CPU has these, and byte permutations."""

    def become(*names):
        sets = tuple(BY_NAME[name] for name in names)
        features = {feature for each in sets for feature in each.required} | {"avx512vbmi"}
        monkeypatch.setattr(cpu, "instruction_sets", lambda: sets)
        monkeypatch.setattr(cpu, "cpu_features", lambda: features)

    return become


@pytest.mark.parametrize(
    ("isa", "settings"),
    [
        ("avx2", ("x86-64-v3", "avx2", "AVX2", "AVX2")),
        ("avx512", ("x86-64-v4", "avx512", "AVX512_CORE", "AVX512")),
        ("avx512_bf16", ("x86-64-v4+avx512bf16+avx512vbmi", "avx512", "AVX512_CORE_BF16", "AVX512_E3")),
        (
            "amx",
            (
                "x86-64-v4+avx512bf16+amx-tile+amx-bf16+avx512vbmi",
                *("avx512", "AVX512_CORE_AMX", "AVX512_E4"),
            ),
        ),
        ("native", ()),
    ],
)
def test_environment_of_both_sides(has, isa, settings):
    has(*INTEL)
    (choice,) = choose(isa)
    assert choice.environment == dict(zip(VARIABLES, settings, strict=False))
    assert choice.name == isa


@pytest.mark.parametrize(
    ("isa", "settings"), [("neon", ("armv8-a", "default")), ("neon_bf16", ("armv8.2-a+bf16", "default"))]
)
def test_environment_of_both_sides_on_arm(has, isa, settings):
    has("neon", "neon_bf16")
    assert choose(isa)[0].environment == dict(zip(VARIABLES, settings, strict=False))


def test_all_is_every_set_that_there_is_in_order(has):
    has("avx2", "avx512")
    assert [choice.title for choice in choose("all")] == ["AVX2", "AVX-512"]


def test_native_says_which_set_it_is(has):
    has("avx2", "avx512")
    (choice,) = choose("native")
    assert choice.title == "native, AVX-512"
    assert choice.limits
    assert choice.limits.targets["prefill_ratio"] == 1.2


def test_a_machine_of_which_nothing_is_known_has_native(has):
    has()
    for isa in ("native", "all"):
        (choice,) = choose(isa)
        assert (choice.title, choice.environment, choice.limits) == ("native, unknown", {}, None)


@pytest.mark.parametrize(
    ("isa", "message"),
    [
        (
            "amx",
            "ISA=amx: this CPU has no such instructions; give one of avx2, avx512, native, all",
        ),
        (
            "sse9",
            "ISA=sse9 is no instruction set that is known; give one of avx2, avx512, native, all",
        ),
    ],
)
def test_a_set_that_is_not_there(has, isa, message, capsys):
    has("avx2", "avx512")
    assert command.main(["--isa", isa]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.parametrize("name", [*VARIABLES, *OLD_VARIABLES])
def test_a_limit_of_one_side_alone_is_refused(has, monkeypatch, name):
    has("avx2")
    monkeypatch.setenv(name, "x86-64-v3")
    message = (
        f"{name}=x86-64-v3 limits one side alone, and the comparison would be none; unset it, and limit both "
        "with ISA=..."
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        choose("native")


SAYS = {
    "avx2": {"torch": "AVX2", "onednn": "", "product": ""},
    "avx512": {"torch": "AVX512", "onednn": "Intel AVX-512 with AVX512BW, AVX512VL, and AVX512DQ extensions"},
    "avx512_bf16": {"torch": "AVX512", "onednn": "Intel AVX-512 with Intel DL Boost and bfloat16 support"},
    "amx": {
        "torch": "AVX512",
        "onednn": "Intel AVX-512 with float16, Intel DL Boost and bfloat16 support and Intel AMX with "
        "bfloat16 and 8-bit integer support",
    },
}
"""What oneDNN 3.12 says of itself, by what it is limited to; of AMX, by its sources."""


@pytest.mark.parametrize("isa", INTEL)
@pytest.mark.parametrize("actual", INTEL)
def test_the_other_side_must_stay_within_the_limit(isa, actual):
    choice = SelectedSet(isa, BY_NAME[isa])
    if INTEL.index(actual) > INTEL.index(isa) or (isa != "avx2" and actual == "avx2"):
        with pytest.raises(UserError, match=f"^transformers is not limited to {choice.title}: torch says"):
            choice.check(SAYS[actual])
    else:
        choice.check(SAYS[actual])


def test_native_is_not_held_to_anything():
    SelectedSet("native", BY_NAME["avx2"]).check(SAYS["amx"])


def test_the_message_has_the_setting_and_the_answer():
    with pytest.raises(UserError) as refused:
        SelectedSet("avx512", BY_NAME["avx512"]).check(SAYS["avx512_bf16"])
    assert str(refused.value) == (
        "transformers is not limited to AVX-512: torch says AVX512, oneDNN 'Intel AVX-512 with Intel DL "
        "Boost and bfloat16 support', though VNPU_MARCH=x86-64-v4 ATEN_CPU_CAPABILITY=avx512 "
        "ONEDNN_MAX_CPU_ISA=AVX512_CORE MKL_ENABLE_INSTRUCTIONS=AVX512 was set; so nothing is compared. Is "
        "it another release of torch than constraints.txt names?"
    )


@pytest.mark.skipif(not cpu.instruction_sets(), reason="nothing is known of this CPU")
def test_the_limits_take_effect(tmp_path):
    """The least set of this CPU, in the processes of either side."""
    pytest.importorskip("torch")
    least = cpu.instruction_sets()[0].name
    (choice,) = choose(least)
    assert choice.limits
    assert choice.best
    assert os.environ.keys().isdisjoint(choice.environment)
    with running_worker("theirs", {"folder": "none"}, tmp_path / "theirs.log", choice.environment) as theirs:
        answer = theirs("instructions")
    choice.check(answer)
    assert answer["torch"] == choice.limits.capability
    with running_worker("machine", {}, tmp_path / "machine.log", choice.environment) as machine:
        assert machine("features") == list(choice.best.required)


def test_the_processes_of_all_sides_get_the_environment(has, monkeypatch, tmp_path):
    """Before they start, as the libraries read it when they are loaded."""
    has(*INTEL)
    (choice,) = choose("avx512")
    started = []
    monkeypatch.setattr(
        comparison, "running_worker", lambda side, arguments, log, env: started.append((side, env))
    )
    compared = comparison.ComparisonRun.__new__(comparison.ComparisonRun)
    compared.selected, compared.work = choice, tmp_path
    for side in ("machine", "ours", "theirs"):
        compared._running_side(side, {})
    assert [side for side, _ in started] == ["machine", "ours", "theirs"]
    for _, env in started:
        assert env.items() >= choice.environment.items()


def test_an_environment_reaches_a_process(tmp_path, monkeypatch):
    """As `working` starts it."""
    program = tmp_path / "side.py"
    program.write_text("import json, os\ninput()\nprint(json.dumps({'answer': os.environ['VNPU_MARCH']}))\n")
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda arguments, **named: popen([sys.executable, program], **named)
    )
    with running_worker("ours", {}, tmp_path / "log", {"VNPU_MARCH": "x86-64-v3"}) as side:
        assert side("march") == "x86-64-v3"


# recorded figures


def found(isa, title):
    return {"isa": isa, "title": title}


def test_sets_measured_one_by_one_come_together():
    machine = {"cpu": "A CPU"}
    recorded = command.merge_figures({}, "a model", machine, found("avx512", "AVX-512"))
    recorded = command.merge_figures(recorded, "a model", machine, found("avx2", "AVX2"))
    again = {**found("avx2", "AVX2"), "prefill_ratio_64": 2.0}
    recorded = command.merge_figures(json.loads(json.dumps(recorded)), "a model", machine, again)
    assert command.sort_by_instruction_set(recorded["sets"]) == [again, found("avx512", "AVX-512")]
    assert (recorded["model"], recorded["machine"]) == ("a model", machine)


@pytest.mark.parametrize(("model", "machine"), [("another", "A CPU"), ("a model", "another")])
def test_figures_of_another_model_or_machine_are_not_kept(model, machine):
    recorded = command.merge_figures({}, "a model", {"cpu": "A CPU"}, found("avx2", "AVX2"))
    recorded = command.merge_figures(recorded, model, {"cpu": machine}, found("avx512", "AVX-512"))
    assert list(recorded["sets"]) == ["avx512"]


OF_AN_EARLIER_RELEASE = '{"sets": {"avx2": {"isa": "avx2", "prefills": [64, 2048]}}}'


@pytest.mark.parametrize("text", [None, "{", "[1]", '{"prefill_ratio": 1.0}', OF_AN_EARLIER_RELEASE])
def test_nothing_to_show(tmp_path, text, capsys):
    out = tmp_path / "bench.json"
    if text is not None:
        out.write_text(text)
    assert command.main(["--show", "--out", str(out)]) == 2
    assert capsys.readouterr().err == f"error: {out} has no comparison; `make bench` measures one\n"
