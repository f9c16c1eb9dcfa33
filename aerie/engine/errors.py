"""Errors that a user can cause and mend: one line each, exit code 2."""

from __future__ import annotations

from aerie.common.errors import UserError


class RequestError(UserError):
    """A request that failed because of a defect or too little memory, not because of its user. `__cause__`:
    the exception."""

    def __init__(self, cause: BaseException) -> None:
        what = f"{type(cause).__name__}: {cause}".strip().rstrip(":").partition("\n")[0]
        super().__init__(
            f"this answer failed ({what}), and no other did: ask again; where it fails each time, that is a "
            "defect, so leave out its settings one by one, and report the one that it takes"
        )


class TooLittleMemoryError(UserError):
    """The request needs more memory than this process can get."""


MAX_MESSAGE = 2000


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged, or of an unsupported model.

    The message may quote its files, which may have any content: it stays one printable line of at most
    MAX_MESSAGE characters.
    """

    def __init__(self, message: str) -> None:
        shown = message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]} ..."
        super().__init__("".join(map(_as_text, shown)))


def _as_text(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


class ConfigError(CheckpointError):
    """A config.json with a missing, malformed or unsupported entry."""


class WeightsError(CheckpointError):
    """A safetensors file or tensor that is missing, damaged, misshapen or of the wrong type."""


class NotFiniteError(UserError, FloatingPointError):
    """Logits that are not finite: a checkpoint's weights are damaged, or the forward pass is broken."""

    def __init__(self) -> None:
        super().__init__(
            "the logits hold values that are not finite: weights of the checkpoint are damaged, or do not "
            "fit bf16, or the forward pass is broken; `make diagnosis` names the first step that is wrong"
        )


class PromptError(UserError):
    """A prompt that cannot run: empty, or with tokens that the model does not have."""


class PromptTooLongError(PromptError):
    """A prompt longer than the programs take, or than the model has positions. Nothing is truncated silently.

    length, limit: in tokens. enough: the compiled length that would hold the prompt; None if the model's
    positions are the limit.
    """

    def __init__(self, length: int, limit: int, enough: int | None) -> None:
        super().__init__(f"the prompt is {length} tokens long and {limit_reason(limit, enough)}")
        self.length = length
        self.limit = limit
        self.enough = enough


class NoVariantError(PromptError):
    """No variant has a context for these tokens, past and new; `length` and `limit` count them."""

    def __init__(self, tokens: int, past: int, limit: int) -> None:
        end = past + tokens
        super().__init__(
            f"{tokens} tokens after {past} end at position {end}, and the largest context of the variants "
            f"(VARIANTS) has {limit}; shorten the prompt, or add a context of {end} or more"
        )
        self.length = end
        self.limit = limit


def limit_reason(limit: int, enough: int | None) -> str:
    """Why no more than `limit` tokens are taken, and what to do."""
    if enough is None:
        ends = "max_position_embeddings, max_seq_length, longrope or --max-model-len"
        return f"the model has {limit} positions ({ends}); shorten it"
    return (
        f"--seq-len (SEQ_LEN) has programs compiled for at most {limit}; shorten it, give {enough}, or leave "
        "--seq-len out"
    )
