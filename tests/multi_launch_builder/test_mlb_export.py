"""`aerie programs mlir`: the files it writes, and what it says when it cannot."""

from __future__ import annotations

import json

import pytest

from aerie.air_dialect import parse
from aerie.kernel_builder.kernels import all_kernels
from aerie.multi_launch_builder.__main__ import main
from aerie.multi_launch_builder.programs import PLANS

SMALL = ["--seq-len", "64", "--emb-dim", "64", "--hidden-dim", "64", "--n-heads", "2", "--n-kv-heads", "1"]
SMALL += ["--head-dim", "32", "--vocab-size", "100"]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mlir")
    assert main(["mlir", str(folder), *SMALL]) == 0
    return folder


def test_every_program_is_there_with_its_arguments(out):
    for name in PLANS:
        parse((out / "programs" / f"{name}.mlir").read_text())
        table = json.loads((out / "programs" / f"{name}.args.json").read_text())
        assert table["name"] == name
        assert [a["slot"] for a in table["arguments"]] == list(range(len(table["arguments"])))
    assert table["arguments"][1] == {
        "slot": 1,
        "name": "lm_head_0",
        "shape": [256, 64],
        "dtype": "bf16",
        "role": "weight",
    }


def test_programs_of_variants_are_written_too(tmp_path):
    assert main(["mlir", str(tmp_path), *SMALL, "--variants", "AR-8xCL-512", "AR-8xCL-1024"]) == 0
    names = {path.stem for path in (tmp_path / "programs").glob("*_ar8*.mlir")}
    attentions = {"cached_attn_ar8_cl512", "cached_attn_ar8_cl1024"}
    assert names == {"rms_gemms_rope_ar8", "o_ffn_ar8", "lm_head_ar8", *attentions}
    table = json.loads((tmp_path / "programs" / "cached_attn_ar8_cl1024.args.json").read_text())
    assert (table["kind"], table["rows"], table["context"]) == ("cached_attn", 8, 1024)
    assert table["arguments"][3]["shape"] == [8, 32]


def test_how_it_is_built_is_there_with_the_reasons(out):
    table = json.loads((out / "programs" / "flash_attn.args.json").read_text())
    assert table["objects"][0]["optimize"] == "O2"
    assert table["options"][0]["flag"] == "--stack-size=2048"
    assert all(option["reason"] and option["source"] for option in table["options"])


def test_every_kernel_is_there_at_every_shape(out):
    names = {path.stem for path in (out / "kernels").glob("*.mlir")}
    assert set(all_kernels()) <= names
    assert "rope-rms_gemms_rope-k_rope" in names
    for path in (out / "kernels").glob("*.mlir"):
        parse(path.read_text(), str(path))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--emb-dim", "100"], "error: emb_dim=100 is not a positive multiple of 64"),
        (["--seq-len", "7"], "error: seq_len=7 is not a positive multiple of 64"),
        (
            ["--variants", "AR-9xCL-512"],
            "error: AR-9xCL-512: there are no programs for rows (AR)=9, only for 1, 8",
        ),
        (
            ["--variants", "8"],
            "error: '8' is no variant: tokens of a call and positions of the cache; write AR-8xCL",
        ),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path, capsys, arguments, words):
    assert main(["mlir", str(tmp_path / "out"), *arguments]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith(words)
    assert complaint.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_family_s_launches_are_asked_for_by_flags(tmp_path):
    factors = ["--attention-scale", "0.3", "--residual-scale", "0.22", "--rotary-dim", "32"]
    assert main(["mlir", str(tmp_path), *SMALL, "--qkv-bias", "--qk-norm", *factors]) == 0
    table = json.loads((tmp_path / "programs" / "rms_gemv_rope.args.json").read_text())
    assert {"bq", "bk", "bv", "q_norm", "k_norm"} <= {a["name"] for a in table["arguments"]}
    assert {"q_bias", "k_norm"} <= set(table["launches"])
    assert {a["name"]: a["shape"] for a in table["arguments"]}["rope_row"] == [32]
    assert "l1_scale_2" in (tmp_path / "programs" / "o_gemv_ffn.mlir").read_text()
    assert "ATTN_SCALE_BITS=1050253722" in (tmp_path / "programs" / "flash_attn.mlir").read_text()


def test_a_folder_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["mlir", str(tmp_path / "file"), *SMALL]) == 2
    wanted = f"error: cannot write to {tmp_path / 'file'}: "
    error = capsys.readouterr().err
    assert error.startswith(wanted)
    assert error.endswith("; name another folder\n")
    assert "Errno" not in error
