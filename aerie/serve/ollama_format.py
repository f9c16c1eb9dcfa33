"""Responses in Ollama's format: answers as lines of JSON, and descriptions of models."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from aerie.engine.call_reader import ToolCall, ToolCallDelta
from aerie.engine.config import ModelConfig
from aerie.serve.errors import ApiError
from aerie.serve.event_stream import json_line
from aerie.serve.metrics import RequestLog
from aerie.serve.models import LATEST
from aerie.serve.openai_format import finite_logprob, new_id
from aerie.serve.output_processor import LENGTH, FinishInfo, OutputDelta, Timings, TokenLogprob
from aerie.serve.request_outputs import CompletedOutput
from aerie.serve.service import ModelService, ModelState

API_VERSION: Final = "0.9.0"
"""The version of Ollama whose addresses and fields are served: clients refuse an older one."""
NO_EXPIRY_S: Final = 100 * 365 * 86_400
"""How far away the expiry of a model that stays loaded is; Ollama's client shows it as Forever."""


def timestamp(since_1970_s: float | None = None) -> str:
    """A time as in RFC 3339, in UTC; now by default."""
    when = time.time() if since_1970_s is None else since_1970_s
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def durations(log: RequestLog) -> dict[str, int]:
    """Times of a request: since its arrival, and for loading its model."""
    total_s = time.perf_counter() - log.began_s
    return {"total_duration": nanoseconds(total_s), "load_duration": nanoseconds(log.load_s)}


def loaded_body(model: str, is_chat: bool, reason: str) -> dict[str, Any]:
    """The response of a request that only loads or unloads the model. reason: "load" or "unload"."""
    text = {"message": _message("")} if is_chat else {"response": ""}
    return {"model": model, "created_at": timestamp(), **text, "done": True, "done_reason": reason}


def _message(text: str, thinking: str = "", calls: Sequence[ToolCall] = ()) -> dict[str, Any]:
    bodies = [body for call in calls if (body := _tool_call(call))]
    message = {"role": "assistant", "content": text, **_thinking_field(thinking)}
    return {**message, "tool_calls": bodies} if bodies else message


def _thinking_field(thinking: str) -> dict[str, Any]:
    return {"thinking": thinking} if thinking else {}


def _tool_call(call: ToolCall) -> dict[str, Any] | None:
    """A call; None if its arguments are truncated."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        return None
    return {"id": new_id("call_"), "function": {"name": call.name, "arguments": arguments}}


class OllamaWriter:
    """Writes /api/chat and /api/generate. model: the name that the request gave. A tool call is written when
    it is complete."""

    def __init__(self, model: str, is_chat: bool, log: RequestLog) -> None:
        self._model, self._is_chat, self._log = model, is_chat, log
        self._call: ToolCall | None = None
        """The call that is being generated."""

    def write_whole(self, outputs: Sequence[CompletedOutput]) -> dict[str, Any]:
        (output,) = outputs
        assert output.finish is not None
        body = self._body(output.text, output.thinking, output.tool_calls, output.logprobs)
        return {**body, **self._final_fields(output.finish, output.timings)}

    def delta_events(self, delta: OutputDelta) -> Iterator[bytes]:
        calls = list(self._completed_calls(delta.tool_calls))
        if delta.finish and self._call:
            calls.append(self._call)
        if delta.text or delta.thinking or calls or delta.logprobs:
            body = self._body(delta.text, delta.thinking, calls, delta.logprobs)
            yield json_line({**body, "done": False})
        if delta.finish:
            yield json_line({**self._body(""), **self._final_fields(delta.finish, delta.timings)})

    def _completed_calls(self, deltas: Sequence[ToolCallDelta]) -> Iterator[ToolCall]:
        """Add deltas to the current call, and yield each call that another one follows."""
        for delta in deltas:
            if delta.name is not None:
                if self._call:
                    yield self._call
                self._call = ToolCall(delta.name, delta.arguments)
            elif self._call:
                self._call = self._call._replace(arguments=self._call.arguments + delta.arguments)

    def final_events(self, finished: Mapping[int, FinishInfo]) -> Iterator[bytes]:  # noqa: ARG002
        return iter(())

    def error_event(self, error: ApiError) -> bytes:
        return json_line(error.ollama_body)

    def _body(
        self,
        text: str,
        thinking: str = "",
        calls: Sequence[ToolCall] = (),
        logprobs: Sequence[TokenLogprob] = (),
    ) -> dict[str, Any]:
        if self._is_chat:
            content: dict[str, Any] = {"message": _message(text, thinking, calls)}
        else:
            content = {"response": text, **_thinking_field(thinking)}
        body = {"model": self._model, "created_at": timestamp(), **content}
        return {**body, "logprobs": [_logprob(each) for each in logprobs]} if logprobs else body

    def _final_fields(self, finish: FinishInfo, timings: Timings) -> dict[str, Any]:
        return {
            "done": True,
            "done_reason": "length" if finish.reason == LENGTH else "stop",
            **durations(self._log),
            "prompt_eval_count": finish.prompt_tokens,
            "prompt_eval_duration": nanoseconds(timings.prefill_s),
            "eval_count": finish.completion_tokens,
            "eval_duration": nanoseconds(timings.decode_s),
        }


def _logprob(logprob: TokenLogprob) -> dict[str, Any]:
    def entry(text: str, data: bytes, log: float | None) -> dict[str, Any]:
        return {"token": text, "logprob": finite_logprob(log), "bytes": list(data)}

    top = [entry(each.text, each.data, each.logprob) for each in logprob.top]
    body = entry(logprob.text, logprob.data, logprob.logprob)
    return {**body, "top_logprobs": top} if top else body


def tagged(name: str) -> str:
    """The name of a model with a tag, as Ollama's clients show it."""
    return name if ":" in name else name + LATEST


def listed_model(service: ModelService) -> dict[str, Any]:
    """A model in /api/tags. size: its estimated memory in bytes, 0 before it is loaded. digest: of its name,
    so that it distinguishes the models of one server, and says nothing of their weights."""
    name = tagged(service.name)
    return {
        "name": name,
        "model": name,
        "modified_at": timestamp(service.began),
        "size": service.memory_bytes,
        "digest": hashlib.sha256(name.encode()).hexdigest(),
        "details": details(service),
    }


def loaded_model(service: ModelService, idle_s: float | None, now_s: float) -> dict[str, Any]:
    """A model in /api/ps. idle_s: after how long without a request it is unloaded. now_s: the loop's time, in
    which the service says when it was last used."""
    left_s = NO_EXPIRY_S if idle_s is None else max(0.0, service.used_s + idle_s - now_s)
    body = listed_model(service)
    del body["modified_at"]
    return {
        **body,
        "expires_at": timestamp(time.time() + left_s),
        "size_vram": service.memory_bytes,
        "context_length": service.positions or 0,
    }


def is_loaded(service: ModelService) -> bool:
    return service.state is ModelState.LOADED


def details(service: ModelService) -> dict[str, Any]:
    """What kind of model it is; empty texts before it is loaded."""
    config = service.opened.session.model.config if service.opened else None
    family = config.family.model_type if config else ""
    return {
        "parent_model": "",
        "format": "",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _short(_parameter_count(config)) if config else "",
        "quantization_level": "BF16" if config else "",
    }


def _parameter_count(config: ModelConfig) -> int:
    """Parameters of the layers' matrices, the embeddings and the LM head, without norms and biases."""
    tables = 1 if config.tie_word_embeddings else 2
    vocab_parameters = tables * config.vocab_size * config.hidden_size
    return config.layers_parameters + vocab_parameters


def _short(count: int) -> str:
    """A number of parameters in Ollama's form, such as 134.5M or 1.2B."""
    for unit, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= unit:
            return f"{count / unit:.1f}{letter}"
    return str(count)


def shown_model(service: ModelService) -> dict[str, Any]:
    """A model in /api/show. Before it is loaded, only what its name says."""
    opened = service.opened
    body: dict[str, Any] = {
        "modelfile": "",
        "parameters": "",
        "template": (opened.tokenizer.chat_template or "") if opened else "",
        "details": details(service),
        "model_info": {},
        "modified_at": timestamp(service.began),
        "capabilities": ["completion", "tools"],
    }
    if opened and opened.session.model.config.roles.pooling:
        body["capabilities"] = ["embedding"]
    if opened:
        body["model_info"] = _model_info(opened.session.model.config, opened.session.model.positions)
        if opened.tokenizer.thinking_tags:
            body["capabilities"].append("thinking")
    return body


def _model_info(config: ModelConfig, positions: int) -> dict[str, Any]:
    family = config.family.model_type
    entries = {
        "context_length": positions,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "rope.freq_base": config.rope_theta,
        "vocab_size": config.vocab_size,
    }
    general = {"architecture": family, "parameter_count": _parameter_count(config)}
    return {
        **{f"general.{name}": value for name, value in general.items()},
        **{f"{family}.{name}": value for name, value in entries.items()},
    }
