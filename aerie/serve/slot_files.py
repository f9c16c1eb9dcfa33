"""POST /slots/ID?action=save, restore and erase, in the words of llama.cpp's tools/server/README.md.

Reading and writing go on in a thread of their own, one file at a time, beside the model's steps: its thread
takes hold of pages and lets them go (aerie/engine/saved_pages.py). Files are by their names in one folder.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import reprlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from aerie.common.errors import UserError
from aerie.engine.pages import Paged, PoolFullError, page_bytes
from aerie.engine.saved import MadeBy
from aerie.engine.saved_pages import PagesFile, held, write_pages
from aerie.serve.common_fields import Fields, Text
from aerie.serve.errors import ApiError, of_engine
from aerie.serve.slots import Slots
from aerie.serve.worker import Opened, Worker

Made = TypeVar("Made")
ACTIONS = ("save", "restore", "erase")
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
"""Of a file: no separator, and no dot in front, so that none is outside the folder, or hidden."""


class SlotRequest(Fields):
    """POST /slots/ID. filename: of save and restore; of no use to erase, and taken."""

    filename: Text | None = None
    model: str | None = None


class Storage(NamedTuple):
    """A folder for files of slots, which have so many bytes together at most."""

    folder: Path
    most_bytes: int


class SlotFiles:
    """What is done with slots. storage: None where the server has none."""

    def __init__(self, storage: Storage | None) -> None:
        self._storage = storage
        self._thread = ThreadPoolExecutor(1, "slots")

    def end(self) -> None:
        """Take no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def act(self, worker: Worker, slot: str, action: str, filename: str | None) -> dict[str, Any]:
        """What an action comes to. Raises ApiError. It is done to its end, whether somebody listens or not:
        pages that are read or written stay held."""
        if self._storage is None:
            raise ApiError(
                501, "this server saves no slots; start it with --slot-save-path", code="not_supported"
            )
        number = _number(slot, len(worker.slots.all))
        if action == "erase":
            erased = await worker.call(partial(_erased, worker.slots, number))
            return {"id_slot": number, "n_erased": erased}
        if action not in ACTIONS:
            raise ApiError(
                400,
                f"action is {action[:80]!r}; give one of {', '.join(ACTIONS)}, as /slots/0?action=save",
                "action",
                "invalid_value",
            )
        work = self._saved if action == "save" else self._restored
        path = self._storage.folder / _name(filename)
        try:
            return await asyncio.shield(asyncio.ensure_future(work(worker, number, path)))
        except UserError as error:
            raise _without_folder(error, path) from error

    async def _saved(self, worker: Worker, number: int, path: Path) -> dict[str, Any]:
        begun = time.perf_counter()
        await self._marked(worker)
        sequence, made_by, nbytes = await worker.call(partial(_held, worker.slots, number))
        try:
            written, before = await self._apart(partial(self._write, sequence, path, made_by, nbytes))
        finally:
            sequence.pool.leave(sequence)
        return {
            "id_slot": number,
            "filename": path.name,
            "n_saved": sequence.length,
            "n_written": written,
            **({"before": before} if before else {}),
            "timings": {"save_ms": _ms(begun)},
        }

    def _write(self, sequence: Paged, path: Path, made_by: MadeBy, nbytes: int) -> tuple[int, str]:
        """The bytes of the file, and the name under which the one before is kept, where that had more: the
        pool may have lost what a slot had when it was saved last."""
        self._check_room(path, nbytes, path.name)
        fresh = path.with_name(f".{path.name[:120]}.new")
        try:
            write_pages(sequence, fresh, made_by)
        except UserError as error:
            told = _without_folder(error, fresh).message.replace(fresh.name, path.name)
            raise ApiError(507, told, code="not_written") from error
        try:
            size, before = fresh.stat().st_size, ""
            if path.is_file() and path.stat().st_size > size:
                self._check_room(fresh, size, path.name)
                before = path.rename(_aside(path)).name
            fresh.rename(path)
        finally:
            fresh.unlink(missing_ok=True)
        return size, before

    def _check_room(self, path: Path, nbytes: int, name: str) -> None:
        """ApiError 507 where a file of so many bytes has no room beside all others than `path`."""
        assert self._storage is not None
        others = sum(one.lstat().st_size for one in path.parent.iterdir() if one != path)
        if others + nbytes > self._storage.most_bytes:
            raise ApiError(
                507,
                f"slot {name} would have about {nbytes} bytes, the others have {others}, and "
                f"{self._storage.most_bytes} is the limit of all; save over another one, or start "
                "with a higher --slot-save-bytes",
                code="no_space",
            )

    async def _restored(self, worker: Worker, number: int, path: Path) -> dict[str, Any]:
        begun = time.perf_counter()
        if path.is_symlink() or not path.is_file():
            raise ApiError(
                404, f"no slot was saved as {path.name!r}; give the name that it was saved as", "filename"
            )
        await self._marked(worker)
        made_by = await worker.call(lambda opened: opened.session.pages_made_by(opened.scheduler))
        file = await self._apart(partial(PagesFile, path, made_by))
        sequence = await worker.call(lambda opened: file.room(opened.scheduler.pool))
        try:
            await self._apart(partial(file.fill, sequence))
            await worker.call(partial(_published, worker.slots, number, file, sequence))
        finally:
            sequence.pool.leave(sequence)
        return {
            "id_slot": number,
            "filename": path.name,
            "n_restored": len(file.token_ids),
            "n_read": path.stat().st_size,
            "timings": {"restore_ms": _ms(begun)},
        }

    async def _marked(self, worker: Worker) -> None:
        """Have the weights' fingerprint, which takes long the first time, before the model's thread asks."""
        if opened := worker.opened:
            await self._apart(opened.session.mark)

    async def _apart(self, work: Callable[[], Made]) -> Made:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _held(slots: Slots, number: int, opened: Opened) -> tuple[Paged, MadeBy, int]:
    """The pages of a slot, what made them, and the bytes that they take in a file, about."""
    tokens = slots.all[number].tokens
    if not tokens:
        raise ApiError(
            400,
            f"slot {number} has nothing: nobody asked with id_slot {number} yet, or it was erased",
            "id_slot",
            "nothing_to_save",
        )
    made_by = opened.session.pages_made_by(opened.scheduler)
    sequence = held(opened.scheduler.pool, tokens)
    return sequence, made_by, len(sequence.pages) * page_bytes(opened.session.model.stored)


def _aside(path: Path) -> Path:
    """The first name like this one that is free, and can be asked for."""
    names = (path.with_name(f"{path.name[:120]}.{number}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


def _published(slots: Slots, number: int, file: PagesFile, sequence: Paged, _: Opened) -> None:
    file.publish(sequence)
    slots.restore(number, file.token_ids)


def _erased(slots: Slots, number: int, opened: Opened) -> int:
    return slots.erase(number, opened.scheduler.pool)


def _number(slot: str, count: int) -> int:
    """Of a slot. ApiError 404."""
    if not (slot.isascii() and slot.isdecimal() and len(slot) < 5 and int(slot) < count):
        raise ApiError(404, f"there is no slot {slot[:80]!r}; there are 0 to {count - 1}", "id_slot")
    return int(slot)


def _name(given: str | None) -> str:
    """Of a file. ApiError for one that is not safe."""
    if given is None or not NAME.fullmatch(given):
        raise ApiError(
            400,
            f"filename is {reprlib.repr(given)}; give up to 128 letters, digits, '.', '-' and '_' of ASCII, "
            "the first of which is no '.'",
            "filename",
            "invalid_value",
        )
    return given


def _without_folder(error: UserError, path: Path) -> ApiError:
    """What is told to a client of an error that names the file: where it lies is nobody's business."""
    if isinstance(error, PoolFullError):
        return of_engine(error)
    return ApiError(400, str(error).replace(str(path), path.name), "filename", "invalid_value")


def _ms(begun: float) -> float:
    return round(1000 * (time.perf_counter() - begun), 3)
