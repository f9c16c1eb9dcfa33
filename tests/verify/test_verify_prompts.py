"""Every kind of prompt, for tokenizers and models of all sorts."""

import json
import shutil
import types
from dataclasses import replace

import pytest

from aerie.engine.chat_template import ChatTemplate
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.tokenizer import Tokenizer, load_tokenizer
from aerie.verify.gate_prompts import QUESTION, choose_prompts
from aerie.verify.token_ids import compare_token_ids


class Plain:
    """A tokenizer of words, without a template."""

    has_chat_template = False

    def encode(self, text):
        return [7, *(len(word) for word in text.split())]


def session_of(tokenizer, longest=128, eos=(1, 2)):
    model = types.SimpleNamespace(max_prompt_tokens=longest, config=types.SimpleNamespace(eos_token_ids=eos))
    return types.SimpleNamespace(tokenizer=tokenizer, model=model)


@pytest.fixture(scope="module")
def demo(demo_checkpoint):
    eos = demo_checkpoint.config.eos_token_ids
    return choose_prompts(session_of(demo_checkpoint.tokenizer, eos=eos), full=True)


def test_the_kinds_of_the_demo(demo):
    assert [prompt.name for prompt in demo] == [
        "chat turn",
        "long",
        "code",
        "short",
        "one token",
        "near the end",
        "languages",
        "emoji",
        "end token inside",
        "conversation",
    ]


def test_two_for_a_quick_look_the_first_a_chat_with_all_its_positions(demo, demo_checkpoint):
    few = choose_prompts(session_of(demo_checkpoint.tokenizer), full=False)
    assert few == demo[:2]
    assert few[0].message == QUESTION
    assert [prompt.every_position for prompt in demo] == [True] + [False] * 9


def test_each_prompt_matches_its_name(demo, demo_checkpoint):
    prompts = {prompt.name: prompt.token_ids for prompt in demo}
    text = demo_checkpoint.tokenizer.decode
    assert len(prompts["one token"]) == 1
    assert len(prompts["near the end"]) == 113
    assert len(prompts["short"]) < 10 < 50 < len(prompts["long"])
    assert demo_checkpoint.config.eos_token_ids[0] in prompts["end token inside"][1:-1]
    assert "東京" in text(prompts["languages"])
    assert "🚀" in text(prompts["emoji"])
    assert "return width" in text(prompts["code"])
    assert text(prompts["chat turn"]).count(QUESTION) == 1


def test_without_a_template_the_question_is_plain_text():
    prompts = choose_prompts(session_of(Plain()), full=True)
    assert [prompt.name for prompt in prompts][:2] == ["question", "long"]
    assert len(prompts) >= 8
    assert prompts[0].every_position
    assert all(prompt.message is None for prompt in prompts)


def test_a_model_without_end_tokens_has_no_prompt_with_one():
    names = [prompt.name for prompt in choose_prompts(session_of(Plain(), eos=()), full=True)]
    assert "end token inside" not in names
    assert len(names) >= 8


@pytest.mark.parametrize("longest", [1, 2, 16, 64])
def test_no_prompt_is_longer_than_what_is_compiled(demo_checkpoint, longest):
    prompts = choose_prompts(session_of(demo_checkpoint.tokenizer, longest), full=True)
    assert len(prompts) >= 8
    assert all(1 <= len(prompt.token_ids) <= longest for prompt in prompts)


def test_a_byte_level_tokenizer_of_a_random_llama(write_llama):
    checkpoint = open_checkpoint(write_llama(num_hidden_layers=1))
    prompts = choose_prompts(session_of(checkpoint.tokenizer, 64, checkpoint.config.eos_token_ids), full=True)
    assert {"chat turn", "languages", "emoji", "end token inside"} <= {prompt.name for prompt in prompts}


def test_prompts_are_distinct(demo):
    assert len(set(demo)) == len(demo)
    assert replace(demo[0]) == demo[0]


# Token ids by independent code


def test_ids_are_those_of_an_independent_reading(demo_checkpoint):
    found = compare_token_ids(demo_checkpoint.tokenizer, demo_checkpoint.folder)
    assert (found.differing, found.broken, found.failure) == (0, "", None)
    assert found.compared > 300


@pytest.fixture
def llama_like(demo_checkpoint, tmp_path):
    """The demo, whose tokenizer_config.json names a class that transformers rebuilds tokenizer.json by."""
    folder = shutil.copytree(
        demo_checkpoint.folder, tmp_path / "llama", ignore=lambda *_: ["model.safetensors"]
    )
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": "LlamaTokenizerFast"}))
    return folder


def test_a_tokenizer_read_wrongly_fails_the_gate(llama_like, demo_checkpoint):
    """As transformers reads it: for its own model the answers would be the same wrong ones."""
    from transformers import AutoTokenizer

    wrong = AutoTokenizer.from_pretrained(llama_like)
    chat = ChatTemplate({"default": wrong.chat_template}, wrong.special_tokens_map)
    found = compare_token_ids(Tokenizer(wrong.backend_tokenizer, chat), llama_like)
    assert found.differing > 100
    assert "the count of numbers that differ" in str(found.failure)
    assert compare_token_ids(load_tokenizer(llama_like), llama_like).failure is None


def test_token_ids_that_cannot_be_compared(demo_checkpoint, tmp_path, monkeypatch):
    assert compare_token_ids(demo_checkpoint.tokenizer, tmp_path).skipped == "there is no tokenizer.json"
    monkeypatch.setattr("aerie.verify.token_ids.CHATS", ([{"role": 5}],))
    monkeypatch.setattr(Tokenizer, "encode_chat", lambda *_: [1])
    found = compare_token_ids(demo_checkpoint.tokenizer, demo_checkpoint.folder)
    assert found.broken.startswith("transformers failed: ")
