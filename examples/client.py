"""Ask a server with OpenAI's client: a chat, piece by piece.

Run: aerie serve --model demo --port 8000 &
     python examples/client.py http://127.0.0.1:8000

    models: ['demo']
    The capital of France is Paris.
    prompt 22 tokens, answer 9 tokens
"""

import sys

from openai import OpenAI

client = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")  # no key is wanted unless --api-key says one
print("models:", [model.id for model in client.models.list()])

stream = client.chat.completions.create(
    model="demo",
    messages=[{"role": "user", "content": "What is the capital of France?"}],
    max_tokens=64,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage:
        print(f"\nprompt {chunk.usage.prompt_tokens} tokens, answer {chunk.usage.completion_tokens} tokens")
