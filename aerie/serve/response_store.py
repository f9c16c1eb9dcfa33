"""What is kept of /v1/responses in memory, as OpenAI's API has it: responses, and conversations that they are
part of. There is room for so many, and for so many bytes; the oldest go first.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import Depends, FastAPI, Query, Request
from openai.types.responses import Response
from pydantic import Field, TypeAdapter

from aerie.serve.common_fields import Fields
from aerie.serve.errors import ApiError
from aerie.serve.openai_format import new_id
from aerie.serve.response_items import AnyItem, EachItem
from aerie.serve.responses import ResponsesRequest

ITEMS: TypeAdapter[list[EachItem]] = TypeAdapter(list[AnyItem])
MOST_ITEMS = 1000
"""That a conversation is given at once."""
PAGE, MOST_PAGE = 20, 100
"""Items of a list, where nobody says how many, and at most; OpenAI's numbers."""


class Past(NamedTuple):
    """All items of a conversation so far, and the bytes that they have as JSON, about."""

    items: tuple[EachItem, ...] = ()
    nbytes: int = 0

    def and_then(self, items: Sequence[EachItem]) -> Past:
        """With these after them."""
        return Past((*self.items, *items), self.nbytes + sum(_size(item.told) for item in items))


@dataclass(frozen=True)
class KeptResponse:
    """told: as it was answered. asked: all before its output; past: with its output."""

    told: Mapping[str, Any]
    asked: tuple[EachItem, ...]
    past: Past

    @property
    def nbytes(self) -> int:
        return _size(self.told) + self.past.nbytes


@dataclass(frozen=True)
class Conversation:
    """Items that responses are added to. metadata: what its maker wrote on it. is_full: a response had no
    room in it."""

    metadata: Mapping[str, str]
    past: Past
    is_full: bool = False
    id: str = field(default_factory=lambda: new_id("conv_"))
    created_at: int = field(default_factory=lambda: int(time.time()))

    @property
    def nbytes(self) -> int:
        return _size(self.metadata) + self.past.nbytes

    @property
    def told(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "conversation",
            "created_at": self.created_at,
            "metadata": self.metadata,
        }

    def item(self, name: str) -> EachItem:
        """ApiError 404 for one that is not in it."""
        for item in self.past.items:
            if item.id == name:
                return item
        raise ApiError(404, f"the conversation {self.id!r} has no item {name[:80]!r}; list its items")


class Kept:
    """See the module. most: responses and conversations together; most_bytes: of them as JSON, where what
    came before a response counts with each that follows on it."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._all: OrderedDict[str, tuple[KeptResponse | Conversation, int]] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._all)

    def put(self, name: str, what: KeptResponse | Conversation) -> bool:
        """Keep it as the newest, in place of what has its name; whether there is room for it."""
        nbytes = what.nbytes
        if not self._most or nbytes > self._most_bytes:
            return False
        self.drop(name)
        self._all[name] = what, nbytes
        self.nbytes += nbytes
        while len(self._all) > self._most or self.nbytes > self._most_bytes:
            self.nbytes -= self._all.popitem(last=False)[1][1]
        return True

    def drop(self, name: str) -> None:
        """Keep it no more, if it is there."""
        if name in self._all:
            self.nbytes -= self._all.pop(name)[1]

    def response(self, name: str) -> KeptResponse:
        """ApiError 404 where there is none."""
        found = self._all.get(name, (None, 0))[0]
        if isinstance(found, KeptResponse):
            return found
        raise self._lost("response", name)

    def conversation(self, name: str) -> Conversation:
        """ApiError 404 where there is none."""
        found = self._all.get(name, (None, 0))[0]
        if isinstance(found, Conversation):
            return found
        raise self._lost("conversation", name)

    def _lost(self, kind: str, name: str) -> ApiError:
        why = (
            f"it was never kept, was deleted, or had to give way to newer ones ({self._most} are kept)"
            if self._most
            else f"this server keeps no {kind}s; send the whole conversation as input"
        )
        return ApiError(404, f"there is no {kind} {name[:80]!r} here: {why}", code=f"{kind}_not_found")

    def before(self, asked: ResponsesRequest) -> Past:
        """What a request goes on from. ApiError 400 for what is not here."""
        try:
            if asked.previous_response_id is not None:
                return self.response(asked.previous_response_id).past
            return self._open(asked.conversation_id).past if asked.conversation_id else Past()
        except ApiError as error:
            param = "conversation" if asked.previous_response_id is None else "previous_response_id"
            is_full = error.status_code == 400
            code = "conversation_full" if is_full else f"{param.removesuffix('_id')}_not_found"
            raise ApiError(400, error.message, param, code) from error

    def _open(self, name: str) -> Conversation:
        """A conversation that goes on. ApiError where its last response is not in it."""
        talk = self.conversation(name)
        if talk.is_full:
            raise ApiError(
                400,
                f"the conversation {name!r} had no room for its last response; list its items, and begin a "
                "new one with what is to stay, or start with a higher --keep-bytes",
            )
        return talk

    def keep(self, asked: ResponsesRequest, before: Past, made: Response) -> None:
        """Keep a response that is complete, unless its request says not to, and add it to its conversation,
        which stays as it was, and does not go on, where there is no room for it."""
        told = made.model_dump(mode="json", exclude_unset=True, by_alias=True)
        own = [item.named() for item in asked.items]
        output = ITEMS.validate_python(told["output"])
        if asked.store is not False:
            past = before.and_then(own)
            self.put(made.id, KeptResponse(told, past.items, past.and_then(output)))
        talk = self._all.get(asked.conversation_id or "", (None, 0))[0]
        if isinstance(talk, Conversation):
            longer = replace(talk, past=talk.past.and_then([*own, *output]))
            if not self.put(talk.id, longer):
                self.put(talk.id, replace(talk, is_full=True))

    def change(self, talk: Conversation) -> Conversation:
        """Keep a conversation, new or as it is now. ApiError where there is no room for it."""
        if self.put(talk.id, talk):
            return talk
        if not self._most:
            raise ApiError(501, "this server keeps no conversations", code="not_supported")
        raise ApiError(
            413,
            f"the conversation would have {talk.nbytes} bytes, and {self._most_bytes} is the limit of all "
            "that is kept; begin a new one, or start with a higher --keep-bytes",
            code="too_large",
        )


def _size(told: Mapping[str, Any]) -> int:
    return len(json.dumps(told))


class ItemsRequest(Fields):
    """POST /v1/conversations/ID/items."""

    items: Annotated[list[AnyItem], Field(max_length=MOST_ITEMS)]


class ConversationRequest(Fields):
    """POST /v1/conversations."""

    items: Annotated[list[AnyItem], Field(max_length=MOST_ITEMS)] | None = None
    metadata: dict[str, str] | None = None


class ConversationChange(Fields):
    """POST /v1/conversations/ID."""

    metadata: dict[str, str]


class Paging:
    """Which items of a list are wanted: so many, after one by its id, the newest first unless it says asc."""

    def __init__(
        self,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MOST_PAGE)] = PAGE,
        order: Literal["asc", "desc"] = "desc",
    ) -> None:
        self.after, self.limit, self.order = after, limit, order

    def told(self, items: Sequence[EachItem]) -> dict[str, Any]:
        """ApiError 400 where none has the id."""
        each = list(items if self.order == "asc" else reversed(items))
        if self.after is not None:
            places = [place for place, item in enumerate(each) if item.id == self.after]
            if not places:
                raise ApiError(
                    400,
                    f"after is {self.after[:80]!r}, and no item here has this id",
                    "after",
                    "invalid_value",
                )
            each = each[places[0] + 1 :]
        shown = each[: self.limit]
        ends = (
            {"first_id": shown[0].id, "last_id": shown[-1].id} if shown else {"first_id": "", "last_id": ""}
        )
        told = [item.told for item in shown]
        return {"object": "list", "data": told, **ends, "has_more": len(each) > len(shown)}


def _kept(request: Request) -> Kept:
    kept: Kept = request.app.state.kept
    return kept


Keeping = Annotated[Kept, Depends(_kept)]
Page = Annotated[Paging, Depends()]


def add_kept(app: FastAPI) -> None:
    """What is done with what is kept."""
    _add_responses(app)
    _add_conversations(app)


def _add_responses(app: FastAPI) -> None:
    @app.get("/v1/responses/{name}")
    async def retrieve(name: str, kept: Keeping, stream: bool = False) -> Mapping[str, Any]:
        told = kept.response(name).told
        if stream:
            raise ApiError(
                400, "a response that is kept is told whole; leave stream out", "stream", "invalid_value"
            )
        return told

    @app.delete("/v1/responses/{name}")
    async def delete(name: str, kept: Keeping) -> Mapping[str, Any]:
        kept.response(name)
        kept.drop(name)
        return {"id": name, "object": "response", "deleted": True}

    @app.get("/v1/responses/{name}/input_items")
    async def input_items(name: str, kept: Keeping, page: Page) -> Mapping[str, Any]:
        return page.told(kept.response(name).asked)

    @app.post("/v1/responses/{name}/cancel")
    async def cancel(name: str, kept: Keeping) -> Mapping[str, Any]:
        kept.response(name)
        raise ApiError(
            400, "this response is complete; those that are made in the background can be cancelled"
        )


def _add_conversations(app: FastAPI) -> None:
    @app.post("/v1/conversations")
    async def create(body: ConversationRequest, kept: Keeping) -> Mapping[str, Any]:
        past = Past().and_then([item.named() for item in body.items or ()])
        return kept.change(Conversation(body.metadata or {}, past)).told

    @app.get("/v1/conversations/{name}")
    async def retrieve(name: str, kept: Keeping) -> Mapping[str, Any]:
        return kept.conversation(name).told

    @app.post("/v1/conversations/{name}")
    async def change(name: str, body: ConversationChange, kept: Keeping) -> Mapping[str, Any]:
        return kept.change(replace(kept.conversation(name), metadata=body.metadata)).told

    @app.delete("/v1/conversations/{name}")
    async def delete(name: str, kept: Keeping) -> Mapping[str, Any]:
        kept.conversation(name)
        kept.drop(name)
        return {"id": name, "object": "conversation.deleted", "deleted": True}

    @app.get("/v1/conversations/{name}/items")
    async def items(name: str, kept: Keeping, page: Page) -> Mapping[str, Any]:
        return page.told(kept.conversation(name).past.items)

    @app.post("/v1/conversations/{name}/items")
    async def add(name: str, body: ItemsRequest, kept: Keeping) -> Mapping[str, Any]:
        talk, added = kept.conversation(name), [item.named() for item in body.items]
        kept.change(replace(talk, past=talk.past.and_then(added)))
        return Paging(limit=len(added), order="asc").told(added)

    @app.get("/v1/conversations/{name}/items/{item}")
    async def item_of(name: str, item: str, kept: Keeping) -> Mapping[str, Any]:
        return kept.conversation(name).item(item).told

    @app.delete("/v1/conversations/{name}/items/{item}")
    async def remove(name: str, item: str, kept: Keeping) -> Mapping[str, Any]:
        talk = kept.conversation(name)
        gone = talk.item(item)
        past = Past().and_then([each for each in talk.past.items if each is not gone])
        return kept.change(replace(talk, past=past)).told
