"""POST /slots/ID?action=save, restore and erase, in the format of llama.cpp's tools/server/README.md.

Files are read and written in a thread, one at a time, while the model keeps stepping: the model thread only
takes and releases the pages (aerie/engine/saved_sequence.py). All files are in one folder.
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
from aerie.engine.page_manager import PoolFullError
from aerie.engine.page_pool import PagedSequence, page_bytes
from aerie.engine.saved_sequence import PagesFile, Provenance, cached_sequence, save_sequence
from aerie.serve.common_fields import RequestFields, Text
from aerie.serve.errors import ApiError, from_engine_error
from aerie.serve.slots import Slots
from aerie.serve.worker import ModelThread, OpenedModel

Result = TypeVar("Result")
ACTIONS = ("save", "restore", "erase")
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
"""A file name without separators or a leading dot, so that no file is outside the folder or hidden."""


class SlotRequest(RequestFields):
    """POST /slots/ID. filename: for save and restore; ignored by erase."""

    filename: Text | None = None
    model: str | None = None


class SlotFolder(NamedTuple):
    """A folder for slot files. max_bytes: limit of all files together."""

    folder: Path
    max_bytes: int


class SlotFiles:
    """Runs the actions on slots. slot_folder: None if the server saves no slots."""

    def __init__(self, slot_folder: SlotFolder | None) -> None:
        self._slot_folder = slot_folder
        self._thread = ThreadPoolExecutor(1, "slots")

    def end(self) -> None:
        """Stop the thread after the current file."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def run_action(
        self, worker: ModelThread, slot: str, action: str, filename: str | None
    ) -> dict[str, Any]:
        """Run an action and return the body of the response. Raises ApiError. The action completes even if
        the client disconnects, so that pages are released."""
        if self._slot_folder is None:
            raise ApiError(
                501, "this server saves no slots; start it with --slot-save-path", code="not_supported"
            )
        number = _slot_number(slot, len(worker.slots.all))
        if action == "erase":
            erased = await worker.run_in_thread(partial(_erase, worker.slots, number))
            return {"id_slot": number, "n_erased": erased}
        if action not in ACTIONS:
            raise ApiError(
                400,
                f"action is {action[:80]!r}; give one of {', '.join(ACTIONS)}, as /slots/0?action=save",
                "action",
                "invalid_value",
            )
        work = self._save if action == "save" else self._restore
        path = self._slot_folder.folder / _check_filename(filename)
        try:
            return await asyncio.shield(asyncio.ensure_future(work(worker, number, path)))
        except UserError as error:
            raise _without_folder(error, path) from error

    async def _save(self, worker: ModelThread, number: int, path: Path) -> dict[str, Any]:
        start_s = time.perf_counter()
        await self._fingerprint_weights(worker)
        sequence, provenance, nbytes = await worker.run_in_thread(partial(_hold_pages, worker.slots, number))
        try:
            written, previous = await self._in_thread(
                partial(self._write, sequence, path, provenance, nbytes)
            )
        finally:
            sequence.pool.release_later(sequence)
        return {
            "id_slot": number,
            "filename": path.name,
            "n_saved": sequence.length,
            "n_written": written,
            **({"before": previous} if previous else {}),
            "timings": {"save_ms": _ms(start_s)},
        }

    def _write(
        self, sequence: PagedSequence, path: Path, provenance: Provenance, nbytes: int
    ) -> tuple[int, str]:
        """Write the file. Returns its size, and the name under which a larger file of the same name was kept:
        the pool may have lost tokens since the last save."""
        self._check_capacity(path, nbytes, path.name)
        new_path = path.with_name(f".{path.name[:120]}.new")
        try:
            save_sequence(sequence, None, new_path, provenance)
        except UserError as error:
            message = _without_folder(error, new_path).message.replace(new_path.name, path.name)
            raise ApiError(507, message, code="not_written") from error
        try:
            size, previous = new_path.stat().st_size, ""
            if path.is_file() and path.stat().st_size > size:
                self._check_capacity(new_path, size, path.name)
                previous = path.rename(_free_path(path)).name
            new_path.rename(path)
        finally:
            new_path.unlink(missing_ok=True)
        return size, previous

    def _check_capacity(self, path: Path, nbytes: int, name: str) -> None:
        """Raise ApiError 507 if a file of `nbytes` does not fit beside all others than `path`."""
        assert self._slot_folder is not None
        others = sum(one.lstat().st_size for one in path.parent.iterdir() if one != path)
        if others + nbytes > self._slot_folder.max_bytes:
            raise ApiError(
                507,
                f"slot {name} would have about {nbytes} bytes, the others have {others}, and "
                f"{self._slot_folder.max_bytes} is the limit of all; save over another one, or start "
                "with a higher --slot-save-bytes",
                code="no_space",
            )

    async def _restore(self, worker: ModelThread, number: int, path: Path) -> dict[str, Any]:
        start_s = time.perf_counter()
        if path.is_symlink() or not path.is_file():
            raise ApiError(
                404, f"no slot was saved as {path.name!r}; give the name that it was saved as", "filename"
            )
        await self._fingerprint_weights(worker)
        provenance = await worker.run_in_thread(
            lambda opened: opened.session.pages_provenance(opened.scheduler)
        )
        file = await self._in_thread(partial(PagesFile, path, provenance))
        sequence = await worker.run_in_thread(lambda opened: file.allocate(opened.scheduler.pool))
        try:
            await self._in_thread(partial(file.fill, sequence))
            await worker.run_in_thread(partial(_publish, worker.slots, number, file, sequence))
        finally:
            sequence.pool.release_later(sequence)
        return {
            "id_slot": number,
            "filename": path.name,
            "n_restored": len(file.token_ids),
            "n_read": path.stat().st_size,
            "timings": {"restore_ms": _ms(start_s)},
        }

    async def _fingerprint_weights(self, worker: ModelThread) -> None:
        """Compute the fingerprint of the weights, which takes long the first time, before the model thread
        needs it."""
        if opened := worker.opened:
            await self._in_thread(opened.session.fingerprint)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _hold_pages(slots: Slots, number: int, opened: OpenedModel) -> tuple[PagedSequence, Provenance, int]:
    """The pages of a slot, their provenance, and about how many bytes a file of them has."""
    tokens = slots.all[number].tokens
    if not tokens:
        raise ApiError(
            400,
            f"slot {number} has nothing: nobody asked with id_slot {number} yet, or it was erased",
            "id_slot",
            "nothing_to_save",
        )
    provenance = opened.session.pages_provenance(opened.scheduler)
    sequence = cached_sequence(opened.scheduler.pool, tokens)
    return sequence, provenance, len(sequence.pages) * page_bytes(opened.session.model.kv_config)


def _free_path(path: Path) -> Path:
    """The first numbered variant of a path that does not exist."""
    names = (path.with_name(f"{path.name[:120]}.{number}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


def _publish(slots: Slots, number: int, file: PagesFile, sequence: PagedSequence, _: OpenedModel) -> None:
    file.publish(sequence)
    slots.restore(number, file.token_ids)


def _erase(slots: Slots, number: int, opened: OpenedModel) -> int:
    return slots.erase(number, opened.scheduler.pool)


def _slot_number(slot: str, count: int) -> int:
    """Parse the number of a slot. Raises ApiError 404 if there is none."""
    if not (slot.isascii() and slot.isdecimal() and len(slot) < 5 and int(slot) < count):
        raise ApiError(404, f"there is no slot {slot[:80]!r}; there are 0 to {count - 1}", "id_slot")
    return int(slot)


def _check_filename(filename: str | None) -> str:
    """Return the name if it is safe. Raises ApiError 400 if not."""
    if filename is None or not NAME.fullmatch(filename):
        raise ApiError(
            400,
            f"filename is {reprlib.repr(filename)}; give up to 128 letters, digits, '.', '-' and '_' of "
            "ASCII, the first of which is no '.'",
            "filename",
            "invalid_value",
        )
    return filename


def _without_folder(error: UserError, path: Path) -> ApiError:
    """The error for the client, without the path of the folder."""
    if isinstance(error, PoolFullError):
        return from_engine_error(error)
    return ApiError(400, str(error).replace(str(path), path.name), "filename", "invalid_value")


def _ms(start_s: float) -> float:
    return round(1000 * (time.perf_counter() - start_s), 3)
