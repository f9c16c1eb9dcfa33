"""Choosing tile sizes, and saying what would have been legal."""

from __future__ import annotations

from kernel_builder.errors import IllegalShapeError
from virtual_npu.static.device import NPU2, Device


def largest_divisor(value: int, limit: int, multiple_of: int = 1) -> int:
    """The largest divisor of `value` that is at most `limit` and a multiple of `multiple_of`.

    Raises IllegalShapeError where there is none.
    """
    for candidate in range(min(value, limit) // multiple_of * multiple_of, 0, -multiple_of):
        if value % candidate == 0:
            return candidate
    raise IllegalShapeError(f"{value} has no divisor up to {limit} that is a multiple of {multiple_of}")


def require_multiple(kernel: str, name: str, value: int, of: int, why: str) -> None:
    """Raises IllegalShapeError, naming legal values, unless `value` is a positive multiple of `of`."""
    if not isinstance(value, int):
        raise IllegalShapeError(f"{kernel}: {name}={value} is no whole number; use a multiple of {of}")
    if value > 0 and value % of == 0:
        return
    below, above = value // of * of, (value // of + 1) * of
    legal = f"{below} or {above}" if below > 0 else str(max(above, of))
    raise IllegalShapeError(f"{kernel}: {name}={value} is no positive multiple of {of} ({why}); use {legal}")


def cores(kernel: str, unit: str, work: int, asked: int | None, device: Device = NPU2) -> int:
    """How many cores in a row share `work` units evenly: `asked`, or the most where it is None.

    Raises IllegalShapeError where `asked` does not divide the work or the device has fewer columns.
    """
    if work <= 0:
        raise IllegalShapeError(f"{kernel}: {work} {unit} leave nothing to do; use at least 1")
    most = largest_divisor(work, device.columns)
    if asked is None:
        return most
    if not 1 <= asked <= device.columns or work % asked:
        raise IllegalShapeError(
            f"{kernel}: {asked} cores (herd_x) cannot share {work} {unit} evenly in "
            f"{device.columns} columns; use {most}"
        )
    return asked
