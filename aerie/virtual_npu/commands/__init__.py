"""The commands of `aerie vnpu`.

A module of COMMANDS has `add(commands)`, which adds a parser for each of its commands and sets the parser's
default `command` to a function from the parsed options to the exit status. It imports what costs time (xDSL,
numpy, rich) where it is used.
"""

COMMANDS = (
    "aerie.virtual_npu.commands.run",
    "aerie.virtual_npu.commands.check",
    "aerie.virtual_npu.commands.time",
    "aerie.virtual_npu.commands.build",
    "aerie.virtual_npu.commands.bisect",
    "aerie.virtual_npu.commands.reduce",
    "aerie.virtual_npu.commands.generate",
)
