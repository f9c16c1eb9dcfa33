"""Which tests of other projects are run, against a server with which flags, and what is passed over and why.

Plain data, without imports of ours: plugin.py is loaded by whichever Python has what the tests import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Run(NamedTuple):
    """Files of a suite, from its folder, or tests of them, which the run of the whole file leaves out; and
    the flags of the server that they are run against. template: of chats, in place of smollm2's."""

    files: Sequence[str]
    flags: Sequence[str]
    template: str = ""


def _flags(name: str, *values: str) -> list[str]:
    return [word for value in values for word in (name, value)]


KEY = "sk-this-is-the-secret-key"
"""What llama.cpp's tests of safety send."""
LOCAL = ("localhost", "localhost:8080", "127.0.0.1", "127.0.0.1:3000", "[::1]", "[::1]:3000")
ORIGINS = [f"http://{name}" for name in LOCAL]
NAMES = ("codellama70b", "davinci-002", "gpt-3.5-turbo", "gpt-3.5-turbo-instruct", "gpt-4.1", "test")
MODEL = ("--model", "smollm2", "--name", "tinyllama-2", "--variants", "8,32x512", *_flags("--alias", *NAMES))
THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
"""Of a model that thinks before each answer, and is told what it thought."""
HEADED = (
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
"""As Llama 3 writes a conversation."""
ANTHROPIC, CHATS, COMPLETIONS = (
    f"unit/test_{name}.py::test_" for name in ("compat_anthropic", "chat_completion", "completion")
)
THINKING = (
    *(f"anthropic_thinking_history_in_{name}" for name in ("count_tokens", "template")),
    "anthropic_thinking_with_reasoning_model",
)
TEXTS = ("basic", "chat_completion", "completion", "tokenize", "compat_oai_responses", "compat_anthropic")
LLAMA_CPP = (
    Run([f"unit/test_{name}.py" for name in TEXTS], MODEL),
    Run(["unit/test_security.py"], [*MODEL, "--api-key", KEY, *_flags("--cors-origin", *ORIGINS)]),
    Run(["unit/test_security.py::test_local_media_file"], ["--model", "smollm2"]),
    Run([f"{CHATS}chat_completion_stream"], ["--model", "smollm2", "--name", "llama-test-model"]),
    Run(
        [f"{COMPLETIONS}nocache_long_input_prompt"],
        ["--model", "smollm2", "--variants", "8,32x512", "--max-model-len", "128"],
    ),
    Run([f"{CHATS}chat_template_continue_final_message_vllm_compat"], [], HEADED),
    Run([f"{ANTHROPIC}{name}" for name in THINKING], ["--name", "test"], THINKS),
)
SECOND, THIRD = "Tiny-Test-Model-GGUF", "Qwen3-0.6B-GGUF"
"""What Lemonade's tests of several models call those that they have beside the first."""
LEMONADE_MODEL, LEMONADE_MEMORY = "smollm2", "1430M"
"""The first model, and the room for it and one of the others."""
LEMONADE = (
    Run(
        ["server_llm.py"],
        [
            *_flags("--model", LEMONADE_MODEL, f"{SECOND}=demo", f"{THIRD}=demo"),
            "--memory",
            LEMONADE_MEMORY,
            "--kv-pool",
            "8192",
        ],
    ),
)

VAGUE = "wants ten tokens to be likely where this model finds nine"
JOKE = (
    "Write a joke about AI from a very long prompt which will not be truncated-64-"
    "(princesses|everyone|kids|Anna|forest)+-46-64"
)
FEW = "wants 64 tokens where this model ends after 2"
BOS = "wants the BOS of its own tokenizer"
FLAG = "of a start-up flag of llama-server: "
MEDIA = "of images, with a status or a file of its own; here they are refused with 400"
MEDIA_FILES = ("file://mtmd/test-1.jpeg", "file:////mtmd//test-1.jpeg")
"""Those that are to be read; that others are not is wanted here too."""
TEMPLATE = "of a chat template given at the start, or of another model's"
CORS = "preflights are answered as browsers read them, not word by word as there: "

LLAMA_CPP_SKIPS: Mapping[str, Mapping[str, str]] = {
    "test_basic.py": {
        "test_server_multiple_addresses": f"{FLAG}several addresses",
        "test_server_props": "wants a .gguf file's path, and its own numbers of slots and positions",
        "test_server_slots": f"{FLAG}2 slots, or none",
        "test_no_ui": f"{FLAG}no page",
        "test_server_model_aliases_and_tags": f"{FLAG}tags",
    },
    "test_chat_completion.py": {
        "test_chat_template$": TEMPLATE,
        "test_chat_template_assistant_prefill": "wants an answer that goes on with the last message without "
        "being asked to; here continue_final_message asks for it",
        "test_apply_chat_template": TEMPLATE,
        "test_invalid_chat_completion_req[messages7]": "wants two answers in a row refused; here they go",
        "test_context_size_exceeded": "wants a type of error of its own, where OpenAI's has a code",
    },
    "test_completion.py": {
        f"test_completion[{JOKE}-False-True": FEW,
        f"test_completion_stream[{JOKE}": FEW,
        "test_completion_response_fields[I believe the meaning of life is-32": BOS,
        "test_n_probs_post_sampling": VAGUE,
    },
    "test_tokenize.py": {"test_tokenize_with_bos": BOS},
    "test_security.py": {
        "test_access_static_assets": "of the files of its own page",
        "test_cors_options[localhost-": f"{CORS}an origin has a scheme",
        "test_cors_options[web.mydomain.fr-Access-Control-Allow-": f"{CORS}an origin has a scheme",
        "test_cors_options[origin-Access-Control-Allow-Credentials": f"{CORS}nothing is asked with cookies",
        "test_cors_origins_localhost_rejects": f"{CORS}that of another site has status 400",
        "test_cors_origins_defaults": f"{FLAG}tools that the server runs",
        "test_cors_proxy": f"{FLAG}a proxy of its page",
        **{f"test_local_media_file[../../../tools-{url}": MEDIA for url in MEDIA_FILES},
    },
    "test_compat_oai_responses.py": {
        "test_responses_stream_with_llama_telemetry": "wants response.completed where an answer is cut "
        "off, and times that this server sends only in chats and /completion",
    },
    "test_compat_anthropic.py": {
        "test_anthropic_tool_result_with_image": MEDIA,
        "test_anthropic_vision": MEDIA,
        "test_anthropic_empty_messages": "wants an answer to no message; Anthropic's own API refuses that",
    },
}
"""By file, and the beginning of a test's name; whole where it ends in $."""

CAN = ("chat_completions", "completions")
SUPPORTS: Mapping[str, bool] = {
    **{f"{name}{how}": True for name in CAN for how in ("", "_streaming", "_async")},
    **{f"{name}{how}": True for name in ("responses_api", "tool_calls") for how in ("", "_streaming")},
    **{f"{name}_parameter": True for name in ("stop", "echo")},
    **dict.fromkeys(("embeddings", "embeddings_batch", "generation_parameters"), True),
    **dict.fromkeys(("slots", "tokenize", "static_max_context_window"), True),
    "multi_model": True,
    "reranking": False,
}
"""Our row in Lemonade's table of what servers can: all of text. reranking wants a model made for it."""
ENDS = "wants several words drawn after a prompt without a chat template; this model often ends there"
ASKED = "wants a tool called that is not required, as its prompt says; a model of 135M parameters does not"
LEMONADE_SKIPS: Mapping[str, Mapping[str, str]] = {
    "server_llm.py": {
        "test_008_responses_api_streaming": "wants response.completed where an answer is cut off; ours is "
        "response.incomplete, as OpenAI's",
        "test_004_completions": ENDS,
        "test_005_completions": ENDS,
        "test_006_completions": ENDS,
        "test_012_chat_completions_with_tool_calls": ASKED,
        "test_013_chat_completions_with_tool_calls": ASKED,
        "test_014_generation_parameters": "wants the same answer twice, drawn without a seed; here each "
        "draw has a seed of its own, as in OpenAI's API",
        "test_015b_embeddings_missing_model": "wants a model named; here the one that there is answers",
    }
}

TESTER: Mapping[str, str] = {
    "endpoints": 'base_url: "http://127.0.0.1:{port}"\n'
    'paths: {{models: "/v1/models", chat: "/v1/chat/completions", responses: "/v1/responses", '
    'conversations: "/v1/conversations"}}\n',
    "models": "profiles: [{{name: smollm2, chat_model: smollm2, responses_model: smollm2, "
    "temperature: 0}}]\n",
}
"""Settings for openai-compatible-tester: the address of the server, and its model."""
TESTER_FLAGS = ("--model", "smollm2", "--variants", "8,32x512", "--max-model-len", "320", "--warm")
"""Several of its tests set no limit, and an answer has 60 seconds."""
SHAPES = ("canonical_text_seen", "canonical_stream_terminal_seen", "canonical_structured_seen")
"""What it notes of an answer that is of the right shape, whatever its text."""
CALLED, CALL = "function_call_observed", ('"type":"function_call"', '"tool_calls":[{')
"""What it notes once a tool is called with what its prompt says; and what its next answer has, for which it
wants words, where this model calls the tool again."""
INPUT, CUSTOM = "unexpected custom tool input", "canonical_custom_tool_call_seen"
"""A custom tool is called, with another text than the prompt says."""
TESTER_SKIPS: Mapping[str, str] = {
    "responses.custom_tool.grammar": "of lark for a custom tool's input, which may be a regular expression",
}


def reason(skips: Mapping[str, str], test: str) -> str:
    """Why a test is passed over; nothing where it is not. A name that ends in $ is the whole name."""
    return next((why for begins, why in skips.items() if f"{test}$".startswith(begins)), "")
