"""Chat templates of models that think, in our own words, and a small checkpoint of Qwen3's shape with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TURN = "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
SWITCHED = (
    "{%- set last = namespace(user=-1) %}"
    "{%- for m in messages %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{%- for m in messages %}"
    "{%- if m.role != 'assistant' %}" + TURN + "{%- else %}"
    "{%- set thought = m.reasoning_content | default('', true) %}{%- set said = m.content %}"
    "{%- if not thought and '</think>' in said %}"
    "{%- set thought = said.split('</think>')[0].split('<think>')[-1].strip('\\n') %}"
    "{%- set said = said.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- if loop.index0 > last.user and (thought or loop.last) %}"
    "{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}{% endif %}"
    "{{- said }}{{- '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{% endif %}{% endif %}"
)
"""As Qwen3 does: thinking is the model's choice, or closed at once; of old turns it is dropped."""

OPENED = (
    "{%- for m in messages %}{%- if m.role == 'assistant' and '</think>' in m.content %}"
    "{{- '<|assistant|>' + m.content.split('</think>')[-1] + '<|end|>' }}"
    "{%- else %}{{- '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|><think>\\n' }}{% endif %}"
)
"""As DeepSeek-R1 does: every answer begins with thinking."""

SPECIAL = ("<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>")
QWEN3: dict[str, Any] = {
    "family": "Qwen3",
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "eos_token_id": [1],
    "seed": 3,
}


def add_tokens(folder: Path, template: str) -> Path:
    """Declare the tokens of a thinking model in a checkpoint, special or not as Qwen3 has them."""
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_tokens([AddedToken(each, special=True) for each in SPECIAL], special_tokens=True)
    tokenizer.add_tokens([AddedToken(each, special=False, normalized=False) for each in TAGS])
    tokenizer.chat_template = template
    for old in folder.glob("chat_template*"):
        old.unlink()
    tokenizer.save_pretrained(folder)
    return folder
