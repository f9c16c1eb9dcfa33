"""The keys of a tokenizer in a GGUF file, as llama.cpp's converter writes them.

GGUF has a name for how text is cut (`tokenizer.ggml.pre`). It is found by trying: of the names whose rule
cuts a probe as the tokenizer does, the first counts. llama.cpp's converter does the same with a hash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aerie.engine.config import ModelConfig
from aerie.engine.errors import CheckpointError
from aerie.engine.gguf.model_config import EOS_KEYS
from aerie.engine.gguf.pre_tokenizers import GROUPS
from aerie.engine.gguf.tokenizer import BYTE_LEVEL, TEMPLATE, WHOLE_TOKENIZER
from aerie.engine.gguf.vocabulary import NAMES, PREFIX, TokenType
from aerie.engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

PROBE = (
    "Don't SHE'LL we've\n\n\n  x1234567 3.14 \t\n 12 camelCase HTTPServer über naïve e\u0301te\u0301 "
    "a\u0300\u0301 日本語 हिन्दी "
    "Привет 🙂🙂 <|x|> {[('\"`~^+=|$' /path//to\\n\r\n--==--   end'S 'd 1,000 «» ___ \u00a0\u3000z   "
)
"""Text that the known rules cut differently."""


def tokenizer_keys(tokenizer: Tokenizer, config: ModelConfig) -> dict[str, Any]:
    """The keys of a byte-level BPE tokenizer. Raises CheckpointError for one of another kind."""
    from tokenizers import Tokenizer as Backend

    content = tokenizer.as_json()
    whole, backend = json.loads(content), Backend.from_str(content)
    model = whole["model"]
    if model.get("type") != "BPE" or model.get("byte_fallback") or '"ByteLevel"' not in content:
        raise _refused("is no byte-level BPE")
    added = {token["id"]: token for token in whole["added_tokens"]}
    texts = {number: text for text, number in model["vocab"].items()}
    texts |= {number: token["content"] for number, token in added.items()}
    if max(texts) >= config.vocab_size:
        raise _refused(f"has the token {max(texts)}, and the model has {config.vocab_size} of them")
    numbers = range(config.vocab_size)
    keys = {
        "model": BYTE_LEVEL,
        "pre": _pre_tokenizer(backend, bool(model.get("ignore_merges"))),
        "tokens": [texts.get(number, f"[PAD{number}]") for number in numbers],
        "token_type": [_type(number, texts, added) for number in numbers],
        "merges": [each if isinstance(each, str) else " ".join(each) for each in model["merges"]],
        **_special(backend.encode("").ids, tokenizer.special_tokens, config, texts),
    }
    named = {PREFIX + key: value for key, value in keys.items()} | {WHOLE_TOKENIZER: content}
    return named | ({TEMPLATE: tokenizer.chat_template} if tokenizer.chat_template else {})


def _type(number: int, texts: Mapping[int, str], added: Mapping[int, Mapping[str, Any]]) -> int:
    if number in added:
        return int(TokenType.CONTROL if added[number]["special"] else TokenType.USER_DEFINED)
    return int(TokenType.NORMAL if number in texts else TokenType.UNUSED)


def _special(
    around: Sequence[int], named: Mapping[str, str], config: ModelConfig, texts: Mapping[int, str]
) -> dict[str, Any]:
    """Ids of the tokens that begin, end and fill a text, and whether one is put before it. around: what is
    put around an empty text."""
    ids = {text: number for number, text in texts.items()}
    keys: dict[str, Any] = {"add_bos_token": bool(around[:1]), "add_eos_token": bool(around[1:])}
    keys |= {NAMES[name]: ids[text] for name, text in named.items() if name in NAMES and text in ids}
    if around:
        keys["bos_token_id"] = around[0]
    return keys | dict(zip(EOS_KEYS, config.eos_token_ids, strict=False))


def _pre_tokenizer(backend: Backend, ignore_merges: bool) -> str:
    """The name of the rule by which text is cut. Raises CheckpointError."""
    cut = _cut(backend.normalizer, backend.pre_tokenizer)
    for rule, names in sorted(GROUPS, key=lambda group: group[0].ignore_merges != ignore_merges):
        if cut == _cut(rule.normalizer(), rule.cutter()):
            return names[0]
    raise _refused("cuts text as none of those that GGUF has a name for")


def _cut(normalizer: Any, cutter: Any) -> list[str]:
    """The pieces of the probe."""
    text = normalizer.normalize_str(PROBE) if normalizer else PROBE
    return [piece for piece, _ in cutter.pre_tokenize_str(text)] if cutter else [text]


def _refused(what: str) -> CheckpointError:
    return CheckpointError(
        f"the tokenizer {what}, and a GGUF file of it would be read differently elsewhere; byte-level BPE "
        "of Llama 3, Qwen and SmolLM is written"
    )
