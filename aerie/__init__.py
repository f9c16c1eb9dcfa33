"""Aerie: language models on AMD Ryzen AI NPUs, open from the prompt down to the last kernel.

All that is importable is here: `aerie.virtual_npu`, `aerie.kernel_builder`, `aerie.llama32_1b` and so on. In
the repository each room is a folder at the top, and this folder has a link to each; installed, they are its
subpackages. `python -m aerie`, or `aerie`, is the command line.
"""
