"""Generation: tokens as they come, why it ends, and its figures."""

import dataclasses

import numpy as np
import pytest

from aerie.common.errors import UserError
from aerie.engine.errors import NotFiniteError, PromptTooLongError
from aerie.engine.generate import FinishReason, RequestFigures
from aerie.engine.sampler import Sampler
from aerie.engine.scheduler import generate_alone

PROMPT = [0, 17, 300, 41]


@pytest.fixture
def model(numpy_model, make_checkpoint):
    """Never ends by itself."""
    model = numpy_model(make_checkpoint())
    return dataclasses.replace(model, config=dataclasses.replace(model.config, eos_token_ids=()))


def with_config(model, **changes):
    return dataclasses.replace(model, config=dataclasses.replace(model.config, **changes))


def test_length(model):
    generation = generate_alone(model, PROMPT, 5, Sampler())
    assert generation.finish_reason is None
    tokens = list(generation)
    assert tokens == generation.token_ids
    assert len(tokens) == 5
    assert generation.finish_reason is FinishReason.LENGTH


def test_stop_at_any_end_token(model):
    tokens = list(generate_alone(model, PROMPT, 8, Sampler(temperature=3.0, seed=0)))
    place = next(place for place in range(2, 8) if tokens[place] not in tokens[:place])
    for ends in ((tokens[place],), (511, tokens[place])):
        sampler = Sampler(temperature=3.0, seed=0)
        generation = generate_alone(with_config(model, eos_token_ids=ends), PROMPT, 8, sampler)
        assert list(generation) == tokens[: place + 1]
        assert generation.finish_reason is FinishReason.STOP


def test_stop_is_the_reason_even_on_the_last_token(model):
    last = list(generate_alone(model, PROMPT, 3, Sampler()))[-1]
    generation = generate_alone(with_config(model, eos_token_ids=(last,)), PROMPT, 3, Sampler())
    list(generation)
    assert generation.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(("positions", "new"), [(4, 1), (5, 2), (9, 6)])
def test_end_of_context(model, positions, new):
    """A token can be fed only at a position the model has."""
    small = dataclasses.replace(
        with_config(model, max_position_embeddings=positions), rope=model.rope.first(positions)
    )
    generation = generate_alone(small, PROMPT, 100, Sampler())
    assert len(list(generation)) == new
    assert generation.finish_reason is FinishReason.CONTEXT


def test_interruption_is_seen_between_tokens(model):
    asked: list[int] = []
    generation = generate_alone(model, PROMPT, 50, Sampler(), lambda: len(asked) == 3)
    for token in generation:
        asked.append(token)
    assert len(asked) == 3
    assert generation.finish_reason is FinishReason.INTERRUPTED


def test_seed_makes_sampling_repeatable(model):
    def tokens(seed):
        return list(generate_alone(model, PROMPT, 6, Sampler(temperature=3.0, seed=seed)))

    assert tokens(1) == tokens(1) != tokens(2)


def test_second_prompt_is_not_touched_by_the_first(model):
    alone = list(generate_alone(model, PROMPT, 6, Sampler()))
    list(generate_alone(model, [5, 6, 7, 8, 9, 10, 11], 9, Sampler()))
    assert list(generate_alone(model, PROMPT, 6, Sampler())) == alone


def test_figures(model):
    generation = generate_alone(model, PROMPT, 4, Sampler())
    list(generation)
    figures = generation.figures
    assert (figures.prompt_tokens, figures.new_tokens) == (4, 4)
    assert figures.ttft_s > 0
    assert figures.tokens_per_s
    assert figures.tokens_per_s > 0
    one = generate_alone(model, PROMPT, 1, Sampler())
    list(one)
    assert one.figures.tokens_per_s is None


def test_figures_line():
    line = str(RequestFigures(12, 34, 0.5, 20.126))
    assert line == "prompt 12 tokens | new 34 tokens | time to first token 0.500 s | 20.13 tokens/s"
    assert str(RequestFigures(1, 1, 0.5, None)).endswith("| - tokens/s")


def test_refused_before_anything_runs(model):
    with pytest.raises(PromptTooLongError):
        generate_alone(model, [1] * 65, 5, Sampler())
    with pytest.raises(UserError, match="0 tokens were asked for; ask for 1 or more"):
        generate_alone(model, PROMPT, 0, Sampler())
    assert model.runner.calls == []


def test_broken_logits_end_it(model):
    broken = dataclasses.replace(model, final_norm=np.full_like(model.final_norm, np.nan))
    with pytest.raises(NotFiniteError, match="not finite"):
        list(generate_alone(broken, PROMPT, 5, Sampler()))
