"""The driver: config, weights, prefill, decode, generation and the command line of a Llama. Thin."""
