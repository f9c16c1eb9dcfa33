"""Models in the folders of Ollama and LM Studio.

Names and manifests are untrusted text. Each part of a name must be a plain file name, and a manifest must
name its files by SHA-256, so no path leads out of the folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aerie.engine.errors import CheckpointError
from aerie.engine.folder import read_object
from aerie.engine.gguf.model_files import PART, PROJECTOR_PREFIXES

OLLAMA: Final = "ollama:"
LM_STUDIO: Final = "lmstudio:"

REGISTRY: Final = "registry.ollama.ai"
LIBRARY: Final = "library"
LATEST: Final = "latest"
FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,127}(:\d{1,5})?")
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
MAX_MANIFEST_BYTES: Final = 1 << 20
LAYER: Final = "application/vnd.ollama.image."
MAX_NAMED: Final = 6


@dataclass(frozen=True)
class Manifest:
    """One model of Ollama. kinds: the kinds of its layers, such as model, adapter, projector. model:
    the path of its GGUF file, which may not exist; None if no layer is a model in GGUF."""

    name: str
    path: Path
    kinds: Sequence[str]
    model: Path | None

    def problem(self) -> str | None:
        """Why the model cannot run, apart from the contents of its file. None if nothing prevents it."""
        if "adapter" in self.kinds:
            return "it is a LoRA adapter over a model; give the model that it was made for"
        if self.model is None:
            return f"it has no model in GGUF, but {', '.join(sorted({*self.kinds})) or 'nothing'}"
        if not os.path.isfile(self.model):
            return f"its file {self.model} is missing; `ollama pull {self.name}` fetches it"
        return None


def ollama_folders() -> list[Path]:
    """Return Ollama's folders that exist: OLLAMA_MODELS if it is set, else the user's and the service's."""
    named = os.environ.get("OLLAMA_MODELS")
    usual = [Path.home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]
    return [folder for folder in ([Path(named)] if named else usual) if os.path.isdir(folder / "manifests")]


def find_ollama(name: str) -> Path:
    """Return the GGUF file of a model of Ollama. name: NAME, NAME:TAG or USER/NAME:TAG. Raises
    CheckpointError if Ollama does not have it, or it cannot run."""
    *parts, tag = ollama_parts(name)
    folders = ollama_folders()
    for folder in folders:
        if os.path.isfile(path := folder.joinpath("manifests", *parts, tag)):
            manifest = _manifest(name, path, folder)
            if problem := manifest.problem():
                raise CheckpointError(f"{OLLAMA}{name}: {problem}")
            assert manifest.model is not None
            return manifest.model
    if not folders:
        raise CheckpointError(
            f"{OLLAMA}{name}: there is no folder of Ollama's on this machine that you can read; set "
            "OLLAMA_MODELS to its folder if it is elsewhere"
        )
    raise CheckpointError(
        f"Ollama has no {name} on this machine{_those(found.name for found in ollama_models())}: "
        f"`ollama pull {name}` fetches it"
    )


def ollama_models() -> Iterator[Manifest]:
    """Yield all models of Ollama, sorted by path. Files that are no manifests are skipped."""
    for folder in ollama_folders():
        begin = folder / "manifests"
        for path in sorted(begin.rglob("*")):
            parts = path.relative_to(begin).parts
            if len(parts) != 4 or not os.path.isfile(path) or not all(map(FILE_NAME.fullmatch, parts[1:])):
                continue
            try:
                yield _manifest(_ollama_name(*parts), path, folder)
            except CheckpointError:
                continue


def ollama_parts(name: str) -> tuple[str, ...]:
    """Split a name, as `ollama list` prints it, into host, user, model and tag. Raises CheckpointError if it
    is none."""
    path, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        path, tag = name, LATEST
    parts = path.split("/")
    *before, model = parts
    usual = (REGISTRY, LIBRARY)
    host, user = (*usual[: 2 - len(before)], *before)[:2]
    plain = all(FILE_NAME.fullmatch(part) for part in (user, model, tag))
    if len(parts) > 3 or not plain or not HOST.fullmatch(host):
        raise CheckpointError(
            f"{OLLAMA}{name} names no model of Ollama's; give it as `ollama list` does, such as "
            f"{OLLAMA}smollm2:135m"
        )
    return host, user, model, tag


def _ollama_name(host: str, user: str, model: str, tag: str) -> str:
    """Return the name that `ollama list` prints."""
    if host != REGISTRY:
        return f"{host}/{user}/{model}:{tag}"
    return f"{model}:{tag}" if user == LIBRARY else f"{user}/{model}:{tag}"


def _manifest(name: str, path: Path, folder: Path) -> Manifest:
    content = read_object(path, CheckpointError, MAX_MANIFEST_BYTES)
    layers = content.get("layers")
    if not isinstance(layers, list) or not all(isinstance(layer, Mapping) for layer in layers):
        raise CheckpointError(f"{path} is no manifest of Ollama's; `ollama pull {name}` fetches it anew")
    kinds = [_text(layer, "mediaType").removeprefix(LAYER) for layer in layers]
    digests = [_text(layer, "digest") for layer, kind in zip(layers, kinds, strict=True) if kind == "model"]
    if not all(map(DIGEST.fullmatch, digests)):
        raise CheckpointError(
            f"{path} names a file {digests[0]!r}, which is no SHA-256; `ollama pull {name}` fetches it anew"
        )
    model = folder / "blobs" / digests[0].replace(":", "-") if digests else None
    return Manifest(name, path, kinds, model)


def _text(layer: Mapping[str, Any], key: str) -> str:
    value = layer.get(key)
    return value if isinstance(value, str) else ""


def _those(names: Iterator[str]) -> str:
    """Return the part of a message that lists the models that exist; "" if there are none."""
    found = list(names)
    more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return f"; it has {', '.join(found[:MAX_NAMED])}{more}" if found else ""


def lm_studio_folders() -> list[Path]:
    """Return LM Studio's folder of models as a list: that of its settings or a default; empty if none
    exists."""
    home = Path.home()
    usual = [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
    return [folder for folder in (*_lm_studio_setting(home), *usual) if os.path.isdir(folder)][:1]


def _lm_studio_setting(user_home: Path) -> Iterator[Path]:
    try:
        settings = read_object(user_home / ".lmstudio" / "settings.json", CheckpointError)
    except (FileNotFoundError, CheckpointError):
        return
    if isinstance(named := settings.get("downloadsFolder"), str) and Path(named).is_absolute():
        yield Path(named)


def lm_studio_parts(name: str) -> list[str]:
    """Split PUBLISHER/NAME or PUBLISHER/NAME/FILE.gguf at its slashes. Raises CheckpointError if it is
    neither."""
    parts = name.split("/")
    if len(parts) not in (2, 3) or not all(_is_file_name(part) for part in parts):
        raise CheckpointError(
            f"{LM_STUDIO}{name} names no model of LM Studio's; give it as {LM_STUDIO}PUBLISHER/NAME, or "
            f"{LM_STUDIO}PUBLISHER/NAME/FILE.gguf where there are several files"
        )
    return parts


def find_lm_studio(name: str) -> Path:
    """Return the folder or the GGUF file of a model of LM Studio. name: PUBLISHER/NAME or
    PUBLISHER/NAME/FILE.gguf. Raises CheckpointError if it does not exist."""
    parts = lm_studio_parts(name)
    for folder in lm_studio_folders():
        path = folder.joinpath(*parts)
        if os.path.isfile(path) if len(parts) == 3 else os.path.isdir(path):
            return path
    raise CheckpointError(
        f"LM Studio has no {name} on this machine{_those(found for found, _ in lm_studio_models())}: fetch "
        "it there first (`lms get`)"
    )


def lm_studio_models() -> Iterator[tuple[str, Path]]:
    """Yield the name for find_lm_studio and the path of each model of LM Studio in GGUF."""
    for folder in lm_studio_folders():
        for path in gguf_files(folder, "*/*"):
            yield path.relative_to(folder).as_posix(), path


def _is_file_name(part: str) -> bool:
    return part not in ("", ".", "..") and part.isprintable() and "\\" not in part


def gguf_files(folder: Path, below: str = "") -> Iterator[Path]:
    """Yield the GGUF files in a folder, without image projectors, and only the first part of a split model.
    below: a pattern of subfolders to search instead."""
    for path in sorted(folder.glob(f"{below}/*.gguf" if below else "*.gguf")):
        part = PART.fullmatch(path.name)
        is_first = part is None or int(part["number"]) == 1
        if is_first and not path.name.lower().startswith(PROJECTOR_PREFIXES) and os.path.isfile(path):
            yield path
