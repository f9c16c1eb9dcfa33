"""The gate: compares a model on the NPU, real or virtual, with Hugging Face transformers on the CPU."""
