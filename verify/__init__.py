"""The gate: a model on the NPU, real or virtual, against Hugging Face transformers on the CPU."""
