"""GGUF files as checkpoints: the same model as the Hugging Face checkpoint that they came from."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import save_file

from aerie.cli.checkpoints import find_checkpoint
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.config import load_config
from aerie.engine.errors import CheckpointError
from aerie.engine.families import FAMILIES
from aerie.engine.gguf.model_files import open_gguf
from aerie.engine.rope import Llama3Scaling, LongRopeScaling, inverse_frequencies
from aerie.engine.tensor_parallel import RankWeights
from aerie.engine.tokenizer import load_tokenizer
from tests import gguf_files
from tests.engine.checkpoints import LLAMA3_ROPE, open_weights
from tests.gguf_files import SCALES, Source, matrices_in, random_blocks

PLAIN = {"rope_type": "default", "rope_theta": 1e6}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
SOURCES: dict[str, dict[str, Any]] = {
    "llama": {},
    "granite": {
        "family": "Granite",
        "rope_parameters": PLAIN,
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.0625,
        "residual_multiplier": 0.22,
        "logits_scaling": 8.0,
    },
    "llama, untied, plain": {"tie_word_embeddings": False, "rope_parameters": PLAIN},
    "llama, linear": {"rope_parameters": LINEAR, "num_key_value_heads": 4},
    "phi3": {
        "family": "Phi3",
        "pad_token_id": 0,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
            "short_factor": [1.0 + i / 16 for i in range(16)],
            "long_factor": [4.0] * 16,
            "original_max_position_embeddings": 64,
            "attention_factor": 1.25,
        },
        "original_max_position_embeddings": 64,
    },
    "lfm2": {
        "family": "Lfm2",
        "rope_parameters": PLAIN,
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
        "norm_eps": 1e-5,
        "block_auto_adjust_ff_dim": False,
        "pad_token_id": 0,
    },
    "olmo2": {"family": "Olmo2", "rope_parameters": PLAIN, "pad_token_id": 0},
    "mistral": {"family": "Mistral", "sliding_window": None, "rope_parameters": PLAIN},
    "qwen2": {"family": "Qwen2", "rope_parameters": PLAIN},
    "qwen3": {"family": "Qwen3", "rope_parameters": PLAIN, "head_dim": 96, "rms_norm_eps": 1e-6},
    "qwen35": {
        "family": "Qwen3_5",
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "rope_parameters": PLAIN | {"partial_rotary_factor": 0.5},
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "pad_token_id": 0,
    },
    "smollm3": {"family": "SmolLM3", "rope_parameters": PLAIN, "num_hidden_layers": 4, "pad_token_id": 0},
}


@pytest.fixture(params=SOURCES)
def source(request, make_checkpoint):
    return Source(make_checkpoint(**SOURCES[request.param]))


@pytest.fixture
def llama(make_checkpoint):
    return Source(make_checkpoint())


def same_weights(one, other):
    config = load_config(one)
    ours, theirs = (open_weights(each) for each in (one, other))
    pairs = {
        "embeddings": (ours.embed_table.table, theirs.embed_table.table),
        "norm": (ours.final_norm, theirs.final_norm),
        "LM head": (ours.lm_head, theirs.lm_head),
    }
    for layer in range(config.num_hidden_layers):
        mine, others = ours.layer(layer), theirs.layer(layer)
        assert mine.keys() == others.keys()
        pairs |= {f"{layer} {name}": (mine[name], others[name]) for name in mine}
    for name, (mine, others) in pairs.items():
        np.testing.assert_array_equal(
            mine.read().view(np.uint16), others.read().view(np.uint16), err_msg=name
        )


def logits(numpy_model, against, path):
    model = numpy_model(path)
    tokens = against.random_tokens(model, 17)
    return against.our_logits(model, tokens[:12], tokens[12:])


@pytest.mark.parametrize("kind", [Type.BF16, Type.F32], ids=lambda kind: kind.name)
def test_config_weights_and_logits_are_those_of_the_source(source, kind, tmp_path, numpy_model, against):
    path = gguf_files.write(tmp_path / "x.gguf", source, matrices_in(kind))
    config, theirs = load_config(path), load_config(source.folder)
    # Files have no window.
    same: dict[str, Any] = {
        "eos_token_ids": (),
        "family": theirs.family,
        "sliding_window": None,
        "layers_with_window": frozenset(),
    }
    assert replace(config, **same) == replace(theirs, **same)
    assert config.family is FAMILIES[{"qwen35": "qwen3_5_text"}.get(source.architecture, source.architecture)]
    assert set(theirs.eos_token_ids) <= set(config.eos_token_ids)
    same_weights(path, source.folder)
    np.testing.assert_array_equal(
        logits(numpy_model, against, path), logits(numpy_model, against, source.folder)
    )


QUANTISED = [Type.F16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.MXFP4, *SCALES]


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_logits_of_every_quantisation(kind, llama, tmp_path, numpy_model, against, dequantised_source):
    """They are those of the checkpoint whose float32 weights are the package's values of these blocks."""
    stored = {}

    def quantise(tensors):
        for name, values in tensors.items():
            if values.ndim == 2:
                is_packed = kind in SCALES
                raw = (
                    random_blocks(kind, values.shape, len(name))
                    if is_packed
                    else gguf.quants.quantize(values, kind)
                )
                stored[name] = gguf.quants.dequantize(raw, kind)
                tensors[name] = raw.view(np.uint8)

    path = gguf_files.write(tmp_path / "x.gguf", llama, matrices_in(kind), change=quantise)
    folder = dequantised_source(llama, stored)
    same_weights(path, folder)
    (note,) = open_weights(path).notes
    assert note.startswith("note: the tensors of x.gguf take ")
    assert f" in the file ({kind.name} and F32), and " in note
    if kind in (Type.Q4_0, Type.Q5_K):
        np.testing.assert_array_equal(
            logits(numpy_model, against, path), logits(numpy_model, against, folder)
        )


@pytest.fixture
def dequantised_source(tmp_path):
    """dequantised_source(source, stored) -> a folder like that of the source with these weights, by the
    file's names and in its order of rows."""

    def make(source, stored):
        folder = shutil.copytree(source.folder, tmp_path / "dequantised")
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, source.config["num_hidden_layers"])
        tensors = dict(source.tensors)
        for name in tensors:
            called = names.get_name(name, try_suffixes=(".weight", ".bias"))
            if called and called in stored:
                values = stored[called].reshape(tensors[name].shape)
                heads = {"attn_q.": "num_attention_heads", "attn_k.": "num_key_value_heads"}
                entry = next((entry for part, entry in heads.items() if part in called), None)
                if entry:  # where each row of the file went
                    order = gguf_files.permuted(np.arange(len(values)), source.config[entry])
                    values = values[np.argsort(order)]
                tensors[name] = np.ascontiguousarray(values)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return folder

    return make


def test_a_tokenizer_and_a_template_come_with_the_file(llama, tmp_path):
    path = gguf_files.write(tmp_path / "x.gguf", llama)
    ours, theirs = load_tokenizer(path), load_tokenizer(llama.folder)
    messages = [{"role": "user", "content": "Is the tile here?"}]
    assert ours.encode("the world, 2024") == theirs.encode("the world, 2024")
    assert ours.encode_chat(messages) == theirs.encode_chat(messages)


def test_a_template_beside_the_file_is_read_instead_of_its_own(llama, tmp_path):
    """Where the folder is the model: a file that is given itself is taken as it is."""
    path = gguf_files.write(tmp_path / "x.gguf", llama)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    messages = [{"role": "user", "content": "Is the tile here?"}]
    beside, own = load_tokenizer(tmp_path), load_tokenizer(path)
    assert beside.encode_chat(messages) == beside.encode("Is the tile here?!", special=False)
    assert own.encode_chat(messages) == load_tokenizer(llama.folder).encode_chat(messages)


def test_fused_tensors(llama, make_checkpoint, tmp_path):
    """Queries, keys and values in one, of which two are permuted; gate and up in one."""
    for source in (llama, Source(make_checkpoint(**SOURCES["qwen2"]))):
        for kind in (Type.BF16, Type.F32):
            path = tmp_path / f"{source.architecture}-{kind.name}.gguf"
            gguf_files.write(path, source, matrices_in(kind), change=gguf_files.fuse)
            same_weights(path, source.folder)


def test_biases_of_a_llama_are_permuted_too(tmp_path, make_checkpoint):
    """Of one whose biases are zeros, which changes nothing; of others they are refused."""
    source = Source(make_checkpoint())

    def add(tensors):
        tensors["blk.0.attn_q.bias"] = np.zeros(256, np.float32)

    same_weights(gguf_files.write(tmp_path / "x.gguf", source, change=add), source.folder)

    def spoil(tensors):
        tensors["blk.0.attn_q.bias"] = np.ones(256, np.float32)

    path = gguf_files.write(tmp_path / "y.gguf", source, change=spoil)
    with pytest.raises(
        CheckpointError, match=r"tensor blk\.0\.attn_q\.bias in .* is none that the metadata asks"
    ):
        open_checkpoint(path)


def test_parts_are_found_from_any_of_them(llama, tmp_path):
    first = gguf_files.write(tmp_path / "x.gguf", llama, per_part=9)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert first.name == "x-00001-of-00003.gguf"
    for path in (*parts, tmp_path):
        assert load_config(path) == load_config(first)
        same_weights(path, llama.folder)
        assert load_tokenizer(path).encode("tile") == load_tokenizer(first).encode("tile")
    assert open_weights(first).files == parts


def test_parts_that_are_missing_or_others(llama, tmp_path):
    first = gguf_files.write(tmp_path / "x.gguf", llama, per_part=9)
    _, second, third = sorted(tmp_path.glob("*.gguf"))
    kept = third.read_bytes()
    third.unlink()
    for path in (first, second, tmp_path):
        with pytest.raises(
            CheckpointError, match=r"there is no .*x-00003-of-00003\.gguf, and the model of .* 3 parts"
        ):
            load_config(path)
    third.write_bytes(second.read_bytes())
    with pytest.raises(
        CheckpointError, match=r"x-00003-of-00003\.gguf says that it is part 1 of 3 .* part 2 of 3"
    ):
        load_config(first)
    third.write_bytes(kept)
    first.rename(tmp_path / "renamed.gguf")
    with pytest.raises(
        CheckpointError, match=r"renamed\.gguf is one of 3 parts of a model, which are found by"
    ):
        load_config(tmp_path / "renamed.gguf")


def test_a_folder_with_one_model_and_others(llama, tmp_path):
    path = gguf_files.write(tmp_path / "x.gguf", llama)
    shutil.copy(path, tmp_path / "mmproj-x.gguf")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    same_weights(tmp_path, llama.folder)
    assert find_checkpoint(str(path)) == path
    shutil.copy(path, tmp_path / "y.gguf")
    message = (
        r"has 2 models in GGUF \(x\.gguf, y\.gguf\), and which is meant is not known: give the file, such"
    )
    with pytest.raises(CheckpointError, match=message):
        load_config(tmp_path)
    blob = tmp_path / "sha256-0123"
    shutil.copy(path, blob)
    assert find_checkpoint(str(blob)) == blob
    same_weights(blob, llama.folder)


def test_safetensors_go_before_a_gguf_beside_them(llama, make_checkpoint, tmp_path):
    folder = shutil.copytree(make_checkpoint(num_hidden_layers=1), tmp_path / "both")
    gguf_files.write(folder / "x.gguf", llama)
    assert load_config(folder).num_hidden_layers == 1


@pytest.mark.parametrize(
    ("rope", "head_dim"),
    [
        (LLAMA3_ROPE, 64),
        ({**LLAMA3_ROPE, "factor": 8.0, "original_max_position_embeddings": 8192}, 128),
        ({**LLAMA3_ROPE, "original_max_position_embeddings": 8192}, 64),
        (
            {**LLAMA3_ROPE, "factor": 6.0, "high_freq_factor": 3.0, "original_max_position_embeddings": 100},
            96,
        ),
    ],
)
def test_the_rule_of_llama_3_is_found_from_its_divisors(rope, head_dim, llama, tmp_path):
    def change(tensors):
        tensors["rope_freqs.weight"] = gguf_files.divisors(rope, head_dim)

    path = gguf_files.write(tmp_path / "x.gguf", llama, keys=_of_heads(head_dim), change=change)
    rule = load_config(path).rope_scaling
    assert isinstance(rule, Llama3Scaling)
    found = rule.factor, rule.low_freq_factor, rule.high_freq_factor, rule.original_max_position_embeddings
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    assert found == tuple(rope[name] for name in names)


def _of_heads(head_dim):
    return {
        f"llama.{key}": head_dim
        for key in ("attention.key_length", "attention.value_length", "rope.dimension_count")
    }


def test_other_divisors_are_taken_as_they_are(llama, tmp_path):
    given = np.linspace(1, 9, 32, dtype=np.float32)
    path = gguf_files.write(
        tmp_path / "x.gguf", llama, change=lambda tensors: tensors.update({"rope_freqs.weight": given})
    )
    config = load_config(path)
    assert isinstance(config.rope_scaling, LongRopeScaling)
    assert config.context == 256
    found = inverse_frequencies(64, config.rope_theta, config.rope_scaling)
    np.testing.assert_allclose(found, inverse_frequencies(64, config.rope_theta, None) / given, rtol=1e-6)
    assert config.rope_scaling.magnitude == 1


def test_longrope_has_factors_in_two_tensors(llama, make_checkpoint, tmp_path):
    source = Source(make_checkpoint(rope_parameters=PLAIN))
    short, long = (np.linspace(1, last, 32, dtype=np.float32) for last in (2, 9))
    keys = {
        "llama.rope.scaling.type": "longrope",
        "llama.rope.scaling.original_context_length": 128,
        "llama.rope.scaling.attn_factor": 1.25,
    }

    def change(tensors):
        tensors.update({"rope_factors_short.weight": short, "rope_factors_long.weight": long})

    config = load_config(gguf_files.write(tmp_path / "x.gguf", source, keys=keys, change=change))
    assert config.rope_scaling == LongRopeScaling(tuple(short.tolist()), tuple(long.tolist()), 128, 1.25)
    assert config.context == 128
    missing = gguf_files.write(tmp_path / "y.gguf", source, keys=keys)
    with pytest.raises(
        CheckpointError, match=r"tensor rope_factors_long\.weight is missing, and its RoPE rule needs"
    ):
        load_config(missing)


def test_a_window_is_that_of_all_layers(make_checkpoint, tmp_path):
    for name in ("mistral", "qwen2"):
        source = Source(make_checkpoint(**SOURCES[name]))
        keys = {f"{source.architecture}.attention.sliding_window": 64}
        path = gguf_files.write(tmp_path / f"{name}.gguf", source, keys=keys)
        config = load_config(path)
        assert config.masks.windows == (64,)
        assert config.context == config.max_position_embeddings


def test_every_token_that_ends_an_answer(llama, tmp_path):
    """Those of the keys, and control tokens that are known by their texts: <|end|> here."""
    path = gguf_files.write(tmp_path / "x.gguf", llama, keys={"tokenizer.ggml.eot_token_id": 5})
    assert load_config(path).eos_token_ids == (1, 5, 2)


CHANGED = {
    "general.architecture": (
        "gemma2",
        r"general\.architecture is 'gemma2': it caps scores and logits",
    ),
    "llama.expert_count": (8, r"num_experts is 8: it is a mixture of experts"),
    "llama.logit_scale": (16.0, r"logits_scaling is 16\.0: no launch multiplies by a factor of the model"),
    "llama.attention.scale": (
        0.5,
        r"attention_multiplier is 0\.5: scores are divided by the root of head_dim",
    ),
    "llama.final_logit_softcapping": (30.0, r"final_logit_softcapping is 30\.0: no launch caps values"),
    "llama.attention.causal": (False, r"use_bidirectional_attention is True: attention is causal"),
    "llama.rope.dimension_count": (
        32,
        r"partial_rotary_factor is 0\.5: a LlamaForCausalLM turns whole heads",
    ),
    "llama.attention.value_length": (
        32,
        r"llama\.attention\.value_length is 32: values are as wide as keys here",
    ),
    "llama.pooling_type": (2, r"llama\.pooling_type is 2: only 1 \(mean\), 3 \(last token\) and 4 \(rank\)"),
    "llama.nextn_predict_layers": (
        1,
        r"llama\.nextn_predict_layers is 1: its last layers draft further tokens",
    ),
    "llama.block_count": (0, r"llama\.block_count is 0: it must be a whole number, 1 or more"),
    "llama.context_length": (None, r"there is no llama\.context_length; the file is incomplete"),
    "llama.embedding_length": ("many", r"llama\.embedding_length is 'many': it must be a whole number"),
    "llama.attention.head_count_kv": (
        [2, 1],
        r"head_count_kv is \[2, 1\]: it differs from layer to layer, and",
    ),
    "llama.attention.layer_norm_rms_epsilon": ("x", r"layer_norm_rms_epsilon is 'x': it must be a number"),
    "llama.rope.freq_base": (-1.0, r"llama\.rope\.freq_base is -1\.0; it must be a finite number above 0"),
    "llama.rope.scaling.type": (
        "yarn",
        r"it has rope_freqs\.weight and rope\.scaling\.type 'yarn': which of",
    ),
    "tokenizer.ggml.eos_token_id": ("x", r"tokenizer\.ggml\.eos_token_id is 'x', which is not a token"),
    "general.type": ("adapter", r"it is a LoRA adapter, and no model: merge it into its base model"),
}


@pytest.mark.parametrize("key", CHANGED)
def test_metadata_that_makes_another_model(key, llama, tmp_path, monkeypatch):
    value, message = CHANGED[key]
    if key == "general.architecture":
        monkeypatch.setattr(gguf.GGUFWriter, "add_architecture", lambda writer: writer.add_string(key, value))
    path = gguf_files.write(
        tmp_path / "x.gguf", llama, keys={key: value} if key != "general.architecture" else {}
    )
    with pytest.raises(CheckpointError, match=rf"x\.gguf: .*{message}"):
        load_config(path)


@pytest.mark.parametrize("architecture", ["clip", "controlvector", ""])
def test_files_that_are_no_models(architecture, llama, tmp_path, monkeypatch):
    monkeypatch.setattr(
        gguf.GGUFWriter,
        "add_architecture",
        lambda writer: (
            writer.add_string("general.name", architecture)
            if not architecture
            else writer.add_string("general.architecture", architecture)
        ),
    )
    path = gguf_files.write(tmp_path / "x.gguf", llama)
    wanted = {
        "clip": "it is the projector of images of a model, and no model: give the model's own file",
        "controlvector": "it is a control vector, and no model",
        "": "there is no general.architecture; of GGUF files llama, gemma3, granite, lfm2, olmo2, phi3, "
        "qwen2, qwen3, qwen35 and smollm3 are run",
    }
    with pytest.raises(CheckpointError, match=wanted[architecture]):
        load_config(path)


def without(name):
    return lambda tensors: tensors.pop(name)


def shorter(name):
    return lambda tensors: tensors.update({name: tensors[name][:-64]})


TENSORS = {
    "missing": (
        without("blk.1.ffn_up.weight"),
        r"tensor blk\.1\.ffn_up\.weight is missing from the checkpoint; the metadata asks for it with shape "
        r"512x256: the file is damaged, or was made by a converter that knew the model too little",
    ),
    "too small": (
        shorter("blk.1.ffn_up.weight"),
        r"tensor blk\.1\.ffn_up\.weight in .*x\.gguf has shape 448x256; the metadata implies 512x256: ",
    ),
    "queries without whole heads": (
        lambda tensors: tensors.update({"blk.0.attn_q.weight": tensors["blk.0.attn_q.weight"][:100]}),
        r"tensor blk\.0\.attn_q\.weight in .*x\.gguf has shape 100x256; the metadata implies 256x256",
    ),
    "transposed": (
        lambda tensors: tensors.update({"blk.0.ffn_up.weight": tensors["blk.0.ffn_up.weight"].T.copy()}),
        r"tensor blk\.0\.ffn_up\.weight in .*x\.gguf has shape 256x512; the metadata implies 512x256",
    ),
    "one more": (
        lambda tensors: tensors.update({"blk.0.ssm_a": np.ones(4, np.float32)}),
        r"tensor blk\.0\.ssm_a in .*x\.gguf is none that a llama has here: answers would be made without it",
    ),
    "a layer more": (
        lambda tensors: tensors.update({"blk.2.ffn_up.weight": tensors["blk.1.ffn_up.weight"]}),
        r"tensor blk\.2\.ffn_up\.weight in .*x\.gguf is none that the metadata asks for",
    ),
    "divisors for other heads": (
        lambda tensors: tensors.update({"rope_freqs.weight": np.ones(4, np.float32)}),
        r"tensor rope_freqs\.weight has 4 values of F32 \(1\.0, 1\.0, 1\.0, 1\.0\); wanted are 32 fin",
    ),
    "divisors that are none": (
        lambda tensors: tensors.update({"rope_freqs.weight": np.zeros(32, np.float32)}),
        r"tensor rope_freqs\.weight has 32 values of F32 \(0\.0, .*\); wanted are 32 finite ones above 0",
    ),
}


@pytest.mark.parametrize("fault", TENSORS)
def test_tensors_that_do_not_fit(fault, llama, tmp_path):
    change, message = TENSORS[fault]
    path = gguf_files.write(tmp_path / "x.gguf", llama, change=change)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(path)


def test_a_tensor_in_two_parts(llama, tmp_path):
    gguf_files.write(tmp_path / "x.gguf", llama, per_part=9)
    first, second, _ = sorted(tmp_path.glob("*.gguf"))
    raw = second.read_bytes()
    mine, theirs = (list(gguf.GGUFReader(path).tensors) for path in (first, second))
    old, new = (next(t.name for t in part if t.name.endswith("ffn_up.weight")) for part in (theirs, mine))
    second.write_bytes(raw.replace(old.encode(), new.encode()))
    with pytest.raises(
        CheckpointError, match=rf"tensor {new} is in .*00001-of-00003\.gguf and in .*00002-of-00003"
    ):
        load_config(first)


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.BF16], ids=lambda kind: kind.name)
def test_parts_of_several_devices_are_those_of_the_source(kind, llama, tmp_path, dequantised_source):
    """Heads and columns of blocks, cut for two devices."""
    stored = {}

    def quantise(tensors):
        for name, values in tensors.items():
            if values.ndim == 2:
                stored[name] = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)

    path = gguf_files.write(tmp_path / "x.gguf", llama, matrices_in(kind), change=quantise)
    folder, config = dequantised_source(llama, stored), load_config(path)
    for rank in range(2):
        ours, theirs = (RankWeights(open_weights(each), config, rank, 2).layer(1) for each in (path, folder))
        for name, tensor in ours.items():
            got, wanted = (each.read().view(np.uint16) for each in (tensor, theirs[name]))
            np.testing.assert_array_equal(got, wanted, err_msg=name)


@pytest.mark.parametrize("seed", range(20))
def test_a_file_with_bytes_of_others_is_refused_or_read(seed, llama, tmp_path):
    """Anywhere before the data: one line says what is wrong, or it is a model all the same."""
    path = gguf_files.write(tmp_path / "x.gguf", llama)
    content, draw = bytearray(path.read_bytes()), np.random.default_rng(seed)
    end = min(entry.start for entry in open_gguf(path).tensors.values())
    for place in draw.integers(0, end, 1 << draw.integers(0, 12)):
        content[place] = draw.integers(0, 256)
    path.write_bytes(content)
    try:
        checkpoint = open_checkpoint(path)
    except CheckpointError as error:
        text = str(error)
    else:
        text = str(checkpoint.weights.layer(0)["wq"].read().shape)
    assert text
    assert "\n" not in text


@pytest.mark.parametrize("counts", [[0, 0, 0], [2, 0, 1], [0, -2, 0]])
def test_convolutions_whose_heads_are_not_said(make_checkpoint, tmp_path, counts):
    path = gguf_files.write(
        tmp_path / "x.gguf",
        Source(make_checkpoint(**SOURCES["lfm2"])),
        keys={"lfm2.attention.head_count_kv": counts},
    )
    with pytest.raises(
        CheckpointError, match=r"head_count_kv is \[.*\]: it must be 0 for each layer with a conv"
    ):
        load_config(path)


def test_linear_attention_that_does_not_fit(make_checkpoint, tmp_path):
    given = Source(make_checkpoint(**SOURCES["qwen35"]))
    width = {"qwen35.ssm.inner_size": 255}
    path = gguf_files.write(tmp_path / "width.gguf", given, matrices_in(Type.BF16), keys=width)
    with pytest.raises(CheckpointError, match=r"inner_size is 255: it must be a multiple of the 8 heads"):
        load_config(path)
    path = gguf_files.write(tmp_path / "decays.gguf", given, lambda _: Type.BF16)
    with pytest.raises(CheckpointError, match=r"blk.0.ssm_a in .* is BF16, and decays are read as F32 alone"):
        open_checkpoint(path)


def test_a_file_of_olmo_2_with_a_window_is_olmo_3(make_checkpoint, tmp_path):
    """llama.cpp calls both olmo2: with a window every fourth layer has full attention and stretched RoPE, and
    the others have plain RoPE of the same base."""
    plain = {"rope_type": "default", "rope_theta": 2e5}
    yarn = {**plain, "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128}
    theirs = make_checkpoint(
        family="Olmo3",
        num_hidden_layers=4,
        sliding_window=9,
        rope_parameters={"full_attention": yarn, "sliding_attention": plain},
        pad_token_id=0,
    )
    source = Source(make_checkpoint(**SOURCES["olmo2"], num_hidden_layers=4))
    keys = {
        "attention.sliding_window": 9,
        "rope.freq_base": 2e5,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 2.0,
        "rope.scaling.original_context_length": 128,
    }
    path = gguf_files.write(
        tmp_path / "x.gguf", source, keys={f"olmo2.{key}": value for key, value in keys.items()}
    )
    ours, expected = load_config(path), load_config(theirs)
    assert replace(ours, eos_token_ids=()) == replace(expected, eos_token_ids=())
    assert ours.family is FAMILIES["olmo3"]
    assert ours.rope_of_layer == (1, 1, 1, 0)
