"""The static form's program as a table: the inputs of `forward_export`, and who reads and writes what."""

from __future__ import annotations

import pytest

from aerie.kernel_builder.arguments import Role
from aerie.multi_launch_builder.builder import build_program, program_to_json, read_program
from aerie.multi_launch_builder.shapes import ModelShape, UnsupportedShapeError
from aerie.multi_launch_builder.static_step import StaticSizes, plan_static_step

SHAPE = ModelShape(128, 4, 2, 32, 192, 512, 1e-6, qk_norm=True)


def sizes(layers: int = 3, batch: int = 2, block: int = 4) -> StaticSizes:
    return StaticSizes(layers, batch, block, 64, SHAPE.n_kv_heads, SHAPE.head_dim)


def test_the_inputs_are_the_seeds() -> None:
    arguments = plan_static_step(SHAPE, sizes()).arguments
    inputs = {a.name: a.shape for a in arguments if a.role is Role.INPUT}
    assert inputs == {
        "embeddings": (8, 128),
        "rope_rows": (8, 32),
        "kv_cache": (3, 2, 2, 2, 64, 32),
        "attention_mask": (3, 2, 1, 4, 68),
        "insert_matrix": (3, 2, 1, 64, 4),
        "keep_mask": (3, 2, 1, 64, 1),
    }
    outputs = {a.name: a.shape for a in arguments if a.role is Role.OUTPUT}
    assert outputs == {**{f"logits_{i}": (8, 256) for i in range(8)}, "updated_cache": (3, 2, 2, 2, 64, 32)}


def test_every_layer_has_its_own_weights_and_place() -> None:
    plan = plan_static_step(SHAPE, sizes())
    for layer in range(3):
        steps = [step for step in plan.launches if step.label.startswith(f"layer_{layer}_")]
        assert [s.parameters["layer"] for s in steps if "layer" in s.parameters] == [layer, layer]
        weights = {name for step in steps for name in step.wiring.values() if name.endswith(f"_{layer}")}
        own = {a.name for a in plan.arguments if a.role is Role.WEIGHT and a.name.endswith(f"_{layer}")}
        assert own - {f"lm_head_{layer}"} <= weights
        assert len(own) == 12  # eleven of a layer, and one part of the LM head
    written = [step.wiring["out"] for step in plan.launches if step.label.endswith("ffn_add")]
    assert written == ["hidden_1", "hidden_2", "hidden_3"]
    assert plan.launches[-9].wiring["x"] == "hidden_3"
    assert len(plan.launches) == len({step.label for step in plan.launches}) == 3 * 18 + 9


def test_attention_comes_before_the_update_and_reads_what_came_in() -> None:
    kernels = [step.kernel for step in plan_static_step(SHAPE, sizes(1)).launches]
    assert kernels.index("block_attention") + 1 == kernels.index("cache_update")
    attention = next(s for s in plan_static_step(SHAPE, sizes(1)).launches if s.kernel == "block_attention")
    assert attention.wiring["kv_cache"] == "kv_cache"


@pytest.mark.parametrize(
    ("batch", "block", "rows"), [(1, 4, 8), (2, 4, 8), (3, 4, 16), (1, 32, 32), (8, 4, 32)]
)
def test_rows_are_those_that_there_are_products_for(batch: int, block: int, rows: int) -> None:
    assert sizes(1, batch, block).rows == rows


@pytest.mark.parametrize(
    ("batch", "block", "message"),
    [
        (
            9,
            4,
            "batch=9 blocks of 4 tokens are 36 rows, and the LM head has programs of at most 32; legal is a "
            "batch of at most 8",
        ),
        (1, 64, "batch=1 blocks of 64 tokens are 64 rows, and the LM head has programs of at most 32"),
    ],
)
def test_more_rows_are_refused(batch: int, block: int, message: str) -> None:
    with pytest.raises(UnsupportedShapeError) as error:
        plan_static_step(SHAPE, sizes(1, batch, block))
    assert str(error.value) == message


def test_a_program_that_was_written_is_read_again(tmp_path) -> None:
    import json

    program = build_program(plan_static_step(SHAPE, sizes(1, 1)))
    (tmp_path / "static_step.mlir").write_text(program.text)
    (tmp_path / "static_step.args.json").write_text(json.dumps(program_to_json(program)))
    found = read_program(tmp_path, "static_step")
    assert found == program or (found.arguments[:] == program.arguments[:] and found.text == program.text)
    assert program_to_json(found) == program_to_json(program)
