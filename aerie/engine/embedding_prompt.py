"""From a text to the tokens of which its vector is made."""

from __future__ import annotations

from aerie.engine.errors import PromptError, PromptTooLongError
from aerie.engine.tokenizer import Tokenizer


def embedding_prompt(
    tokenizer: Tokenizer, text: str, before: str, most: int, is_cut: bool = False
) -> list[int]:
    """The tokens of a text with `before` in front, and what the tokenizer puts around a text, such as an end
    token. Control tokens that the text spells are text.

    most: tokens of a text. A longer one is cut at its end if `is_cut`; what is around it stays. Raises
    PromptError for an empty text, and else PromptTooLongError.
    """
    if not text:
        raise PromptError("a text is empty, and the vector of nothing means nothing; leave it out")
    ids = tokenizer.encode(before + text, most=None if is_cut else most)
    if len(ids) <= most:
        return ids
    if not is_cut:
        raise PromptTooLongError(len(ids), most, None)
    inner = tokenizer.encode(before + text, special=False)
    added = len(ids) - len(inner)
    first = next(start for start in range(added + 1) if ids[start : start + len(inner)] == inner)
    return [*ids[:first], *inner[: most - added], *ids[first + len(inner) :]]
