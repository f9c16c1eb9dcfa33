"""A tokenizer as SentencePiece's are in tokenizer.json: words with their blank, and bytes of their own."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, normalizers, processors

WORDS = [
    "▁is",
    "▁a",
    "▁tile",
    "▁the",
    "▁world",
    "▁return",
    "▁x",
    "▁▁▁",
    "is",
    "tile",
    "the",
    "world",
    "return",
]
LETTERS = '▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:()"{}'
SPECIAL = ["<unk>", "<s>", "</s>"]


def llama_2() -> Tokenizer:
    """As that of Llama 2, TinyLlama and Mistral 7B: a blank before the text, bytes for other characters."""
    vocabulary = {token: index for index, token in enumerate(SPECIAL)}
    merges: list[tuple[str, str]] = []
    for token in [*(f"<0x{byte:02X}>" for byte in range(256)), *LETTERS]:
        vocabulary.setdefault(token, len(vocabulary))
    for word in WORDS:
        for end in range(2, len(word) + 1):
            pair = word[: end - 1], word[end - 1]
            if pair not in merges:
                merges.append(pair)
                vocabulary.setdefault(word[:end], len(vocabulary))
    inner = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.add_special_tokens(SPECIAL)
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return inner
