"""What each decode path can do: one table, from which errors are made, and docs/how-to/generate.md.

A decode path is how the tokens of an answer are made, by which programs. A model is loaded in one; drafts and
blocks are of `rows` wherever they are asked for, as batches are where there are variants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aerie.common.errors import UserError
from aerie.engine.variant_set import GUIDE, ROWS, VariantSet

SIX_PROGRAMS = "seq_len"
"""The path `guide` by the six programs of one prompt length."""
YES = ""
NO_PAST = "they read a prompt from its first token on, and know of no past"
HOST_ATTENTION = "its attention is the host's, a token at a time"
FEATURES: Mapping[str, str] = {
    "answers": "answers of conversations and batches",
    "shift": "context_end shift",
    "sink": "context_end sink",
    "fallback": "a fallback",
    "kept": "a sequence that is kept, saved, and gone on from",
    "prefixes": "prompts that begin alike are read once",
    "forward": "infer_batch, forward_batch, log_likelihoods",
    "chunks": "chunks",
    "drafts": "drafts",
    "blocks": "block diffusion",
    "devices": "several devices that share a model",
}


@dataclass(frozen=True)
class DecodePath:
    """A decode path. cannot: why not, by feature; what is not in it can be had."""

    name: str
    description: str
    unsupported: Mapping[str, str]

    def reason_against(self, feature: str) -> str:
        """Why this cannot be had; empty where it can."""
        return self.unsupported.get(feature, YES)


DECODE_PATHS: Mapping[str, DecodePath] = {
    ROWS: DecodePath(ROWS, "blocks of rows on the device, for prompts and for tokens", {}),
    GUIDE: DecodePath(
        GUIDE,
        "prompts in blocks of rows; tokens by GEMVs, with attention on the host",
        {"drafts": HOST_ATTENTION, "blocks": HOST_ATTENTION, "devices": HOST_ATTENTION},
    ),
    SIX_PROGRAMS: DecodePath(
        SIX_PROGRAMS,
        "the six programs: prompts whole, of one compiled length; tokens by GEMVs, attention on the host",
        {
            "sink": "they show a token all before it",
            "kept": NO_PAST,
            "prefixes": NO_PAST,
            "forward": NO_PAST,
            "chunks": NO_PAST,
            "drafts": NO_PAST,
            "blocks": "a position sees none after it",
            "devices": HOST_ATTENTION,
        },
    ),
}


def decode_path_for(variant_set: VariantSet, decode: str = "") -> DecodePath:
    """That of programs which are cut so, or another one by its name."""
    return DECODE_PATHS[SIX_PROGRAMS if variant_set.seq_len else decode or variant_set.decode_path]


def check_feature(feature: str, variant_set: VariantSet, decode: str = "") -> None:
    """UserError where a path cannot do this: that of the programs, or another one of the same model."""
    path = decode_path_for(variant_set, decode)
    if not (why := path.reason_against(feature)):
        return
    able = [
        f"decode={name!r}"
        for name, each in DECODE_PATHS.items()
        if name != SIX_PROGRAMS and not each.reason_against(feature)
    ]
    is_six = path.name == SIX_PROGRAMS
    given = f"seq_len={variant_set.seq_len} (SEQ_LEN)" if is_six else f"decode={path.name!r} (DECODE)"
    raise UserError(
        f"{FEATURES[feature]} cannot be had with {given}: {why}; load the model without that, or with "
        f"{' or '.join(able)}"
    )


def feature_table() -> list[str]:
    """The table in Markdown, a line each."""
    names = [*DECODE_PATHS]
    lines = ["| | " + " | ".join(f"`{name}`" for name in names) + " |", "| --- " * (len(names) + 1) + "|"]
    for feature, what in FEATURES.items():
        cells = ["yes" if not DECODE_PATHS[name].reason_against(feature) else "no" for name in names]
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return lines
