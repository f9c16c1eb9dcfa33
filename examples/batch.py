"""Answer several prompts in shared forward passes, each with its own options.

Run: python examples/batch.py

    The capital of France is Paris. | stop
    The capital of | length
    7 times 8 is 56. | stop
"""

import aerie

with aerie.load("demo") as model:
    results = model.generate_batch(
        [
            "What is the capital of France?",
            {"prompt": "What is the capital of Japan?", "max_tokens": 3},
            {"prompt": "What is 7 times 8?", "temperature": 0.5, "seed": 1},
        ]
    )
    for result in results:
        if result.error:
            print("error:", result.error)
        else:
            print(result.text, "|", result.finish_reason.value)
