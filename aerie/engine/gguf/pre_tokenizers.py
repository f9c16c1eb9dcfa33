"""Pre-tokenizers of byte-level BPE, by the value of `tokenizer.ggml.pre`.

The names and their synonyms are those of llama.cpp (src/llama-vocab.cpp). The patterns and the Unicode
normalization are those of the models' own tokenizer.json: llama.cpp writes some patterns otherwise, and does
not normalize.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

CONTRACTION: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORD: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
MARKED_WORD: Final = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
"""Letters and combining marks."""
SIGNS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
BLANKS: Final = (r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+")

UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SIGNS_AND_SLASHES: Final = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"


def _cased_words(ending: str) -> tuple[str, str]:
    """Return patterns of words that end before a capital letter that follows a small one."""
    begin = r"[^\r\n\p{L}\p{N}]?"
    return f"{begin}{UPPER}*{LOWER}+{ending}", f"{begin}{UPPER}+{LOWER}*{ending}"


GPT_2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA_3: Final = "|".join((CONTRACTION, WORD, r"\p{N}{1,3}", SIGNS, *BLANKS))
QWEN_2: Final = "|".join((CONTRACTION, WORD, r"\p{N}", SIGNS, *BLANKS))
PLAIN: Final = "|".join((WORD, r"\p{N}", SIGNS, *BLANKS))
"""Qwen 2's pattern without English contractions. The demo's tokenizer has it."""
QWEN_35: Final = "|".join((CONTRACTION, MARKED_WORD, r"\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", *BLANKS))
GPT_4O: Final = "|".join((*_cased_words(f"{CONTRACTION}?"), r"\p{N}{1,3}", SIGNS_AND_SLASHES, *BLANKS))
TEKKEN: Final = "|".join((*_cased_words(""), r"\p{N}", SIGNS_AND_SLASHES, *BLANKS))


@dataclass(frozen=True)
class PreTokenizer:
    """One pre-tokenizer, with defaults of the tokenizers that use it.

    patterns: each isolates its matches in the pieces that the patterns before it left. single_digits: each
    digit becomes a piece before that. nfc: text is normalized to NFC first. ignore_merges: a word that is a
    token becomes that token without merges. add_bos: BOS precedes a text unless the file sets add_bos_token.
    """

    patterns: tuple[str, ...]
    single_digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def normalizer(self) -> Any:
        """Return a tokenizers.normalizers.Normalizer, or None."""
        from tokenizers import normalizers

        return normalizers.NFC() if self.nfc else None

    def cutter(self) -> Any:
        """Return a tokenizers.pre_tokenizers.PreTokenizer that splits text, then maps bytes to letters."""
        from tokenizers import Regex, pre_tokenizers

        steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if self.single_digits else []
        steps += [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence(
            [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )


_LLAMA_BPE = PreTokenizer((LLAMA_3,), ignore_merges=True, add_bos=True)
_GPT_2 = PreTokenizer((GPT_2,))
_SINGLE_DIGITS = replace(_GPT_2, single_digits=True)

GROUPS: Final = (
    (
        _LLAMA_BPE,
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    ),
    (PreTokenizer((LLAMA_3,)), ("smaug-bpe", "dbrx")),
    (
        PreTokenizer((QWEN_2,), nfc=True),
        ("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan"),
    ),
    (PreTokenizer((QWEN_35,), nfc=True), ("qwen35",)),
    (PreTokenizer((PLAIN,)), ("ufakzeka",)),
    (
        _SINGLE_DIGITS,
        ("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"),
    ),
    (replace(_SINGLE_DIGITS, nfc=True), ("command-r",)),
    (_GPT_2, ("gpt-2", "phi-2", "jais", "trillion", "granite-docling", "exaone4", "mellum")),
    (replace(_GPT_2, nfc=True), ("olmo", "mpt")),
    (PreTokenizer((GPT_4O,)), ("gpt-4o", "llama4", "kanana2")),
    (PreTokenizer((TEKKEN,), ignore_merges=True, add_bos=True), ("tekken",)),
    (
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT_2, r"\p{N}+", "[0-9][0-9][0-9]")),
        ("default",),
    ),
)
"""Each pre-tokenizer with its names. olmo and mpt use GPT-NeoX's tokenizer and command-r uses Cohere's; both
normalize to NFC."""

PRE_TOKENIZERS: Final[Mapping[str, PreTokenizer]] = {name: rule for rule, names in GROUPS for name in names}
