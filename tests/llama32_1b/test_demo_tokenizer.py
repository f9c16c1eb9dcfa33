"""The demo tokenizer: any text survives it, and the chat of training is the chat of the shipped template."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from aerie.llama32_1b.demo import CHECKPOINT
from aerie.llama32_1b.demo.batches import Encoder
from aerie.llama32_1b.demo.corpus import Exchange, question_list
from aerie.llama32_1b.demo.tokenizer import (
    END_OF_TURN,
    SPECIAL_TOKENS,
    VOCAB_SIZE,
    learn_tokenizer,
    special_id,
    tokenizer_config,
    tokenizer_texts,
)

_SHIPPED = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))


def _round_trip(text: str) -> str:
    return str(
        _SHIPPED.decode(_SHIPPED.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)
    )


_TEXTS = [
    "🦅 an eagle 👩‍👩‍👧‍👦",
    "Grüße aus Köln",
    "日本語とعربي",
    "a\r\n\tb  c\n\n\n d ",
    "x = [1, 2]\n    return",
    "\x00\x7f",
    "1234567890",
]


@pytest.mark.parametrize("text", _TEXTS)
def test_any_text_survives(text: str) -> None:
    assert _round_trip(text) == text


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_random_text_survives(text: str) -> None:
    assert _round_trip(text) == text


def test_shipped_tokenizer_is_the_one_that_the_corpus_gives() -> None:
    learned = json.loads(learn_tokenizer(tokenizer_texts()).to_str())
    assert learned == json.loads((CHECKPOINT / "tokenizer.json").read_text(encoding="utf-8"))


def test_shipped_tokenizer_config_is_the_one_in_the_source() -> None:
    assert (
        json.loads((CHECKPOINT / "tokenizer_config.json").read_text(encoding="utf-8")) == tokenizer_config()
    )


def test_special_tokens_come_last_and_are_one_id_each() -> None:
    assert _SHIPPED.get_vocab_size() == VOCAB_SIZE
    ids = [special_id(_SHIPPED, token) for token in SPECIAL_TOKENS]
    assert ids == list(range(VOCAB_SIZE - len(SPECIAL_TOKENS), VOCAB_SIZE))
    assert _SHIPPED.encode("".join(SPECIAL_TOKENS), add_special_tokens=False).ids == ids


def test_a_missing_special_token_is_named() -> None:
    with pytest.raises(KeyError, match="no_such_token"):
        special_id(_SHIPPED, "<|no_such_token|>")


def test_plain_text_begins_with_the_begin_token() -> None:
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    assert tokenizer("Hello")["input_ids"][0] == tokenizer.bos_token_id
    assert tokenizer.eos_token == END_OF_TURN


def test_training_chats_follow_the_shipped_template() -> None:
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    exchanges = [
        Exchange("", "What is 1 + 1?", "1 + 1 = 2."),
        Exchange("", "\n 😀 why?  ".strip(), "I do not know."),
    ]
    messages = [{"role": "system", "content": "You are small."}]
    for exchange in exchanges:
        messages += [{"role": "user", "content": exchange.question}]
        messages += [{"role": "assistant", "content": exchange.answer}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    sample = Encoder(_SHIPPED).conversation(exchanges, "You are small.")
    assert sample.ids == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(sample.weights) == len(sample.ids)


def test_a_generation_prompt_continues_the_conversation_so_far() -> None:
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    turns = [
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Bye!"},
    ]
    first = tokenizer.apply_chat_template(turns[:1], tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert whole.startswith(first)


def test_one_turn_prompts_stay_under_64_tokens_and_answers_fit_beside_them() -> None:
    encoder = Encoder(_SHIPPED)
    for exchange in question_list():
        prompt = len(encoder.conversation([exchange._replace(answer="")]).ids) - 1
        assert prompt < 64, exchange.question
        assert len(encoder.conversation([exchange]).ids) <= 128, exchange.question
