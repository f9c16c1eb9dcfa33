"""GGUF files as checkpoints: one file, or its parts, with metadata, tokenizer and tensors in blocks.

`container.py` reads a file's header within limits, `model_files.py` finds the files of a model,
`model_config.py` makes the entries of a config.json of the metadata, `block_tensors.py` reads tensors.
`tokenizer.py` makes the tokenizer of the metadata: `vocabulary.py` checks what it is made of, and
`pre_tokenizers.py` is the table of how text is cut.
"""
