"""Detokenizer: turns token ids into text, token by token.

The text of a token is what the decoder of tokenizer.json gives for all tokens, less what it gives for those
before. So a word keeps its blank if another word precedes it, also in a prompt. A token also has bytes: the
bytes of all tokens are the text in UTF-8, and a character may need several tokens. A token's text is what its
bytes complete. Bytes that cannot become a character give U+FFFD immediately, so at most three bytes are held
back.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import islice
from typing import Any, NamedTuple

FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""A token of one byte, for decoders with ByteFallback."""
WINDOW = 8
"""Number of previous tokens that a new token's text may depend on. A decoder looks at the token before, and
at the start of the text."""

EACH_BYTE = "aerie-each-byte"
"""How ByteFallback shows bytes that are not UTF-8: U+FFFD for every byte. ByteLevel shows one for all bytes
that could have started a character."""
codecs.register_error(EACH_BYTE, lambda error: ("\N{REPLACEMENT CHARACTER}" * _count(error), _end(error)))


def _count(error: UnicodeError) -> int:
    assert isinstance(error, UnicodeDecodeError)
    return error.end - error.start


def _end(error: UnicodeError) -> int:
    assert isinstance(error, UnicodeDecodeError)
    return error.end


class TokenText(NamedTuple):
    """What a token adds: the text that it completes, and its bytes."""

    text: str
    data: bytes


class Detokenizer:
    """Decodes with `backend`, a tokenizers.Tokenizer."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        steps = [*_steps(json.loads(backend.decoder.__getstate__()))] if backend.decoder else []
        self._is_byte_level, self.has_fallback = "ByteLevel" in steps, "ByteFallback" in steps

    @cached_property
    def special(self) -> Mapping[int, str]:
        """The text of the tokens that decode to nothing."""
        added = self._backend.get_added_tokens_decoder().items()
        return {number: token.content for number, token in added if token.special}

    def special_token_text(self, token: int) -> str:
        """The text of a token that is declared beside the vocabulary."""
        return str(self._backend.id_to_token(token))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        text = str(self._backend.decode(list(tokens), skip_special_tokens=True))
        if self.has_fallback and "\N{REPLACEMENT CHARACTER}" in text:
            # Of neighbouring bytes the library shows no character at all where one of them is wrong.
            return "".join(piece.text for piece in self.token_texts(tokens))
        return text

    def text_of(self, tokens: Sequence[int]) -> str:
        """What the decoder gives for tokens, none of which is special."""
        return str(self._backend.decode(list(tokens), skip_special_tokens=False))

    def token_texts(self, tokens: Sequence[int]) -> list[TokenText]:
        """What each token adds to their text; an incomplete character at the end goes to the last token."""
        stream = IncrementalDetokenizer(self)
        pieces = [stream.take(token) for token in tokens]
        if rest := stream.flush():
            pieces[-1] = pieces[-1]._replace(text=pieces[-1].text + rest)
        return pieces

    def own_bytes(self, token: int) -> bytes | None:
        """The bytes of a token that always stands for the same bytes; None for one whose text depends on the
        tokens before it."""
        spelled = self._backend.id_to_token(token)
        if spelled is None:  # rows of the weights beyond the vocabulary
            return b""
        if self._is_byte_level:
            alphabet = _byte_alphabet()
            is_known = all(letter in alphabet for letter in spelled)
            return bytes(alphabet[letter] for letter in spelled) if is_known else str(spelled).encode()
        match = FALLBACK.fullmatch(spelled) if self.has_fallback else None
        return bytes([int(match[1], 16)]) if match else None

    def errors(self) -> str:
        """How bytes that are not UTF-8 are shown, for `codecs`."""
        return EACH_BYTE if self.has_fallback else "replace"


class IncrementalDetokenizer:
    """Turns tokens into text as they are generated.

    before: tokens that precede them, such as a prompt, whose text is not given. shown: special tokens that
    are shown as text.
    """

    def __init__(
        self, detokenizer: Detokenizer, before: Sequence[int] = (), shown: Collection[int] = ()
    ) -> None:
        self._of, self._shown = detokenizer, {token: detokenizer.special_token_text(token) for token in shown}
        self._utf8 = codecs.getincrementaldecoder("utf-8")(detokenizer.errors())
        self._window: list[int] = []
        shown_before = (
            token for token in reversed(before) if token not in detokenizer.special or token in self._shown
        )
        last = [*islice(shown_before, WINDOW + 1)]
        self._has_text = len(last) > WINDOW
        for token in last[WINDOW - 1 :: -1]:
            self.take(token)

    def feed(self, token: int) -> str:
        """The text that `token` completes; "" if it completes none."""
        return self.take(token).text

    def take(self, token: int) -> TokenText:
        """The text that `token` completes, and its bytes."""
        if token in self._shown:
            self._has_text = True
            return TokenText(self.flush() + self._shown[token], self._shown[token].encode())
        if token in self._of.special:
            return TokenText("", b"")
        data = self._bytes(token)
        self._has_text |= bool(data)
        self._window = [*self._window, token][-WINDOW:]
        return TokenText(self._utf8.decode(data), data)

    def flush(self) -> str:
        """The text of bytes that were held back, at the end: U+FFFD for an incomplete character."""
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text

    def bytes_of_next(self, token: int) -> bytes:
        """The bytes that a token would add as the next one; for a special token those of its name."""
        name = self._of.special.get(token)
        return self._bytes(token) if name is None else name.encode()

    def _bytes(self, token: int) -> bytes:
        own = self._of.own_bytes(token)
        # A decoder may strip a blank at the beginning, also one that is written as a byte.
        if own is not None and (self._has_text or not self._of.has_fallback or own >= b"\x80"):
            return own
        before, text = (self._of.text_of(tokens) for tokens in (self._window, [*self._window, token]))
        while not text.startswith(before):  # a decoder may write a token's end otherwise where others follow
            before = before[:-1]
        return text[len(before) :].encode()


def _steps(decoder: Mapping[str, Any]) -> Iterator[str]:
    """The types of a decoder's steps."""
    if decoder["type"] == "Sequence":
        for each in decoder["decoders"]:
            yield from _steps(each)
    else:
        yield decoder["type"]


@cache
def _byte_alphabet() -> dict[str, int]:
    """The bytes by the characters that byte-level vocabularies use for them: printable Latin-1 characters for
    themselves, the others, in order, from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
