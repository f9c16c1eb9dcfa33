"""Text of a user stays text, even if it reads like the control tokens of a model.

A chat template writes control tokens, such as those that end a turn, as text, and the tokenizer finds them
there. It would also find them in a user's message, which could then end the turn and write the system's next
one. So control tokens in a message are masked while the template is rendered. The template's own control
tokens, the only ones left then, get names that nobody can guess, and the messages are restored.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

TOOL_TOKENS = re.compile(r"</?tool_\w+>|\[/?(?:TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS)\]")
"""Tokens that mark tools, calls and results. They control a model too, and some tokenizers do not declare
them as special."""


def encode_text_ids(backend: Any, text: str, special: bool = True) -> list[int]:
    """Token ids of a text, by a tokenizers.Tokenizer. Encodes a batch of one, which releases the GIL;
    encoding a single text does not."""
    (encoding,) = backend.encode_batch([text], add_special_tokens=special)
    return list(encoding.ids)


class ControlTokens:
    """The special tokens of `backend`, a tokenizers.Tokenizer, which is not changed, and its TOOL_TOKENS. Any
    thread may use it."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        declared = [*backend.get_added_tokens_decoder().items()]
        tool_ids = {number for number, token in declared if TOOL_TOKENS.fullmatch(token.content)}
        self._ids = {token.content: n for n, token in declared if token.special or n in tool_ids}
        numbers = set(self._ids.values())
        self._not_special = {number for number, token in declared if not token.special} & tool_ids
        longest_first = sorted(map(re.escape, self._ids), key=len, reverse=True)
        self._spelling = re.compile("|".join(longest_first) or r"(?!)")
        self._is_made = bool(backend.normalizer) and any(t.normalized for n, t in declared if n in numbers)
        """Whether a normaliser may make a control token of text that does not spell it."""
        self._nonce = secrets.randbits(128)
        self._changing = threading.Lock()
        self._sentinels: dict[int, int] = {}
        """From ids of `_plain` to those of the control tokens that they stand for."""

    def find(self, text: str) -> list[str]:
        """The control tokens spelled in `text`, each once, in order."""
        return list(dict.fromkeys(self._spelling.findall(text)))

    def are_spelled(self, ids: Sequence[int], text: str) -> bool:
        """Whether `text` spells all control tokens in `ids`; a normalizer may produce more of them."""
        numbers = set(self._ids.values())
        return sum(number in numbers for number in ids) <= len(self._spelling.findall(text))

    def encode_text(self, text: str, special: bool = True) -> list[int]:
        """Token ids of text without control tokens, with those that the tokenizer adds around it if
        `special`."""
        if not self._is_made and not self._spelling.search(text):
            return encode_text_ids(self._backend, text, special)
        with self._changing:
            return encode_text_ids(self._plain, text, special)

    def mask_text(self, text: str) -> str:
        """`text` with a placeholder for each control token, without blanks and capitals, which templates
        keep."""
        return self._spelling.sub(lambda match: f"~{self._nonce}.{self._ids[match.group()]}~", text)

    def encode_rendered(self, text: str) -> list[int]:
        """Token ids of what a template made of masked messages: its own control tokens, and all else as
        text."""
        spelled = {str(number): content for content, number in self._ids.items()}
        with self._changing:
            named = self._spelling.sub(lambda match: self._sentinel(match.group()), text)
            shown = re.sub(rf"~{self._nonce}\.(\d+)~", lambda match: spelled[match.group(1)], named)
            ids = encode_text_ids(self._plain, shown, special=False)
        return [self._sentinels.get(number, number) for number in ids]

    @cached_property
    def _plain(self) -> Any:
        """A copy of the tokenizer that treats special tokens as text. Other text has the same ids."""
        content = self._backend.to_str()
        if self._not_special:
            parsed = json.loads(content)
            for token in parsed["added_tokens"]:
                token["special"] |= token["id"] in self._not_special
            content = json.dumps(parsed)
        plain = type(self._backend).from_str(content)
        plain.encode_special_tokens = True
        return plain

    def _sentinel(self, content: str) -> str:
        """The placeholder of a template's control token in text for `_plain`, which learns it."""
        from tokenizers import AddedToken

        number = self._ids[content]
        name = f"~{self._nonce}:{number}~"
        if number not in self._sentinels.values():
            token = self._backend.get_added_tokens_decoder()[number]
            properties = ("single_word", "lstrip", "rstrip", "normalized")
            properties_: Mapping[str, bool] = {key: getattr(token, key) for key in properties}
            self._plain.add_tokens([AddedToken(name, special=False, **properties_)])
            self._sentinels[self._plain.token_to_id(name)] = number
        return name
