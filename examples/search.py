"""Find the text that answers a question, by the products of vectors.

Run: python examples/search.py

    What is the capital of France? 0.72 The capital of France is Paris.
    What is two plus two? 0.64 Two plus two is four.
"""

import aerie

TEXTS = ["The capital of France is Paris.", "The capital of Egypt is Cairo.", "Two plus two is four."]
QUESTIONS = ["What is the capital of France?", "What is two plus two?"]

with aerie.load("demo") as model:
    texts, questions = model.embed(TEXTS), model.embed(QUESTIONS)

for question, products in zip(QUESTIONS, questions @ texts.T, strict=True):
    best = products.argmax()
    print(question, f"{products[best]:.2f}", TEXTS[best])
