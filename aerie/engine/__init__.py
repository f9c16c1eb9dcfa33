"""What is true of every model: config, weights, tokenizer, KV cache, the forward pass, sampling, sessions."""
