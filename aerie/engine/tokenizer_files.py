"""The files of a checkpoint that say what its tokens are.

tokenizer.json is the tokenizer: how text is cut, what is put around it, and how tokens become text again,
whatever class tokenizer_config.json names. The other files add what transformers adds to it for any class:
tokens that tokenizer.json lacks, the special tokens by their names, and chat templates. All of them are data,
and nothing of a checkpoint is executed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerie.common.errors import own_command
from aerie.engine.chat_template import ChatTemplate
from aerie.engine.errors import CheckpointError

CONVERTERS = {"sentencepiece": "sentencepiece", "protobuf": "google.protobuf"}
"""Packages without which transformers cannot read tokenizer.model, and a module of each."""

TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n")
"""A line of tiktoken's files: a token in base64, and its rank."""

DEFAULT = "default"
"""The name of the template that is no other's."""
MAX_LINE_LENGTH = 200


def read_tokenizer(folder: Path) -> tuple[Any, ChatTemplate | None]:
    """The tokenizers.Tokenizer of a folder, and its chat template. CheckpointError for what is not there or
    cannot be read, and whatever the libraries raise for damaged files."""
    if (folder / "tokenizer.json").is_file():
        return _read(folder)
    _check_convertible(folder)
    return _converted(folder)


def _read(folder: Path) -> tuple[Any, ChatTemplate | None]:
    from tokenizers import Tokenizer

    settings = read_json(folder / "tokenizer_config.json")
    template = _chat_templates(folder, settings)
    if template:
        ChatTemplate(template, {}).warm()
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    declared = _declared(folder, settings)
    if backend.padding:
        declared.named.setdefault("pad_token", backend.padding["pad_token"])
    _add_missing(backend, declared)
    backend.encode_special_tokens = bool(settings.get("split_special_tokens"))
    named = {key: str(token) for key, token in declared.named.items()}
    return backend, ChatTemplate(template, named) if template else None


def read_json(path: Path) -> dict[str, Any]:
    """An object; empty where there is no file. CheckpointError for anything else that is JSON."""
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object; fetch it again")
    return content


@dataclass
class _Declared:
    """Tokens of the files beside tokenizer.json, each a text or an AddedToken. listed: in the order of their
    ids; named: by what a template calls them."""

    listed: list[Any] = field(default_factory=list)
    named: dict[str, Any] = field(default_factory=dict)
    further: list[Any] = field(default_factory=list)


def _declared(folder: Path, settings: Mapping[str, Any]) -> _Declared:
    """The newer form has all tokens in tokenizer_config.json; the older, which counts where that has none,
    two files more."""
    from tokenizers import AddedToken

    if "added_tokens_decoder" in settings:
        listed = sorted((int(number), token) for number, token in settings["added_tokens_decoder"].items())
        declared = _Declared([AddedToken(**token) for _, token in listed])
    else:
        settings = {**settings, **read_json(folder / "special_tokens_map.json")}
        declared = _Declared()
    tokens = {token.content: token for token in declared.listed}
    for key, value in settings.items():
        if key.endswith("_token") and not _is_flag(value):
            token = _token(key, value)
            declared.named[key] = tokens.get(str(token), token)
    further = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or ()
    if isinstance(further, Mapping):
        declared.named.update({key: _token(key, value) for key, value in further.items()})
    else:
        declared.further = [_token("extra_special_tokens", value) for value in further]
    if "added_tokens_decoder" not in settings:
        special = {str(token) for token in (*declared.named.values(), *declared.further)}
        added = read_json(folder / "added_tokens.json")
        declared.listed = [
            AddedToken(text, normalized=text not in special, special=text in special)
            for text in sorted(added, key=lambda text: int(added[text]))
        ]
    return declared


def _is_flag(value: Any) -> bool:
    """Whether a setting is no token: add_bos_token is true or false, and an absent token is null."""
    return value is None or isinstance(value, bool)


def _token(key: str, value: Any) -> Any:
    """A token as text, or with its properties."""
    from tokenizers import AddedToken

    if isinstance(value, Mapping) and isinstance(value.get("content"), str):
        properties = {name: value[name] for name in value.keys() & set(PROPERTIES)}
        return AddedToken(value["content"], **properties, special=True)
    if not isinstance(value, str):
        shown = json.dumps(value)[:80]
        raise CheckpointError(f"{key} is {shown}, which is no token: neither a text nor one with properties")
    return value


PROPERTIES = ("single_word", "lstrip", "rstrip", "normalized")


def _add_missing(backend: Any, declared: _Declared) -> None:
    """Add to the tokenizer what it lacks, or has with other properties, as transformers does
    (tokenization_utils_tokenizers.py). The ids are the next that are free."""
    from tokenizers import AddedToken

    there = {repr(token): token.content for token in backend.get_added_tokens_decoder().values()}
    missing = [token for token in declared.listed if repr(token) not in there]
    known = {*there.values(), *map(str, missing)}
    for token in (*declared.named.values(), *declared.further):
        if str(token) not in known:
            missing.append(AddedToken(token, special=True) if isinstance(token, str) else token)
            known.add(str(token))
    named = {str(token) for token in declared.named.values()}
    for token in missing:
        token.special = token.special or token.content in named
    if missing:
        backend.add_tokens(missing)


def _chat_templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """By their names. Files go before tokenizer_config.json."""
    files = dict(template_files(folder))
    given = files or settings.get("chat_template")
    if isinstance(given, list):
        given = {each["name"]: each["template"] for each in given}
    elif isinstance(given, str):
        given = {DEFAULT: given}
    if not isinstance(given or {}, Mapping) or not all(
        isinstance(each, str) for each in (given or {}).values()
    ):
        raise CheckpointError("chat_template is neither a text nor a list of templates with their names")
    return dict(given or {})


def template_files(folder: Path) -> Iterator[tuple[str, str]]:
    """The chat templates that are files of a folder: name and text."""
    if (folder / "chat_template.jinja").is_file():
        yield DEFAULT, (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        yield path.stem, path.read_text(encoding="utf-8")


def _check_convertible(folder: Path) -> None:
    """CheckpointError where there is only a tokenizer.model, and transformers cannot read it as it should.

    Meta's own, of tiktoken, lacks the special tokens and the pattern that text is split by.
    """
    with (folder / "tokenizer.model").open("rb") as file:
        is_tiktoken = TIKTOKEN_LINE.fullmatch(file.readline(MAX_LINE_LENGTH))
    only = f"{folder} has tokenizer.model and no tokenizer.json, which is what is read"
    fetch = "fetch tokenizer.json of the same model from Hugging Face"
    if is_tiktoken:
        raise CheckpointError(f"{only}: {fetch}")
    missing = [name for name, module in CONVERTERS.items() if not _is_installed(module)]
    if missing:
        pip = own_command("pip", "pip") if _is_installed("pip") else "uv pip"
        raise CheckpointError(
            f"{only}: {fetch}, or have tokenizer.model converted at each start, which takes "
            f"`{pip} install {' '.join(missing)}`"
        )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it would lie in
        return False


def _converted(folder: Path) -> tuple[Any, ChatTemplate | None]:
    """What transformers makes of tokenizer.model."""
    # Without torch, transformers prints that models are not available. Nothing here wants one.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    if (backend := getattr(made, "backend_tokenizer", None)) is None:
        raise CheckpointError(
            f"{folder} has tokenizer.model and no tokenizer.json, and what transformers makes of it, a "
            f"{type(made).__name__}, has none either"
        )
    templates = _chat_templates(folder, {"chat_template": made.chat_template})
    return backend, ChatTemplate(templates, made.special_tokens_map) if templates else None
