"""`aerie compile --estimate` and `aerie profile --estimate`: what a model, or the calls of one answer, will
cost on the board, by the timing model.

A pass costs what its programs cost, one after the other, once for each layer. The programs and the calls are
those that the engine plans.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from aerie.common.errors import UserError
from aerie.engine.call_costs import CallCosts
from aerie.engine.config import ModelConfig
from aerie.engine.planner import VariantCall
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.programs import layers_of
from aerie.engine.reporter import Reporter
from aerie.engine.variant_set import GUIDE, VariantSet
from aerie.multi_launch_builder import Program, program_store
from aerie.multi_launch_builder.delta_programs import MAX_RUN
from aerie.virtual_npu.console import print_table
from aerie.virtual_npu.timing import NOTE, Prediction, TimingError, predict
from aerie.virtual_npu.timing.prediction import ERROR_FACTORS

LENGTHS = (1024, 8192, 32768)
"""Lengths of a prompt, in tokens, as far as the model's programs have positions."""
HOST_ATTENTION = (
    "note: with --decode guide the CPU computes the attention of decode, which no figure here contains; "
    "--decode rows has it on the device"
)
_COSTS = ("prompt", "first token s", "prompt tokens/s", "limited by", "ms a token", "tokens/s", "limited by")
_PROGRAMS = ("program", "us", "limited by", "DDR GB/s", "calls: first prompt", "calls: a token")
_LEAST, _MOST = (pick(ERROR_FACTORS, key=lambda limit: ERROR_FACTORS[limit]) for pick in (min, max))
ACCURACY = (
    "how sure: of the times that others published and no fit has seen, 4 of 5 are within a factor of "
    f"{ERROR_FACTORS[_LEAST]:g} ({_LEAST}) to {ERROR_FACTORS[_MOST]:g} ({_MOST}) of the prediction"
)
_CALLS = ("program", "calls", "us a call", "ms", "share", "limited by")


@dataclass(frozen=True)
class PassCost:
    """What some calls of programs cost. us: time. limited_by: what holds up most of it, a word of
    `timing.prediction.LIMITS`. calls: how often each program is called, by name."""

    us: float
    limited_by: str
    calls: Mapping[str, int]


@dataclass(frozen=True)
class LengthCost:
    """What a prompt of `tokens` tokens costs, and one token after it."""

    tokens: int
    prompt: PassCost
    token: PassCost

    @property
    def prompt_tokens_per_s(self) -> float:
        return self.tokens / self.prompt.us * 1e6

    @property
    def tokens_per_s(self) -> float:
        return 1e6 / self.token.us

    def to_json(self) -> dict[str, object]:
        """The costs as JSON values."""
        return {
            "prompt_tokens": self.tokens,
            "ttft_s": round(self.prompt.us / 1e6, 4),
            "prompt_tokens_per_s": round(self.prompt_tokens_per_s, 1),
            "prompt_limited_by": self.prompt.limited_by,
            "tokens_per_s": round(self.tokens_per_s, 2),
            "token_limited_by": self.token.limited_by,
        }


@dataclass(frozen=True)
class BoardEstimate:
    """The predicted cost of a model on NPU2. programs: one call of each, by name. Nothing is measured."""

    programs: Mapping[str, Prediction]
    lengths: tuple[LengthCost, ...]
    has_host_attention: bool

    def to_json(self) -> dict[str, object]:
        """The estimate as JSON values."""
        return {
            "note": NOTE,
            "measured": False,
            "attention_of_decode_included": not self.has_host_attention,
            "lengths": [each.to_json() for each in self.lengths],
            "programs": {name: round(each.total_us, 1) for name, each in self.programs.items()},
        }


def estimate(config: ModelConfig, options: RuntimeOptions, report: Reporter) -> BoardEstimate:
    """Predict the time to the first token and the tokens per second of a model.

    Raises UserError for a model of block diffusion, and as `RuntimeOptions.variant_set`.
    """
    if config.diffusion:
        raise UserError(
            "--estimate predicts a token after a prompt, and this model fills in blocks of "
            f"{config.diffusion.block_size} tokens in as many passes as its answer needs; time one program "
            "with aerie vnpu time"
        )
    # A board computes rows of padding too, whatever backend is here.
    variant_set = replace(options.variant_set(config), costs=CallCosts(config.layer_parameters))
    lengths = _lengths(variant_set.seq_len or variant_set.positions(config.context))
    plans = {
        length: (
            Counter(_prompt_programs(config, variant_set, length)),
            Counter(_token_programs(config, variant_set, length - 1)),
        )
        for length in lengths
    }
    names = dict.fromkeys(name for both in plans.values() for counts in both for name in counts)
    programs = predict_programs([*_programs(config, variant_set, [*names])], report)
    costs = tuple(
        LengthCost(length, *(_pass_cost(counts, programs) for counts in both))
        for length, both in plans.items()
    )
    return BoardEstimate(programs, costs, variant_set.decode_path == GUIDE)


def _lengths(largest: int) -> list[int]:
    return [each for each in LENGTHS if each <= largest] or [largest]


def _prompt_programs(config: ModelConfig, variant_set: VariantSet, tokens: int) -> Iterator[str]:
    """The programs of a prompt and of the logits after it, once for each call."""
    calls = variant_set.plan(tokens, 0)
    for call in calls:
        yield from _layers(config, variant_set, call, is_last=call is calls[-1])
    yield config.weight_kinds.name(variant_set.lm_head(1))


def _layers(config: ModelConfig, variant_set: VariantSet, call: VariantCall, is_last: bool) -> Iterator[str]:
    """The programs of all layers. The last call needs only its last token at the end of the last layer."""
    end = range(call.n_process - 1, call.n_process)
    tail = variant_set.tail_call(call, end) if is_last else None
    contexts = variant_set.contexts_of(call)
    for layer, window in enumerate(config.masks.of_layer):
        is_conv = layer in config.layers_with_conv
        names = variant_set.layer_programs(call.variant, contexts[window], is_conv)
        if tail and layer == config.num_hidden_layers - 1:
            before = variant_set.programs_before_attention
            last = variant_set.layer_programs(tail.variant, contexts[window], is_conv)
            names = (*names[:before], *last[before:])
        pages = -(-call.n_process // MAX_RUN)
        for name in names:  # of which the delta rule is called for each page
            times = pages if name.startswith("delta_rule") else 1
            yield from [config.weight_kinds.name(name, layer)] * times


def _token_programs(config: ModelConfig, variant_set: VariantSet, past: int) -> Iterator[str]:
    """The programs of a token after `past` positions."""
    if variant_set.decode_path != GUIDE:
        (call,) = variant_set.plan(1, past, recompute=False)
        yield from _layers(config, variant_set, call, is_last=False)
    else:
        for layer in range(config.num_hidden_layers):
            for name in variant_set.decode_programs[:-1]:
                if layer in layers_of(config, name):
                    yield config.weight_kinds.name(name, layer)
    yield config.weight_kinds.name(variant_set.lm_head(1))


def _programs(config: ModelConfig, variant_set: VariantSet, names: Sequence[str]) -> Iterable[Program]:
    if variant_set.seq_len:
        return program_store.load_programs(config.shape, variant_set.seq_len, names).values()
    return program_store.load_programs_by_name(config.shape, names)


def predict_programs(programs: Collection[Program], report: Reporter) -> dict[str, Prediction]:
    """The prediction for one call of each program, by name. Raises UserError for one that the model cannot
    follow."""
    found = {}
    with report.bar("predicting", len(programs)) as step:
        for done, program in enumerate(programs):
            step(program.name, done)
            try:
                found[program.name] = predict(program.text, filename=program.name)
            except TimingError as error:
                raise UserError(
                    f"--estimate cannot time {program.name} ({error}): leave --estimate out"
                ) from error
    return found


def _pass_cost(calls: Mapping[str, int], programs: Mapping[str, Prediction]) -> PassCost:
    by_limit: defaultdict[str, float] = defaultdict(float)
    for name, count in calls.items():
        for launch in programs[name].launches:
            for limit, us in launch.path_us.items():
                by_limit[limit] += us * count
    us = sum(programs[name].total_us * count for name, count in calls.items())
    return PassCost(us, max(by_limit, key=by_limit.__getitem__), calls)


def print_estimate(estimated: BoardEstimate, as_json: bool) -> None:
    """Print the tables, or one line of JSON."""
    if as_json:
        print(json.dumps(estimated.to_json()), flush=True)
        return
    programs = [_program_row(name, estimated) for name in estimated.programs]
    print_table("one call of each program on npu2", _PROGRAMS, programs, "<><>>>", sys.stdout)
    print_table("the model", _COSTS, [_cost_row(each) for each in estimated.lengths], ">>><>><", sys.stdout)
    print(NOTE, ACCURACY, sep="\n")
    if estimated.has_host_attention:
        print(HOST_ATTENTION)


def print_calls(calls: Mapping[str, int], programs: Mapping[str, Program], report: Reporter) -> None:
    """Print what these calls of programs would cost on NPU2, the dearest first. calls: by name."""
    predictions = predict_programs([programs[name] for name in calls], report)
    dearest = sorted(calls, key=lambda name: -calls[name] * predictions[name].total_us)
    total = _pass_cost(calls, predictions)
    rows = []
    for name in dearest:
        one = predictions[name]
        us = calls[name] * one.total_us
        numbers = (f"{one.total_us:.0f}", f"{us / 1e3:.2f}", f"{us / total.us:.0%}")
        rows.append((name, str(calls[name]), *numbers, one.limited_by))
    print_table(f"the same calls on npu2: {total.us / 1e3:.2f} ms", _CALLS, rows, "<>>>><", sys.stdout)
    print(NOTE, ACCURACY, sep="\n")


def _program_row(name: str, estimated: BoardEstimate) -> tuple[str, ...]:
    prediction, first = estimated.programs[name], estimated.lengths[0]
    rate = sum(launch.ddr_bytes for launch in prediction.launches) / prediction.total_us / 1e3
    calls = (str(each.calls.get(name, 0)) for each in (first.prompt, first.token))
    return (name, f"{prediction.total_us:.0f}", prediction.limited_by, f"{rate:.1f}", *calls)


def _cost_row(cost: LengthCost) -> tuple[str, ...]:
    return (
        str(cost.tokens),
        f"{cost.prompt.us / 1e6:.3f}",
        f"{cost.prompt_tokens_per_s:.0f}",
        cost.prompt.limited_by,
        f"{cost.token.us / 1e3:.1f}",
        f"{cost.tokens_per_s:.1f}",
        cost.token.limited_by,
    )
