"""The fields that ask for structured output: OpenAI's, two of llama.cpp's, and a regular expression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from aerie.serve.common_fields import RequestFields, Text


class StructuredOutput(NamedTuple):
    """The required format of an output: a JSON schema, a grammar in GBNF, or a regular expression. param: the
    field that asks for it. enforcement: of a schema (grammar_process.GrammarSource)."""

    param: str
    schema: Mapping[str, Any] | None = None
    gbnf: str | None = None
    regex: str | None = None
    enforcement: str = "meaning"


ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def enforcement_of(strict: bool | None) -> str:
    """What of a schema is enforced: "all", or "known" for what can be."""
    return "all" if strict else "known"


class JsonSchema(RequestFields):
    """name and description are ignored. strict: refuse a schema that cannot be enforced in full."""

    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class ResponseFormat(RequestFields):
    """response_format of chats. llama.cpp's clients put `schema` beside the type."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")

    @model_validator(mode="after")
    def _has_schema(self) -> Self:
        if self.type == "json_schema" and self._schema is None:
            raise ValueError("the type json_schema wants json_schema: {name, schema}; give it")
        return self

    @property
    def _schema(self) -> dict[str, Any] | None:
        return self.schema_ if self.json_schema is None else self.json_schema.schema_

    @property
    def structured_output(self) -> StructuredOutput | None:
        if self.type == "text":
            return None
        schema = ANY_OBJECT if self._schema is None else self._schema
        strict = self.json_schema is not None and self.json_schema.strict
        return StructuredOutput("response_format", schema, enforcement=enforcement_of(strict))


class StructuredOutputFields(RequestFields):
    """Fields that ask for structured output: OpenAI's, two of llama.cpp's, and a regular expression."""

    response_format: ResponseFormat | None = None
    json_schema: dict[str, Any] | None = None
    grammar: Text | None = None
    regex: Text | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        fields = (self.response_format, self.json_schema, self.grammar, self.regex)
        if sum(field is not None for field in fields) > 1:
            raise ValueError("give one of response_format, json_schema, grammar and regex")
        return self

    @property
    def structured_output(self) -> StructuredOutput | None:
        """The structured output that the request asks for, if any."""
        if self.regex is not None:
            return StructuredOutput("regex", regex=self.regex)
        if self.grammar is not None:
            return StructuredOutput("grammar", gbnf=self.grammar)
        if self.json_schema is not None:
            return StructuredOutput("json_schema", self.json_schema)
        return self.response_format.structured_output if self.response_format else None
