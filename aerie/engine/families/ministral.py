"""Ministral (2024): a Mistral in which `layer_types` says which layers have the window; without it, all have.

Defaults: transformers' configuration_ministral.py.
"""

from dataclasses import replace

from aerie.engine.families import mistral

FAMILY = replace(
    mistral.FAMILY,
    model_type="ministral",
    architecture="MinistralForCausalLM",
    published_sizes="Ministral-8B",
)
