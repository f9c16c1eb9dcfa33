"""What config.json says of quantised weights: which tool, how many bits, how large the groups.

Whatever is not read is refused here by its name, before any tensor is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from aerie.engine.config_reader import ConfigReader, short
from aerie.engine.errors import ConfigError

ENTRIES = ("quantization_config", "quantization", "compression_config")
"""Where transformers, MLX and compressed-tensors say how the weights were quantised."""
BITS = (4, 8)
MAX_GROUP = 1 << 24
MAX_SHOWN = 60
"""Characters of a name that a message quotes."""
READ = (
    "AWQ (gemm), GPTQ, compressed-tensors (pack-quantized), MLX (affine) and bitsandbytes are read: fetch "
    "one of these, the unquantised checkpoint, or a GGUF file of the same model"
)


@dataclass(frozen=True)
class Settings:
    """How the matrices of a checkpoint are quantised.

    method: a name of METHODS. group_size: columns that share a scale, 0 for all of a row. is_v1: whether
    GPTQ's zeros are stored less one. is_ordered: whether its groups may lie anywhere. modules: bits and group
    size of those that differ, by MLX's names.
    """

    method: str
    bits: int = 4
    group_size: int = 0
    is_v1: bool = False
    is_ordered: bool = False
    modules: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def group_of(self, columns: int) -> int:
        """Columns that share a scale in a row of so many."""
        return min(self.group_size or columns, columns)

    def of_module(self, name: str) -> tuple[int, int]:
        """Bits and group size of a module."""
        return self.modules.get(name, (self.bits, self.group_size))


def read_settings(config: ConfigReader) -> Settings | None:
    """How the weights of a config.json are quantised; None if they are not. Raises ConfigError."""
    name = next((name for name in ENTRIES if config.get(name) is not None), None)
    if name is None:
        return None
    entry = _Entry(config, name)
    return METHODS[entry.method](entry) if entry.method in METHODS else entry.refuse("which is not read")


class _Entry:
    """The entry of a config.json that describes quantised weights."""

    def __init__(self, config: ConfigReader, name: str) -> None:
        self._reader, self.name = config.child(name), name
        self.method = self._method()

    def _method(self) -> str:
        given = self._reader.get("quant_method")
        if given is not None:
            return str(given)
        if self.name == "compression_config" or self._reader.get("config_groups") is not None:
            return "compressed-tensors"
        return "mlx" if self._reader.get("group_size") is not None else "an unknown tool"

    def get(self, name: str, default: Any = None) -> Any:
        return self._reader.get(name, default)

    def items(self) -> Mapping[str, Any]:
        return self._reader.entries

    def refuse(self, why: str) -> NoReturn:
        raise ConfigError(
            f"{self._reader.path}: the checkpoint is quantised with {self.method[:MAX_SHOWN]} "
            f"({self.name}), {why}; {READ}"
        )

    def expect(self, name: str, value: Any, *values: Any) -> None:
        """Refuse an entry that is there with another value than these. Text is compared in lower case."""
        given = self.get(name)
        given = given.lower() if isinstance(given, str) else given
        if given is not None and not any(
            given == each and type(given) is type(each) for each in (value, *values)
        ):
            self.refuse(f"and {name} is {short(given)}, where {short(value)} is read")

    def bits(self, name: str = "bits", default: int | None = None) -> int:
        return self.number(name, self.get(name, default), BITS)

    def group_size(self, value: Any) -> int:
        """Columns; -1 and null mean all of a row, which is 0 here."""
        return 0 if value in (None, -1) else self.number("group_size", value, range(1, MAX_GROUP))

    def number(self, name: str, value: Any, allowed: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value not in allowed:
            shown = f"from 1 to {MAX_GROUP}" if isinstance(allowed, range) else " or ".join(map(str, allowed))
            self.refuse(f"and {name} is {short(value)}, where {shown} is read")
        return value


def _awq(entry: _Entry) -> Settings:
    entry.expect("version", "gemm")
    entry.expect("zero_point", True)
    if entry.bits(default=entry.get("w_bit")) != 4:
        entry.refuse("and bits is 8, where 4 is read")
    return Settings("awq", 4, entry.group_size(entry.get("group_size", entry.get("q_group_size", 128))))


def _gptq(entry: _Entry) -> Settings:
    entry.expect("checkpoint_format", "gptq", "gptq_v2")
    entry.expect("pack_dtype", "int32")
    overrides = entry.get("dynamic", {})
    if not isinstance(overrides, dict) or any(not str(name).startswith("-:") for name in overrides):
        entry.refuse(f"and dynamic is {short(overrides)}, where modules that are left out (-:) are read")
    ordered = entry.get("desc_act", False)
    if not isinstance(ordered, bool):
        entry.refuse(f"and desc_act is {short(ordered)}, where true or false is read")
    is_v1 = str(entry.get("checkpoint_format", "gptq")).lower() == "gptq"
    size = entry.group_size(entry.get("group_size", 128))
    return Settings("gptq", entry.bits(), size, is_v1=is_v1, is_ordered=ordered)


def _compressed_tensors(entry: _Entry) -> Settings:
    entry.expect("format", "pack-quantized")
    entry.expect("kv_cache_scheme", {})
    groups = entry.get("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1:
        entry.refuse(f"and config_groups is {short(groups)}, where one group is read")
    (group,) = groups.values()
    for name in ("input_activations", "output_activations"):
        if isinstance(group, dict) and group.get(name) is not None:
            entry.refuse(f"and {name} is {short(group[name])}, where weights alone are quantised")
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict) or weights.get("type", "int") != "int":
        entry.refuse(f"and its weights are {short(weights)}, where those of type int are read")
    if weights.get("strategy", "group") not in ("group", "channel"):
        entry.refuse(f"and strategy is {short(weights['strategy'])}, where group or channel is read")
    bits = entry.number("num_bits", weights.get("num_bits"), BITS)
    return Settings("compressed-tensors", bits, entry.group_size(weights.get("group_size")))


def _mlx(entry: _Entry) -> Settings:
    entry.expect("mode", "affine")
    settings = entry.bits(), entry.group_size(entry.get("group_size", 64))
    modules = {
        name: (
            entry.number(f"bits of {name}", value.get("bits", settings[0]), BITS),
            entry.group_size(value.get("group_size", settings[1])),
        )
        for name, value in entry.items().items()
        if isinstance(value, dict)
    }
    return Settings("mlx", *settings, modules=modules)


def _bitsandbytes(entry: _Entry) -> Settings:
    entry.expect("bnb_4bit_quant_storage", "uint8")
    return Settings("bitsandbytes")


METHODS: dict[str, Callable[[_Entry], Settings]] = {
    "awq": _awq,
    "gptq": _gptq,
    "compressed-tensors": _compressed_tensors,
    "mlx": _mlx,
    "bitsandbytes": _bitsandbytes,
}
"""Those that are read, by what config.json calls them."""
