"""Thinking, apart from the answer: splitter, tags, both modes of Qwen3, budgets, grammars."""

from __future__ import annotations

import json
import random
import shutil

import numpy as np
import pytest

from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.common.errors import UserError
from aerie.engine.chat_template import ChatTemplate
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.forward import decode_step, next_token_logits, prefill
from aerie.engine.grammar import GrammarCompiler
from aerie.engine.sampler import Sampler
from aerie.engine.thinking import KNOWN_TAGS, AnswerPart, ThinkingStart, find_tags, with_history_names
from aerie.engine.thinking_plan import ThinkingPlan, plan_thinking
from aerie.engine.tokenizer import Tokenizer, load_tokenizer
from tests.thinking_models import OPENED, QWEN3, SWITCHED, add_tokens

TAGS = KNOWN_TAGS[0]
CASES = [
    ("Paris.", False, "", "Paris."),
    ("  Paris. ", False, "", "  Paris. "),
    ("", False, "", ""),
    ("<think>\nFrance, so\n Paris \n</think>\n\nParis.\n", False, "France, so\n Paris", "Paris.\n"),
    ("\n<think>a</think>b", False, "a", "b"),
    ("<think>\n\n</think>\n\nHi", False, "", "Hi"),
    ("<think></think>", False, "", ""),
    ("<think>for ever", False, "for ever", ""),
    ("<think>a </thin", False, "a </thin", ""),
    ("<thin", False, "", "<thin"),
    ("<thinking>a</thinking>", False, "", "<thinking>a</thinking>"),
    ("Write <think>a</think>.", False, "", "Write <think>a</think>."),
    ("<think>a < b </ c</think><think>d</think>", False, "a < b </ c", "<think>d</think>"),
    ("<think>a</think>\n<tool_call>{}</tool_call>", False, "a", "<tool_call>{}</tool_call>"),
    ("\nso\n</think>\n\nHi", True, "so", "Hi"),
    ("<think>\nso</think>Hi", True, "so", "Hi"),
    ("</think>Hi", True, "", "Hi"),
    ("so it goes", True, "so it goes", ""),
    ("", True, "", ""),
    ("  <", True, "<", ""),
]


def split(start, pieces):
    splitter = start.splitter()
    parts = [*splitter.split(pieces)]
    assert len(parts) == len(pieces) + 1
    return splitter, AnswerPart(*("".join(each) for each in zip(*parts, strict=True)))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(("text", "is_open", "thinking", "answer"), CASES)
def test_an_answer_is_split_the_same_in_any_pieces(text, is_open, thinking, answer, size):
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert split(ThinkingStart(TAGS, is_open), pieces)[1] == (thinking, answer)


@pytest.mark.parametrize("tags", KNOWN_TAGS)
def test_each_known_pair_of_tags(tags):
    text = f"{tags.start}a{tags.end}b"
    assert split(ThinkingStart(tags), [*text])[1] == ("a", "b")


def test_nothing_waits_longer_than_it_must():
    splitter = ThinkingStart(TAGS).splitter()
    fed = [
        splitter.feed(piece) for piece in ("<think>", "\n", "so", " ", "on", "</", "b", "</think>", "\n", "x")
    ]
    assert [part.thinking for part in fed] == ["", "", "so", "", " on", "", "</b", "", "", ""]
    assert [part.text for part in fed] == [*[""] * 9, "x"]


@pytest.mark.parametrize(
    ("pieces", "is_open", "count"),
    [
        (["<think>", "a", "</think>", "\n\n", "b"], False, 3),
        (["a", "</think>", "b"], True, 2),
        (["a", "b"], True, 2),
        (["<th", "ink>", "a"], False, 3),
        (["a", "b"], False, 0),
        (["<th", "e"], False, 0),
    ],
)
def test_tokens_of_thinking_are_counted(pieces, is_open, count):
    assert split(ThinkingStart(TAGS, is_open), pieces)[0].thinking_tokens == count


@pytest.mark.parametrize(
    ("templates", "tokens", "tags"),
    [
        ([SWITCHED], (), KNOWN_TAGS[0]),
        ([OPENED], (), KNOWN_TAGS[0]),
        (["{{ messages }}"], ("<think>", "</think>"), KNOWN_TAGS[0]),
        (["{{ messages }}"], ("<think>",), None),
        ([], ("<think>", "</think>"), None),
        (["[THINK]x[/THINK]"], (), KNOWN_TAGS[1]),
        (["{{ messages }}", SWITCHED], (), KNOWN_TAGS[0]),
    ],
)
def test_tags_are_those_of_the_template_or_of_the_tokens(templates, tokens, tags):
    assert find_tags(templates, tokens) == tags


@pytest.mark.parametrize("given", ["reasoning_content", "reasoning", "thinking"])
def test_old_thinking_has_the_name_that_the_template_reads(given):
    message = {"role": "assistant", "content": "Hi", given: "so"}
    bare = {"role": "assistant", "content": "Hi"}
    assert with_history_names(message, [SWITCHED]) == {**bare, "reasoning_content": "so"}
    assert with_history_names(message, ["{{ m['thinking'] }}"]) == {**bare, "thinking": "so"}
    assert with_history_names(message, ["{{ m }}"]) == {**bare, "reasoning_content": "so"}
    assert with_history_names({**bare, given: None}, [SWITCHED]) == bare
    user = {"role": "user", "content": "Hi", given: "so"}
    assert with_history_names(user, [SWITCHED]) == user


@pytest.fixture(scope="module")
def qwen(make_checkpoint, tmp_path_factory):
    """A random Qwen3 with a template like Qwen3's, and tags that are tokens."""
    folder = shutil.copytree(make_checkpoint(**QWEN3), tmp_path_factory.mktemp("qwen") / "qwen")
    return add_tokens(folder, SWITCHED)


HISTORIES = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello", "reasoning_content": "a greeting"},
        {"role": "user", "content": "And?"},
    ],
    [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "<think>\na greeting\n</think>\n\nHello"},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "Bye", "reasoning_content": "a greeting again"},
        {"role": "user", "content": "Well?"},
    ],
]
MODES = [{}, {"enable_thinking": True}, {"enable_thinking": False}]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("number", range(len(HISTORIES)))
def test_prompts_of_both_modes_are_those_of_transformers(qwen, number, mode):
    from transformers import PreTrainedTokenizerFast

    theirs, ours = PreTrainedTokenizerFast.from_pretrained(qwen), load_tokenizer(qwen)
    history = HISTORIES[number]
    text = theirs.apply_chat_template(history, tokenize=False, add_generation_prompt=True, **mode)
    assert ours.chat_text(history, arguments=mode) == text
    ids = theirs.apply_chat_template(history, add_generation_prompt=True, return_dict=False, **mode)
    assert ours.encode_chat(history, arguments=mode) == ids
    assert ("greeting" in text) is False
    is_off = mode.get("enable_thinking") is False
    assert ours.thinking_start(ids) == ThinkingStart(TAGS, False, is_off)


@pytest.mark.parametrize("mode", MODES[1:], ids=str)
def test_tokens_of_both_modes_are_those_of_transformers(qwen, numpy_model, mode):
    """24 tokens, greedy: after each of theirs, made in float32, the likeliest of ours is their next one."""
    import torch
    from transformers import Qwen3ForCausalLM

    model, prompt = numpy_model(qwen, 128), load_tokenizer(qwen).encode_chat(HISTORIES[2], arguments=mode)
    theirs = Qwen3ForCausalLM.from_pretrained(qwen, dtype=torch.float32, attn_implementation="eager")
    made = theirs.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0].tolist()
    answer = made[len(prompt) :]
    cache = model.new_cache(len(made))
    rows = [next_token_logits(model, [*prefill(model, prompt, cache)][-1])]
    rows += [next_token_logits(model, decode_step(model, token, cache)) for token in answer[:-1]]
    assert [int(np.argmax(row)) for row in rows] == answer


@pytest.fixture(scope="module")
def opened_tokenizer() -> Tokenizer:
    """The demo's, whose template opens the thinking, and whose tags are several tokens each."""
    tokenizer = load_tokenizer(DEMO_FOLDER)
    return Tokenizer(tokenizer._backend, ChatTemplate({"default": OPENED}, {}))


def test_how_an_answer_begins(opened_tokenizer, qwen):
    user = HISTORIES[0]
    assert opened_tokenizer.thinking_start(opened_tokenizer.encode_chat(user)).is_open
    assert load_tokenizer(DEMO_FOLDER).thinking_start([1, 2, 3]) is None
    ours = load_tokenizer(qwen)
    for content, is_open in (("<think>\nso", True), ("<think>\nso\n</think>\n\nHi", False), ("Hi", False)):
        messages = [*user, {"role": "assistant", "content": content}]
        start = ours.thinking_start(ours.encode_chat(messages, continues=True), content)
        assert start
        assert (start.is_open, start.is_closed) == (is_open, not is_open)


@pytest.fixture(scope="module")
def grammars(opened_tokenizer) -> GrammarCompiler:
    return GrammarCompiler(opened_tokenizer, open_checkpoint(DEMO_FOLDER).config)


SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}


def drawn_answer(sampler, tokenizer, grammars, seed, most=60):
    """Tokens drawn among the allowed ones, with a liking for the tags' tokens. Each mask is also that of a
    fresh matcher, and of one that had other tokens before."""
    draw = random.Random(seed)
    ids: list[int] = []
    liked = [*tokenizer.tag_ids(TAGS.end), *tokenizer.tag_ids(TAGS.start)]
    while len(ids) < most:
        logits = (
            np.random.default_rng(draw.randrange(2**32)).normal(size=grammars.vocab_size).astype(np.float32)
        )
        logits[liked] += 6
        scores = sampler._adjusted(logits, (), ids)
        sampler._adjusted(logits, (), [*ids[: len(ids) // 2]])
        assert np.array_equal(scores, sampler._adjusted(logits, (), ids))
        ids.append(int(np.argmax(scores)))
        if ids[-1] in grammars.eos_ids:
            break
    return ids


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_grammar_is_for_the_answer_after_the_thinking(opened_tokenizer, grammars, is_open, seed):
    """Whatever is drawn: thinking is free text, and what follows it, if anything, matches."""
    tokenizer = opened_tokenizer
    start, grammar = ThinkingStart(TAGS, is_open), grammars.json(SCHEMA)
    sampler = Sampler(grammar=grammar, thinking=plan_thinking(start, grammars, 12, grammar))
    ids = drawn_answer(sampler, tokenizer, grammars, seed)
    stream = tokenizer.incremental_detokenizer()
    splitter, answer = split(start, [stream.feed(token) for token in ids])
    assert json.loads(answer.text) in ({"a": 1}, {"a": 2})
    assert splitter.thinking_tokens <= 12 + 2 * len(tokenizer.tag_ids(TAGS.end))
    assert ids[-1] in grammars.eos_ids


def test_a_budget_alone_ends_the_thinking_and_nothing_else(opened_tokenizer, grammars):
    tokenizer = opened_tokenizer
    end, free = tokenizer.tag_ids(TAGS.end), tokenizer.encode("so it goes on", special=False)
    for budget in (0, 1, 3):
        plan = plan_thinking(ThinkingStart(TAGS, True), grammars, budget, None)
        assert plan
        matcher = plan.matcher(None)
        for taken in range(budget):
            assert matcher.token_mask(free[:taken]) is None
        for taken, token in enumerate(end):
            mask = matcher.token_mask([*free[:budget], *end[:taken]])
            assert mask is not None
            assert {*np.flatnonzero(mask)} == {token}
        assert matcher.token_mask([*free[:budget], *end]) is None
        assert matcher.token_mask([*free[:budget], *end, *free]) is None


def test_the_budget_begins_after_the_opening_tag(qwen):
    tokenizer = load_tokenizer(qwen)
    grammars = GrammarCompiler(tokenizer, open_checkpoint(qwen).config)
    plan = plan_thinking(ThinkingStart(TAGS), grammars, 2, None)
    assert plan
    matcher = plan.matcher(None)
    (begin,), (end,) = (tokenizer.tag_ids(tag) for tag in TAGS)
    free = tokenizer.encode("abc", special=False)
    assert matcher.token_mask([]) is None
    assert matcher.token_mask([begin, free[0]]) is None
    mask = matcher.token_mask([begin, *free[:2]])
    assert mask is not None
    assert {*np.flatnonzero(mask)} == {end}
    assert matcher.token_mask([*free[:2]]) is None  # it does not think


def test_a_closing_tag_ends_with_its_token_where_a_grammar_waits(opened_tokenizer, grammars):
    """No token may close the tag and begin the answer: the grammar would not see it."""
    tokenizer = opened_tokenizer
    texts = tokenizer._vocabulary_texts
    for rest in (">", "k>", "think>", "/think>"):
        beyond = tokenizer.tokens_beyond(rest, grammars.vocab_size)
        assert all(texts[token].startswith(rest) and texts[token] != rest for token in beyond)
    backend_texts = [">", ">\n", ">a", ">{", "/"]
    tokenizer.__dict__["_vocabulary_texts"] = backend_texts
    try:
        assert tokenizer.tokens_beyond(">", 5) == [2, 3]
        assert tokenizer.tokens_beyond(">", 3) == [2]
    finally:
        tokenizer.__dict__["_vocabulary_texts"] = texts


def test_no_plan_where_nothing_depends_on_it(grammars):
    grammar = grammars.json(SCHEMA)
    assert plan_thinking(None, grammars, 5, grammar) is None
    assert plan_thinking(ThinkingStart(TAGS, is_closed=True), grammars, 5, grammar) is None
    assert plan_thinking(ThinkingStart(TAGS), grammars, None, None) is None


def test_a_plan_goes_through_a_file(opened_tokenizer, grammars):
    plan = plan_thinking(ThinkingStart(TAGS, True, False, frozenset([3])), grammars, 7, None)
    assert plan
    content = json.loads(json.dumps(plan.to_json()))
    assert ThinkingPlan.from_json(content, opened_tokenizer, grammars.vocab_size) == plan


def test_a_budget_below_none(grammars):
    with pytest.raises(
        UserError, match=r"the thinking budget is -3 tokens; it must be 0 \(no thinking\) or more"
    ):
        plan_thinking(ThinkingStart(TAGS), grammars, -3, None)
