"""`aerie compile|run|chat|profile|mlir`."""

from __future__ import annotations

import sys

from aerie.cli.arguments import begin_process, main

if __name__ == "__main__":
    begin_process()
    sys.exit(main())
