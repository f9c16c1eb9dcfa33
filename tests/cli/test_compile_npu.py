"""`make compile BACKEND=npu` on a machine with the toolchain and no NPU, with stand-ins for the toolchain."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aerie.cli.command_line import main


@pytest.fixture
def tools(tmp_path, monkeypatch, npu_stand_ins):
    """Stand-ins for the NPU's compilers on PATH, and no pyxrt."""
    tools = npu_stand_ins.Tools(tmp_path / "tools")
    for name, value in tools.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "pyxrt", None)
    return tools


@pytest.fixture
def compile_npu(tools, tmp_path, capsys):
    def run(*flags):
        common = ["--model", "demo", "--backend", "npu", "--cache-dir", str(tmp_path / "cache")]
        code = main(["compile", *common, *flags])
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("flags", [("--seq-len", "128"), ("--variants", "8x512")], ids=lambda flags: flags[0])
def test_all_programs_are_compiled_once(compile_npu, tools, tmp_path, flags):
    """The six; or three of the variant and three of decode."""
    code, output = compile_npu(*flags)
    assert code == 0
    assert "backend npu: requested, to compile only" in output
    assert "programs: 6 compiled, 0 from the cache" in output
    assert len(tools.calls("aircc")) == 6
    assert len(list((tmp_path / "cache" / "npu").glob("*.elf"))) == 6
    assert "programs: 0 compiled, 6 from the cache" in compile_npu(*flags)[1]
    assert len(tools.calls("aircc")) == 6


def test_a_failure_is_reported_with_its_cause_and_log(compile_npu, tools):
    tools.behave("aiecc", say="npu.o_ffn.mlir:3:1: error: Unable to find a legal routing", exit=1)
    code, output = compile_npu()
    assert code != 0
    assert "was not compiled: aircc failed with exit code 1 (aiecc turns the array's configuration" in output
    assert "error: Unable to find a legal routing" in output
    assert "this means: the switches have no way for all streams at once" in output
    assert "full log: " in output
    assert "Traceback" not in output


def test_running_wants_the_device(tools, tmp_path, capsys):
    common = ["--model", "demo", "--backend", "npu", "--cache-dir", str(tmp_path / "cache")]
    assert main(["run", *common, "--prompt", "hello"]) != 0
    assert "pyxrt" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_whatever_stops_us_stops_the_compilers(tools, tmp_path, number):
    note = tmp_path / "pids"
    tools.behave("aircc", hang=str(note))
    command = [sys.executable, "-m", "aerie.cli", "compile", "--backend", "npu"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [*command, "--cache-dir", str(tmp_path / "cache")],
        stderr=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**os.environ, "AERIE_COMPILE_MEMORY": "1"},  # one at a time
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # below nohup it is ignored
    ) as child:
        until(lambda: note.exists() and note.read_text())
        child.send_signal(number)
        assert child.communicate(timeout=120)[1].endswith("stopped\n")
    assert child.returncode == 130
    pids = note.read_text().split()
    until(lambda: not any(is_running(pid) for pid in pids))


def until(happens):
    for _ in range(2400):
        if happens():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen within 120 s")


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False
