"""The AIR dialect (Xilinx/mlir-air) in xDSL: operations, assembly and verifiers.

`parse` turns text into a verified module, `print_module` turns it back. The operations, for building
modules in Python, are in `air_dialect.ops`.
"""

from air_dialect.parsing import context, parse
from air_dialect.printing import print_module
from air_dialect.verification import AirParseError, location, verify

__all__ = ["AirParseError", "context", "location", "parse", "print_module", "verify"]
