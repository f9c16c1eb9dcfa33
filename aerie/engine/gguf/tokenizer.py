"""Build the tokenizer and the chat template of a model from the metadata of its GGUF file.

GGUF stores the vocabulary. It stores the pre-tokenizer only as a name (pre_tokenizers.py), and BOS and EOS as
flags. docs/how-to/choose-a-model.md lists what it does not store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from aerie.engine.chat_template import ChatTemplate
from aerie.engine.errors import CheckpointError
from aerie.engine.gguf.pre_tokenizers import PRE_TOKENIZERS
from aerie.engine.gguf.vocabulary import TokenType, Vocabulary, read_vocabulary, refuse

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTE_LEVEL: Final = "gpt2"
SENTENCE_PIECE: Final = "llama"
"""Values of `tokenizer.ggml.model`."""

BLANK: Final = "▁"
"""SentencePiece's sign for a blank."""

WHOLE_TOKENIZER: Final = "tokenizer.huggingface.json"
TEMPLATE: Final = "tokenizer.chat_template"

MAX_JSON_BYTES: Final = 128 << 20
"""Characters of a tokenizer.json in the metadata; the largest published one has 35 million."""


def tokenizer_from_metadata(metadata: Mapping[str, Any]) -> tuple[Tokenizer, ChatTemplate | None]:
    """Return the tokenizer and the chat template, which may be None. metadata: all keys of a GGUF file with
    their values. Raises CheckpointError if an entry is missing, damaged or not supported."""
    vocabulary = read_vocabulary(metadata)
    template = _chat_template(vocabulary)
    if template:
        template.warm()
    backend = _whole_tokenizer(vocabulary)
    if backend is not None:
        return backend, template
    model = vocabulary.word("model")
    if model == BYTE_LEVEL:
        return _byte_level(vocabulary), template
    if model == SENTENCE_PIECE:
        return _sentence_piece(vocabulary), template
    raise CheckpointError(
        f"the GGUF file's tokenizer is of the model {model!r}, which is not supported; {BYTE_LEVEL} "
        f"(byte-level BPE) and {SENTENCE_PIECE} (SentencePiece) are. Fetch a model that has one of them"
    )


def missing_pre_tokenizer(metadata: Mapping[str, Any]) -> list[str]:
    """The note that the name of the pre-tokenizer is missing, as in files of early converters; empty if it is
    there, or not needed."""
    is_needed = metadata.get("tokenizer.ggml.model") == BYTE_LEVEL and WHOLE_TOKENIZER not in metadata
    if not is_needed or "tokenizer.ggml.pre" in metadata:
        return []
    return [
        "note: the GGUF file does not say how its tokenizer cuts text (tokenizer.ggml.pre), so text is cut "
        "as 'default', as llama.cpp does; answers are worse if the model was trained with other cuts: fetch "
        "a newer file of the same model"
    ]


def _chat_template(vocabulary: Vocabulary) -> ChatTemplate | None:
    begin = TEMPLATE + "."
    templates = {
        key.removeprefix(begin) if key != TEMPLATE else "default": text
        for key, text in vocabulary.metadata.items()
        if key == TEMPLATE or key.startswith(begin)
    }
    if not all(isinstance(text, str) for text in templates.values()):
        refuse(f"{TEMPLATE} is no text")
    named = {name: vocabulary.tokens[number] for name, number in _named(vocabulary).items()}
    return ChatTemplate(templates, named) if templates else None


def _whole_tokenizer(vocabulary: Vocabulary) -> Tokenizer | None:
    """Build the tokenizer.json in the metadata; None if there is none or its vocabulary is another one."""
    from tokenizers import Tokenizer

    content = vocabulary.metadata.get(WHOLE_TOKENIZER)
    if not isinstance(content, str) or len(content) > MAX_JSON_BYTES:
        return None
    try:
        backend = Tokenizer.from_str(content)
    except Exception:  # tokenizers raises plain Exception for what it cannot read
        return None
    known = backend.get_vocab(with_added_tokens=True)
    # The converter replaces SentencePiece's sign by a blank in user-defined tokens, so they may differ.
    written = vocabulary.of_types(TokenType.NORMAL, TokenType.BYTE, TokenType.CONTROL)
    same = len(known) <= len(vocabulary.tokens) and written.items() <= known.items()
    return backend if same else None


def _byte_level(vocabulary: Vocabulary) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models

    pre = vocabulary.word("pre", "default")
    if (rule := PRE_TOKENIZERS.get(pre)) is None:
        raise CheckpointError(
            f"the GGUF file's tokenizer cuts text as {pre!r} (tokenizer.ggml.pre), which is not supported; "
            f"these are: {', '.join(PRE_TOKENIZERS)}. Fetch the safetensors files of the same model"
        )
    tail = _tail(vocabulary)
    ids = {token: number for token, number in vocabulary.ids.items() if token not in tail}
    merges = [pair for pair in vocabulary.merges() if "".join(pair) in ids]
    backend = Tokenizer(models.BPE(ids, merges, ignore_merges=rule.ignore_merges))
    if rule.nfc:
        backend.normalizer = rule.normalizer()
    backend.pre_tokenizer = rule.cutter()
    backend.decoder = decoders.ByteLevel()
    _add_tokens(backend, vocabulary)
    _put_around(backend, vocabulary, add_bos=rule.add_bos)
    return backend


def _tail(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the added tokens whose ids follow those of the model's vocabulary. As in tokenizer.json they
    stay out of that vocabulary, so that no word and no merge can make one."""
    added = _added(vocabulary)
    model = [number for token, number in vocabulary.ids.items() if token not in added]
    last = max(model, default=-1)
    tail = {token: number for token, number in added.items() if number > last}
    # `tokenizers` gives the next free ids to tokens outside the vocabulary, so there must be no hole.
    count = len(vocabulary.ids) - len(tail)
    return tail if sorted(tail.values()) == [*range(count, count + len(tail))] else {}


def _sentence_piece(vocabulary: Vocabulary) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models

    ids = {token.replace(" ", BLANK): number for token, number in vocabulary.ids.items()}
    number = _named(vocabulary).get("unk_token")
    unknown = None if number is None else vocabulary.tokens[number]
    model = models.BPE(
        ids,
        _merges_by_score(vocabulary, ids),
        unk_token=unknown if unknown in ids else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Tokenizer(model)
    steps = [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if _normalize_blanks(backend, vocabulary):
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    _add_tokens(backend, vocabulary)
    _put_around(backend, vocabulary, add_bos=True)
    return backend


def _normalize_blanks(backend: Tokenizer, vocabulary: Vocabulary) -> bool:
    """Set the normalizer. Returns whether it puts a blank before a text.

    Llama's tokenizers also put it after each control token. Mistral's do not since their third version, which
    is the first with [INST] as a control token.
    """
    from tokenizers import Regex, normalizers, pre_tokenizers

    steps: list[Any] = []
    if vocabulary.flag("remove_extra_whitespaces", False):
        steps += [normalizers.Replace(Regex(cut), put) for cut, put in ((r"\A +| +\z", ""), (" {2,}", " "))]
    prefix = vocabulary.flag("add_space_prefix", True)
    if prefix and "[INST]" in vocabulary.of_types(TokenType.CONTROL):
        backend.pre_tokenizer = pre_tokenizers.Metaspace(BLANK, prepend_scheme="first", split=False)
    else:
        steps += [normalizers.Prepend(BLANK)] if prefix else []
        steps.append(normalizers.Replace(" ", BLANK))
    if steps:
        backend.normalizer = normalizers.Sequence(steps)
    return prefix


def _merges_by_score(vocabulary: Vocabulary, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return all pairs of tokens that make a token, highest score first, in the order of transformers
    (generate_merges).

    User-defined tokens come first: SentencePiece finds them before it merges. No merge makes a control token
    or a byte token, so that text cannot become one.
    """
    scores, types = vocabulary.scores(), vocabulary.types
    special = {number for number in _added(vocabulary).values() if types[number] != TokenType.USER_DEFINED}
    pairs = [
        (float("inf") if types[number] == TokenType.USER_DEFINED else scores[number], token, cut)
        for token, number in ids.items()
        if number not in special and types[number] != TokenType.BYTE
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    pairs.sort(key=lambda pair: (pair[0], pair[2], len(pair[1])), reverse=True)
    return [(token[:cut], token[cut:]) for _, token, cut in pairs]


def _named(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the ids of the named tokens, with Llama's defaults for SentencePiece."""
    named = dict(vocabulary.named)
    if vocabulary.metadata.get("tokenizer.ggml.model") == SENTENCE_PIECE:
        for number, name in enumerate(("unk_token", "bos_token", "eos_token")):
            if number < len(vocabulary.tokens):
                named.setdefault(name, number)
    return named


def _added(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the ids of the tokens that are found in text before it is split: control, unknown and
    user-defined tokens, BOS and EOS."""
    added = vocabulary.of_types(TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
    for name in ("bos_token", "eos_token"):
        if (number := _named(vocabulary).get(name)) is not None and vocabulary.tokens[number]:
            added.setdefault(vocabulary.tokens[number], number)
    return added


def _add_tokens(backend: Tokenizer, vocabulary: Vocabulary) -> None:
    from tokenizers import AddedToken

    in_order = sorted(_added(vocabulary).items(), key=lambda item: item[1])
    is_piece = vocabulary.metadata.get("tokenizer.ggml.model") == SENTENCE_PIECE
    added = []
    for token, number in in_order:
        defined = vocabulary.types[number] == TokenType.USER_DEFINED
        # The converter replaced SentencePiece's sign by a blank.
        text = token.replace(" ", BLANK) if defined and is_piece else token
        added.append(AddedToken(text, normalized=False, special=not defined))
    backend.add_tokens(added)


def _put_around(backend: Tokenizer, vocabulary: Vocabulary, add_bos: bool) -> None:
    """Set the post-processor that adds BOS and EOS. add_bos: the default if add_bos_token is missing."""
    from tokenizers import processors

    wanted = {
        "bos_token": vocabulary.flag("add_bos_token", add_bos),
        "eos_token": vocabulary.flag("add_eos_token", False),
    }
    named = _named(vocabulary)
    for name, is_wanted in wanted.items():
        if is_wanted and name not in named:
            refuse(f"add_{name} is true, and {name}_id is missing")
    around = {name: named[name] for name, is_wanted in wanted.items() if is_wanted}
    if around:
        pieces = [name for name in ("bos_token", "$A", "eos_token") if name in around or name == "$A"]
        backend.post_processor = processors.TemplateProcessing(
            single=pieces,
            special_tokens=[
                {"id": name, "ids": [number], "tokens": [vocabulary.tokens[number]]}
                for name, number in around.items()
            ],
        )
