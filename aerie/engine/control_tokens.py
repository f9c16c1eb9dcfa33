"""What a user writes is text, even where it reads like the tokens that steer a model.

A chat template writes control tokens, such as those that end a turn, as text, where the tokenizer finds
them. It would find them in a user's message too, who could so end the turn and write the system's next one.
So where a message spells out a control token, that is hidden while the template is rendered; the template's
own control tokens, which are all that are left then, get names that nobody can know, and the message is put
back.
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
"""Tokens that mark tools, calls and results. They steer a model too, and not all tokenizers have them as
special."""


def encode_text_ids(backend: Any, text: str, special: bool = True) -> list[int]:
    """Of a text, by a tokenizers.Tokenizer. As a batch, for which it leaves the interpreter to other threads,
    as it does not for a text by itself."""
    (made,) = backend.encode_batch([text], add_special_tokens=special)
    return list(made.ids)


class ControlTokens:
    """The special tokens of `backend`, a tokenizers.Tokenizer, which stays as it is, and its TOOL_TOKENS. Any
    thread may ask."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        declared = [*backend.get_added_tokens_decoder().items()]
        of_tools = {number for number, token in declared if TOOL_TOKENS.fullmatch(token.content)}
        self._ids = {token.content: n for n, token in declared if token.special or n in of_tools}
        numbers = set(self._ids.values())
        self._not_special = {number for number, token in declared if not token.special} & of_tools
        longest_first = sorted(map(re.escape, self._ids), key=len, reverse=True)
        self._spelling = re.compile("|".join(longest_first) or r"(?!)")
        self._is_made = bool(backend.normalizer) and any(t.normalized for n, t in declared if n in numbers)
        """Whether a normaliser may make a control token of text that does not spell it."""
        self._nonce = secrets.randbits(128)
        self._changing = threading.Lock()
        self._sentinels: dict[int, int] = {}
        """From ids of `_plain` to those of the control tokens that they stand for."""

    def find(self, text: str) -> list[str]:
        """The control tokens that are spelled out in `text`, each once, in the order in which they come."""
        return list(dict.fromkeys(self._spelling.findall(text)))

    def are_spelled(self, ids: Sequence[int], text: str) -> bool:
        """Whether `text` spells out all control tokens in its `ids`: a normaliser might make more of them."""
        numbers = set(self._ids.values())
        return sum(number in numbers for number in ids) <= len(self._spelling.findall(text))

    def encode_text(self, text: str, special: bool = True) -> list[int]:
        """Ids of text in which no control token is one, with those that the tokenizer puts around it if
        `special`."""
        if not self._is_made and not self._spelling.search(text):
            return encode_text_ids(self._backend, text, special)
        with self._changing:
            return encode_text_ids(self._plain, text, special)

    def mask_text(self, text: str) -> str:
        """`text` with a stand-in for each control token, without blanks and case: templates keep those."""
        return self._spelling.sub(lambda found: f"~{self._nonce}.{self._ids[found.group()]}~", text)

    def encode_rendered(self, text: str) -> list[int]:
        """Ids of what a template made of hidden messages: its own control tokens, and all else as text."""
        spelled = {str(number): content for content, number in self._ids.items()}
        with self._changing:
            named = self._spelling.sub(lambda found: self._sentinel(found.group()), text)
            shown = re.sub(rf"~{self._nonce}\.(\d+)~", lambda found: spelled[found.group(1)], named)
            ids = encode_text_ids(self._plain, shown, special=False)
        return [self._sentinels.get(number, number) for number in ids]

    @cached_property
    def _plain(self) -> Any:
        """A copy of the tokenizer that takes special tokens for text. Ordinary text has the same ids."""
        content = self._backend.to_str()
        if self._not_special:
            read = json.loads(content)
            for token in read["added_tokens"]:
                token["special"] |= token["id"] in self._not_special
            content = json.dumps(read)
        plain = type(self._backend).from_str(content)
        plain.encode_special_tokens = True
        return plain

    def _sentinel(self, content: str) -> str:
        """What stands for a control token of the template in text for `_plain`, which is told of it."""
        from tokenizers import AddedToken

        number = self._ids[content]
        name = f"~{self._nonce}:{number}~"
        if number not in self._sentinels.values():
            token = self._backend.get_added_tokens_decoder()[number]
            properties = ("single_word", "lstrip", "rstrip", "normalized")
            kept: Mapping[str, bool] = {key: getattr(token, key) for key in properties}
            self._plain.add_tokens([AddedToken(name, special=False, **kept)])
            self._sentinels[self._plain.token_to_id(name)] = number
        return name
