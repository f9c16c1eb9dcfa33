"""Store responses and conversations of /v1/responses in memory, as OpenAI's API has them.

Their number and their bytes are limited; the oldest are evicted first.
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

from aerie.serve.common_fields import RequestFields
from aerie.serve.errors import ApiError
from aerie.serve.openai_format import new_id
from aerie.serve.response_items import AnyItem, TaggedItem
from aerie.serve.responses import ResponsesRequest

ITEMS: TypeAdapter[list[AnyItem]] = TypeAdapter(list[TaggedItem])
MAX_ITEMS_PER_REQUEST = 1000
"""Items that one request may add to a conversation."""
DEFAULT_PAGE_ITEMS, MAX_PAGE_ITEMS = 20, 100
"""Items of a page of a list, by default and at most; OpenAI's numbers."""


class ItemHistory(NamedTuple):
    """The items of a conversation, and about how many bytes they have as JSON."""

    items: tuple[AnyItem, ...] = ()
    nbytes: int = 0

    def extended_by(self, items: Sequence[AnyItem]) -> ItemHistory:
        """The history with these items appended."""
        return ItemHistory(
            (*self.items, *items), self.nbytes + sum(_json_bytes(item.to_json()) for item in items)
        )


@dataclass(frozen=True)
class StoredResponse:
    """A stored response. body: the JSON that was sent. input_items: the conversation before its output.
    history: the conversation with its output."""

    body: Mapping[str, Any]
    input_items: tuple[AnyItem, ...]
    history: ItemHistory

    @property
    def nbytes(self) -> int:
        return _json_bytes(self.body) + self.history.nbytes


@dataclass(frozen=True)
class StoredConversation:
    """A conversation that responses are added to. metadata: set by the client. is_full: the last response did
    not fit."""

    metadata: Mapping[str, str]
    history: ItemHistory
    is_full: bool = False
    id: str = field(default_factory=lambda: new_id("conv_"))
    created_at: int = field(default_factory=lambda: int(time.time()))

    @property
    def nbytes(self) -> int:
        return _json_bytes(self.metadata) + self.history.nbytes

    def to_json(self) -> dict[str, Any]:
        """The conversation as the API returns it."""
        return {
            "id": self.id,
            "object": "conversation",
            "created_at": self.created_at,
            "metadata": self.metadata,
        }

    def item(self, name: str) -> AnyItem:
        """The item with this id. Raises ApiError 404 if there is none."""
        for item in self.history.items:
            if item.id == name:
                return item
        raise ApiError(404, f"the conversation {self.id!r} has no item {name[:80]!r}; list its items")


class ResponseStore:
    """Responses and conversations by id. max_stored: limit of both together. max_bytes: limit of their JSON,
    where the history of a response counts with each later response."""

    def __init__(self, max_stored: int, max_bytes: int) -> None:
        self._max_stored, self._max_bytes = max_stored, max_bytes
        self._entries: OrderedDict[str, tuple[StoredResponse | StoredConversation, int]] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, name: str, entry: StoredResponse | StoredConversation) -> bool:
        """Store an entry as the newest, replacing the one with its name. Returns False if it does not fit."""
        nbytes = entry.nbytes
        if not self._max_stored or nbytes > self._max_bytes:
            return False
        self.remove(name)
        self._entries[name] = entry, nbytes
        self.nbytes += nbytes
        while len(self._entries) > self._max_stored or self.nbytes > self._max_bytes:
            self.nbytes -= self._entries.popitem(last=False)[1][1]
        return True

    def remove(self, name: str) -> None:
        """Remove an entry, if it is stored."""
        if name in self._entries:
            self.nbytes -= self._entries.pop(name)[1]

    def response(self, name: str) -> StoredResponse:
        """Raises ApiError 404 if there is no such response."""
        entry = self._entries.get(name, (None, 0))[0]
        if isinstance(entry, StoredResponse):
            return entry
        raise self._not_found("response", name)

    def conversation(self, name: str) -> StoredConversation:
        """Raises ApiError 404 if there is no such conversation."""
        entry = self._entries.get(name, (None, 0))[0]
        if isinstance(entry, StoredConversation):
            return entry
        raise self._not_found("conversation", name)

    def _not_found(self, kind: str, name: str) -> ApiError:
        reason = (
            f"it was never stored, was deleted, or was dropped for newer ones ({self._max_stored} are kept)"
            if self._max_stored
            else f"this server keeps no {kind}s; send the whole conversation as input"
        )
        return ApiError(404, f"there is no {kind} {name[:80]!r} here: {reason}", code=f"{kind}_not_found")

    def history_before(self, request: ResponsesRequest) -> ItemHistory:
        """The history that a request continues. Raises ApiError 400 if it is not stored or is full."""
        try:
            if request.previous_response_id is not None:
                return self.response(request.previous_response_id).history
            return (
                self._open_conversation(request.conversation_id).history
                if request.conversation_id
                else ItemHistory()
            )
        except ApiError as error:
            param = "conversation" if request.previous_response_id is None else "previous_response_id"
            is_full = error.status_code == 400
            code = "conversation_full" if is_full else f"{param.removesuffix('_id')}_not_found"
            raise ApiError(400, error.message, param, code) from error

    def _open_conversation(self, name: str) -> StoredConversation:
        """A conversation that can continue. Raises ApiError 400 if its last response is missing."""
        conversation = self.conversation(name)
        if conversation.is_full:
            raise ApiError(
                400,
                f"the conversation {name!r} had no room for its last response; list its items "
                "and start a new conversation with those to keep, or start the server with a "
                "higher --keep-bytes",
            )
        return conversation

    def store_response(self, request: ResponsesRequest, history: ItemHistory, response: Response) -> None:
        """Store a complete response, unless its request says not to, and add it to its conversation. If the
        conversation becomes too large, it stays unchanged and is marked full."""
        body = response.model_dump(mode="json", exclude_unset=True, by_alias=True)
        items = [item.with_id() for item in request.items]
        output = ITEMS.validate_python(body["output"])
        if request.store is not False:
            extended = history.extended_by(items)
            self.put(response.id, StoredResponse(body, extended.items, extended.extended_by(output)))
        conversation = self._entries.get(request.conversation_id or "", (None, 0))[0]
        if isinstance(conversation, StoredConversation):
            grown = replace(conversation, history=conversation.history.extended_by([*items, *output]))
            if not self.put(conversation.id, grown):
                self.put(conversation.id, replace(conversation, is_full=True))

    def store_conversation(self, conversation: StoredConversation) -> StoredConversation:
        """Store a new or changed conversation. Raises ApiError if it does not fit."""
        if self.put(conversation.id, conversation):
            return conversation
        if not self._max_stored:
            raise ApiError(501, "this server keeps no conversations", code="not_supported")
        raise ApiError(
            413,
            f"the conversation would have {conversation.nbytes} bytes, and {self._max_bytes} is "
            "the limit of everything stored; start a new conversation, or start the server with "
            "a higher --keep-bytes",
            code="too_large",
        )


def _json_bytes(value: Mapping[str, Any]) -> int:
    return len(json.dumps(value))


class ItemsRequest(RequestFields):
    """POST /v1/conversations/ID/items."""

    items: Annotated[list[TaggedItem], Field(max_length=MAX_ITEMS_PER_REQUEST)]


class ConversationRequest(RequestFields):
    """POST /v1/conversations."""

    items: Annotated[list[TaggedItem], Field(max_length=MAX_ITEMS_PER_REQUEST)] | None = None
    metadata: dict[str, str] | None = None


class ConversationChange(RequestFields):
    """POST /v1/conversations/ID."""

    metadata: dict[str, str]


class Paging:
    """Query of a list: at most `limit` items, after the item with the id `after`, newest first unless order
    is "asc"."""

    def __init__(
        self,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE_ITEMS)] = DEFAULT_PAGE_ITEMS,
        order: Literal["asc", "desc"] = "desc",
    ) -> None:
        self.after, self.limit, self.order = after, limit, order

    def to_page(self, items: Sequence[AnyItem]) -> dict[str, Any]:
        """A page of the list as JSON. Raises ApiError 400 if no item has the id."""
        ordered = list(items if self.order == "asc" else reversed(items))
        if self.after is not None:
            positions = [position for position, item in enumerate(ordered) if item.id == self.after]
            if not positions:
                raise ApiError(
                    400,
                    f"after is {self.after[:80]!r}, and no item here has this id",
                    "after",
                    "invalid_value",
                )
            ordered = ordered[positions[0] + 1 :]
        shown = ordered[: self.limit]
        ends = (
            {"first_id": shown[0].id, "last_id": shown[-1].id} if shown else {"first_id": "", "last_id": ""}
        )
        data = [item.to_json() for item in shown]
        return {"object": "list", "data": data, **ends, "has_more": len(ordered) > len(shown)}


def _store(request: Request) -> ResponseStore:
    store: ResponseStore = request.app.state.store
    return store


StoreDependency = Annotated[ResponseStore, Depends(_store)]
PageQuery = Annotated[Paging, Depends()]


def add_store_routes(app: FastAPI) -> None:
    """Add the routes of stored responses and conversations."""
    _add_responses(app)
    _add_conversations(app)


def _add_responses(app: FastAPI) -> None:
    @app.get("/v1/responses/{name}")
    async def retrieve(name: str, store: StoreDependency, stream: bool = False) -> Mapping[str, Any]:
        body = store.response(name).body
        if stream:
            raise ApiError(
                400, "a stored response cannot be streamed; remove stream", "stream", "invalid_value"
            )
        return body

    @app.delete("/v1/responses/{name}")
    async def delete(name: str, store: StoreDependency) -> Mapping[str, Any]:
        store.response(name)
        store.remove(name)
        return {"id": name, "object": "response", "deleted": True}

    @app.get("/v1/responses/{name}/input_items")
    async def input_items(name: str, store: StoreDependency, page: PageQuery) -> Mapping[str, Any]:
        return page.to_page(store.response(name).input_items)

    @app.post("/v1/responses/{name}/cancel")
    async def cancel(name: str, store: StoreDependency) -> Mapping[str, Any]:
        store.response(name)
        raise ApiError(
            400, "this response is complete; those that are made in the background can be cancelled"
        )


def _add_conversations(app: FastAPI) -> None:
    @app.post("/v1/conversations")
    async def create(body: ConversationRequest, store: StoreDependency) -> Mapping[str, Any]:
        history = ItemHistory().extended_by([item.with_id() for item in body.items or ()])
        return store.store_conversation(StoredConversation(body.metadata or {}, history)).to_json()

    @app.get("/v1/conversations/{name}")
    async def retrieve(name: str, store: StoreDependency) -> Mapping[str, Any]:
        return store.conversation(name).to_json()

    @app.post("/v1/conversations/{name}")
    async def change(name: str, body: ConversationChange, store: StoreDependency) -> Mapping[str, Any]:
        return store.store_conversation(replace(store.conversation(name), metadata=body.metadata)).to_json()

    @app.delete("/v1/conversations/{name}")
    async def delete(name: str, store: StoreDependency) -> Mapping[str, Any]:
        store.conversation(name)
        store.remove(name)
        return {"id": name, "object": "conversation.deleted", "deleted": True}

    @app.get("/v1/conversations/{name}/items")
    async def items(name: str, store: StoreDependency, page: PageQuery) -> Mapping[str, Any]:
        return page.to_page(store.conversation(name).history.items)

    @app.post("/v1/conversations/{name}/items")
    async def add(name: str, body: ItemsRequest, store: StoreDependency) -> Mapping[str, Any]:
        conversation, added = store.conversation(name), [item.with_id() for item in body.items]
        store.store_conversation(replace(conversation, history=conversation.history.extended_by(added)))
        return Paging(limit=len(added), order="asc").to_page(added)

    @app.get("/v1/conversations/{name}/items/{item}")
    async def item_of(name: str, item: str, store: StoreDependency) -> Mapping[str, Any]:
        return store.conversation(name).item(item).to_json()

    @app.delete("/v1/conversations/{name}/items/{item}")
    async def remove(name: str, item: str, store: StoreDependency) -> Mapping[str, Any]:
        conversation = store.conversation(name)
        removed = conversation.item(item)
        history = ItemHistory().extended_by(
            [other for other in conversation.history.items if other is not removed]
        )
        return store.store_conversation(replace(conversation, history=history)).to_json()
