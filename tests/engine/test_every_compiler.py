"""All programs, kernels and host code by every compiler that is installed, once by all its names: without a
warning, and with the same bits as by the first of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.engine import native
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.forward import decode_step, next_token_logits, prefill
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.kernel_builder import testing
from aerie.kernel_builder.kernels import all_kernels
from aerie.runtime import select_backend

NAMES = [
    *(f"g++-{version}" for version in range(11, 17)),
    *(f"clang++-{version}" for version in range(14, 24)),
]


def installed() -> list[str]:
    """The compilers of NAMES and those without a version, each once however many names it has."""
    paths = {
        os.path.realpath(path): name
        for name in ("clang++", "g++", *reversed(NAMES))
        if (path := shutil.which(name))
    }
    return list(paths.values())[::-1]


INSTALLED = installed()
STRICT = "-Wall -Wextra -Werror"
OF_HEADERS = "-Wno-uninitialized -Wno-maybe-uninitialized"
"""What g++ says of its own headers of AVX512 intrinsics."""

pytestmark = pytest.mark.slow


@contextmanager
def compiled_by(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VNPU_CXX", f"{name} {STRICT} {OF_HEADERS if name.startswith('g') else ''}")
        native._load.cache_clear()
        yield
    native._load.cache_clear()


def kernels() -> dict[str, bytes]:
    """The results of every kernel on random arrays."""
    found = {}
    for name, spec in all_kernels().items():
        parameters = spec.cases[0]
        arrays = testing.random_arrays(spec, parameters, np.random.default_rng(0))
        for output, array in testing.run(spec.build(**parameters), arrays).items():
            found[f"{name}.{output}"] = array.tobytes()
    return found


def demo() -> dict[str, bytes]:
    """The demo's logits after a prompt and two tokens more: by programs of every kind and by decode
    attention."""
    options = RuntimeOptions(None, select_backend("virtual"), default_cache_dir(), variants="32x512")
    session = prepare_runtime(open_checkpoint(DEMO_FOLDER), options, Reporter())
    assert native.native_attention()
    prompt = session.tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    fed = session.tokenizer.encode("The capital")
    cache = session.model.new_cache(len(prompt) + len(fed))
    rows = [*prefill(session.model, prompt, cache)]
    rows += [decode_step(session.model, token, cache) for token in fed]
    return {str(place): next_token_logits(session.model, row).tobytes() for place, row in enumerate(rows)}


@pytest.fixture(scope="module")
def first() -> dict[str, bytes]:
    with compiled_by(INSTALLED[0]):
        return {**kernels(), **demo()}


@pytest.mark.skipif(not INSTALLED, reason="no g++ and no clang++")
def test_the_first_compiler_warns_of_nothing(first: dict[str, bytes]) -> None:
    assert all(map(any, first.values()))


@pytest.mark.parametrize("name", INSTALLED[1:])
def test_another_compiler_gives_the_same_bits(first: dict[str, bytes], name: str) -> None:
    with compiled_by(name):
        found = {**kernels(), **demo()}
    assert [key for key in first if first[key] != found[key]] == []
