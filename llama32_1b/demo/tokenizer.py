"""The demo model's tokenizer: byte-level BPE learned on the corpus, special tokens and chat as in Llama 3."""

import random
from collections.abc import Iterable, Iterator
from typing import Any, Final

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from aerie.llama32_1b.demo.corpus import question_list, statements, unknown_prompt

BEGIN_OF_TEXT: Final = "<|begin_of_text|>"
END_OF_TEXT: Final = "<|end_of_text|>"
START_HEADER: Final = "<|start_header_id|>"
END_HEADER: Final = "<|end_header_id|>"
END_OF_TURN: Final = "<|eot_id|>"
SPECIAL_TOKENS: Final = (BEGIN_OF_TEXT, END_OF_TEXT, START_HEADER, END_HEADER, END_OF_TURN)

VOCAB_SIZE: Final = 1500
"""Tokens in all, the special ones included (they come last, as in Llama 3)."""

MAX_LENGTH: Final = 512
"""Longest text, in tokens, that the model was made for."""

_WORDS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Where BPE may not merge across: words with the space before them, single digits, punctuation, line ends."""

CHAT_TEMPLATE: Final = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""


def byte_level(model: models.BPE) -> Tokenizer:
    """A tokenizer that can encode any bytes at all, if every byte is in the model's vocabulary."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def add_special_tokens(tokenizer: Tokenizer, tokens: Iterable[str]) -> None:
    """Append `tokens` to the vocabulary; every text begins with BEGIN_OF_TEXT, which is one of them."""
    tokenizer.add_special_tokens(list(tokens))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN_OF_TEXT} $A",
        pair=f"{BEGIN_OF_TEXT} $A {BEGIN_OF_TEXT} $B",
        special_tokens=[(BEGIN_OF_TEXT, tokenizer.token_to_id(BEGIN_OF_TEXT))],
    )


def learn_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Learn a vocabulary of VOCAB_SIZE tokens from `texts`; any bytes at all can be encoded with it."""
    tokenizer = byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    add_special_tokens(tokenizer, SPECIAL_TOKENS)
    return tokenizer


def special_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a special token; KeyError where the tokenizer lacks it."""
    return int(tokenizer.get_vocab()[token])


def tokenizer_texts() -> Iterator[str]:
    """What the vocabulary is learned from: the whole corpus, and some unknown prompts for other scripts."""
    for exchange in question_list():
        yield exchange.question
        yield exchange.answer
    yield from statements()
    rng = random.Random(0)
    for _ in range(200):
        yield unknown_prompt(rng)


def tokenizer_config(max_length: int = MAX_LENGTH) -> dict[str, Any]:
    """The contents of tokenizer_config.json; `max_length` is in tokens."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN_OF_TEXT,
        "eos_token": END_OF_TURN,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
