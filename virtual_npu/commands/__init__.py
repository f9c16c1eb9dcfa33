"""The commands of `python -m virtual_npu`, a file each.

A module of COMMANDS has `add(commands)`, which adds its parser and sets its default `command` to a function
from the parsed options to the exit status. It imports what costs time (xDSL, numpy, rich) where it is used.
"""

COMMANDS = (
    "virtual_npu.commands.run",
    "virtual_npu.commands.check",
    "virtual_npu.commands.build",
    "virtual_npu.commands.emit",
    "virtual_npu.commands.bisect",
    "virtual_npu.commands.ops",
)
