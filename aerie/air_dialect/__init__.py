"""The AIR dialect (Xilinx/mlir-air) in xDSL: operations, assembly and verifiers.

`parse` turns text into a verified module, `print_module` turns it back. The operations, for building
modules in Python, are in `air_dialect.ops`.
"""

from aerie.common.lazy import TYPE_CHECKING, on_first_use

if TYPE_CHECKING:
    from aerie.air_dialect.parser_printer import (
        make_context,
        parse,
        print_as_source,
        print_module,
        source_places,
    )
    from aerie.air_dialect.verification import AirParseError, location, verify
else:
    __getattr__ = on_first_use(
        __name__,
        {
            "make_context": "aerie.air_dialect.parser_printer",
            "parse": "aerie.air_dialect.parser_printer",
            "print_as_source": "aerie.air_dialect.parser_printer",
            "print_module": "aerie.air_dialect.parser_printer",
            "source_places": "aerie.air_dialect.parser_printer",
            "AirParseError": "aerie.air_dialect.verification",
            "location": "aerie.air_dialect.verification",
            "verify": "aerie.air_dialect.verification",
        },
    )

__all__ = [
    "AirParseError",
    "location",
    "make_context",
    "parse",
    "print_as_source",
    "print_module",
    "source_places",
    "verify",
]
