"""Fast-dLLM v2: a Qwen2.5 that fills in blocks of tokens in parts of 8 (arXiv 2509.26328).

Logits at a position say the token at the next one, as they did before; the first token of a block is that
of the last row of the block before it. config.json has `bd_size`, 32 in the published 1.5B and 7B. The mask
token is among the tokenizer's added tokens (151665), and the parts are the default of the model's `generate`.
"""

from dataclasses import replace

from aerie.engine.families import qwen2
from aerie.engine.model_family import FamilyDiffusion

FAMILY = replace(
    qwen2.FAMILY,
    model_type="Fast_dLLM_Qwen",
    published_as="Fast_dLLM_QwenForCausalLM",
    diffusion=FamilyDiffusion("bd_size", 32, "|<MASK>|", shifted=True, sub_block=8),
    published_sizes="Fast_dLLM_v2-1.5B and 7B",
)
