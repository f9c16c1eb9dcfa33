"""Compute two texts once, and use them in a prompt without computing them again.

Run: python examples/chunks.py

    prefix: The capital of Egypt is Cairo. (22 of 52 tokens were not computed)
    block: The capital of Egypt is Cairo. (30 of 52 tokens were not computed)
"""

import aerie

with aerie.load("demo") as model:
    llm = aerie.ChunkedLLM(model)
    chunks = [
        llm.register(model.encode("What is the capital of France?")),
        llm.register("The capital of France is Paris."),
        llm.register(model.encode("What is the capital of Egypt?")),
    ]
    for mode in ("prefix", "block"):  # the same bits as one text; each chunk sees itself alone
        result = llm.generate_from_chunks(chunks, mode, max_tokens=16)
        usage = result.usage
        print(f"{mode}: {result} ({usage.cached_tokens} of {usage.prompt_tokens} tokens were not computed)")
