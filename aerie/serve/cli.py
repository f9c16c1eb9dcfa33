"""The command `aerie serve`, and the life of the server from start to end."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Protocol

from starlette.types import ASGIApp

from aerie.cli.checkpoints import find_checkpoint
from aerie.cli.command_line import CommandParser, add_commands, run_command
from aerie.common import folders
from aerie.common.errors import UserError
from aerie.engine.reporter import Reporter
from aerie.runtime.memory import available_bytes
from aerie.serve.app import make_app, with_guards
from aerie.serve.arguments import KEY, add_serve
from aerie.serve.connections import ListeningServer, max_connections
from aerie.serve.load_progress import WatchedReporter
from aerie.serve.model_names import parse_aliases, parse_drafts, parse_models
from aerie.serve.model_spec import ModelFlags, ModelSpec, prompt_tokenizer
from aerie.serve.models import MemoryLimit, ModelManager
from aerie.serve.origins import is_local_name, parse_origins
from aerie.serve.replica_proxy import ReplicaProxy
from aerie.serve.service import ServedModel, ServerLimits
from aerie.serve.slot_files import SlotFolder

INTERRUPTED = 130
THREAD_SWITCH_S = 0.001
MAX_PORT = 65535


class ServerLife(Protocol):
    """What ends together with the server: a ModelManager or a ReplicaProxy."""

    @property
    def is_over(self) -> bool: ...

    def drain(self) -> None: ...


class DrainingServer(ListeningServer):
    """A server that finishes running requests after the first SIGTERM or Ctrl-C."""

    def __init__(self, app: ASGIApp, service: ServerLife, limits: ServerLimits) -> None:
        super().__init__(app, limits)
        self._service, self.signal = service, 0

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # Python delivers signals in the main thread only
            return
        before = {each: signal.signal(each, self._on_signal) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or number
        self.handle_exit(number, frame)

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second."""
        if self.should_exit:
            self._service.drain()
        if self._service.is_over:
            self.should_exit = True
        return await super().on_tick(counter)


def make_server(models: ModelManager) -> DrainingServer:
    """A server that is ready to `run` with a listening socket."""
    return DrainingServer(make_app(models), models, models.limits)


def serve(arguments: argparse.Namespace) -> int:
    """Serve models over HTTP, with OpenAI's API and a web page."""
    _tune_interpreter()
    limits, report = _limits(arguments), Reporter()
    models_by_name = parse_models(arguments.model, arguments.models_dir, arguments.name)
    drafts = parse_drafts(arguments.draft, models_by_name)
    aliases = parse_aliases(arguments.alias, models_by_name)
    runtime = ModelFlags(
        arguments.backend,
        arguments.numerics,
        arguments.variants,
        arguments.kv_pool,
        arguments.cache_dir or folders.programs_folder(),
        template_arguments=(*arguments.template_arg,),
        load_all_programs=arguments.warm,
        weights=arguments.weights,
        max_positions=arguments.max_model_len,
    )
    (first, *others) = models_by_name
    with _listen(arguments.host, arguments.port) as listening:
        address_line = f"{first} at {_address(listening)}; Ctrl-C ends"
        if arguments.replicas or arguments.max_replicas or arguments.cluster:
            _check_replicas(arguments, others)
            recipe = (
                first,
                models_by_name[first],
                runtime._replace(draft=drafts[first]),
                replace(limits, max_stored=0),
                (*aliases[first],),
            )
            return _serve_replicas(arguments, recipe, listening, address_line)
        models = _make_models(arguments, models_by_name, drafts, aliases, runtime, limits)
        server = make_server(models)
        _setup_logging()
        report.note(address_line)
        if others:
            report.note(f"loaded on their first request: {', '.join(others)}")
        server.run(sockets=[listening])
    if error := models.error:
        raise error
    return _exit_status(server)


def _tune_interpreter() -> None:
    """Let threads that run Python (encoding a long prompt) give way after a millisecond: the event loop and
    the engine steps wait that long each time they return from C. Exempt imported modules from garbage
    collection, which would stop all threads for a tenth of a second."""
    sys.setswitchinterval(THREAD_SWITCH_S)
    gc.collect()
    gc.freeze()


def _make_models(
    arguments: argparse.Namespace,
    models_by_name: Mapping[str, str],
    drafts: Mapping[str, str | None],
    aliases: Mapping[str, Sequence[str]],
    runtime: ModelFlags,
    limits: ServerLimits,
) -> ModelManager:
    """The models of the command line. Several models always have a memory limit. Each has its own backend, as
    unloading a model closes the device."""
    limit = arguments.memory
    if limit is None and len(models_by_name) > 1:
        limit = available_bytes()
    offers = []
    for name, model in models_by_name.items():
        reporter = WatchedReporter()
        extras = (
            runtime.runtime_options(),
            reporter,
            drafts[name],
            limit,
            runtime.template_arguments,
            runtime.load_all_programs,
        )
        spec = ModelSpec(model, *extras)
        memory_bytes = spec.memory_bytes if limit is not None else int
        offers.append(ServedModel(name, spec.open, memory_bytes, aliases[name], reporter))
    return ModelManager(offers, limits, MemoryLimit(limit), arguments.preload, arguments.idle_unload)


def _check_replicas(arguments: argparse.Namespace, others: Sequence[str]) -> None:
    """Raise UserError for flags that replicas do not support."""
    if others:
        raise UserError(
            f"--replicas serves one model, and {len(others) + 1} were named; serve without replicas, or each "
            "model by a server of its own"
        )
    flags = {
        "--memory": arguments.memory,
        "--idle-unload": arguments.idle_unload,
        "--preload": arguments.preload or None,
    }
    if set_flags := [name for name, value in flags.items() if value is not None]:
        raise UserError(
            f"{set_flags[0]} is of one engine, and replicas keep their model loaded; leave it out"
        )


def _exit_status(server: DrainingServer) -> int:
    return INTERRUPTED if server.signal == signal.SIGINT else 0


def _serve_replicas(
    arguments: argparse.Namespace,
    recipe: tuple[str, str, ModelFlags, ServerLimits, tuple[str, ...]],
    listening: socket.socket,
    address_line: str,
) -> int:
    """Run the proxy in this process, and replicas under Ray. Raises UserError if Ray is not installed or a
    flag does not fit."""
    min_replicas = arguments.replicas or 1
    max_replicas = arguments.max_replicas or min_replicas
    if max_replicas < min_replicas:
        raise UserError(
            f"--max-replicas is {max_replicas}, below --replicas, which is {min_replicas}; give it "
            "more, or leave it out"
        )
    if arguments.slot_save_path:
        raise UserError(
            "--slot-save-path works with one engine, and with --replicas a client cannot name "
            "the replica of its slot; serve without replicas, or without slots"
        )
    if arguments.keep_responses:
        raise UserError(
            f"--keep-responses is {arguments.keep_responses}, and with --replicas a client "
            "cannot name the replica that stores its response; serve without replicas, or leave "
            "it out"
        )
    try:
        from aerie.serve import replicas
    except ImportError:
        raise UserError(
            f"--replicas is {min_replicas}, and Ray, which runs them, is not installed; pip install "
            "'ray[serve]', or serve without"
        ) from None
    tokenizer = prompt_tokenizer(find_checkpoint(recipe[1]), arguments.template_arg)
    limits, report = recipe[3], Reporter()
    report.note(f"{min_replicas} replicas are started")
    with replicas.running_replicas(
        replicas.ReplicaConfig(*recipe), min_replicas, max_replicas, arguments.cluster
    ) as send:
        proxy = ReplicaProxy(send, tokenizer, limits, replicas.QUEUE_FULL_ERROR)
        server = DrainingServer(with_guards(proxy, proxy), proxy, limits)
        _setup_logging()
        report.note(address_line)
        server.run(sockets=[listening])
    return _exit_status(server)


def _limits(arguments: argparse.Namespace) -> ServerLimits:
    """The limits of the command line. Raises UserError if other machines could send requests without a
    key."""
    key, is_local = _api_key(arguments.api_key), is_local_name(arguments.host)
    if not is_local and key is None:
        raise UserError(
            f"--host {arguments.host} lets other machines ask, and there is no API key; give --api-key, "
            f"or set {KEY.name}, or listen on 127.0.0.1"
        )
    return ServerLimits(
        arguments.queue,
        arguments.time_limit,
        arguments.drain,
        body_bytes=arguments.max_body,
        api_key=key,
        origins=parse_origins(arguments.cors_origin, key is not None),
        is_local=is_local,
        connections=max_connections(arguments.connections),
        head_s=arguments.head_time,
        body_s=arguments.body_time,
        send_s=arguments.send_time,
        slot_folder=_slot_folder(arguments.slot_save_path, arguments.slot_save_bytes),
        load_wait_s=arguments.load_wait,
        max_stored=ServerLimits.max_stored if arguments.keep_responses is None else arguments.keep_responses,
        max_stored_bytes=arguments.keep_bytes,
        thinking_budget=arguments.thinking_budget,
    )


def _slot_folder(folder: Path | None, most_bytes: int) -> SlotFolder | None:
    """The folder for slot files, created if needed. Raises UserError if it cannot be used."""
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--slot-save-path is {folder}, and cannot be used ({error.strerror}); name another folder"
        ) from None
    return SlotFolder(folder, most_bytes)


def _api_key(value: str | None) -> str | None:
    """The API key of the flag or the variable; None if there is none. Raises UserError if no client could
    send it."""
    name, key = (KEY.name, KEY.get() or None) if value is None else ("--api-key", value)
    if key is None:
        return None
    if not key.strip():
        raise UserError(f"{name} is blank, which would let everybody in; give a key, or leave it out")
    if key != key.strip() or not all(" " <= char <= "~" for char in key):
        raise UserError(
            f"{name} has blanks around it, control characters or characters outside of ASCII, "
            "which clients cannot send in a header; give another key"
        )
    return key


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises UserError if the address cannot be used."""
    if port > MAX_PORT:
        raise UserError(
            f"--port is {port}, and ports go to {MAX_PORT}; give another, or 0 for any that is free"
        )
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number and number > 0 else error
        raise UserError(
            f"cannot listen on {host} port {port} ({reason}); give another --host or --port"
        ) from None
    # Connections take it over. asyncio sets it where a socket's protocol is named, which create_server leaves
    # out; without it the second event of a stream waits 40 ms for a client that acknowledges late.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _setup_logging() -> None:
    """Log to standard error, with the time."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    for name, level in (("aerie.serve", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


def build_parser() -> argparse.ArgumentParser:
    """The parser of `aerie serve`."""
    parser = CommandParser(prog="aerie", description="A model as a service.")
    add_commands(parser, ("serve", serve, [add_serve]))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    return run_command(build_parser(), argv)
