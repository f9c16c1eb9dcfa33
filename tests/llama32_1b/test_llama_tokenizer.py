"""Tokenizer, chat template, and text that grows token by token."""

import random

import pytest

from llama32_1b.errors import CheckpointError
from llama32_1b.tokenizer import load_tokenizer

TEXTS = [
    "What is the capital of France?",
    "naïve café, Größe 10 €",
    "日本語のテキスト",
    "🙂👩‍👩‍👧 and ✂️",
    "tabs\tand\nnew lines  and  blanks ",
    "",
]


@pytest.fixture
def tokenizer(make_checkpoint):
    return load_tokenizer(make_checkpoint())


def pieces(tokenizer, token_ids):
    stream = tokenizer.stream()
    return [stream.feed(token) for token in token_ids] + [stream.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_stream_adds_up_and_never_breaks_a_character(tokenizer, text):
    token_ids = tokenizer.encode(text)
    given = pieces(tokenizer, token_ids)
    assert "".join(given) == text == tokenizer.decode(token_ids)
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(given)


def test_character_of_several_tokens_comes_whole(tokenizer):
    token_ids = tokenizer.encode("é")[1:]
    assert len(token_ids) == 2
    assert pieces(tokenizer, token_ids) == ["", "é", ""]


def test_unfinished_character_is_shown_at_the_end_only(tokenizer):
    token_ids = tokenizer.encode("a€")[1:-1]
    given = pieces(tokenizer, token_ids)
    assert given[0] == "a"
    assert given[1:-1] == [""] * (len(token_ids) - 1)
    assert "".join(given) == tokenizer.decode(token_ids)


def test_stream_of_any_tokens_adds_up(tokenizer):
    numbers = random.Random(0)
    for _ in range(20):
        token_ids = [numbers.randrange(372) for _ in range(60)]
        assert "".join(pieces(tokenizer, token_ids)) == tokenizer.decode(token_ids)


def test_blanks_between_pieces_survive_a_decoder_that_strips(tmp_path):
    """SentencePiece decoders drop the blank before the first word; pieces must still be joined by blanks."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({"▁the": 0, "▁herd": 1, "s": 2}, unk_token="s"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert pieces(tokenizer, [0, 1, 2, 0]) == ["the", " herd", "s", " the", ""]
    assert not tokenizer.has_chat_template


def test_encode_is_that_of_transformers(tokenizer, make_checkpoint):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(make_checkpoint())
    for text in TEXTS:
        assert tokenizer.encode(text) == theirs.encode(text)
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert tokenizer.has_chat_template
    assert tokenizer.encode_chat(messages) == expected


def test_special_tokens_are_not_text(tokenizer):
    assert tokenizer.encode("a")[0] == 0
    assert tokenizer.decode([0, *tokenizer.encode("a"), 2, 1]) == "a"


def test_other_tokenizer_classes_go_through_auto(tokenizer, damaged, checkpoints):
    checkpoints.edit_json(damaged / "tokenizer_config.json", tokenizer_class="GPT2Tokenizer")
    assert load_tokenizer(damaged).decode(tokenizer.encode("the herd")) == "the herd"


def test_a_lack_of_memory_is_no_damage(damaged, monkeypatch):
    def end(*_):
        raise MemoryError

    monkeypatch.setattr("llama32_1b.tokenizer._load", end)
    with pytest.raises(MemoryError):
        load_tokenizer(damaged)


def test_missing_and_damaged(damaged):
    path = damaged / "tokenizer.json"
    path.write_text(path.read_text()[:500])
    with pytest.raises(CheckpointError, match=r"cannot load the tokenizer in .*; fetch it again"):
        load_tokenizer(damaged)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"there is no tokenizer\.json in .*; the checkpoint is incomp"):
        load_tokenizer(damaged)
