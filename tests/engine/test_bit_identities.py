"""What must not change a bit, and what may change the order of sums: the demo, and one layer of full width.

Each way loads the model anew, under its environment, against the model that is loaded as ever.
"""

import functools
from contextlib import contextmanager

import numpy as np
import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.common.cpu import cpu_identity
from aerie.engine import tensors as tensors_module
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.forward import decode_step, next_token_logits, prefill
from aerie.engine.model import build_model, preload
from aerie.engine.native import native_attention
from aerie.engine.program_library import compile_into
from aerie.engine.programs import SharedBufferNames
from aerie.engine.reporter import Reporter
from aerie.engine.variant_set import VariantSet
from aerie.llama32_1b.synthetic.__main__ import main as synthesise
from aerie.multi_launch_builder import build_programs
from aerie.runtime import KernelCache, Profiler, select_backend

SAME_BITS = {
    "two threads": {"VNPU_THREADS": "2"},  # tests have one
    "three threads": {"VNPU_THREADS": "3"},
    "buffers apart": {"AERIE_PLAIN": "buffers"},
    "calls one by one": {"AERIE_PLAIN": "calls"},
    "strict memory": {"VNPU_STRICT": "1"},
    "strict memory, buffers apart": {"VNPU_STRICT": "1", "AERIE_PLAIN": "buffers"},
}


@contextmanager
def environment(variables):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def forward(model, prompt, tokens):
    """Rows of the prompt, keys and values, and the logits after each token."""
    kept = model.new_cache(len(prompt) + len(tokens))
    rows = prefill(model, prompt, kept)
    logits = [next_token_logits(model, decode_step(model, token, kept)) for token in tokens]
    layers = [array for number in range(model.config.num_hidden_layers) for array in kept.layers[number]]
    return [rows, *layers, *logits]


def bits(arrays):
    return [array.tobytes() for array in arrays]


class Case:
    """A checkpoint compiled for `seq_len` tokens into `cache`, a prompt, and what a pass gives as ever."""

    tokens = (5, 77, 300, 5)

    def __init__(self, folder, cache, seq_len, prompt_tokens, vocabulary):
        self.folder, self.cache, self.seq_len = folder, cache, seq_len
        self.checkpoint = open_checkpoint(folder)
        self.programs = functools.cache(functools.partial(build_programs, self.checkpoint.config.shape))
        drawn = np.random.default_rng(1).integers(3, vocabulary, prompt_tokens)
        self.prompt = [int(token) for token in drawn]
        self.expected = self.run(seq_len)

    @contextmanager
    def not_loaded(self, seq_len):
        """The model on compiled programs, without its weights."""
        programs, config, report = self.programs(seq_len), self.checkpoint.config, Reporter()
        backend = select_backend("virtual")
        shared = SharedBufferNames(programs.values(), config.rope_of_layer)
        with KernelCache(self.cache, backend, Profiler(), report.note, shared) as cache:
            compile_into(cache, [*programs.values()], report)
            yield build_model(self.checkpoint, programs, cache, VariantSet(seq_len))

    def run(self, seq_len, **variables):
        with environment(variables), self.not_loaded(seq_len) as model:
            list(preload(model, self.checkpoint.weights))
            return forward(model, self.prompt, self.tokens)

    def check_bits(self, seq_len=None, **variables):
        assert bits(self.run(seq_len or self.seq_len, **variables)) == bits(self.expected)

    @functools.cached_property
    def exact(self):
        """transformers' logits after each token, in float32."""
        import torch
        from transformers import LlamaForCausalLM

        model = LlamaForCausalLM.from_pretrained(self.folder, dtype=torch.float32).eval()
        with torch.no_grad():
            logits = model(
                torch.tensor([[*self.prompt, *self.tokens]]), logits_to_keep=len(self.tokens)
            ).logits
        return logits[0].numpy()


@pytest.fixture(scope="module")
def demo():
    return Case(DEMO_FOLDER, default_cache_dir(), 128, 50, 400)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """One layer of Llama-3.2-1B, compiled for 512 tokens: the prompt has 60, and further rows of padding say
    nothing new. A quarter of the vocabulary makes eight partitions of many rows too."""
    folder = tmp_path_factory.mktemp("wide")
    assert synthesise([str(folder / "one"), "--layers", "1", "--vocab-size", "32768"]) == 0
    return Case(folder / "one", folder / "programs", 512, 60, 32_000)


@pytest.mark.parametrize("way", SAME_BITS)
def test_no_bit_of_the_demo_changes(way, demo):
    demo.check_bits(**SAME_BITS[way])


@pytest.mark.slow
@pytest.mark.parametrize("way", SAME_BITS)
def test_no_bit_at_full_width_changes(way, wide):
    wide.check_bits(**SAME_BITS[way])


@pytest.mark.slow
def test_padding_at_full_width_changes_no_bit(wide):
    """A short prompt in a long program, and compiled for less."""
    wide.check_bits(seq_len=64)


def check_as_near_to_exact(case, other):
    """The logits after each token are as far from float32 as those of the session as ever: what differs is
    rounding, and the order of sums has no better side."""
    steps = len(case.tokens)
    errors = [np.abs(np.stack(found[-steps:]) - case.exact).mean() for found in (other, case.expected)]
    assert errors[0] < 1.3 * errors[1] < 0.02 * case.exact.std()


@pytest.mark.slow
def test_no_fast_paths_at_full_width(wide):
    """Compiled for fewer tokens: padding changes nothing, and every block is made one by one, in generated
    code: it is optimised.

    A product of two bf16 is exact in f32, so sums in one order have the same bits, unless the CPU has
    instructions that add products in pairs.
    """
    other = wide.run(64, AERIE_PLAIN="products", VNPU_OPT="1")
    adds_pairs = "bf16" in cpu_identity()
    assert (bits(other) == bits(wide.expected)) is not adds_pairs
    check_as_near_to_exact(wide, other)


def prompt_bits(arrays, prompt_tokens, steps):
    """Of what attention over the KV cache has no part in: the prompt's rows, keys and values."""
    rows, *layers = arrays[:-steps]
    return bits([rows, *(array[:, :prompt_tokens] for array in layers)])


def check_attention_in_numpy(case):
    """Only what it makes may differ, and that by the order of sums."""
    with environment({"AERIE_PLAIN": "host_code"}):
        assert native_attention() is None
    assert native_attention() is not None
    other = case.run(case.seq_len, AERIE_PLAIN="host_code")
    check_as_near_to_exact(case, other)
    sizes = len(case.prompt), len(case.tokens)
    assert prompt_bits(other, *sizes) == prompt_bits(case.expected, *sizes)


def test_attention_in_numpy_in_the_demo(demo):
    check_attention_in_numpy(demo)


@pytest.mark.slow
def test_attention_in_numpy_at_full_width(wide):
    check_attention_in_numpy(wide)


def interrupt_reading(monkeypatch, after):
    """Ctrl-C once so many pieces of tensors are read, in the middle of one."""
    real, pieces = tensors_module._File.read_rows, []

    def read(self, out, rows):
        pieces.append(rows)
        if len(pieces) == after:
            real(self, out, slice(rows.start, (rows.start + rows.stop) // 2))
            raise KeyboardInterrupt
        real(self, out, rows)

    monkeypatch.setattr(tensors_module._File, "read_rows", read)


def check_load_again(case, monkeypatch):
    """A load that Ctrl-C stopped, at three places, and that was then repeated on the same buffers."""
    with case.not_loaded(case.seq_len) as model:
        for after in (1, 4, 11):
            with monkeypatch.context() as patch:
                interrupt_reading(patch, after)
                with pytest.raises(KeyboardInterrupt):
                    list(preload(model, case.checkpoint.weights))
        list(preload(model, case.checkpoint.weights))
        assert bits(forward(model, case.prompt, case.tokens)) == bits(case.expected)


def test_a_load_of_the_demo_is_repeated(demo, monkeypatch):
    check_load_again(demo, monkeypatch)


@pytest.mark.slow
def test_a_load_at_full_width_is_repeated(wide, monkeypatch):
    check_load_again(wide, monkeypatch)
