"""The text part of a model that reads images too: its entries of config.json and its tensors, as the model of
text alone has them. Nothing else of such a model is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aerie.engine.config_reader import read_json
from aerie.engine.tensors import Tensor
from aerie.runtime.memory import format_file_bytes

TEXT_PARTS: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    ("Gemma3ForConditionalGeneration", "gemma3_text"): (
        "Gemma3ForCausalLM",
        {"vocab_size": 262208, "num_attention_heads": 8},
    ),
    ("Qwen3_5ForConditionalGeneration", "qwen3_5_text"): ("Qwen3_5ForCausalLM", {}),
    ("Mistral3ForConditionalGeneration", "mistral"): ("MistralForCausalLM", {}),
    ("Mistral3ForConditionalGeneration", "ministral3"): ("Ministral3ForCausalLM", {}),
}
"""By the class in config.json and the model_type of the text part: the class of the model of text, and
defaults that only such files leave out (transformers, configuration_gemma3.py)."""

OF_THE_WHOLE = ("eos_token_id", "tie_word_embeddings", "quantization_config", "transformers_weights")
"""Entries that stand beside the text part and are of it too."""

NAMES = re.compile(r"^(?:model\.language_model\.|language_model\.model\.)")
HEAD = re.compile(r"^language_model\.lm_head\.")
NOT_TEXT = re.compile(r"^(?:model\.)?(?:vision_tower|visual|multi_modal_projector)\.")


def text_entries(entries: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entries of the text part, where the class is one of TEXT_PARTS; else those that were given."""
    names, part = entries.get("architectures"), entries.get("text_config")
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    if not isinstance(name, str) or not isinstance(part, dict):
        return entries
    kind = part.get("model_type")
    if not isinstance(kind, str) or (name, kind) not in TEXT_PARTS:
        return entries
    architecture, defaults = TEXT_PARTS[name, kind]
    beside = {each: entries[each] for each in OF_THE_WHOLE if each in entries}
    return {**defaults, **part, **beside, "architectures": [architecture]}


def text_names(folder: Path) -> dict[str, str] | None:
    """For transformers' `key_mapping`: how its model of text finds its tensors in a folder of a model that
    reads images too. None for other folders."""
    path = folder / "config.json"
    entries = read_json(path) if path.is_file() else {}
    return None if text_entries(entries) is entries else {NAMES.pattern: "model.", HEAD.pattern: "lm_head."}


def text_tensors(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The tensors of the text part by the names that a model of text has, and a note on those that are not
    read. Others stay as they are."""
    skipped = [tensor for name, tensor in tensors.items() if NOT_TEXT.match(name)]
    found = {
        HEAD.sub("lm_head.", NAMES.sub("model.", name)): tensor
        for name, tensor in tensors.items()
        if not NOT_TEXT.match(name)
    }
    if not skipped:
        return found, ()
    nbytes = format_file_bytes(sum(tensor.stored_bytes for tensor in skipped))
    return found, (
        f"note: {len(skipped)} tensors ({nbytes}) that read images are left out: only text is read",
    )
