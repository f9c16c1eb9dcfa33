"""aerie vnpu: what it does, and one line and a status for what it cannot do."""

from __future__ import annotations

import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from aerie.common import knobs
from aerie.virtual_npu import ArgumentType, EntryPoint, VnpuArgumentError, arrays
from aerie.virtual_npu.__main__ import main
from tests.virtual_npu.air_texts import with_constants

PROGRAM = with_constants("""
module {
  air.channel @c [1]
  func.func @add(%x: memref<2x8xbf16>, %y: memref<2x8xbf16>) {
    scf.for %i = %c0 to %c2 step %c1 {
      %a = vector.load %x[%i, %c0] : memref<2x8xbf16>, vector<8xbf16>
      %b = arith.addf %a, %a : vector<8xbf16>
      vector.store %b, %y[%i, %c0] : memref<2x8xbf16>, vector<8xbf16>
    }
    return
  }
  func.func @stuck(%x: memref<4xf32>) {
    air.launch () in () args(%a=%x) : memref<4xf32> {
      air.channel.get @c[%c0] (%a[] [] []) : (memref<4xf32>)
    }
    return
  }
}
""")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "p.mlir").write_text(PROGRAM)
    np.savez(tmp_path / "in.npz", arg0=bits(), arg1=np.zeros((2, 8), np.uint16))
    return tmp_path


def bits() -> np.ndarray:
    return np.arange(16).reshape(2, 8).astype(ml_dtypes.bfloat16).view(np.uint16)


def command(folder: Path, *extra: str, program: str = "p.mlir", arguments: str = "in.npz") -> list[str]:
    paths = ["--args", str(folder / arguments), "--out", str(folder / "out.npz")]
    return ["run", str(folder / program), *paths, *extra]


def fails(capsys, arguments: list[str], status: int, message: str) -> None:
    assert main(arguments) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert "Traceback" not in captured.err


def test_run_writes_every_argument(files):
    assert main(command(files, "--entry", "add")) == 0
    with np.load(files / "out.npz") as out:
        assert sorted(out.files) == ["arg0", "arg1"]
        np.testing.assert_array_equal(out["arg0"], bits())
        doubled = out["arg1"].view(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(doubled, 2 * np.arange(16).reshape(2, 8))
    assert sorted(path.name for path in files.iterdir()) == ["in.npz", "out.npz", "p.mlir"]


def test_entry_defaults_to_the_only_function(files):
    (files / "one.mlir").write_text(PROGRAM.replace("func.func @stuck", "func.func private @stuck"))
    assert main(command(files, program="one.mlir")) == 0


def test_build_and_emit(files, capsys):
    assert main(["build", str(files / "p.mlir"), "-o", str(files / "p.so")]) == 0
    assert (files / "p.so").stat().st_size > 0
    assert main(["emit", str(files / "p.mlir")]) == 0
    assert "func_add(vnpu::bf16 *v_x, vnpu::bf16 *v_y)" in capsys.readouterr().out
    assert main(["ops"]) == 0
    assert "vector.contract\n" in capsys.readouterr().out


def test_a_program_that_fails_gives_status_1_and_no_output(files, capsys):
    np.savez(files / "in.npz", arg0=np.zeros(4, np.float32))
    fails(
        capsys,
        command(files, "--entry", "stuck"),
        1,
        "launch, line 14: get @c[0] (0 put so far, 0 in flight): no put comes",
    )
    assert not (files / "out.npz").exists()


def test_which_function(files, capsys):
    fails(capsys, command(files), 2, "several public functions (add, stuck): choose one with --entry")
    fails(capsys, command(files, "--entry", "x"), 2, "no public function @x: the program has add, stuck")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"arg0": np.zeros((2, 8), np.uint16)}, "add takes 2 arguments, arg0 and arg1: arg1 is missing"),
        (
            {f"arg{i}": np.zeros((2, 8), np.uint16) for i in range(3)},
            "add takes 2 arguments, arg0 and arg1: arg2 is not taken",
        ),
        (
            {"x": np.zeros(2), "y": np.zeros(2), "arg0": np.zeros((2, 8), np.uint16)},
            "add takes 2 arguments, arg0 and arg1: arg1 is missing; x, y are not taken",
        ),
        ({"arg0": np.array([None])}, "arg0 in {path} does not hold plain numbers; save it as an array"),
        (
            {"arg0": np.zeros((8, 2), np.uint16), "arg1": np.zeros((2, 8), np.uint16)},
            "arg0 of add has shape (2, 8); the array has shape (8, 2)",
        ),
        (
            {"arg0": np.zeros((2, 8), np.float32), "arg1": np.zeros((2, 8), np.uint16)},
            "arg0 of add is bf16, held as uint16; the array is float32",
        ),
    ],
)
def test_arguments_that_do_not_fit(files, capsys, given, message):
    np.savez(files / "in.npz", **given)
    fails(capsys, command(files, "--entry", "add"), 2, message.format(path=files / "in.npz"))
    assert not (files / "out.npz").exists()


@pytest.mark.parametrize(
    ("count", "taken"), [(0, "no arguments"), (1, "one argument, arg0"), (3, "3 arguments, arg0 to arg2")]
)
def test_how_many_arguments_there_are(count, taken):
    entry = EntryPoint("f", (ArgumentType((4,), "f32"),) * count)
    with pytest.raises(VnpuArgumentError, match=f"^f takes {taken}: extra is not taken$"):
        arrays.check_arrays({"extra": np.zeros(4), **{f"arg{i}": np.zeros(4) for i in range(count)}}, entry)


def single_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(4))


def flipped_bits(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[180] ^= 0xFF
    path.write_bytes(content)


def with_a_text_file(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "hello")


def test_files_that_cannot_be_read_or_written(files, capsys):
    fails(capsys, command(files, program="gone.mlir"), 2, "gone.mlir: No such file or directory")
    fails(capsys, command(files, "--entry", "add", arguments="gone.npz"), 2, "gone.npz does not exist")
    for damage, message in (
        (lambda path: path.write_text("no archive"), "in.npz is not a whole .npz file; write it with numpy"),
        (lambda path: path.write_bytes(path.read_bytes()[:-30]), "in.npz is not a whole .npz file"),
        (single_array, "in.npz is not a whole .npz file"),
        (flipped_bits, "in.npz: it is damaged; write it again with numpy.savez"),
        (with_a_text_file, "notes.txt in {path} is not a numpy array; write the file with numpy.savez"),
    ):
        np.savez(files / "in.npz", arg0=bits())
        damage(files / "in.npz")
        fails(capsys, command(files, "--entry", "add"), 2, message.format(path=files / "in.npz"))
    fails(capsys, command(files, "--entry", "add", arguments="."), 2, ": Is a directory; write it again")
    (files / "bad.mlir").write_text("func.func @f( {")
    fails(capsys, command(files, program="bad.mlir"), 2, "bad.mlir:1:")


def test_output_folder_must_exist(files, capsys):
    arguments = command(files, "--entry", "add")
    arguments[5] = str(files / "nowhere" / "out.npz")
    fails(capsys, arguments, 2, "nowhere does not exist")


def test_missing_compiler(files, capsys, monkeypatch):
    monkeypatch.setenv("VNPU_CXX", "no-such-compiler")
    fails(capsys, command(files, "--entry", "add"), 2, "apt install g++")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *[("VNPU_OPT", value, "give one of 0, 1, 2, 3, s (fast") for value in ("4", "fast", "03", " ")],
        *[("VNPU_STRICT", value, "give 1 for separate memories, 0 for a") for value in ("yes", "2", "-1")],
        *[
            ("VNPU_THREADS", value, "give a whole number from 1 to 1024; or unset it")
            for value in ("0", "-2", "2.5", "four", "1025", "٣")
        ],
        *[("VNPU_MARCH", value, "give one word that the compiler's") for value in (" ", "-O3", "a b")],
        ("VNPU_KEEP", __file__, "give a folder; this is a file; or unset it"),
    ],
)
def test_knobs_that_make_no_sense(files, capsys, monkeypatch, name, value, message):
    """Refused whatever is to be done, naming variable and value."""
    monkeypatch.setenv(name, value)
    for arguments in (command(files, "--entry", "add"), ["ops"]):
        fails(capsys, arguments, 2, f"{name}='{value}' cannot be used: {message}")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("VNPU_OPT", ["", "0", "1", "2", "3", "s"]),
        ("VNPU_STRICT", ["", "0", "1"]),
        ("VNPU_THREADS", ["", "1", "04", "1024"]),
        ("VNPU_MARCH", ["", "native", "none", "x86-64-v3", "armv8.2-a+fp16"]),
        ("VNPU_KEEP", ["", "not-yet-there", "."]),
    ],
)
def test_knobs_that_are_accepted(monkeypatch, name, values):
    for value in values:
        monkeypatch.setenv(name, value)
        knobs.check()


def test_help_lists_the_knobs(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    assert "VNPU_THREADS" in capsys.readouterr().out


def test_a_file_of_arrays_tells_the_elements_of_arguments_without_a_shape(files, capsys):
    (files / "copy.mlir").write_text("""func.func @copy(%x: memref<*xf32>, %y: memref<*xf32>) {
  %from = memref.reinterpret_cast %x to offset: [1], sizes: [3], strides: [1] : memref<*xf32> to memref<3xf32, strided<[1], offset: 1>>
  %to = memref.reinterpret_cast %y to offset: [0], sizes: [3], strides: [1] : memref<*xf32> to memref<3xf32, strided<[1]>>
  memref.copy %from, %to : memref<3xf32, strided<[1], offset: 1>> to memref<3xf32, strided<[1]>>
  return
}
""")  # noqa: E501 - MLIR has long lines
    np.savez(files / "unranked.npz", arg0=np.arange(4, dtype=np.float32), arg1=np.zeros(5, np.float32))
    words = ["run", str(files / "copy.mlir"), "--args", str(files / "unranked.npz")]
    assert main([*words, "--out", str(files / "out.npz")]) == 0
    assert np.load(files / "out.npz")["arg1"].tolist() == [1, 2, 3, 0, 0]
    assert main(["run", str(files / "copy.mlir"), "--random", "1"]) == 2
    assert "memref<*xf32> has no shape: run it with arrays (--args)" in capsys.readouterr().err
