"""Granite 3 and later dense models: a Llama with four factors, of embeddings, scores, residuals and logits.

They are data of the launches, and of the host's work around them: folded into tied embeddings they would
change either the embeddings or the LM head. Defaults: transformers' configuration_granite.py.
"""

from aerie.engine.model_family import ModelFamily

FAMILY = ModelFamily(
    model_type="granite",
    architecture="GraniteForCausalLM",
    default_positions=2048,
    has_multipliers=True,
    published_sizes="Granite-3.0-2B to 3.3-8B",
)
