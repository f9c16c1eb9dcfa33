"""The NPU toolchain against stand-ins for aircc, aiecc, aiebu-asm and Peano: lines, files, failures.

They prove plumbing. Nothing here has compiled anything for an NPU.
"""

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from aerie.common.store import Store
from aerie.multi_launch_builder import build_programs
from aerie.multi_launch_builder.program import CompileOption
from aerie.multi_launch_builder.shapes import ModelShape
from aerie.runtime import Backend, BackendError, CompileError, DiskFullError, KernelCache, select_backend
from aerie.runtime.npu.checks import bindings_status, preflight
from aerie.runtime.npu.toolchain import NpuToolchain
from aerie.runtime.toolchain import KERNEL_SOURCES
from aerie.virtual_npu import pyxrt

SHAPE = ModelShape(256, 4, 2, 64, 512, 2048, 1e-5)


@pytest.fixture(scope="module")
def programs():
    return build_programs(SHAPE, 64, ["rms_gemv_rope", "o_gemv_ffn", "flash_attn", "rms_gemms_rope"])


@pytest.fixture
def decode(programs):
    """A program of six launches with three objects."""
    return programs["rms_gemv_rope"]


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "unfinished" / "work"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def shared(tmp_path):
    return Store(tmp_path / "cache")


@pytest.fixture
def cache(tmp_path, npu_tools):
    return KernelCache(tmp_path / "cache", Backend("npu", NpuToolchain(), pyxrt, "for the test"))


def failing(npu_tools, program, work, shared, tool, **plan):
    """The message of a compilation in which that stand-in behaves so."""
    npu_tools.behave(tool, **plan)
    with pytest.raises(CompileError) as caught:
        NpuToolchain().compile(program, work, shared)
    return str(caught.value)


# command lines, files, environment


def test_command_lines(npu_tools, decode, work, shared):
    elf = NpuToolchain().compile(decode, work, shared)
    first, *_, aircc, aiecc, aiebu = npu_tools.calls()
    rope = decode.objects[-1]
    assert rope.name == "rope_2x64.o"
    assert npu_tools.calls("clang++")[-1]["arguments"][:-1] == [
        *["-O2", "-std=c++20", "--target=aie2p-none-unknown-elf", "-DNDEBUG", "-D__AIE_API_AIE_ADF_HPP__"],
        *["-ffunction-sections", "-fstack-size-section", "-Wno-parentheses", "-Wno-attributes"],
        *["-Wno-macro-redefined", "-Wno-empty-body", f"-I{npu_tools.root}/mlir-aie/include"],
        *["-Drope=rope_2x64", "-c", f"{KERNEL_SOURCES}/rope_halfsplit.cc", "-o"],
    ]
    assert first["tool"] == "clang++"
    assert aircc["arguments"] == [
        *["rms_gemv_rope.mlir", "--device", "npu2", "--output-format", "elf"],
        *["--elf-name", "rms_gemv_rope.elf", "--tmpdir", "air_project"],
        *["--peano", f"{npu_tools.root}/peano", "--no-xchesscc", "--no-xbridge", "--stack-size=2048"],
    ]
    assert aiecc["tool"] == "aiecc"
    assert "--full-elf-name=rms_gemv_rope.elf" in aiecc["arguments"]
    assert aiebu["tool"] == "aiebu-asm"
    assert elf == work / "rms_gemv_rope.elf"
    assert (work / "rms_gemv_rope.mlir").read_text() == decode.text


def test_objects_lie_where_aiecc_looks(npu_tools, decode, work, shared):
    NpuToolchain().compile(decode, work, shared)
    aircc = npu_tools.calls("aircc")[0]
    names = [each.name for each in decode.objects]
    assert aircc["cwd"] == str(work)
    assert {*names, *(f"air_project/{name}" for name in names)} <= set(aircc["files"])
    inside = {name for name in aircc["files"] if name.startswith("air_project/")}
    assert inside == {f"air_project/{name}" for name in names}  # it begins empty but for them


def test_the_environment_of_the_tools(npu_tools, decode, work, shared, monkeypatch):
    away = npu_tools.root / "elsewhere"
    away.mkdir()
    for tool in ("aiecc", "aiebu-asm"):
        (npu_tools.root / "bin" / tool).rename(away / tool)
    monkeypatch.setattr("aerie.runtime.npu.tools.XRT_FOLDERS", ())
    monkeypatch.setenv("PATH", f"{npu_tools.root}/bin:{away}:/usr/bin:/bin")
    toolchain = NpuToolchain()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    toolchain.compile(decode, work, shared)
    environment = npu_tools.calls("aircc")[0]["environment"]
    assert environment["PATH"] == f"{away}:/usr/bin:/bin"
    assert environment["PEANO_INSTALL_DIR"] == f"{npu_tools.root}/peano"
    assert environment["TMPDIR"] == str(work / "tmp")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("flash_attn", [*["--air-runtime-loop-tiling-sizes=1"] * 2, "--omit-ping-pong-transform=all"]),
        ("rms_gemms_rope", ["--air-runtime-loop-tiling-sizes=2"] * 2),
        ("o_gemv_ffn", []),
    ],
)
def test_the_options_of_each_program(npu_tools, programs, name, options):
    command = NpuToolchain().aircc_command(programs[name])
    assert command[command.index("--no-xbridge") + 1 :] == ["--stack-size=2048", *options]


def test_every_option_has_a_reason_and_a_source(programs):
    for program in programs.values():
        for option in program.options:
            assert len(option.reason) > 40
            assert option.source.startswith("mlir-air ")


def test_an_option_that_aircc_does_not_know(npu_tools, decode, work, shared):
    wrong = replace(decode, options=(CompileOption("--stack-sise=1", "a typo", "no source"),))
    with pytest.raises(CompileError, match=r"argument '--stack-sise=1'(.*\n)+this means: "):
        NpuToolchain().compile(wrong, work, shared)


# objects


def test_an_object_is_compiled_once_for_all_programs(npu_tools, programs, cache):
    cache.compile_all([programs["rms_gemv_rope"], programs["o_gemv_ffn"]])
    both = {each for name in ("rms_gemv_rope", "o_gemv_ffn") for each in programs[name].objects}
    assert len(npu_tools.calls("clang++")) == len({each.name for each in both})
    assert len({each.name for each in both}) < sum(
        len(programs[p].objects) for p in ("rms_gemv_rope", "o_gemv_ffn")
    )
    kept = list((cache.cache_dir / "shared").glob("*.o"))
    assert len(kept) == len(npu_tools.calls("clang++"))


def test_objects_are_keyed_by_all_that_makes_them(npu_tools, decode):
    peano, external = NpuToolchain()._peano, decode.objects[-1]
    key = peano.key(external)
    assert peano.key(replace(external, name="other.o")) == key
    assert peano.key(replace(external, optimize="Os")) != key
    assert peano.key(replace(external, defines=("rope=rope_4x64",))) != key
    assert peano.key(replace(external, source="mv.cc")) != key
    (npu_tools.root / "mlir-aie/include/aie_api/aie.hpp").write_text("// another release\n")
    assert peano.key(external) != key


def test_the_level_that_a_kernel_declares(npu_tools, decode, work, shared):
    small = replace(decode.objects[-1], optimize="Os")
    NpuToolchain().compile(replace(decode, objects=(*decode.objects[:-1], small)), work, shared)
    assert npu_tools.calls("clang++")[-1]["arguments"][0] == "-Os"


def test_a_failed_object_is_not_kept(npu_tools, decode, work, shared):
    message = failing(
        npu_tools, decode, work, shared, "clang++", say="mv.cc:7:1: error: no such type 'vec'", exit=1
    )
    assert "clang++ failed with exit code 1:\nmv.cc:7:1: error: no such type 'vec'" in message
    assert npu_tools.calls("aircc") == []
    assert list(shared.folder.glob("**/*.o")) == []


def test_an_object_that_is_empty_is_not_kept(npu_tools, decode, work, shared):
    message = failing(npu_tools, decode, work, shared, "clang++", say="nothing to do", exit=0)
    assert "clang++ ended without an error and without an object:\n" in message
    assert list(shared.folder.glob("*.o")) == []


# what aircc makes, and how it fails


def test_ingredients_change_with_options_and_tools(npu_tools, decode):
    before = NpuToolchain().ingredients(decode)
    assert before["Peano"] == "clang++ stand-in 1.0"
    assert NpuToolchain().ingredients(replace(decode, options=()))["aircc flags"] != before["aircc flags"]
    for tool in ("aircc", "aiecc", "aiebu-asm"):
        with (npu_tools.root / "bin" / tool).open("a") as script:
            script.write("# another release\n")
        assert NpuToolchain().ingredients(decode)[tool] != before[tool]


def test_through_the_cache(npu_tools, npu_stand_ins, decode, cache):
    artifact = cache.compile_and_cache(decode)
    assert artifact.path.parent.name == "npu"
    assert artifact.path.read_bytes() == npu_stand_ins.ELF
    log = artifact.path.with_suffix(".log").read_text()
    assert "output of aircc" in log
    assert f"$ {npu_tools.root}/bin/aircc rms_gemv_rope.mlir --device npu2" in log
    assert cache.compile_and_cache(decode).reused


def test_a_failure_keeps_the_whole_log_and_no_artifact(npu_tools, decode, cache):
    npu_tools.behave("aircc", say="line 1\n" * 50 + "error: out of shim DMA channels", exit=3)
    with pytest.raises(CompileError) as caught:
        cache.compile_and_cache(decode)
    message = str(caught.value)
    assert message.startswith("program 'rms_gemv_rope' was not compiled: aircc failed with exit code 3:\n")
    assert "error: out of shim DMA channels\nthis means: more streams between host memory" in message
    assert "(mlir-air mlir/lib/Conversion/AIRToAIESchedulingUtils.cpp); full log: " in message
    log = Path(message.rsplit("full log: ", 1)[1])
    assert log.read_text().count("line 1\n") == 50
    assert list((cache.cache_dir / "npu").glob("*.elf")) == []
    assert list((cache.cache_dir / "unfinished").iterdir()) == []


def test_no_placement_is_a_failure_whatever_the_exit_code(npu_tools, decode, work, shared):
    message = failing(
        npu_tools, decode, work, shared, "aircc", say="loc: error: No valid placement found.", exit=0
    )
    assert "aircc ended with exit code 0 and did not succeed (aircc: placement):\n" in message
    assert "this means: no room in the array for a herd" in message


def test_success_without_an_elf(npu_tools, decode, work, shared):
    message = failing(npu_tools, decode, work, shared, "aiebu-asm", write="nothing")
    assert "aircc ended without an error and without rms_gemv_rope.elf:\n" in message


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("", "it is empty"),
        ("7f454c46", "it ends after 4 bytes"),
        (b"not an elf at all".hex(), "it is no ELF: it begins with 6e 6f 74 20"),
        (
            (b"\x7fELF\x02\x01\x01\x00" + bytes(8)).hex(),
            r"its platform \(e_ident\[EI_OSABI\]\) is 0, and AIE2P's is 69",
        ),
    ],
)
def test_an_elf_that_xrt_would_not_open_is_not_kept(npu_tools, decode, cache, written, why):
    npu_tools.behave("aiebu-asm", write=written)
    with pytest.raises(
        CompileError, match=f"rms_gemv_rope.elf is no program of an NPU2: {why}; it is not stored"
    ):
        cache.compile_and_cache(decode)
    assert list((cache.cache_dir / "npu").glob("*.elf")) == []


def test_a_partial_file_of_a_failed_tool_is_not_kept(npu_tools, decode, cache):
    npu_tools.behave("aircc", say="error: half way", exit=1, partial="rms_gemv_rope.elf")
    with pytest.raises(CompileError, match="half way"):
        cache.compile_and_cache(decode)
    assert list((cache.cache_dir / "npu").glob("*.elf")) == []
    npu_tools.behave("aircc")
    assert not cache.compile_and_cache(decode).reused


def test_a_full_disk_is_named(npu_tools, decode, cache):
    npu_tools.behave("aircc", say="aiecc: cannot write ELF 'x.elf': No space left on device", exit=1)
    with pytest.raises(DiskFullError, match="no space left while compiling 'rms_gemv_rope'"):
        cache.compile_and_cache(decode)


def test_a_missing_assembler_is_named(npu_tools, decode, work, shared):
    toolchain = NpuToolchain()
    (npu_tools.root / "bin/aiebu-asm").unlink()
    with pytest.raises(CompileError) as caught:
        toolchain.compile(decode, work, shared)
    assert "(aiebu-asm writes the ELF):\naiecc: ShellCommand: tool 'aiebu-asm' not found" in str(caught.value)
    assert "this means: XRT's aiebu-asm, which writes the ELF, is not found" in str(caught.value)


def test_a_tool_killed_by_the_system(npu_tools, decode, work, shared):
    message = failing(npu_tools, decode, work, shared, "aircc", signal=int(signal.SIGKILL))
    assert "aircc was killed by SIGKILL:\noutput of aircc\nthis means: a tool was killed" in message
    assert "set AERIE_COMPILE_MEMORY to fewer GiB" in message


def test_a_tool_that_does_not_start(npu_tools, decode, work, shared):
    toolchain = NpuToolchain()
    (npu_tools.root / "bin/aircc").unlink()
    with pytest.raises(CompileError, match=r"aircc could not be started: .*No such file"):
        toolchain.compile(decode, work, shared)


# time and interruption


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def gone(pids):
    """Whether those processes end, which a killed one does soon and not at once."""
    for _ in range(2400):
        if not any(map(is_running, pids)):
            return True
        time.sleep(0.05)
    return False


def wait_for(note):
    for _ in range(2400):
        if note.exists() and note.read_text():
            return [int(word) for word in note.read_text().split()]
        time.sleep(0.05)
    raise AssertionError("the stand-in did not start")


def test_a_tool_that_hangs_is_killed_with_all_it_started(
    npu_tools, decode, work, shared, tmp_path, monkeypatch
):
    monkeypatch.setenv("AERIE_COMPILE_TIMEOUT", "1")
    message = failing(npu_tools, decode, work, shared, "aiecc", hang=str(tmp_path / "pids"))
    assert "aircc had not ended after 1 s and was killed with all that it started" in message
    assert "; AERIE_COMPILE_TIMEOUT gives it more" in message
    assert gone(wait_for(tmp_path / "pids"))


def test_ctrl_c_kills_what_compiles(npu_tools, decode, cache, tmp_path):
    npu_tools.behave("aircc", hang=str(tmp_path / "pids"))

    def interrupt():
        wait_for(tmp_path / "pids")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        cache.compile_all([decode])
    thread.join()
    assert gone(wait_for(tmp_path / "pids"))
    assert list((cache.cache_dir / "npu").glob("*.elf")) == []


# before aircc


def test_what_cannot_fit_is_refused_before_any_tool_starts(npu_tools, decode, work, shared):
    wide = decode.text.replace("arith.constant 8 : index", "arith.constant 9 : index", 1)
    with pytest.raises(CompileError) as caught:
        NpuToolchain().compile(replace(decode, text=wide), work, shared)
    assert "that npu2 cannot do (`aerie vnpu check` shows them with the limits):\n" in str(caught.value)
    assert "9" in str(caught.value)
    assert npu_tools.calls() == []


def test_the_check_knows_the_options(npu_tools, decode, work, shared):
    deep = replace(decode, options=(CompileOption("--stack-size=65000", "for the test", "no source"),))
    with pytest.raises(CompileError, match="L1 bytes takes"):
        NpuToolchain().compile(deep, work, shared)
    assert decode.last_option("--stack-size") == "2048"
    assert decode.last_option("--bf16-emulation") is None


def test_text_that_does_not_parse(npu_tools, decode, work, shared):
    with pytest.raises(CompileError, match=r"its text cannot be checked: .*rms_gemv_rope\.mlir"):
        NpuToolchain().compile(replace(decode, text="func.func @broken"), work, shared)


def test_warnings_go_to_the_log(npu_tools, decode, work, shared, monkeypatch):
    monkeypatch.setattr("aerie.runtime.npu.toolchain.preflight", lambda program: ["warning: beware"])
    NpuToolchain().compile(decode, work, shared)
    verified, beware, command = (work / "build.log").read_text().splitlines()[:3]
    assert verified == bindings_status()
    assert beware == "warning: beware"
    assert command.startswith("$ ")


def test_the_programs_need_no_option_that_they_lack(programs):
    assert [line for program in programs.values() for line in preflight(program) if "aircc --" in line] == []


def test_a_refusal_of_upstreams_bindings(npu_tools, decode, work, shared, monkeypatch):
    monkeypatch.setattr("aerie.runtime.npu.toolchain.bindings_installed", lambda: True)
    monkeypatch.setattr(
        "aerie.runtime.npu.toolchain.bindings_error_text", lambda text: f"{text.name}:3:1: error: unknown op"
    )
    with pytest.raises(CompileError, match=r"own bindings refuse its text:\nrms_gemv_rope\.mlir:3:1: "):
        NpuToolchain().compile(decode, work, shared)
    assert npu_tools.calls() == []


# knobs


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("AERIE_COMPILE_MEMORY", "lots", "a number of GiB above 0"),
        ("AERIE_COMPILE_MEMORY", "0", "a number of GiB above 0"),
        ("AERIE_COMPILE_TIMEOUT", "-1", "a whole number of seconds"),
    ],
)
def test_a_knob_that_makes_no_sense(npu_tools, monkeypatch, name, value, wanted):
    monkeypatch.setenv(name, value)
    with pytest.raises(BackendError, match=f"{name}='{value}' cannot be used: give {wanted}"):
        select_backend("npu", compile_only=True)
    with pytest.raises(BackendError, match=name):
        select_backend("virtual")
