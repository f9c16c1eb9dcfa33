"""Quantised weights in safetensors: AWQ, GPTQ, compressed-tensors, MLX and bitsandbytes.

`settings.py` reads what config.json says of them and refuses what is not read, `assembly.py` makes one tensor
of the several that a matrix has in the files. Layouts: a file for each tool, with its source.
"""
