"""Qwen2.5 turned to block diffusion by dLLM, bd3lm: blocks and mask token as in a2d_qwen3.py, layers as in
Qwen2.
"""

from dataclasses import replace

from aerie.engine.families import a2d_qwen3, qwen2

FAMILY = replace(
    qwen2.FAMILY,
    model_type="a2d-qwen2",
    published_as="A2DQwen2LMHeadModel",
    diffusion=a2d_qwen3.FAMILY.diffusion,
    published_sizes="Qwen2.5-Coder-0.5B-Instruct-diffusion-bd3lm",
)
