"""`aerie serve`."""

from __future__ import annotations

import sys

from aerie.cli.arguments import setup_process
from aerie.serve.cli import main

if __name__ == "__main__":
    setup_process()
    sys.exit(main())
