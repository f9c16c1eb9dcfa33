"""One tensor of the several that a quantised matrix has in the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from aerie.engine.errors import WeightsError
from aerie.engine.quantised_files import awq, bitsandbytes, compressed_tensors, gptq, mlx
from aerie.engine.quantised_files.raw import FETCH
from aerie.engine.quantised_files.settings import Settings
from aerie.engine.tensors import Tensor

MakeTensor = Callable[[str, Mapping[str, Tensor], Settings], Tensor]


class Method(NamedTuple):
    """How a tool's tensors are called. suffixes: of the one that a matrix is known by. weight: what follows
    the module's name there. companions: suffixes of the others, after the module's name or the weight's."""

    suffixes: tuple[str, ...]
    weight: str
    companions: tuple[str, ...]
    make: MakeTensor


METHODS = {
    "awq": Method((awq.SUFFIX,), ".weight", awq.COMPANIONS, awq.tensor_of),
    "gptq": Method((gptq.SUFFIX,), ".weight", gptq.COMPANIONS, gptq.tensor_of),
    "compressed-tensors": Method(
        (compressed_tensors.SUFFIX,), ".weight", compressed_tensors.COMPANIONS, compressed_tensors.tensor_of
    ),
    "mlx": Method((mlx.SUFFIX,), ".weight", mlx.COMPANIONS, mlx.tensor_of),
    "bitsandbytes": Method(
        (".weight.absmax", ".SCB"),
        ".weight",
        (*(f".weight{suffix}" for suffix in bitsandbytes.FOUR_BITS), *bitsandbytes.EIGHT_BITS, ".weight"),
        bitsandbytes.tensor_of,
    ),
}


def assembled(tensors: Mapping[str, Tensor], settings: Settings) -> dict[str, Tensor]:
    """The tensors of a checkpoint, with one `MODULE.weight` in place of those of a quantised matrix. Raises
    WeightsError."""
    method, made, used = METHODS[settings.method], dict[str, Tensor](), set[str]()
    for name in tensors:
        suffix = next((suffix for suffix in method.suffixes if name.endswith(suffix)), None)
        if suffix is None:
            continue
        module = name.removesuffix(suffix)
        made[module + method.weight] = method.make(name, tensors, settings)
        used |= {name, *(module + companion for companion in method.companions)}
    if not made:
        raise WeightsError(
            f"{next(iter(tensors.values())).path.parent if tensors else 'the checkpoint'}: config.json says "
            f"that weights are quantised with {settings.method}, and no tensor is called "
            f"*{method.suffixes[0]}: weights and config.json do not belong together"
        )
    left = {name: tensor for name, tensor in tensors.items() if name not in used}
    twice = next((name for name in made if name in left), None)
    if twice is not None:
        raise WeightsError(
            f"tensor {twice} is in {left[twice].path}, and so are codes of it in {made[twice].path}: which "
            f"of them the model has is not known; {FETCH}"
        )
    return {**left, **made}
