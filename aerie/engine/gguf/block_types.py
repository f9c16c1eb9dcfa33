"""The types of a tensor's values in GGUF files: how many values a block has, and how many bytes.

Numbers and sizes are those of ggml-common.h; the values of a block are for gguf.quants to compute.
"""

from __future__ import annotations

from typing import NamedTuple

QUANTISATION_VERSION = 2
"""Of these layouts (ggml.h, GGML_QNT_VERSION); a file names its own in `general.quantization_version`."""


class BlockType(NamedTuple):
    """A block of `values` values of a row takes `size` bytes. number: what a file calls it. scales_at: the
    bytes of it where scales and minima in float16 begin."""

    name: str
    number: int
    values: int
    size: int
    scales_at: tuple[int, ...] = ()


READ = {
    number: BlockType(name, number, values, size, tuple(scales_at))
    for name, number, values, size, *scales_at in (
        ("F32", 0, 1, 4),
        ("F16", 1, 1, 2),
        ("Q4_0", 2, 32, 18, 0),
        ("Q4_1", 3, 32, 20, 0, 2),
        ("Q5_0", 6, 32, 22, 0),
        ("Q5_1", 7, 32, 24, 0, 2),
        ("Q8_0", 8, 32, 34, 0),
        ("Q2_K", 10, 256, 84, 80, 82),
        ("Q3_K", 11, 256, 110, 108),
        ("Q4_K", 12, 256, 144, 0, 2),
        ("Q5_K", 13, 256, 176, 0, 2),
        ("Q6_K", 14, 256, 210, 208),
        ("IQ4_NL", 20, 32, 18, 0),
        ("IQ4_XS", 23, 256, 136, 0),
        ("BF16", 30, 1, 2),
        ("MXFP4", 39, 32, 17),
    )
}
"""The types that are read, by their numbers."""

NAMES = tuple(sorted(kind.name for kind in READ.values()))

OTHERS = {
    **{4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S"},
    **{21: "IQ3_S", 22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M"},
    **{31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 34: "TQ1_0", 35: "TQ2_0", 36: "IQ4_NL_4_4"},
    **{37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 40: "NVFP4", 41: "Q1_0", 42: "Q2_0"},
}
"""Names of those that are not, for messages."""
