"""Qwen3 turned to block diffusion by dLLM, bd3lm (arXiv 2602.22661): all is Qwen3's but the mask.

config.json says neither block nor mask token: dLLM samples in blocks of 32 (BD3LMSamplerConfig), and adds its
mask token to the tokenizer where that lacks it (ZHZisZZ/dllm, dllm/core/samplers and dllm/utils). Checkpoints
of mdlm, which see the whole text, have the same names in config.json: nothing distinguishes them.
"""

from dataclasses import replace

from aerie.engine.families import qwen3
from aerie.engine.model_family import FamilyDiffusion

FAMILY = replace(
    qwen3.FAMILY,
    model_type="a2d-qwen3",
    published_as="A2DQwen3LMHeadModel",
    diffusion=FamilyDiffusion("block_size", 32, "<|mask|>"),
    published_sizes="Qwen3-0.6B-diffusion-bd3lm",
)
