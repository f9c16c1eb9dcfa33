"""A model's logits against those of transformers: as near to exact ones as its own bf16 is."""

from __future__ import annotations

import numpy as np

from aerie.engine.config import load_config
from aerie.engine.forward import decode_step, next_token_logits, prefill


def our_logits(model, prompt, fed):
    """After every token of a prompt, then of each token fed to decode: (tokens, vocab_size)."""
    cache = model.new_cache(len(prompt) + len(fed))
    rows = [next_token_logits(model, row) for row in prefill(model, prompt, cache)]
    rows += [next_token_logits(model, decode_step(model, token, cache)) for token in fed]
    return np.stack(rows)


def their_logits(folder, dtype, token_ids):
    """One row for each of `token_ids`, in float32."""
    import torch
    import transformers

    with torch.no_grad():
        kind = getattr(transformers, load_config(folder).architecture)
        theirs = kind.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="eager")
        return theirs(torch.tensor([token_ids])).logits[0].float().numpy()


def random_tokens(model, count):
    return np.random.default_rng(1).integers(0, model.config.vocab_size, count).tolist()


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def off(logits, exact):
    """How far the direction of the worst row is from that of the exact one: 1 - the cosine between them."""
    lengths = np.linalg.norm(logits, axis=-1) * np.linalg.norm(exact, axis=-1)
    return 1 - ((logits * exact).sum(-1) / lengths).min()


def check(model, folder, prompt_tokens, fed_tokens):
    """Prefill and decode apart: our mean distance from float32 is at most 1.15 times that of their bf16.

    No row's direction is off by more than 0.001, or than 1.15 times the most of their rows: with linear
    attention their bf16 has rows that are off by 0.006, and ours then is as far off, mostly in the same row.
    """
    tokens = random_tokens(model, prompt_tokens + fed_tokens)
    ours = our_logits(model, tokens[:prompt_tokens], tokens[prompt_tokens:])
    exact, theirs = (their_logits(folder, dtype, tokens) for dtype in ("float32", "bfloat16"))
    assert exact.std() > 1
    for part in (slice(prompt_tokens), slice(prompt_tokens, None)):
        error, allowed = (np.abs(logits[part] - exact[part]).mean() for logits in (ours, theirs))
        assert error < 1.15 * allowed
    assert off(ours, exact) < max(0.001, 1.15 * off(theirs, exact))
    p, q = softmax(exact), softmax(ours)
    assert (p * np.log(p / q)).sum(-1).max() < 0.05
