"""The commands of `python -m virtual_npu`.

A module of COMMANDS has `add(commands)`, which adds a parser for each of its commands and sets the parser's
default `command` to a function from the parsed options to the exit status. It imports what costs time (xDSL,
numpy, rich) where it is used.
"""

COMMANDS = (
    "virtual_npu.commands.run",
    "virtual_npu.commands.check",
    "virtual_npu.commands.build",
    "virtual_npu.commands.bisect",
)
