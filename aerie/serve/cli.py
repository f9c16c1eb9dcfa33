"""The command `aerie serve`: what may be asked for, and the server's life from its start to its end."""

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

from aerie.cli.arguments import Parser, add_commands, run_command
from aerie.cli.checkpoints import find_checkpoint
from aerie.common import folders
from aerie.common.errors import UserError
from aerie.engine.progress import Reporter
from aerie.runtime.memory import available_bytes
from aerie.serve.app import guarded, make_app
from aerie.serve.connections import Listening, room_for
from aerie.serve.flags import KEY, add_serve
from aerie.serve.front import Front
from aerie.serve.models import Memory, Models
from aerie.serve.naming import aliases_of, drafts_of, models_of
from aerie.serve.opening import Opening, Runtime, prompt_tokenizer
from aerie.serve.origins import is_own, origins_of
from aerie.serve.service import Limits, Offer
from aerie.serve.slot_files import Storage

INTERRUPTED = 130
SWITCH_S = 0.001
MOST_PORT = 65535


class Life(Protocol):
    """What ends with the server: Models, or a Front."""

    @property
    def is_over(self) -> bool: ...

    def drain(self) -> None: ...


class Server(Listening):
    """A server which at the first SIGTERM or Ctrl-C has answers under way finish."""

    def __init__(self, app: ASGIApp, service: Life, limits: Limits) -> None:
        super().__init__(app, limits)
        self._service, self.signal = service, 0

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # Python delivers signals there alone
            return
        before = {each: signal.signal(each, self._told) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _told(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or number
        self.handle_exit(number, frame)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if self.should_exit:
            self._service.drain()
        if self._service.is_over:
            self.should_exit = True
        return await super().on_tick(counter)


def make_server(models: Models) -> Server:
    """Ready to `run` with a socket that listens."""
    return Server(make_app(models), models, models.limits)


def serve(arguments: argparse.Namespace) -> int:
    """Serve models over HTTP, with OpenAI's API and a web page."""
    _share_the_interpreter()
    limits, report = _limits(arguments), Reporter()
    named = models_of(arguments.model, arguments.models_dir, arguments.name)
    drafts, aliases = drafts_of(arguments.draft, named), aliases_of(arguments.alias, named)
    runtime = Runtime(
        arguments.backend,
        arguments.numerics,
        arguments.variants,
        arguments.kv_pool,
        arguments.cache_dir or folders.programs_folder(),
        template_arguments=(*arguments.template_arg,),
        warm=arguments.warm,
    )
    (first, *others) = named
    with _listen(arguments.host, arguments.port) as listening:
        said = f"{first} at {_address(listening)}; Ctrl-C ends"
        if arguments.replicas or arguments.max_replicas or arguments.cluster:
            _check_replicas(arguments, others)
            recipe = (
                first,
                named[first],
                runtime._replace(draft=drafts[first]),
                replace(limits, kept=0),
                (*aliases[first],),
            )
            return _serve_replicas(arguments, recipe, listening, said)
        models = _models(arguments, named, drafts, aliases, runtime, limits)
        server = make_server(models)
        _log()
        report.note(said)
        if others:
            report.note(f"loaded when they are asked for: {', '.join(others)}")
        server.run(sockets=[listening])
    if error := models.error:
        raise error
    return _code(server)


def _share_the_interpreter() -> None:
    """A thread that runs Python, as one that reads a long prompt, makes room for others after a millisecond:
    the event loop and the model's steps wait so long each time that they come back from C. And what is
    imported is not looked through for garbage whenever much is read: that takes a tenth of a second, and all
    wait."""
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()


def _models(
    arguments: argparse.Namespace,
    named: Mapping[str, str],
    drafts: Mapping[str, str | None],
    aliases: Mapping[str, Sequence[str]],
    runtime: Runtime,
    limits: Limits,
) -> Models:
    """Where there are several, their memory is limited whether it is said or not. Each has a backend of its
    own, as it gives the device back when it is unloaded, and others do not."""
    limit = arguments.memory
    if limit is None and len(named) > 1:
        limit = available_bytes()
    offers = []
    for name, model in named.items():
        given = runtime.options(), Reporter(), drafts[name], limit, runtime.template_arguments, runtime.warm
        opening = Opening(model, *given)
        offers.append(Offer(name, opening.open, opening.needs if limit is not None else int, aliases[name]))
    return Models(offers, limits, Memory(limit), arguments.preload, arguments.idle_unload)


def _check_replicas(arguments: argparse.Namespace, others: Sequence[str]) -> None:
    """UserError for what is of one engine."""
    if others:
        raise UserError(
            f"--replicas serves one model, and {len(others) + 1} were named; serve without replicas, or each "
            "model by a server of its own"
        )
    given = {
        "--memory": arguments.memory,
        "--idle-unload": arguments.idle_unload,
        "--preload": arguments.preload or None,
    }
    if named := [name for name, value in given.items() if value is not None]:
        raise UserError(f"{named[0]} is of one engine, and replicas keep their model loaded; leave it out")


def _code(server: Server) -> int:
    return INTERRUPTED if server.signal == signal.SIGINT else 0


def _serve_replicas(
    arguments: argparse.Namespace,
    recipe: tuple[str, str, Runtime, Limits, tuple[str, ...]],
    listening: socket.socket,
    said: str,
) -> int:
    """The front in this process, and replicas under Ray. UserError where that is not installed."""
    least = arguments.replicas or 1
    most = arguments.max_replicas or least
    if most < least:
        raise UserError(
            f"--max-replicas is {most}, below --replicas, which is {least}; give it more, or leave it out"
        )
    if arguments.slot_save_path:
        raise UserError(
            "--slot-save-path is of one engine, and with --replicas a client cannot say which has its slot; "
            "serve without replicas, or without slots"
        )
    if arguments.keep_responses:
        raise UserError(
            f"--keep-responses is {arguments.keep_responses}, and with --replicas a client cannot say which "
            "has its response; serve without replicas, or leave it out"
        )
    try:
        from aerie.serve import replicas
    except ImportError:
        raise UserError(
            f"--replicas is {least}, and Ray, which runs them, is not installed; pip install 'ray[serve]', "
            "or serve without"
        ) from None
    tokenizer = prompt_tokenizer(find_checkpoint(recipe[1]), arguments.template_arg)
    limits, report = recipe[3], Reporter()
    report.note(f"{least} replicas are started")
    with replicas.running(replicas.Recipe(*recipe), least, most, arguments.cluster) as ask:
        front = Front(ask, tokenizer, limits, replicas.FULL)
        server = Server(guarded(front, front), front, limits)
        _log()
        report.note(said)
        server.run(sockets=[listening])
    return _code(server)


def _limits(arguments: argparse.Namespace) -> Limits:
    """UserError where others could ask without a key."""
    key, is_local = _key(arguments.api_key), is_own(arguments.host)
    if not is_local and key is None:
        raise UserError(
            f"--host {arguments.host} lets other machines ask, and there is no API key; give --api-key, "
            f"or set {KEY.name}, or listen on 127.0.0.1"
        )
    return Limits(
        arguments.queue,
        arguments.time_limit,
        arguments.drain,
        body_bytes=arguments.max_body,
        api_key=key,
        origins=origins_of(arguments.cors_origin, key is not None),
        is_local=is_local,
        connections=room_for(arguments.connections),
        head_s=arguments.head_time,
        body_s=arguments.body_time,
        send_s=arguments.send_time,
        slots=_storage(arguments.slot_save_path, arguments.slot_save_bytes),
        load_s=arguments.load_wait,
        kept=Limits.kept if arguments.keep_responses is None else arguments.keep_responses,
        kept_bytes=arguments.keep_bytes,
    )


def _storage(folder: Path | None, most_bytes: int) -> Storage | None:
    """The folder for slots, which is made where it is not there. UserError where it cannot be used."""
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--slot-save-path is {folder}, and cannot be used ({error.strerror}); name another folder"
        ) from None
    return Storage(folder, most_bytes)


def _key(given: str | None) -> str | None:
    """The API key, of the flag or the environment; None where there is none. UserError for one that no client
    could send."""
    name, key = (KEY.name, KEY.get() or None) if given is None else ("--api-key", given)
    if key is None:
        return None
    if not key.strip():
        raise UserError(f"{name} is blank, which would let everybody in; give a key, or leave it out")
    if key != key.strip() or not all(" " <= each <= "~" for each in key):
        raise UserError(
            f"{name} holds blanks around it, control characters or some beyond ASCII, which clients cannot "
            "send in a header; give another key"
        )
    return key


def _listen(host: str, port: int) -> socket.socket:
    """A socket there. UserError where that cannot be had."""
    if port > MOST_PORT:
        raise UserError(
            f"--port is {port}, and ports go to {MOST_PORT}; give another, or 0 for any that is free"
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


def _log() -> None:
    """What is logged goes where notes go, with its time."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    for name, level in (("aerie.serve", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="aerie", description="A model as a service.")
    add_commands(parser, ("serve", serve, [add_serve]))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    return run_command(build_parser(), argv)
