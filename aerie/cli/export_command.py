"""`aerie export`: write the step of a block diffusion model as one AIR program of fixed shapes.

It writes the program's text, its argument table as JSON, and a numpy example that runs it. Weights stay in
the checkpoint; the table names the source of each.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from aerie import rooms
from aerie.cli.checkpoints import find_checkpoint
from aerie.common.errors import UserError
from aerie.common.progress import working
from aerie.engine.config import ModelConfig, load_config
from aerie.engine.config_file import CONFIG, read_config
from aerie.engine.config_reader import ConfigReader
from aerie.engine.families import FAMILIES
from aerie.engine.quantised_files.settings import read_settings
from aerie.engine.reporter import Reporter
from aerie.engine.static_form import static_sizes, weight_sources
from aerie.multi_launch_builder.static_step import STATIC_STEP_KIND, StaticSizes, plan_static_step
from aerie.runtime.memory import format_file_bytes

DONE = 0
MAX_LEN = 512
"""Default positions of the cache, if the model has as many."""
EXAMPLE = "example.py"


def add_export(count: Callable[[str], int], parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `aerie export`. count: the type of an integer of 1 or more."""
    parser.add_argument(
        "-m",
        "--model",
        required=True,
        help="a checkpoint folder of a block diffusion model, or a Hugging Face id",
    )
    parser.add_argument("--layers", type=count, help="export only the first N layers (default: all)")
    parser.add_argument("--batch", type=count, default=1, help="sequences of a call (default: %(default)s)")
    parser.add_argument(
        "--max-len",
        type=count,
        help=f"positions of the KV cache, a multiple of the attention's tiles (default: {MAX_LEN}, or the "
        "model's own where those are fewer)",
    )
    parser.add_argument("--block", type=count, help="tokens of a block (default: the checkpoint's)")
    parser.add_argument(
        "--other-block",
        action="store_true",
        help="take a --block that the checkpoint was not trained with",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the folder to write; it must not be there yet"
    )


def export(arguments: argparse.Namespace) -> int:
    """Write the step of a block diffusion model as one AIR program of fixed shapes."""
    from aerie.multi_launch_builder.builder import build_program, program_to_json  # xDSL comes with it
    from aerie.multi_launch_builder.shape_limits import check_shape

    out, report = arguments.out.expanduser(), Reporter()
    _check_new(out)
    folder = find_checkpoint(arguments.model)
    config = load_config(folder)
    _check_plain(folder, arguments.model)
    sizes = _sizes(arguments, config, report)
    check_shape(config.shape)
    plan = plan_static_step(config.shape, sizes)
    report.note(_cache_note(sizes))
    with working(f"building {STATIC_STEP_KIND} of {sizes.layers} layers"):
        program = build_program(plan)
    about = {
        "model": str(folder.absolute()),
        "sizes": asdict(sizes),
        "kv_cache_bytes": sizes.cache_bytes(),
        "weights": {name: vars(of) for name, of in weight_sources(config, program).items()},
    }
    table = json.dumps(program_to_json(program) | about, indent=2) + "\n"
    _write(out, {f"{STATIC_STEP_KIND}.mlir": program.text, f"{STATIC_STEP_KIND}.args.json": table})
    report.note(
        f"{out}: {STATIC_STEP_KIND}.mlir of {len(program.launches)} launches, its "
        f"{len(program.arguments)} arguments in "
        f"{STATIC_STEP_KIND}.args.json, and {EXAMPLE}, which runs it on the virtual NPU"
    )
    return DONE


def _check_plain(folder: Path, model: str) -> None:
    """Raises UserError for quantised weights."""
    settings = read_settings(ConfigReader(folder / CONFIG, read_config(folder).entries))
    if settings is not None:
        raise UserError(
            f"--model {model} has weights quantised with {settings.method}, and the static form reads bf16 "
            "alone, by the names of the unquantised checkpoint: give that one"
        )


def _cache_note(sizes: StaticSizes) -> str:
    layers, kinds, batch, heads, positions, head_dim = sizes.kv_cache
    return (
        f"kv_cache and updated_cache take {format_file_bytes(sizes.cache_bytes())} each: {layers} layers x "
        f"{kinds} (keys and values) x {batch} sequences x {heads} heads x {positions} positions x "
        f"{head_dim} elements x 2 bytes"
    )


def _check_new(out: Path) -> None:
    if out.exists():
        raise UserError(f"--out {out} is there already and is not overwritten; remove it, or name another")


def _sizes(arguments: argparse.Namespace, config: ModelConfig, report: Reporter) -> StaticSizes:
    """The requested sizes. Raises UserError if the model does not have them."""
    block = _block(arguments, config, report)
    layers = arguments.layers or config.num_hidden_layers
    if layers > config.num_hidden_layers:
        raise UserError(
            f"--layers {layers} of a model that has {config.num_hidden_layers}; give that or fewer, or leave "
            "--layers out"
        )
    if layers < config.num_hidden_layers:
        report.note(
            f"note: {layers} of {config.num_hidden_layers} layers, with the model's own head after them: the "
            "logits are not the model's"
        )
    max_len = arguments.max_len or min(MAX_LEN, config.context)
    if max_len > config.context:
        raise UserError(
            f"--max-len {max_len} is more than the {config.context} positions of the model "
            f"({config.context_entry}); give {config.context} or less"
        )
    if max_len % block:
        raise UserError(
            f"--max-len {max_len} is not a multiple of the block of {block} tokens, so that the last block "
            f"would not fit the cache; give {max(1, max_len // block) * block}"
        )
    return static_sizes(config, layers, arguments.batch, block, max_len)


def _block(arguments: argparse.Namespace, config: ModelConfig, report: Reporter) -> int:
    """Tokens of a diffusion block: the checkpoint's, or another size if that is confirmed."""
    if config.diffusion is None:
        others = ", ".join(name for name, family in FAMILIES.items() if family.diffusion)
        raise UserError(
            f"--model {arguments.model} is of the family {config.family.model_type}, which makes one token "
            f"after another and has no blocks; the static form is of block diffusion: give a model of one of "
            f"the families {others}"
        )
    trained = config.diffusion.block_size
    block: int = arguments.block or trained
    if block != trained and not arguments.other_block:
        raise UserError(
            f"--block {block} is not the {trained} tokens that the checkpoint was trained with, and its "
            "answers would be poor; leave --block out, or add --other-block to have it all the same"
        )
    if block != trained:
        report.note(
            f"warning: blocks of {block} tokens, where the checkpoint was trained with {trained}: its "
            "answers may be poor"
        )
    return block


def _write(out: Path, texts: Mapping[str, str]) -> None:
    """Write the folder completely or not at all."""
    unfinished = out.with_name(f".{out.name}.unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)  # left behind by a process that was killed
        unfinished.mkdir(parents=True)
        for name, text in texts.items():
            (unfinished / name).write_text(text, encoding="utf-8")
        shutil.copyfile(rooms.folder("llama32_1b") / "static_example.py", unfinished / EXAMPLE)
        unfinished.rename(out)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise UserError(
            f"cannot write --out {out} ({error.strerror or error}); nothing is left of it: name another"
        ) from None
