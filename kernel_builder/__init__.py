"""Kernels for the NPU: the language to write them in (`dsl`), and the kernels themselves (`kernels`).

`aerie kernels` shows them, and what they take of the device (`aerie.device`).
"""
