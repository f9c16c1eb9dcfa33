"""Text token by token is the decoder's, whatever the tokenizer; bytes are the tokens' own."""

import json
from collections.abc import Callable
from functools import cache, partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from aerie.engine.detokenizer import Detokenizer, IncrementalDetokenizer
from aerie.llama32_1b.synthetic.tokenizer import make_tokenizer

BROKEN = "\N{REPLACEMENT CHARACTER}"
WORDS = ["▁", "▁is", "▁a", "▁tile", "▁the", "tile", "the", "s", "é", "▁日本", ".", "▁▁", "▁▁▁"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ["<unk>", "<s>", "</s>"]
LLAMA_2 = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]


def with_decoder(model, decoder):
    inner = Tokenizer(model)
    inner.normalizer = normalizers.Replace(" ", "▁")
    inner.decoder = decoder
    inner.add_special_tokens(SPECIAL)
    inner.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("herd é", normalized=False)])
    return inner


def bpe(decoder):
    vocabulary = {piece: index for index, piece in enumerate([*SPECIAL, *BYTES, *WORDS])}
    return with_decoder(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True), decoder)


def unigram(decoder):
    scores = [(piece, -1.0) for piece in [*SPECIAL, *BYTES, *WORDS]]
    return with_decoder(models.Unigram(scores, unk_id=0, byte_fallback=True), decoder)


def byte_level():
    inner = make_tokenizer(700)
    inner.add_tokens([AddedToken("<tool_call>"), AddedToken("▁herd"), AddedToken("日")])
    return inner


def word_piece():
    vocabulary = {piece: index for index, piece in enumerate([*SPECIAL, "the", "##s", "tile", "n", "'", "."])}
    return with_decoder(models.WordPiece(vocabulary, unk_token="<unk>"), decoders.WordPiece(cleanup=False))


def metaspace(scheme):
    return bpe(decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme)]))


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte level": byte_level,
    "llama 2": lambda: bpe(decoders.Sequence(LLAMA_2)),
    **{f"metaspace {scheme}": partial(metaspace, scheme) for scheme in ("always", "first", "never")},
    "unigram": lambda: unigram(decoders.Metaspace()),
    "word piece": word_piece,
    "none": lambda: unigram(decoders.Fuse()),
}


@pytest.fixture(scope="module", params=KINDS)
def detokenizer(request):
    return Detokenizer(KINDS[request.param]())


def theirs(detokenizer, tokens):
    return detokenizer._backend.decode(tokens, skip_special_tokens=True)


@settings(max_examples=80, deadline=None)
@given(numbers=st.lists(st.integers(0, 10**6), max_size=24), at=st.integers(0, 24), chars=st.text(max_size=9))
def test_pieces_join_to_the_decoders_text_and_bytes_to_its_bytes(detokenizer, numbers, at, chars):
    size = detokenizer._backend.get_vocab_size()
    letters = [token for char in chars for token in spelled_in_bytes(detokenizer, char)]
    tokens = [number % size for number in numbers[:12]] + letters + [number % size for number in numbers[12:]]
    pieces, whole = detokenizer.token_texts(tokens), theirs(detokenizer, tokens)
    text, data = "".join(piece.text for piece in pieces), b"".join(piece.data for piece in pieces)
    assert detokenizer.decode(tokens) == text
    if not detokenizer.has_fallback or BROKEN not in whole:
        assert text == whole
    assert data.decode("utf-8", detokenizer.errors()) == text
    if BROKEN not in text:
        assert data == text.encode()
    assert_a_stream_goes_on(detokenizer, tokens, min(at, len(tokens)), text)


def spelled_in_bytes(detokenizer, char):
    """Tokens of the bytes of a character, where there are such."""
    found = [tokens_of_bytes(detokenizer).get(bytes([byte])) for byte in char.encode()]
    return found if None not in found else []


@cache
def tokens_of_bytes(detokenizer):
    return {detokenizer.own_bytes(token): token for token in range(detokenizer._backend.get_vocab_size())}


def assert_a_stream_goes_on(detokenizer, tokens, at, text):
    """After a prompt: no text is lost or repeated; three bytes at most are held."""
    prompt, answer = tokens[:at], tokens[at:]
    stream, held, output = IncrementalDetokenizer(detokenizer, before=prompt), 0, ""
    for token in answer:
        expected = stream.bytes_of_next(token)
        piece = stream.take(token)
        assert piece.data == (b"" if token in detokenizer.special else expected)
        output += piece.text
        held = len(stream._utf8.getstate()[0])
        assert held <= 3
    output += stream.flush()
    assert text.endswith(output)
    before = IncrementalDetokenizer(detokenizer)
    assert text == "".join(map(before.feed, prompt)) + output or BROKEN in text


@pytest.mark.parametrize("kind", ["byte level", "llama 2"])
def test_what_can_be_no_character_any_more_is_sent_at_once(kind):
    detokenizer = Detokenizer(KINDS[kind]())
    (lead,) = (token for token in range(600) if detokenizer.own_bytes(token) == b"\xc3")
    stream = IncrementalDetokenizer(detokenizer)
    assert [stream.feed(lead) for _ in range(5)] == ["", *[BROKEN] * 4]
    assert stream.flush() == BROKEN
    assert stream.flush() == ""


def test_a_word_keeps_its_blank_after_a_prompt():
    detokenizer = Detokenizer(KINDS["llama 2"]())
    ids = {piece: detokenizer._backend.token_to_id(piece) for piece in [*WORDS, *SPECIAL, "<0x20>", "<0x41>"]}
    prompt = [ids["<s>"], ids["▁the"]]
    assert IncrementalDetokenizer(detokenizer, before=prompt).feed(ids["▁tile"]) == " tile"
    assert IncrementalDetokenizer(detokenizer, before=prompt * 9).feed(ids["▁▁▁"]) == "   "
    assert IncrementalDetokenizer(detokenizer, before=[ids["<s>"]]).feed(ids["▁tile"]) == "tile"
    assert [
        piece.text for piece in detokenizer.token_texts([ids["<0x20>"], ids["<0x20>"], ids["<0x41>"]])
    ] == [
        "",
        " ",
        "A",
    ]


def test_a_character_begun_in_the_prompt_is_sent_whole(detokenizer):
    begun = spelled_in_bytes(detokenizer, "😀")
    if begun:
        stream = IncrementalDetokenizer(detokenizer, before=begun[:2])
        assert [stream.feed(token) for token in begun[2:]] == ["", "😀"]


def test_special_tokens_by_their_names():
    detokenizer = Detokenizer(KINDS["llama 2"]())
    stream = IncrementalDetokenizer(detokenizer, shown=[2])
    assert stream.take(1) == ("", b"")
    assert stream.bytes_of_next(1) == b"<s>"
    assert stream.take(2) == ("</s>", b"</s>")
    assert stream.take(99_999) == ("", b"")


def test_all_decoders_of_the_library_are_known():
    """A decoder with another way of writing bytes would need its rule here."""
    kinds = {name for name in dir(decoders) if name[0].isupper()} - {"Decoder", "DecodeStream"}
    assert kinds == {
        "BPEDecoder",
        "ByteFallback",
        "ByteLevel",
        "CTC",
        "Fuse",
        "Metaspace",
        "Replace",
        "Sequence",
        "Strip",
        "WordPiece",
    }
    assert json.loads(decoders.ByteLevel().__getstate__())["type"] == "ByteLevel"
