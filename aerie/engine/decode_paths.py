"""What each decode path supports: one table, used for errors and in the reference.

A decode path is the set of programs that generate tokens. A model is loaded with one. Drafts and diffusion
blocks always use `rows`, and so do batches if the model has variants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aerie.common.errors import UserError
from aerie.engine.variant_set import GUIDE, ROWS, VariantSet

SIX_PROGRAMS = "seq_len"
"""The decode path `guide` with the six programs of one prompt length."""
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
    """A decode path. unsupported: the reason for each feature that it does not support."""

    name: str
    description: str
    unsupported: Mapping[str, str]

    def reason_against(self, feature: str) -> str:
        """Why the path does not support the feature; "" if it does."""
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
    """The decode path of these programs, or the one named `decode`."""
    return DECODE_PATHS[SIX_PROGRAMS if variant_set.seq_len else decode or variant_set.decode_path]


def check_feature(feature: str, variant_set: VariantSet, decode: str = "") -> None:
    """Raises UserError if the decode path does not support a feature. decode: another path of the same model;
    "" means its own."""
    path = decode_path_for(variant_set, decode)
    if not (reason := path.reason_against(feature)):
        return
    alternatives = [
        f"decode={name!r}"
        for name, other in DECODE_PATHS.items()
        if name != SIX_PROGRAMS and not other.reason_against(feature)
    ]
    is_six = path.name == SIX_PROGRAMS
    option = f"seq_len={variant_set.seq_len} (SEQ_LEN)" if is_six else f"decode={path.name!r} (DECODE)"
    raise UserError(
        f"{FEATURES[feature]} cannot be used with {option}: {reason}; load the model without that, or with "
        f"{' or '.join(alternatives)}"
    )
