"""The demo model depends on all of its parts: each fault here moves its answers far more than rounding does.

Everything runs in Hugging Face bf16, fed with questions and their right answers; the distance is the mean KL
divergence of the next-token distributions in nats. The same model in f32 shows what rounding alone does.
"""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForCausalLM

from aerie.llama32_1b.demo import CHECKPOINT
from aerie.llama32_1b.demo.corpus import question_list
from aerie.llama32_1b.demo.evaluate import DemoReference

_ASKED = random.Random(21).sample(question_list(), 40)


def _load(dtype: Any = torch.bfloat16, **changes: Any) -> Any:
    config = AutoConfig.from_pretrained(CHECKPOINT)
    for name, value in changes.items():
        setattr(config, name, value)
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, config=config, dtype=dtype).eval()


class Texts(NamedTuple):
    """Texts as rows, filled up with zeros at the end, which no token before sees; and what is no filling."""

    ids: torch.Tensor
    is_text: torch.Tensor


@pytest.fixture(scope="module")
def texts() -> Texts:
    reference = DemoReference(CHECKPOINT)
    prompts = [reference.prompt_ids(exchange.question) for exchange in _ASKED]
    answers = [reference.tokenizer(e.answer, add_special_tokens=False)["input_ids"] for e in _ASKED]
    rows = [torch.tensor([*prompt, *answer]) for prompt, answer in zip(prompts, answers, strict=True)]
    filled = [pad_sequence(each, batch_first=True) for each in (rows, [*map(torch.ones_like, rows)])]
    return Texts(filled[0], filled[1].bool())


def _log_probabilities(model: Any, texts: Texts) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=texts.ids).logits[texts.is_text].float().log_softmax(-1)


def _divergence(wanted: torch.Tensor, got: torch.Tensor) -> float:
    return (wanted.exp() * (wanted - got)).sum(-1).mean().item()


@pytest.fixture(scope="module")
def wanted(texts: Texts) -> torch.Tensor:
    return _log_probabilities(_load(), texts)


@pytest.fixture(scope="module")
def rounding(texts: Texts, wanted: torch.Tensor) -> float:
    """What rounding to bf16 alone does: the divergence of the same weights computed in f32."""
    return _divergence(wanted, _log_probabilities(_load(torch.float32), texts))


def _unscaled_rope() -> Any:
    return _load(rope_parameters={"rope_type": "default", "rope_theta": 500000.0})


def _epsilon() -> Any:
    return _load(rms_norm_eps=1e-6)


def _swap_heads(layer: int) -> Callable[[], Any]:
    def fault() -> Any:
        model = _load()
        weight = model.model.layers[layer].self_attn.q_proj.weight.data
        weight[:128] = weight[:128].roll(64, dims=0)
        return model

    return fault


def _interleaved_rope() -> Any:
    model = _load()
    order = torch.arange(64).view(2, 32).T.flatten()
    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            heads = projection.weight.data.view(-1, 64, 256)
            projection.weight.data = heads[:, order].reshape(-1, 256)
    return model


def _other_layers_weights() -> Any:
    model = _load()
    model.model.layers[3].load_state_dict(model.model.layers[2].state_dict())
    return model


def _swap_k_and_v() -> Any:
    model = _load()
    attention = model.model.layers[2].self_attn
    attention.k_proj, attention.v_proj = attention.v_proj, attention.k_proj
    return model


def _silenced(layer: int, projection: str) -> Callable[[], Any]:
    """What ends in `projection` adds nothing to the residual stream."""

    def fault() -> Any:
        model = _load()
        model.model.layers[layer].get_submodule(projection).weight.data.zero_()
        return model

    return fault


_FAULTS: dict[str, Callable[[], Any]] = {
    "RoPE without llama3 scaling": _unscaled_rope,
    "RMSNorm epsilon 1e-6": _epsilon,
    "interleaved RoPE": _interleaved_rope,
    "layer 3 with the weights of layer 2": _other_layers_weights,
    "K and V swapped in layer 2": _swap_k_and_v,
    **{f"heads 0 and 1 swapped in layer {layer}": _swap_heads(layer) for layer in range(6)},
    **{f"no FFN in layer {layer}": _silenced(layer, "mlp.down_proj") for layer in range(6)},
    **{f"no attention in layer {layer}": _silenced(layer, "self_attn.o_proj") for layer in range(6)},
}


def test_rounding_hardly_moves_the_answers(rounding: float) -> None:
    print(f"rounding: mean KL {rounding:.2e}")
    assert rounding < 2e-3


@pytest.mark.parametrize("fault", _FAULTS.values(), ids=_FAULTS.keys())
def test_a_fault_moves_the_answers_far_more_than_rounding(
    fault: Callable[[], Any], texts: Texts, wanted: torch.Tensor, rounding: float
) -> None:
    divergence = _divergence(wanted, _log_probabilities(fault(), texts))
    print(f"mean KL {divergence:.2e}, {divergence / rounding:.0f} times rounding")
    assert divergence > 10 * rounding
