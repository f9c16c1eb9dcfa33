"""The resource check: what fits, and each way not to fit."""

from __future__ import annotations

import re

import pytest

from aerie.kernel_builder.dsl import L1, L2, Kernel, Role, bf16, f32
from aerie.kernel_builder.kernels import registry
from aerie.virtual_npu.errors import ResourceError
from aerie.virtual_npu.static import Report, check


def used(report: Report, resource: str) -> int:
    (found,) = [usage.used for usage in report.usages if usage.resource == resource]
    return found


def test_without_ping_pong_buffers_count_once() -> None:
    module = registry()["eltwise_add"].build(64, 256).module
    resource = "L1 bytes"
    assert used(check(module), resource) == 1024 + 6 * 4096
    assert used(check(module, ping_pong=False), resource) == 1024 + 3 * 4096


def sketch(write, x: int = 8, y: int = 1, launch: tuple[int, ...] = ()) -> Report:
    """The report on a kernel whose herd `write(k, a, tx, ty)` fills; a is (1024, 1024) bf16."""
    k = Kernel("sketch")
    a = k.argument("a", (1024, 1024), bf16, Role.INPUT)
    with k.launch(*launch), k.segment("seg"), k.herd(x, y, name="h") as (tx, ty):
        write(k, a, tx, ty)
    return check(k.finish().module)


def nothing(k, a, tx, ty) -> None:
    k.alloc(L1, (16,), bf16)


def too_much_l1(k, a, tx, ty) -> None:
    k.alloc(L1, (128, 128), f32)


def three_inputs(k, a, tx, ty) -> None:
    for at in (0, 8, 16):
        k.dma(k.alloc(L1, (8, 64), bf16), a[at : at + 8, 0:64])
    c = k.channel("one", 8, 1)
    k.get(c[tx, ty], k.alloc(L1, (64,), bf16))
    d = k.channel("two", 8, 1)
    k.get(d[tx, ty], k.alloc(L1, (64,), bf16))


def own_rows(count: int):
    def write(k, a, tx, ty) -> None:
        for i in range(count):
            row = (tx * 4 + ty) * 8 + 256 * i
            k.dma(k.alloc(L1, (8, 8), bf16), a[row : row + 8, 0:8])

    return write


def far_stride(k, a, tx, ty) -> None:
    far = k.alloc(L1, (2, 12288), f32)
    k.put(k.channel("c", 8, 1)[tx, ty], far[:, 0:8])


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (lambda: sketch(nothing, 9, 1), r"columns \(x\) takes 9, npu2 has 8; x counts columns"),
        (lambda: sketch(nothing, 1, 5), r"rows \(y\) takes 5, npu2 has 4"),
        (
            lambda: sketch(nothing, launch=(2, 256)),
            "trips of one dimension takes 256, npu2 has 255; run",
        ),
        (lambda: sketch(too_much_l1), "L1 bytes takes 66560, npu2 has 65536; use smaller L1 tiles"),
        (lambda: sketch(three_inputs), "input channels takes 3, npu2 has 2; send several"),
        (lambda: sketch(own_rows(17)), "descriptors takes 17, npu2 has 16; make fewer transfers"),
        (lambda: sketch(own_rows(1), 8, 4), "shim channels from L3 takes 32, npu2 has 16; stage through L2"),
        (lambda: sketch(far_stride), "a stride of 49152 bytes; a descriptor holds 32768"),
    ],
)
def test_too_much_is_named_with_its_limit(report, message: str) -> None:
    with pytest.raises(ResourceError, match=message):
        report().require()


def test_l2_is_counted() -> None:
    k = Kernel("sketch")
    k.argument("a", (8, 8), bf16, Role.INPUT)
    with k.launch(), k.segment():
        k.alloc(L2, (2049, 1024), bf16)
    with pytest.raises(
        ResourceError, match=r"sketch/0/segment_0: L2 bytes takes 4196352, npu2 has 4194304; use smaller L2"
    ):
        check(k.finish().module).require()


def test_herds_side_by_side_share_the_array() -> None:
    k = Kernel("sketch")
    with k.launch(), k.segment():
        for name in ("one", "two"):
            with k.herd(8, 3, name=name):
                pass
    with pytest.raises(ResourceError, match="cores takes 48, npu2 has 32; herds of different names"):
        check(k.finish().module).require()


def test_branches_on_tile_ids_are_counted_per_core() -> None:
    def write(k, a, tx, ty) -> None:
        for column in range(4):
            with k.when(tx == column):
                k.get(k.channel(f"c{column}", 8, 1)[tx, ty], k.alloc(L1, (64,), bf16))

    assert used(sketch(write), "input channels") == 1


def test_a_cascade_takes_no_dma_channel() -> None:
    def write(k, a, tx, ty) -> None:
        k.get(k.channel("c", 8, 1, kind="npu_cascade")[tx, ty], k.alloc(L1, (64,), bf16))

    assert used(sketch(write), "input channels") == 0


def test_too_many_dimensions() -> None:
    k = Kernel("sketch")
    a = k.argument("a", (64, 64, 64), bf16, Role.INPUT)
    with k.launch(), k.segment("seg"), k.herd(1, 1, name="h"):
        near = k.alloc(L1, (4, 4, 4, 4, 4, 4), bf16)
        k.dma(near, a[0:16, 0:16, 0:16].blocks(4, 4, 4))
    with pytest.raises(ResourceError, match=r"the L3 side .* has 6 dimensions; a task walks 3 and one it"):
        check(k.finish().module).require()


def test_the_table_has_a_line_per_resource() -> None:
    report = check(registry()["eltwise_add"].build(64, 256).module)
    lines = report.table().splitlines()
    assert len(lines) == len(report.usages) + 1
    assert re.match(r"where +resource +used +limit", lines[0])
    assert re.search(r"shim channels from L3 +16 +16 +ok +mlir-air aircc.cpp$", report.table(), re.MULTILINE)
    assert "TOO MUCH" in sketch(nothing, 9, 1).table()
