"""SDAR: a Qwen3 that fills in blocks of tokens, trained on from its weights (arXiv 2510.06303).

Blocks have 4 tokens, and in some checkpoints 8 to 64; the mask token is in config.json. Both entries: the
config.json of SDAR-4B-Chat and SDAR-8B-Chat (JetAstra/SDAR, training/model). Defaults of all else: their
configuration_sdar.py, which are those of Qwen3.
"""

from dataclasses import replace

from aerie.engine.families import qwen3
from aerie.engine.model_family import FamilyDiffusion

FAMILY = replace(
    qwen3.FAMILY,
    model_type="sdar",
    published_as="SDARForCausalLM",
    diffusion=FamilyDiffusion("block_size", 4, "<|MASK|>"),
    published_sizes="SDAR-1.7B to 8B",
)
