"""Kernels for the NPU: the language to write them in (`dsl`), and the kernels themselves (`kernels`).

`aerie kernels` lists them, and what they use of the device (`aerie.device`).
"""
