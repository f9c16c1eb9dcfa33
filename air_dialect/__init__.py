"""The AIR dialect (Xilinx/mlir-air) in xDSL: operations, assembly and verifiers.

`parse` turns text into a verified module, `print_module` turns it back. The operations, for building
modules in Python, are in `air_dialect.ops`.
"""

from typing import TYPE_CHECKING

from air_dialect.lazy import on_first_use

if TYPE_CHECKING:
    from air_dialect.parsing import context, parse
    from air_dialect.printing import print_module
    from air_dialect.verification import AirParseError, location, verify
else:
    __getattr__ = on_first_use(
        __name__,
        {
            "context": "air_dialect.parsing",
            "parse": "air_dialect.parsing",
            "print_module": "air_dialect.printing",
            "AirParseError": "air_dialect.verification",
            "location": "air_dialect.verification",
            "verify": "air_dialect.verification",
        },
    )

__all__ = ["AirParseError", "context", "location", "parse", "print_module", "verify"]
