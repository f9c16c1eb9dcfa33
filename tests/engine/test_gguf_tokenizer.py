"""The tokenizer in a GGUF file's metadata has the ids of the tokenizer that the metadata was made of.

Sources are trained here, each built as transformers builds the tokenizers of a `tokenizer.ggml.pre`, or by
sentencepiece; and the demo's own. The patterns are written out as published, apart from those of the code.
"""

from __future__ import annotations

import io
import json
import unicodedata
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN_2
from transformers.models.qwen3_5.tokenization_qwen3_5 import PRETOKENIZE_REGEX as QWEN_35
from transformers.tokenization_utils_base import generate_merges

from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.engine.errors import CheckpointError
from aerie.engine.gguf.pre_tokenizers import PRE_TOKENIZERS
from aerie.engine.gguf.tokenizer import missing_pre_tokenizer, tokenizer_from_metadata
from aerie.engine.tokenizer import Tokenizer as EngineTokenizer
from aerie.engine.tokenizer import load_tokenizer
from tests import gguf_metadata
from tests.drawn_texts import draw_texts

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT_4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<pad>"]
DEFINED = ["<think>", "</think>", "<tool_call>"]


def split(pattern: str, behavior: str = "isolated") -> list[Any]:
    return [
        pre_tokenizers.Split(Regex(pattern), behavior, invert=behavior == "removed"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


def gpt_2() -> list[Any]:
    return [pre_tokenizers.ByteLevel(add_prefix_space=False)]


def digits() -> list[Any]:
    return [pre_tokenizers.Digits(individual_digits=True), *gpt_2()]


SOURCES = {
    "llama-bpe": (lambda: split(LLAMA_3), None),
    "smaug-bpe": (lambda: split(LLAMA_3), None),
    "qwen2": (lambda: split(QWEN_2), normalizers.NFC),
    "qwen35": (lambda: split(QWEN_35), normalizers.NFC),
    "smollm": (digits, None),
    "command-r": (digits, normalizers.NFC),
    "gpt-2": (gpt_2, None),
    "olmo": (gpt_2, normalizers.NFC),
    "gpt-4o": (lambda: split(GPT_4O, "removed"), None),
    "tekken": (lambda: split(TEKKEN), None),
}
"""The cutting and the normaliser of the tokenizers that transformers has for the models of each."""
IGNORE_MERGES = ("llama-bpe", "tekken")
BEGIN_WITH_BOS = ("llama-bpe", "tekken")
SPECIAL_FIRST = ("smollm", "gpt-2", "tekken")


@cache
def trained(pre: str) -> Tokenizer:
    """A source tokenizer. Its special tokens are the first of the vocabulary, or follow it."""
    cutting, normalizer = SOURCES[pre]
    inner = Tokenizer(models.BPE())
    if normalizer:
        inner.normalizer = normalizer()
    inner.pre_tokenizer = pre_tokenizers.Sequence(cutting())
    inner.decoder = decoders.ByteLevel()
    first = SPECIAL if pre in SPECIAL_FIRST else []
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner.train_from_iterator(
        draw_texts(600, seed=1),
        trainers.BpeTrainer(
            vocab_size=900, special_tokens=first, initial_alphabet=alphabet, show_progress=False
        ),
    )
    if pre in IGNORE_MERGES:  # tokens that only whole words can be
        content = json.loads(inner.to_str())
        del content["model"]["merges"][::5]
        inner = Tokenizer.from_str(
            json.dumps({**content, "model": {**content["model"], "ignore_merges": True}})
        )
    inner.add_special_tokens(SPECIAL)
    inner.add_tokens([AddedToken(token, normalized=False) for token in DEFINED])
    if pre in BEGIN_WITH_BOS:
        bos = ("<|endoftext|>", inner.token_to_id("<|endoftext|>"))
        inner.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[bos])
    return inner


def metadata_of(source: Tokenizer, pre: str, **further: Any) -> dict[str, Any]:
    ids = {
        f"{name}_token_id": source.token_to_id(token)
        for name, token in (("bos", "<|endoftext|>"), ("eos", "<|im_end|>"), ("padding", "<pad>"))
    }
    return gguf_metadata.of_tokenizer(source, pre, rows=960, **ids, **further)


def assert_same(made: Tokenizer, source: Tokenizer, texts: list[str]) -> None:
    for special in (True, False):
        expected = [each.ids for each in source.encode_batch(texts, add_special_tokens=special)]
        found = [each.ids for each in made.encode_batch(texts, add_special_tokens=special)]
        assert found == expected
    assert made.decode_batch(found, skip_special_tokens=False) == source.decode_batch(
        expected, skip_special_tokens=False
    )


@pytest.mark.parametrize("pre", SOURCES)
def test_byte_level_ids_are_the_sources(pre: str) -> None:
    source = trained(pre)
    made, _ = tokenizer_from_metadata(metadata_of(source, pre))
    assert made.get_vocab() == source.get_vocab()
    texts = [*draw_texts(300, seed=2, control=SPECIAL + DEFINED)]
    assert_same(made, source, texts)
    whole = [unicodedata.normalize("NFC", text) if SOURCES[pre][1] else text for text in draw_texts(100, 3)]
    assert [made.decode(made.encode(text).ids) for text in whole] == whole


@pytest.mark.parametrize("pre", SOURCES)
def test_byte_level_ids_of_four_thousand_texts(pre: str) -> None:
    made, _ = tokenizer_from_metadata(metadata_of(trained(pre), pre))
    assert_same(made, trained(pre), [*draw_texts(4_000, seed=4, control=SPECIAL + DEFINED)])


def test_the_demos_ids() -> None:
    source = load_tokenizer(DEMO_FOLDER)._backend
    further = {"bos_token_id": source.token_to_id("<|begin_of_text|>"), "add_bos_token": True}
    made, template = tokenizer_from_metadata(gguf_metadata.of_tokenizer(source, "ufakzeka", **further))
    assert template is None
    assert_same(made, source, [*draw_texts(300, seed=5, control=["<|eot_id|>"])])


def test_default_cuts_punctuation_then_words_then_triples_of_digits() -> None:
    made, _ = tokenizer_from_metadata(metadata_of(trained("gpt-2"), "default"))
    cut = [word for word, _ in made.pre_tokenizer.pre_tokenize_str("it's $12345 (ok)... x")]
    assert cut == ["it", "'", "s", "Ġ", "$", "123", "45", "Ġ", "(", "ok", ")...", "Ġx"]
    missing = metadata_of(trained("gpt-2"), "default")
    del missing["tokenizer.ggml.pre"]
    same, _ = tokenizer_from_metadata(missing)
    assert same.to_str() == made.to_str()


def test_a_missing_pre_tokenizer_is_noted() -> None:
    """Where it decides how text is cut: with a tokenizer.json, and in SentencePiece, it does not."""
    metadata = metadata_of(trained("gpt-2"), "default")
    assert missing_pre_tokenizer(metadata) == []
    del metadata["tokenizer.ggml.pre"]
    (note,) = missing_pre_tokenizer(metadata)
    assert note.startswith(
        "note: the GGUF file does not say how its tokenizer cuts text (tokenizer.ggml.pre)"
    )
    assert missing_pre_tokenizer({**metadata, "tokenizer.huggingface.json": "{}"}) == []
    assert missing_pre_tokenizer({**metadata, "tokenizer.ggml.model": "llama"}) == []


def test_every_name_is_a_tokenizer() -> None:
    source = trained("gpt-2")
    built = {pre: tokenizer_from_metadata(metadata_of(source, pre))[0] for pre in PRE_TOKENIZERS}
    for pre, of in {
        "lfm2": "llama-bpe",
        "dbrx": "smaug-bpe",
        "starcoder": "smollm",
        "llama4": "gpt-4o",
    }.items():
        assert built[pre].to_str() == built[of].to_str()
    assert len({each.to_str() for each in built.values()}) == 12


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2"])
def test_the_file_says_what_is_put_around_a_text(pre: str) -> None:
    source = trained(pre)
    bos, eos = source.token_to_id("<|endoftext|>"), source.token_to_id("<|im_end|>")
    plain = source.encode("the world", add_special_tokens=False).ids
    for begin, end in ((True, True), (True, False), (False, True), (False, False)):
        given = metadata_of(source, pre, add_bos_token=begin, add_eos_token=end)
        made, _ = tokenizer_from_metadata(given)
        assert made.encode("the world").ids == [bos] * begin + plain + [eos] * end
        assert made.encode("the world", add_special_tokens=False).ids == plain


def test_rows_without_a_token_are_none() -> None:
    made, _ = tokenizer_from_metadata(metadata_of(trained("qwen2"), "qwen2"))
    assert made.id_to_token(950) is None
    assert made.decode([950]) == ""


def test_tokens_of_the_model_that_end_a_turn_are_special_whatever_their_type() -> None:
    given = metadata_of(trained("smollm"), "smollm")
    given["tokenizer.ggml.token_type"] = [1] * len(given["tokenizer.ggml.tokens"])
    made, _ = tokenizer_from_metadata(given)
    special = {each.content for each in made.get_added_tokens_decoder().values()}
    assert special == {"<|endoftext|>", "<|im_end|>"}


def test_no_text_is_a_control_token_for_being_a_word() -> None:
    source = Tokenizer.from_str(trained("llama-bpe").to_str())
    source.add_special_tokens(["Endofturn"])
    made, _ = tokenizer_from_metadata(gguf_metadata.of_tokenizer(source, "llama-bpe", bos_token_id=1))
    tokenizer = EngineTokenizer(made)
    assert tokenizer.encode("Endofturn", control_tokens=True)[1:] == [made.token_to_id("Endofturn")]
    assert len(tokenizer.encode("Endofturn")) > 2


def test_the_chat_template_has_the_tokens_by_their_names() -> None:
    text = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    given = metadata_of(trained("qwen2"), "qwen2") | {
        "tokenizer.chat_template": text,
        "tokenizer.chat_template.tool_use": "tools" + text,
        "tokenizer.chat_templates": ["tool_use"],
    }
    made, template = tokenizer_from_metadata(given)
    assert template is not None
    assert template.templates == {"default": text, "tool_use": "tools" + text}
    assert template.special_tokens == {
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<pad>",
    }
    tokenizer = EngineTokenizer(made, template)
    messages = [{"role": "user", "content": "the <|im_end|>"}]
    assert tokenizer.chat_text(messages) == "<|endoftext|>the <|im_end|><|im_end|>"
    ids = tokenizer.encode_chat(messages)
    tokens = [made.id_to_token(each) for each in ids]
    assert [tokens.count(token) for token in ("<|endoftext|>", "<|im_end|>")] == [1, 1]


class TestSentencePiece:
    """SentencePiece's vocabularies: Llama 2, Mistral, Gemma."""

    @staticmethod
    @cache
    def processor(add_dummy_prefix: bool = True, remove_extra_whitespaces: bool = False) -> Any:
        import sentencepiece

        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([text.replace("\n", " ") for text in draw_texts(400, seed=6)]),
            model_writer=model,
            model_type="bpe",
            vocab_size=1000,
            character_coverage=0.98,
            byte_fallback=True,
            normalization_rule_name="identity",
            add_dummy_prefix=add_dummy_prefix,
            remove_extra_whitespaces=remove_extra_whitespaces,
            num_threads=1,
            minloglevel=2,
        )
        return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())

    @staticmethod
    def metadata(processor: Any, **further: Any) -> dict[str, Any]:
        numbers = range(processor.get_piece_size())
        kinds = ((processor.is_unknown, 2), (processor.is_control, 3), (processor.is_byte, 6))
        types = [next((kind for is_one, kind in kinds if is_one(n)), 1) for n in numbers]
        scores = [processor.get_score(n) for n in numbers]
        return gguf_metadata.of_pieces([*map(processor.id_to_piece, numbers)], scores, types, **further)

    @pytest.mark.parametrize("prefix", [True, False])
    @pytest.mark.parametrize("collapse", [True, False])
    def test_ids_are_sentencepieces(self, prefix: bool, collapse: bool) -> None:
        source = self.processor(prefix, collapse)
        given = self.metadata(source, add_space_prefix=prefix, remove_extra_whitespaces=collapse)
        self.assert_same(given, source, 300)

    def test_ids_of_four_thousand_texts(self) -> None:
        self.assert_same(self.metadata(self.processor()), self.processor(), 4_000)

    @staticmethod
    def assert_same(given: dict[str, Any], source: Any, count: int) -> None:
        made, _ = tokenizer_from_metadata(given)
        texts = [*draw_texts(count, seed=7)]
        found = [each.ids for each in made.encode_batch(texts)]
        expected = [[source.bos_id(), *source.encode(text)] for text in texts]
        assert found == expected
        assert made.decode_batch(found) == [source.decode(ids) for ids in expected]

    @pytest.mark.parametrize("space_prefix", [True, False])
    def test_ids_are_transformers(self, space_prefix: bool) -> None:
        """Llama's, with a blank before the text; Gemma's, without; and tokens that their makers defined."""
        processor = self.processor()
        given = self.metadata(
            processor,
            added={"<pad>": True, "<turn>": True, "▁▁": False, "▁▁▁": False, "\n\n": False, "<h1>": False},
            add_space_prefix=space_prefix,
        )
        source = self.as_transformers(given, space_prefix)
        made, _ = tokenizer_from_metadata(given)
        assert made.get_vocab() == source.get_vocab()
        assert_same(made, source, [*draw_texts(300, seed=8, control=["<turn>", "</s>", "<h1>", "▁▁", "▁"])])

    @staticmethod
    def as_transformers(given: dict[str, Any], space_prefix: bool) -> Tokenizer:
        """From what SentencePiece's file has: a defined token is spelled with its sign for a blank, and has
        the score 0, the highest."""
        tokens = [token.replace(" ", "▁") for token in given["tokenizer.ggml.tokens"]]
        types = given["tokenizer.ggml.token_type"]
        vocabulary = {token: number for number, token in enumerate(tokens)}
        scores = {
            token: 0.5 if types[number] == 4 else given["tokenizer.ggml.scores"][number]
            for token, number in vocabulary.items()
        }
        merges = generate_merges(vocabulary, scores)
        inner = Tokenizer(
            models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
        )
        prepend = [normalizers.Prepend("▁")] if space_prefix else []
        inner.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
        strip = [decoders.Strip(" ", 1, 0)] if space_prefix else []
        inner.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        )
        for number, (token, kind) in enumerate(zip(tokens, types, strict=True)):
            if kind in (2, 3, 4):
                assert inner.add_tokens([AddedToken(token, normalized=False, special=kind != 4)]) in (0, 1)
                assert inner.token_to_id(token) == number
        inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        return inner

    def test_mistrals_control_tokens_have_no_blank_after_them(self) -> None:
        source = self.processor()
        given = self.metadata(source, added={"[INST]": True, "[/INST]": True})
        made, _ = tokenizer_from_metadata(given)
        begin, end = made.token_to_id("[INST]"), made.token_to_id("[/INST]")
        words = source.encode("the world")
        assert made.encode("[INST] the world[/INST]").ids == [1, begin, *words, end]
        assert made.encode("the world").ids == [1, *words]
        llama, _ = tokenizer_from_metadata(self.metadata(source))
        assert llama.encode("<s>the world", add_special_tokens=False).ids == [1, *words]

    def test_unknown_signs_are_unk_where_there_are_no_bytes(self) -> None:
        given = gguf_metadata.of_pieces(["<unk>", "<s>", "</s>", "▁", "a"], [0.0] * 5, [2, 3, 3, 1, 1])
        made, template = tokenizer_from_metadata(given | {"tokenizer.chat_template": "{{ unk_token }}"})
        assert made.encode("ab日a").ids == [1, 3, 4, 0, 4]
        assert template
        assert template.special_tokens == {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}

    def test_no_text_is_a_control_token_for_its_letters(self) -> None:
        """Nor where a file has no types: BOS and EOS are special by their ids."""
        tokens = ["<unk>", "<s>", "</s>", "▁", "<", "s", ">", "<s", "</", "/", "s>"]
        for types in ([2, 3, 3, *[1] * 8], [1] * 11):
            made, _ = tokenizer_from_metadata(gguf_metadata.of_pieces(tokens, [0.0] * 11, types))
            assert made.encode("<s>", add_special_tokens=False).ids == [1]
            plain = EngineTokenizer(made).encode("<s></s>")
            assert plain[0] == 1
            assert not {1, 2} & {*plain[1:]}

    def test_an_unknown_token_that_is_unused_is_none(self) -> None:
        given = gguf_metadata.of_pieces(["<unk>", "<s>", "</s>", "▁", "a"], [0.0] * 5, [5, 3, 3, 1, 1])
        made, _ = tokenizer_from_metadata(given)
        assert made.encode("ab日a").ids == [1, 3, 4, 4]


class TestWholeTokenizer:
    """tokenizer.json, where the file has it whole."""

    def test_it_is_taken(self) -> None:
        source = trained("qwen2")
        given = metadata_of(source, "of another kind") | {"tokenizer.huggingface.json": source.to_str()}
        made, _ = tokenizer_from_metadata(given)
        assert made.to_str() == source.to_str()

    @pytest.mark.parametrize(
        "content", [lambda: trained("gpt-2").to_str(), lambda: "{", lambda: 7, lambda: '{"model": null}']
    )
    def test_another_vocabularys_is_not(self, content: Any) -> None:
        source = trained("qwen2")
        plain, _ = tokenizer_from_metadata(metadata_of(source, "qwen2"))
        made, _ = tokenizer_from_metadata(
            metadata_of(source, "qwen2") | {"tokenizer.huggingface.json": content()}
        )
        assert made.to_str() == plain.to_str()


def damaged(change: dict[str, Any]) -> dict[str, Any]:
    given = dict(metadata_of(trained("smollm"), "smollm"))
    for key, value in change.items():
        name = key if key.startswith("tokenizer.") else f"tokenizer.ggml.{key}"
        given[name] = value(given[name]) if callable(value) else value
        if value is None:
            del given[name]
    return given


DAMAGED: dict[str, dict[str, Any]] = {
    "tokenizer.ggml.tokens is missing or no list": {"tokens": None},
    "tokenizer.ggml.tokens is missing or no": {"tokens": []},
    "tokenizer.ggml.tokens has 524289 entries, and 524288 is the limit": {
        "tokens": lambda _: ["a"] * 524_289
    },
    "token 3 is bytes, not a text": {"tokens": lambda tokens: [*tokens[:3], b"\xff", *tokens[4:]]},
    "token 3 is not UTF-8": {"tokens": lambda tokens: [*tokens[:3], "\ud800", *tokens[4:]]},
    "token 5 is '<pad>', which token 3 is too": {
        "tokens": lambda tokens: [*tokens[:5], "<pad>", *tokens[6:]]
    },
    "the longest 1025, and 8000000 and 1024 are the limits": {
        "tokens": lambda tokens: [*tokens[:-1], "x" * 1025]
    },
    "there are 960 tokens and 3 types of them": {"token_type": [1, 1, 1]},
    "token_type holds what is none of 0 to 6": {"token_type": lambda types: [*types[1:], 7]},
    "token_type holds what is none of": {"token_type": lambda types: [*types[1:], "1"]},
    "tokenizer.ggml.merges is missing or no list": {"merges": None},
    "tokenizer.ggml.merges holds what is no text": {"merges": lambda merges: [*merges, 3]},
    "merge 1 is 'th qqq', which are no two tokens that make a third": {
        "merges": lambda merges: [merges[0], "th qqq"]
    },
    "merge 0 is 'ab', which are no two": {"merges": ["ab"]},
    "tokenizer.ggml.bos_token_id is 960, and there are 960 tokens": {"bos_token_id": 960},
    "tokenizer.ggml.eos_token_id is -1, and there are": {"eos_token_id": -1},
    "tokenizer.ggml.padding_token_id is str, not an id": {"padding_token_id": "0"},
    "tokenizer.ggml.bos_token_id is bool, not an id": {"bos_token_id": True},
    "tokenizer.ggml.add_bos_token is int, not true or false": {"add_bos_token": 1},
    "add_bos_token is true, and bos_token_id is missing": {
        "add_bos_token": True,
        "bos_token_id": None,
    },
    "add_eos_token is true, and eos_token_id is missing": {"add_eos_token": True, "eos_token_id": None},
    "tokenizer.ggml.model is missing": {"model": None},
    "tokenizer.ggml.pre is not a text": {"pre": 3},
    "tokenizer.chat_template is no text": {"tokenizer.chat_template": 3},
    "the model 't5', which is not supported; gpt2 (byte-level BPE) and llama (SentencePiece) are": {
        "model": "t5"
    },
    "cuts text as 'klingon' (tokenizer.ggml.pre), which is not supported; these are: llama-bpe, ": {
        "pre": "klingon"
    },
    "tokenizer.ggml.scores is missing or no list": {"model": "llama"},
    "there are 960 tokens and 2 scores": {"model": "llama", "scores": [0.0, 1.0]},
    "tokenizer.ggml.scores holds what is no number": {
        "model": "llama",
        "tokens": ["<unk>", "<s>"],
        "token_type": [2, 3],
        "scores": [0.0, float("nan")],
        **{f"{name}_token_id": 1 for name in ("bos", "eos", "padding")},
    },
}


@pytest.mark.parametrize("message", DAMAGED)
def test_damaged_metadata_is_one_line(message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        tokenizer_from_metadata(damaged(DAMAGED[message]))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "etch" in str(caught.value)


KEYS = [
    f"tokenizer.ggml.{name}"
    for name in (
        *("model", "pre", "tokens", "token_type", "merges", "scores", "add_bos_token", "add_space_prefix"),
        *("bos_token_id", "eos_token_id", "padding_token_id", "unknown_token_id", "remove_extra_whitespaces"),
    )
] + ["tokenizer.chat_template", "tokenizer.huggingface.json"]


@given(
    key=st.sampled_from(KEYS),
    value=st.none()
    | st.booleans()
    | st.integers(-(2**33), 2**33)
    | st.text(max_size=4)
    | st.lists(st.integers(-1, 9) | st.text(max_size=3) | st.floats(), max_size=4),
    model=st.sampled_from(["gpt2", "llama"]),
)
def test_whatever_an_entry_is(key: str, value: Any, model: str) -> None:
    source = metadata_of(trained("smollm"), "smollm") | {"tokenizer.ggml.model": model, key: value}
    try:
        made, _ = tokenizer_from_metadata(source)
    except CheckpointError:
        return
    assert made.decode(made.encode("the").ids) is not None
