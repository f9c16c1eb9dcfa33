"""Which model shapes and prompt lengths the kernels accept, and the nearest ones that they do.

Each limit comes from the kernel that has it, for the device that it is built for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aerie.device.npu2 import NPU2, DeviceModel
from aerie.kernel_builder import delta_rows, gemm_tiles
from aerie.kernel_builder.kernels import (
    bias_add,
    flash_attention,
    gated_delta_rule,
    gemv,
    rms_norm,
    rope,
    short_conv,
)
from aerie.multi_launch_builder.shapes import SEQ_LEN_STEP, ModelShape, UnsupportedShapeError


@dataclass(frozen=True)
class SizeRule:
    """A size must be a multiple of `step` and at most `max`, for the reasons `why_step` and `why_max`."""

    name: str
    value: Callable[[ModelShape], int]
    step: int
    why_step: str
    max: int
    why_max: str

    def check(self, shape: ModelShape) -> None:
        """Raise UnsupportedShapeError with the nearest legal value."""
        value = self.value(shape)
        _check_multiple(self.name, value, self.step, self.why_step)
        if value > self.max:
            raise UnsupportedShapeError(
                f"{self.name}={value} is more than {self.max} ({self.why_max})",
                f"the nearest legal value is {self.max}",
            )


def rules(device: DeviceModel = NPU2) -> tuple[SizeRule, ...]:
    """The limits of single sizes on a device."""
    row = (gemv.LANES, f"a GEMV reads its row {gemv.LANES} elements at a time")
    head = (rope.HALF_LANES, f"RoPE turns {rope.HALF_LANES // 2} pairs of a head at a time")
    of_core = f"a core holds all of x, and pieces of the weight, in {device.l1_budget // 1024} KiB of L1"
    product = (_widest_product(device), of_core)
    norm = (_floor(rms_norm.max_row_length(device), gemv.LANES), "RMSNorm holds a row three times in L1")
    attention = (
        _floor(flash_attention.max_head_dim(device), rope.HALF_LANES),
        "attention holds K and V tiles of a head in L1",
    )
    return (
        SizeRule("head_dim", lambda s: s.head_dim, *head, *attention),
        SizeRule("rotary_dim", lambda s: s.rope_width, *head, *attention),
        SizeRule("emb_dim", lambda s: s.emb_dim, *row, *norm),
        SizeRule("hidden_dim", lambda s: s.hidden_dim, *row, *product),
        SizeRule("n_heads * head_dim", lambda s: s.q_dim, *row, *product),
    )


def _widest_product(device: DeviceModel) -> int:
    """The widest row that a GEMV reads and a GEMM writes in one launch."""
    widest = _floor(gemv.max_row_length(device), gemv.LANES)
    return next(n for n in range(widest, 0, -gemv.LANES) if gemm_tiles.supports_columns(n, device))


def _floor(size: int, step: int) -> int:
    return size // step * step


def check_shape(shape: ModelShape, device: DeviceModel = NPU2) -> None:
    """Raise UnsupportedShapeError, naming the nearest legal value, if no kernel is built for the shape."""
    for name in ("emb_dim", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "vocab_size"):
        if getattr(shape, name) < 1:
            raise UnsupportedShapeError(
                f"{name}={getattr(shape, name)} is not positive; a model has at least 1"
            )
    if shape.n_heads % shape.n_kv_heads:
        divisors = [count for count in range(1, shape.n_heads + 1) if shape.n_heads % count == 0]
        nearest = min(divisors, key=lambda count: abs(count - shape.n_kv_heads))
        raise UnsupportedShapeError(
            f"n_kv_heads={shape.n_kv_heads} does not divide n_heads={shape.n_heads}, so the query heads "
            f"cannot share them evenly",
            f"the nearest legal n_kv_heads is {nearest}",
        )
    for rule in rules(device):
        rule.check(shape)
    _check_launch("hidden_dim", shape.hidden_dim, gemv.LANES, gemm_tiles.supports_columns, device)
    _check_launch("n_heads * head_dim", shape.q_dim, gemv.LANES, gemm_tiles.supports_columns, device)
    _check_launch("n_kv_heads * head_dim", shape.kv_dim, shape.head_dim, gemm_tiles.supports_columns, device)
    if shape.qk_norm and shape.qk_norm_spans_heads:
        _check_norm_of_heads(shape, device)
    if shape.qkv_bias:
        _check_bias(shape, device)
    if shape.has_delta:
        _check_delta(shape, device)
    elif shape.conv_taps:
        _check_conv(shape, device)
    if not shape.rms_norm_eps > 0:
        raise UnsupportedShapeError(
            f"rms_norm_eps={shape.rms_norm_eps} is not positive, so a row of zeros would divide by zero",
            "Llama's is 1e-5",
        )


def _check_norm_of_heads(shape: ModelShape, device: DeviceModel) -> None:
    max_columns = _floor(rms_norm.max_row_length(device), shape.head_dim)
    width = (shape.all_heads or shape.n_heads) * shape.head_dim
    if width > max_columns:
        raise UnsupportedShapeError(
            f"n_heads * head_dim={width} is more than {max_columns} (the norm of all query heads "
            "holds a row three times in L1)",
            f"the nearest legal value is {max_columns}",
        )


def _check_bias(shape: ModelShape, device: DeviceModel) -> None:
    for name, width in (("n_heads", shape.q_dim), ("n_kv_heads", shape.kv_dim)):
        share, max_columns = bias_add.core_columns(width, device), bias_add.max_core_columns(device)
        if share > max_columns:
            raise UnsupportedShapeError(
                f"{name} * head_dim={width} divides into shares of {share} for the cores that add its bias, "
                f"and a core holds {max_columns}",
                f"legal is what {device.columns} cores share, up to {max_columns * device.columns}",
            )


def _check_conv(shape: ModelShape, device: DeviceModel) -> None:
    if shape.conv_taps < 0:
        raise UnsupportedShapeError(
            f"conv_taps={shape.conv_taps} is negative; a convolution reads its own row at least",
            "0 stands for a model without convolutions",
        )
    width = (shape.all_heads or shape.n_heads) * shape.head_dim
    if width != shape.emb_dim:
        raise UnsupportedShapeError(
            f"n_heads * head_dim={width} is not emb_dim={shape.emb_dim}, and layers with a short "
            "convolution share the output projection's program with those with attention",
            f"the nearest legal value is {shape.emb_dim}",
        )
    share = short_conv.core_columns(shape.q_dim, device)
    max_columns = short_conv.max_core_columns(shape.conv_taps, device)
    if share > max_columns:
        raise UnsupportedShapeError(
            f"emb_dim={shape.q_dim} divides into shares of {share} for the cores of a convolution of "
            f"{shape.conv_taps} taps, and a core holds {max_columns}",
            f"legal is what {device.columns} cores share, up to {max_columns * device.columns}",
        )


def _check_delta(shape: ModelShape, device: DeviceModel) -> None:
    """The sizes of linear attention."""
    lanes = "a core takes 16 elements at a time"
    _check_multiple("delta_key_dim", shape.delta_key_dim, delta_rows.LANES, lanes)
    norm = "a norm of heads takes whole vectors of 512 bits"
    _check_multiple("delta_value_dim", shape.delta_value_dim, 2 * rms_norm.LANES, norm)
    if shape.delta_value_heads % shape.delta_key_heads:
        raise UnsupportedShapeError(
            f"delta_key_heads={shape.delta_key_heads} does not divide delta_value_heads="
            f"{shape.delta_value_heads}, so the value heads cannot share them evenly"
        )
    if shape.delta_width != shape.q_dim:
        raise UnsupportedShapeError(
            f"delta_value_heads * delta_value_dim={shape.delta_width} is not n_heads * head_dim="
            f"{shape.q_dim}, and layers with linear attention share the output projection's program with "
            "those with attention",
            f"the nearest legal value is {shape.q_dim}",
        )
    most = gated_delta_rule.l1_bytes_of_page(shape.delta_key_dim, shape.delta_value_dim)
    if most > device.l1_budget:
        raise UnsupportedShapeError(
            f"delta_key_dim={shape.delta_key_dim} and delta_value_dim={shape.delta_value_dim} take {most} "
            f"bytes of a core's {device.l1_budget} of L1",
            "the published models have 128 and 128",
        )
    share = short_conv.core_columns(shape.delta_mixed_width, device)
    max_columns = short_conv.max_core_columns(shape.conv_taps, device)
    if share > max_columns:
        raise UnsupportedShapeError(
            f"queries, keys and values of linear attention are {shape.delta_mixed_width} wide, which leaves "
            f"{share} for each core of a convolution of {shape.conv_taps} taps, and a core holds "
            f"{max_columns}",
            f"legal is what {device.columns} cores share, up to {max_columns * device.columns}",
        )


def check_seq_len(seq_len: int, device: DeviceModel = NPU2) -> None:
    """Raise UnsupportedShapeError, naming the nearest legal length, if no program is built for the length."""
    reason = f"flash_attn takes K and V in tiles of {SEQ_LEN_STEP} positions"
    _check_multiple("seq_len", seq_len, SEQ_LEN_STEP, reason)
    _check_launch("seq_len", seq_len, SEQ_LEN_STEP, gemm_tiles.supports_rows, device)


def _check_launch(
    name: str, value: int, step: int, serves: Callable[[int, DeviceModel], bool], device: DeviceModel
) -> None:
    if not serves(value, device):
        raise UnsupportedShapeError(
            f"{name}={value} does not divide into tiles so that a GEMM is one launch of at most "
            f"{device.repeat_limit} blocks in each direction",
            f"the nearest legal value is {gemm_tiles.nearest_supported(value, step, serves, device)}",
        )


def _check_multiple(name: str, value: int, step: int, reason: str) -> None:
    if value < 1 or value % step:
        nearest = max(step, round(value / step) * step)
        raise UnsupportedShapeError(
            f"{name}={value} is not a positive multiple of {step} ({reason})",
            f"the nearest legal value is {nearest}",
        )
