"""Headers of GGUF files: read as the gguf package reads them, and every way they can be wrong."""

from __future__ import annotations

import math
import struct
import tracemalloc
from contextlib import suppress
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.engine.errors import CheckpointError
from aerie.engine.gguf import block_types
from aerie.engine.gguf.container import GGUFError, is_gguf, read_container
from tests.gguf_files import header, key, string, tensor

VALUES: dict[str, Any] = {
    "a.uint8": 200,
    "a.negative": -3,
    "a.large": 1 << 40,
    "a.float": 1e-05,
    "a.double": 0.1,
    "a.flag": True,
    "a.text": "Grüße, 世界",
    "a.empty": "",
    "a.numbers": [1, 2, 3],
    "a.floats": [0.5, 1e-06],
    "a.texts": ["Ġa", "", "世界"],
    "a.flags": [True, False],
}


@pytest.fixture
def written(tmp_path):
    """A file with a key of every kind and tensors of several types, as the gguf package writes it."""
    path = tmp_path / "some.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.uint8", 200)
    writer.add_int16("a.negative", -3)
    writer.add_uint64("a.large", 1 << 40)
    writer.add_float32("a.float", 1e-05)
    writer.add_float64("a.double", 0.1)
    writer.add_bool("a.flag", True)
    for name in ("a.text", "a.empty"):
        writer.add_key_value(name, VALUES[name], gguf.GGUFValueType.STRING)
    for name in ("a.numbers", "a.floats", "a.texts", "a.flags"):
        writer.add_array(name, VALUES[name])
    writer.add_tensor("first", np.arange(6, dtype=np.float32).reshape(2, 3))
    blocks = gguf.quants.quantize(np.ones((4, 64), np.float32), gguf.GGMLQuantizationType.Q4_0)
    writer.add_tensor("second", blocks, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_values_are_those_that_were_written(written):
    container = read_container(written)
    assert {name: container.metadata[name] for name in VALUES} == VALUES
    assert container.metadata["general.architecture"] == "llama"
    assert container.metadata.array_length("a.texts") == 3
    assert container.metadata.array_length("a.text") is None


def test_tensors_are_where_the_package_finds_them(written):
    container, theirs = read_container(written), gguf.GGUFReader(written)
    assert list(container.tensors) == [each.name for each in theirs.tensors]
    for each in theirs.tensors:
        ours = container.tensors[each.name]
        assert ours.shape == tuple(reversed(each.shape.tolist()))
        assert (ours.kind.name, ours.start, ours.size) == (
            each.tensor_type.name,
            each.data_offset,
            each.n_bytes,
        )
    assert (
        written.read_bytes()[container.tensors["first"].start :][:24] == np.arange(6, dtype="<f4").tobytes()
    )


def test_sizes_of_blocks_are_those_of_the_package():
    for number, kind in block_types.READ.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)] == (kind.values, kind.size)
        assert gguf.GGMLQuantizationType(number).name == kind.name
    others = {
        each.value: each.name for each in gguf.GGMLQuantizationType if each.value not in block_types.READ
    }
    assert others.items() <= block_types.OTHERS.items()


def test_files_are_known_by_how_they_begin(written, tmp_path):
    other = tmp_path / "sha256-0123"
    other.write_bytes(written.read_bytes())
    (tmp_path / "short").write_bytes(b"GG")
    assert is_gguf(written)
    assert is_gguf(other)
    assert not is_gguf(tmp_path / "short")
    assert not is_gguf(tmp_path)
    assert not is_gguf(tmp_path / "missing")


U32, STRING, ARRAY = 4, 8, 9
ONE = key("general.architecture", STRING, string("llama"))
F32_VECTOR = tensor("x", (8,))


def array(kind, count, elements=b""):
    return struct.pack("<IQ", kind, count) + elements


FAULTS = {
    "no GGUF": (b"PK\x03\x04" + bytes(60), "it begins with b'PK\\x03\\x04', where a GGUF file has b'GGUF'"),
    "empty": (b"", "the magic number takes 4 bytes, and 0 are left in the file; fetch the file again"),
    "half a header": (b"GGUF" + struct.pack("<I", 3), "the number of tensors takes 8 bytes, and 0 are left"),
    "version 1": (header(version=1), "GGUF version 1 is not read; versions 2 and 3 are: fetch a newer file"),
    "version 4": (header(version=4), "GGUF version 4 is not read"),
    "big endian": (
        b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        "it is big endian (version 0x03000000), and only little endian files are read: convert it",
    ),
    "2^60 tensors": (header(counts=(1 << 60, 0)), "it says that it has 1152921504606846976 tensors, and no"),
    "2^60 keys": (header(counts=(0, 1 << 60)), "it says that it has 1152921504606846976 keys, and no more"),
    "more keys than there are": (
        header((ONE,), counts=(0, 2))[: 24 + len(ONE)],
        "the length of the name of key 1 takes 8 bytes, and 0 are left in the file",
    ),
    "a key twice": (header((ONE, ONE)), "key general.architecture is there twice: which value counts is not"),
    "a name of 2^40 bytes": (
        header((struct.pack("<Q", 1 << 40),), counts=(0, 1)),
        "the name of key 0 has 1099511627776 bytes, and no more than 1024 are read",
    ),
    "a string of 2^40 bytes": (
        header((key("a", STRING, struct.pack("<Q", 1 << 40)),)),
        "key a has 1099511627776 bytes, and no more than 536870912 are read",
    ),
    "a string past the end": (
        header((key("a", STRING, struct.pack("<Q", 1 << 20)),)),
        "key a takes 1048576 bytes, and ",
    ),
    "a name that is no UTF-8": (
        header((key("a", STRING, string(b"\xff")),)),
        "key a is not UTF-8 (byte 0 of",
    ),
    "a value of type 13": (header((key("a", 13, bytes(8)),)), "key a has a value of type 13, and types 0 to"),
    "nested arrays": (
        header((key("a", ARRAY, array(ARRAY, 1, array(U32, 1, bytes(4)))),)),
        "key a is an array of arrays, which no reader of GGUF knows",
    ),
    "an array of 2^60 numbers": (
        header((key("a", ARRAY, array(U32, 1 << 60)),)),
        "key a has 1152921504606846976 elements, and no more than 16777216 are read",
    ),
    "an array past the end": (
        header((key("a", ARRAY, array(U32, 1 << 20)),)),
        "key a takes 4194304 bytes, and ",
    ),
    "an array of strings past the end": (
        header((key("a", ARRAY, array(STRING, 1 << 20)),)),
        "a string of key a takes 8 bytes, and ",
    ),
    "a string of 2^63 bytes in an array": (
        header((key("a", ARRAY, array(STRING, 1, struct.pack("<Q", 1 << 63))),)),
        "a string of key a takes 9223372036854775808 bytes, and ",
    ),
    "an array of type 77": (header((key("a", ARRAY, array(77, 1)),)), "key a is an array of type 77, and"),
    "an alignment of 24": (
        header((key("general.alignment", U32, struct.pack("<I", 24)),)),
        "key general.alignment is 24; it must be a power of two",
    ),
    "an alignment that is a text": (
        header((key("general.alignment", STRING, string("x")),)),
        "key general.alignment is 'x'; it must be a power of two",
    ),
    "a tensor twice": (header(tensors=(F32_VECTOR, F32_VECTOR), data=64), "tensor x is there twice"),
    "a tensor past the end": (
        header(tensors=(tensor("x", (8,), offset=64),), data=64),
        "tensor x ends at byte 160, and the file at byte 128: it is cut off, or damaged; fetch the f",
    ),
    "an offset of 2^63": (header(tensors=(tensor("x", (8,), offset=1 << 63),), data=64), "tensor x ends at"),
    "an offset between": (
        header(tensors=(tensor("x", (8,), offset=4),), data=64),
        "tensor x begins at offset 4, no multiple of 32",
    ),
    "tensors over one another": (
        header(tensors=(tensor("x", (16,)), tensor("y", (8,), offset=32)), data=64),
        "tensors x and y lie over one another at byte ",
    ),
    "five dimensions": (header(tensors=(tensor("x", (1,) * 5),)), "tensor x has 5 dimensions; 1 to 4 are"),
    "no dimension": (header(tensors=(tensor("x", ()),)), "tensor x has 0 dimensions"),
    "no values": (header(tensors=(tensor("x", (8, 0)),)), "tensor x has shape 0x8; it must have 1 to "),
    "2^120 values": (
        header(tensors=(tensor("x", (1 << 60, 1 << 60)),)),
        "tensor x has shape 1152921504606846976x1152921504606846976; it must have 1 to 281474976710656 valu",
    ),
    "an unknown type": (
        header(tensors=(tensor("x", (8,), 99),), data=64),
        "tensor x has the unknown type 99, which is not read; BF16, F16, F32, IQ4_NL, IQ4_XS, MXFP4, Q2_K, ",
    ),
    "a type that is not read": (
        header(tensors=(tensor("x", (256,), 16),), data=66),
        "tensor x has IQ2_XXS (type 16), which is not read; ",
    ),
    "half a block": (
        header(tensors=(tensor("x", (40, 2), 2),), data=64),
        "tensor x has rows of 40 values, and a block of Q4_0 has 32",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_reported_in_one_line(fault, tmp_path):
    content, message = FAULTS[fault]
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(GGUFError) as raised:
        read_container(path)
    text = str(raised.value)
    assert text.startswith(f"{path}: ")
    assert message in text
    assert "\n" not in text


def test_a_file_that_ends_early_is_refused_wherever_it_ends(written):
    whole = written.read_bytes()
    for length in range(0, len(whole) - 32, 7):  # the last tensor is padded
        written.write_bytes(whole[:length])
        with pytest.raises(GGUFError):
            read_container(written)


@settings(max_examples=60)
@given(st.data())
def test_any_bytes_end_in_an_error_of_ours_and_little_memory(tmp_path_factory, data):
    """Bytes of a sound file are changed; whatever comes of it, nothing of the size of a count is made."""
    sound = bytearray(
        header((ONE, key("a", ARRAY, array(STRING, 2, string("b") * 2))), (F32_VECTOR,), data=32)
    )
    for _ in range(data.draw(st.integers(1, 4))):
        sound[data.draw(st.integers(0, len(sound) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "changed.gguf"
    path.write_bytes(sound)
    tracemalloc.start()
    with suppress(CheckpointError):
        container = read_container(path)
        assert all(math.prod(each.shape) <= len(sound) for each in container.tensors.values())
        assert len(dict(container.metadata)) == len(container.metadata)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20


def test_a_file_that_was_changed_meanwhile(written):
    container = read_container(written)
    written.write_bytes(written.read_bytes()[:100])
    with pytest.raises(GGUFError, match=r"key a\.texts is cut off: the file was changed while it was read"):
        container.metadata["a.texts"]
    written.unlink()
    with pytest.raises(GGUFError, match=r"cannot read key a\.texts from .*some\.gguf: No such file"):
        container.metadata["a.texts"]


def test_a_header_of_many_tokens_is_read_in_pieces(tmp_path):
    """More than is read at once, so that a string lies on each edge."""
    texts = [f"token {number}" * 4 for number in range(40_000)]
    content = header((key("a", ARRAY, array(STRING, len(texts), b"".join(map(string, texts)))), ONE))
    (tmp_path / "x.gguf").write_bytes(content)
    metadata = read_container(tmp_path / "x.gguf").metadata
    assert metadata["a"] == texts
    assert metadata["general.architecture"] == "llama"
