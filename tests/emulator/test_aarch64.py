"""Every kernel and the demo's whole answer on AArch64: cross-compiled, without a warning, and run in QEMU's
user mode, which computes as the architecture's manual has it and says nothing of speed. Python, weights and
tokens stay on this machine."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from aerie import virtual_npu
from aerie.cli.arguments import default_cache_dir
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.common.compiler import find_compiler
from aerie.common.store import programs_store
from aerie.engine import native
from aerie.engine.attention import reference_attention
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.native import KVPosition, NativeAttention, NativeLayer
from aerie.engine.numerics import bf16, widen
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.sampler import Sampler
from aerie.kernel_builder.kernels import all_kernels
from aerie.kernel_builder.testing import compare
from aerie.runtime import select_backend
from aerie.virtual_npu import cache
from aerie.virtual_npu.objects import host_units, shared_object
from tests.emulator.emulator import GUEST, EmulatedLibrary, Emulator, Pointer, call_with_struct

CROSS, QEMU = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
LIBRARIES = Path("/usr/aarch64-linux-gnu")
CPUS = {"cortex-a72": "armv8-a", "max": "armv8.2-a+fp16+dotprod+i8mm+bf16"}
"""QEMU's CPUs, without instructions for bf16 and with them, and what programs are built for."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (shutil.which(CROSS) and shutil.which(QEMU)), reason=f"needs {CROSS} and {QEMU}"),
]


@pytest.fixture(scope="module", params=CPUS)
def emulator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulated CPU, for which all programs are built, and in which they run as long as this lives."""
    guest = tmp_path_factory.mktemp("guest") / "guest"
    subprocess.run(
        [CROSS, "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", GUEST, "-o", guest], check=True
    )
    emulated = Emulator([QEMU, "-cpu", request.param, "-L", str(LIBRARIES), str(guest)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VNPU_CXX", f"{CROSS} -Wall -Wextra -Werror")
        patch.setenv("VNPU_MARCH", CPUS[request.param])
        patch.setenv("AERIE_PLAIN", "calls")  # calls in one go are native code of this machine
        library = functools.partial(EmulatedLibrary, emulated)
        patch.setattr(virtual_npu, "Library", library)
        patch.setattr(cache, "Library", library)
        yield emulated
    emulated.close()


@pytest.fixture(scope="module")
def attention(emulator: Emulator) -> NativeAttention:
    """decode_attention.cc in the emulator."""
    store = programs_store()
    assert store is not None
    made = shared_object([find_compiler()], host_units(native.SOURCE, with_team=True), store)
    handle = emulator.load(made)

    def function(name: str) -> Any:
        address = emulator.look_up(handle, name)

        def call(layer: int, *_: object) -> int:
            in_c = native._Layer.from_address(layer)
            call_with_struct(emulator, address, in_c, _pointers(in_c))
            return 0

        return ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3)(call)

    # Those of states are looked up, and never called: the demo has attention in every layer.
    names = ("keep_rows", "decode_attention", "store_state_rows", "gather_state_rows")
    library: Any = SimpleNamespace(**{name: function(name) for name in names})
    return NativeAttention(library)


def _pointers(layer: Any) -> list[Pointer]:
    """Of a layer, and of its position."""
    position = layer.position.contents
    row, query = layer.kv_heads * layer.head_dim * 2, layer.heads * layer.head_dim * 2
    sizes = {"query": query, "out": query} | dict.fromkeys(("key_rows", "value_rows"), row * position.rows)
    sizes |= dict.fromkeys(("keys", "values"), row * layer.capacity)
    pointers = [Pointer(type(layer).position.offset, ctypes.addressof(position), ctypes.sizeof(KVPosition))]
    pointers += [
        Pointer(getattr(type(layer), name).offset, getattr(layer, name), size)
        for name, size in sizes.items()
        if getattr(layer, name)
    ]
    counts = {"row_positions": position.rows, "visible": position.visible_stop - position.visible_start}
    return pointers + [
        Pointer(getattr(KVPosition, name).offset, getattr(position, name), 8 * count, within=0)
        for name, count in counts.items()
        if getattr(position, name)
    ]


ON_BOTH = ("gemm", "gemm_f32", "gemm_rows", "gemv", "flash_attention", "cached_attention", "narrow")
"""Kernels whose products or roundings a CPU with instructions for bf16 computes in another way."""


@pytest.mark.parametrize(
    ("emulator", "name"),
    [(cpu, name) for cpu in CPUS for name in all_kernels() if cpu == "max" or name in ON_BOTH],
    indirect=["emulator"],
)
def test_a_kernel_computes_its_reference(emulator: Emulator, name: str) -> None:
    spec = all_kernels()[name]
    for result, difference in compare(spec, spec.cases[0]).items():
        assert difference.passes, f"{result}: {difference}"


@pytest.mark.parametrize("visible", [slice(0, 41), np.array([3, 40, 7, 12])], ids=["a run", "apart"])
def test_decode_attention_is_that_of_numpy(
    attention: NativeAttention, visible: slice | NDArray[np.int64]
) -> None:
    random = np.random.default_rng(0)
    query, row, out = (random.normal(size=size).astype(bf16) for size in (4 * 64, 2 * 64, 4 * 64))
    keys, values = (random.normal(size=(2, 50, 64)).astype(bf16) for _ in range(2))
    place = KVPosition()
    place.set_rows(40)
    place.set_visible(visible, 50)
    arrays: dict[str, Any] = {
        "key_rows": row,
        "value_rows": row,
        "keys": keys,
        "values": values,
        "query": query,
        "out": out,
    }
    layer = NativeLayer(attention, place, 2, **arrays)
    layer.keep_rows().run()
    np.testing.assert_array_equal(keys[:, 40], row.reshape(2, 64))
    layer.attend().run()
    want = reference_attention(query, keys, values, visible)
    np.testing.assert_allclose(widen(out), widen(want), rtol=2**-7, atol=2**-10)


def answer() -> list[int]:
    """The token ids of the demo's answer, by one program of every kind."""
    options = RuntimeOptions(None, select_backend("virtual"), default_cache_dir(), variants="32x512")
    session = prepare_runtime(open_checkpoint(DEMO_FOLDER), options, Reporter())
    question = [{"role": "user", "content": "What is the capital of France?"}]
    generation = session.generate(session.tokenizer.encode_chat(question), 48, Sampler())
    text = "".join(session.text(generation))
    assert text == "The capital of France is Paris."
    return list(generation)


def test_the_answer_of_the_demo_has_the_same_tokens(
    attention: NativeAttention, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All programs and decode attention in the emulator, against this machine's own."""
    monkeypatch.setattr(native, "_load", lambda: attention)
    found = answer()
    monkeypatch.undo()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("VNPU_CXX", "VNPU_MARCH", "AERIE_PLAIN"):
            patch.delenv(name)
        patch.setattr(virtual_npu, "Library", virtual_npu.library.Library)
        assert found == answer()
