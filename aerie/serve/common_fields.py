"""What the fields of all requests share: which are refused, which ignored, and the parts of messages.

An unknown field is refused, as OpenAI does: a client would think that an ignored setting works. Fields that
change no output (`user`, `metadata`, ...) are accepted. A field that is not supported is refused unless its
value disables it. A null field is absent, at any depth, known or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

MAX_STOP_LENGTH = 1000
"""Characters of a stop string: each delta is searched for all of them."""


def _text(text: str) -> str:
    """Refuse lone surrogates, which JSON can write and no tokenizer accepts."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half a character (a lone surrogate); send valid Unicode") from None
    return text


Text = Annotated[str, AfterValidator(_text)]
StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH), AfterValidator(_text)]


UnsupportedFields = Mapping[str, tuple[Sequence[Any], str]]
"""Unsupported fields, each with the values that disable it, and the reason."""


class RequestFields(BaseModel):
    """Base of all bodies."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())
    unsupported: ClassVar[UnsupportedFields] = {}
    ignored: ClassVar[frozenset[str]] = frozenset()
    """Fields that change no answer here; the response names those that a request sets (ignored_fields)."""

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        return {name: value for name, value in data.items() if not cls._is_empty(name, value)}

    @classmethod
    def _is_empty(cls, name: str, value: Any) -> bool:  # noqa: ARG003
        return value is None

    @field_validator("*", mode="before")
    @classmethod
    def _check_supported(cls, value: Any, field: ValidationInfo) -> Any:
        values, reason = cls.unsupported.get(field.field_name or "", ((), ""))
        if reason and value is not None and value not in values:
            raise ValueError(f"{reason}; leave it out")
        return value


class ClientMessagePart(RequestFields):
    """A message or a part of one, which may come from an earlier answer of this or another server.

    Clients send it back with all fields of their own types: an unknown field that is empty is ignored.
    """

    @classmethod
    def _is_empty(cls, name: str, value: Any) -> bool:
        return value is None or (name not in cls.model_fields and value in ("", [], {}))


class OtherServerItem(ClientMessagePart):
    """Something of another server: a tool that it runs, a call of it, or the result. All fields are accepted,
    and the model sees none of it."""

    model_config = ConfigDict(extra="allow")
    type: Text


def ignored_fields(body: object) -> list[str]:
    """The paths, without positions in lists, of what a request sets and the server ignores. A tool or an item
    of another server is named by its type."""
    return list(dict.fromkeys(_ignored(body, "")))


def _ignored(value: object, path: str) -> Iterator[str]:
    if isinstance(value, OtherServerItem):
        yield f"{path} of type {value.type}"
    elif isinstance(value, RequestFields):
        for name in value.__class__.model_fields:
            if name in value.model_fields_set:
                inner_path = f"{path}.{name}" if path else name
                is_ignored = name in value.ignored
                yield from [inner_path] if is_ignored else _ignored(getattr(value, name), inner_path)
    elif isinstance(value, list) and not (value and isinstance(value[0], int)):
        for inner in value:
            yield from _ignored(inner, path)


MEDIA = ("image", "document", "audio", "video", "file")


def check_text_part(kind: Any) -> Any:
    """Return the type of a part of a message. Raises ValueError if it is not text."""
    name = kind.removeprefix("input_").removesuffix("_url") if isinstance(kind, str) else ""
    if name in MEDIA:
        raise ValueError(f"models here read text; leave the {name} out, or send its text")
    return kind


class TextPart(ClientMessagePart):
    """A text of a message; other kinds, such as images, are refused. The other fields change no prompt."""

    type: Literal["text", "input_text", "output_text"]
    text: Text
    annotations: Any = None
    logprobs: Any = None
    cache_control: Any = None
    parsed: Any = None
    ignored: ClassVar[frozenset[str]] = frozenset(("cache_control",))

    @field_validator("type", mode="before")
    @classmethod
    def _is_text(cls, kind: Any) -> Any:
        return check_text_part(kind)


class RefusalPart(ClientMessagePart):
    """A refusal of an earlier answer."""

    type: Literal["refusal"]
    refusal: Text

    @property
    def text(self) -> str:
        return self.refusal


def tagged_union(names: Mapping[str, str], other: str) -> Discriminator:
    """Select a type by the object's `type`. names: tag by type; pydantic puts tags into error locations, and
    field_path leaves out those with a blank. other: the tag of all other types, whose errors are reported."""

    def tag(value: Any) -> str:
        kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
        return names.get(kind, other) if isinstance(kind, str) else other

    return Discriminator(tag)


AnyPart = Annotated[
    Annotated[TextPart, Tag("a text")] | Annotated[RefusalPart, Tag("a refusal")],
    tagged_union({"refusal": "a refusal"}, "a text"),
]
Content = Text | list[AnyPart]


def content_text(content: Content | list[TextPart] | None) -> str:
    """The parts of a message, joined."""
    if content is None:
        return ""
    return content if isinstance(content, str) else "".join(part.text for part in content)


Tokens = Annotated[list[int], Field(min_length=1)]


def prompt_list(prompt: str | Sequence[int] | Sequence[str] | Sequence[list[int]]) -> list[str | list[int]]:
    """Return one or more prompts as a list, each a text or token ids."""
    if isinstance(prompt, str):
        return [prompt]
    token_ids = [item for item in prompt if isinstance(item, int)]
    return [token_ids] if token_ids else [item for item in prompt if not isinstance(item, int)]
