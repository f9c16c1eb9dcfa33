"""`aerie compile|run|chat|profile|mlir`."""

from __future__ import annotations

import sys

from aerie.cli.command_line import main, setup_process

if __name__ == "__main__":
    setup_process()
    sys.exit(main())
