"""Models of Hugging Face. They are read from the local cache, and downloaded if it lacks them."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aerie.common.errors import own_command
from aerie.engine.errors import CheckpointError
from aerie.engine.gguf.model_files import PART, SUFFIX
from aerie.engine.reporter import Reporter
from aerie.runtime.memory import format_bytes

ALIASES = {"base": "meta-llama/Llama-3.2-1B", "instruct": "meta-llama/Llama-3.2-1B-Instruct"}
"""Short names of the guide's models. A folder of the same name takes precedence."""

HUB: Final = "hf:"
"""The prefix of hf:OWNER/NAME and hf:OWNER/NAME:FILE.gguf."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
HUB_OTHERS = ["consolidated*", "original/*", "onnx/*"]
"""The same weights in other formats: Mistral's and Meta's own, ONNX."""


def hub_id(model: str) -> str | None:
    """The Hugging Face id of `model`; None if it is none."""
    name = ALIASES.get(model, model)
    return name if HUB_ID.fullmatch(name) else None


def cached_checkpoint(name: str) -> Path | None:
    """The folder of a Hugging Face id in the local cache; None if it is missing or incomplete."""
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            name, allow_patterns=HUB_FILES, ignore_patterns=HUB_OTHERS, local_files_only=True
        )
    except (OSError, ValueError):
        return None
    return Path(folder)


def fetch_checkpoint(model: str) -> Path:
    """Return the folder of a Hugging Face id or one of ALIASES; download it if the local cache lacks it.
    Raises CheckpointError if that fails."""
    from huggingface_hub import constants, snapshot_download

    name = ALIASES.get(model, model)
    if not constants.HF_HUB_OFFLINE and cached_checkpoint(name) is None:
        Reporter().note(f"fetching {name} from Hugging Face, which needs a network; later runs do not")
    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES, ignore_patterns=HUB_OTHERS))
    except Exception as error:  # network, authentication, disk: the hub raises many unrelated types
        subject = (
            f"--model {model}" if name == model else f"--model {model}, which is {name} of Hugging Face,"
        )
        raise CheckpointError(f"{subject} is not on this machine, and {_why_not(name, error)}") from error


def find_hub_model(model: str) -> Path:
    """Return the folder of hf:OWNER/NAME or the file of hf:OWNER/NAME:FILE.gguf; download it if the local
    cache lacks it. Raises CheckpointError if the name is malformed or the download fails."""
    name, file = _name_and_file(model)
    return _fetch_file(name, file) if file else fetch_checkpoint(name)


def hub_model_here(model: str) -> Path | None:
    """Return the folder or file of a Hugging Face id, with or without prefix; None if the local cache lacks
    it. Raises CheckpointError if the name is malformed."""
    name, file = _name_and_file(model)
    return cached_file(name, file) if file else cached_checkpoint(name)


def _name_and_file(model: str) -> tuple[str, str]:
    """Split a name into the id and the file, which may be "". Raises CheckpointError if it is malformed."""
    name, _, file = model.removeprefix(HUB).partition(":")
    name = ALIASES.get(name, name)
    if not HUB_ID.fullmatch(name) or (file and not _is_gguf_path(file)):
        raise CheckpointError(
            f"--model {model!r} is no model of Hugging Face: give {HUB}OWNER/NAME, or "
            f"{HUB}OWNER/NAME:FILE.gguf with a file that its page lists under Files"
        )
    return name, file


def cached_file(name: str, file: str) -> Path | None:
    """Return a file of a Hugging Face id in the local cache; None if the cache lacks it or one of its
    parts."""
    from huggingface_hub import hf_hub_download

    try:
        paths = [Path(hf_hub_download(name, part, local_files_only=True)) for part in _parts(file)]
    except (OSError, ValueError):
        return None
    return paths[0]


def _fetch_file(name: str, file: str) -> Path:
    from huggingface_hub import constants, hf_hub_download

    if path := cached_file(name, file):
        return path
    parts = [*_parts(file)]
    try:
        if not constants.HF_HUB_OFFLINE:
            Reporter().note(
                f"fetching {file} of {name} from Hugging Face{_size_of(name, parts)}; later runs need no "
                "network"
            )
        return next(iter([Path(hf_hub_download(name, part)) for part in parts]))
    except Exception as error:  # as for checkpoints
        raise CheckpointError(
            f"{HUB}{name}:{file} is not on this machine, and {_why_not(name, error)}"
        ) from error


def _size_of(name: str, parts: list[str]) -> str:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    sizes = [get_hf_file_metadata(hf_hub_url(name, part)).size for part in parts]
    known = [size for size in sizes if size is not None]
    return f", {format_bytes(sum(known))}" if len(known) == len(sizes) else ""


def _parts(file: str) -> Iterator[str]:
    """Yield the names of all parts of a split model, or the one file."""
    part = PART.fullmatch(file)
    if part is None or int(part["count"]) > 999:
        yield file
        return
    for number in range(1, int(part["count"]) + 1):
        yield f"{part['name']}-{number:05}-of-{part['count']}{SUFFIX}"


def _is_gguf_path(file: str) -> bool:
    """Whether `file` is a relative path of a GGUF file that stays in its repository."""
    parts = file.split("/")
    return (
        file.endswith(SUFFIX) and file.isprintable() and not {"", ".", ".."} & {*parts} and "\\" not in file
    )


def login_advice() -> str:
    """How to log in to Hugging Face."""
    return f"log in with `{own_command('hf', 'huggingface_hub.cli.hf')} auth login`, or set HF_TOKEN"


def _why_not(name: str, error: Exception) -> str:
    """Why an id could not be downloaded, and what to do."""
    from huggingface_hub import constants, errors

    page = f"https://huggingface.co/{name}"
    if isinstance(error, errors.GatedRepoError):
        return f"it is gated: ask for access at {page}, then {login_advice()}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"Hugging Face shows none at {page}: mend the name, or if it is private, {login_advice()}"
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return f"{page} has no such file: take a name from its list of files"
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, so it is not fetched: unset it, or give the folder of a checkpoint"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return (
            f"there is no space for it at {constants.HF_HUB_CACHE}: make room, or set HF_HOME to a folder on "
            "another disk"
        )
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(". ")
    return (
        f"fetching it from Hugging Face failed ({reason}). Without a network, give the folder of a "
        f"checkpoint; for a gated model, {login_advice()}"
    )


def advice_on_url(url: str) -> str:
    """Return what to type instead of a URL."""
    of_hub = re.match(
        r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<name>[^/?#]+/[^/?#]+)"
        r"(?:/(?:blob|resolve|raw)/[^/?#]+/(?P<file>[^?#]+))?",
        url,
    )
    if of_hub and HUB_ID.fullmatch(of_hub["name"]):
        file = of_hub["file"] or ""
        return f"give {HUB}{of_hub['name']}" + (f":{file}" if _is_gguf_path(file) else "")
    of_ollama = re.match(r"https?://(?:www\.)?ollama\.com/(?:library/)?(?P<name>[\w./:-]+)", url)
    if of_ollama:
        return f"`ollama pull {of_ollama['name']}`, then give ollama:{of_ollama['name']}"
    return "fetch the file yourself, and give its path"
