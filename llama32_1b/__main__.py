"""`python -m llama32_1b compile|run|chat|profile|mlir`."""

from __future__ import annotations

import sys

from llama32_1b.cli import main, use_utf8

if __name__ == "__main__":
    use_utf8()
    sys.exit(main())
