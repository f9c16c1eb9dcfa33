"""Every kernel on the virtual NPU against its numpy reference: its own cases and random legal shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernel_builder.kernels import registry
from kernel_builder.testing import complaints, random_arrays, run

CASES = [(name, case) for name, spec in registry().items() for case in range(len(spec.cases))]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_case(name: str, case: int) -> None:
    spec = registry()[name]
    assert complaints(spec, spec.cases[case]) == []


def check_random_shape(name: str, seed: int) -> None:
    spec = registry()[name]
    parameters = spec.random_case(np.random.default_rng(seed))
    assert complaints(spec, parameters, seed) == [], parameters


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", list(registry()))
def test_random_shape(name: str, seed: int) -> None:
    check_random_shape(name, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 14))
@pytest.mark.parametrize("name", list(registry()))
def test_more_random_shapes(name: str, seed: int) -> None:
    check_random_shape(name, seed)


@pytest.mark.parametrize(
    ("name", "short", "long"),
    [
        ("gemm", {"m": 64, "k": 256, "n": 128}, {"m": 128, "k": 256, "n": 128}),
        ("rms_norm", {"rows": 16, "cols": 256, "eps": 1e-5}, {"rows": 48, "cols": 256, "eps": 1e-5}),
        ("eltwise_add", {"rows": 16, "cols": 256}, {"rows": 48, "cols": 256}),
    ],
)
def test_rows_do_not_depend_on_how_many_there_are(
    name: str, short: dict[str, Any], long: dict[str, Any]
) -> None:
    """The first rows of a longer call are bit for bit those of a shorter one: padding a prompt is exact."""
    spec = registry()[name]
    arrays = random_arrays(spec, long, np.random.default_rng(5))
    rows = short.get("m") or short["rows"]
    full = spec.build(**long).arguments
    cut = {
        n: a[:rows] if full[n].shape[0] == (long.get("m") or long["rows"]) else a for n, a in arrays.items()
    }
    (result,) = run(spec.build(**long), arrays).values()
    (expected,) = run(spec.build(**short), cut).values()
    assert result[:rows].tobytes() == expected.tobytes()


def test_rms_norm_is_that_of_hugging_face() -> None:
    """The reference against transformers' own LlamaRMSNorm in bf16, and the vector form against a row."""
    torch = pytest.importorskip("torch")
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    spec = registry()["rms_norm"]
    parameters = {"rows": 16, "cols": 256, "eps": 1e-5}
    arrays = random_arrays(spec, parameters, np.random.default_rng(3))
    norm = LlamaRMSNorm(256, eps=1e-5).to(torch.bfloat16)
    with torch.no_grad():
        norm.weight.copy_(torch.from_numpy(arrays["weight"].astype(np.float32)))
        theirs = norm(torch.from_numpy(arrays["x"].astype(np.float32)).to(torch.bfloat16)).float().numpy()
    ours = run(spec.build(**parameters), arrays)["out"].astype(np.float32)
    assert np.mean(ours != theirs) < 0.01
    np.testing.assert_allclose(ours, theirs, rtol=spec.tolerance.rtol)
    row = run(spec.build(None, 256), {"x": arrays["x"][0], "weight": arrays["weight"]})["out"]
    assert row.tobytes() == run(spec.build(**parameters), arrays)["out"][0].tobytes()


def test_an_array_of_the_wrong_shape_is_refused() -> None:
    kernel = registry()["eltwise_add"].build(8, 16)
    wrong = np.zeros((4, 16))
    with pytest.raises(
        ValueError, match=r"eltwise_add wants a \(8x16 bf16\), the array given has shape \(4, 16\)"
    ):
        run(kernel, {"a": wrong, "b": wrong})
