"""The rules of block diffusion against PyTorch, by their definitions: equal logits, equal choices."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from aerie.engine.sampler import Sampler
from aerie.engine.strategies.unmasking import RULE_NAMES, Unmasker, UnmaskingRule

STEPS = 1100


def drawn_tokens(logits, mask_token, settings, numbers):
    """A token for each row, (rows,), by a number each from 0 to 1: temperature, top-k, top-p, then the
    distribution function over tokens in the order of their logits."""
    open_ = logits.clone()
    open_[:, mask_token] = -torch.inf
    if settings["temperature"] == 0:
        return open_.argmax(-1)
    if 0 < settings["top_k"] < open_.shape[1]:
        least = open_.topk(settings["top_k"], -1).values[:, -1:]
        open_[open_ < least] = -torch.inf
    ordered, tokens = open_.sort(dim=-1, descending=True, stable=True)
    shares = (ordered.double() / settings["temperature"]).softmax(-1)
    shares[shares.cumsum(-1) - shares >= settings["top_p"]] = 0
    function = shares.cumsum(-1) / shares.sum(-1, keepdim=True)
    places = torch.searchsorted(function, torch.from_numpy(numbers)[:, None], right=True)
    return tokens.gather(1, places)[:, 0]


def by_torch(rule, block, logits, masked, step, tokens):
    """Which of the masked positions the rule fills, from its definition: sorted, with what they go by."""
    shares = logits.double().softmax(-1)
    sure = shares.gather(1, tokens[:, None])[:, 0]
    unsure = torch.special.entr(shares).sum(-1)
    steps = rule.steps or block
    count = min(
        len(masked), [block // steps + (number < block % steps) for number in range(steps)][step % steps]
    )
    surest = sure.sort(descending=True, stable=True).indices[:count]
    if rule.name == "sequential":
        places = torch.arange(count)
    elif rule.name == "low_confidence_static":
        places = surest
    elif rule.name == "low_confidence_dynamic":
        above = (sure > rule.threshold).nonzero()[:, 0]
        places = surest if len(above) < count else above
    else:
        ordered, places = unsure.sort(stable=True)
        places = places[: max(1, int((ordered.cumsum(0) < rule.entropy).sum()))]
    places = places.sort().values
    return places, sure[places], unsure[places]


def drawn_logits(random, vocab, rows):
    """Rows of one vocabulary: some flat, some sure of a token, some alike, many with equal logits."""
    logits = random.normal(size=(rows, vocab)) * random.choice([0.5, 2.0, 5.0], (rows, 1))
    sure = np.flatnonzero(random.random(rows) < 0.5)
    logits[sure, random.integers(0, vocab, len(sure))] += random.uniform(4, 25, len(sure))
    alike = random.integers(0, rows, rows)
    logits = np.where(random.random((rows, 1)) < 0.3, logits[alike], logits)
    coarse = random.choice([2.0, 16.0, 1e4])
    return (np.round(logits * coarse) / coarse).astype(np.float32)


def drawn_case(name, random):
    block = int(random.choice([4, 4, 8, 8, 16, 32]))
    settings = {
        "temperature": float(random.choice([0.0, 0.5, 1.0, 1.7])),
        "top_k": int(random.choice([0, 0, 1, 5, 40])),
        "top_p": float(random.choice([1.0, random.uniform(0.1, 1)])),
    }
    rule = UnmaskingRule(
        name,
        steps=int(random.integers(1, block + 1)) if random.random() < 0.7 else None,
        threshold=float(random.choice([0.0, 0.3, 0.9, 1.0])),
        entropy=float(random.choice([0.01, 0.1, 0.6, 5.0])),
    )
    tail = int(random.integers(0, block)) if random.random() < 0.5 else 0
    return block, rule, settings, tail, int(random.integers(50, 601))


def filled(name, random):
    """Fill a block by both; how many positions each step had to fill, and how many it did."""
    block, rule, settings, tail, vocab = drawn_case(name, random)
    mask_token, seed = int(random.integers(0, vocab)), int(random.integers(2**31))
    choose = Unmasker(rule, block, Sampler(**settings, seed=seed), mask_token)
    numbers, masked, step = np.random.default_rng(seed), list(range(tail, block)), 0
    while masked:
        logits = drawn_logits(random, vocab, len(masked))
        tensor = torch.from_numpy(logits)
        drawn = numbers.random(len(masked)) if settings["temperature"] else None
        tokens = drawn_tokens(tensor, mask_token, settings, drawn)
        places, sure, unsure = by_torch(rule, block, tensor, masked, step, tokens)
        found, case = choose(logits, masked, step, [], []), (rule, block, settings, seed, step)
        assert found.positions == tuple(masked[place] for place in places), case
        assert found.tokens == tuple(tokens[places].tolist()), case
        assert mask_token not in found.tokens, case
        np.testing.assert_allclose(found.confidences, sure, rtol=1e-12)
        np.testing.assert_allclose(found.entropies, unsure, rtol=1e-9, atol=1e-12)
        yield min(rule.min_unmasked(step, block), len(masked)), len(places)
        masked = [position for position in masked if position not in found.positions]
        step += 1
    assert step <= block
    assert name == "entropy_bounded" or step <= (rule.steps or block)


@pytest.mark.parametrize("name", RULE_NAMES)
def test_a_rule_chooses_as_its_definition(name):
    random, steps = np.random.default_rng(RULE_NAMES.index(name)), 0
    seen: Counter[Any] = Counter()
    while steps < STEPS:
        for least, count in filled(name, random):
            seen[np.sign(count - least)] += 1
            steps += 1
    more_and_fewer = {"low_confidence_dynamic": {0, 1}, "entropy_bounded": {-1, 0, 1}}.get(name, {0})
    assert set(seen) == more_and_fewer
    assert min(seen.values()) > 30
