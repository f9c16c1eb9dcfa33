"""Talk with a model: each answer sees the turns before it, and is printed as it is made.

Run: python examples/chat.py

    > What is the capital of France?
    The capital of France is Paris.
    > What is the capital of Egypt?
    The capital of Egypt is Cairo.
"""

import aerie

QUESTIONS = ["What is the capital of France?", "What is the capital of Egypt?"]

with aerie.load("demo") as model:
    messages = []
    for question in QUESTIONS:
        print(">", question)
        messages.append({"role": "user", "content": question})
        stream = model.stream(messages, max_tokens=64)
        for piece in stream:
            print(piece, end="", flush=True)
        print()
        messages.append({"role": "assistant", "content": stream.text})
