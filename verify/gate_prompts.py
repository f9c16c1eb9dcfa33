"""The prompts of the gate: eleven kinds and further questions, for any tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from aerie.common.errors import UserError
from aerie.engine.config import ModelConfig
from aerie.engine.model import LoadedModel
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.session import Session
from aerie.engine.tokenizer import Tokenizer
from aerie.engine.tool_calls import Message

QUESTION = "What is the capital of France?"
SHORT = "Hello"
LONG = (
    "A program for the NPU is a grid of tiles that all run the same code, each on its own part of the data. "
    "Data moves in by one channel and out by another, and nobody waits longer than the slowest tile does. "
    "What is the capital of Japan? The capital of"
)
CODE = "def area(width, height):\n    # in metres\n    return width * height\n\n\nprint(area(3, 4))\n"
LANGUAGES = "Grüße aus Köln. ¿Dónde está la estación? 東京は日本の首都です。 Привет, мир! مرحبا"
EMOJI = "🚀 to the 🌙 and back: 👩‍🔬🧪 = 🎉!"
TEXT_BEFORE_EOS = ("The capital of Spain is Madrid.", "The capital of Italy is")
CONVERSATION: tuple[Message, ...] = (
    {"role": "user", "content": "What is 3 plus 4?"},
    {"role": "assistant", "content": "3 + 4 = 7."},
    {"role": "user", "content": "Who are you?"},
)
QUESTIONS = (
    "Why is the sky blue?",
    "Write a short poem about the sea.",
    "What is 12 times 12?",
    "Name three animals that live in the desert.",
    "How do I boil an egg?",
    "Translate to French: good morning, my friend.",
    "Who wrote Romeo and Juliet?",
    "Explain what a computer program is.",
    "What should I pack for a trip to the mountains?",
    "Write a Python function that adds two numbers.",
    "Tell me a story about a fox and a crow.",
    "What is the difference between weather and climate?",
    "How many days has a leap year?",
)
"""Further prompts, and the messages of a conversation (conversation_check.py)."""

MAX_PROMPT_TOKENS = 2048
"""Maximum tokens of a prompt, whatever the model has positions for: transformers' passes in float32 are slow
and large.
"""

BEFORE_THE_END = 15
"""The positions that the prompt "near the end" leaves, so that it has 16 steps. Over two, chance decides:
at single positions of the healthy demo the KL divergence was up to 9.6 times the reference's own.
"""

QUICK_PROMPTS = 2
"""The number of prompts of `make verify`. The second runs in the session that the first one has used."""


@dataclass(frozen=True)
class Prompt:
    """One prompt. token_ids: the model's input. message: set if a chat template made them of this one
    message.
    every_position: whether the prompt's own positions are compared too.
    """

    name: str
    token_ids: tuple[int, ...]
    message: str | None = None
    every_position: bool = False


def choose_prompts(session: Session, full: bool, count: int | None = None) -> list[Prompt]:
    """Prompts that fit the session's model: the first two kinds, all, or the first `count` of all kinds and
    QUESTIONS. Too long ones are cut; chats are left out if there is no template, or if they do not fit.

    Raises UserError if there are fewer than `count`.
    """
    kinds = list(_kinds(session.tokenizer, session.model))
    if count is None:
        return kinds if full else kinds[:QUICK_PROMPTS]
    prompts = [*kinds, *_questions(session.tokenizer, session.model)]
    if not 1 <= count <= len(prompts):
        raise UserError(f"--prompts is {count} (N_PROMPTS), and for this model there are 1 to {len(prompts)}")
    return prompts[:count]


def longest_prompt(config: ModelConfig, options: RuntimeOptions) -> int:
    """The length in tokens of the longest prompt, in a session that is opened with these options."""
    blocks = options.variant_set(config)
    lengths = blocks.seq_len or blocks.largest_context or config.context
    return min(lengths, config.context, MAX_PROMPT_TOKENS)


def full_prompt(session: Session) -> list[int]:
    """Ordinary text that fills the context, up to MAX_PROMPT_TOKENS."""
    return text_of_length(session.tokenizer, min(session.model.max_prompt_tokens, MAX_PROMPT_TOKENS))


def _kinds(tokenizer: Tokenizer, model: LoadedModel) -> Iterator[Prompt]:
    longest, eos = min(model.max_prompt_tokens, MAX_PROMPT_TOKENS), model.config.eos_token_ids

    def cut(name: str, ids: Sequence[int], every_position: bool = False) -> Prompt:
        return Prompt(name, tuple(ids[:longest]), every_position=every_position)

    chats = list(_chats(tokenizer, longest))
    first = chats[:1] or [cut("question", tokenizer.encode(QUESTION), every_position=True)]
    yield from first
    yield cut("long", tokenizer.encode(LONG))
    yield cut("code", tokenizer.encode(CODE))
    yield cut("short", tokenizer.encode(SHORT))
    yield cut("one token", tokenizer.encode(SHORT)[:1])
    yield cut("near the end", text_of_length(tokenizer, max(1, longest - BEFORE_THE_END)))
    yield cut("languages", tokenizer.encode(LANGUAGES))
    yield cut("emoji", tokenizer.encode(EMOJI))
    if eos:
        before, after = (tokenizer.encode(text) for text in TEXT_BEFORE_EOS)
        yield cut("end token inside", [*before, eos[0], *after])
    yield from chats[1:]


def _questions(tokenizer: Tokenizer, model: LoadedModel) -> Iterator[Prompt]:
    """The further questions, each as a chat if there is a template."""
    longest = min(model.max_prompt_tokens, MAX_PROMPT_TOKENS)
    for number, question in enumerate(QUESTIONS, start=1):
        turn: Message = {"role": "user", "content": question}
        is_chat = tokenizer.has_chat_template
        ids = tokenizer.encode_chat([turn]) if is_chat else tokenizer.encode(question)
        if len(ids) <= longest:
            yield Prompt(f"question {number}", tuple(ids), message=question if is_chat else None)


def _chats(tokenizer: Tokenizer, longest: int) -> Iterator[Prompt]:
    """The question as a chat, and a conversation."""
    if not tokenizer.has_chat_template:
        return
    turn: Message = {"role": "user", "content": QUESTION}
    question_ids, talked = (tuple(tokenizer.encode_chat(messages)) for messages in ([turn], CONVERSATION))
    if len(question_ids) <= longest:
        yield Prompt("chat turn", question_ids, message=QUESTION, every_position=True)
        if len(talked) <= longest:
            yield Prompt("conversation", talked)


def text_of_length(tokenizer: Tokenizer, length: int) -> list[int]:
    """Ordinary text, repeated until it has `length` tokens."""
    ids = tokenizer.encode(" ".join([LONG, *TEXT_BEFORE_EOS, QUESTION]))
    return list(islice(cycle(ids), max(1, length)))
