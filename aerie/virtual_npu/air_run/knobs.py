"""The environment variables of `aerie air-run`: default, meaning, and allowed values."""

from __future__ import annotations

from aerie.common.knobs import Knob

CHECKOUT = Knob(
    "AERIE_MLIR_AIR",
    "",
    "the checkout of mlir-air whose Python programs `aerie air-run` runs; empty: the one around the script",
)
KERNELS = Knob(
    "AERIE_MLIR_AIE",
    "",
    "a checkout of mlir-aie, for programs of mlir-air that compile its kernels; empty: none",
)
CHECKS = Knob(
    "AERIE_AIR_CHECKS",
    "1",
    "1: programs that `aerie air-run` builds are watched in every access, transfer and dependency; 0: they "
    "are not",
    "0 or 1",
    ("0", "1").__contains__,
)
