"""`aerie serve`."""

from __future__ import annotations

import sys

from aerie.cli.command_line import setup_process
from aerie.serve.cli import main

if __name__ == "__main__":
    setup_process()
    sys.exit(main())
