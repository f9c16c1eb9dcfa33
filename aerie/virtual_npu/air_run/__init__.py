"""Runs Python programs that are written against mlir-air on the virtual NPU, without a build of mlir-air.

`air.ir` and MLIR's own dialects are the bindings of the package xtc-mlir-python-bindings, the operations of
the AIR dialect are made from the tables of `aerie.air_dialect`, and every other file of the package `air`
comes from the user's checkout of mlir-air. Commands of the names aircc, clang++ and xchesscc_wrapper take the
place of the compilers: programs are built for the virtual NPU, and a kernel's object holds where its source
is. `pyxrt` is the virtual NPU's.
"""
