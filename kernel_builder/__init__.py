"""Kernels for the NPU: the language to write them in (`dsl`), the device (`device`), what a program takes
of it (`preflight`), and the kernels themselves (`kernels`). `python -m kernel_builder` shows them.
"""
