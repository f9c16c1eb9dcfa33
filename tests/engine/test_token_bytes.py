"""How few tokens a text can be by its bytes: never more than it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.engine.errors import PromptError, PromptTooLongError
from aerie.engine.token_length_bound import max_token_bytes
from aerie.engine.tokenizer import load_tokenizer

TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text(
    "aK\u212aé\u0301ΐ각\U0001d400 \n", min_size=20
)


def of_bytes(normalizer: Any = None, cutter: Any = None) -> Tokenizer:
    """A tokenizer of bytes, and of some pairs of them."""
    vocabulary = {each: number for number, each in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE({**vocabulary, "ab": 256, "abab": 257}, [("a", "b"), ("ab", "ab")]))
    made.pre_tokenizer = cutter or pre_tokenizers.ByteLevel(add_prefix_space=False)
    if normalizer:
        made.normalizer = normalizer
    return made


def that_falls_back(**options: Any) -> Tokenizer:
    """As SentencePiece's: characters, and bytes for those that it does not know."""
    vocabulary = {
        "<unk>": 0,
        **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)},
        "▁": 257,
        "a": 258,
        "▁a": 259,
    }
    made = Tokenizer(models.BPE(vocabulary, [("▁", "a")], unk_token="<unk>", fuse_unk=True, **options))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.ByteFallback()
    return made


KNOWN = {
    "demo": lambda: Tokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json")),
    "bytes": of_bytes,
    "NFC": lambda: of_bytes(normalizers.NFC()),
    "NFKC": lambda: of_bytes(normalizers.Sequence([normalizers.NFKC(), normalizers.Prepend("x")])),
    "fallback": lambda: that_falls_back(byte_fallback=True),
}
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
UNKNOWN = {
    "unknown characters are one": that_falls_back,
    "words": lambda: Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, "[UNK]")),
    "blanks are dropped": lambda: of_bytes(
        cutter=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), BYTES])
    ),
    "some is removed": lambda: of_bytes(
        cutter=pre_tokenizers.Sequence([pre_tokenizers.Split(Regex("x+"), "removed"), BYTES])
    ),
    "accents are stripped": lambda: of_bytes(normalizers.StripAccents()),
    "ends are stripped": lambda: of_bytes(normalizers.Strip()),
    "text is replaced": lambda: of_bytes(normalizers.Replace(Regex("a+"), "a")),
    "text is made shorter": lambda: of_bytes(normalizers.Replace("aaaa", "a")),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_text_has_no_fewer_tokens(name: str) -> None:
    backend = KNOWN[name]()
    longest = max_token_bytes(backend)
    assert longest is not None

    @given(TEXTS)
    def holds(text: str) -> None:
        ids = backend.encode(text, add_special_tokens=False).ids
        assert len(ids) * longest >= len(text.encode())

    holds()


@pytest.mark.parametrize("name", UNKNOWN)
def test_the_longest_token_is_unknown_for_a_lossy_decoder(name: str) -> None:
    assert max_token_bytes(UNKNOWN[name]()) is None


def test_a_token_that_takes_blanks_may_take_any_number() -> None:
    backend = of_bytes()
    backend.add_tokens([AddedToken("<mask>", lstrip=True)])
    assert max_token_bytes(backend) is None


def test_what_cannot_fit_is_not_cut() -> None:
    tokenizer = load_tokenizer(DEMO_FOLDER)
    text = "word " * 2000
    assert tokenizer.encode(text, most=600) == tokenizer.encode(text)
    with pytest.raises(
        PromptTooLongError, match=r"the text has 10000 bytes, .* 527 tokens or more, and 500 is"
    ):
        tokenizer.encode(text, most=500)
    with pytest.raises(PromptTooLongError, match="500 is the limit; shorten it"):
        tokenizer.encode_chat([{"role": "user", "content": text}], most=500)
    with pytest.raises(PromptError, match="there are 600 messages, and 500 tokens is the limit; send fewer"):
        tokenizer.encode_chat([{"role": "user", "content": ""}] * 600, most=500)
