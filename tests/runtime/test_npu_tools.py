"""Finding the toolchain: on PATH, in the wheels of the running environment, in XRT's folder."""

import os

import pytest

from aerie.runtime import BackendError
from aerie.runtime.npu import tools


@pytest.fixture
def nothing(monkeypatch, tmp_path):
    """No tool on PATH, no variable, no wheel."""
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    for name in ("PEANO_INSTALL_DIR", "MLIR_AIE_INSTALL_DIR", "XILINX_XRT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tools, "XRT_FOLDERS", ())


@pytest.fixture
def wheels(nothing, monkeypatch, tmp_path):
    """Wheels of mlir-air, mlir-aie and llvm-aie as they lie in site-packages, by their distributions."""
    site = tmp_path / "site-packages"
    for place in ("mlir_air/bin/aircc", "mlir_aie/bin/aiecc", "llvm-aie/bin/clang++"):
        put(site / place)
    (site / "mlir_aie/include/aie_api").mkdir(parents=True)
    (site / "mlir_aie/include/aie_api/aie.hpp").touch()
    for name in ("mlir_air", "mlir_aie", "llvm-aie"):
        info = site / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(site))
    return site


def put(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)


def test_nothing_is_found_and_all_of_it_is_named(nothing):
    missing = tools.missing_compile_tools()
    assert [line.split(" is missing")[0] for line in missing] == [
        *["aircc", "aiecc", "aiebu-asm", "Peano", "aie_api/aie.hpp"]
    ]
    with pytest.raises(
        BackendError, match=r"cannot compile for the NPU. What[^\n]*\n  - aircc is missing: it comes"
    ):
        tools.find_tools()


def test_a_variable_with_a_missing_path_is_reported(nothing, monkeypatch):
    monkeypatch.setenv("PEANO_INSTALL_DIR", "/no/peano")
    *_, last = tools.missing_compile_tools()
    assert last == "PEANO_INSTALL_DIR='/no/peano' holds no bin/clang++ and is passed over"


def test_wheels_of_this_environment_count(wheels):
    assert tools.aircc() == wheels / "mlir_air/bin/aircc"
    assert tools.aiecc() == wheels / "mlir_aie/bin/aiecc"
    assert tools.peano_root() == wheels / "llvm-aie"
    assert tools.aie_api_include() == wheels / "mlir_aie/include"
    assert tools.missing_compile_tools() == [tools.FINDERS["aiebu-asm"][1]]


@pytest.mark.parametrize(
    ("name", "first"),
    [("air-opt", "wheel"), ("aircc", "wheel"), ("aie-opt", "PATH"), ("aie-translate", "PATH")],
)
def test_tools_of_stages(wheels, monkeypatch, tmp_path, name, first):
    """mlir-air's come from its wheel, then PATH; mlir-aie's the other way round, as aircc and aiecc do."""
    find, advice = tools.STAGE_FINDERS[name]
    wheel = wheels / ("mlir_aie" if "aie-" in name else "mlir_air") / "bin" / name
    wheel.unlink(missing_ok=True)
    assert find() is None
    assert advice.startswith(
        f"{name} is missing: it comes with {wheel.parent.parent.name.replace('_', '-')};"
    )
    put(wheel)
    assert find() == wheel
    put(tmp_path / "bin" / name)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find() == (wheel if first == "wheel" else tmp_path / "bin" / name)


def test_a_tool_that_may_not_be_run_is_not_there(wheels):
    (wheels / "mlir_air/bin/aircc").chmod(0o644)
    assert tools.aircc() is None


def test_the_wheels_aircc_goes_before_paths_as_upstream_has_it(wheels, monkeypatch, tmp_path):
    put(tmp_path / "bin/aircc")
    put(tmp_path / "bin/aiecc")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert tools.aircc() == wheels / "mlir_air/bin/aircc"
    assert tools.aiecc() == tmp_path / "bin/aiecc"


def test_peano_install_dir_goes_before_the_wheel(wheels, monkeypatch, tmp_path):
    put(tmp_path / "own/bin/clang++")
    monkeypatch.setenv("PEANO_INSTALL_DIR", str(tmp_path / "own"))
    assert tools.peano_root() == tmp_path / "own"
    monkeypatch.setenv("PEANO_INSTALL_DIR", str(tmp_path / "nowhere"))
    assert tools.peano_root() == wheels / "llvm-aie"


@pytest.mark.parametrize("by", ["XILINX_XRT", "package"])
def test_the_assembler_in_xrts_own_folder(nothing, monkeypatch, tmp_path, by):
    put(tmp_path / "xrt/bin/aiebu-asm")
    if by == "package":
        monkeypatch.setattr(tools, "XRT_FOLDERS", (str(tmp_path / "xrt"),))
    else:
        monkeypatch.setenv(by, str(tmp_path / "xrt"))
    assert tools.aiebu_asm() == tmp_path / "xrt/bin/aiebu-asm"


def test_include_folder_beside_aie_opt(nothing, monkeypatch, tmp_path):
    put(tmp_path / "install/bin/aie-opt")
    (tmp_path / "install/include/aie_api").mkdir(parents=True)
    (tmp_path / "install/include/aie_api/aie.hpp").touch()
    monkeypatch.setenv("PATH", str(tmp_path / "install/bin"))
    assert tools.aie_api_include() == (tmp_path / "install/include").resolve()


def test_folders_of_the_tools_come_first_on_path(npu_tools):
    found = tools.find_tools()
    assert found.search_path("/usr/bin") == f"{npu_tools.root}/bin{os.pathsep}/usr/bin"
    assert found.search_path("") == f"{npu_tools.root}/bin"
    assert found.clang == npu_tools.root / "peano/bin/clang++"
